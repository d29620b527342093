"""What a reader says of a text: prose, reasoning and calls, in order; and what is the same for all formats.

`<think>` blocks and a format's own reasoning channels are reasoning wherever a grammar reads prose, tokens that
mean nothing to a user are dropped, and everything else that is no mark of the grammar is prose. The marks themselves
are known by the grammars.
"""

from collections.abc import Collection, Mapping
from typing import Final

from callgate.conversation.events import CallWritten, ModelEvent, ReasoningDelta, TextDelta
from callgate.text_calls.text_cursor import Finder, Steps, TextCursor, finder

THINK_TAGS: Final[Mapping[str, str]] = {"<think>": "</think>", "<thinking>": "</thinking>"}

TAB = 4
"""How many columns a tab counts for; four columns make an indented (quoted) block in Markdown."""

ASIDE: Final = ""
"""What `Prose.step` returns for a mark that is dealt with already: reasoning, or a dropped token."""


class EventSink:
    """What was read so far, and what a grammar may want to know of it.

    With `whole`, a closing think tag that comes first turns what stands before it into reasoning (the
    template opened it in the prompt). Text is then held back until that is settled, so it is for whole texts only.
    """

    def __init__(
        self,
        cursor: TextCursor,
        tools: Collection[str],
        *,
        whole: bool = False,
        channels: Mapping[str, str] | None = None,
        dropped: tuple[str, ...] = (),
    ) -> None:
        self.cursor = cursor
        self.tools = tools
        self.indent = 0
        """Columns of blanks since the line began; -1 once the line has other text."""
        self.is_silent = True
        """Nothing but blanks was said so far."""
        self.channels = {**THINK_TAGS, **(channels or {})}
        self.dropped = dropped
        self._events: list[ModelEvent] = []
        self._run: list[str] = []
        self._run_is_text = True
        self._unsettled: list[str] | None = [] if whole else None

    @property
    def awaits_lone_end(self) -> bool:
        return self._unsettled is not None

    def add_text(self, text: str) -> None:
        self.indent = _indent_after(self.indent, text)
        self.is_silent = self.is_silent and not text.strip()
        if self._unsettled is not None:
            self._unsettled.append(text)
        else:
            self._add(text, is_text=True)

    def add_reasoning(self, text: str) -> None:
        self.settle()
        self._add(text, is_text=False)

    def add_call(self, call: CallWritten) -> None:
        self.settle()
        self._flush()
        self._events.append(call)

    def settle(self, *, as_reasoning: bool = False) -> None:
        """What was held back for a lone closing think tag is prose after all, or reasoning."""
        if self._unsettled is None:
            return
        held, self._unsettled = self._unsettled, None
        for text in held:
            self._add(text, is_text=not as_reasoning)
        if as_reasoning:
            self.indent = 0
            self.is_silent = True

    def take(self) -> list[ModelEvent]:
        """The events since the last time."""
        self._flush()
        events, self._events = self._events, []
        return events

    def prose(self, *marks: str) -> "Prose":
        return Prose(self, marks)

    def _add(self, text: str, *, is_text: bool) -> None:
        if is_text is not self._run_is_text:
            self._flush()
            self._run_is_text = is_text
        self._run.append(text)

    def _flush(self) -> None:
        text, self._run = "".join(self._run), []
        if text:
            self._events.append(TextDelta(text) if self._run_is_text else ReasoningDelta(text, source="text"))


class Prose:
    """Reads prose up to one of a grammar's marks."""

    def __init__(self, out: EventSink, marks: tuple[str, ...]) -> None:
        self._out = out
        self._asides = (*out.channels, *out.dropped)
        self._finder = finder((*marks, *self._asides))
        self._lone_ends = frozenset(out.channels.values()) - set(self._asides)
        self._first_finder = finder((*marks, *self._asides, *sorted(self._lone_ends)))

    def step(self) -> Steps[str | None]:
        """Text goes out up to the next mark, which is read and returned. `ASIDE`: it was none of the grammar's and
        is dealt with. None: the text has ended."""
        out = self._out
        mark = yield from out.cursor.until(self._current(), out.add_text)
        if mark is None:
            return None
        if mark in out.channels:
            out.settle()
            yield from out.cursor.until(finder((out.channels[mark],)), out.add_reasoning)
            return ASIDE
        if mark in self._lone_ends and out.awaits_lone_end:
            out.settle(as_reasoning=True)
            return ASIDE
        return ASIDE if mark in out.dropped else mark

    def _current(self) -> Finder:
        return self._first_finder if self._out.awaits_lone_end else self._finder


def _indent_after(indent: int, text: str) -> int:
    line_break = text.rfind("\n")
    if line_break >= 0:
        indent = 0
    elif indent < 0:
        return -1
    line = text[line_break + 1 :]
    if line.strip(" \t\r"):
        return -1
    return indent + len(line) + (TAB - 1) * line.count("\t")
