"""MCP transports over HTTP: streamable HTTP, and the older SSE.

The SDK has the session, on a transport that checks every address and follows no redirects. A tool call over streamable HTTP
bypasses the SDK: one POST in its session, with an answer in JSON or events. The operator's headers are sent, those by which the
session's sender is known and authorized, and no caller's credentials.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from math import inf
from types import TracebackType
from typing import Any

import httpx2
import msgspec

from callgate.conversation.ports import ProgressReport
from callgate.http.client import HttpClient
from callgate.http.connection import ClientConnection
from callgate.http.event_stream import Event, EventStreamReader, EventTooLarge, only_data_fast
from callgate.http.interface import Broken, ConnectFailed, Deadlines, TimedOut, TransportError
from callgate.http.request_head import RequestHead
from callgate.tools.concurrency import Room
from callgate.tools.kinds.http.addresses import PUBLIC_ONLY, AddressRules
from callgate.tools.kinds.http.client import CONNECT_TIMEOUT, MAX_CONNECTIONS, AddressRefused, Web
from callgate.tools.kinds.http.own_hosts import rules_of_host
from callgate.tools.kinds.mcp.authorization import NeedsLogin
from callgate.tools.kinds.mcp.clients import EVENTS, Tap, TapBounds, direct_client, host_of, sdk_client
from callgate.tools.kinds.mcp.elicitation import Elicitations
from callgate.tools.kinds.mcp.sdk import encode_header_value, streamable_http_client
from callgate.tools.kinds.mcp.sdk_streams import MAX_REQUESTS, with_few_requests
from callgate.tools.kinds.mcp.sender import CHALLENGE, Sender, refused_again
from callgate.tools.kinds.mcp.wire import (
    CALL,
    MAX_MESSAGE_BYTES,
    SESSION_FORGOTTEN,
    CallMessages,
    Forgotten,
    Gone,
    ListBudget,
    NotSent,
    RpcAnswer,
    RpcError,
    RpcMessage,
    ServerRequest,
    Terms,
    Unreadable,
    answer_fast,
    answer_in,
    answer_in_part,
    batch_of,
    cancellation,
    cancelled_id,
    encoded,
    message_of,
    not_sent,
    progress_of,
    read_message,
)
from callgate.untrusted.work import TurnShare

EXCERPT_BYTES = 65_536
"""The limit of a response with a protocol error."""
ASIDE_SECONDS = 2.0
"""The timeout of messages in the background: a cancellation, a reply to a server's request."""
MAX_RESUMPTIONS = 5
"""Resumptions of one answer. Servers may close the stream during a long call, and continue it on request."""
RESUME_SECONDS = 1.0
LONGEST_RESUME_SECONDS = 15.0
METHOD_NOT_FOUND = -32601
REFUSAL_SECONDS = 1.0
"""The time that calls get to be refused after another one was, because the server no longer knows the session."""
_DEADLINES = Deadlines(connect=CONNECT_TIMEOUT, first_byte=inf, idle=inf, total=inf)
"""Without timeouts but for connecting, because the toolbox enforces the timeout of a call."""
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_NO_POST = frozenset({400, 404, 405})
_TOO_BUSY = frozenset({429, 503})
_BEHIND_A_GATEWAY = frozenset({502, 504})
"""Statuses of a gateway whose server has not answered, and may have received the call."""
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class HttpSpec:
    """The address of a server over HTTP, with its settings."""

    url: str = field(repr=False)
    """Not shown, because it may include a key."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    sse: bool | None = None
    """Whether it uses the older SSE transport; None to detect it."""
    rules: AddressRules = PUBLIC_ONLY
    posts_alone: bool = False
    """No stream is opened by GET, neither for what the server says unasked nor for the rest of an answer."""
    most_bytes: int = MAX_MESSAGE_BYTES
    """The longest answer but for those to calls."""


def rules_for(url: str, *, allow_private: bool | None = None) -> AddressRules:
    """Return the addresses that a server's URL may lead to."""
    return rules_of_host(host_of(url), allow_private=allow_private)


class _Link:
    """The base of both transports: a tap on incoming messages, cleanup, and the future of a lost server."""

    transport = "tcp"

    def __init__(self, spec: HttpSpec, web: Web, sender: Sender | None = None, *, stream_is_life: bool = False) -> None:
        """`sender`: as whom its requests are sent, where that is anybody in particular."""
        self.spec = spec
        self._sender = sender
        bounds = TapBounds(spec.posts_alone, spec.most_bytes)
        self._tap = Tap(web, spec.rules, self._lost, stream_is_life=stream_is_life, bounds=bounds)
        if sender is not None:
            self._tap.send_as(sender, spec.url, below=stream_is_life)
        self._stack = AsyncExitStack()
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.capabilities: Mapping[str, Any] = {}

    @property
    def session_id(self) -> str:
        return self._tap.session_id or ""

    @property
    def trouble(self) -> str:
        return self._tap.trouble

    @trouble.setter
    def trouble(self, problem: str) -> None:
        self._tap.trouble = problem

    @property
    def challenges(self) -> Sequence[str]:
        """What the last response to the SDK wants of whoever asks again."""
        return self._tap.challenges

    @property
    def needs_login(self) -> NeedsLogin | None:
        return self._tap.needs_login

    @property
    def budget(self) -> ListBudget | None:
        return self._tap.budget

    @budget.setter
    def budget(self, budget: ListBudget | None) -> None:
        self._tap.budget = budget

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    def kill(self) -> None:
        self._lost("")

    def _asked_too_fast(self) -> None:
        self.trouble = f"it sends requests faster than {MAX_REQUESTS} at a time can be answered"

    def _lost(self, reason: str) -> None:
        if not self.gone.done():
            self.gone.set_result(reason)


class HttpLink(_Link):
    """One session over streamable HTTP."""

    direct = True

    def __init__(self, spec: HttpSpec, web: Web, sender: Sender | None = None) -> None:
        super().__init__(spec, web, sender)
        self._web = web
        self._client: HttpClient | None = None
        self._room = Room(MAX_CONNECTIONS)
        self._ids = itertools.count(1)
        self._terms = Terms("", modern=False)
        self._headers: dict[str, str] = {}
        self._calls: dict[str, _CallsAlike] = {}
        """By the names of the tools that were called."""
        self._aside: set[asyncio.Task[None]] = set()
        self._asking = 0
        self._nothing_asked = asyncio.Event()
        self._check: Callable[[], None] = lambda: None

    @property
    def was_answered(self) -> bool:
        """True if the server answered anything at all."""
        return self._tap.status != 0

    @property
    def may_be_older(self) -> bool:
        """True if the server refused the POST, as servers with only SSE do, and the config does not name the transport."""
        return self.spec.sse is None and self._tap.status in _NO_POST

    def agreed(self, terms: Terms, check: Callable[[], None]) -> None:
        self._terms = terms
        self._check = check
        self._calls = {}
        self._headers = {
            **self.spec.headers,
            "Accept": f"{_JSON}, {EVENTS}",
            "Accept-Encoding": "identity",
            "Content-Type": _JSON,
            "MCP-Protocol-Version": terms.version,
            "User-Agent": "callgate",
        }
        if self._tap.session_id:
            self._headers["Mcp-Session-Id"] = self._tap.session_id

    async def __aenter__(self) -> Any:
        self._client = direct_client(self._web, self.spec.url, self.spec.rules)
        self._stack.push_async_callback(self._client.close)
        client = await self._stack.enter_async_context(sdk_client(self._tap, self.spec.headers))
        transport = streamable_http_client(self.spec.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES)
        return with_few_requests(
            await self._stack.enter_async_context(transport), self._asked_too_fast, self.capabilities
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._lost("")  # closed by us: no further errors are reported
        if self._asking and self.gone.result() == SESSION_FORGOTTEN:
            # The other calls will be refused as well. If their connections were closed before, they would count as lost.
            self._nothing_asked.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFUSAL_SECONDS):
                    await self._nothing_asked.wait()
        for task in self._aside:
            task.cancel()
        if self._aside:
            await asyncio.wait(self._aside)
        return await super().__aexit__(kind, error, trace)

    @property
    def _http(self) -> HttpClient:
        assert self._client is not None, "a call before the session was opened"
        return self._client

    # A call that bypasses the SDK -----------------------------------------------------------------

    async def ask(self, request: ServerRequest) -> RpcAnswer:
        if self.gone.done():
            raise not_sent(self.gone, "the connection was closed")
        id = f"c{next(self._ids)}"
        self._asking += 1
        try:
            answer = await self._post(id, request)
            if isinstance(answer, _AnswerStream):
                return await self._resumed(answer)
            return answer
        except asyncio.CancelledError:
            if not self._terms.modern:  # since 2026-07-28 closing the stream cancels
                self._send_aside(cancellation(id))
            raise
        except AddressRefused as refused:
            self._lost(str(refused))
            raise NotSent from refused
        except ConnectFailed as error:
            self._lost(f"it cannot be reached ({getattr(error.__cause__, 'strerror', None) or 'no connection'})")
            raise NotSent from error
        except TimedOut as error:  # only the deadline for connecting is finite
            self._check()
            raise NotSent from error
        except TransportError as error:
            self._check()
            raise Gone from error
        finally:
            self._asking -= 1
            if not self._asking and self.gone.done():
                self._nothing_asked.set()

    def _post(self, id: str, request: ServerRequest) -> "Coroutine[Any, Any, RpcAnswer | _AnswerStream]":
        """Send a request and read the answer; return the stream of an answer that ends before it."""
        if request.method == CALL:
            alike = self._calls.get(request.params["name"]) or self._first_call(request)
            headers = alike.headers
            head = alike.head
            body = alike.messages.message_fast(id, request.params) or message_of(id, request, self._terms)
        else:
            headers = self._headers_for(request)
            head = self._head_of(headers)
            body = message_of(id, request, self._terms)
        if self._sender is None:
            return self._answer_of(head, body, id, request)
        return self._authorized_answer(self._sender, headers, body, id, request)

    def _first_call(self, request: ServerRequest) -> "_CallsAlike":
        """Return what all calls of a tool have in common, and keep it."""
        name = request.params["name"]
        headers = self._headers_for(request)
        alike = _CallsAlike(headers, self._head_of(headers), CallMessages(name, self._terms))
        self._calls[name] = alike
        return alike

    def _headers_for(self, request: ServerRequest) -> Mapping[str, str]:
        if not self._terms.modern:
            return self._headers
        headers = {**self._headers, "Mcp-Method": request.method}
        if (name := request.params.get("name") or request.params.get("uri")) is not None:
            headers["Mcp-Name"] = encode_header_value(name)
        return headers

    def _head_of(self, headers: Mapping[str, str]) -> RequestHead:
        return self._http.head_of("POST", self.spec.url, headers)

    async def _authorized_answer(
        self, sender: Sender, headers: Mapping[str, str], body: bytes, id: str, request: ServerRequest
    ) -> "RpcAnswer | _AnswerStream":
        """Send a request as somebody; once more where the server refused what authorized it, and so has not carried it out."""
        sent_headers = {**headers, **await sender.headers()}
        try:
            return await self._answer_of(self._head_of(sent_headers), body, id, request)
        except _Unauthorized as refused:
            renewed = {**headers, **await sender.headers_after(refused.status, refused.challenges, sent_headers)}
        try:
            return await self._answer_of(self._head_of(renewed), body, id, request)
        except _Unauthorized:
            raise refused_again(sender.server) from None

    async def _answer_of(
        self, head: RequestHead, body: bytes, id: str, request: ServerRequest
    ) -> "RpcAnswer | _AnswerStream":
        if not self._room.take():
            await self._room.wait()
        try:
            response = await self._http.exchange(head, body, _DEADLINES)
            try:
                if response.status != 200:
                    self._check_authorized(response)
                    return await self._refused(response, id)
                kind = _type(response)
                if kind == _JSON:
                    text = response.whole()  # a short answer comes with its head
                    if text is None:
                        return _whole(id, request, *await _read(response, MAX_MESSAGE_BYTES))
                    return _whole(id, request, text, 0)
                if kind != EVENTS:
                    raise Unreadable(f"The tool's server answered with {kind[:80]}, which is not the protocol's.")
                stream = _AnswerStream(id, request)
                return await self._follow(response, stream) or stream
            finally:
                response.leave()
        finally:
            self._room.leave()

    def _check_authorized(self, response: ClientConnection) -> None:
        """Raise where what authorized a request was refused."""
        if self._sender is None:
            return
        challenges = [response.headers().get(CHALLENGE, "")]
        if self._sender.is_refusal(response.status, challenges):
            raise _Unauthorized(response.status, challenges)

    async def _follow(self, response: ClientConnection, reading: "_AnswerStream") -> RpcAnswer | None:
        """Read events until the answer; None where the stream ends before."""
        try:
            share = TurnShare()
            async for data in response.chunks():
                if (whole_answer := reading.answer_fast(data)) is not None:
                    response.settle()
                    return whole_answer
                for event in reading.feed(data):
                    share.take(len(event.data))
                    if not share.is_left:
                        await asyncio.sleep(0)
                        share = TurnShare()
                    answer = await self._event(event, reading)
                    if answer is not None:
                        response.settle()
                        return answer
        except EventTooLarge as answer_too_large:
            return answer_in_part(answer_too_large.front, answer_too_large.missing)
        except Broken:
            pass  # like an end: it may be resumed
        return None

    async def _event(self, event: Event, reading: "_AnswerStream") -> RpcAnswer | None:
        message = read_message(event.data) if event.data else None
        match message:
            case RpcMessage(method=None, id=id) if id == reading.id:
                return answer_in(message)
            case RpcMessage(method="notifications/progress"):
                progress = progress_of(message)
                if progress is not None and progress[0] == reading.id:
                    await reading.request.report(ProgressReport(progress[1].message, progress[1].fraction))
            case RpcMessage(method="notifications/tools/list_changed"):
                self._check()
            case RpcMessage(method="elicitation/create", id=int() | str() as id) if (
                reading.request.elicitations is not None and not self._terms.modern
            ):
                self._do_aside(self._elicited(id, message.params, reading.request.elicitations))
            case RpcMessage(method="notifications/cancelled") if reading.request.elicitations is not None:
                reading.request.elicitations.withdraw(cancelled_id(message))
            case RpcMessage(method=str(method), id=int() | str() as id):
                # Answer a server's other requests with an error, because we support none.
                reply: dict[str, Any] = {"jsonrpc": "2.0", "id": id}
                if method == "ping":
                    reply["result"] = {}
                else:
                    reply["error"] = {"code": METHOD_NOT_FOUND, "message": "Method not found"}
                self._send_aside(encoded(reply))
            case _:
                pass  # log messages, and unknown notifications
        return None

    async def _resumed(self, reading: "_AnswerStream") -> RpcAnswer:
        """Resume an answer whose stream ended early, as long as the server sends event ids."""
        renewed: dict[str, str] = {}
        for _ in range(MAX_RESUMPTIONS):
            if reading.last_id is None or self.spec.posts_alone:
                break
            if reading.retry is None:
                wait = RESUME_SECONDS
            else:
                wait = reading.retry / 1000
            await asyncio.sleep(min(wait, LONGEST_RESUME_SECONDS))
            try:
                headers = {**self._headers, "Accept": EVENTS, "Last-Event-ID": reading.last_id}
                if self._sender is not None:
                    headers |= renewed or await self._sender.headers()
                async with self._room, self._http.get(self.spec.url, headers, _DEADLINES) as response:
                    if response.status != 200 or _type(response) != EVENTS:
                        self._check_authorized(response)
                        raise Gone("the server does not go on where it ended")
                    reading.again()
                    answer = await self._follow(response, reading)
            except _Unauthorized as refused:
                renewed = await self._renewed_for(refused, headers)
                continue
            except NeedsLogin as needs_login:
                raise Gone("nobody is logged in to go on where it ended") from needs_login
            except (TransportError, AddressRefused):
                break  # the call itself was sent
            if answer is not None:
                return answer
        self._check()
        raise Gone("the stream ended without an answer")

    async def _renewed_for(self, refused: "_Unauthorized", sent_headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers to resume an answer with, after a refusal. What was called goes on at the server."""
        assert self._sender is not None, "only what is sent as somebody is refused so"
        try:
            return await self._sender.headers_after(refused.status, refused.challenges, sent_headers)
        except NeedsLogin as needs_login:
            raise Gone("nobody is logged in to go on where it ended") from needs_login

    async def _refused(self, response: ClientConnection, id: str) -> RpcAnswer:
        body, _ = await _read(response, EXCERPT_BYTES)
        message = read_message(body)
        error = message.error if message is not None else None
        # The protocol requires 404; older servers send 400 with a text about the session.
        if self._tap.session_id and (
            response.status == 404
            or (response.status == 400 and error is not None and "session" in error.message.lower())
        ):
            self._lost(SESSION_FORGOTTEN)
            raise Forgotten
        if error is not None:
            return RpcAnswer(error=error)
        if response.status in _TOO_BUSY:
            raise NotSent(f"HTTP {response.status}")
        if response.status in _BEHIND_A_GATEWAY:
            raise Gone(f"HTTP {response.status}")
        problem = f"HTTP {response.status} {_REASONS.get(response.status, '')}".strip()
        if 300 <= response.status < 400:
            problem += ": a redirect, which is not followed"
        return RpcAnswer(error=RpcError(response.status, f"The tool's server refused the call: {problem}."))

    async def _elicited(self, id: int | str, params: msgspec.Raw, elicitations: Elicitations) -> None:
        """Put a question of the server to a person, and send it the answer."""
        answer = await elicitations.answer(str(id), params)
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": id}
        if isinstance(answer, RpcError):
            reply["error"] = {"code": answer.code, "message": answer.message}
        else:
            reply["result"] = answer
        await self._sent_aside(encoded(reply))

    def _send_aside(self, body: bytes) -> None:
        self._do_aside(self._sent_aside(body))

    def _do_aside(self, work: Coroutine[Any, Any, None]) -> None:
        if self.gone.done() or len(self._aside) >= MAX_REQUESTS:
            work.close()
            if not self.gone.done():
                self._asked_too_fast()
            return
        task = asyncio.create_task(work, name="message to a tool server")
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def _sent_aside(self, body: bytes) -> None:
        with contextlib.suppress(TransportError, TimeoutError, AddressRefused, NeedsLogin):
            async with asyncio.timeout(ASIDE_SECONDS):
                headers = self._headers
                if self._sender is not None:
                    headers = {**headers, **await self._sender.headers()}
                async with self._room, self._http.post(self.spec.url, headers, body, _DEADLINES) as response:
                    response.settle()


class SseLink(_Link):
    """One session over the older SSE transport, which is rare; calls go through the SDK."""

    direct = False

    def __init__(self, spec: HttpSpec, web: Web, sender: Sender | None = None) -> None:
        super().__init__(spec, web, sender, stream_is_life=True)

    def agreed(self, terms: Terms, check: Callable[[], None]) -> None:
        """Do nothing: the SDK keeps the terms."""

    def ask(self, request: ServerRequest) -> Coroutine[Any, Any, RpcAnswer]:
        raise AssertionError("what is asked over SSE goes through the SDK")

    async def __aenter__(self) -> Any:
        from mcp.client.sse import sse_client

        def client(*_: Any, **__: Any) -> httpx2.AsyncClient:
            return sdk_client(self._tap, self.spec.headers)

        transport = sse_client(self.spec.url, httpx_client_factory=client)
        return with_few_requests(
            await self._stack.enter_async_context(transport), self._asked_too_fast, self.capabilities
        )


class _Unauthorized(Exception):
    """Raised where the server refused what authorized a request."""

    def __init__(self, status: int, challenges: Sequence[str]) -> None:
        super().__init__(status)
        self.status = status
        self.challenges = challenges


class _CallsAlike(msgspec.Struct, frozen=True):
    """What all calls of one tool in one session have in common."""

    headers: Mapping[str, str]
    head: RequestHead
    messages: CallMessages


class _AnswerStream:
    """An answer as events, over one or several streams."""

    def __init__(self, id: str, request: ServerRequest) -> None:
        self.id = id
        self.request = request
        self.last_id: str | None = None
        self.retry: int | None = None
        self._events: EventStreamReader | None = None

    def feed(self, data: bytes) -> list[Event]:
        if self._events is None:
            self._events = EventStreamReader(MAX_MESSAGE_BYTES)
        events = self._events.events(data)
        for event in events:
            self.last_id = event.id or self.last_id
            if event.retry is not None:
                self.retry = event.retry
        return events

    def answer_fast(self, data: bytes) -> RpcAnswer | None:
        """Return the answer to a call, where that is all that the stream begins with: equals what the events of this read come to, or returns
        None, and then nothing of it is read."""
        if self._events is not None or self.request.method != CALL:
            return None
        text = only_data_fast(data)
        return None if text is None else answer_fast(text, self.id)

    def again(self) -> None:
        self._events = None


def _type(response: ClientConnection) -> str:
    kind = response.header(b"content-type").decode("latin-1")
    return kind.partition(";")[0].strip().lower() or "application/octet-stream"


async def _read(response: ClientConnection, max_bytes: int) -> tuple[bytes, int]:
    """Read the body up to `max_bytes`; return also the number of missing bytes."""
    if response.header(b"content-encoding").strip().lower() not in (b"", b"identity"):
        raise Unreadable("The tool's server sent an encoded answer, which was not asked for.")
    announced = int(response.header(b"content-length") or 0)
    if 0 < announced <= max_bytes:
        return await response.read(max_bytes), 0
    data = bytearray()
    async for piece in response.chunks():
        data += piece
        if len(data) > max_bytes:
            return bytes(data[:max_bytes]), max(len(data), announced) - max_bytes
    return bytes(data), 0


def _whole(id: str, request: ServerRequest, body: bytes, missing: int) -> RpcAnswer:
    if missing:
        return answer_in_part(body, missing)
    if request.method == CALL and (answer := answer_fast(body, id)) is not None:
        return answer
    for data in batch_of(body):
        message = read_message(data)
        if message is not None and message.method is None and message.id in (id, None):
            return answer_in(message)
    raise Unreadable("The tool's server sent an answer that is not the protocol's.")
