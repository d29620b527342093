"""Requests of one connection with the same head, which the server's parser does not read: each is of who has its key by then, counts,
and has ids of its own."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from callgate.access.keys import mint_key
from callgate.application import create_app
from callgate.callers.rights import CallerMemory
from callgate.runtime.manager import RuntimeManager
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import RawAnswer, RawConnection, raw_connection
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio

EVE, EVE_HASH = mint_key()
_, OTHER_HASH = mint_key()
BY_EVE = {"authorization": f"Bearer {EVE}"}
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
REHEARSALS = 2
"""Requests until a connection knows its head."""


@dataclass
class Served:
    connection: RawConnection
    manager: RuntimeManager
    upstream: Upstream
    fast: list[int] = field(default_factory=list)

    async def ask(self) -> RawAnswer:
        await self.connection.post("/v1/chat/completions", QUESTION, BY_EVE)
        return await self.connection.answer()

    async def change(self, **eve: Any) -> None:
        await self.manager.apply(config(self.upstream, **eve))


def config(upstream: Upstream, **eve: Any) -> Any:
    keys = [{"name": "eve", "hash": EVE_HASH, **eve}]
    return make_config(upstream.url, auth="keys", keys=keys, models=("m", "other"))


@contextlib.asynccontextmanager
async def primed(upstream: Upstream, monkeypatch: pytest.MonkeyPatch, **eve: Any) -> AsyncIterator[Served]:
    """Serve a connection that knows its head."""
    upstream.script("m", lambda _: Reply(text="hi"))
    app = create_app(config(upstream, **eve))
    async with serve(app) as url, raw_connection(url) as connection:
        served = Served(connection, app.state.manager, upstream)
        admit = CallerMemory.admit_fast

        def counted(memory: CallerMemory, *given: Any) -> Any:
            served.fast.append(1)
            return admit(memory, *given)

        monkeypatch.setattr(CallerMemory, "admit_fast", counted)
        for _ in range(REHEARSALS):
            assert (await served.ask()).status == 200
        assert not served.fast
        yield served


async def test_each_request_has_ids_of_its_own(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs() as log:
        async with primed(upstream, monkeypatch) as served:
            answers = [await served.ask() for _ in range(3)]
    assert len(served.fast) == 3
    for name in ("x-request-id", "x-callgate-run"):
        assert len({answer.headers[name] for answer in answers}) == 3
    asked = [line for line in log if line["event"] == "request"]
    assert [line["caller"] for line in asked] == ["eve"] * 5
    assert len(upstream.requests) == 5


async def test_each_request_counts_for_the_limits_of_its_key(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with primed(upstream, monkeypatch, requests_per_minute=4) as served:
        statuses = [(await served.ask()).status for _ in range(4)]
    assert statuses == [200, 200, 429, 429]
    assert len(served.fast) == 4
    assert len(upstream.requests) == 4


ENDS: dict[str, tuple[dict[str, Any], int]] = {
    "revoked": ({"hash": OTHER_HASH}, 401),
    "expired": ({"expires": "2001-01-01"}, 401),
    "may not ask the model": ({"models": ["other"]}, 404),
    "has fewer requests": ({"requests_per_minute": 1}, 429),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_key_that_was_changed_counts_as_it_is_now(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    change, status = ENDS[end]
    async with primed(upstream, monkeypatch) as served:
        assert (await served.ask()).status == 200
        await served.change(**change)
        statuses = [(await served.ask()).status for _ in range(2)]
        await served.change()
        again = await served.ask()
    assert statuses[-1] == status
    assert len(served.fast) == 4
    assert again.status == 200
