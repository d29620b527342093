"""The middleware: its log line and answer when the handling of a request ends in the middle."""

import asyncio
import io
import json
import re
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.api.answers import IS_MASKED
from callgate.api.middleware import MarkedSend, Middleware
from callgate.application import create_app
from callgate.config.redaction import MASK, Redactor
from callgate.config.secret_mask import Needles, SecretMask
from callgate.telemetry import logs
from tests.harness import toolshed
from tests.harness.configs import make_config
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio


class Exchange:
    """One request as a server hands it over, and what was sent back."""

    def __init__(self, body: Any, path: str = "/v1/chat/completions") -> None:
        self.sent: list[Any] = []
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        self._body = body if isinstance(body, bytes) else json.dumps(body).encode()
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


IDS = re.compile(
    rb'chatcmpl-up[0-9]+|(?:req|run|chatcmpl|resp|msg|rs)[_-]?[0-9a-p]{16,}|"(?:created|created_at|completed_at)":[0-9]+|"ms":[0-9.]+'
)
ONE_WORD = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "input": "hi", "max_tokens": 9}


@given(
    path=st.sampled_from(["/v1/chat/completions", "/chat/completions", "/v1/responses", "/responses", "/v1/messages"]),
    body=st.sampled_from([b"", b"{", b"[]", ONE_WORD, {**ONE_WORD, "model": "nobody"}, {**ONE_WORD, "stream": True}])
    | st.dictionaries(
        st.sampled_from([*ONE_WORD, "tools"]), st.none() | st.integers() | st.text(max_size=3), max_size=4
    ),
)
@settings(max_examples=12, deadline=None)
def test_a_route_past_the_framework_answers_as_through_it(path: str, body: Any) -> None:
    async def answers() -> list[Any]:
        async with Upstream() as upstream:
            upstream.script("m", [Reply(text="hello")] * 2)
            made = create_app(make_config(upstream.url))
            through_framework = Middleware(made.inside, made.state.manager)
            async with made.router.lifespan_context(made):
                return [await answer_of(app, path, body) for app in (made.outermost, through_framework)]

    fast, plain = anyio.run(answers)
    assert fast == plain


async def answer_of(app: Middleware, path: str, body: Any) -> tuple[int, list[bytes], bytes]:
    """The status, the names of the headers, and the body without what differs from one request to the next."""
    exchange = Exchange(body, path)
    await app(exchange.scope, exchange.receive, exchange.send)
    written = b"".join(message.get("body", b"") for message in exchange.sent[1:])
    return exchange.status, sorted(exchange.headers), IDS.sub(b"", written)


class Sent:
    """A server that keeps what it is sent, in pieces or in messages."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def piece_sender(self, *, is_masked: bool) -> Any:
        return self.send_piece

    async def send_piece(self, piece: bytes) -> None:
        self.bodies.append(piece)

    async def send(self, message: Any) -> None:
        self.bodies.append(message["body"])


@pytest.mark.parametrize("is_masked", [False, True], ids=["ours", "masked already"])
async def test_pieces_of_a_body_are_masked_as_their_messages_are(is_masked: bool) -> None:
    pieces = [b"data: sk-pr", b"oj-a8f3e9c0ffee\n\n", b"", b"data: sk-", b"proj\n\n"]
    needles = Needles((b"sk-proj-a8f3e9c0ffee",))
    bodies = []
    for as_bytes in (True, False):
        server = Sent()
        marked = MarkedSend(server.send, None, (), needles, SecretMask(needles))
        send_piece = marked.piece_sender(is_masked=is_masked)
        assert send_piece is not None
        for piece in pieces:
            if as_bytes:
                await send_piece(piece)
            else:
                await marked.send(
                    {"type": "http.response.body", "body": piece, "more_body": True, IS_MASKED: is_masked}
                )
        await marked.send({"type": "http.response.body", "body": b"", "more_body": False})
        bodies.append(server.bodies)
    assert bodies[0] == bodies[1]
    assert (b"oj-a8f3e9" in b"".join(bodies[0])) == is_masked
