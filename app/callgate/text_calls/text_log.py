"""The log of what was read in a text: prose, reasoning and calls as places of it, in their order; and what can be emitted.

A call is held, with all that follows, until the text has ended or shown that the call is quoted. What may lead to a call, the
line that opens a fence or the marker of a list item, is held until it is clear that none comes (`LeadHold`).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Final

from callgate.conversation.events import CallNotRun, CallWritten, ModelEvent, ReasoningDelta, TextDelta
from callgate.text_calls.quoting import MARKER

TEXT: Final = "text"
REASONING: Final = "reasoning"
CALLS: Final = "calls"

TAB: Final = 4
"""Columns of a tab."""
_MOST_BLANKS: Final = 64
"""Blanks between calls and an end mark of theirs."""


@dataclass(slots=True, eq=False)
class Item:
    """A section of the text: prose, reasoning, or calls with what was written for them."""

    kind: str
    text: str = ""
    """Set when the text is over."""
    start: int = 0
    end: int = 0
    calls: list[CallWritten] = field(default_factory=list)
    quoted: str | None = None
    """The reason why the calls do not run."""
    part_of: "Item | None" = None
    """The calls whose end mark this is."""

    @property
    def is_whole(self) -> bool:
        return all(call.flaw is None for call in self.calls)

    @property
    def reason(self) -> str | None:
        if self.part_of is None:
            return self.quoted
        return self.part_of.reason


class TextLog:
    """Items in their order. Text between two of them was dropped."""

    def __init__(self, between: Callable[[int, int], str]) -> None:
        """`between`: returns the text from one place to another."""
        self.between = between
        self.items: list[Item] = []
        self.open: Item | None = None
        """The last item, if it is prose or reasoning."""
        self.has_calls = False
        """There are calls that are not known to be thinking."""
        self.is_held = False
        """All before the first calls was passed on."""
        self._passed = 0
        """The number of items that were passed on."""
        self._passed_to = 0
        self._last_passed = Item("")
        """What was passed on last, of an item that may go on."""

    def add(self, kind: str, start: int, end: int) -> None:
        if self.items:
            last = self.items[-1]
            if last.kind == kind and last.end == start:
                last.end = end
                return
        self.items.append(Item(kind, start=start, end=end))
        self.open = self.items[-1]

    def add_calls(self, item: Item) -> None:
        self.items.append(item)
        self.open = None
        self.has_calls = True

    def cut(self, place: int) -> None:
        """End the last item at this place, behind which the text is read once more."""
        if self.items and self.items[-1].end > place:
            self.items[-1].end = place

    def last_calls(self) -> Item | None:
        """Return the calls that were added last, if nothing follows them."""
        if self.items and self.items[-1].kind == CALLS:
            return self.items[-1]
        return None

    def ends_with_calls(self) -> bool:
        """True if nothing but a few blanks follows the last calls."""
        last = self.open
        if last is None or last.kind == REASONING or len(self.items) < 2 or self.items[-2].kind != CALLS:
            return self.last_calls() is not None
        return last.end - last.start <= _MOST_BLANKS and not self.between(last.start, last.end).strip()

    def think(self, *, all_of_it: bool) -> list[Item]:
        """Make what was not passed on reasoning, all of it or from the first calls on; return the calls in it."""
        calls: list[Item] = []
        for item in self.items[self._passed :]:
            if item.kind == CALLS:
                calls.append(item)
            if all_of_it or calls:
                item.kind = REASONING
        self.has_calls = self.is_held = False
        self.open = None
        return calls

    def new_text(self) -> str:
        """Return the text that `pass_on` would without a limit, if it goes on with the item that was passed on last."""
        item = self.open
        start = self._passed_to
        if item is not self._last_passed or item.end <= start:
            return ""
        self._passed_to = item.end
        return self.between(start, item.end)

    def pass_on(self, limit: int | None) -> list[tuple[str, str]]:
        """Return the kinds and texts of what is new, before the first calls and before `limit`."""
        parts: list[tuple[str, str]] = []
        last = len(self.items) - 1
        while self._passed <= last:
            item = self.items[self._passed]
            if item.kind == CALLS:
                self.is_held = True
                break
            end = item.end if limit is None else min(item.end, limit)
            if end > self._passed_to:
                parts.append((item.kind, self.between(max(item.start, self._passed_to), end)))
                self._passed_to = end
                self._last_passed = item
            if end < item.end or self._passed == last:
                break
            self._passed += 1
        if len(parts) < 2:
            return parts
        return [(kind, "".join(text for _, text in same)) for kind, same in groupby(parts, itemgetter(0))]

    def rest(self) -> list[Item]:
        """Return the items that were not passed on, with their texts; consecutive prose or reasoning is one item."""
        left_over: list[Item] = []
        for kind, same in groupby(self.items[self._passed :], attrgetter("kind")):
            items = list(same)
            for item in items:
                item.text = self.between(max(item.start, self._passed_to), item.end)
            if kind == CALLS:
                left_over += items
            elif text := "".join(item.text for item in items):
                left_over.append(Item(kind, text))
        return left_over


class ProseReader:
    """Reads the prose of a log, each part of it once."""

    def __init__(self, log: TextLog) -> None:
        self._log = log
        self._place = 0
        self._read_to = 0

    def read(self) -> str:
        """Return the prose that was added since the last call of this."""
        items = self._log.items
        if not items or (len(items) == self._place + 1 and items[-1].end <= self._read_to):
            return ""
        pieces: list[str] = []
        for item in items[self._place :]:
            if item.kind == TEXT and item.end > self._read_to:
                pieces.append(self._log.between(max(item.start, self._read_to), item.end))
                self._read_to = item.end
        self._place = max(0, len(items) - 1)
        return "".join(pieces)


class LineStart:
    """What stands before the current place on its line, and in the text."""

    def __init__(self, log: TextLog) -> None:
        self._prose = ProseReader(log)
        self._indent = 0
        self._is_silent = True

    def indent(self) -> int:
        """Return the indentation of the line in columns; -1 once it has other text."""
        self._read()
        return self._indent

    def is_silent(self) -> bool:
        """True if the text has only blanks so far."""
        self._read()
        return self._is_silent

    def begin_line(self) -> None:
        """Take the current place for the beginning of a line."""
        self._read()
        self._indent = 0

    def begin_text(self) -> None:
        """Take the current place for the beginning of the text."""
        self.begin_line()
        self._is_silent = True

    def _read(self) -> None:
        text = self._prose.read()
        if not text:
            return
        if self._is_silent:
            self._is_silent = not text.strip()
        line_break = text.rfind("\n")
        if line_break >= 0:
            self._indent = 0
        if self._indent >= 0 and (line := text[line_break + 1 :]):
            if line.strip(" \t\r"):
                self._indent = -1
            else:
                self._indent += len(line) + (TAB - 1) * line.count("\t")


def events_of(items: Iterable[Item]) -> Iterator[ModelEvent]:
    """Yield the events of items. Quoted calls are prose; consecutive prose or reasoning is one event."""
    kind = TEXT
    pieces: list[str] = []
    for item in items:
        item_kind = item.kind
        if item_kind == CALLS and item.reason is not None:
            item_kind = TEXT
        if item_kind != kind:
            yield from written(kind, "".join(pieces))
            kind = item_kind
            pieces.clear()
        if kind == CALLS:
            yield from item.calls
        else:
            pieces.append(item.text)
    yield from written(kind, "".join(pieces))


def written(kind: str, text: str) -> Iterator[ModelEvent]:
    if text and kind == TEXT:
        yield TextDelta(text)
    elif text:
        yield ReasoningDelta(text, source="text")


def not_run(calls: Iterable[CallWritten], reason: str) -> list[CallNotRun]:
    return [CallNotRun(call.name, reason) for call in calls if call.name and call.flaw is None]


_HELD: Final = 256
"""The longest lead of a call that is held; what is longer stays text."""
_LONGEST_MARKER: Final = 24
_BULLET = "[-*+•◦▪▫‣⁃∙●○■□–—]"
_ITEM = rf"[ \t]*(?:{MARKER}[ \t]+)*"
_ITEM_BEGINS = re.compile(rf"{_ITEM}(?:{_BULLET}|\(?(?:\d{{1,3}}|[a-zA-Z]|[ivxIVX]{{2,4}})?[.)]?|`{{1,2}}|~{{1,2}})\Z")
_WORD = re.compile(r"[ \t]*+[a-zA-Z][a-hj-uwyzA-HJ-UWYZ]")
"""The beginning of most lines, and of no marker."""
_ITEM_BEFORE = re.compile(_ITEM)
_BEHIND = rf"(?:\n\s*+(?:{MARKER}[ \t]*+)?+)?+\Z"
_FENCE_AT_START = re.compile(rf"(?:`{{3,}}+|~{{3,}}+)[^`\n]{{0,60}}+{_BEHIND}")
_FENCE_IN_LINE = re.compile(rf"`{{3,}}+[\w+\-.]{{0,40}}+[ \t\r]*+{_BEHIND}")


class LeadHold:
    """Holds the end of prose that may be the lead of a call: the line of a fence, the marker of a list item, or half of either."""

    def __init__(self) -> None:
        self.held = ""
        self.begins_line = True
        """What was released ends with a line."""
        self._may_lead = True
        """The next text may continue a lead, or begin one at once."""

    def release(self, text: str = "") -> str:
        """Return this prose behind what was held, all of it."""
        text = self.held + text
        self.held = ""
        if text:
            self.begins_line = text[-1] == "\n"
        self._may_lead = self.begins_line
        return text

    def pass_on(self, text: str) -> str:
        """Return what is released of this prose behind what was held."""
        if not self._may_lead and "\n" not in text and "`" not in text:
            return text
        if self.held:
            text = self.held + text
        size = len(text)
        line = text.rfind("\n") + 1
        at = self._lead_from(text, line)
        if at == size:
            self.held = ""
            self.begins_line = self._may_lead = line == size
            return text
        self.held = text[at:]
        self._may_lead = True
        if at:
            self.begins_line = text[at - 1] == "\n"
        return text[:at]

    def _lead_from(self, text: str, line: int) -> int:
        """Return where the lead of a call may begin; the length of the text if there is none. `line`: where its last line begins."""
        size = len(text)
        is_long = size - line > _LONGEST_MARKER and text[-1] not in " \t\r\n"
        if line < size and (is_long or _WORD.match(text, line)) and text.find("```", line) < 0:
            if text[-1] != "`":
                return size
            return len(text.rstrip("`"))
        start = max(0, size - _HELD)
        fence = max(text.rfind("```", start), text.rfind("~~~", start))
        if fence >= 0:
            fence = start + len(text[start : fence + 3].rstrip(text[fence]))
            fence_line = text.rfind("\n", start, fence) + 1
            if (fence_line or (self.begins_line and not start)) and _ITEM_BEFORE.fullmatch(text, fence_line, fence):
                if _FENCE_AT_START.match(text, fence):
                    return fence_line
            elif _FENCE_IN_LINE.match(text, fence):
                return fence
        if line == size:
            return size
        if (line or self.begins_line) and size - line <= _LONGEST_MARKER and _ITEM_BEGINS.match(text, line):
            return line
        if text[-1] != "`":
            return size
        return len(text.rstrip("`"))
