"""Reads chunks that differ from an earlier one in a single string, without parsing their JSON again: the fast twin of `chunks`.

`DeltaTemplate` equals `ChunkReader` for every chunk in the middle of a stream, or returns None. Without it a chunk that is read
costs 28 % more instructions.

Most chunks of a stream have the same bytes around one string: a piece of text, of thinking, or of a call's arguments. Where
the bytes around it are those of the template, and between them is the inside of one JSON string, only that string can
differ. Every other chunk is parsed.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from callgate.conversation.events import CallDelta, ModelEvent, ReasoningDelta, TextDelta
from callgate.untrusted.doors import SMALL
from callgate.untrusted.readers import read_string_fast, read_strings_fast

EARLIEST = 4
"""The first chunk that a template may be made of. Many answers are shorter than what pays for one."""
MOST_TEMPLATES = 3
"""Templates of one stream. Some providers vary other fields in every chunk, and making a template costs more than parsing."""
PAYS_AFTER = 16
"""How many strings a template has to read to pay for its cost; then the count of templates is reset."""
EVENT_START = b"data: "
EVENT_END = b"\n\n"
MARK = "\u00a7 the place of a string \u00a7"

Make: TypeAlias = Callable[[str], ModelEvent]


class DeltaTemplate:
    def __init__(self) -> None:
        self._make: Make | None = None
        self._opening = b""
        """What an event begins with as it is received, up to its string."""
        self._closing = b""
        """What it ends with behind its string."""
        self._start = self._end = 0
        """The place of the string in an event as received."""
        self._read = 0
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
        self._read += 1
        if self._given >= PAYS_AFTER:
            self._made = self._given = 0
        if self._made >= MOST_TEMPLATES or self._read < EARLIEST:
            return
        if (kind := _kind(events[0])) is None:
            return
        self._made += 1
        name, make = kind
        match = re.search(rb'"%b"\s*:\s*"((?:[^"\\]|\\.)*)"' % name, payload)
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
