"""The middleware: its log line and answer when the handling of a request ends in the middle."""

import asyncio
import io
import json
from typing import Any

import pytest

from callgate.application import create_app
from callgate.telemetry import logs
from callgate.telemetry.redaction import MASK, Redactor
from tests.harness import toolshed
from tests.harness.configs import make_config
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio


class Exchange:
    """One request as a server hands it over, and what was sent back."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.sent: list[Any] = []
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        self._body = json.dumps(body).encode()
        self._read = False

    async def receive(self) -> Any:
        if self._read:
            await asyncio.Event().wait()
        self._read = True
        return {"type": "http.request", "body": self._body}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])


@pytest.mark.parametrize(("safety", "retry"), [("write", b"false"), ("read_only", None)])
async def test_a_request_that_is_cut_off_by_the_end_of_the_server_is_not_repeated_once_a_tool_wrote(
    upstream: Upstream, safety: str, retry: bytes | None
) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate")])])
    tool = {"kind": "python", "function": "tests.harness.toolshed:wait_for_gate", "safety": safety}
    made = create_app(make_config(upstream.url, tools=[tool]))
    exchange = Exchange({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    async with toolshed.held() as running, made.router.lifespan_context(made):
        handling = asyncio.create_task(made(exchange.scope, exchange.receive, exchange.send))
        await running.started.wait()
        handling.cancel()
        await asyncio.wait([handling])
    assert exchange.status == (400 if retry else 503)
    assert exchange.headers.get(b"x-should-retry") == retry
    assert running.cancelled.is_set()


@pytest.mark.usefixtures("logging_as_it_was")
async def test_an_id_that_a_client_made_up_is_given_back_and_masked_in_the_log(upstream: Upstream) -> None:
    written = io.StringIO()
    logs.configure(Redactor(), format="json", stream=written)
    upstream.script("m", [Reply(text="hello")])
    made = create_app(make_config(upstream.url))
    exchange = Exchange({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    exchange.scope["headers"] += [(b"x-request-id", b"sk-0123456789abcdef")]
    async with made.router.lifespan_context(made):
        await made(exchange.scope, exchange.receive, exchange.send)
    logs.write_all()

    [line] = [line for line in map(json.loads, written.getvalue().splitlines()) if line["event"] == "request"]
    assert exchange.headers[b"x-request-id"] == b"sk-0123456789abcdef"
    assert (line["request_id"], line["status"]) == (MASK, 200)
    assert line["run_id"].encode() == exchange.headers[b"x-callgate-run"]
