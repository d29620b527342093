"""The direct lane: a model behind an OpenAI-compatible HTTP API, without a library in between.

Messages and tools are sent on as the bytes they came in; each chunk of the answer is parsed once, by `chunks`.
"""

import asyncio
import codecs
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from callgate.calls.json_text import LARGE, MAX_VALUES, sound_text
from callgate.conversation import raw_json
from callgate.conversation.errors import AnswerTooLarge, BrokenOff, ChatError
from callgate.conversation.events import ModelEvent, ProviderError, ProviderHead
from callgate.conversation.ports import Message, ModelAnswer, ModelRequest, Passthrough, as_read
from callgate.conversation.response_items import ITEMS, without_items
from callgate.http.client import HttpClient
from callgate.http.event_stream import BOM, ErrorEvent, EventStreamReader, EventTooLarge, looks_like_keep_alive
from callgate.http.interface import Deadlines, Response, TransportError
from callgate.http.wire import record_on_wire, recorded_on_wire
from callgate.upstream import errors
from callgate.upstream.chunks import ChunkReader, read_completion
from callgate.upstream.delta_template import DeltaTemplate
from callgate.upstream.first_content import first_content_event
from callgate.upstream.params import for_body, with_completion_limit

ANSWER_BYTES = 64 * 1024 * 1024
"""The default limit of an answer: more than any model writes in one turn, images included."""
ERROR_BYTES = 64 * 1024
JSON_BYTES = 8 * 1024 * 1024
"""The limit for a text that the fast decoder refuses and the tolerant one reads again."""
MAX_UNREADABLE = 10_000
"""Invalid bytes that the tolerant decoder replaces, each by a call of its error handler."""
DONE = b"[DONE]"
FRAMES = frozenset({"content-length", "transfer-encoding"})

_ITEMS = f'"{ITEMS}"'.encode()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a model, and the settings of requests to it."""

    url: str
    """The whole address, `/chat/completions` included."""
    model: str
    """The provider's name for it."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Values that are removed from all messages of a provider."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields the operator sets for requests that do not set them."""
    include_usage: bool = True
    """Whether streams are asked for their token counts. Off for servers that refuse `stream_options`."""
    knows_developers: bool = True
    """Whether the provider knows the role `developer`. If not, such messages are sent as `system`."""
    counts_completions: bool = False
    """Whether the token limit has to be named `max_completion_tokens`."""


class HttpModel:
    """A model behind an HTTP API that is asked without a library in between."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        client: HttpClient,
        deadlines: Deadlines,
        *,
        answer_bytes: int = ANSWER_BYTES,
    ) -> None:
        """`answer_bytes`: the limit of one answer, in bytes as received."""
        self.name = name
        self._answer_bytes = answer_bytes
        self._endpoint = endpoint
        self._client = client
        self._deadlines = deadlines
        self._headers = {"Content-Type": "application/json", **endpoint.headers}
        self.host = host_in(endpoint.url)


class DirectModel(HttpModel):
    """A model on this lane."""

    def ask(self, ask: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]:
        exchange = self._client.post(
            self._endpoint.url, self._headers, self._encoded(as_read(ask, signed=False)), self._deadlines
        )
        return HttpRequest(exchange, self._endpoint, self._answer_bytes)

    def _encoded(self, ask: ModelRequest) -> bytes:
        messages = ask.messages if self._endpoint.knows_developers else without_developers(ask.messages)
        body: dict[str, Any] = {"model": self._endpoint.model, "messages": messages}
        if ask.tools:
            body["tools"] = ask.tools
            if ask.tool_choice is not None:
                body["tool_choice"] = ask.tool_choice
        fields = for_body(ask, self._endpoint.defaults)
        body |= with_completion_limit(fields) if self._endpoint.counts_completions else fields
        body["stream"] = ask.stream
        if ask.stream and self._endpoint.include_usage:
            options = raw_json.read(ask.params.get("stream_options"))
            body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        try:
            encoded = _encode(body)
        except UnicodeEncodeError:
            raise ChatError(400, "A message holds half of a surrogate pair, which no JSON text can carry.") from None
        if _ITEMS in encoded:
            return _encode({**body, "messages": [without_items(raw_json.read(message)) for message in messages]})
        return encoded


class HttpRequest(msgspec.Struct, eq=False):
    """The context manager of one request to a model. A class, because a generator is slower and this is used in every turn."""

    _exchange: AbstractAsyncContextManager[Response]
    _endpoint: Endpoint
    _answer_bytes: int

    async def __aenter__(self) -> ModelAnswer:
        response = await opened(self._exchange, self._endpoint.secrets)
        try:
            return self._answer(response)
        except TransportError as error:  # the response head already shows that the body cannot be read
            await self._exchange.__aexit__(type(error), error, error.__traceback__)
            raise errors.from_transport(error) from error

    def _answer(self, response: Response) -> ModelAnswer:
        return HttpAnswer(response, self._endpoint.secrets, self._answer_bytes)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exchange.__aexit__(kind, error, trace)
        if error is not None and isinstance(error, TransportError):
            raise errors.from_transport(error) from error


def is_framed(response: Response) -> bool:
    """True if the response says where its body ends. Of any other the connection may have been cut."""
    return not FRAMES.isdisjoint(response.headers)


def host_in(url: str) -> str:
    """Return the host of a URL, without user name and password."""
    return urlsplit(url).netloc.rpartition("@")[2]


async def opened(exchange: AbstractAsyncContextManager[Response], secrets: Sequence[str]) -> Response:
    """Return a response of status 200; for any other status raise its error and close the exchange."""
    try:
        response = await exchange.__aenter__()
    except TransportError as error:
        raise errors.from_transport(error) from error
    if response.status == 200:
        return response
    try:
        refused = await refusal(response, secrets)
    except BaseException as error:
        await exchange.__aexit__(type(error), error, error.__traceback__)
        raise
    await exchange.__aexit__(None, None, None)
    raise refused


async def refusal(response: Response, secrets: Sequence[str]) -> ChatError:
    """Return the error for a response of another status than 200."""
    try:
        body = await response.read(ERROR_BYTES)
    except TransportError:
        body = b""  # the status alone is enough
    response.settle()
    record_on_wire(body)
    return errors.from_status(response.status, response.headers, body, secrets=secrets)


class Body(Protocol):
    """Reads one kind of body, piece by piece."""

    @property
    def done(self) -> bool:
        """True if the answer's own end was read."""
        ...

    @property
    def has_ended(self) -> bool:
        """True if a finish reason ended the answer, so that the end of the whole body is as good as the answer's own."""
        ...

    @property
    def fault(self) -> str | None:
        """The fault that made the rest of the body unreadable, if any."""
        ...

    def feed(self, data: bytes) -> Sequence[ModelEvent]: ...

    def finish(self) -> Sequence[ModelEvent]: ...


EMPTY_ANSWER = "The model's provider sent an empty answer."


class HttpAnswer:
    """An answer in the body of a response: finds where it begins, breaks off and ends, for all body formats."""

    reason_is_raw = True
    lane = "direct"
    _body: Body | None = None
    _start = b""
    _size = 0
    _at_end = _begun = False

    def __init__(self, response: Response, secrets: Sequence[str], answer_bytes: int) -> None:
        self._response = response
        self._secrets = secrets
        self._most = answer_bytes
        self._reads = recorded_on_wire(response.chunks())

    def __aiter__(self) -> "HttpAnswer":
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:  # noqa: PLR0912
        # One function, because it runs for every chunk of every stream and each further coroutine costs.
        body = self._body
        while True:
            if body is not None and (body.done or body.fault is not None):
                if body.fault is not None:  # the rest of it cannot be read
                    raise self._broken(BrokenOff(body.fault, transport_error=True))
                self._response.settle()
                raise StopAsyncIteration if self._is_over() else errors.bad_answer(EMPTY_ANSWER)
            if self._at_end:
                if body is not None and body.has_ended and is_framed(self._response):
                    self._response.settle()
                    raise StopAsyncIteration
                raise self._broken(BrokenOff("the body ended before its end mark", transport_error=False))
            try:
                data = await self._reads.__anext__()
            except StopAsyncIteration:
                self._at_end = True
                batch = body.finish() if body is not None else ()
                if self._size > LARGE:
                    await asyncio.sleep(0)  # lets the event loop write what was emitted so far
            except TransportError as error:
                raise self._broken(error) from error
            else:
                self._size += len(data)
                if self._size > self._most:
                    raise errors.answer_too_large(self._most)
                if body is not None:
                    batch = body.feed(data)
                else:
                    self._start += data
                    self._body = self._recognise(self._start)
                    batch = self._body.feed(self._start) if self._body is not None else ()
                    body = self._body
            if batch:
                if not self._begun:
                    # An error before any content is a failure of the request; a later one is part of the turn.
                    first = first_content_event(batch)
                    if isinstance(first, ProviderError):
                        raise errors.reported(first.message, first.body, self._response.headers, secrets=self._secrets)
                    self._begun = first is not None
                return batch

    def _is_over(self) -> bool:
        """True if the answer is complete once the body is read."""
        return self._begun

    def _read_on(self, response: Response) -> None:
        """Read the next part of the answer, in another response."""
        self._response = response
        self._reads = recorded_on_wire(response.chunks())
        self._body, self._start, self._at_end = None, b"", False

    def _recognise(self, start: bytes) -> Body | None:
        """Choose the reader for a body by its beginning; None while that is too short."""
        return recognised(start, self._response)

    def _broken(self, error: TransportError | BrokenOff) -> Exception:
        if not self._begun:
            if isinstance(error, TransportError):
                return errors.from_transport(error)
            return errors.bad_answer("The model's provider sent an answer that is empty or cut off.", str(error))
        if isinstance(error, BrokenOff):
            return error
        return BrokenOff(str(error), transport_error=True)


class EventStreamBody:
    """Reads a body that is a stream of events."""

    def __init__(self) -> None:
        self._sse = EventStreamReader()
        self._chunks = ChunkReader()
        self.done = False
        self.has_ended = False
        self.fault: str | None = None

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        try:
            payloads = self._sse.feed(data)
        except EventTooLarge as error:
            self.fault = str(error)
            return ()
        return self._read(payloads)

    def finish(self) -> Sequence[ModelEvent]:
        events = [*self._read(self._sse.finish()), *self._chunks.finish()]
        is_cut = self.fault is not None
        self.fault = None  # a last event that is cut off means no more than the end of the body
        self.has_ended = not is_cut and (self.has_ended or self._chunks.has_ended)
        return events

    def _read(self, payloads: Sequence[bytes]) -> Sequence[ModelEvent]:
        """Read whole events; sets `done` after the last one, `fault` at one that cannot be trusted."""
        raise NotImplementedError


class StreamedBody(EventStreamBody):
    """Reads a stream of completion chunks."""

    def __init__(self) -> None:
        super().__init__()
        self._template = DeltaTemplate()

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        if self._sse.is_between_events and not self._chunks.holds_half:
            events = self._template.read_in(data)
            if events is not None:
                return events
        return super().feed(data)

    def _read(self, payloads: Sequence[bytes]) -> Sequence[ModelEvent]:
        events: list[ModelEvent] = []
        for payload in payloads:
            matched = self._template.payload_in(payload)
            if matched is not None and not self._chunks.holds_half:
                events += matched
                continue
            if type(payload) is ErrorEvent:
                events += reported(payload)
                continue
            if payload == DONE or payload.strip() == DONE:
                self.done = True
                events += self._chunks.finish()
                break
            try:
                chunk = read_json(payload)
            except ValueError:
                if looks_like_keep_alive(payload):
                    continue
                # Events before it in the same read are still returned; then the answer breaks off.
                self.fault = "an event of the stream is not JSON"
                break
            if _may_have_duplicates(payload) and has_duplicate_names(payload):
                self.fault = TWICE
                break
            if chunk is not None:
                found = self._chunks.read(chunk)
                self._template.make_from(payload, found, _read_alone)
                events.extend(found)
        return events


def reported(payload: bytes) -> Sequence[ModelEvent]:
    """Return the error in an event that is marked as one, in any format."""
    try:
        body = read_json(payload)
    except ValueError:
        body = payload.decode("utf-8", "replace")
    found = [event for event in ChunkReader().read(body) if isinstance(event, ProviderError)]
    return found or ChunkReader().read({"error": body or "the provider reported an error"})


def _read_alone(payload: bytes) -> Sequence[ModelEvent]:
    """Read a chunk by itself, in the middle of a stream."""
    return [event for event in ChunkReader().read(read_json(payload)) if not isinstance(event, ProviderHead)]


class JsonEvents(EventStreamBody):
    """Reads a stream of JSON events in a provider's own format."""

    def _read(self, payloads: Sequence[bytes]) -> list[ModelEvent]:
        events: list[ModelEvent] = []
        for payload in payloads:
            try:
                event = read_json(payload)
            except ValueError:
                if type(payload) is ErrorEvent:
                    events += reported(payload)
                    continue
                if looks_like_keep_alive(payload):
                    continue
                self.fault = "an event of the stream is not JSON"
                break
            events += self._read_payload(payload, event)
            if self.done or self.fault is not None:
                break
        return events

    def _read_payload(self, payload: bytes, event: Any) -> Sequence[ModelEvent]:
        """Read one event; sets `done` after the last one, `fault` where it cannot be trusted."""
        raise NotImplementedError


class WholeBody:
    """Reads a body that is one text of JSON: here, a completion."""

    done = False
    has_ended = False
    fault: str | None = None

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        self._parts.append(data)
        return ()

    def finish(self) -> Sequence[ModelEvent]:
        text = b"".join(self._parts).removeprefix(BOM)
        try:
            found = read_json(text)
        except ValueError:
            self.fault = "the body is not JSON"
            return ()
        if _may_have_duplicates(text) and has_duplicate_names(text):
            self.fault = TWICE
            return ()
        return self._read(found)

    def _read(self, found: Any) -> Sequence[ModelEvent]:
        self.done = True
        return read_completion(found)


def read_json(text: bytes) -> Any:
    """Decode a provider's JSON tolerantly, because providers send lone surrogates and invalid bytes. Raises ValueError."""
    if len(text) > LARGE and text.count(b",") + text.count(b"{") + text.count(b"[") > MAX_VALUES:
        raise AnswerTooLarge(f"{MAX_VALUES} values in one JSON text")
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    if len(text) > JSON_BYTES:
        raise ValueError("too long to be read tolerantly")
    if len(text) > MAX_UNREADABLE and text.decode("utf-8", "replace").count("\ufffd") > MAX_UNREADABLE:
        raise ValueError("no text in UTF-8")
    try:
        found = json.loads(text.decode("utf-8", UNREADABLE))
        return found if isinstance(found, str) else _sound(found)
    except RecursionError:
        raise ValueError("nested too deeply") from None


TWICE = "a call names a field twice"
_ONCE = tuple(b'"%b"' % name for name in b"arguments name function tool_calls function_call delta choices".split())
"""Names that occur once in a chunk with one call, whatever its arguments hold: quotes inside them are escaped."""


def _may_have_duplicates(text: bytes) -> bool:
    """True if a text has to be parsed to find out: with several calls or choices these names are repeated as well."""
    if text.count(b'"finish_reason"') > 1:
        return True
    return (b'"tool_calls"' in text or b'"function_call"' in text) and any(text.count(name) > 1 for name in _ONCE)


def has_duplicate_names(text: bytes) -> bool:
    """True if an object in it has a duplicate key. Which value its provider meant cannot be known."""
    try:
        # As tolerant as `read_json`, because it checks what that read. Numbers are not converted.
        json.loads(text.decode("utf-8", UNREADABLE), object_pairs_hook=_once, parse_int=str, parse_float=str)
    except (_DuplicateName, ValueError, RecursionError):
        return True
    return False


class _DuplicateName(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise _DuplicateName


PIECES = frozenset({"content", "text", "arguments", "args", "input", "partial_json"})
"""Fields that keep lone surrogates: text, whose next piece may begin with the other half, and arguments, which are broken by
one."""


def _sound(value: Any) -> Any:
    """Return the value without lone surrogates, which cannot be encoded."""
    if isinstance(value, str):
        return sound_text(value)
    if isinstance(value, list):
        return [_sound(item) for item in value]
    if isinstance(value, dict):
        return {
            sound_text(name): item if name in PIECES and not isinstance(item, list) else _sound(item)
            for name, item in value.items()
        }
    return value


def _half_pair(error: UnicodeError) -> tuple[str, int]:
    """Replace invalid UTF-8 by a lone surrogate, which is no character and breaks a call; by two of them where the first
    would pair with the text before it."""
    assert isinstance(error, UnicodeDecodeError)
    before = error.object[max(error.start - 6, 0) : error.start]
    alone = not (before.endswith(b'"') or before[:2] in (b"\\u", b"\\U"))
    return ("\udfff" if alone else "\udfff\udfff"), error.end


UNREADABLE = "callgate.unreadable"
codecs.register_error(UNREADABLE, _half_pair)


def recognised(start: bytes, response: Response) -> StreamedBody | WholeBody | None:
    """Return the reader for a body by its first bytes: servers label errors as streams, and streams as plain text."""
    mark = start.removeprefix(BOM).lstrip()[:1]
    if not mark:
        return None
    if mark in b"{[":
        return WholeBody()
    content_type = response.headers.get("content-type", "")
    if mark == b"<" or "html" in content_type.lower():
        raise errors.bad_answer(
            "The model's provider sent something that is not an answer.", f"content-type {content_type!r}"
        )
    return StreamedBody()


def without_developers(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with `system` for `developer`; all others unchanged."""
    return [_as_system(message) if isinstance(message, msgspec.Raw) else message for message in messages]


def _as_system(message: msgspec.Raw) -> msgspec.Raw:
    if b'"developer"' not in bytes(message):
        return message
    fields = _decode_fields(message)
    if bytes(fields.get("role", b"")) != b'"developer"':
        return message
    return msgspec.Raw(_encode({**fields, "role": "system"}))
