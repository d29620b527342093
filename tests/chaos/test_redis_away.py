"""Redis is away: chats that need none of it go on, and nothing waits in the event loop."""

import asyncio
import contextlib
import time
from math import inf
from pathlib import Path

import pytest

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.chaos import tools
from tests.chaos.load import chat_body, shoot
from tests.chaos.scale import report, scaled
from tests.harness.configs import config_dict
from tests.harness.needs import needs
from tests.harness.ports import free_port
from tests.harness.postgres import PostgresServer
from tests.harness.redis import redis_server
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.scripted_upstream.records import RequestRecord

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    needs("postgres", "redis-server", "module:asyncpg", "module:redis"),
]

AWAY = scaled(1.5, 10.0)
LONGEST_GAP = scaled(inf, 0.05)


def answers(record: RequestRecord) -> Reply:
    """A call of a tool in the process, then an answer."""
    return Reply(text="done") if record.turn else Reply(calls=[Call("count", {"label": "x"})])


async def test_chats_without_calls_for_workers_go_on_and_the_loop_is_never_kept(
    postgres: PostgresServer, schema: str, tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    from callgate.state.cluster.postgres import migrate

    await migrate(postgres.url, schema)
    monkeypatch.setenv(tools.MARKS, str(tmp_path / "marks"))
    upstream.script("m", answers)
    port = free_port()
    listed = [
        {"kind": "python", "function": f"{tools.__name__}:count", "safety": "write"},
        {"kind": "python", "function": f"{tools.__name__}:hang", "run_on": "gpu"},
    ]
    async with contextlib.AsyncExitStack() as life:
        redis = await life.enter_async_context(redis_server(tmp_path, port))
        config = config_dict(
            upstream.url,
            tools=listed,
            pools={"gpu": {}},
            ledger={"url": postgres.url, "namespace": schema},
            store={"redis_url": redis},
            logging={"level": "error"},
        )
        async with serve(create_app(Config.model_validate(config))) as url:
            assert (await shoot(url, chat_body("0"))).status == 200
            await life.aclose()
            gap, seconds = await _chatting(url)
    report(
        "redis away",
        away_seconds=AWAY,
        chats=len(seconds),
        slowest_chat=round(max(seconds), 3),
        loop_gap=round(gap, 3),
    )
    assert gap <= LONGEST_GAP
    assert max(seconds) <= scaled(inf, 1.0)


async def _chatting(url: str) -> tuple[float, list[float]]:
    """For how long the event loop let nobody else run, at most, while chats were asked; and how long each took."""
    ticking = asyncio.create_task(_longest_gap())
    began = time.monotonic()
    seconds: list[float] = []
    while time.monotonic() < began + AWAY:
        sent = time.monotonic()
        assert (await shoot(url, chat_body(str(len(seconds))))).status == 200
        seconds.append(time.monotonic() - sent)
        await asyncio.sleep(0.02)
    ticking.cancel()
    return await ticking, seconds


async def _longest_gap() -> float:
    """Until it is cancelled: for how long the event loop let nobody else run, at most, without the time for which it had no
    processor: that is the machine's, which may be busy with other things."""
    longest = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            before, waited = time.monotonic(), _seconds_without_processor()
            await asyncio.sleep(0.005)
            waited = _seconds_without_processor() - waited
            longest = max(longest, time.monotonic() - before - 0.005 - waited)
    return longest


def _seconds_without_processor() -> float:
    """For how long this thread was ready to run and did not."""
    return int(Path("/proc/thread-self/schedstat").read_text("ascii").split()[1]) / 1e9
