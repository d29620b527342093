"""Reads chunks of the usual form, and those that differ from an earlier one in a single string: the fast twin of `chunks`.

`usual_chunk_fast` decodes a chunk into a form that msgspec checks meanwhile: a third of the instructions of decoding all of it and
looking at each field afterwards.

`DeltaTemplate` equals `ChunkReader` for every chunk in the middle of a stream, or returns None. Without it a chunk that is read
costs 28 % more instructions. Most chunks of a stream have the same bytes around one string: a piece of text, of thinking, or of a
call's arguments. Where the bytes around it are those of the template, and between them is the inside of one JSON string, only that
string can differ. Every other chunk is parsed.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from callgate.conversation.call_assembly import MAX_CALLS
from callgate.conversation.events import CallDelta, ModelEvent, ReasoningDelta, TextDelta
from callgate.untrusted.doors import SMALL, Opened
from callgate.untrusted.readers import Text, json_reader, read_string_fast, read_strings_fast

EARLIEST = 5
"""The first chunk that a template may be made of. Many answers are shorter than what pays for one."""
MOST_TEMPLATES = 3
"""Templates of one stream. Some providers vary other fields in every chunk, and making a template costs more than parsing."""
PAYS_AFTER = 16
"""How many strings a template has to read to pay for its cost; then the count of templates is reset."""
EVENT_START = b"data: "
EVENT_END = b"\n\n"
MARK = "\u00a7 the place of a string \u00a7"

Make: TypeAlias = Callable[[str], ModelEvent]


# Chunks of the usual form ---------------------------------------------------------------------------------------------

_Unused: TypeAlias = UnsetType | None
"""A field that is often there, without a value."""


class UsualFunction(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str | UnsetType | None = UNSET
    arguments: str | UnsetType | None = UNSET


class UsualCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A fragment of a call, without signatures, and of no custom tool."""

    index: Annotated[int, msgspec.Meta(ge=0, le=MAX_CALLS)]
    function: UsualFunction
    id: str | UnsetType | None = UNSET
    type: Any = UNSET


class UsualDelta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A piece of text, a fragment of one call, or nothing."""

    content: str | UnsetType | None = UNSET
    tool_calls: Annotated[list[UsualCall], msgspec.Meta(max_length=1)] | UnsetType | None = UNSET
    role: Any = UNSET
    refusal: _Unused = UNSET
    function_call: _Unused = UNSET
    reasoning: _Unused = UNSET
    reasoning_content: _Unused = UNSET


class UsualChoice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    index: Literal[0]
    delta: UsualDelta
    finish_reason: str | UnsetType | None = UNSET
    logprobs: _Unused = UNSET


class UsualChunk(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A chunk with one choice or none, and without a field that may report an error."""

    object: Literal["chat.completion.chunk"]
    choices: Annotated[list[UsualChoice], msgspec.Meta(max_length=1)]
    id: str
    model: str
    created: Any
    usage: dict[str, Any] | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType | None = UNSET
    service_tier: str | UnsetType | None = UNSET
    provider: Any = UNSET
    obfuscation: Any = UNSET


_usual_chunk: Final[Callable[[Text], UsualChunk]] = json_reader(UsualChunk)


def usual_chunk_fast(text: Opened, may_have_duplicates: Callable[[bytes], bool]) -> UsualChunk | None:
    """Return a chunk of the usual form in which no object has a key twice, None for any other. `may_have_duplicates` looks at a text of
    which that is not sure."""
    try:
        chunk = _usual_chunk(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not has_surely_once(chunk, text) and may_have_duplicates(text):
        return None
    return chunk


def has_surely_once(chunk: UsualChunk, text: bytes) -> bool:
    """True if no object in the text of a chunk has a key twice: there are no more colons in it than the keys that were read, and
    those in arguments. Of many other texts that have none twice it is False as well."""
    keys = 10 - (chunk.usage, chunk.system_fingerprint, chunk.service_tier, chunk.provider, chunk.obfuscation).count(
        UNSET
    )
    if chunk.usage:
        keys += len(chunk.usage)
    inside = 0
    for choice in chunk.choices:
        delta = choice.delta
        calls = delta.tool_calls
        keys += 11 - (
            choice.finish_reason,
            choice.logprobs,
            delta.content,
            calls,
            delta.role,
            delta.refusal,
            delta.function_call,
            delta.reasoning,
            delta.reasoning_content,
        ).count(UNSET)
        if calls:
            call = calls[0]
            arguments = call.function.arguments
            keys += 6 - (call.id, call.type, call.function.name, arguments).count(UNSET)
            if arguments:
                inside = arguments.count(":")
    if text.count(b":") != keys + inside:
        return False
    # A colon that is written as an escape is none in the text.
    return not inside or text.find(b"\\u003") < 0


# Chunks that differ in a string -----------------------------------------------------------------------------------------


class DeltaTemplate:
    def __init__(self) -> None:
        self._make: Make | None = None
        self._opening = b""
        """What an event begins with as it is received, up to its string."""
        self._closing = b""
        """What it ends with behind its string."""
        self._start = self._end = 0
        """The place of the string in an event as received."""
        self._made = 0
        self._given = 0

    def read_in(self, data: bytes) -> Sequence[ModelEvent] | None:
        """Return the events of a read, if all of it fits the template; `data` begins at the start of an event."""
        make = self._make
        if make is None or not data.startswith(self._opening) or not data.endswith(self._closing):
            return None
        inside = data[self._start : self._end]
        # The reader decides whether an empty string is an event.
        if inside.find(b"\n") < 0:  # no string of JSON has one
            text = read_string_fast(inside)
            if text is None:
                return None
            self._given += 1
            return [make(text)]
        events = read_strings_fast(inside, self._closing + self._opening, make)
        if events is not None:
            self._given += len(events)
        return events

    def payload_in(self, payload: bytes) -> Sequence[ModelEvent] | None:
        """Return the events of one payload, if it fits the template."""
        make = self._make
        if make is None:
            return None
        before = self._opening.removeprefix(EVENT_START)
        after = self._closing.removesuffix(EVENT_END)
        if not payload.startswith(before) or not payload.endswith(after):
            return None
        text = read_string_fast(payload[len(before) : -len(after)])
        if text is None:
            return None
        self._given += 1
        return [make(text)]

    def make_from(
        self, payload: bytes, events: Sequence[ModelEvent], read: Callable[[bytes], Sequence[ModelEvent]]
    ) -> None:
        """Make the template of a parsed chunk that has one string and nothing else. `read` parses a chunk."""
        if len(events) != 1 or type(events[0]) not in _TEMPLATED or payload.find(b"\n") >= 0 or len(payload) > SMALL:
            return
        if self._given >= PAYS_AFTER:
            self._made = self._given = 0
        if self._made >= MOST_TEMPLATES:
            return
        if (kind := _kind(events[0])) is None:
            return
        self._made += 1
        name, make = kind
        match = _string_of(name).search(payload)
        if match is None:
            return
        before = payload[: match.start(1)]
        after = payload[match.end(1) :]
        # Parse the chunk with another string, to make sure that this is the one that became the event.
        if list(read(before + MARK.encode() + after)) == [make(MARK)]:
            self._make = make
            self._opening = EVENT_START + before
            self._closing = after + EVENT_END
            self._start = len(self._opening)
            self._end = -len(self._closing)


_TEMPLATED = frozenset({TextDelta, ReasoningDelta, CallDelta})


@functools.lru_cache(maxsize=8)
def _string_of(name: bytes) -> re.Pattern[bytes]:
    """Return a pattern that finds the inside of the string in a field."""
    return re.compile(rb'"%b"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)"' % name)


def _kind(event: ModelEvent) -> tuple[bytes, Make] | None:
    """Return the name of the field that became this event, and a function that makes the event from another string."""
    match event:
        case TextDelta():
            return b"content", TextDelta
        case ReasoningDelta(source=source):
            return source.encode(), lambda text: ReasoningDelta(text, source)
        case CallDelta(index, id, name, str(arguments), extras, legacy, custom) if arguments:
            return b"arguments", lambda text: CallDelta(index, id, name, text, extras, legacy, custom)
        case _:
            return None
