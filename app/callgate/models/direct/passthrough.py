"""Passes requests and answers through as bytes, where none of our tools is offered.

Of a stream only these parts are read: everything before its first content, its end mark, finish reasons, usage, and an
error in the middle. An answer in another format than was requested is read like any other, and so is a whole one with calls
where calls are forbidden; in a stream such calls are left out.
"""

import functools
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final

import msgspec

from callgate.calls.json_text import LARGE
from callgate.conversation.errors import AnswerTooLarge, ChatError, SeparateChoices
from callgate.conversation.events import CallNotRun, ChoiceIgnored, Finished, ModelEvent, Passed, ProviderError
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough
from callgate.conversation.preloaded_model import PreloadedAnswer
from callgate.conversation.usage import Usage
from callgate.http.connection import ClientConnection
from callgate.http.event_stream import (
    BOM,
    Payload,
    events_in,
    looks_like_keep_alive,
    payload_of,
)
from callgate.http.interface import Response, TooLarge, TransportError
from callgate.models import errors
from callgate.models.direct.chunks import MAX_CHOICES, ChunkReader, read_completion
from callgate.models.direct.forbidden_calls import LeftOutCalls, has_calls, says_calls
from callgate.models.direct.model import (
    DONE,
    AnswerEvents,
    Body,
    DirectModel,
    HttpAnswer,
    HttpRequest,
    StreamedBody,
    WholeBody,
    format_of,
    open_response,
    read_json,
    reported,
    without_developers,
)
from callgate.models.retry import NO_CONTENT, first_content_event, is_content
from callgate.untrusted.doors import SMALL, Door, Opened, Untrusted, open_fast
from callgate.untrusted.readers import json_reader, read_value

END = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode
_messages = json_reader(list[msgspec.Raw])


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Outline(msgspec.Struct):
    """The fields that are read of a whole answer and of parsed events."""

    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_outline = json_reader(_Outline)
PASSED: Final = Door(
    name="answer that is passed on",
    bytes=1 << 30,  # they are counted while they come, against `limits.answer_bytes`
    values=sys.maxsize,  # an answer with the probabilities of its words has millions
    is_skimmed=True,
    keys=sys.maxsize,
    depth=sys.maxsize,
    escapes=sys.maxsize,
)
"""Of a large one the choices, the usage and an error are read, each counted by itself."""


class PassthroughModel(DirectModel):
    """A model of the direct lane that passes requests through where possible."""

    def send(self, request: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]:
        if isinstance(request, ModelRequest) or request.original is not None:
            return super().send(request)
        body = self._passed_request(request)
        if request.stream:
            return _StreamRequest(self, body, request.record_body, request=request)
        return _WholeRequest(self, body, request)

    def _passed_request(self, request: Passthrough) -> bytes:
        """Return the client's body with the provider's name for the model."""
        endpoint = self.endpoint
        fields = request.fields
        body: dict[str, Any] = dict(fields)
        body.pop("reasoning_summary", None)
        body["model"] = endpoint.model
        if not _CHOICES.keys().isdisjoint(body):
            for choice, tools in _CHOICES.items():
                # Providers refuse a tool choice without tools.
                if choice in body and tools not in body and bytes(fields[choice]).strip() == b'"none"':
                    del body[choice]
        if not endpoint.knows_developers:
            body["messages"] = without_developers(_messages(fields["messages"]))
        for name, value in endpoint.defaults.items():
            body.setdefault(name, value)
        if request.stream and endpoint.include_usage and not request.include_usage:
            raw_options = fields.get("stream_options")
            if raw_options is not None:
                options = read_value(raw_options)
            else:
                options = None
            body["stream_options"] = {**(options or {}), "include_usage": True}
        try:
            return _encode(body)
        except UnicodeEncodeError:
            raise ChatError(400, "A message holds half of a surrogate pair, which no JSON text can carry.") from None


_CHOICES: Final = {"tool_choice": "tools", "function_call": "functions"}


# One body --------------------------------------------------------------------------------------------------------------


class _WholeRequest(msgspec.Struct, eq=False):
    """The context manager of a request for one body. The body is read to its end before any of it is emitted, because a cut
    one must not look whole; then the connection is free."""

    model: PassthroughModel
    body: bytes
    request: Passthrough

    async def __aenter__(self) -> PreloadedAnswer:
        model = self.model
        secrets = model.endpoint.secrets
        response = await open_response(
            model.client, model.head(), self.body, model.deadlines, secrets, self.request.record_body
        )
        try:
            body = await _body_of(response, model.answer_bytes)
            response.settle()
        except TransportError as error:
            raise errors.from_transport(error) from error
        finally:
            response.leave()
        events = _read_whole(body.removeprefix(BOM), response, secrets, self.request.n)
        passed = events[0]
        if (
            not self.request.takes_calls
            and type(passed) is Passed
            and (has_calls(passed.data) or says_calls(passed.reasons))
        ):
            events = _read_calls(passed.data, self.request.n)
        return PreloadedAnswer(events, HttpAnswer.lane)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The exchange is over already."""


async def _body_of(response: ClientConnection, limit: int) -> bytes:
    """Read a whole body. Of a stream of events, for which nobody asked, nothing is waited for behind its end mark: its connection may stay
    open. Raises `TooLarge`."""
    while response.is_coming(LARGE):
        await response.change()
    body = response.whole()
    if body is not None and len(body) <= limit:
        return body
    if body is not None:
        raise TooLarge(limit)
    parts: list[bytes] = []
    size = 0
    end = _StreamEnd()
    async for part in response.chunks():
        size += len(part)
        if size > limit:
            raise TooLarge(limit)
        parts.append(part)
        if end.is_in(part):
            break
    return b"".join(parts)


class _StreamEnd:
    """Finds the end mark of a body that is a stream."""

    def __init__(self) -> None:
        self._start = b""
        """What has come while it does not show whether the body is one."""
        self._events: AnswerEvents | None = None
        self._is_json = False

    def is_in(self, data: bytes) -> bool:
        """Take the next part; return whether the mark is in it."""
        if self._is_json:
            return False
        if self._events is None:
            self._start += data
            data = self._start
            begin = data.removeprefix(BOM).lstrip()[:1]
            if not begin:
                return False
            self._start = b""
            if begin in b"{[":
                self._is_json = True
                return False
            self._events = AnswerEvents()
        return any(payload.data.strip() == DONE for payload in self._events.feed(data))


def _read_whole(body: bytes, response: Response, secrets: Sequence[str], choices: int) -> Sequence[ModelEvent]:
    if body.lstrip()[:1] != b"{":
        return _read_stream(body, response, secrets, choices)
    try:
        outline = _outlined(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        outline = _tolerantly(body)
    if outline.error:
        error_body = errors.read_error(outline.error)
        raise errors.reported(error_body.message, {"error": outline.error}, response.headers(), secrets=secrets)
    if not outline.choices:
        raise errors.bad_answer("The model's provider sent an empty answer.")
    choices_read = outline.choices
    if len(choices_read) == 1:
        reason = choices_read[0].finish_reason
    else:
        reason = None
    reasons = (Finished(reason),) if reason else _reasons(choices_read)
    return (Passed(body, reasons, Usage.of_chat(outline.usage)),)


def _read_calls(body: bytes, choices: int) -> Sequence[ModelEvent]:
    """Read a whole answer with calls where calls are forbidden. Whoever has the events leaves the calls out."""
    answer = read_json(body)
    if choices > 1:
        raise SeparateChoices(_separate([read_completion(answer, choice) for choice in range(choices)]))
    return read_completion(answer)


def _outlined(body: bytes) -> _Outline:
    """Parse the needed fields of a body, which may have millions of choices."""
    small = open_fast(body, PASSED)
    if small is not None:
        return _outline(small)
    outline: Any = _large()(Untrusted(body, PASSED).open())
    raw_choices = outline.choices
    choices: list[_Choice] = (
        [choice for choice in msgspec.structs.astuple(raw_choices) if choice] if raw_choices else []
    )
    if len(choices) > MAX_CHOICES:
        raise AnswerTooLarge(f"{MAX_CHOICES} choices")
    usage = read_json(outline.usage)
    return _Outline(choices, usage if isinstance(usage, dict) else None, read_json(outline.error))


@functools.cache
def _large() -> Callable[[Opened], Any]:
    """Return the reader of a large body: of its choices it reads the maximal number and one more, and skips the rest. Made for
    the first one, because that takes a hundredth of the start."""
    places = [(f"at_{place}", _Choice | None, None) for place in range(MAX_CHOICES + 1)]
    choices: Any = msgspec.defstruct("_Choices", places, array_like=True)
    nothing = msgspec.Raw(b"null")
    outline = msgspec.defstruct(
        "_LargeOutline",
        [("choices", choices | None, None), ("usage", msgspec.Raw, nothing), ("error", msgspec.Raw, nothing)],
    )
    return json_reader(outline)


def _reasons(choices: Sequence[_Choice]) -> tuple[Finished, ...]:
    return tuple(Finished(choice.finish_reason) for choice in choices if choice.finish_reason)


def _tolerantly(body: bytes) -> _Outline:
    """Parse a body with fields of unexpected types. Raises for one that is cut off."""
    try:
        answer = read_json(body)
    except ValueError:
        raise errors.bad_answer("The model's provider sent an answer that is empty or cut off.") from None
    events = read_completion(answer)
    failed = next((event for event in events if isinstance(event, ProviderError)), None)
    if any(is_content(event) for event in events):
        choices = [_Choice()]
    else:
        choices = None
    usage = answer.get("usage") if isinstance(answer, dict) else None
    return _Outline(choices, usage if isinstance(usage, dict) else None, failed.body if failed else None)


def _read_stream(body: bytes, response: Response, secrets: Sequence[str], choices: int) -> Sequence[ModelEvent]:
    """Read a stream that came where one body was requested."""
    form = format_of(body, response)
    if form is None:
        raise errors.bad_answer("The model's provider sent an empty answer.")
    reader = StreamedBody() if form == "events" else WholeBody()
    if choices > 1:
        raise SeparateChoices(_choices_of_stream(body, choices))
    events = [*reader.feed(body)]
    if not reader.is_done:
        events += reader.finish()
    first = first_content_event(events)
    if isinstance(first, ProviderError):
        raise errors.reported(first.message, first.body, response.headers(), secrets=secrets)
    if first is None or not (reader.is_done or any(isinstance(event, Finished) for event in events)):
        raise errors.bad_answer("The model's provider sent an answer that is empty or cut off.", reader.fault or "")
    return events


# A stream --------------------------------------------------------------------------------------------------------------


class _StreamRequest(HttpRequest, kw_only=True):
    """The context manager of a request for a stream."""

    request: Passthrough

    def _answer(self, response: Response) -> ModelAnswer:
        return _StreamAnswer(response, self.model.endpoint.secrets, self.model.answer_bytes, self.request)


class _StreamAnswer(HttpAnswer):
    """An answer to a request for a stream; its first bytes show whether it is one."""

    def __init__(self, response: Response, secrets: Sequence[str], answer_bytes: int, request: Passthrough) -> None:
        super().__init__(response, secrets, answer_bytes, request.record_body)
        self._request = request

    def _recognise(self, start: bytes) -> Body | None:
        request = self._request
        form = format_of(start, self._response)
        if form is None:
            return None
        if form == "events":
            return PassedEvents(hide_usage=not request.include_usage, takes_calls=request.takes_calls)
        if request.n == 1:
            return WholeBody()
        return _SeparateBody(request.n)


class PassedEvents:
    """Passes whole events of a stream through, so that an error of ours never follows half an event.

    What is read of the bytes that are passed on equals what the plain reader, `StreamedBody`, reads of those that came, for
    every stream; calls and usage that the client must not see are left out.
    """

    def __init__(self, *, hide_usage: bool, takes_calls: bool) -> None:
        self._hide_usage = hide_usage
        self._takes_calls = takes_calls
        self._left_out: LeftOutCalls | None = None
        self._stream = AnswerEvents()
        self._chunks = ChunkReader()
        self._template = TextTemplate()
        self._has_content = False
        """Whether the first content has come. Events before it are held, because until then the request may be retried."""
        self._is_between = False
        """True if nothing is held, neither for the first content nor for the end of an event."""
        self.is_done = False
        self.has_ended = False
        self.fault: str | None = None

        # What was read and is not passed on yet.
        self._events: list[bytes] = []
        self._reasons: list[Finished] = []
        self._usage: dict[str, Any] | None = None

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        if self._is_between and self._template.fits(data):
            return (Passed(data),)
        if not self._is_between or data[-2:] != b"\n\n" or data.find(b"\r") >= 0:
            data = self._stream.whole(data)
            if self._has_content:
                self._is_between = self._stream.is_between_events
        if not data:
            return ()
        if not self._has_content or self._says_more(data):
            return self._look_at(data)
        if self._is_between:
            self._template.learn(data)
        return (Passed(data),)

    def _says_more(self, data: bytes) -> bool:
        """True if events may hold more than content, by searches, which cost less than parsing their JSON. With `find`: `in` makes an
        exception before it looks, for which CPython takes as long as for the search."""
        find = data.find
        return (
            find(b"[DONE]") >= 0
            or find(b'"usage":{') >= 0
            or find(b'"finish_reason":"') >= 0
            or find(b'"finish_reason": "') >= 0
            or find(b'"usage": {') >= 0
            or find(b'"error"') >= 0
            or find(b"event:") >= 0
            or (not self._takes_calls and (self._left_out is not None or has_calls(data)))
            or _is_written_oddly(data)
        )

    def finish(self) -> Sequence[ModelEvent]:
        """Take a last event without its blank line if it is whole; one that is cut off is dropped."""
        if not self._has_content:
            return ()
        last_event = self._stream.rest()
        payload = payload_of(last_event.rstrip(b"\n"))
        if payload is None:
            return ()
        try:
            read_json(payload.data)
        except ValueError:
            if payload.data.strip() != DONE:
                return ()
        return self._look_at(last_event)

    def _look_at(self, data: bytes) -> Sequence[ModelEvent]:
        """Read events one by one; return those that may be passed on."""
        are_small = open_fast(data, PASSED) is not None  # what is small as a whole is so in each part
        for event, payload in events_in(data):
            if payload is None:
                self._events.append(event + b"\n\n")
                continue
            if payload.data.strip() == DONE:
                self.is_done = True
                self._events.append(END)
                break
            if not self._has_content and (failed := self._look_for_content(payload)) is not None:
                return failed
            if payload.is_error:
                self.is_done = True
                return (self._passed(), *reported(payload.data))
            error = self._look_at_fields(event, payload.data, is_small=are_small)
            if error is not None:
                self.is_done = True
                return self._passed(), error
        if self._has_content:
            return (self._passed(),)
        return ()

    def _look_for_content(self, payload: Payload) -> Sequence[ModelEvent] | None:
        """Find out whether an event is the first with content; return what ends the answer before any."""
        if payload.is_error:
            return reported(payload.data)
        try:
            chunk = read_json(payload.data)
        except ValueError:
            if looks_like_keep_alive(payload.data):
                return None
            self.fault = "an event of the stream is not JSON"
            return ()
        events = self._chunks.read(chunk)
        if NO_CONTENT.issuperset(map(type, events)):
            return None
        first = first_content_event(events)
        if isinstance(first, ProviderError):
            return (first,)
        self._has_content = True
        return None

    def _look_at_fields(self, event: bytes, payload: bytes, *, is_small: bool) -> ProviderError | None:
        """Read what an event has beside content, and keep it to be passed on; return the error that it reports. `is_small`: it is
        part of bytes that the door let through by their length alone."""
        try:
            if is_small:
                outline = _outline(Opened(payload))
            else:
                outline = _outlined(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            outline = _UNREAD
        if outline.error:
            return ProviderError(errors.read_error(outline.error).message, outline.error)
        self._usage = outline.usage or self._usage
        reasons = _reasons(outline.choices or ())
        self._reasons += reasons
        if not self._takes_calls and (has_calls(payload) or says_calls(reasons)):
            if self._left_out is None:
                self._left_out = LeftOutCalls()
                self._template.forget()
            chunk = self._left_out.take_from(payload)
            if chunk is not None:
                self._events.append(b"data: " + chunk + b"\n\n")
            return None
        # An event with only usage is passed on only if the client requested it.
        if outline.choices or not outline.usage or not self._hide_usage:
            self._events.append(event + b"\n\n")
        return None

    def _passed(self) -> Passed:
        usage = None if self._usage is None else Usage(self._usage)
        not_run: tuple[CallNotRun, ...] = ()
        if self._left_out is not None:
            not_run = self._left_out.calls
        passed = Passed(b"".join(self._events), tuple(self._reasons), usage, not_run)
        self._events = []
        self._reasons = []
        self._usage = None
        return passed


def _is_written_oddly(data: bytes) -> bool:
    """Return whether names may be written in another way than searches look for: with further white space around their colons, such as
    pretty printers and data of several lines have it, or with escaped letters. A tab or a line break is in no string."""
    find = data.find
    return (
        find(b'" :') >= 0
        or find(b'":  ') >= 0
        or find(b'"\n') >= 0
        or find(b":\n") >= 0
        or find(b"\t") >= 0
        or (find(b"\\u00") >= 0 and _ESCAPED_LETTER(data) is not None)
    )


_ESCAPED_LETTER = re.compile(rb"\\u00[2-7]").search
_UNREAD = _Outline()


class TextTemplate:
    """Finds the reads of a stream that say nothing but text by comparing them: the fast twin of searching them.

    `fits` holds only for reads that differ from one in which the search found nothing in the inside of one string, without quotes or
    line ends in it; or it is False. All searches of a chunk together cost six times as much.
    """

    def __init__(self) -> None:
        self._made = 0
        self._fitted = 0
        self._before = b""
        self._after = b""
        self._start = sys.maxsize

    def fits(self, data: bytes) -> bool:
        """True if a read is the event of the template with another text. It begins between two events."""
        end = len(data) - len(self._after)
        if (
            end < self._start
            or not data.startswith(self._before)
            or not data.endswith(self._after)
            or data[end - 1] == _BACKSLASH  # which would escape the quote after it
            or _MORE_THAN_TEXT(data, self._start, end)
        ):
            return False
        self._fitted += 1
        return True

    def learn(self, data: bytes) -> None:
        """Make the template of a read in which a search found nothing, if it is one event with a text."""
        if self._fitted >= PAYS_AFTER:
            self._made = 0
            self._fitted = 0
        if self._made >= MOST_TEMPLATES or len(data) > SMALL:
            return
        if data.startswith(self._before) and data.endswith(self._after) and self._before:
            return  # only its text has quotes
        match = _TEXT.search(data)
        if match is None or not data.startswith(b"data: ") or data.find(b"\n") != len(data) - 2:
            return
        self._made += 1
        self._before = data[: match.start(1)]
        self._after = data[match.end(1) :]
        self._start = len(self._before)

    def forget(self) -> None:
        """Fit nothing any more, until another read is learnt."""
        self._before = b""
        self._after = b""
        self._start = sys.maxsize


MOST_TEMPLATES: Final = 3
"""Templates of one stream. Some providers vary other fields in every chunk, and making a template costs more than searching."""
PAYS_AFTER: Final = 16
"""How many reads a template has to fit to pay for its cost; then the count of templates is reset."""

_TEXT = re.compile(rb'"(?:content|reasoning_content|reasoning|arguments)"\s*:\s*"((?:[^"\\]|\\.)*)"')
_MORE_THAN_TEXT = re.compile(rb'["\r\n]').search
_BACKSLASH = ord("\\")


# Several choices in a body of another format than was requested ---------------------------------------------------------


class _SeparateBody(WholeBody):
    """Reads every choice of one body."""

    def __init__(self, choices: int) -> None:
        super().__init__()
        self._choices = choices

    def _read(self, body: Any) -> Sequence[ModelEvent]:
        raise SeparateChoices(_separate([read_completion(body, choice) for choice in range(self._choices)]))


def _choices_of_stream(body: bytes, choices: int) -> Sequence[Sequence[ModelEvent]]:
    sse = AnswerEvents()
    readers = [ChunkReader(choice) for choice in range(choices)]
    answers: list[list[ModelEvent]] = [[] for _ in readers]
    for payload in (*sse.feed(body), *sse.finish()):
        if payload.data.strip() == DONE:
            break
        try:
            chunk = read_json(payload.data)
        except ValueError:
            if looks_like_keep_alive(payload.data):
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
