"""Workers, real ones: what a tool on a pool does is what it does here, and a call begins at most once."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callgate.calls.outcome import Failed, Returned
from tests.harness.fleet import Proxy, Stores, placed, proxying, stores, working
from tests.harness.needs import needs
from tests.harness.postgres import PostgresServer
from tests.harness.process import Child
from tests.harness.redis import redis_server

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    needs("postgres", "redis-server", "module:asyncpg", "module:celery"),
]

TOOLS = [placed(name) for name in ("add", "add_later", "nap", "spin", "climb", "die", "long_text", "refuse")]


@pytest.fixture
async def fleet(postgres: PostgresServer, schema: str, tmp_path: Path) -> AsyncIterator[Stores]:
    async with redis_server(tmp_path) as redis:
        yield await stores(tmp_path, redis, postgres.url, schema, TOOLS)


@pytest.fixture
async def worker(fleet: Stores) -> AsyncIterator[Child]:
    async with working(fleet) as started:
        yield started


@pytest.fixture
async def proxy(fleet: Stores, worker: Child) -> AsyncIterator[Proxy]:
    async with proxying(fleet) as opened:
        yield opened


async def marked(file: Path, word: str, within: float = 10.0) -> str:
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


async def gone(pid: int, within: float) -> None:
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
    [(key, state)] = await proxy.database.fetch("SELECT id, state FROM fleet_calls WHERE tool = 'climb'")
    assert outcome.text == f"5 steps, {key}"
    assert state == "done"
    assert [message for message, _ in proxy.said] == [f"step {step}" for step in range(5)]
    ends = await proxy.until(lambda states: "running" not in states)
    assert ends == ["done"] * 5 + ["failed"]


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
        await gone(pid, 1.0)
        assert await proxy.call("add", a=1, b=1) == Returned("2")
        assert time.monotonic() - began < 2.0
    assert await proxy.until(lambda states: len(states) == 4) == ["done", "done", "unknown", "unknown"]
    found = await proxy.database.fetch("SELECT state FROM calls WHERE tool IN ('nap', 'spin')")
    assert found == [("unknown",), ("unknown",)]
