"""An outage is said when it begins, at powers of ten, and when it is over, with how many failures there were."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Self

import pytest
from structlog.testing import capture_logs

from callgate.recorder.exporter import SpanBatch, SpanExporter, Target
from callgate.runtime.approval_notices import ApprovalNotices
from callgate.state.database import DatabaseAway
from callgate.telemetry.metrics import Metrics
from callgate.telemetry.outages import Outage
from callgate.telemetry.tool_servers import ToolServers
from tests.harness.needs import needs

FAILURES = 12

pytestmark = pytest.mark.anyio


def test_it_is_said_at_the_beginning_at_powers_of_ten_and_at_the_end():
    outage = Outage()
    assert outage.over() == 0
    for _ in range(2):
        assert [number for _ in range(1234) if (number := outage.failed())] == [1, 10, 100, 1000]
        assert (outage.over(), outage.over()) == (1234, 0)


class Flaky:
    """Raises so many times, then does what it should."""

    def __init__(self, error: Exception, then: Callable[..., Any] = lambda *_: None) -> None:
        self.left, self.error, self.then = FAILURES, error, then

    async def __call__(self, *values: Any, **_: Any) -> Any:
        if self.left:
            self.left -= 1
            raise self.error
        return self.then(*values)


async def lose_a_tool_server() -> None:
    servers = ToolServers(Metrics())
    for _ in range(FAILURES):
        servers.down("raw", "mcp", "gone")
    servers.ready("raw", "mcp")


async def lose_the_webhook() -> None:
    notices = ApprovalNotices(Metrics(), SimpleNamespace(), SimpleNamespace)  # type: ignore[arg-type]  # not used
    approval: Any = SimpleNamespace(id="approval_1", tool=SimpleNamespace(name="pay"))
    for _ in range(FAILURES):
        notices._count_sent(approval, "refused")
    notices._count_sent(approval, "")


async def lose_the_collector() -> None:
    client: Any = SimpleNamespace()
    exporter = SpanExporter(client, Target("http://127.0.0.1:1"), lambda _: None, lambda *_: None)
    for _ in range(FAILURES):
        exporter.drop(1, "failed", "refused")
    exporter._count_sent(SpanBatch(b"", 1), b"")


async def lose_whom_news_are_told() -> None:
    import redis

    from callgate.state.cluster.redis_news import RedisNews

    news = RedisNews("redis://127.0.0.1:1", "callgate:", lambda _: None)
    publish: Any = Flaky(redis.ConnectionError())
    news._client.publish = publish  # type: ignore[method-assign]
    for _ in range(FAILURES + 1):
        await news.say("reload")
    await news.close()


async def lose_who_tells_news() -> None:
    import redis

    from callgate.state.cluster import redis_news

    listening = asyncio.Event()
    news = redis_news.RedisNews("redis://127.0.0.1:1", "callgate:", lambda _: listening.set())

    class Channel:
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        subscribe = staticmethod(Flaky(redis.ConnectionError()))

        async def listen(self) -> Any:
            yield await asyncio.Event().wait()

    channel: Any = Channel
    news._client.pubsub = lambda **_: channel()  # type: ignore[method-assign]
    news.open()
    await listening.wait()
    await news.close()


async def lose_replies_of_workers() -> None:
    import redis

    from callgate.fleet.fleet import Fleet

    listening = asyncio.Event()
    fleet = Fleet("redis://127.0.0.1:1", "callgate:", lambda _: None)
    fleet._replies = "replies"

    def heard(_: str, __: object, on_listening: Callable[[], None]) -> None:
        on_listening()
        listening.set()

    link: Any = SimpleNamespace(listen=Flaky(redis.ConnectionError(), heard))
    fleet._redis = link
    task = asyncio.create_task(fleet._keep_listening())
    await listening.wait()
    task.cancel()
    await asyncio.wait({task})


async def lose_the_broker_of_workers() -> None:
    from callgate.fleet.worker import celery_app

    def reach(_: object, errback: Any, *__: Any, **___: Any) -> None:
        for _ in range(FAILURES):
            errback(ConnectionError(), 0.0)

    steady = celery_app._SteadyConnection
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(celery_app, "BROKER", Outage())
        patched.setattr(steady.__base__, "ensure_connection", reach)
        steady.__new__(steady).ensure_connection()


async def lose_the_ledger_of_workers() -> None:
    from callgate.fleet.worker.child import ToolProcess

    process = ToolProcess.__new__(ToolProcess)
    process._outage = Outage()
    await process._insist(Flaky(DatabaseAway("gone")))


NEEDED = {"redis": "module:redis", "celery": "module:celery"}
CASES: list[tuple[Callable[[], Awaitable[None]], str, str, str]] = [
    (lose_a_tool_server, "tool_server_down", "tool_server_ready", ""),
    (lose_the_webhook, "approval_webhook_failed", "approval_webhook_back", ""),
    (lose_the_collector, "traces_not_exported", "traces_exported_again", ""),
    (lose_whom_news_are_told, "news_not_sent", "news_sent_again", "redis"),
    (lose_who_tells_news, "news_not_heard", "news_heard_again", "redis"),
    (lose_replies_of_workers, "fleet_replies_not_read", "fleet_replies_read_again", "redis"),
    (lose_the_broker_of_workers, "fleet_redis_away", "fleet_redis_back", "celery"),
    (lose_the_ledger_of_workers, "fleet_ledger_away", "fleet_ledger_back", "celery"),
]


@pytest.mark.parametrize(
    ("lose", "begun", "over"),
    [
        pytest.param(lose, begun, over, id=lose.__name__, marks=[needs(NEEDED[what])] if what else [])
        for lose, begun, over, what in CASES
    ],
)
async def test_whatever_may_be_away_says_so_once_then_counts_then_says_that_it_is_over(
    lose: Callable[[], Awaitable[None]], begun: str, over: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("state.cluster.redis_news.AGAIN_SECONDS", "fleet.fleet.LOOK_SECONDS"):
        monkeypatch.setattr(f"callgate.{place}", 0.0)
    if "ledger" in lose.__name__:
        monkeypatch.setattr("callgate.fleet.worker.child.AGAIN_SECONDS", 0.0)
    with capture_logs() as lines:
        async with asyncio.timeout(30):
            await lose()
    said = [(line["event"], line["failures"]) for line in lines if "failures" in line]
    assert said == [(begun, 1), (begun, 10), (over, FAILURES)]
