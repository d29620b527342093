"""The direct lane: a model behind an OpenAI-compatible HTTP API, without a library in between.

Messages and tools are sent on as the bytes they came in; each chunk of the answer is parsed once, by `chunks`.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

import msgspec

from callgate.calls.json_text import LARGE, MAX_VALUES, sound_text
from callgate.config.unprinted import Unprinted
from callgate.conversation import raw_json
from callgate.conversation.errors import AnswerTooLarge, BrokenOff, ChatError
from callgate.conversation.events import ModelEvent, ProviderError
from callgate.conversation.listeners import NOTHING
from callgate.conversation.model_requests import as_model_request, with_withheld
from callgate.conversation.ports import Message, ModelAnswer, ModelRequest, Passthrough, RecordBody, TakeEvents
from callgate.conversation.preloaded_model import PreloadedAnswer
from callgate.conversation.response_items import ITEMS, without_items
from callgate.http.client import HttpClient
from callgate.http.connection import ClientConnection
from callgate.http.event_stream import BOM, EVENT_BYTES, EventStreamReader, Payload, looks_like_keep_alive
from callgate.http.interface import Deadlines, Response, TransportError
from callgate.http.request_head import RequestHead
from callgate.models import errors
from callgate.models.direct.chunks import ChunkReader, read_completion
from callgate.models.direct.chunks_fast import EARLIEST, DeltaTemplate, usual_chunk_fast
from callgate.models.direct.completion_fast import read_completion_fast
from callgate.models.params import for_body, with_completion_limit
from callgate.models.retry import first_content_event
from callgate.untrusted.doors import Door, Opened, TooMuch, Untrusted, open_fast, open_text
from callgate.untrusted.readers import json_reader, read_leniently

ANSWER_BYTES = 64 * 1024 * 1024
"""The default limit of an answer: more than any model writes in one turn, images included."""
ERROR_BYTES = errors.ERROR.bytes
JSON_BYTES = 8 * 1024 * 1024
"""The limit for a text that the fast decoder refuses and the tolerant one reads again."""
MAX_UNREADABLE = 10_000
"""Invalid bytes that the tolerant decoder replaces, each by a call of its error handler."""
DONE = b"[DONE]"
FRAMES = frozenset({"content-length", "transfer-encoding"})

_ITEMS = f'"{ITEMS}"'.encode()

_encode = msgspec.json.Encoder().encode
TEXT_OF_A_MODEL = Door(name="JSON text of a model", bytes=1 << 30, values=MAX_VALUES)
"""Its bytes are counted while they come, against `limits.answer_bytes`."""
_decode = json_reader()
_decode_fields = json_reader(dict[str, msgspec.Raw])


ReadWhole: TypeAlias = Callable[[bytes, str], Sequence[ModelEvent] | None]
"""Reads a whole body, given the provider's own field for reasoning; None where it is read in another way."""


class Endpoint(Unprinted, frozen=True):
    """The address of a model, and the settings of requests to it."""

    unprinted = frozenset({"headers", "secrets"})

    url: str
    """The whole address, `/chat/completions` included."""
    model: str
    """The provider's name for it."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    """Values that are removed from all messages of a provider."""
    defaults: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Fields the operator sets for requests that do not set them."""
    include_usage: bool = True
    """Whether streams are asked for their token counts. Off for servers that refuse `stream_options`."""
    knows_developers: bool = True
    """Whether the provider knows the role `developer`. If not, such messages are sent as `system`."""
    counts_completions: bool = False
    """Whether the token limit has to be named `max_completion_tokens`."""
    reasoning_field: str = ""
    """The provider's own field for reasoning, where it has one."""
    forbids_calls: bool = False
    """Whether calls can be forbidden beside tools, so that a turn without calls has the prompt of the others."""


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
        self.answer_bytes = answer_bytes
        self.endpoint = endpoint
        self.client = client
        self.deadlines = deadlines
        self.url = endpoint.url
        self.headers = {"Content-Type": "application/json", **endpoint.headers}
        self.host = host_in(endpoint.url)
        self._head: RequestHead | None = None

    def head(self) -> RequestHead:
        """Return the head of its requests, which is the same for all of them."""
        if self._head is None:
            self._head = self.client.head_of("POST", self.url, self.headers)
        return self._head


class DirectModel(HttpModel):
    """A model on this lane."""

    def send(self, request: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]:
        if not isinstance(request, ModelRequest) or request.original is not None:
            request = as_model_request(request, signed=False)
        body = self._encoded(request)
        if request.stream:
            return StreamRequest(self, body, request.record_body)
        return WholeRequest(self, body, request.record_body)

    def _encoded(self, request: ModelRequest) -> bytes:
        if self.endpoint.forbids_calls:
            request = with_withheld(request)
        if self.endpoint.knows_developers:
            messages = request.messages
        else:
            messages = without_developers(request.messages)
        body: dict[str, Any] = {"model": self.endpoint.model, "messages": messages}
        if request.tools:
            body["tools"] = request.tools
            if request.tool_choice is not None:
                body["tool_choice"] = request.tool_choice
        fields = for_body(request, self.endpoint.defaults)
        body |= with_completion_limit(fields) if self.endpoint.counts_completions else fields
        body["stream"] = request.stream
        if request.stream and self.endpoint.include_usage:
            options = raw_json.read(request.params.get("stream_options"))
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

    model: HttpModel
    body: bytes
    record_body: RecordBody | None
    response: Response | None = None

    async def __aenter__(self) -> ModelAnswer:
        response = await self._opened()
        self.body = b""  # the answer may take minutes, and the question hold megabytes
        self.response = response
        return self._answer(response)

    def _opened(self) -> Awaitable[ClientConnection]:
        model = self.model
        return open_response(
            model.client,
            model.head(),
            self.body,
            model.deadlines,
            model.endpoint.secrets,
            self.record_body,
        )

    def _answer(self, response: Response) -> ModelAnswer:
        model = self.model
        return HttpAnswer(
            response, model.endpoint.secrets, model.answer_bytes, self.record_body, model.endpoint.reasoning_field
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.response is not None:
            self.response.leave()
        if error is not None and isinstance(error, TransportError):
            raise errors.from_transport(error) from error


class StreamRequest(HttpRequest):
    """The context manager of a request for a stream. One that has come to its end with its head, as short answers may, is read at once, and
    the connection is free before anything is made of it; any other is iterated."""

    async def __aenter__(self) -> ModelAnswer:
        response = await self._opened()
        self.body = b""
        self.response = response
        if b"html" in response.content_type().lower():
            return self._answer(response)
        return self._of_whole(response, response.whole(), stream_events_fast)

    def _of_whole(self, response: ClientConnection, body: bytes | None, read_fast: ReadWhole) -> ModelAnswer:
        """Return the answer in a body of which all has come in order; of any other the one that is iterated."""
        if body is None:
            return self._answer(response)
        model = self.model
        if self.record_body is not None:
            self.record_body()(body)
        events = None
        if len(body) <= model.answer_bytes:
            events = read_fast(body, model.endpoint.reasoning_field)
        if events is None:
            return HttpAnswer.of_whole(response, body, model.endpoint, model.answer_bytes)
        self.response = None
        response.leave()
        return PreloadedAnswer(events, HttpAnswer.lane)


class WholeRequest(StreamRequest):
    """The context manager of a request for one body. One of the usual form is read at once when all of it has come, any other is
    iterated."""

    async def __aenter__(self) -> ModelAnswer:
        response = await self._opened()
        self.body = b""
        self.response = response
        try:
            while response.is_coming(LARGE):
                await response.change()
        except BaseException:
            response.leave()
            raise
        return self._of_whole(response, response.whole(), whole_events_fast)


def is_framed(response: Response) -> bool:
    """True if the response says where its body ends. Of any other the connection may have been cut."""
    return not FRAMES.isdisjoint(response.headers())


def host_in(url: str) -> str:
    """Return the host of a URL, without user name and password."""
    return urlsplit(url).netloc.rpartition("@")[2]


async def open_response(
    client: HttpClient,
    head: RequestHead,
    body: bytes,
    deadlines: Deadlines,
    secrets: Sequence[str],
    record_body: RecordBody | None = None,
) -> ClientConnection:
    """Send a request and return its response of status 200, which the caller leaves. Raises the error of any other status."""
    try:
        response = await client.exchange(head, body, deadlines)
    except TransportError as error:
        raise errors.from_transport(error) from error
    if response.status == 200:
        return response
    try:
        raise await refusal(response, secrets, record_body)
    finally:
        response.leave()


async def refusal(response: Response, secrets: Sequence[str], record_body: RecordBody | None = None) -> ChatError:
    """Return the error for a response of another status than 200."""
    try:
        body = await response.read(ERROR_BYTES)
    except TransportError:
        body = b""  # the status alone is enough
    response.settle()
    if record_body is not None:
        record_body()(body)
    return errors.from_status(response.status, response.headers(), body, secrets=secrets)


class Body(Protocol):
    """Reads one kind of body, piece by piece."""

    @property
    def is_done(self) -> bool:
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


PIECE: Final = 32 * 1024
"""Bytes of a body that are read at once: they may be two thousand events."""


LITELLMS_PIECE: Final = 8 * 1024
"""The same where litellm makes a chunk of each event, in a tenth of a millisecond or more."""


def pieces_of(data: bytes, size: int = PIECE) -> Iterator[bytes]:
    """Cut a long read, behind events where it can be."""
    start = 0
    while start < len(data):
        end = data.rfind(b"\n\n", start, start + size) + 2
        if end < start + 2 or start + size >= len(data):
            end = start + size
        yield data[start:end]
        start = end


class HttpAnswer:
    """An answer in the body of a response: finds where it begins, breaks off and ends, for all body formats."""

    reason_is_raw = True
    lane = "direct"
    piece = PIECE

    def __init__(
        self,
        response: Response,
        secrets: Sequence[str],
        answer_bytes: int,
        record_body: RecordBody | None = None,
        reasoning_field: str = "",
    ) -> None:
        self._response = response
        self._secrets = secrets
        self._most = answer_bytes
        self._reasoning_field = reasoning_field
        self._record_body = record_body
        self._reads: AsyncIterator[bytes] | None = None
        self._pieces: list[bytes] = []
        """What of the last read is still to be read, piece by piece: between two of them the event loop goes on."""
        self._body: Body | None = None
        self._start = b""
        self._size = 0
        self._at_end = False
        self._begun = False
        self._taking: Awaitable[None] = NOTHING
        """What the last batch that was handed on is waited for with."""
        self._failure: Exception | None = None
        """Why it could not be read or handed on."""

    @classmethod
    def of_whole(cls, response: Response, body: bytes, endpoint: Endpoint, answer_bytes: int) -> "HttpAnswer":
        """Return the answer in a body that was taken from its response, and recorded, when all of it had come."""
        answer = cls(response, endpoint.secrets, answer_bytes, reasoning_field=endpoint.reasoning_field)
        answer._size = len(body)
        answer._pieces.extend(pieces_of(body))
        return answer

    def hand_to(self, take: TakeEvents) -> None:
        body = self._body
        if body is not None and self._begun and not body.is_done and self._record_body is None:
            # In the context of this request: the connection was made in that of another one.
            run: Callable[..., bool] = copy_context().run
            self._response.hand_to(partial(run, self._hand, body, take))

    def _hand(self, body: Body, take: TakeEvents, data: bytes) -> bool:
        """Read what has come, and hand its events on. False where the iteration has to go on: at the end of the answer, after a failure,
        and where `take` waits for something."""
        size = len(data)
        self._size += size
        if self._size > self._most:
            return False
        if size > self.piece:
            self._pieces.extend(pieces_of(data, self.piece))
            return False
        try:
            if (batch := body.feed(data)) and (taking := take(batch)) is not NOTHING:
                self._taking = taking
                return False
        except Exception as error:  # noqa: BLE001 - whatever it is, the iteration raises it
            self._failure = error
            return False
        return not body.is_done and body.fault is None

    async def _was_handed(self) -> None:
        """Wait until what was handed on is taken, and raise what went wrong."""
        if self._failure is not None:
            raise self._failure
        taking = self._taking
        self._taking = NOTHING
        await taking

    def __aiter__(self) -> "HttpAnswer":
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:  # noqa: PLR0912
        # One function, because it runs for every chunk of a stream that is not handed on, and each further coroutine costs.
        body = self._body
        while True:
            if self._at_end or (body is not None and (body.is_done or body.fault is not None)):
                raise self._end(body)
            try:
                if self._pieces:
                    await asyncio.sleep(0)
                    data = self._pieces.pop(0)
                else:
                    if self._reads is None:
                        self._reads = self._reads_of()
                    data = await self._reads.__anext__()
                    self._size += len(data)
                    if len(data) > self.piece:
                        self._pieces.extend(pieces_of(data, self.piece))
                        data = self._pieces.pop(0)
            except StopAsyncIteration:
                self._at_end = True
                finish = _nothing if body is None else body.finish
                # Each step of a large one takes tens of milliseconds, in C; the event loop goes on in between.
                batch = await asyncio.to_thread(finish) if self._size > LARGE else finish()
            except TransportError as error:
                raise self._broken(error) from error
            except asyncio.CancelledError:
                if asyncio.iscoroutine(self._taking):
                    self._taking.close()
                raise
            else:
                if self._size > self._most:
                    raise errors.answer_too_large(self._most)
                if not data:
                    await self._was_handed()
                    continue
                if body is not None:
                    batch = body.feed(data)
                else:
                    self._start += data
                    body = self._recognise(self._start)
                    self._body = body
                    if body is not None:
                        batch = body.feed(self._start)
                        self._start = b""
                    else:
                        batch = ()
            if batch:
                if not self._begun:
                    # An error before any content is a failure of the request; a later one is part of the turn.
                    first = first_content_event(batch)
                    if type(first) is ProviderError:
                        raise errors.reported(
                            first.message, first.body, self._response.headers(), secrets=self._secrets
                        )
                    self._begun = first is not None
                return batch

    def _end(self, body: Body | None) -> Exception:
        """Return what is raised at the end of the answer."""
        if body is not None and body.fault is not None:  # the rest of it cannot be read
            return self._broken(BrokenOff(body.fault, transport_error=True))
        if body is not None and body.is_done:
            is_over = self._is_over()
            self._response.settle()
            return StopAsyncIteration() if is_over else errors.bad_answer(EMPTY_ANSWER)
        if body is not None and body.has_ended and is_framed(self._response):
            self._response.settle()
            return StopAsyncIteration()
        return self._broken(BrokenOff("the body ended before its end mark", transport_error=False))

    def _is_over(self) -> bool:
        """True if the answer is complete once the body is read."""
        return self._begun

    def _reads_of(self) -> AsyncIterator[bytes]:
        reads = self._response.chunks()
        if self._record_body is None:
            return reads
        return RecordedReads(reads, self._record_body())

    def _read_on(self, response: Response) -> None:
        """Read the next part of the answer, in another response."""
        self._response = response
        self._reads = None
        self._body = None
        self._start = b""
        self._at_end = False

    def _recognise(self, start: bytes) -> Body | None:
        """Choose the reader for a body by its beginning; None while that is too short."""
        form = format_of(start, self._response)
        if form is None:
            return None
        if form == "events":
            return StreamedBody(self._reasoning_field)
        return WholeBody(self._reasoning_field)

    def _broken(self, error: TransportError | BrokenOff) -> Exception:
        if not self._begun:
            if isinstance(error, TransportError):
                return errors.from_transport(error)
            return errors.bad_answer("The model's provider sent an answer that is empty or cut off.", str(error))
        if isinstance(error, BrokenOff):
            return error
        return BrokenOff(str(error), transport_error=True)


def _nothing() -> Sequence[ModelEvent]:
    return ()


class RecordedReads:
    """The reads of a body, each of which is also recorded. An iterator, because an unfinished async generator would stay open."""

    def __init__(self, reads: AsyncIterator[bytes], take: Callable[[bytes], None]) -> None:
        self._reads = reads
        self._take = take

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        data = await self._reads.__anext__()
        self._take(data)
        return data


class AnswerEvents(EventStreamReader):
    """Reads the events of a model's answer."""

    def too_large(self, data: bytes) -> Exception:
        return AnswerTooLarge(f"{EVENT_BYTES} bytes in one event")


class EventStreamBody:
    """Reads a body that is a stream of events."""

    def __init__(self, reasoning_field: str = "") -> None:
        self._sse = AnswerEvents()
        self._chunks = ChunkReader(reasoning_field=reasoning_field)
        self.is_done = False
        self.has_ended = False
        self.fault: str | None = None

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        return self._read(self._sse.feed(data))

    def finish(self) -> Sequence[ModelEvent]:
        events = [*self._read(self._sse.finish()), *self._chunks.finish()]
        is_cut = self.fault is not None
        self.fault = None  # a last event that is cut off means no more than the end of the body
        self.has_ended = not is_cut and (self.has_ended or self._chunks.has_ended)
        return events

    def _read(self, payloads: Sequence[Payload]) -> Sequence[ModelEvent]:
        """Read whole events; sets `done` after the last one, `fault` at one that cannot be trusted."""
        raise NotImplementedError


class StreamedBody(EventStreamBody):
    """Reads a stream of completion chunks."""

    def __init__(self, reasoning_field: str = "") -> None:
        super().__init__(reasoning_field)
        self._chunks_read = 0
        self._template: DeltaTemplate | None = None
        """Made when as many chunks were read as it may pay for."""
        self._fitted = False
        """The last read fitted the template, which leaves nothing held."""

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        template = self._template
        if template is not None and (self._fitted or (self._sse.is_between_events and not self._chunks.holds_half)):
            fitting = template.read_in(data)
            if fitting is not None:
                self._fitted = True
                return fitting
            self._fitted = False
        texts = self._sse.plain_texts(data)
        if texts is None:
            return super().feed(data)
        events: list[ModelEvent] = []
        are_small = open_fast(data, TEXT_OF_A_MODEL) is not None  # what is small as a whole is so in each part
        for text in texts:
            self._read_text(text, events, is_small=are_small)
            if self.is_done or self.fault is not None:
                break
        return events

    def _read(self, payloads: Sequence[Payload]) -> Sequence[ModelEvent]:
        events: list[ModelEvent] = []
        for payload in payloads:
            is_small = open_fast(payload.data, TEXT_OF_A_MODEL) is not None
            self._read_text(payload.data, events, is_small=is_small, is_error=payload.is_error)
            if self.is_done or self.fault is not None:
                break
        return events

    def _read_text(self, data: bytes, events: list[ModelEvent], *, is_small: bool, is_error: bool = False) -> None:
        """Read the data of one event, and add what it says to the events."""
        template = self._template
        if template is not None and not self._chunks.holds_half:
            fitting = template.payload_in(data)
            if fitting is not None:
                events += fitting
                return
        if is_error:
            events += reported(data)
            return
        read_events: Sequence[ModelEvent] | None = None
        if is_small and data != DONE:
            read_events = self._read_usual_fast(Opened(data))
        if read_events is None:
            read_events = self._read_any(data)
        if read_events:
            events += read_events
            self._chunks_read += 1
            if self._chunks_read >= EARLIEST:
                if template is None:
                    self._template = template = DeltaTemplate()
                template.make_from(data, read_events, _read_alone)

    def _read_usual_fast(self, text: Opened) -> Sequence[ModelEvent] | None:
        """Equals `_read_any` for every text, or returns None: for all but chunks of the usual form. Without it a streamed turn with a call
        costs 12 % more instructions."""
        chunk = usual_chunk_fast(text, _may_have_duplicates)
        if chunk is None:
            return None
        return self._chunks.read_usual(chunk)

    def _read_any(self, data: bytes) -> Sequence[ModelEvent]:
        if data == DONE or data.strip() == DONE:
            self.is_done = True
            return self._chunks.finish()
        try:
            chunk = read_json(data)
        except ValueError:
            if not looks_like_keep_alive(data):
                # Events before it in the same read are still returned; then the answer breaks off.
                self.fault = "an event of the stream is not JSON"
            return ()
        if _may_have_duplicates(data) and has_duplicate_names(data):
            self.fault = TWICE
            return ()
        if chunk is None:
            return ()
        return self._chunks.read(chunk)


def reported(payload: bytes) -> Sequence[ModelEvent]:
    """Return the error in an event that is marked as one, in any format."""
    try:
        body = read_json(payload)
    except ValueError:
        body = payload.decode("utf-8", "replace")
    errors_read = [event for event in ChunkReader().read(body) if isinstance(event, ProviderError)]
    return errors_read or ChunkReader().read({"error": body or "the provider reported an error"})


def _read_alone(payload: bytes) -> Sequence[ModelEvent]:
    """Read a chunk by itself, in the middle of a stream."""
    events = _read_alone_fast(payload)
    if events is None:
        events = ChunkReader(is_under_way=True).read(read_json(payload))
    return events


def _read_alone_fast(payload: bytes) -> Sequence[ModelEvent] | None:
    """Equals what `_read_alone` else reads, or returns None: for all but chunks of the usual form. Without it a template costs 40 % more
    instructions."""
    opened = open_fast(payload, TEXT_OF_A_MODEL)
    if opened is None:
        return None
    chunk = usual_chunk_fast(opened, _may_have_duplicates)
    if chunk is None:
        return None
    return ChunkReader(is_under_way=True).read_usual(chunk)


class JsonEvents(EventStreamBody):
    """Reads a stream of JSON events in a provider's own format."""

    def _read(self, payloads: Sequence[Payload]) -> list[ModelEvent]:
        events: list[ModelEvent] = []
        for payload in payloads:
            try:
                event = read_json(payload.data)
            except ValueError:
                if payload.is_error:
                    events += reported(payload.data)
                    continue
                if looks_like_keep_alive(payload.data):
                    continue
                self.fault = "an event of the stream is not JSON"
                break
            events += self._read_payload(payload, event)
            if self.is_done or self.fault is not None:
                break
        return events

    def _read_payload(self, payload: Payload, event: Any) -> Sequence[ModelEvent]:
        """Read one event; sets `done` after the last one, `fault` where it cannot be trusted."""
        raise NotImplementedError


class WholeBody:
    """Reads a body that is one text of JSON: here, a completion."""

    is_done = False
    has_ended = False
    fault: str | None = None

    def __init__(self, reasoning_field: str = "") -> None:
        self._parts: list[bytes] = []
        self._reasoning_field = reasoning_field

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        self._parts.append(data)
        return ()

    def finish(self) -> Sequence[ModelEvent]:
        text = b"".join(self._parts).removeprefix(BOM)
        if type(self) is WholeBody:
            events = completion_events_fast(text, self._reasoning_field)
            if events is not None:
                self.is_done = True
                return events
        try:
            body = read_json(text)
        except ValueError:
            self.fault = "the body is not JSON"
            return ()
        if _may_have_duplicates(text) and has_duplicate_names(text):
            self.fault = TWICE
            return ()
        return self._read(body)

    def _read(self, body: Any) -> Sequence[ModelEvent]:
        self.is_done = True
        return read_completion(body, reasoning_field=self._reasoning_field)


def completion_events_fast(text: bytes, reasoning_field: str) -> Sequence[ModelEvent] | None:
    """Equals what `WholeBody` else makes of a text, or returns None. For a completion alone."""
    if reasoning_field or _may_have_duplicates(text):
        return None
    opened = open_fast(text, TEXT_OF_A_MODEL)
    if opened is None:
        return None
    return read_completion_fast(opened)


def whole_events_fast(body: bytes, reasoning_field: str) -> Sequence[ModelEvent] | None:
    """Equals what is read of a body that came whole, as one batch, or returns None: for a completion with content."""
    events = completion_events_fast(body, reasoning_field)
    if events is None or first_content_event(events) is None:
        return None
    return events


def stream_events_fast(body: bytes, reasoning_field: str) -> Sequence[ModelEvent] | None:
    """Equals what is read of a stream that came whole, as one batch, or returns None: for one with content that ends with its mark."""
    if len(body) > PIECE or not body.startswith(b"data: "):
        return None
    reader = StreamedBody(reasoning_field)
    try:
        events = reader.feed(body)
    except AnswerTooLarge:
        return None
    if not reader.is_done or type(first_content_event(events)) in _NO_BEGINNING:
        return None
    return events


_NO_BEGINNING: Final = frozenset({ProviderError, type(None)})
"""What an answer does not begin with, but a failure."""


def read_json(text: bytes) -> Any:
    """Decode a provider's JSON tolerantly, because providers send lone surrogates and invalid bytes. Raises ValueError, and
    `AnswerTooLarge`."""
    try:
        return _decode(Untrusted(text, TEXT_OF_A_MODEL).open())
    except TooMuch as error:
        if error.what == "levels":
            raise ValueError("nested too deeply") from None
        raise AnswerTooLarge(f"{error.limit} {error.what} in one JSON text") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    if len(text) > JSON_BYTES:
        raise ValueError("too long to be read tolerantly")
    if len(text) > MAX_UNREADABLE and text.decode("utf-8", "replace").count("\ufffd") > MAX_UNREADABLE:
        raise ValueError("no text in UTF-8")
    try:
        value = read_leniently(open_text(tolerant_text(text), TEXT_OF_A_MODEL))
        if isinstance(value, str):
            return value
        return _sound(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None


TWICE = "a call names a field twice"
_names_in = re.compile(
    rb'"(arguments|name|function|tool_calls|function_call|delta|choices|finish_reason|error)"\s*:'
).findall
"""Finds the names that occur once in a text with one call, whatever its arguments hold: quotes inside them are escaped."""


def _may_have_duplicates(text: bytes) -> bool:
    """True if a text has to be parsed to find out: with several calls or choices these names are repeated as well."""
    if text.find(b'"tool_calls"') < 0 and text.find(b'"function_call"') < 0:  # `in` takes twice as long
        return text.count(b'"finish_reason"') > 1 or text.count(b'"error"') > 1
    names = _names_in(text)
    return len(names) > len({*names})


def has_duplicate_names(text: bytes) -> bool:
    """True if an object in it has a duplicate key. Which value its provider meant cannot be known."""
    try:
        # As tolerant as `read_json`, because it checks what that read. Numbers are not converted.
        opened = open_text(tolerant_text(text), TEXT_OF_A_MODEL)
        read_leniently(opened, object_pairs_hook=_once, parse_int=str, parse_float=str)
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


def tolerant_text(data: bytes) -> str:
    """Decode UTF-8 with a lone surrogate, which is no character and breaks a call, for each invalid piece; with two of them
    where the first would pair with the text before it."""
    try:
        return data.decode()
    except UnicodeDecodeError:  # only then is there anything to look for, which takes fifty times as long
        pass
    return _INVALID.sub(_surrogates_for, data.decode("utf-8", "surrogateescape"))


_INVALID = re.compile('(\\\\[uU][^\udc80-\udcff]{4}|")?([\udc80-\udcff]+)', re.DOTALL)
"""Bytes that are no UTF-8, as Python escapes them, and what stands before them if that could pair with a surrogate."""


def _surrogates_for(place: re.Match[str]) -> str:
    before = place[1] or ""
    pieces = place[2].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    extra = "\udfff" if before else ""
    return before + extra + "\udfff" * len(pieces)


def format_of(start: bytes, response: Response) -> Literal["json", "events"] | None:
    """Return the format of a body by its first bytes, because servers label errors as streams, and streams as plain text.
    None while they are too few."""
    mark = start.removeprefix(BOM).lstrip()[:1]
    if not mark:
        return None
    if mark in b"{[":
        return "json"
    content_type = response.headers().get("content-type", "")
    if mark == b"<" or "html" in content_type.lower():
        raise errors.bad_answer(
            "The model's provider sent something that is not an answer.", f"content-type {content_type!r}"
        )
    return "events"


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
