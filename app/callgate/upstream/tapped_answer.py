"""Reads the answers on litellm's lane as they were received, in the wire formats that have a reader here.

The format is found in the first part of a body, because litellm chooses among a provider's APIs. What is read is then the
same as on the lane of that format.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any, Final, Literal

from callgate.conversation.errors import AnswerTooLarge
from callgate.http.event_stream import BOM, EventStreamReader, EventTooLarge
from callgate.http.interface import TimedOut, TooLarge, TransportError
from callgate.upstream import bedrock, claude, cohere, gemini
from callgate.upstream.chunks import error_in
from callgate.upstream.direct_model import Body, HttpAnswer, StreamedBody, WholeBody, read_json
from callgate.upstream.openai_shaped import FormatBody
from callgate.upstream.responses_answer import ResponseEvents, ResponseObject
from callgate.upstream.tap import Exchange, TappedBody
from callgate.upstream.translation import Report, field_of

FRAMES: Final = "application/vnd.amazon.eventstream"


class WireFormat(Enum):
    """A wire format with a reader: the API, and whether the body is a stream of events."""

    CHAT_EVENTS = "chat events"
    CHAT_WHOLE = "chat whole"
    CLAUDE_EVENTS = "claude events"
    CLAUDE_WHOLE = "claude whole"
    GEMINI_EVENTS = "gemini events"
    GEMINI_WHOLE = "gemini whole"
    COHERE_EVENTS = "cohere events"
    COHERE_WHOLE = "cohere whole"
    BEDROCK_EVENTS = "bedrock events"
    BEDROCK_WHOLE = "bedrock whole"
    RESPONSES_EVENTS = "responses events"
    RESPONSES_WHOLE = "responses whole"

    def reader(self, litellm: Any, model: str, report: Report, as_format: bool) -> Body:
        """Return a reader of this format. `as_format`: whether the client requested a format for the answer, which litellm may
        have requested as a call."""
        body = self._reader(litellm, model, report, as_format)
        is_claude = self in {WireFormat.CLAUDE_EVENTS, WireFormat.CLAUDE_WHOLE}
        return FormatBody(body) if as_format and not is_claude else body

    def _reader(self, litellm: Any, model: str, report: Report, as_format: bool) -> Body:
        match self:
            case WireFormat.CHAT_EVENTS:
                return StreamedBody()
            case WireFormat.CHAT_WHOLE:
                return WholeBody()
            case WireFormat.CLAUDE_EVENTS:
                return claude.EventsReader(claude.parser_of(json_mode=as_format), False, report)
            case WireFormat.CLAUDE_WHOLE:
                return claude.MessageReader(claude.whole_of(litellm, json_mode=as_format), report)
            case WireFormat.GEMINI_EVENTS:
                return gemini.GeminiEvents(gemini.parser_of(_NO_FIELDS), report)
            case WireFormat.GEMINI_WHOLE:
                return gemini.GeminiMessage(litellm, model, _NO_FIELDS, report)
            case WireFormat.COHERE_EVENTS:
                return cohere.CohereEvents(model, report)
            case WireFormat.COHERE_WHOLE:
                return cohere.CohereMessage(model, report)
            case WireFormat.BEDROCK_EVENTS:
                return bedrock.Frames({}, report)
            case WireFormat.BEDROCK_WHOLE:
                return bedrock.BedrockMessage({}, report)
            case WireFormat.RESPONSES_EVENTS:
                return ResponseEvents(model)
            case WireFormat.RESPONSES_WHOLE:
                return ResponseObject(model)


_NO_FIELDS: Final = SimpleNamespace(optional_params={})


@dataclass(frozen=True, slots=True)
class KnownBody:
    """The body that is the answer, and its format."""

    body: TappedBody
    format: WireFormat


async def find(exchange: Exchange) -> KnownBody | None:
    """Return the answer in an exchange; None where no body has a known format, or where several do."""
    found: list[KnownBody] = []
    for body in exchange.responses:
        if body.status == 200 and not body.is_encoded and (form := await _form_of(body)) is not None:
            found.append(KnownBody(body, form))
    return found[0] if len(found) == 1 and exchange.is_complete else None


async def _form_of(body: TappedBody) -> WireFormat | None:
    """Return the format of a body, of which as much is read as that takes."""
    start = b""
    form: WireFormat | Literal["undecided"] | None = "undecided"
    try:
        while form == "undecided":
            piece = await body.read()
            start += piece or b""
            form = form_in(start, body.headers.get("content-type", ""), at_end=piece is None)
    except TransportError:
        form = form_in(start, body.headers.get("content-type", ""), at_end=True)
    finally:
        body.unread(start)
    return None if form == "undecided" else form


def form_in(start: bytes, content_type: str, *, at_end: bool) -> WireFormat | Literal["undecided"] | None:
    """Return the format of a body by its beginning; None where it has none of these."""
    text = start.removeprefix(BOM).lstrip()
    if not text:
        return None if at_end else "undecided"
    if FRAMES in content_type:
        return WireFormat.BEDROCK_EVENTS if b"messageStart" in text[:FIRST_FRAME] else None
    try:
        if text[:1] in (b"{", b"["):
            return _whole_form(text, at_end=at_end)
        reader = EventStreamReader()
        payloads = [*reader.feed(text), *(reader.finish() if at_end else ())]
    except (EventTooLarge, AnswerTooLarge):
        return None
    for payload in payloads:
        try:
            event = read_json(payload)
        except ValueError:
            continue  # a keep-alive, which the reader judges
        if isinstance(event, dict) and (form := _event_form(event)) is not None:
            return form
        if isinstance(event, dict) and event.get("type") != "ping":
            return None
    return None if at_end else "undecided"


FIRST_FRAME: Final = 512
"""Bytes in which the first frame says which event it is."""


def _whole_form(text: bytes, *, at_end: bool) -> WireFormat | Literal["undecided"] | None:
    """Return the format of a body that is JSON: one text, unless a whole one has come and more follows it."""
    if not at_end:
        first, newline, rest = text.partition(b"\n")
        if not (newline and rest.strip()):
            return "undecided"
        try:
            read_json(first)
        except ValueError:
            return "undecided"
        return None
    try:
        body = read_json(text)
    except ValueError:
        return WireFormat.CHAT_WHOLE if text.startswith(b"{") and b'"choices"' in text else None
    if not isinstance(body, dict):
        return None
    if isinstance(choices := body.get("choices"), list) and not _is_text(choices):
        return WireFormat.CHAT_WHOLE
    if body.get("type") == "message" and isinstance(body.get("content"), list):
        return WireFormat.CLAUDE_WHOLE
    if isinstance(body.get("candidates"), list) or isinstance(body.get("promptFeedback"), dict):
        return WireFormat.GEMINI_WHOLE
    if isinstance(field_of(body, "output", "message", "content"), list) and "stopReason" in body:
        return WireFormat.BEDROCK_WHOLE
    if body.get("object") == "response" and isinstance(body.get("output"), list):
        return WireFormat.RESPONSES_WHOLE
    if isinstance(body.get("message"), dict) and "finish_reason" in body and "done" not in body:
        return WireFormat.COHERE_WHOLE
    return WireFormat.CHAT_WHOLE if body.get("error") and error_in(body) is not None else None


def _event_form(event: dict[str, Any]) -> WireFormat | None:
    kind = str(event.get("type"))
    if isinstance(choices := event.get("choices"), list) and not _is_text(choices):
        return WireFormat.CHAT_EVENTS
    if kind == "message_start":
        return WireFormat.CLAUDE_EVENTS
    if kind == "message-start":
        return WireFormat.COHERE_EVENTS
    if kind.startswith("response."):
        return WireFormat.RESPONSES_EVENTS
    if isinstance(event.get("candidates"), list) or isinstance(event.get("promptFeedback"), dict):
        return WireFormat.GEMINI_EVENTS
    return WireFormat.CHAT_EVENTS if event.get("error") and error_in(event) is not None else None


def _is_text(choices: Sequence[Any]) -> bool:
    """True for choices of the API for text completions, which has no messages."""
    return any(isinstance(choice, dict) and isinstance(choice.get("text"), str) for choice in choices)


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """Functions that return how many seconds the next read may take."""

    until_first: Callable[[], float]
    until_idle: Callable[[], float]


class TappedAnswer(HttpAnswer):
    """An answer in the body that litellm received, and does not read on."""

    lane = "litellm"

    def __init__(
        self, body: TappedBody, reader: Body, secrets: Sequence[str], answer_bytes: int, times: ReadTimes
    ) -> None:
        body.leave_to_us()
        self.body = body
        super().__init__(_TappedResponse(body, times), secrets, answer_bytes)
        self._reader = reader

    def _recognise(self, start: bytes) -> Body | None:
        return self._reader


class _TappedResponse:
    """The body for a reader of responses."""

    def __init__(self, body: TappedBody, times: ReadTimes) -> None:
        self.status = body.status
        self.headers = body.headers
        self._body = body
        self._times = times

    def chunks(self) -> AsyncIterator[bytes]:
        return _Reads(self._body, self._times)

    async def read(self, limit: int) -> bytes:
        pieces = [piece async for piece in self.chunks()]
        if sum(map(len, pieces)) > limit:
            raise TooLarge(limit)
        return b"".join(pieces)

    def settle(self) -> None:
        """Nothing: the connection is litellm's."""


class _Reads:
    """An iterator, because an unfinished async generator would stay open."""

    def __init__(self, body: TappedBody, times: ReadTimes) -> None:
        self._body = body
        self._times = times
        self._has_begun = False

    def __aiter__(self) -> "_Reads":
        return self

    async def __anext__(self) -> bytes:
        seconds = self._times.until_idle() if self._has_begun else self._times.until_first()
        try:
            async with asyncio.timeout(seconds):
                piece = await self._body.read()
        except TimeoutError:
            raise TimedOut("idle" if self._has_begun else "first_byte", seconds) from None
        if piece is None:
            raise StopAsyncIteration
        self._has_begun = True
        return piece
