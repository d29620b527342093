"""Reads calls of MiniMax M3: tags that each follow a mark, with objects and lists as nested tags.

`]<]minimax[>[<tool_call>` opens the calls, `]<]minimax[>[<invoke name="N">` one of them, and parameters are tags by name:
`]<]minimax[>[<city>Rome]<]minimax[>[</city>`. The items of a list are tags called `item`.
"""

import re
from typing import Any, Final

from callgate.calls.states import Flaw
from callgate.conversation.events import CallWritten
from callgate.text_calls.event_sink import EventSink
from callgate.text_calls.json_calls import broken_at, cut_off
from callgate.text_calls.tag_calls import attributes
from callgate.text_calls.text_cursor import Steps, TextCursor, finder

MARK: Final = "]<]minimax[>["
OPEN: Final = f"{MARK}<tool_call>"
END: Final = f"{MARK}</tool_call>"
ITEM: Final = "item"
MAX_DEPTH: Final = 64
"""The limit of nested tags."""

_CALL: Final = f"{MARK}<invoke"
_CALL_END: Final = f"{MARK}</invoke>"
_KEY = re.compile(r"[^\s<>/]*")
_KEY_LIMIT: Final = 256


class _BrokenError(Exception):
    """Raised where the next text is no part of a call."""


def nested_calls(out: EventSink) -> Steps[bool]:
    """Read the calls that a mark opened, up to the end of all of them."""
    found_any = False
    while (mark := (yield from out.cursor.until(finder((_CALL, END))))) == _CALL:
        found_any = True
        out.add_call((yield from _call(out.cursor)))
    if mark is None and not found_any:
        out.add_call(cut_off())
    return True


def _call(cursor: TextCursor) -> Steps[CallWritten]:
    head = yield from attributes(cursor)
    if not head.is_whole or not head.name:
        return (yield from _broken(cursor, None))
    try:
        arguments = yield from _members(cursor, _CALL_END, 0)
    except _BrokenError:
        return (yield from _broken(cursor, head.name))
    if not isinstance(arguments, dict):
        return cut_off(head.name, flaw=Flaw.INVALID_MARKUP)
    return CallWritten(head.name, arguments, only_text=True, from_text=True)


def _broken(cursor: TextCursor, name: str | None) -> Steps[CallWritten]:
    ended = yield from cursor.until(finder((_CALL_END,)))
    return broken_at(ended, name)


def _members(cursor: TextCursor, end: str, depth: int) -> Steps[dict[str, Any] | list[Any]]:
    """Read the tags up to an end tag; return a list if all of them are items."""
    if depth > MAX_DEPTH:
        raise _BrokenError
    pairs: list[tuple[str, Any]] = []
    while True:
        yield from cursor.space()
        if (yield from cursor.one_of((end,))) is not None:
            break
        pairs.append((yield from _member(cursor, depth)))
    if pairs and depth and all(key == ITEM for key, _ in pairs):
        return [value for _, value in pairs]
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _BrokenError
    return members


def _member(cursor: TextCursor, depth: int) -> Steps[tuple[str, Any]]:
    if (yield from cursor.one_of((f"{MARK}<",))) is None:
        raise _BrokenError
    key = yield from cursor.run(_KEY, _KEY_LIMIT)
    if not key or (yield from cursor.one_of((">",))) is None:
        raise _BrokenError
    end = f"{MARK}</{key}>"
    pieces: list[str] = []
    if (yield from cursor.until(finder((MARK,)), pieces.append)) is None:
        raise _BrokenError
    cursor.back(MARK)
    text = "".join(pieces)
    if (yield from cursor.one_of((end,))) is not None:
        return key, text
    if text.strip():
        raise _BrokenError
    return key, (yield from _members(cursor, end, depth + 1))
