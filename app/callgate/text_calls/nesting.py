"""Finds calls inside another call, whose reader took their end mark for its own.

A parameter that is raw text may contain calls in the same format, whose end marks come first. So opening and end marks are
matched over the whole text, like brackets. A call whose own end mark is after the place where its reader stopped was misread,
and the text between is a part of it.
"""

import re
from typing import Final, Protocol

from callgate.text_calls.call_marks import LEAD, OPENING, PAIRS, QUOTE, STRAY_ENDS, UNPAIRED, VALUE, VALUE_END

SMALLEST: Final = 24
"""Characters of the shortest call with another inside."""
JSON_STARTS = ("{", "[", "`")


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
        opened = sum(block.text.count(char) for char in "{[") - sum(block.text.count(char) for char in "}]")
        return not block.is_whole and (
            opened > 0
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
            found: dict[int, int] = {}
            open_ones: list[int] = []
            for mark in re.finditer(f"{re.escape(opening)}|{re.escape(PAIRS[opening])}", self._text):
                if mark.group() == opening:
                    open_ones.append(mark.start())
                elif open_ones:
                    found[open_ones.pop()] = mark.end()
            self._ends[opening] = found
        otherwise = start + len(block.text) if block.is_whole else len(self._text)
        return self._ends[opening].get(start + at, otherwise)


def is_in_value(text: str) -> bool:
    """True if the text of a call ends within a value: in a JSON string, or after the tag of a parameter."""
    opened = max((found.end() for found in VALUE.finditer(text)), default=-1)
    if opened >= 0:
        return max((found.start() for found in VALUE_END.finditer(text)), default=-1) < opened
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
                    reach, is_open = mark.end(), 0
        return max(reach, *(found.end() for found in STRAY_ENDS.finditer(behind)), 0)


def _own_opening(text: str) -> tuple[str, int] | None:
    """Return the opening mark of the first call of a text, and its position."""
    lead = LEAD.match(text)
    assert lead is not None, "it matches nothing as well"
    found = OPENING.match(text, lead.end())
    if found is None:
        found = next((each for each in reversed([*OPENING.finditer(text, 0, lead.end())])), None)
    return (found.group(), found.start()) if found is not None else None
