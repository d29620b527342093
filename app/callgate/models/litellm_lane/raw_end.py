"""Finds how a provider ended an answer, in a body whose wire format has no reader here.

Only the end is read: the finish reasons, whether the body came whole, and whether an error is in it. A part that is not
understood could say anything, so that nothing is seen then.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from callgate.conversation.errors import AnswerTooLarge
from callgate.conversation.finish_words import OPEN
from callgate.http.event_stream import BOM, EventStreamReader, EventTooLarge, looks_like_keep_alive
from callgate.http.interface import TransportError
from callgate.models.direct.chunks import error_in, unfinished
from callgate.models.direct.model import DONE, has_duplicate_names, read_json
from callgate.models.litellm_lane.tap import BodyState, Exchange, TappedBody
from callgate.untrusted.doors import SMALL

REASONS: Final = ("finish_reason", "finishReason", "stop_reason", "stopReason", "done_reason")
"""The fields in which providers say why an answer ended."""
PARTS: Final = ("chatResponse", "response", "delta", "message", "result")
"""Objects in which such a field stands, besides the top of a body or event."""
LISTS: Final = ("choices", "candidates", "results", "outputs", "generations")
"""Lists in whose entries it stands."""
DEPTH: Final = 4
"""How many of these stand in one another at most."""


@dataclass(frozen=True, slots=True)
class RawEnd:
    """How an answer ended."""

    reasons: tuple[str, ...]
    why_not_seen: str = ""
    """Why no call of the answer may run; empty where the provider was seen to end it well."""
    is_in_order: bool = False
    """The whole body was received."""


async def end_in(exchange: Exchange) -> RawEnd:
    """Return the end of the answer in an exchange, of which the rest is read first."""
    if not exchange.is_complete:
        return RawEnd((), "more responses came than are looked at")
    ends = [await _end_of(body) for body in exchange.responses if 200 <= body.status < 300]
    answers = [end for end in ends if end.reasons]
    if len(answers) == 1:
        return answers[0]
    if answers:
        return RawEnd((), "several answers came")
    if len(ends) == 1:
        return ends[0]
    return RawEnd((), "no response says how the answer ended" if ends else "its HTTP cannot be seen")


async def _end_of(body: TappedBody) -> RawEnd:
    pieces: list[bytes] = []
    try:
        while (piece := await body.read()) is not None:
            pieces.append(piece)
    except TransportError:
        pass  # the state of the body says so; an end mark may have come before
    if body.is_encoded():
        return RawEnd((), "the body is compressed")
    data = b"".join(pieces)
    try:
        if len(data) <= SMALL:
            return judge(data, is_whole=body.state is BodyState.ENDED)
        return await asyncio.to_thread(judge, data, is_whole=body.state is BodyState.ENDED)
    except (EventTooLarge, AnswerTooLarge):
        return RawEnd((), "the body is too large")


def judge(data: bytes, *, is_whole: bool) -> RawEnd:
    """Return the end of an answer by its body."""
    data = data.removeprefix(BOM).strip()
    parts, has_end_mark = _parts_of(data)
    if parts is None:
        return RawEnd((), "the body has an unknown form", is_in_order=is_whole)
    written = [reason for part in parts for reason in _reasons_in(part)]
    if isinstance(parts[-1], dict):
        written += [event.reason for event in unfinished(parts[-1])]
    reasons = tuple(dict.fromkeys(written))
    is_in_order = is_whole or has_end_mark
    if any(isinstance(part, dict) and error_in(part) is not None for part in parts):
        why = "an error is in the body"
    elif not is_in_order:
        why = "the body broke off"
    elif not reasons:
        why = "the body does not say why it ended"
    elif any(meaning.is_known and not meaning.is_orderly for meaning in map(OPEN.judge, reasons)):
        # Of a cut answer, arguments that litellm wrote anew would look whole. An unknown reason lets no call run by itself.
        why = "it did not end in order"
    else:
        why = ""
    return RawEnd(reasons, why, is_in_order)


def _parts_of(data: bytes) -> tuple[Sequence[Any] | None, bool]:
    """Return the JSON values of a body, None where it has another form, and whether an end mark came."""
    if data[:1] in (b"{", b"["):
        return _values_in([data]) or _values_in(data.splitlines()), False
    reader = EventStreamReader()
    payloads = [*reader.feed(data + b"\n\n"), *reader.finish()]
    texts: list[bytes] = []
    for payload in payloads:
        if payload.is_error:
            return None, False
        if payload.data.strip() == DONE:
            return _values_in(texts), True
        if not looks_like_keep_alive(payload.data):
            texts.append(payload.data)
    return _values_in(texts), False


def _values_in(texts: Sequence[bytes]) -> list[Any] | None:
    """Return the values of some JSON texts; None where one is none, or names a field twice."""
    try:
        values = [read_json(text) for text in texts if text.strip()]
    except ValueError:
        return None
    if not values or any(map(has_duplicate_names, filter(bytes.strip, texts))):
        return None
    return values


def _reasons_in(value: Any, depth: int = DEPTH) -> Iterator[str]:
    """Yield the reasons at the places where providers write them. Never out of arguments or text, which a model writes."""
    if isinstance(value, list):
        for entry in value:
            yield from _reasons_in(entry, depth)
    if not isinstance(value, dict) or not depth:
        return
    for name in REASONS:
        if isinstance(reason := value.get(name), str) and reason:
            yield reason
    for name in PARTS:
        if isinstance(part := value.get(name), dict):
            yield from _reasons_in(part, depth - 1)
    for name in LISTS:
        if isinstance(entries := value.get(name), list):
            for entry in entries:
                yield from _reasons_in(entry if isinstance(entry, dict) else None, depth - 1)
