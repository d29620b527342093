"""Passes requests and answers through as bytes, where none of our tools is offered.

Of a stream only these parts are read: everything before its first content, its end mark, finish reasons, usage, and an
error in the middle. An answer in another format than was requested is read like any other, and so is a whole one with calls
where calls are forbidden; in a stream such calls are left out.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import msgspec

from callgate.conversation.errors import AnswerTooLarge, ChatError, SeparateChoices
from callgate.conversation.events import ChoiceIgnored, Finished, ModelEvent, Passed, ProviderError, Usage
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough
from callgate.conversation.preloaded_model import PreloadedAnswer
from callgate.http.event_stream import (
    BOM,
    ErrorEvent,
    EventStreamReader,
    EventTooLarge,
    looks_like_keep_alive,
    payload_of,
    payloads_in,
)
from callgate.http.interface import Response, TransportError
from callgate.upstream import errors
from callgate.upstream.chunks import MAX_CHOICES, ChunkReader, read_completion
from callgate.upstream.direct_model import (
    DONE,
    Body,
    DirectModel,
    Endpoint,
    HttpAnswer,
    HttpRequest,
    WholeBody,
    read_json,
    recognised,
    refusal,
    reported,
    without_developers,
)
from callgate.upstream.first_content import first_content_event, is_content
from callgate.upstream.forbidden_calls import LeftOutCalls, has_calls, says_calls
from callgate.upstream.params import ALWAYS_PASSED, is_denied

END = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode
_messages = msgspec.json.Decoder(list[msgspec.Raw])


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Outline(msgspec.Struct):
    """The fields that are read of a whole answer and of parsed events."""

    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_outline = msgspec.json.Decoder(_Outline)
LARGE_BODY = 1024 * 1024
"""Bytes of a whole answer from which its choices are counted before it is decoded."""


class PassthroughModel(DirectModel):
    """A model of the direct lane that passes requests through where possible."""

    def ask(self, ask: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]:
        if isinstance(ask, ModelRequest) or ask.original is not None:
            return super().ask(ask)
        body = self._passed_request(ask)
        exchange = self._client.post(self._endpoint.url, self._headers, body, self._deadlines)
        if ask.stream:
            return _StreamRequest(exchange, self._endpoint, self._answer_bytes, ask)
        return _WholeRequest(exchange, self._endpoint, self._answer_bytes, ask.n, ask.takes_calls)

    def _passed_request(self, request: Passthrough) -> bytes:
        """Return the client's body with the provider's name for the model and without denied fields."""
        endpoint, fields = self._endpoint, request.fields
        body: dict[str, Any] = dict(fields)
        for name in fields.keys() - ALWAYS_PASSED:
            if is_denied(name):
                del body[name]
        body["model"] = endpoint.model
        for choice in _CHOICES.keys() & body.keys():
            # Providers refuse a tool choice without tools.
            if _CHOICES[choice] not in body and bytes(fields[choice]).strip() == b'"none"':
                del body[choice]
        if not endpoint.knows_developers:
            body["messages"] = without_developers(_messages.decode(fields["messages"]))
        for name, value in endpoint.defaults.items():
            body.setdefault(name, value)
        if request.stream and endpoint.include_usage and not request.include_usage:
            given = fields.get("stream_options")
            options = msgspec.json.decode(given) if given is not None else None
            body["stream_options"] = {**(options or {}), "include_usage": True}
        try:
            return _encode(body)
        except UnicodeEncodeError:
            raise ChatError(400, "A message holds half of a surrogate pair, which no JSON text can carry.") from None


_CHOICES = {"tool_choice": "tools", "function_call": "functions"}


# One body --------------------------------------------------------------------------------------------------------------


class _WholeRequest(msgspec.Struct, eq=False):
    """The context manager of a request for one body. The body is read to its end before any of it is emitted, because a cut
    one must not look whole; then the connection is free."""

    _exchange: AbstractAsyncContextManager[Response]
    _endpoint: Endpoint
    _answer_bytes: int
    _choices: int
    _takes_calls: bool

    async def __aenter__(self) -> PreloadedAnswer:
        secrets = self._endpoint.secrets
        try:
            async with self._exchange as response:
                if response.status != 200:
                    raise await refusal(response, secrets)
                body = await response.read(self._answer_bytes)
                response.settle()
        except TransportError as error:
            raise errors.from_transport(error) from error
        events = _read_whole(body.removeprefix(BOM), response, secrets, self._choices)
        passed = events[0]
        if not self._takes_calls and type(passed) is Passed and (has_calls(passed.data) or says_calls(passed.reasons)):
            events = _read_calls(passed.data, self._choices)
        return PreloadedAnswer(events, HttpAnswer.lane)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The exchange is over already."""


def _read_whole(body: bytes, response: Response, secrets: Sequence[str], choices: int) -> Sequence[ModelEvent]:
    if body.lstrip()[:1] != b"{":
        return _read_stream(body, response, choices)
    try:
        outline = _outlined(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        outline = _tolerantly(body)
    if outline.error:
        error_body = errors.read_error(outline.error)
        raise errors.reported(error_body.message, {"error": outline.error}, response.headers, secrets=secrets)
    if not outline.choices:
        raise errors.bad_answer("The model's provider sent an empty answer.")
    choices_read = outline.choices
    reason = choices_read[0].finish_reason if len(choices_read) == 1 else None
    reasons = (Finished(reason),) if reason else _reasons(choices_read)
    return (Passed(body, reasons, outline.usage),)


def _read_calls(body: bytes, choices: int) -> Sequence[ModelEvent]:
    """Read a whole answer with calls where calls are forbidden. Whoever has the events leaves the calls out."""
    answer = read_json(body)
    if choices > 1:
        raise SeparateChoices(_separate([read_completion(answer, choice) for choice in range(choices)]))
    return read_completion(answer)


def _outlined(body: bytes) -> _Outline:
    """Parse the needed fields of a body, which may have millions of choices."""
    if len(body) < LARGE_BODY:
        return _outline.decode(body)
    outline: Any = _large.decode(body)
    found = outline.choices
    choices: list[_Choice] = [choice for choice in msgspec.structs.astuple(found) if choice] if found else []
    if len(choices) > MAX_CHOICES:
        raise AnswerTooLarge(f"{MAX_CHOICES} choices")
    usage = read_json(outline.usage)
    return _Outline(choices, usage if isinstance(usage, dict) else None, read_json(outline.error))


_Choices: Any = msgspec.defstruct(
    "_Choices", [(f"at_{place}", _Choice | None, None) for place in range(MAX_CHOICES + 1)], array_like=True
)
"""The maximal number of choices and one more; the decoder skips the rest."""


_LargeOutline: Any = msgspec.defstruct(
    "_LargeOutline",
    [
        ("choices", _Choices | None, None),
        ("usage", msgspec.Raw, msgspec.Raw(b"null")),
        ("error", msgspec.Raw, msgspec.Raw(b"null")),
    ],
)
_large = msgspec.json.Decoder(_LargeOutline)


def _reasons(choices: Sequence[_Choice]) -> tuple[Finished, ...]:
    return tuple(Finished(choice.finish_reason) for choice in choices if choice.finish_reason)


def _tolerantly(body: bytes) -> _Outline:
    """Parse a body with fields of unexpected types. Raises for one that is cut off."""
    try:
        found = read_json(body)
    except ValueError:
        raise errors.bad_answer("The model's provider sent an answer that is empty or cut off.") from None
    events = read_completion(found)
    failed = next((event for event in events if isinstance(event, ProviderError)), None)
    choices = [_Choice()] if any(is_content(event) for event in events) else None
    usage = found.get("usage") if isinstance(found, dict) else None
    return _Outline(choices, usage if isinstance(usage, dict) else None, failed.body if failed else None)


def _read_stream(body: bytes, response: Response, choices: int) -> Sequence[ModelEvent]:
    """Read a stream that came where one body was requested."""
    reader = recognised(body, response)
    if reader is None:
        raise errors.bad_answer("The model's provider sent an empty answer.")
    if choices > 1:
        raise SeparateChoices(_choices_of_stream(body, choices))
    events = [*reader.feed(body)]
    if not reader.done:
        events += reader.finish()
    first = first_content_event(events)
    if isinstance(first, ProviderError):
        raise errors.reported(first.message, first.body, response.headers)
    if first is None or not (reader.done or any(isinstance(event, Finished) for event in events)):
        raise errors.bad_answer("The model's provider sent an answer that is empty or cut off.", reader.fault or "")
    return events


# A stream --------------------------------------------------------------------------------------------------------------


class _StreamRequest(HttpRequest):
    """The context manager of a request for a stream."""

    _request: Passthrough

    def _answer(self, response: Response) -> ModelAnswer:
        return _StreamAnswer(response, self._endpoint.secrets, self._answer_bytes, self._request)


class _StreamAnswer(HttpAnswer):
    """An answer to a request for a stream; its first bytes show whether it is one."""

    def __init__(self, response: Response, secrets: Sequence[str], answer_bytes: int, request: Passthrough) -> None:
        super().__init__(response, secrets, answer_bytes)
        self._request = request

    def _recognise(self, start: bytes) -> Body | None:
        body = recognised(start, self._response)
        if body is None:
            return None
        if not isinstance(body, WholeBody):
            request = self._request
            return _PassedEvents(hide_usage=not request.include_usage, takes_calls=request.takes_calls)
        return body if self._request.n == 1 else _SeparateBody(self._request.n)


class _PassedEvents:
    """Passes whole events of a stream through, so that an error of ours never follows half an event."""

    def __init__(self, *, hide_usage: bool, takes_calls: bool) -> None:
        self._hide_usage = hide_usage
        self._takes_calls = takes_calls
        self._left_out = LeftOutCalls()
        self._stream, self._chunks = EventStreamReader(), ChunkReader()
        self._start: list[bytes] | None = []
        """The events before the first content; None once that has come."""
        self._is_between = False
        """True if nothing is held back, neither for the first content nor for the end of an event."""
        self.done = False
        self.has_ended = False
        self.fault: str | None = None

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        if not self._is_between or data[-2:] != b"\n\n" or b"\r" in data:
            start = self._start
            try:
                data = self._stream.whole(data)
            except EventTooLarge as error:
                self.fault = str(error)
                return ()
            if start is not None:
                return self._begin(start, data) if data else ()
            self._is_between = self._stream.is_between_events
        # An event without any of these has only content. The search costs less than parsing the JSON.
        if (
            b"[DONE]" in data
            or b'"usage":{' in data
            or b'"finish_reason":"' in data
            or b'"finish_reason": "' in data
            or b'"usage": {' in data
            or b'"error"' in data
            or b"event:" in data
            or (not self._takes_calls and (self._left_out or has_calls(data)))
        ):
            return self._looked_at(data)
        return (Passed(data),) if data else ()

    def finish(self) -> Sequence[ModelEvent]:
        """Take a last event without its blank line if it is whole; one that is cut off is dropped."""
        if self._start is not None:
            return ()
        rest = self._stream.rest()
        payload = payload_of(rest.rstrip(b"\n"))
        if payload is None:
            return ()
        try:
            read_json(payload)
        except ValueError:
            if payload.strip() != DONE:
                return ()
        return self._looked_at(rest)

    def _begin(self, start: list[bytes], data: bytes) -> Sequence[ModelEvent]:
        """Hold events until the first content, because until then the request may be retried."""
        start.append(data)
        for payload in payloads_in(data):
            if payload.strip() == DONE:
                self.done = True
                return ()
            if type(payload) is ErrorEvent:
                return reported(payload)
            try:
                chunk = read_json(payload)
            except ValueError:
                if looks_like_keep_alive(payload):
                    continue
                self.fault = "an event of the stream is not JSON"
                return ()
            first = first_content_event(self._chunks.read(chunk))
            if isinstance(first, ProviderError):
                return (first,)
            if first is not None:
                self._start = None
                return self._looked_at(b"".join(start))
        return ()

    def _looked_at(self, data: bytes) -> Sequence[ModelEvent]:
        """Check events that may have more than content, one by one."""
        passed: list[bytes] = []
        reasons: tuple[Finished, ...] = ()
        usage: Mapping[str, Any] | None = None
        for event in _EVENT_END.split(data):
            payload = payload_of(event)
            if payload is None:
                if event:
                    passed.append(event + b"\n\n")
                continue
            if payload.strip() == DONE:
                self.done = True
                passed.append(END)
                break
            if type(payload) is ErrorEvent:
                self.done = True
                return (Passed(b"".join(passed), reasons, usage, self._left_out.calls), *reported(payload))
            try:
                outline = _outlined(payload)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                outline = _UNREAD
            if outline.error:
                self.done = True
                error = ProviderError(errors.read_error(outline.error).message, outline.error)
                return (Passed(b"".join(passed), reasons, usage, self._left_out.calls), error)
            usage = outline.usage or usage
            reasons_here = _reasons(outline.choices or ())
            reasons += reasons_here
            if not self._takes_calls and (has_calls(payload) or says_calls(reasons_here)):
                chunk = self._left_out.take_from(payload)
                if chunk is not None:
                    passed.append(b"data: " + chunk + b"\n\n")
                continue
            # An event with only usage is passed on only if the client requested it.
            if outline.choices or not outline.usage or not self._hide_usage:
                passed.append(event + b"\n\n")
        return (Passed(b"".join(passed), reasons, usage, self._left_out.calls),)


_UNREAD = _Outline()
_EVENT_END = re.compile(rb"\n\n+")


# Several choices in a body of another format than was requested ---------------------------------------------------------


class _SeparateBody(WholeBody):
    """Reads every choice of one body."""

    def __init__(self, choices: int) -> None:
        super().__init__()
        self._choices = choices

    def _read(self, found: Any) -> Sequence[ModelEvent]:
        raise SeparateChoices(_separate([read_completion(found, choice) for choice in range(self._choices)]))


def _choices_of_stream(body: bytes, choices: int) -> Sequence[Sequence[ModelEvent]]:
    sse = EventStreamReader()
    readers = [ChunkReader(choice) for choice in range(choices)]
    answers: list[list[ModelEvent]] = [[] for _ in readers]
    for payload in (*sse.feed(body), *sse.finish()):
        if payload.strip() == DONE:
            break
        try:
            chunk = read_json(payload)
        except ValueError:
            if looks_like_keep_alive(payload):
                continue
            raise errors.bad_answer("The model's provider sent an answer that is empty or cut off.") from None
        for reader, answer in zip(readers, answers, strict=True):
            answer.extend(reader.read(chunk))
    return _separate(answers)


def _separate(answers: Sequence[Sequence[ModelEvent]]) -> Sequence[Sequence[ModelEvent]]:
    """Return the events of each choice. Fields of the whole answer are emitted with the first."""
    first = first_content_event(answers[0])
    if first is None:
        raise errors.bad_answer("The model's provider sent an answer that is empty or cut off.")
    if isinstance(first, ProviderError):
        raise errors.reported(first.message, first.body, {})
    return [
        [
            event
            for event in answer
            if not isinstance(event, ChoiceIgnored) and (place == 0 or not isinstance(event, Usage))
        ]
        for place, answer in enumerate(answers)
    ]
