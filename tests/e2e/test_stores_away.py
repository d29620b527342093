"""A server whose stores take no writes, or are away: what it refuses, in which words, and what the operator sees."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import openai
import pytest

from callgate.access.keys import mint_key
from tests.chaos import tools
from tests.harness.clients import http_client, openai_client
from tests.harness.configs import as_yaml, config_dict
from tests.harness.needs import needs
from tests.harness.ports import free_port
from tests.harness.postgres import PostgresServer, postgres_server
from tests.harness.process import Child, serving_command
from tests.harness.redis import redis_server
from tests.scripted_upstream import Call, Reply, Upstream
from tests.scripted_upstream.records import RequestRecord

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    needs("postgres", "redis-server", "module:asyncpg", "module:redis"),
]

SECRET, HASH = mint_key()
FULL = """
CREATE FUNCTION {schema}.disk_is_full() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'could not extend file: No space left on device'; END $$
"""


def answers(record: RequestRecord) -> Reply:
    """A call of the tool that the question names, then what came of it."""
    if record.turn:
        return Reply(text=str(record.messages[-1]["content"]))
    name = str(record.messages[-1]["content"])
    return Reply(text="hi") if name == "hello" else Reply(calls=[Call(name, {"label": name})])


class Serving:
    """One server on stores of its own."""

    def __init__(self, child: Child, postgres: PostgresServer, schema: str, client: Any, marks: Path) -> None:
        self.child, self.postgres, self.schema, self.client, self.marks = child, postgres, schema, client, marks

    async def sql(self, *statements: str) -> None:
        connection = await asyncpg.connect(self.postgres.url)
        try:
            await connection.execute("SET default_transaction_read_only = off")
            for statement in statements:
                await connection.execute(statement.replace("{schema}", self.schema))
        finally:
            await connection.close()

    async def ask(self, question: str, **more: Any) -> str:
        messages = [{"role": "user", "content": question}]
        answer = await self.client.chat.completions.create(model="m", messages=messages, **more)
        return str(answer.choices[0].message.content)

    async def refused(self, question: str, **headers: str) -> dict[str, Any]:
        """What a request with these headers is refused with, as a 503 that says when to come again."""
        with pytest.raises(openai.InternalServerError) as caught:
            await self.ask(question, extra_headers=headers)
        assert caught.value.status_code == 503
        assert caught.value.response.headers["retry-after"] == "1"
        error: dict[str, Any] = caught.value.response.json()["error"]
        return error

    async def logged(self, *events: str) -> None:
        """The log has these, and the metrics count them."""
        for event in events:
            await self.child.line(rf'"event": ?"{event}"|\b{event}\b', within=10)
        async with http_client(self.child.url) as plain:
            page = (await plain.get("/metrics", headers={"authorization": f"Bearer {SECRET}"})).text
        counted = {name for name, _ in re.findall(r'callgate_log_events_total\{event="(\w+)",level="(\w+)"\}', page)}
        assert counted >= set(events), page

    def ran(self) -> list[str]:
        return self.marks.read_text().splitlines()


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[tuple[str, contextlib.AsyncExitStack]]:
    """A server that ends with what is given beside its address."""
    life = contextlib.AsyncExitStack()
    yield await life.enter_async_context(redis_server(tmp_path, free_port())), life
    await life.aclose()


@pytest.fixture
async def served(
    tmp_path: Path, schema: str, upstream: Upstream, redis: tuple[str, contextlib.AsyncExitStack]
) -> AsyncIterator[Serving]:
    from callgate.state.cluster.postgres import migrate

    upstream.script("m", answers)
    marks = tmp_path / "marks"
    marks.touch()
    listed: list[dict[str, Any]] = [
        {"kind": "python", "function": f"{tools.__name__}:count", "safety": safety, "name": safety}
        for safety in ("write", "read_only")
    ]
    listed.append({**listed[0], "name": "elsewhere", "run_on": "gpu"})
    listed.append({**listed[0], "name": "asks", "require_approval": "always"})
    with postgres_server() as postgres:
        await migrate(postgres.url, schema)
        config = config_dict(
            upstream.url,
            tools=listed,
            auth="keys",
            keys=[{"name": "alice", "hash": HASH, "parallel": 4, "requests_per_minute": 1000, "admin": True}],
            ledger={"url": postgres.url, "namespace": schema},
            store={"redis_url": redis[0]},
            pools={"gpu": {}},
            approvals={"timeout_seconds": 2},
        )
        file = tmp_path / "config.yaml"
        file.write_text(as_yaml(config))
        async with (
            serving_command(file, environment={tools.MARKS: str(marks)}) as child,
            openai_client(child.url, api_key=SECRET) as client,
        ):
            begun = Serving(child, postgres, schema, client, marks)
            assert await begun.ask("hello") == "hi"  # it says its address before it has begun
            yield begun


@pytest.mark.parametrize("why", ["read_only", "disk_full"])
async def test_while_postgres_takes_no_writes_no_writing_tool_begins_and_each_request_gets_an_error(
    served: Serving, why: str
) -> None:
    tables = ("calls", "runs", "run_turns", "approvals", "answer_parts", "processes")
    if why == "read_only":
        await served.sql("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
    else:
        each = "CREATE TRIGGER disk_is_full BEFORE INSERT OR UPDATE ON {schema}.%s EXECUTE FUNCTION {schema}.disk_is_full()"
        await served.sql(FULL, *(each % table for table in tables))
    await served.logged("ledger_away")

    assert await served.ask("hello") == "hi"
    assert "Not run" in await served.ask("write")
    assert "Not run" in await served.ask("elsewhere")
    assert "Not run" in await served.ask("asks")
    assert await served.ask("read_only") == "counted read_only"
    for headers in ({"idempotency-key": "k"}, {"x-callgate-background": "true"}):
        error = await served.refused("write", **headers)
        assert error["code"] == "runs_unavailable"
        assert "nothing is run" in error["message"]
    with pytest.raises(openai.InternalServerError, match="nothing is run"):
        await served.client.responses.create(model="m", input="write", background=True)
    assert served.ran() == ["read_only"]
    await served.logged("tool_run_not_recorded", "run_refused", "fleet_call_not_offered", "ledger_not_written")

    if why == "read_only":
        await served.sql("ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
    else:
        await served.sql(*(f"DROP TRIGGER disk_is_full ON {{schema}}.{table}" for table in tables))
    async with asyncio.timeout(30):
        while await served.ask("write") != "counted write":  # noqa: ASYNC110 - another process finds out
            await asyncio.sleep(0.1)
    again = await served.ask("write", extra_headers={"idempotency-key": "k"})
    assert again == await served.ask("write", extra_headers={"idempotency-key": "k"}) == "counted write"
    assert served.ran() == ["read_only", "write", "write"]


async def test_while_redis_is_away_each_process_counts_alone_and_the_ledger_goes_on(
    served: Serving, redis: tuple[str, contextlib.AsyncExitStack]
) -> None:
    assert await served.ask("write") == "counted write"
    await redis[1].aclose()
    assert await served.ask("hello") == "hi"
    assert await served.ask("write") == "counted write"
    assert await served.ask("write", extra_headers={"idempotency-key": "k"}) == "counted write"
    await served.logged("redis_unavailable")
    async with http_client(served.child.url) as plain:
        reloaded = await plain.post("/admin/reload", headers={"authorization": f"Bearer {SECRET}"})
    assert reloaded.status_code == 200, json.dumps(reloaded.json())
    await served.logged("news_not_sent")
