"""Tools on workers, through whole servers: what a client sees of them, and what becomes of them when it or a server goes."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.state.cluster.postgres import PostgresDatabase
from callgate.state.fleet_calls import FleetLedger
from tests.fleet.worker.test_worker import gone, lines_of, marked
from tests.harness.clients import http_client
from tests.harness.fleet import DEAD_AFTER, Stores, placed, stores, working
from tests.harness.needs import needs
from tests.harness.postgres import PostgresServer
from tests.harness.process import Child, serving_command
from tests.harness.redis import redis_server
from tests.scripted_upstream import Call, Reply, Upstream
from tests.scripted_upstream.records import RequestRecord

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    needs("postgres", "redis-server", "module:asyncpg", "module:celery"),
]


@pytest.fixture
async def fleet(postgres: PostgresServer, schema: str, tmp_path: Path, upstream: Upstream) -> AsyncIterator[Stores]:
    marks = str(tmp_path / "marks")

    def answers(record: RequestRecord) -> Reply:
        if record.turn:
            return Reply(text=str(record.messages[-1]["content"]))
        wish = str(record.messages[-1]["content"])
        name, _, seconds = wish.partition(" ")
        if name == "naps":
            return Reply(calls=[Call("nap", {"seconds": 0.05, "marks": marks, "label": label}) for label in "abc"])
        arguments: dict[str, Any] = {"marks": marks}
        if name == "climb":
            arguments = {"steps": 3}
        elif name == "hold":
            arguments["until"] = str(tmp_path / "go")
        else:
            arguments["seconds"] = float(seconds)
        return Reply(calls=[Call(name, arguments)])

    upstream.script("m", answers)
    async with redis_server(tmp_path) as redis:
        yield await stores(
            tmp_path,
            redis,
            postgres.url,
            schema,
            [placed("nap"), placed("climb"), placed("hold")],
            upstream=upstream.url,
            server={"drain_seconds": 0.5},
        )


def chat(wish: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": wish}], **more}


async def test_a_client_sees_progress_and_stops_what_it_leaves(fleet: Stores, tmp_path: Path) -> None:
    async with working(fleet), serving_command(fleet.config) as server, http_client(server.url) as client:
        shown = await client.post(
            "/v1/chat/completions", json=chat("climb", stream=True), headers={"X-Callgate-Events": "x"}
        )
        assert [f"step {step}" in shown.text for step in range(3)] == [True, True, True], shown.text
        assert '"ending":"answered"' in shown.text
        leaving = asyncio.create_task(client.post("/v1/chat/completions", json=chat("nap 60")))
        pid = int((await marked(tmp_path / "marks", "begin")).split()[-1])
        leaving.cancel()
        await asyncio.wait([leaving])
        await gone(pid)
        answered = await client.post("/v1/chat/completions", json=chat("nap 0"))
        assert answered.json()["choices"][0]["message"]["content"] == "rested"


async def test_the_calls_of_a_turn_run_in_the_models_order_at_a_worker_with_places_for_all(
    fleet: Stores, tmp_path: Path
) -> None:
    async with (
        working(fleet, concurrency=3),
        serving_command(fleet.config) as server,
        http_client(server.url) as client,
    ):
        await client.post("/v1/chat/completions", json=chat("naps"))
    ran = [line.rpartition(" ")[0] for line in lines_of(tmp_path / "marks")]
    assert ran == ["begin a", "end a", "begin b", "end b", "begin c", "end c"]


async def test_a_call_goes_on_when_its_server_is_killed_and_the_next_one_waits_for_it(
    fleet: Stores, tmp_path: Path
) -> None:
    async def kill(server: Child, asking: asyncio.Task[httpx.Response]) -> None:
        server.process.kill()
        with pytest.raises(httpx.TransportError):
            await asking

    await goes_on_elsewhere(fleet, tmp_path / "marks", kill)


async def test_a_server_that_drains_hands_a_run_over_and_its_call_goes_on_at_the_worker(
    fleet: Stores, tmp_path: Path
) -> None:
    async def drain(server: Child, asking: asyncio.Task[httpx.Response]) -> None:
        server.signal(signal.SIGTERM)
        await server.ended(20)
        await asyncio.wait([asking])

    await goes_on_elsewhere(fleet, tmp_path / "marks", drain)


async def goes_on_elsewhere(
    fleet: Stores, marks: Path, leave: Callable[[Child, "asyncio.Task[httpx.Response]"], Awaitable[None]]
) -> None:
    """A server goes while a worker runs a call of its; another answers the request, and the call ran once."""
    keyed = {"Idempotency-Key": "one"}
    async with working(fleet), serving_command(fleet.config) as second:
        async with serving_command(fleet.config) as first, http_client(first.url) as client:
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=chat("nap 4"), headers=keyed))
            await marked(marks, "begin")
            await leave(first, asking)
        async with http_client(second.url) as client:
            answered = await client.post("/v1/chat/completions", json=chat("nap 4"), headers=keyed)
            assert answered.json()["choices"][0]["message"]["content"] == "rested", json.dumps(answered.json())
    assert [line.split()[0] for line in lines_of(marks)] == ["begin", "end"]


CLAIM_WAITS = """
CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN PERFORM pg_advisory_xact_lock(22); RETURN NEW; END$$;
CREATE TRIGGER wait_for_test BEFORE INSERT ON calls FOR EACH ROW WHEN (NEW.epoch > 1) EXECUTE FUNCTION wait_for_test();
"""


async def test_what_a_worker_ends_while_its_call_is_claimed_for_another_server_is_what_the_model_is_sent(
    fleet: Stores, tmp_path: Path
) -> None:
    import asyncpg

    marks, body, keyed = tmp_path / "marks", chat("hold"), {"Idempotency-Key": "one"}
    database = PostgresDatabase(fleet.postgres, fleet.schema, connections=1)
    await database.open()
    holding = await asyncpg.connect(fleet.postgres, server_settings={"search_path": fleet.schema})
    try:
        await holding.execute(CLAIM_WAITS)
        await holding.execute("SELECT pg_advisory_lock(22)")
        async with working(fleet), serving_command(fleet.config) as second, http_client(second.url) as client:
            async with serving_command(fleet.config) as first, http_client(first.url) as leaving:
                asking = asyncio.create_task(leaving.post("/v1/chat/completions", json=body, headers=keyed))
                await marked(marks, "begin")
                first.process.kill()
                with pytest.raises(httpx.TransportError):
                    await asking
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=body, headers=keyed))
            await becomes(database, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", 1)
            (tmp_path / "go").touch()
            await becomes(database, "SELECT count(*) FROM calls WHERE state = 'done'", 1)
            await FleetLedger(database, "the sweep", DEAD_AFTER).sweep([], DEAD_AFTER)
            await holding.execute("SELECT pg_advisory_unlock(22)")
            answered = await asking
    finally:
        await holding.close()
        await database.close()
    assert answered.json()["choices"][0]["message"]["content"] == "held", answered.text
    assert [line.split()[0] for line in lines_of(marks)] == ["begin", "end"]


async def becomes(database: PostgresDatabase, statement: str, expected: int) -> None:
    async with asyncio.timeout(30):
        while await database.fetch(statement) != [(expected,)]:  # noqa: ASYNC110 - a database says nothing by itself
            await asyncio.sleep(0.01)
