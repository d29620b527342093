"""The log of what was read in a text: prose, reasoning and calls in their order; and which of it can be emitted already.

A call is held, with all that follows, until the text has ended or shown that the call is quoted. What may belong to a call that
comes next, the line that opens a fence or the marker of a list item, is held until it is clear that none does.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from callgate.conversation.events import CallNotRun, CallWritten, ModelEvent, ReasoningDelta, TextDelta
from callgate.text_calls.quoting import MARKER

TEXT: Final = "text"
REASONING: Final = "reasoning"
CALLS: Final = "calls"


@dataclass(slots=True)
class Item:
    """A section of the text: prose, reasoning, or calls with their text."""

    kind: str
    text: str
    start: int = 0
    """The position of calls in the whole text."""
    end: int = 0
    at_line_start: bool = False
    """Only blanks precede them on their line."""
    calls: list[CallWritten] = field(default_factory=list)
    quoted: str | None = None
    """The reason why they do not run."""
    part_of: "Item | None" = None
    """The calls whose end mark this is."""

    @property
    def is_whole(self) -> bool:
        return all(call.flaw is None for call in self.calls)

    @property
    def reason(self) -> str | None:
        return self.quoted if self.part_of is None else self.part_of.reason


_HELD: Final = 256
"""The longest lead of a call that is held; what is longer stays text."""
_LONGEST_MARKER: Final = 24
_BULLET = "[-*+•◦▪▫‣⁃∙●○■□–—]"
_ITEM = rf"[ \t]*(?:{MARKER}[ \t]+)*"
_ITEM_BEGINS = re.compile(rf"{_ITEM}(?:{_BULLET}|\(?(?:\d{{1,3}}|[a-zA-Z]|[ivxIVX]{{2,4}})?[.)]?|`{{1,2}}|~{{1,2}})\Z")
_WORD = re.compile(r"[a-zA-Z][a-hj-uwyzA-HJ-UWYZ]")
"""The beginning of most lines, and of no marker."""
_ITEM_BEFORE = re.compile(_ITEM)
_BEHIND = rf"(?:\n\s*(?:{MARKER}[ \t]*)?)?\Z"
_FENCE_AT_START = re.compile(rf"(?:`{{3,}}|~{{3,}})[^`\n]{{0,60}}{_BEHIND}")
_FENCE_IN_LINE = re.compile(rf"`{{3,}}[\w+\-.]{{0,40}}[ \t\r]*{_BEHIND}")


class TextLog:
    """Items in their order. The last prose or reasoning is kept in pieces until something else follows."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.blocks = 0
        """Items that are calls."""
        self.begins_line = True
        """What was emitted ends with a line."""
        self.not_run: list[CallNotRun] = []
        self.pieces: list[str] = []
        self._pieces_kind = TEXT
        self._is_held = False
        """All before the first calls was emitted."""
        self.may_lead = True
        """The end of the prose may be the lead of a call."""

    def add(self, kind: str, text: str) -> None:
        if kind != self._pieces_kind:
            self.close()
            self._pieces_kind = kind
        self.pieces.append(text)

    def add_block(self, item: Item) -> None:
        self.close()
        self.items.append(item)
        self.blocks += 1

    def close(self) -> None:
        """Make an item of the pieces."""
        if self.pieces:
            self.items.append(Item(self._pieces_kind, "".join(self.pieces)))
            self.pieces.clear()

    def last_block(self) -> Item | None:
        """Return the calls that were added last, if nothing follows them."""
        return self.items[-1] if self.items and not self.pieces and self.items[-1].kind == CALLS else None

    def ends_with_block(self) -> bool:
        """True if nothing but blanks follows the last calls."""
        return bool(self.items) and self.items[-1].kind == CALLS and not "".join(self.pieces).strip()

    def hold_lead(self, text: str) -> str:
        """Return prose that is emitted at once, but for what may be the lead of a call, which is kept."""
        line = text.rfind("\n")
        if (
            len(text) - line > _LONGEST_MARKER
            and line >= 0
            and text[-1] != "`"
            and "```" not in text
            and "~~~" not in text
        ):
            self.begins_line = self.may_lead = False  # the usual case
            return text
        at = self._lead_from(text)
        if at == len(text):
            self.begins_line = self.may_lead = text[-1:] == "\n" or (not text and self.begins_line)
            return text
        self.may_lead = True
        self.pieces.append(text[at:])
        self._note_end(text[:at])
        return text[:at]

    def take(self) -> list[ModelEvent]:
        """Return what later text cannot change: all before the first calls."""
        if self.blocks:
            if self._is_held:
                return []
            count = next(place for place, item in enumerate(self.items) if item.kind == CALLS)
        else:
            self.close()
            count = len(self.items)
        self._is_held = self.blocks > 0
        items = self.items[:count]
        del self.items[:count]
        if items and items[-1].kind == TEXT:
            items[-1].text, held = self._parted(items[-1].text)
            if held and self.items:
                self.items.insert(0, Item(TEXT, held))
            elif held:
                self.add(TEXT, held)
        return self.emit(items)

    def emit(self, items: Iterable[Item]) -> list[ModelEvent]:
        """Return the events of items. Quoted calls are prose; consecutive prose or reasoning is one event."""
        events: list[ModelEvent] = []
        run: list[str] = []
        run_kind = TEXT
        for item in items:
            kind = item.kind
            if kind == CALLS:
                self.blocks -= 1
                if item.reason is not None:
                    self.note_not_run(item.calls, item.reason)
                    kind = TEXT
            if kind != run_kind:
                self._end_run(events, run, run_kind)
                run_kind = kind
            if kind == CALLS:
                events += item.calls
            else:
                run.append(item.text)
        self._end_run(events, run, run_kind)
        return events

    def note_not_run(self, calls: Iterable[CallWritten], reason: str) -> None:
        self.not_run += [CallNotRun(call.name, reason) for call in calls if call.name and call.flaw is None]

    def _end_run(self, events: list[ModelEvent], run: list[str], kind: str) -> None:
        if text := "".join(run):
            if kind == TEXT:
                self._note_end(text)
                events.append(TextDelta(text))
            else:
                events.append(ReasoningDelta(text, source="text"))
        run.clear()

    def _parted(self, text: str) -> tuple[str, str]:
        """Part the lead of a call that may come from the prose before it."""
        at = self._lead_from(text)
        before = text[:at]
        self._note_end(before)
        self.may_lead = self.begins_line or at < len(text)
        return before, text[at:]

    def _lead_from(self, text: str) -> int:
        """Return where the lead of a call may begin: the line of a fence, the marker of a list item, or half of either."""
        size = len(text)
        start = max(0, size - _HELD)
        fence = max(text.rfind("```", start), text.rfind("~~~", start))
        if fence >= 0:
            fence = start + len(text[start : fence + 3].rstrip(text[fence]))
            line = text.rfind("\n", start, fence) + 1
            if (line or (self.begins_line and not start)) and _ITEM_BEFORE.fullmatch(text, line, fence):
                if _FENCE_AT_START.match(text, fence):
                    return line
            elif _FENCE_IN_LINE.match(text, fence):
                return fence
        line = text.rfind("\n") + 1
        if line == size:
            return line
        begins_line = line > 0 or self.begins_line
        may_be_marker = begins_line and size - line <= _LONGEST_MARKER and not _WORD.match(text, line)
        if may_be_marker and _ITEM_BEGINS.match(text, line):
            return line
        return size if text[-1:] != "`" else len(text.rstrip("`"))

    def _note_end(self, text: str) -> None:
        if text:
            self.begins_line = text[-1] == "\n"
