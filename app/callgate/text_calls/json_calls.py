"""Reads calls whose body is JSON between marks: `<tool_call>{"name": …, "arguments": …}</tool_call>` and the like.

The body is a call object or a list of them (`CallObjects`), or, with the name in a header, the arguments
(`arguments_written`). The marks are defined in `formats`. `bare_json` reads JSON without marks.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from callgate.calls.states import Flaw
from callgate.conversation.events import CallWritten
from callgate.text_calls.event_sink import EventSink
from callgate.text_calls.json_scan import JsonEntry, JsonScan, Member, State
from callgate.text_calls.text_cursor import Steps, TextCursor, finder

ARGUMENT_KEYS: Final = ("arguments", "parameters")

FENCE: Final = "```"

_INFO = re.compile(r"[A-Za-z0-9_+-]*")
_INFO_LIMIT = 32


@dataclass(frozen=True, slots=True)
class Ends:
    """The rule for the end of a body."""

    marks: tuple[str, ...] = ()
    """Marks that belong to the body and are read with it."""
    others: tuple[str, ...] = ()
    """Marks of other things, before which the body ends."""
    loose: bool = False
    """Text may follow a closed body, and is prose, except for a stray closing bracket."""
    fence_is_layout: bool = False
    """A code fence around the JSON belongs to the format; elsewhere removing it is a repair."""
    rows: bool = False
    """Another value may follow the first, before the end."""


@dataclass(frozen=True, slots=True)
class JsonBody:
    """The JSON text of a body, and its flaw as a whole."""

    text: str
    scan: JsonScan
    flaw: Flaw | None = None
    mark: str | None = None
    """The mark that ended it, read with it or not."""
    repaired: bool = False
    after: str = ""
    """Blanks after a body without an end mark, which are prose."""
    is_followed: bool = False
    """Another value comes before the end."""
    bracket_behind: bool = False
    """A stray closing bracket is where the body broke."""

    @property
    def is_blank(self) -> bool:
        """True if there are only blanks before the end mark."""
        return not self.text and self.mark is not None and self.flaw is Flaw.TRUNCATED


def read_body(cursor: TextCursor, ends: Ends, watch: tuple[str, ...] = ()) -> Steps[JsonBody]:
    """Read one JSON value up to and including its end mark. Marks inside JSON strings are data."""
    yield from cursor.space()
    fenced = (yield from cursor.one_of((FENCE,))) is not None
    if fenced:
        yield from cursor.run(_INFO, _INFO_LIMIT)
        yield from cursor.space()
    scan = JsonScan(watch)
    text = yield from read_value(cursor, scan)
    repaired = fenced and not ends.fence_is_layout
    unread_flaw = Flaw.TRUNCATED if scan.is_beginning() else Flaw.INVALID_JSON
    if scan.state is State.OPEN:
        return JsonBody(text, scan, unread_flaw, repaired=repaired)
    after: list[str] = []
    yield from cursor.space(after.append)
    closed_fence = fenced and (yield from cursor.one_of((FENCE,))) is not None
    if closed_fence:
        after.clear()
        yield from cursor.space(after.append)
    at_end, mark = yield from _end(cursor, ends, fenced and not closed_fence)
    if scan.state is State.BROKEN:
        bracket_behind = (yield from cursor.peek()) == "}"
        if not at_end:
            mark = yield from _skip(cursor, ends)
        flaw = unread_flaw if at_end else Flaw.INVALID_JSON
        return JsonBody(text, scan, flaw, mark, repaired, bracket_behind=bracket_behind)
    is_fence_open = fenced and not closed_fence and not cursor.dry
    if at_end and not is_fence_open:
        return JsonBody(text, scan, None, mark, repaired)
    if ends.rows and not is_fence_open and (yield from cursor.peek()) in ("[", "{"):
        return JsonBody(text, scan, None, None, repaired, is_followed=True)
    if ends.loose and not is_fence_open and (yield from cursor.peek()) not in ("]", "}"):
        return JsonBody(text, scan, None, None, repaired, "".join(after))
    if not at_end:
        mark = yield from _skip(cursor, ends)
    return JsonBody(text, scan, Flaw.INVALID_JSON, mark, repaired)


def read_value(cursor: TextCursor, scan: JsonScan) -> Steps[str]:
    """Read the text of one JSON value, up to its end or error; `scan` has the state."""
    pieces: list[str] = []
    while True:
        end = scan.feed(cursor.text, cursor.at)
        pieces.append(cursor.text[cursor.at : end])
        cursor.at = end
        if scan.state is not State.OPEN:
            break
        if not (yield from cursor.more()):
            scan.finish()
            break
    return "".join(pieces)


@dataclass(frozen=True, slots=True)
class CallObjects:
    """`{"name": …, "arguments": …}`, one or a list of them, under a format's own keys."""

    name_key: str = "name"
    id_key: str | None = None
    not_calls: frozenset[str] = frozenset()
    """Names that mean "no tool" in this format."""
    argument_keys: tuple[str, ...] = ARGUMENT_KEYS
    keyed: bool = False
    """A call may also be `{NAME: {…}}`."""
    in_lists: bool = True
    """Calls may stand in a list."""

    @property
    def watch(self) -> tuple[str, ...]:
        if self.id_key:
            return (self.name_key, self.id_key)
        return (self.name_key,)

    def read(self, out: EventSink, ends: Ends) -> Steps[None]:
        """Read a body whose opening mark was just read, and emit its calls."""
        while True:
            body = yield from read_body(out.cursor, ends, self.watch)
            for call in self.written(body):
                if call.name not in self.not_calls or call.name in out.tools:
                    out.add_call(call)
            if not body.is_followed:
                out.add_text(body.after)
                return

    def written(self, body: JsonBody) -> Iterator[CallWritten]:
        """Yield the calls of a body. In a list only the last one may be cut off or broken."""
        scan = body.scan
        if scan.kind == "[" and not self.in_lists:
            yield cut_off(flaw=body.flaw or Flaw.INVALID_JSON)
            return
        spoilt = body.flaw if scan.state is State.CLOSED else None
        last_is_whole = bool(scan.entries) and scan.entries[-1].end >= 0
        if last_is_whole and body.bracket_behind and not body.text[scan.entries[-1].end :].strip():
            last_is_whole = False
        for at, entry in enumerate(scan.entries, 1):
            is_whole = entry.end >= 0 and (last_is_whole or at < len(scan.entries))
            yield self.one_written(entry, body.text, spoilt if is_whole else body.flaw, repaired=body.repaired)
        if scan.state is State.CLOSED or (last_is_whole and scan.state is State.OPEN):
            return
        if not scan.entries or (last_is_whole and body.flaw is Flaw.INVALID_JSON):
            yield CallWritten(None, flaw=body.flaw, from_text=True)

    def one_written(self, entry: JsonEntry, text: str, flaw: Flaw | None, *, repaired: bool = False) -> CallWritten:
        """Make the call of one object in a text, which may be incomplete."""
        name = entry.member(self.name_key)
        id_member = entry.member(self.id_key) if self.id_key else None
        members = [m for key in self.argument_keys if (m := entry.member(key)) is not None]
        if name is not None and name.text and name.text.strip():
            whole_name = name.text
        else:
            whole_name = None
        if self.keyed and name is None and not members and len(entry.members) == 1:
            whole_name = entry.members[0].key.strip() or None
            members = entry.members
        arguments = _slice(members[0], text) if members else None
        if flaw is None and (entry.flawed or entry.repeats_a_key() or len({_slice(m, text) for m in members}) > 1):
            flaw = Flaw.INVALID_JSON
        return CallWritten(
            whole_name,
            arguments,
            id=(id_member.text or None) if id_member is not None else None,
            flaw=flaw or (Flaw.MISSING_NAME if whole_name is None else None),
            repaired=repaired,
            from_text=True,
        )


def arguments_written(name: str | None, body: JsonBody, *, id: str | None = None) -> CallWritten:
    """Make the call of a name in a header and a body with the arguments."""
    flaw = body.flaw or (Flaw.INVALID_JSON if body.scan.flawed else None)
    if body.is_blank:
        flaw = None
    if name is not None and not name.strip():
        name = None
        flaw = Flaw.MISSING_NAME
    return CallWritten(name, body.text, id=id, flaw=flaw, repaired=body.repaired, from_text=True)


def cut_off(name: str | None = None, *, flaw: Flaw = Flaw.TRUNCATED, id: str | None = None) -> CallWritten:
    """Make a call without arguments that was cut off."""
    return CallWritten(name, id=id, flaw=flaw, from_text=True)


def broken_at(end: str | None, name: str | None = None, flaw: Flaw = Flaw.INVALID_MARKUP) -> CallWritten:
    """Make a call of which nothing could be read up to this end mark; None: up to the end of the text, so that it was cut off."""
    if end is None:
        flaw = Flaw.TRUNCATED
    return cut_off(name, flaw=flaw)


def _slice(member: Member, text: str) -> str:
    if member.start < 0:
        return ""
    return text[member.start : member.end if member.end >= 0 else len(text)]


def _end(cursor: TextCursor, ends: Ends, fenced: bool) -> Steps[tuple[bool, str | None]]:
    """Find out whether a body ends here, and return the end mark if it was read. The end of the text counts as a mark, also
    in the middle of one."""
    mark = yield from cursor.one_of(ends.marks + ends.others)
    if mark is not None:
        if mark in ends.marks:
            return True, mark
        cursor.back(mark)
        return True, mark
    return cursor.ends_within(*ends.marks, *ends.others, *((FENCE,) if fenced else ())), None


def _skip(cursor: TextCursor, ends: Ends) -> Steps[str | None]:
    """Skip the rest of a broken body with its end mark, but not the mark of something else."""
    if not (ends.marks or ends.others):
        yield from skip_all(cursor)
        return None
    mark = yield from cursor.until(finder(ends.marks + ends.others))
    if mark is not None and mark in ends.others:
        cursor.back(mark)
    return mark


def skip_all(cursor: TextCursor) -> Steps[None]:
    """Read and drop the rest of the text."""
    cursor.at = len(cursor.text)
    while (yield from cursor.more()):
        cursor.at = len(cursor.text)


_LINE_END = re.compile(
    r"(?:`{3,}|~{3,})[ \t\r]*(?:\n|\Z)|<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</s>|<(?:end|start)_of_\w{1,20}>"
)
_LINE_END_LIMIT: Final = 48


def ends_line(cursor: TextCursor) -> Steps[bool]:
    """True if the line ends here, but for the run of fence characters that closes a fence, or a token of a template."""
    char = yield from cursor.peek()
    if char in ("", "\n"):
        return True
    if char not in "`~<":
        return False
    size = 1
    while size < _LINE_END_LIMIT and (yield from cursor.peek(size)) not in ("", "\n", ">"):
        size += 1
    return _LINE_END.match(cursor.text, cursor.at, cursor.at + size + 1) is not None
