"""Workers, real ones: what a tool on a pool does is what it does here, and a call begins at most once."""

import asyncio
import base64
import contextlib
import dataclasses
import json
import os
import re
import secrets
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from callgate.calls.outcome import Failed, FailureKind, Returned, encode_outcome
from callgate.fleet.fleet import NO_PLACE, TIMED_OUT, UNKNOWN
from callgate.fleet.message import (
    FleetCall,
    FleetReply,
    control_channel,
    control_exchange,
    encode_reply,
    queue_of,
    revoke_message,
    task_message,
)
from callgate.fleet.redis_link import RedisLink
from callgate.state.cluster.postgres import PostgresLedger
from callgate.state.entry import LedgerEntry
from callgate.state.fleet_calls import FleetOffer
from callgate.state.tables import VERSION
from tests.chaos.scale import held_to
from tests.harness.fleet import DEAD_AFTER, Proxy, Stores, config_file, placed, proxying, shared_worker, stores, working
from tests.harness.needs import needs
from tests.harness.ports import free_port
from tests.harness.postgres import PostgresServer, postgres_server
from tests.harness.process import Child, child
from tests.harness.redis import redis_server

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    needs("postgres", "redis-server", "module:asyncpg", "module:celery"),
]

TOOLS = [placed(name) for name in ("add", "add_later", "nap", "spin", "climb", "die", "long_text", "refuse")]
TOOLS += [placed("nap", name="brief_nap", timeout=1.5), placed("add", name="add_brief", run_on="brief")]
HOOKED = """
import os
from callgate import start, stop, tool

started_in = None

def note(what):
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(f"{what} {os.getpid()}\\n")

@start
async def connect():
    global started_in
    started_in = os.getpid()
    note("start")

@stop
async def disconnect():
    note("stop")

@tool(safety="read_only")
def lookup() -> str:
    return str(started_in)
"""
AWAY = "postgresql://postgres@127.0.0.1:9/postgres"
POOLS = {"gpu": {}, "brief": {"queue_seconds": 0.5}}


@pytest.fixture(scope="module")
def shared(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stores, Child]]:
    with shared_worker(postgres.url, tmp_path_factory.mktemp("fleet"), TOOLS, POOLS) as started:
        yield started


@pytest.fixture
def fleet(shared: tuple[Stores, Child]) -> Stores:
    return shared[0]


@pytest.fixture
def worker(shared: tuple[Stores, Child]) -> Child:
    return shared[1]


@pytest.fixture
async def proxy(fleet: Stores) -> AsyncIterator[Proxy]:
    async with proxying(fleet) as opened:
        yield opened


@pytest.fixture
async def lone(
    fleet: Stores, postgres: PostgresServer, schema: str, tmp_path: Path
) -> AsyncIterator[tuple[Proxy, Child]]:
    """A proxy, and a worker that the test may kill."""
    mine = await stores(tmp_path, fleet.redis, postgres.url, schema, TOOLS, pools=POOLS)
    async with working(mine) as worker, proxying(mine) as proxy:
        yield proxy, worker


async def marked(file: Path, word: str, within: float = 30.0) -> str:
    """The line of a tool's marks that begins so, once it is there."""
    async with asyncio.timeout(within):
        while not (found := [line for line in lines_of(file) if line.startswith(word)]):  # noqa: ASYNC110 - asks a file
            await asyncio.sleep(0.01)
        return found[0]


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def is_there(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def gone(pid: int, within: float = 20.0) -> None:
    async with asyncio.timeout(within):
        while is_there(pid):  # noqa: ASYNC110 - a process says nothing when it ends
            await asyncio.sleep(0.01)


async def test_tools_answer_as_they_do_here(proxy: Proxy, worker: Child) -> None:
    assert await proxy.call("add", a=2, b=3) == Returned("5")
    assert await proxy.call("add_later", a=4, b=3) == Returned("7")
    assert await proxy.call("refuse") == Failed("not today")
    whole = await proxy.call("long_text", size=60_000)
    assert isinstance(whole, Returned)
    assert whole.text == "x" * 60_000
    cut = await proxy.call("long_text", size=200_000)
    assert isinstance(cut, Returned)
    assert 200_000 - len(cut.text) <= cut.cut_bytes
    outcome = await proxy.call("climb", steps=5)
    assert isinstance(outcome, Returned)
    [(key, state)] = await proxy.database.fetch("SELECT id, state FROM calls WHERE tool = 'climb'")
    assert outcome.text == f"5 steps, {key}"
    assert state == "done"
    assert [message for message, _ in proxy.said] == [f"step {step}" for step in range(5)]
    ends = await proxy.until(lambda states: "started" not in states)
    assert ends == ["done"] * 5 + ["failed"]


async def test_a_call_is_three_commands_of_redis_and_no_line_of_a_log(
    postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    from redis.asyncio import Redis

    async with redis_server(tmp_path) as url, Redis.from_url(url) as client:
        fleet = await stores(tmp_path, url, postgres.url, schema, TOOLS, pools=POOLS)
        async with working(fleet) as worker, proxying(fleet) as proxy:
            assert await proxy.call("add", a=1, b=1) == Returned("2")
            lines = len(worker.lines)
            await client.config_resetstat()
            for _ in range(20):
                assert await proxy.call("add", a=1, b=1) == Returned("2")
            spent = await client.info("commandstats")
            assert len(worker.lines) == lines
    counts = {name.removeprefix("cmdstat_"): each["calls"] for name, each in spent.items()}
    assert counts["lpush"] == counts["publish"] == 20
    assert counts["brpop"] in {19, 20, 21}, "one may have begun before the count did, and one waits"
    others = {name: count for name, count in counts.items() if name not in {"lpush", "publish", "brpop"}}
    assert all(count < 20 for count in others.values()), f"what comes at intervals is of no call: {others}"


async def test_cancelling_kills_a_plain_function_at_once_and_its_place_is_free(
    proxy: Proxy, worker: Child, tmp_path: Path
) -> None:
    for tool, arguments in (("nap", {"seconds": 60.0}), ("spin", {})):
        marks = tmp_path / tool
        calling = asyncio.create_task(proxy.call(tool, marks=str(marks), **arguments))
        pid = int((await marked(marks, "begin")).split()[-1])
        began = time.monotonic()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await gone(pid)
        assert await proxy.call("add", a=1, b=1) == Returned("2")
        held_to(2.0, "a cancelled call is killed and its place free", time.monotonic() - began)
    assert await proxy.until(lambda states: len(states) == 4) == ["done", "done", "unknown", "unknown"]
    found = await proxy.database.fetch(
        "SELECT state FROM calls WHERE tool IN ('nap', 'spin') AND process = ?1", proxy.shared.calls.process
    )
    assert found == [("unknown",), ("unknown",)]


async def offered(proxy: Proxy, tool: str, **arguments: Any) -> FleetCall:
    """A call that stands in the ledger and was not published."""
    key = f"direct_{secrets.token_hex(4)}"
    call = FleetCall(key, tool, "call_1", json.dumps(arguments), "{}", "run_1", 0, key, 1 << 20, "nobody", "gpu")
    process = proxy.shared.calls.process
    assert isinstance(proxy.shared.calls, PostgresLedger)
    entry = LedgerEntry(
        "run_1", 0, "call_1", tool, "00", "alice", writes=True, started_at=time.time(), offered=True, id=key
    )
    await proxy.shared.calls.start(entry)
    offer = FleetOffer(key, process, "gpu", f"{process}/direct", call.arguments_hash())
    written: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    proxy.shared.calls.offer(offer, written.set_result)
    assert await written == 1
    return call.signed(await proxy.fleet_ledger.key("gpu"))


async def publish(fleet: Stores, *messages: bytes) -> None:
    from redis.asyncio import Redis

    async with Redis.from_url(fleet.redis) as client:
        await client.lpush(queue_of(fleet.settings.store.prefix, "gpu"), *messages)


async def test_a_message_that_comes_again_or_was_made_up_runs_nothing(
    proxy: Proxy, worker: Child, fleet: Stores, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    queue = queue_of(fleet.settings.store.prefix, "gpu")
    call = await offered(proxy, "nap", seconds=0.0, marks=str(marks), label="once")
    key = await proxy.fleet_ledger.key("gpu")
    resigned = [
        replace(call, arguments=call.arguments.replace("once", "evil")).signed(key),
        replace(call, id="direct_other", key="direct_other").signed(key),
    ]
    unsigned = [
        replace(call, reply="attacker's", signature=""),
        replace(call, reply="attacker's"),
        replace(call, max_bytes=1 << 60),
        replace(call, turn=7),
        replace(call, pool="brief").signed(await proxy.fleet_ledger.key("brief")),
    ]
    messages = [task_message(each, queue, 30.0) for each in (*resigned, *unsigned, call, call, call)]
    await publish(fleet, *messages)
    await proxy.until(lambda states: states == ["done"])
    await publish(fleet, *messages)
    assert await proxy.call("add", a=1, b=1) == Returned("2")  # in one process, in order: all of them were looked at
    async with asyncio.timeout(30):
        # Not a number of them: Celery loses some when a test before has killed the process they were meant for.
        while not ("fleet_call_ignored" in worker.log and "not signed with the key of its pool" in worker.log):  # noqa: ASYNC110 - another loop reads it
            await asyncio.sleep(0.01)
    assert [line.split()[1] for line in lines_of(marks)] == ["once", "once"]


ODD = [
    b"{",
    b"null",
    b"[]",
    b"{}",
    b"\xff\xfe",
    b'{"body": "!", "properties": {}, "headers": {}}',
    b"[" * 100_000,
    b'{"body": ' + b'{"a":' * 2_000,
    (
        b'{"body": "e30=", "content-type": "application/json", "content-encoding": "utf-8", "headers": {"task": "callgate.run"},'
        b' "properties": {"delivery_tag": "1", "delivery_info": {"exchange": "", "routing_key": "x"}, "body_encoding": "base64"}}'
    ),
    (
        b'{"body": "gASVAAAAAAAAAA==", "content-type": "application/x-python-serialize", "content-encoding": "binary",'
        b' "headers": {"task": "callgate.run", "id": "1"}, "properties": {"delivery_tag": "2", "delivery_info": {"exchange":'
        b' "", "routing_key": "x"}, "body_encoding": "base64"}}'
    ),
]
"""What may stand in Redis and is no message of ours."""


async def test_what_is_no_message_harms_neither_worker_nor_proxy(lone: tuple[Proxy, Child], tmp_path: Path) -> None:
    from redis.asyncio import Redis

    from callgate.config.load import load

    proxy, worker = lone
    store = load(tmp_path / "fleet.yaml").config.store
    assert store.redis_url is not None
    url = store.redis_url.get_secret_value()
    good = FleetCall("made_up", "add", "call_1", "{}", "{}", "run_1", 0, "key", 1 << 20, "nobody", "gpu")
    queue = queue_of(store.prefix, "gpu")
    other = task_message(good, queue, 30.0)
    odd = [*ODD, other.replace(b"callgate.run", b"celery.chord"), other.replace(b'"id":"made_up"', b'"id":null')]
    async with Redis.from_url(url) as client:
        assert await proxy.call("add", a=1, b=1) == Returned("2")
        [replies] = [name for name in await client.pubsub_channels() if b"replies" in name]
        deep = base64.b64encode(b"[" * 100_000)
        odd.append(re.sub(rb'"body":"[^"]*"', b'"body":"%b"' % deep, other))
        odd += [
            b"s" * 16 + b"\x81\xa2id\xa2\xff\xfe",
            b"s" * 16 + b"\x81\xa1x" + b"\x91" * 100_000,
        ]  # as replies of a worker
        for each in odd:
            await client.lpush(queue, each)
            await client.publish(control_channel(store.prefix, url), each)
            await client.publish(replies, each)
            proxy.said.clear()
            assert isinstance(await proxy.call("climb", steps=1), Returned), each
            assert proxy.said == [("step 0", 0.0)], each
    assert worker.log.count("worker_ready") == 1


async def test_no_more_of_a_result_is_kept_than_is_read_of_any_tool(proxy: Proxy, worker: Child) -> None:
    outcome = await proxy.call("long_text", size=20_000_000)
    assert isinstance(outcome, Returned)
    [[size]] = await proxy.database.fetch(
        "SELECT octet_length(worker_outcome) FROM calls WHERE process = ?1", proxy.shared.calls.process
    )
    assert size < 5_000_000


async def test_a_worker_goes_on_once_its_queue_can_be_read_again(
    lone: tuple[Proxy, Child], fleet: Stores, schema: str
) -> None:
    from redis.asyncio import Redis

    proxy, worker = lone
    queue = queue_of(f"{schema}:", "gpu")
    async with Redis.from_url(fleet.redis) as client:
        assert await proxy.call("add", a=1, b=1) == Returned("2")
        await client.set(queue, "no list")
        await worker.line("fleet_queue_not_read")
        await client.delete(queue)
        assert await proxy.call("add", a=1, b=2) == Returned("3")


async def test_access_to_redis_and_a_worker_of_another_pool_can_neither_answer_nor_kill_a_call(
    proxy: Proxy, worker: Child, fleet: Stores, tmp_path: Path
) -> None:
    from redis.asyncio import Redis

    marks = tmp_path / "marks"
    prefix = fleet.settings.store.prefix
    others = await proxy.fleet_ledger.key("brief")
    forged = encode_reply(FleetReply("", ended=True, outcome=encode_outcome(Returned("forged"))), b"guessed")
    async with Redis.from_url(fleet.redis) as client:
        call = asyncio.create_task(proxy.call("nap", seconds=0.4, marks=str(marks), label="x"))
        await marked(marks, "begin")
        [id] = [id for id, state in (await proxy.states()).items() if state == "started"]
        reply = FleetReply(id, ended=True, outcome=encode_outcome(Returned("forged")))
        bare = msgspec.msgpack.encode(reply)
        [replies] = [name for name in await client.pubsub_channels() if b"replies" in name]
        heard = [
            await client.publish(replies, each)
            for each in (bare, forged[:16] + bare, encode_reply(reply, others), encode_reply(reply, b""))
        ]
        order = revoke_message(id, control_exchange(prefix), "gpu", others)
        unsigned = json.loads(order)
        body = json.loads(base64.b64decode(unsigned["body"]))
        del body["arguments"]["signature"]
        unsigned["body"] = base64.b64encode(json.dumps(body).encode()).decode()
        for each in (order, json.dumps(unsigned).encode()):
            heard.append(await client.publish(control_channel(prefix, fleet.redis), each))
        assert heard == [1] * 6
        assert await call == Returned("rested")
        order = revoke_message("nobody_runs_it", control_exchange(prefix), "gpu", await proxy.fleet_ledger.key("gpu"))
        assert await client.publish(control_channel(prefix, fleet.redis), order) == 1
        assert await proxy.call("add", a=1, b=1) == Returned("2")
    assert worker.log.count("not signed with the key") >= 2
    assert "Failed to mark" not in worker.log


SCALING = Path(__file__).parents[3] / "docs" / "scaling.md"


async def test_a_worker_works_with_the_rights_of_its_pool_alone(
    fleet: Stores, postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    import asyncpg

    mine = await stores(tmp_path, fleet.redis, postgres.url, schema, TOOLS, pools=POOLS)
    role = f"gpu_{schema}"
    [grants] = re.findall(r"^```sql\n(create role callgate_gpu.*?)^```", SCALING.read_text(), re.MULTILINE | re.DOTALL)
    limited = postgres.url.replace("postgres@", f"{role}@")
    config = config_file(
        tmp_path / "limited",
        yaml.safe_load(mine.config.read_text()) | {"ledger": {"url": limited, "namespace": schema}},
    )
    owner = await asyncpg.connect(postgres.url)
    grants = re.sub(r"\bcallgate(?=\.| to)", f'"{schema}"', grants.replace("callgate_gpu", f'"{role}"'))
    await owner.execute(grants)
    async with proxying(mine) as proxy:
        await proxy.fleet_ledger.key("brief")
        async with working(dataclasses.replace(mine, config=config)):
            assert await proxy.call("add", a=1, b=2) == Returned("3")
            assert isinstance(await proxy.call("long_text", size=100_000), Returned)
            theirs = await asyncpg.connect(limited)
            await theirs.execute(f'SET search_path TO "{schema}"')
            assert [row[0] for row in await theirs.fetch("SELECT pool FROM pool_keys")] == ["gpu"]
            assert {row[0] for row in await theirs.fetch("SELECT kind FROM processes")} == {"worker:gpu"}
            waiting = asyncio.create_task(proxy.call("add_brief", a=1, b=1))
            await proxy.until(lambda states: "waiting" in states)
            assert await theirs.execute("UPDATE calls SET state = 'done' WHERE state = 'waiting'") == "UPDATE 0"
            assert await theirs.execute("DELETE FROM processes WHERE kind <> 'worker:gpu'") == "DELETE 0"
            assert isinstance(await waiting, Failed)
            for statement in (
                "SELECT arguments FROM calls",
                "UPDATE calls SET pool = 'brief'",
                "INSERT INTO pool_keys (pool, key) VALUES ('mine', '')",
                "UPDATE pool_keys SET key = ''",
                "SELECT * FROM runs",
                "SELECT * FROM keys",
                "SELECT * FROM approvals",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await theirs.execute(statement)
            await theirs.close()
    await owner.close()


async def test_a_call_that_takes_too_long_is_killed_by_its_proxy_and_else_by_its_worker(
    proxy: Proxy, worker: Child, fleet: Stores, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    outcome = await proxy.call("brief_nap", seconds=60.0, marks=str(marks))
    assert outcome == Failed(TIMED_OUT.format(1.5), FailureKind.TIMEOUT)
    await gone(int(lines_of(marks)[0].split()[-1]))
    call = await offered(proxy, "nap", seconds=60.0, marks=str(marks), label="alone")
    await publish(fleet, task_message(call, queue_of(fleet.settings.store.prefix, "gpu"), 1.0))
    pid = int((await marked(marks, "begin alone")).split()[-1])
    await gone(pid)
    assert await proxy.until(lambda states: "started" not in states) == ["unknown", "unknown"]


async def test_a_process_that_ends_in_the_middle_makes_its_call_unknown(proxy: Proxy, worker: Child) -> None:
    began = time.monotonic()
    assert await proxy.call("die") == Failed(UNKNOWN, FailureKind.UNKNOWN)
    held_to(DEAD_AFTER + 1, "the call of a killed process is unknown", time.monotonic() - began)
    assert await proxy.call("add", a=1, b=1) == Returned("2")


async def test_calls_of_a_worker_that_is_killed_are_known_to_be_unknown_in_time_and_do_not_run_on(
    lone: tuple[Proxy, Child], tmp_path: Path
) -> None:
    proxy, worker = lone
    marks = tmp_path / "marks"
    calling = asyncio.create_task(proxy.call("nap", seconds=60.0, marks=str(marks)))
    pid = int((await marked(marks, "begin")).split()[-1])
    began = time.monotonic()
    worker.signal(signal.SIGKILL)
    await gone(pid)
    assert await calling == Failed(UNKNOWN, FailureKind.UNKNOWN)
    held_to(DEAD_AFTER + 1, "the call of a killed process is unknown", time.monotonic() - began)


async def test_what_a_paused_worker_ends_after_it_was_taken_for_dead_changes_nothing(
    lone: tuple[Proxy, Child], tmp_path: Path
) -> None:
    proxy, worker = lone
    marks = tmp_path / "marks"
    calling = asyncio.create_task(proxy.call("nap", seconds=0.2, marks=str(marks)))
    pid = int((await marked(marks, "begin")).split()[-1])
    os.kill(pid, signal.SIGSTOP)
    worker.signal(signal.SIGSTOP)
    assert await calling == Failed(UNKNOWN, FailureKind.UNKNOWN)
    worker.signal(signal.SIGCONT)
    os.kill(pid, signal.SIGCONT)
    assert await proxy.call("add", a=1, b=1) == Returned("2")
    assert await proxy.until(lambda states: True) == ["done", "unknown"]
    assert len([line for line in lines_of(marks) if line.startswith("begin")]) == 1


async def test_a_call_waits_for_a_worker_so_long_and_then_certainly_has_not_run(proxy: Proxy) -> None:
    assert await proxy.call("add_brief", a=1, b=1) == Failed(NO_PLACE.format(0.5), FailureKind.REFUSED)
    assert await proxy.until(lambda states: True) == ["withdrawn"]


OFFER_WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT INTO calls%'"
"""The call itself: the look for lost calls waits for the table twice a second, too."""


async def test_a_call_that_is_given_up_while_it_is_offered_has_certainly_not_run(
    postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    import asyncpg

    async with (
        redis_server(tmp_path) as url,
        asyncpg.create_pool(postgres.url, min_size=1) as pool,
        pool.acquire() as locking,
    ):
        fleet = await stores(tmp_path, url, postgres.url, schema, TOOLS, pools=POOLS)
        async with proxying(fleet) as proxy:
            async with locking.transaction():
                await locking.execute(f"LOCK TABLE {schema}.calls IN SHARE MODE")
                calling = asyncio.create_task(proxy.call("add", a=1, b=1))
                async with asyncio.timeout(30):
                    while not await pool.fetch(OFFER_WAITS):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                calling.cancel()
                await asyncio.wait([calling])
            # Its row is written once the lock is gone, and then withdrawn. Where writing it took too long there is none, or one that
            # says less than could be known; a worker has begun it in no case.
            with contextlib.suppress(TimeoutError):
                await proxy.until(lambda states: states == ["withdrawn"], within=10.0)
            await proxy.shared.calls.close()
            rows = await proxy.database.fetch("SELECT worker, began_at, state FROM calls")
            assert rows in ([], [(None, None, "withdrawn")], [(None, None, "unknown")])


async def test_a_call_that_redis_lost_is_published_again(postgres: PostgresServer, schema: str, tmp_path: Path) -> None:
    async with redis_server(tmp_path) as url:
        fleet = await stores(tmp_path, url, postgres.url, schema, TOOLS, pools=POOLS)
        async with proxying(fleet) as proxy:
            calling = asyncio.create_task(proxy.call("add", a=1, b=1))
            await proxy.until(lambda states: states == ["waiting"])
            from redis.asyncio import Redis

            async with Redis.from_url(fleet.redis) as client:
                async with asyncio.timeout(30):
                    while not await client.llen(  # noqa: ASYNC110 - asks a server
                        queue_of(fleet.settings.store.prefix, "gpu")
                    ):
                        await asyncio.sleep(0.01)
                await client.flushall()
            async with working(fleet):
                assert await calling == Returned("2")


async def test_a_call_whose_connection_was_lost_before_it_arrived_is_published_again_behind_others(
    postgres: PostgresServer, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redis.asyncio import Redis

    send, swallowed = RedisLink.send, list[tuple[str | bytes, ...]]()

    async def swallow_the_first(link: RedisLink, *words: str | bytes) -> "asyncio.Future[None]":
        if swallowed:
            return await send(link, *words)
        swallowed.append(words)
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lost.set_result(None)
        return lost

    monkeypatch.setattr(RedisLink, "send", swallow_the_first)
    async with redis_server(tmp_path) as url, Redis.from_url(url) as client:
        fleet = await stores(tmp_path, url, postgres.url, schema, TOOLS, pools=POOLS)
        queue = queue_of(fleet.settings.store.prefix, "gpu")
        await client.lpush(queue, "{")
        async with proxying(fleet) as proxy:
            calling = asyncio.create_task(proxy.call("add", a=1, b=1))
            async with asyncio.timeout(30):
                while await client.llen(queue) < 2:  # noqa: ASYNC110 - asks a server
                    await asyncio.sleep(0.01)
            calling.cancel()
            await asyncio.wait([calling])
        assert await client.lrange(queue, 0, -1) == [swallowed[0][2], b"{"]


async def test_after_a_call_was_published_in_vain_the_next_go_over_another_connection(
    postgres: PostgresServer, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, renew, renewed = RedisLink.send, RedisLink.renew, asyncio.Event()
    sent: list[bool] = []

    async def swallow(link: RedisLink, *words: str | bytes) -> "asyncio.Future[None]":
        sent.append(renewed.is_set())
        return await send(link, *words) if renewed.is_set() else asyncio.get_running_loop().create_future()

    async def seen(link: RedisLink) -> None:
        renewed.set()
        await renew(link)

    monkeypatch.setattr(RedisLink, "send", swallow)
    monkeypatch.setattr(RedisLink, "renew", seen)
    async with redis_server(tmp_path) as url:
        fleet = await stores(tmp_path, url, postgres.url, schema, TOOLS, pools=POOLS)
        async with working(fleet), proxying(fleet) as proxy:
            for _ in range(2):
                assert await proxy.call("add", a=1, b=1) == Returned("2")
    assert sent == [False, True]


async def test_calls_go_on_while_postgres_and_redis_are_away_for_a_moment(schema: str, tmp_path: Path) -> None:
    port = free_port()
    marks = tmp_path / "marks"
    with postgres_server() as server:
        async with AsyncExitStack() as redis_life:
            redis = await redis_life.enter_async_context(redis_server(tmp_path, port))
            fleet = await stores(tmp_path, redis, server.url, schema, TOOLS, pools=POOLS)
            async with working(fleet, concurrency=2), proxying(fleet) as proxy:
                calling = asyncio.create_task(proxy.call("nap", seconds=0.5, marks=str(marks)))
                await marked(marks, "begin")
                await asyncio.to_thread(server.stop)
                await redis_life.aclose()
                async with redis_server(tmp_path, port):
                    await marked(marks, "end")
                    await asyncio.to_thread(server.start, "fsync=off")
                    assert await calling == Returned("rested")
                    assert await proxy.call("add", a=1, b=1) == Returned("2")
    assert len(lines_of(marks)) == 2


async def test_commands_and_requests_run_on_workers_each_in_a_fresh_process_if_its_pool_is_so_configured(
    postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    command = {
        "kind": "command",
        "name": "shout",
        "description": "Shouts.",
        "argv": ["tr", "a-z", "A-Z"],
        "stdin": "{text}",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
        "run_on": "gpu",
    }
    request = {
        "kind": "http",
        "name": "ask",
        "description": "Asks.",
        "url": "http://127.0.0.1:1/nobody",
        "allow_private": "on",
        "run_on": "gpu",
    }
    async with redis_server(tmp_path) as redis:
        fleet = await stores(
            tmp_path,
            redis,
            postgres.url,
            schema,
            [command, request, placed("nap")],
            pools={"gpu": {"fresh_process": "on"}},
        )
        async with working(fleet), proxying(fleet) as proxy:
            assert await proxy.call("shout", text="hi") == Returned("HI")
            refused = await proxy.call("ask")
            assert isinstance(refused, Failed)
            assert refused.kind is FailureKind.UNAVAILABLE
            for label in ("one", "two"):
                await proxy.call("nap", seconds=0.0, marks=str(tmp_path / "marks"), label=label)
    assert len({line.split()[-1] for line in lines_of(tmp_path / "marks")}) == 2


async def test_modules_are_started_by_the_processes_of_a_worker_and_stopped_when_it_ends(
    postgres: PostgresServer, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal"
    (tmp_path / "hooks_on_a_worker.py").write_text(HOOKED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("JOURNAL", str(journal))
    tool = {"kind": "python", "module": "hooks_on_a_worker", "run_on": "gpu"}
    async with redis_server(tmp_path) as redis:
        fleet = await stores(tmp_path, redis, postgres.url, schema, [tool])
        async with working(fleet) as worker, proxying(fleet) as proxy:
            await proxy.registry.open()
            assert proxy.registry.services() == ()
            first = await proxy.call("lookup")
            assert isinstance(first, Returned)
            assert await proxy.call("lookup") == first
            assert lines_of(journal) == [f"start {first.text}"]
            assert first.text != str(os.getpid())
            worker.signal(signal.SIGTERM)
            await worker.ended()
            assert lines_of(journal) == [f"start {first.text}", f"stop {first.text}"]


async def test_pools_and_workers_are_seen(lone: tuple[Proxy, Child], tmp_path: Path) -> None:
    proxy, worker = lone
    marks = tmp_path / "marks"
    config = ["--config", str(tmp_path / "fleet.yaml")]
    calls = [asyncio.create_task(proxy.call("nap", seconds=60.0, marks=str(marks))) for _ in range(2)]
    await marked(marks, "begin")
    async with child(["pools", "--json", *config]) as asked:
        assert await asked.ended(20) == 0
    found = json.loads(asked.lines[-1])
    assert (found["gpu"]["waiting"], found["gpu"]["running"], len(found["gpu"]["workers"])) == (1, 1, 1)
    for calling in calls:
        calling.cancel()
    await asyncio.wait(calls)
    async with child(["health", "--worker", *config]) as asked:
        assert await asked.ended(20) == 0
    await proxy.database.fetch(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'disk full' USING ERRCODE = '53100'; END$$"
    )
    await proxy.database.fetch(
        "CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON processes EXECUTE FUNCTION full_disk()"
    )
    await proxy.database.fetch(
        "DELETE FROM processes WHERE kind LIKE 'worker:%'"
    )  # as if their last beats were long ago
    async with child(["health", "--worker", *config]) as asked:
        assert await asked.ended(20) == 0, "nor where no worker can say that it lives"
    assert "cannot be seen" in asked.log
    await proxy.database.fetch("UPDATE ledger_version SET version = 99")
    async with child(["health", "--worker", *config]) as asked:
        assert await asked.ended(20) == 0, "nor where the tables were updated before it is replaced"
    await proxy.database.fetch("UPDATE ledger_version SET version = ?1", VERSION)
    await proxy.database.fetch("DROP TRIGGER full_disk ON processes")
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == 0
    async with child(["health", "--worker", *config]) as asked:
        assert await asked.ended(20) == 1
    away = config_file(
        tmp_path / "away", {**yaml.safe_load((tmp_path / "fleet.yaml").read_text()), "ledger": {"url": AWAY}}
    )
    async with child(["health", "--worker", "--config", str(away)]) as asked:
        assert await asked.ended(20) == 0, "a probe ends no worker because Postgres is away"
    assert "cannot be seen" in asked.log
    async with child(["worker", "--pool", "gpuu", *config]) as asked:
        assert await asked.ended(20) == 2
    assert "did you mean `gpu`" in asked.log
