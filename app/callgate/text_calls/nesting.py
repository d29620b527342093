"""Finds calls inside another call, whose reader took their end mark for its own.

A parameter that is raw text may contain calls in the same format, whose end marks come first. So opening and end marks are
matched over the whole text, like brackets. A call whose own end mark is after the place where its reader stopped was misread,
and the text between is a part of it.
"""

import re
import sys
from collections.abc import Collection
from typing import Final, Protocol

from callgate.calls.names import resolve_name
from callgate.text_calls.call_marks import LEAD, OPENING, PAIRS, QUOTE, STRAY_ENDS, UNPAIRED, VALUE, VALUE_END
from callgate.untrusted.doors import Door, TooMuch, open_text
from callgate.untrusted.readers import value_at

SMALLEST: Final = 24
"""Characters of the shortest call with another inside."""
LONGEST_LEAD: Final = 65_536
"""Characters of marks around a call: a match holds the interpreter until it ends."""
JSON_STARTS = ("{", "[", "`")

_PLACEHOLDER = re.compile(r"\{\w*\}")
_OBJECT = re.compile(r'\{\s*(?:["\']|\Z)')
_PYTHON_CALL = re.compile(r"\[\s*([\w.\-]+)\(")
_PYTHON_PART = re.compile(
    r"\"\"\".*?\"\"\"|'''.*?'''|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[\"'()\[\]{}]", re.DOTALL
)
PROSE: Final = Door(name="prose of a model", bytes=sys.maxsize)


class CallText(Protocol):
    """Calls with their text."""

    @property
    def text(self) -> str: ...
    @property
    def is_whole(self) -> bool: ...


def has_open_marks(block: CallText) -> bool:
    """True if the text of these calls has unmatched opening marks. Whole JSON has an unambiguous end."""
    if len(block.text) < SMALLEST:
        return False
    own = _own_opening(block.text)
    if own is None:
        # Marks in strings count, because the ends of strings are unknown in broken JSON.
        unclosed = sum(block.text.count(char) for char in "{[") - sum(block.text.count(char) for char in "}]")
        return not block.is_whole and (
            unclosed > 0
            or len(UNPAIRED.findall(block.text)) > 1
            or any(block.text.count(mark) > block.text.count(PAIRS[mark]) for mark in set(OPENING.findall(block.text)))
        )
    opening, at = own
    if block.text.count(opening, at) <= block.text.count(PAIRS[opening], at):
        return False
    is_json = block.text[at + len(opening) :].lstrip().startswith(JSON_STARTS)
    return block.text.count(opening, at) > 1 and not (block.is_whole and is_json)


class Nesting:
    """Matches the marks of a whole text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: dict[str, dict[int, int]] = {}

    def reach(self, block: CallText, start: int) -> int:
        """Return the end of calls that begin at `start` and have open marks: after their own end mark. Without one, whole calls
        end where their reader stopped, and broken ones at the end of the text."""
        own = _own_opening(block.text)
        if own is None:
            return len(self._text)
        opening, at = own
        if opening not in self._ends:
            # Where each opening mark stands that has an end mark, and where that one ends.
            ends: dict[int, int] = {}
            open_ones: list[int] = []
            for mark in re.finditer(f"{re.escape(opening)}|{re.escape(PAIRS[opening])}", self._text):
                if mark.group() == opening:
                    open_ones.append(mark.start())
                elif open_ones:
                    ends[open_ones.pop()] = mark.end()
            self._ends[opening] = ends
        if block.is_whole:
            otherwise = start + len(block.text)
        else:
            otherwise = len(self._text)
        return self._ends[opening].get(start + at, otherwise)


def is_in_value(text: str) -> bool:
    """True if the text of a call ends within a value: in a JSON string, or after the tag of a parameter."""
    value_start = max((match.end() for match in VALUE.finditer(text)), default=-1)
    if value_start >= 0:
        return max((match.start() for match in VALUE_END.finditer(text)), default=-1) < value_start
    brace = text.find("{")
    return brace >= 0 and sum(1 for _ in QUOTE.finditer(text, brace)) % 2 == 1


class Torn:
    """A call that was interrupted in a value by a restart of the grammar."""

    def __init__(self, text: str) -> None:
        self._opening = (_own_opening(text) or ("", 0))[0]

    def reach(self, behind: str) -> int:
        """Return where in the text after it this call ends; 0 if it does not."""
        reach = 0
        if self._opening:
            is_open = 0
            end = PAIRS[self._opening]
            for mark in re.finditer(f"{re.escape(self._opening)}|{re.escape(end)}", behind):
                is_open += 1 if mark.group() == self._opening else -1
                if is_open < 0:
                    reach = mark.end()
                    is_open = 0
        return max(reach, *(match.end() for match in STRAY_ENDS.finditer(behind)), 0)


def _own_opening(text: str) -> tuple[str, int] | None:
    """Return the opening mark of the first call of a text, and its position."""
    lead = LEAD.match(text, 0, LONGEST_LEAD)
    assert lead is not None, "it matches nothing as well"
    match = OPENING.match(text, lead.end())
    if match is None:
        match = next((match_before for match_before in reversed([*OPENING.finditer(text, 0, lead.end())])), None)
    if match is not None:
        return (match.group(), match.start())
    return None


def opens_value(prose: str, unmarked: str, tools: Collection[str]) -> bool:
    """True if what stands behind this prose may be in a value of a call without marks that it quotes: behind a brace that begins
    no whole JSON object, or an unclosed call in Python's notation. `unmarked`: the text that such a call has."""
    at = 0
    if unmarked == "[":
        while call := _PYTHON_CALL.search(prose, at):
            at = call.end()
            if resolve_name(call[1], tools) is not None:
                at = _end_of_list(prose, call.start())
                if not at:
                    return True
        return False
    try:
        opened = open_text(prose, PROSE)
    except TooMuch:
        return True  # not searched
    while (at := prose.find(unmarked, at)) >= 0:
        placeholder = _PLACEHOLDER.match(prose, at)
        try:
            if placeholder:
                at = placeholder.end()
            else:
                at = value_at(opened, at)[1]
        except (ValueError, RecursionError):
            if _OBJECT.match(prose, at):
                return True
            at += 1
    return False


def _end_of_list(text: str, start: int) -> int:
    """Return the end of a list in Python's notation at `start`; 0 if there is none."""
    depth = 0
    for part in _PYTHON_PART.finditer(text, start):
        mark = part.group()
        if mark in "\"'":
            return 0  # a string that is not closed
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
            if not depth:
                return part.end()
    return 0
