"""The cancellation sweep: a request is ended at every place where it waits, in every way it can end.

For each scenario and each k, the request runs until its k-th suspension and is then cancelled as a whole, or its client
leaves. Afterwards nothing of it may be left: no task, no request to the model, no place, no reservation, no lease, and the
ledger says of each call how far it came.
"""

import asyncio
import contextlib
import itertools
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from callgate.access.building import control_behind
from callgate.access.keys import mint_key
from callgate.access.limits import MemoryLimiter
from callgate.application import create_app
from callgate.runtime.manager import RuntimeManager
from callgate.state.local.sqlite import FILE
from tests.chaos.load import chat_body
from tests.chaos.scale import LONG, report, scaled
from tests.harness.configs import make_config
from tests.harness.sweep import Steps, counting
from tests.scripted_upstream import Call, Pace, Reply, Upstream, by_turn

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(900)]

ENDS_WITHIN = scaled(60.0, 1.0)
STRIDE = scaled(5, 1)
"""Every k in the long run; in the short one every fifth, beginning elsewhere in each scenario."""
NEVER = 1_000_000
SECRET, HASH = mint_key()
KEY = {
    "name": "alice",
    "hash": HASH,
    "parallel": 1,
    "requests_per_minute": 1_000_000,
    "budget_per_day": 1000.0,
}
ENTRY = {"concurrency": 1, "model_info": {"input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6}}
COMMAND = {
    "kind": "command",
    "name": "shout",
    "description": "Says it.",
    "argv": ["printf", "%s", "{text}"],
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}

ASYNC = Call("echo", {"text": "a"})
THREAD = Call("add", {"a": 1, "b": 2})
FAILS = Call("send_mail", {"to": "a", "text": "b"})
BROKEN = Call("echo", '{"text": "a')
CHILD = Call("shout", {"text": "loud"})
DONE = Reply(text="all done, thank you")

SHAPES: dict[str, Sequence[Reply]] = {
    "talk": [DONE],
    "async": [Reply(calls=[ASYNC]), DONE],
    "thread": [Reply(calls=[THREAD]), DONE],
    "child": [Reply(calls=[CHILD]), DONE],
    "fails": [Reply(calls=[FAILS]), DONE],
    "broken": [Reply(calls=[BROKEN]), DONE],
    "parallel": [Reply(calls=[ASYNC, THREAD, FAILS, ASYNC]), DONE],
    "chain": [Reply(text="first. ", calls=[ASYNC]), Reply(text="then. ", calls=[THREAD, CHILD]), DONE],
}
MODES = ("streamed", "whole")
WAYS = ("cancelled", "left")
SCENARIOS = list(itertools.product(SHAPES, MODES, WAYS))


@dataclass(slots=True)
class Client:
    """The server's side of one request, as ASGI has it, with a client that can leave."""

    body: bytes
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    sent: list[dict[str, Any]] = field(default_factory=list)
    _asked: bool = False

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await asyncio.sleep(0)  # as when the socket is full for a moment
        self.sent.append(message)

    @property
    def scope(self) -> dict[str, Any]:
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {SECRET}".encode())]
        chat = "/v1/chat/completions"
        return {
            "type": "http",
            "method": "POST",
            "path": chat,
            "raw_path": chat.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "http_version": "1.1",
            "scheme": "http",
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "asgi": {"version": "3.0"},
            "state": {},
        }


@contextlib.asynccontextmanager
async def opened_app(upstream: Upstream, folder: Path) -> AsyncIterator[tuple[FastAPI, RuntimeManager]]:
    config = make_config(
        upstream.url,
        tools=["echo", "add", "send_mail", COMMAND],
        entry=ENTRY,
        auth="keys",
        keys=[KEY],
        data_dir=str(folder),
        limits={"concurrent_requests": 1, "queue_seconds": 0},
        upstream={"retries": 0},
    )
    app = create_app(config)
    async with app.state.manager:
        yield app, app.state.manager


@pytest.mark.parametrize(("shape", "mode", "way"), SCENARIOS, ids=["-".join(scenario) for scenario in SCENARIOS])
async def test_nothing_is_left_wherever_a_request_ends(
    upstream: Upstream, tmp_path: Path, shape: str, mode: str, way: str
) -> None:
    # each event by itself, so that there are places between them
    upstream.script("m", by_turn([replace(reply, pace=Pace(between=0.001)) for reply in SHAPES[shape]]))
    body = json.dumps(chat_body("hello", stream=mode == "streamed")).encode()
    async with opened_app(upstream, tmp_path) as (app, manager):
        with counting():
            # once to its end: then there are connections and threads, as in a server that has run for a while
            whole = await _end_at(app, manager, upstream, body, NEVER, way)
            first = 1 if LONG else 1 + SCENARIOS.index((shape, mode, way)) % STRIDE
            for k in itertools.count(first, STRIDE):
                if not (await _end_at(app, manager, upstream, body, k, way)).reached:
                    break
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        states = dict(database.execute("SELECT state, count(*) FROM calls GROUP BY state"))
    assert "started" not in states
    report("cancellation", scenario=f"{shape}-{mode}-{way}", places=whole.count, states=states)
    assert whole.count >= 5


async def _end_at(app: FastAPI, manager: RuntimeManager, upstream: Upstream, body: bytes, k: int, way: str) -> Steps:
    """Runs one request and ends it at its k-th suspension, if it comes so far."""
    client = Client(body)
    steps = Steps(k)
    task = steps.begin(app(client.scope, client.receive, client.send))
    steps.then(task.cancel if way == "cancelled" else client.gone.set)
    done, _ = await asyncio.wait({task}, timeout=ENDS_WITHIN)
    assert done, f"still running {ENDS_WITHIN} s after it was {way} at {k}"
    if not task.cancelled():
        assert task.exception() is None, f"{way} at {k}"
    await _nothing_left(manager, upstream, steps, f"{way} at {k}")
    return steps


async def _nothing_left(manager: RuntimeManager, upstream: Upstream, steps: Steps, when: str) -> None:
    control = control_behind(manager.shared.control)
    assert isinstance(control.limiter, MemoryLimiter)
    account = control.limiter._account("alice")

    def left() -> dict[str, Any]:
        found = {
            "tasks": [one.get_coro() for one in steps.tasks if not one.done()],
            "places": control.admission.all.running,
            "places of the key": sum(each.running for each in control.admission._keys.values()),
            "places of the model": sum(each.running for each in control.admission._models.values()),
            "reservations": account.running,
            "leases": manager.leased.leases,
            "asked of the model": [one.outcome for one in upstream.requests if not one.closed.is_set()],
        }
        return {name: value for name, value in found.items() if value}

    try:
        async with asyncio.timeout(ENDS_WITHIN):
            while left():  # noqa: ASYNC110 - what is looked at has no events
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"left behind, {when}: {left()}") from None
    upstream.requests.clear()
