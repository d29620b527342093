"""Reads the answers on litellm's lane as they were received, in the wire formats that have a reader here.

The format is found in the first part of a body, because litellm chooses among a provider's APIs. What is read is then the
same as on the lane of that format.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, Literal

import msgspec

from callgate.http.event_stream import BOM, EventStreamReader, EventTooLarge, Payload
from callgate.http.interface import TakeRead, TimedOut, TooLarge, TransportError
from callgate.models.direct.chunks import error_in
from callgate.models.direct.model import LITELLMS_PIECE, Body, HttpAnswer, StreamedBody, WholeBody, read_json
from callgate.models.litellm_lane.tap import FRAMES, Exchange, TappedBody
from callgate.models.translated import bedrock, claude, cohere, gemini
from callgate.models.translated.openai_shaped import FormatBody
from callgate.models.translated.responses_answer import ResponseEvents, ResponseObject
from callgate.models.translated.translation import Report, field_of


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

    def reader(self, question: "AskedQuestion", report: Report) -> Body:
        """Return a reader of this format. Raises `ChatError` where the names of tools in it cannot be read."""
        body = self._reader(question, report)
        is_claude = self in {WireFormat.CLAUDE_EVENTS, WireFormat.CLAUDE_WHOLE}
        if question.as_format and not is_claude:
            return FormatBody(body)
        return body

    def _reader(self, question: "AskedQuestion", report: Report) -> Body:
        as_format = question.as_format
        match self:
            case WireFormat.CHAT_EVENTS:
                return StreamedBody()
            case WireFormat.CHAT_WHOLE:
                return WholeBody()
            case WireFormat.CLAUDE_EVENTS:
                names = claude.own_names(question.tools)
                return claude.EventsReader(claude.parser_of(json_mode=as_format, names=names), False, report)
            case WireFormat.CLAUDE_WHOLE:
                names = claude.own_names(question.tools)
                whole = claude.whole_of(question.completion, json_mode=as_format, names=names)
                return claude.MessageReader(whole, report)
            case WireFormat.GEMINI_EVENTS:
                return gemini.GeminiEvents(gemini.parser_of(_NO_FIELDS), report)
            case WireFormat.GEMINI_WHOLE:
                return gemini.GeminiMessage(question.model, _NO_FIELDS, report)
            case WireFormat.COHERE_EVENTS:
                return cohere.CohereEvents(question.model, report)
            case WireFormat.COHERE_WHOLE:
                return cohere.CohereMessage(question.model, report)
            case WireFormat.BEDROCK_EVENTS:
                return bedrock.Frames(bedrock.own_names(question.tools), report)
            case WireFormat.BEDROCK_WHOLE:
                return bedrock.BedrockMessage(bedrock.own_names(question.tools), report)
            case WireFormat.RESPONSES_EVENTS:
                return ResponseEvents(question.model)
            case WireFormat.RESPONSES_WHOLE:
                return ResponseObject(question.model)


_NO_FIELDS: Final = SimpleNamespace(optional_params={})


class AskedQuestion(msgspec.Struct, frozen=True):
    """What has to be known of a request to read its answer."""

    model: str
    tools: Sequence[Any]
    """The tools as litellm was given them: it may have sent them by other names."""
    as_format: bool
    """Whether the client requested a format for the answer, which litellm may have requested as a call."""
    completion: Any = None
    """The whole answer as litellm mapped it, where it did."""


@dataclass(frozen=True, slots=True)
class KnownBody:
    """The body that is the answer, and its format."""

    body: TappedBody
    format: WireFormat


async def find(exchange: Exchange) -> KnownBody | None:
    """Return the answer in an exchange; None where no body has a known format, or where several do."""
    bodies: list[KnownBody] = []
    for body in exchange.responses:
        if body.status == 200 and not body.is_encoded() and (form := await _form_of(body)) is not None:
            bodies.append(KnownBody(body, form))
    if len(bodies) == 1 and exchange.is_complete:
        return bodies[0]
    return None


async def _form_of(body: TappedBody) -> WireFormat | None:
    """Return the format of a body, of which as much is read as that takes."""
    search = FormSearch(body.headers.get("content-type", ""))
    pieces: list[bytes] = []
    form: WireFormat | Literal["undecided"] | None = "undecided"
    try:
        while form == "undecided" and (piece := await body.read()) is not None:
            pieces.append(piece)
            form = search.feed(piece)
    except TransportError:
        pass  # what came may say it
    finally:
        body.unread(b"".join(pieces))
    if form == "undecided":
        return search.finish()
    return form


class FormSearch:
    """Finds the format of a body by its beginning, of which each piece is looked at once."""

    def __init__(self, content_type: str) -> None:
        self._is_framed = FRAMES in content_type
        self._start = b""
        """The first bytes, until one of them is no white space."""
        self._reader: EventStreamReader | None = None
        self._parts: list[bytes] = []
        """The body, where it is JSON."""
        self._first_line: bytes | None = None
        """The first line of JSON, until more follows it."""
        self._has_lines = False

    def feed(self, piece: bytes) -> WireFormat | Literal["undecided"] | None:
        """Return the format; None where it is none of these."""
        if self._reader is None and not self._parts:
            text = (self._start + piece).removeprefix(BOM).lstrip()
            if not text or BOM.startswith(text):
                self._start = text
                return "undecided"
            if self._is_framed:
                if b"messageStart" in text[:FIRST_FRAME]:
                    return WireFormat.BEDROCK_EVENTS
                return None
            piece = text
            if text[:1] not in (b"{", b"["):
                self._reader = EventStreamReader()
        if self._reader is None:
            return self._feed_json(piece)
        return _form_of_events(partial(self._reader.feed, piece))

    def finish(self) -> WireFormat | None:
        """Return the format of a body that ended while it was undecided."""
        if self._parts:
            return _whole_form(b"".join(self._parts))
        if self._reader is None:
            return None
        form = _form_of_events(self._reader.finish)
        if form == "undecided":
            return None
        return form

    def _feed_json(self, piece: bytes) -> Literal["undecided"] | None:
        """JSON is one text, unless a whole one has come and more follows it."""
        self._parts.append(piece)
        if self._has_lines:
            return "undecided"
        following = piece
        if self._first_line is None:
            line, newline, following = piece.partition(b"\n")
            if not newline:
                return "undecided"
            self._first_line = b"".join((*self._parts[:-1], line))
        if not following.strip():
            return "undecided"
        try:
            read_json(self._first_line)
        except ValueError:
            self._has_lines = True
            return "undecided"
        return None


def _form_of_events(read: Callable[[], Sequence[Payload]]) -> WireFormat | Literal["undecided"] | None:
    try:
        payloads = read()
    except EventTooLarge:
        return None
    for payload in payloads:
        try:
            event = read_json(payload.data)
        except ValueError:
            continue  # a keep-alive, which the reader judges
        if isinstance(event, dict) and (form := _event_form(event)) is not None:
            return form
        if isinstance(event, dict) and event.get("type") != "ping":
            return None
    return "undecided"


FIRST_FRAME: Final = 512
"""Bytes in which the first frame says which event it is."""


def _whole_form(text: bytes) -> WireFormat | None:
    """Return the format of a body that is one JSON text."""
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
    if event.get("error") and error_in(event) is not None:
        return WireFormat.CHAT_EVENTS
    return None


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
    piece = LITELLMS_PIECE

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
        self._headers = body.headers
        self._body = body
        self._times = times

    def headers(self) -> Mapping[str, str]:
        return self._headers

    def chunks(self) -> AsyncIterator[bytes]:
        return _Reads(self._body, self._times)

    def hand_to(self, take: TakeRead) -> None:
        """Nothing: litellm reads."""

    async def read(self, limit: int) -> bytes:
        pieces = [piece async for piece in self.chunks()]
        if sum(map(len, pieces)) > limit:
            raise TooLarge(limit)
        return b"".join(pieces)

    def settle(self) -> None:
        """Nothing: the connection is litellm's."""

    def leave(self) -> None:
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
        if self._has_begun:
            seconds = self._times.until_idle()
        else:
            seconds = self._times.until_first()
        try:
            async with asyncio.timeout(seconds):
                piece = await self._body.read()
        except TimeoutError:
            raise TimedOut("idle" if self._has_begun else "first_byte", seconds) from None
        if piece is None:
            raise StopAsyncIteration
        self._has_begun = True
        return piece
