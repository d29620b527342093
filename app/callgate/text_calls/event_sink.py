"""What grammars tell of a text: prose, reasoning and calls; and what all formats have in common.

`<think>` blocks and a format's own reasoning channels become reasoning, special tokens are dropped, and everything else that is
no mark of the grammar is prose. `EventSink` writes the places of all that into a `TextLog`, tells a `QuoteTracker` where calls
stand, and leaves the rest to `judging` when the text has ended.

What a grammar adds is always what its cursor has read last. What it has read before that, and did not add, is a part of the
calls in front of it: their end marks, or what belongs to no call. Without calls it is dropped.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from callgate.conversation.events import CallNotRun, CallsNotAlone, CallWritten, ModelEvent, ReasoningDelta, TextDelta
from callgate.text_calls import quoting
from callgate.text_calls.first_sentence import MOST, shows_no_thinking
from callgate.text_calls.judging import NESTED, EchoCheck, TextRules, judge
from callgate.text_calls.nesting import Torn, is_in_value, opens_value
from callgate.text_calls.quoting import QuoteTracker
from callgate.text_calls.text_cursor import TextCursor
from callgate.text_calls.text_log import (
    CALLS,
    REASONING,
    TEXT,
    Item,
    LeadHold,
    LineStart,
    ProseReader,
    TextLog,
    events_of,
    not_run,
    written,
)

THINK_TAGS: Final[Mapping[str, str]] = {"<think>": "</think>", "<thinking>": "</thinking>"}

Thinking = Literal["unknown", "by_first_sentence", "prefilled", "none"]
"""Whether the model's template opens its thinking: with `unknown` text is held until it is clear, with `by_first_sentence` also
until that shows that it is none, with `prefilled` the text begins as reasoning, with `none` text is emitted at once. A call before
a lone end of thinking never runs."""

_LONE_END = re.compile("|".join(map(re.escape, THINK_TAGS.values())))
_READ_AGAIN = 262_144
"""Characters of one answer that may be read twice, where a quoted mark opened no call. Beyond that it is taken for a call."""


class RestartError(Exception):
    """Raised to restart the grammar after the cursor: what it took for a call was thinking."""


@dataclass(frozen=True, slots=True)
class Unclosed:
    """The place of reasoning, and in it that of a line which begins like a call."""

    start: int
    call_may_begin: int


@dataclass(slots=True)
class _Trial:
    """A mark that may be quoted: what it opens is read like a call, and is one if it has a name."""

    mark_end: int
    calls: list[CallWritten] = field(default_factory=list)
    is_text: bool = False
    """The mark opened nothing."""


class _Beginning:
    """The first sentence of a text that may be thinking, as far as it is there."""

    def __init__(self, prose: ProseReader) -> None:
        self._prose = prose
        self._text = ""

    def shows_no_thinking(self) -> bool | None:
        if new_text := self._prose.read():
            self._text = (self._text + new_text).lstrip()[: 2 * MOST]
        return shows_no_thinking(self._text)


class EventSink:
    """Takes what a grammar reads, and gives what can be emitted of it."""

    has_invented_turn = False
    """The text has a user's, system or tool's message, which the model must have invented."""
    is_spoilt = False
    """A call without an end mark broke off in a string, or may be quoted, so that all following text may be part of it."""

    def __init__(
        self,
        cursor: TextCursor,
        tools: Collection[str],
        *,
        thinking: Thinking = "none",
        channels: Mapping[str, str] | None = None,
        dropped: tuple[str, ...] = (),
        openings: tuple[str, ...] = (),
        ends_thinking: tuple[str, ...] = (),
        unmarked: str = "",
        rules: TextRules | None = None,
    ) -> None:
        """`unmarked`: text that every call without marks has; prose with it may begin a call with the rest in its value.
        `rules`: None for text that is known to be only a call: every call that the grammar finds counts."""
        self.cursor = cursor
        self.tools = tools
        self.channels = {**THINK_TAGS, **(channels or {})}
        self.dropped = dropped
        self.openings = openings
        self.ends_thinking = ends_thinking
        self.is_judging = rules is not None
        self.may_end_alone = thinking != "prefilled"
        """There was no think tag so far."""
        self.had_lone_end = False
        self.unclosed: Unclosed | None = None
        """Open reasoning that ends at a call, if nothing else ends it."""
        self._rules = rules
        self._unmarked = unmarked if self.is_judging else ""
        self._held_from: int | None = None
        """The place behind which nothing is emitted yet."""
        if thinking in ("unknown", "by_first_sentence"):
            self._held_from = 0
        self._beginning: _Beginning | None = None
        self.log = TextLog(cursor.between)
        self.line = LineStart(self.log)
        self._lead = LeadHold()
        self._quotes = QuoteTracker()
        self._prose_to_quotes = ProseReader(self.log)
        self._prose_to_calls = ProseReader(self.log)
        if thinking == "by_first_sentence":
            self._beginning = _Beginning(ProseReader(self.log))
        self._trial: _Trial | None = None
        self._may_read_again = _READ_AGAIN
        self._torn: Torn | None = None
        self._not_run: list[CallNotRun] = []

    # -- what grammars add

    def add_text(self, text: str) -> None:
        """Add prose that was not read by `Prose`: a mark that opened nothing, or text that was held for a call."""
        if self._trial is not None:
            self._trial.is_text = True
        elif text:
            self.add_prose(text)

    def add_prose(self, text: str) -> None:
        cursor = self.cursor
        last = self.log.open
        end = cursor.base + cursor.at
        if last is not None and last.kind == TEXT and last.end + len(text) == end:
            last.end = cursor.logged = end
        else:
            self._add(TEXT, text)

    def add_reasoning(self, text: str) -> None:
        if self._trial is None:
            self._add(REASONING, text)

    def _add(self, kind: str, text: str) -> None:
        end = self.cursor.offset
        start = end - len(text)
        if start != self.cursor.logged:
            self._settle(start)
        self.log.add(kind, start, end)
        self.cursor.logged = end

    def add_call(self, call: CallWritten) -> None:
        if self._trial is not None:
            self._trial.calls.append(call)
            return
        start = self.cursor.logged
        self.log.cut(start)
        block = self.log.last_calls()
        if block is not None and block.calls and start == self.cursor.offset:
            block.calls.append(call)
        else:
            block = self._add_block(self.cursor.offset, [call])
        if call.flaw is not None:
            self._look_for_lone_end(block, block.start)

    def _add_block(self, end: int, calls: list[CallWritten]) -> Item:
        """Add calls whose text ends here to the log, and tell the tracker of them."""
        block = Item(CALLS, start=self.cursor.logged, end=end, calls=calls)
        if self.is_judging:
            self._quotes.feed(self._prose_to_quotes.read())
            self._quotes.add_call(block, "" if block.is_whole else self.cursor.between(block.start, end))
            if self._unmarked and opens_value(self._prose_to_calls.read(), self._unmarked, self.tools):
                self.is_spoilt = True
            if self.is_spoilt:
                block.quoted = NESTED
            elif self.has_invented_turn:
                block.quoted = quoting.INVENTED_TURN
        self.log.add_calls(block)
        self.cursor.logged = end
        return block

    def forget(self) -> None:
        """Drop what was read last, which is no part of a call."""
        if self._trial is None:
            self._settle(self.cursor.offset)

    def drop(self, mark: str) -> None:
        """Drop the mark of a reasoning channel, which is no part of a call before it."""
        cursor = self.cursor
        start = cursor.offset - len(mark)
        if start == cursor.logged:
            self.log.cut(start)
        else:
            self._settle(start)
        cursor.logged = cursor.offset

    def _settle(self, end: int) -> None:
        """Make what was read and not added, up to this place, a part of the calls before it. What was put back is none."""
        cursor = self.cursor
        log = self.log
        start = cursor.logged
        cursor.logged = end
        log.cut(min(start, end))
        if end <= start or not log.has_calls:
            return
        block = log.last_calls()
        if block is not None and block.end == start:
            block.end = end
            if _LONE_END.search(cursor.between(start, end)):
                self._look_for_lone_end(block, start if block.is_whole else block.start)
            return
        self._quotes.feed(self._prose_to_quotes.read())
        self._quotes.add_mark()
        before = next(item for item in reversed(log.items) if item.kind == CALLS)
        block = Item(CALLS, start=start, end=end, part_of=before.part_of or before)
        log.add_calls(block)
        self._look_for_lone_end(block, start)

    def note_nested(self, name: str) -> None:
        """Note a call of this tool in a value of a broken call."""
        if self._trial is None:
            self._not_run.append(CallNotRun(name, NESTED))

    # -- what is quoted

    def quoted(self) -> str | None:
        """Return how a mark at this place may be quoted; None if it is not."""
        if not self.is_judging:
            return None
        self._quotes.feed(self._prose_to_quotes.read())
        return self._quotes.quoted()

    def begin_message(self) -> None:
        """Close all open quotations at the beginning of a message."""
        self._quotes.feed(self._prose_to_quotes.read())
        self._quotes.begin_message()

    def begin_quoted(self) -> None:
        """Begin to read what may be a quoted call, after its mark: the grammar reads it up to `end_quoted` like a call."""
        self._trial = _Trial(self.cursor.offset)

    def end_quoted(self, *, reads_again: bool = True) -> None:
        """Settle what was read since the mark: calls, if one has a name, else prose. `reads_again`: the text after the mark is
        then read again, because it may have marks of its own."""
        trial = self._trial
        cursor = self.cursor
        if trial is None:
            return
        self._trial = None
        if not trial.calls and not trial.is_text and cursor.text.startswith(self.openings, cursor.at):
            return  # a mark around calls, of which one follows
        start = cursor.logged
        text = cursor.between(start, cursor.offset)
        if any(call.name for call in trial.calls):
            cursor.rewind(start + len(text.rstrip()))
            block = self._add_block(cursor.offset, trial.calls)
            if not block.is_whole:
                self._look_for_lone_end(block, start, in_values=False)
            return
        if reads_again and len(text) <= self._may_read_again:
            self._may_read_again -= len(text)
            cursor.rewind(trial.mark_end)
            text = text[: trial.mark_end - start]
        self.add_prose(text)

    # -- thinking

    def begin_channel(self) -> None:
        """Open a reasoning channel: text that was held for a lone end of thinking is prose."""
        self.may_end_alone = False
        self._held_from = None
        self._beginning = None

    def end_hold(self) -> None:
        """Hold no text for a lone end of thinking any more: there will be none."""
        if self._beginning is not None:
            self._beginning = self._held_from = None

    def _look_at_beginning(self) -> None:
        """Hold no text any more if its first sentence shows that it is no thinking."""
        if self._beginning is None or (shows := self._beginning.shows_no_thinking()) is None:
            return
        self._beginning = None
        if shows:
            self._held_from = None

    def hold_reasoning(self, start: int) -> None:
        """Hold the reasoning that began at `start` back from here on, where a call may begin if it is never closed."""
        self.unclosed = Unclosed(start, self.cursor.logged)
        self._held_from = self.cursor.logged

    def end_channel(self) -> None:
        self.unclosed = self._held_from = None

    def end_alone(self, *, in_value: bool = False) -> None:
        """Handle a closing think tag without an opening one: all text before it is reasoning, except for prose that was
        emitted. `in_value`: it is in a value of a call that may be quoted."""
        self._look_at_beginning()
        for item in self.log.think(all_of_it=self._held_from is not None):
            self._not_run += not_run(item.calls, quoting.THINKING)
        self.begin_channel()
        self.had_lone_end = True
        self.cursor.logged = self.cursor.offset
        self.line.begin_text()
        if not in_value:
            self.begin_message()

    def _look_for_lone_end(self, block: Item, start: int, *, in_values: bool = True) -> None:
        """Restart the grammar after a lone end of thinking in the text of calls, which were only a mark in the thinking."""
        if not self.is_judging or not self.may_end_alone:
            return
        tag = _LONE_END.search(self.cursor.between(start, block.end))
        if tag is None:
            return
        before = self.cursor.between(block.start, start + tag.start())
        in_value = is_in_value(before)
        if in_value and not in_values:
            return
        block.end = start + tag.start()
        if in_value:
            self._torn = Torn(before)
        self.cursor.rewind(start + tag.end())
        self.end_alone(in_value=in_value)
        raise RestartError

    # -- what comes out

    def take(self) -> list[ModelEvent]:
        """Return the new events that later text cannot change."""
        log = self.log
        if self._beginning is not None:
            self._look_at_beginning()
        if self._held_from is None and (text := log.new_text()):
            # The usual case.
            if log.items[-1].kind == REASONING:
                return [ReasoningDelta(text, source="text")]
            text = self._lead.pass_on(text)
            if text:
                return [TextDelta(text)]
            return []
        if log.is_held:
            return []
        parts = log.pass_on(self._held_from)
        events: list[ModelEvent] = []
        for place, (kind, text) in enumerate(parts, 1):
            if kind == REASONING:
                events += written(TEXT, self._lead.release())
                events += written(kind, text)
            elif place < len(parts):
                events += written(kind, self._lead.release(text))
            elif text := self._lead.pass_on(text):
                events.append(TextDelta(text))
        return events

    def close(self) -> None:
        """Settle what the grammar has left, at the end of the text."""
        self.end_quoted(reads_again=False)
        self.forget()

    def items(self, calls: Sequence[Item] = (), *, is_cut: bool = False) -> list[Item]:
        """Return what was not emitted, at the end of the text, with these calls at the end of unclosed thinking."""
        items = self.log.rest()
        if lead := self._lead.held:
            if items and items[0].kind == TEXT:
                items[0].text = lead + items[0].text
            else:
                items.insert(0, Item(TEXT, lead))
        if calls and self.unclosed is not None:
            items[-1].text = items[-1].text[: self.unclosed.start + calls[0].start - self.cursor.offset]
            items += calls
        if self.is_judging and any(item.kind == CALLS for item in items):
            self._quotes.feed(self._prose_to_quotes.read())
            self._quotes.finish(is_cut=is_cut)
        return items

    def finish(self, items: list[Item], is_echo: EchoCheck) -> list[ModelEvent]:
        """Return the remaining events."""
        events: list[ModelEvent] = []
        if self._rules is not None and any(item.kind == CALLS for item in items):
            begins_line = self._lead.begins_line
            judgement = judge(items, self._quotes, self._rules, is_echo, begins_line=begins_line, torn=self._torn)
            items = list(judgement.items)
            if judgement.as_written:
                events.append(CallsNotAlone(judgement.as_written))
        for item in items:
            if item.kind == CALLS and item.reason is not None:
                self._not_run += not_run(item.calls, item.reason)
        return [*self._not_run, *events, *events_of(items)]
