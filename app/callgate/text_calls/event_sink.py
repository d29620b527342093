"""What grammars tell of a text: prose, reasoning and calls; and what all formats have in common.

`<think>` blocks and a format's own reasoning channels become reasoning, special tokens are dropped, and everything else that is
no mark of the grammar is prose. `EventSink` keeps it in a `TextLog`, tells a `QuoteTracker` where calls stand, and leaves the
rest to `judging` when the text has ended.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from callgate.calls.names import resolve_name
from callgate.conversation.events import CallNotRun, CallsNotAlone, CallWritten, ModelEvent, TextDelta
from callgate.text_calls import quoting
from callgate.text_calls.judging import NESTED, EchoCheck, TextRules, judge, judge_nested
from callgate.text_calls.nesting import Torn, is_in_value
from callgate.text_calls.quoting import QuoteTracker
from callgate.text_calls.text_cursor import Finder, TextCursor, finder
from callgate.text_calls.text_log import CALLS, REASONING, TEXT, Item, TextLog

THINK_TAGS: Final[Mapping[str, str]] = {"<think>": "</think>", "<thinking>": "</thinking>"}

TAB: Final = 4
"""Columns of a tab."""

Thinking = Literal["unknown", "prefilled", "none"]
"""Whether the model's template opens its thinking: with `unknown` text is held until it is clear, with `prefilled` the text
begins as reasoning, with `none` text is emitted at once. A call before a lone end of thinking never runs."""

_PLACEHOLDER = re.compile(r"\{\w*\}")
_OBJECT = re.compile(r'\{\s*(?:["\']|\Z)')
_PYTHON_CALL = re.compile(r"\[\s*([\w.\-]+)\(")
_PYTHON_PART = re.compile(
    r"\"\"\".*?\"\"\"|'''.*?'''|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[\"'()\[\]{}]", re.DOTALL
)
_DECODER = json.JSONDecoder()
_LONE_END = re.compile("|".join(map(re.escape, THINK_TAGS.values())))
_BLANKS: Final = " \t\r\n"
_MOST_UNREAD = 16_384
"""Pieces of prose that are kept before they are joined, because small strings take much memory."""
_READ_AGAIN = 262_144
"""Characters of one answer that may be read twice, where a quoted mark opened no call. Beyond that it is taken for a call."""


class RestartError(Exception):
    """Raised to restart the grammar after the cursor: what it took for a call was thinking."""


@dataclass(frozen=True, slots=True)
class Unclosed:
    """Unclosed reasoning with a line in it that begins like a call."""

    text: str
    call_may_begin: int
    """The position of that line."""


class EventSink:
    """Takes what a grammar reads, and gives what can be emitted of it."""

    has_invented_turn = False
    """The text has a user's, system or tool's message, which the model must have invented."""

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
        self.indent = 0
        """The indentation of the line in columns; -1 once it has other text."""
        self.is_silent = True
        """The text has only blanks so far."""
        self.channels = {**THINK_TAGS, **(channels or {})}
        self.dropped = dropped
        self.openings = openings
        self.ends_thinking = ends_thinking
        self.rules = rules
        self.is_judging = rules is not None
        self.may_end_alone = thinking != "prefilled"
        """There was no think tag so far."""
        self.had_lone_end = False
        self.is_spoilt = False
        """A call without an end mark broke off in a string, or may be quoted, so that all following text may be part of it."""
        self.quoting = ""
        """The reason why the current text may be quoted: it is read like a call, and is one if it has a name."""
        self.unclosed: Unclosed | None = None
        """The reasoning in which the text ended."""
        self.log = TextLog()
        self._pieces = self.log.pieces
        self._tracker = QuoteTracker()
        self._unread: list[str] = []
        """Prose that the tracker has not read yet."""
        self._quoted_here: str | None = None
        self._is_plain = True
        """There was only prose so far."""
        self._torn: Torn | None = None
        self._unmarked = unmarked if self.is_judging else ""
        self._braced: list[str] = []
        """Prose since the first piece in which a call without marks may begin."""
        self._holds_all = thinking == "unknown"
        self._holds_reasoning = False
        self._events: list[ModelEvent] = []
        self._channel_marks: dict[tuple[str, ...], Finder] = {}
        self._mark_end = 0
        self._mark_is_text = False
        """The mark opened nothing."""
        self._mark_calls: list[CallWritten] = []
        self._read_again = _READ_AGAIN

    # -- what grammars add

    def add_text(self, text: str) -> None:
        """Add prose that was not read by `Prose`: a mark that opened nothing, or text that was held for a call."""
        if self.quoting:
            self._mark_is_text = True
            return
        if not text:
            return
        if self.may_end_alone and "</think" in text and self.is_judging:
            self._look_for_lone_end(text)
        self.add_prose(text)

    def add_prose(self, text: str) -> None:
        if text[-1:] not in _BLANKS:
            self.indent = -1
        elif self.indent >= 0 or "\n" in text:
            self.indent = _indent_after(self.indent, text)
        if self.is_silent:
            self.is_silent = not text.strip()
        if self._unmarked and (self._braced or self._unmarked in text):
            self._braced.append(text)
        self._unread.append(text)
        if self._is_plain:
            # The usual case: nothing but prose so far.
            self.cursor.forget()
            self._pieces.append(text)
            return
        if self.log.blocks:
            self._part_from_block(text)
        else:
            self.cursor.forget()
        self.log.add(TEXT, text)

    def add_reasoning(self, text: str) -> None:
        if self.quoting:
            return
        self._is_plain = False
        if self.log.blocks:
            self._swallow(self._take().removesuffix(text))
        else:
            self.cursor.forget()
        self.log.add(REASONING, text)

    def add_call(self, call: CallWritten) -> None:
        if self.quoting:
            self._mark_calls.append(call)
            return
        self._is_plain = False
        raw = self._take()
        block = self.log.last_block()
        if block is None or raw or not block.calls:
            block = self._block(raw, [call])
        else:
            block.calls.append(call)
            block.end = self.cursor.offset
        if self.is_judging and call.flaw is not None and self.may_end_alone and "</think" in block.text:
            self._restart_behind_lone_end(block)

    def _block(self, raw: str, calls: list[CallWritten]) -> Item:
        """Add calls with their text to the log, and tell the tracker of them."""
        end = self.cursor.offset
        block = Item(CALLS, raw, end - len(raw), end, self.indent >= 0, calls)
        self._is_plain = False
        if self.is_judging:
            self._read_unread()
            self._tracker.add_call(block, "" if block.is_whole else raw)
            self._quoted_here = self._tracker.quoted()
            if self.is_spoilt or self._may_be_in_value():
                block.quoted = NESTED
            elif self.has_invented_turn:
                block.quoted = quoting.INVENTED_TURN
        self.log.add_block(block)
        return block

    def _may_be_in_value(self) -> bool:
        """True if the current place may be in a value of a call that prose quotes: after a brace that begins no whole JSON
        object, or an unclosed call in Python's notation."""
        text = "".join(self._braced)
        self._braced.clear()
        if text and self._unmarked == "[":
            at = 0
            while found := _PYTHON_CALL.search(text, at):
                at = found.end()
                if resolve_name(found[1], self.tools) is not None:
                    at = _end_of_list(text, found.start())
                    if not at:
                        self.is_spoilt = True
                        return True
            return False
        at = text.find(self._unmarked) if text else -1
        while at >= 0:
            placeholder = _PLACEHOLDER.match(text, at)
            try:
                end = placeholder.end() if placeholder else _DECODER.raw_decode(text, at)[1]
            except (ValueError, RecursionError):
                if _OBJECT.match(text, at):
                    self.is_spoilt = True
                    return True
                end = at + 1
            at = text.find(self._unmarked, end)
        return False

    def forget(self) -> None:
        """Drop what was read last, which is no part of a call."""
        if self.quoting:
            return
        if self.log.blocks:
            self._swallow(self._take())
        else:
            self.cursor.forget()

    def drop(self, mark: str) -> None:
        """Drop the mark of a reasoning channel, which is no part of a call before it."""
        if not self.log.blocks:
            self.cursor.forget()
        elif before := self._take().removesuffix(mark):
            self._swallow(before)

    def note_nested(self, name: str) -> None:
        """Note a call of this tool in a value of a broken call."""
        if not self.quoting:
            self.log.not_run.append(CallNotRun(name, NESTED))

    # -- what is quoted

    def quoted(self) -> str | None:
        """Return how a mark at this place may be quoted; None if it is not."""
        if self._unread and self.is_judging:
            self._read_unread()
            self._quoted_here = self._tracker.quoted()
        return self._quoted_here

    def _read_unread(self) -> None:
        if self._unread:
            self._tracker.feed("".join(self._unread))
            self._unread.clear()

    def begin_message(self) -> None:
        """Close all open quotations at the beginning of a message."""
        self._read_unread()
        self._tracker.begin_message()
        self._quoted_here = None

    def begin_quoted(self, mark: str, reason: str) -> None:
        """Begin to read what may be a quoted call, after its mark: the grammar reads it up to `end_quoted` like a call."""
        self.quoting = reason
        self._mark_end = self.cursor.untaken
        self._mark_calls = []
        self._mark_is_text = False

    def end_quoted(self, *, reads_again: bool = True) -> None:
        """Settle what was read since the mark: calls, if one has a name, else prose. `reads_again`: the text after the mark is
        then read again, because it may have marks of its own."""
        if not self.quoting:
            return
        self.quoting = ""
        text, calls = self.cursor.take(), self._mark_calls
        if not calls and not self._mark_is_text and self.cursor.text.startswith(self.openings, self.cursor.at):
            self.cursor.untake(text)  # a mark around calls, of which one follows
            return
        if not any(call.name for call in calls):
            if reads_again and len(text) <= self._read_again:
                self._read_again -= len(text)
                self.cursor.put_back(text)
                self.cursor.at += self._mark_end
                text = text[: self._mark_end]
            else:
                self.cursor.untake(text)
            self.add_text(text)
            return
        shown = text.rstrip()
        self.cursor.put_back(text[len(shown) :])
        block = self._block(shown, calls)
        if self.is_judging and not block.is_whole and self.may_end_alone and "</think" in text:
            self._restart_behind_lone_end(block, in_values=False)

    # -- thinking

    def begin_channel(self) -> None:
        """Open a reasoning channel: text that was held for a lone end of thinking is prose."""
        self.may_end_alone = False
        self._holds_all = False

    def channel_marks(self, ends: tuple[str, ...]) -> Finder:
        """Return the marks that end a reasoning channel, and those that may begin a call in it."""
        if ends not in self._channel_marks:
            openings = (opening for opening in self.openings if not any(opening in end for end in ends))
            self._channel_marks[ends] = finder((*ends, *openings))
        return self._channel_marks[ends]

    def hold_reasoning(self, *, held: bool) -> None:
        """Begin or end to hold reasoning back, because a call may begin here if the reasoning is never closed."""
        self.log.close()
        if held and not self.log.blocks:
            self._events += self.log.emit(self.log.items)
            self.log.items.clear()
        self._holds_reasoning = held

    def end_alone(self, *, in_value: bool = False) -> None:
        """Handle a closing think tag without an opening one: all text before it is reasoning, except for prose that was
        emitted. `in_value`: it is in a value of a call that may be quoted."""
        self.log.close()
        is_reasoning = self._holds_all
        for item in self.log.items:
            if item.kind == CALLS:
                self.log.note_not_run(item.calls, quoting.THINKING)
                is_reasoning = True
            if is_reasoning:
                item.kind = REASONING
        self.log.blocks = 0
        self.may_end_alone = self._holds_all = self._is_plain = False
        self.had_lone_end = True
        self.cursor.forget()
        self.indent = 0
        self.is_silent = True
        if not in_value:
            self.begin_message()

    def _look_for_lone_end(self, text: str) -> None:
        """Look for a lone end of thinking in text that a grammar held for a call."""
        found = _LONE_END.search(text)
        if found is not None:
            self.cursor.forget()
            self.may_end_alone = False
            self.add_prose(text[: found.start()])
            self._restart(text[found.end() :])

    def _restart_behind_lone_end(self, block: Item, start: int = 0, *, in_values: bool = True) -> None:
        """Restart the grammar after a lone end of thinking in a broken call, which was only a mark in the thinking."""
        found = _LONE_END.search(block.text, start)
        if found is None:
            return
        before, behind = block.text[: found.start()], block.text[found.end() :]
        in_value = is_in_value(before)
        if in_value and not in_values:
            return
        block.text = before
        if in_value:
            self._torn = Torn(block.text)
        self._restart(behind, in_value=in_value)

    def _restart(self, behind: str, *, in_value: bool = False) -> None:
        self.end_alone(in_value=in_value)
        self.cursor.put_back(behind)
        raise RestartError

    # -- the text of calls

    def _part_from_block(self, text: str) -> None:
        """Part prose from the text of the calls before it: what was read between them belongs to the calls."""
        taken = self._take()
        if taken == text:
            return
        if taken.endswith(text):
            self._swallow(taken[: len(taken) - len(text)])
        elif not taken and (last := self.log.last_block()) is not None and last.text.endswith(text):
            last.text = last.text[: len(last.text) - len(text)]

    def _take(self) -> str:
        """Take the text since the last call of this. Text that was put back after a call does not belong to the call."""
        text = self.cursor.take()
        if self.log.blocks and (last := self.log.last_block()) is not None:
            overlap = last.end - (self.cursor.offset - len(text))
            if 0 < overlap <= len(last.text):
                last.text = last.text[: len(last.text) - overlap]
                last.end -= overlap
        return text

    def _swallow(self, text: str) -> None:
        """Add text to the calls before it, or as a part of them behind prose: an end mark, or what belongs to no call."""
        if not text or not self.log.blocks:
            return
        last = self.log.last_block()
        start = 0
        if last is None:
            self.log.close()
            self._read_unread()
            self._tracker.add_mark()
            self._quoted_here = self._tracker.quoted()
            before = next((item for item in reversed(self.log.items) if item.kind == CALLS), None)
            last = Item(CALLS, text, self.cursor.offset - len(text), part_of=before)
            self.log.add_block(last)
        else:
            if last.is_whole:
                start = len(last.text)
            last.text += text
        last.end = self.cursor.offset
        if self.is_judging and self.may_end_alone and "</think" in text:
            self._restart_behind_lone_end(last, start)

    # -- what comes out

    def take(self) -> list[ModelEvent]:
        """Return the new events that later text cannot change."""
        if self._is_plain and not self._holds_all:
            pieces = self._pieces
            if not pieces:
                return []
            text = pieces[0] if len(pieces) == 1 else "".join(pieces)
            pieces.clear()
            if len(self._unread) > _MOST_UNREAD:
                self._unread = ["".join(self._unread)]
            if "\n" in text or "`" in text or self.log.may_lead:
                text = self.log.hold_lead(text)
            return [TextDelta(text)] if text else []
        events, self._events = self._events, []
        if self._holds_all or self._holds_reasoning:
            return events
        return [*events, *self.log.take()]

    def finish(self, is_echo: EchoCheck, *, is_cut: bool = False) -> list[ModelEvent]:
        """Return the remaining events at the end of the text, or where it was cut."""
        items = self._items_left(is_cut=is_cut)
        events = self._events
        as_written = ""
        if self.rules is not None and self.log.blocks:
            judged = judge(
                items,
                self._tracker,
                self.rules,
                is_echo,
                prose_before=self._tracker.at - sum(len(item.text) for item in items if item.kind == TEXT),
                begins_line=self.log.begins_line,
                torn=self._torn,
            )
            items, as_written = list(judged.items), judged.as_written
        self._events = []
        self._holds_all = self._holds_reasoning = False
        self.log.items = []
        if as_written:
            events.append(CallsNotAlone(as_written))
        events += self.log.emit(items)
        self.log.blocks = 0
        return [*self.log.not_run, *events]

    def replace_unclosed(self, items: list[Item]) -> None:
        """Replace the held part of unclosed reasoning."""
        self.log.close()
        del self.log.items[-1:]
        self.log.items += items
        self.log.blocks += sum(item.kind == CALLS for item in items)

    def items_left(self) -> list[Item]:
        items = self._items_left()
        judge_nested(items, self._torn)
        return items

    def _items_left(self, *, is_cut: bool = False) -> list[Item]:
        self.end_quoted(reads_again=False)
        self.forget()
        self.log.close()
        if self.is_judging and self.log.blocks:
            self._read_unread()
            self._tracker.finish(is_cut=is_cut)
        return self.log.items


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
