"""Reads calls written in Python: a list, `[N(k=v, ...), ...]`, that is the whole text or between marks; or calls on lines of
their own, between the marks of OLMo. Between marks there may also be call objects in JSON.

A list at the beginning of the text is held as long as it can have calls of offered tools; any other list is prose.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from callgate.calls.names import resolve_name
from callgate.calls.states import Flaw
from callgate.conversation.events import CallWritten
from callgate.text_calls.event_sink import EventSink
from callgate.text_calls.json_calls import CallObjects, Ends, cut_off
from callgate.text_calls.prose import Prose
from callgate.text_calls.python_literals import NotLiteralError, read_keywords
from callgate.text_calls.text_cursor import Sink, Steps, TextCursor, finder

LINES: Final = "<function_calls>"
MARKS: Final = {
    "<|python_start|>": "<|python_end|>",
    "<|tool_call_start|>": "<|tool_call_end|>",
    LINES: "</function_calls>",
}
END_MARKS: Final = tuple(MARKS.values())
TEXT_ENDS: Final = (*END_MARKS, "<|eot|>", "<|eom|>", "<|eot_id|>", "<|im_end|>", "<|endoftext|>")
"""Tokens that may follow a list that is the whole text."""

_NAME = re.compile(r"[\w.:\-]*")
_NAME_LIMIT: Final = 128
_STRUCTURE: Final = finder(("(", ")", "[", "]", "{", "}", "'", '"'))
_LAYOUT: Final = frozenset((" ", "\t", "\r", "\n"))
_CLOSERS: Final = {"(": ")", "[": "]", "{": "}"}


class _Ending(Enum):
    CLOSED = auto()
    CUT = auto()
    """The text ended in it."""
    NOT_CALLS = auto()


@dataclass(slots=True)
class _List:
    """The calls of a list so far, and its text in case it is prose."""

    pieces: list[str] = field(default_factory=list)
    calls: list[CallWritten] = field(default_factory=list)
    has_open_name: bool = False
    """The text ended in the name of a call."""


def read_pythonic(out: EventSink) -> Steps[None]:
    """Read calls between marks, or a list that is the whole text."""
    cursor = out.cursor
    prose = Prose(out, *MARKS)
    marked: list[CallWritten] = []
    while True:
        if out.line.is_silent():
            yield from cursor.space(out.add_text)
            if (yield from cursor.peek()) == "[":
                yield from _whole_text(out, marked)
        mark = yield from prose.step()
        if mark is None:
            return
        if mark:
            marked = yield from _between_marks(out, mark)


def _whole_text(out: EventSink, marked: list[CallWritten]) -> Steps[None]:
    """Read a list that is the whole text; after marked calls it may not repeat them."""
    call_list = _List()
    ending = yield from _read_list(out.cursor, call_list, out.tools, is_list=True)
    if ending is _Ending.CLOSED:
        yield from out.cursor.space(call_list.pieces.append)
        if out.cursor.ends_within(*TEXT_ENDS) or (yield from out.cursor.one_of(TEXT_ENDS)) is not None:
            if marked and call_list.calls == marked:
                out.forget()
            else:
                _emit_calls(out, call_list)
            return
    elif ending is _Ending.CUT and call_list.calls:
        if call_list.has_open_name:
            call_list.calls.append(cut_off())
        _emit_calls(out, call_list)
        return
    out.add_text("".join(call_list.pieces))


def _between_marks(out: EventSink, mark: str) -> Steps[list[CallWritten]]:
    cursor = out.cursor
    call_list = _List()
    yield from cursor.space(call_list.pieces.append)
    if not (yield from cursor.peek()):
        out.add_call(cut_off())
        return []
    # An object, or a list of objects.
    offset = 0
    if (yield from cursor.peek()) == "[":
        offset = 1
        while (yield from cursor.peek(offset)) in _LAYOUT and offset < _NAME_LIMIT:
            offset += 1
    if (yield from cursor.peek(offset)) == "{":
        yield from CallObjects().read(out, Ends((MARKS[mark],)))
        return []
    is_list = mark != LINES or (yield from cursor.peek()) == "["
    ending = yield from _read_list(cursor, call_list, out.tools, is_list=is_list)
    if ending is _Ending.CUT:
        if call_list.has_open_name or not call_list.calls:
            call_list.calls.append(cut_off())
        _emit_calls(out, call_list)
        return call_list.calls
    if ending is _Ending.CLOSED:
        yield from cursor.space(call_list.pieces.append)
        end = yield from cursor.one_of((MARKS[mark],))
        if end is not None or cursor.ends_within(MARKS[mark]):
            _emit_calls(out, call_list)
            return call_list.calls
    out.add_text("".join(call_list.pieces))
    return []


def _emit_calls(out: EventSink, call_list: _List) -> None:
    for call in call_list.calls:
        out.add_call(call)


def _read_list(cursor: TextCursor, call_list: _List, tools: Collection[str], *, is_list: bool) -> Steps[_Ending]:
    """Read calls up to the closing bracket of their list, or calls on lines up to other text."""
    keep = call_list.pieces.append
    if is_list and not (yield from _char(cursor, "[", keep)):
        return _Ending.NOT_CALLS
    while True:
        yield from cursor.space(keep)
        if is_list and call_list.calls and (yield from _char(cursor, "]", keep)):
            return _Ending.CLOSED
        ending = yield from _read_call(cursor, call_list, tools)
        if ending is not _Ending.CLOSED:
            return ending
        yield from cursor.space(keep)
        following = yield from cursor.peek()
        if not following:
            return _Ending.CUT
        if not is_list and following == "<":
            return _Ending.CLOSED
        has_comma = yield from _char(cursor, ",", keep)
        if is_list and not has_comma and following != "]":
            return _Ending.NOT_CALLS


def _read_call(cursor: TextCursor, call_list: _List, tools: Collection[str]) -> Steps[_Ending]:
    keep = call_list.pieces.append
    name = yield from cursor.run(_NAME, _NAME_LIMIT)
    if name is None:
        return _Ending.NOT_CALLS
    keep(name)
    yield from cursor.space(keep, same_line=True)
    if not (yield from cursor.peek()):
        call_list.has_open_name = bool(name)
        return _Ending.CUT
    if resolve_name(name, tools) is None or not (yield from _char(cursor, "(", keep)):
        return _Ending.NOT_CALLS
    arguments: list[str] = []
    is_closed = yield from _parentheses(cursor, arguments)
    call_list.pieces += arguments
    if not is_closed:
        call_list.calls.append(cut_off(name))
        return _Ending.CUT
    try:
        values, repaired = read_keywords("".join(arguments[:-1]))
        call = CallWritten(name, values, repaired=repaired, from_text=True)
    except NotLiteralError:
        call = cut_off(name, flaw=Flaw.INVALID_MARKUP)
    call_list.calls.append(call)
    return _Ending.CLOSED


def _parentheses(cursor: TextCursor, pieces: list[str]) -> Steps[bool]:
    """Read up to the closing parenthesis, over strings and brackets; return whether it came."""
    open_ones = [")"]
    while open_ones:
        mark = yield from cursor.until(_STRUCTURE, pieces.append)
        if mark is None:
            return False
        pieces.append(mark)
        if mark in _CLOSERS:
            open_ones.append(_CLOSERS[mark])
        elif mark in "'\"":
            if not (yield from _string(cursor, mark, pieces.append)):
                return False
        elif mark == open_ones[-1]:
            open_ones.pop()
    return True


def _string(cursor: TextCursor, quote: str, keep: Sink) -> Steps[bool]:
    """Read to the end of an open string; return whether it came."""
    second = yield from cursor.peek()
    third = (yield from cursor.peek(1)) if second == quote else ""
    if second == quote and third != quote:
        cursor.at += 1
        keep(quote)
        return True
    if third == quote:
        cursor.at += 2
        keep(quote * 2)
        quote = quote * 3
    marks = finder((quote, "\\"))
    while True:
        mark = yield from cursor.until(marks, keep)
        if mark is None:
            return False
        keep(mark)
        if mark == quote:
            return True
        escaped = yield from cursor.peek()
        keep(escaped)
        cursor.at += len(escaped)


def _char(cursor: TextCursor, char: str, keep: Sink) -> Steps[bool]:
    if (yield from cursor.peek()) != char:
        return False
    cursor.at += 1
    keep(char)
    return True
