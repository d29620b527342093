"""Collects what a reader finds in a text: prose, reasoning and calls, in order; and handles what all formats have in common.

`<think>` blocks and a format's own reasoning channels become reasoning, special tokens are dropped, and everything else that is
no mark of the grammar is prose. Text that is quoted, repeated or part of the reasoning is no call: a mark in a quoted place
opens nothing, and a call is held, with its text, until the text has ended, because later text may show that it was no call.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from msgspec.structs import replace

from callgate.calls.names import resolve_name
from callgate.calls.states import Flaw
from callgate.conversation.events import CallNotRun, CallWritten, ModelEvent, ReasoningDelta, TextDelta
from callgate.text_calls import quoting
from callgate.text_calls.nesting import Nesting, Torn, has_open_marks, is_in_value
from callgate.text_calls.quoting import CALL_HERE, OpenSpan, ParagraphRest, QuoteTracker
from callgate.text_calls.text_cursor import Finder, Steps, TextCursor, finder

THINK_TAGS: Final[Mapping[str, str]] = {"<think>": "</think>", "<thinking>": "</thinking>"}

TAB = quoting.TAB

ASIDE: Final = ""
"""What `Prose.step` returns for a mark that it has handled: of reasoning, or a dropped token."""

Thinking = Literal["unknown", "prefilled", "none"]
"""Whether the model's template opens its thinking: with `unknown` text is held until it is clear, with `prefilled` the text
begins as reasoning, with `none` text is emitted at once. A call before a lone end of thinking never runs."""

_SPECIAL = re.compile(
    r"(?:[ \t\r;,]|<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</?[\w:｜]{1,40}>|\[/?[A-Z_]{2,40}\]|<\w{1,20}_of_\w{1,20}>"
    r"|<\w{1,20}\|>|<\|\w{1,20}>|\[e~\[)*"
)
"""What may follow a call on its line: blanks, separators, special tokens and end tags."""
_SPECIAL_STARTS = "<[ \t\r;,"
_SPECIAL_LIMIT = 512
_SPOKEN = frozenset({quoting.LISTED, quoting.TABLE, quoting.INDENTED, quoting.QUOTATION})
"""Kinds of quoting inside which special tokens at the end of an answer are still dropped."""
_NEW_MESSAGE = re.compile(
    r"<\|(?:start|message|channel|content_\w+|message_model|im_start|open|START_\w+)\|>|<\|tool_response>|<start_function_response>"
)
"""Tokens after which prose is unrelated to a call before them."""
_BEFORE_CALL = frozenset({"<|python_tag|>"})
"""Tokens that count as the beginning of a line for a call after them."""
_PLACEHOLDER = re.compile(r"\{\w*\}")
_PYTHON_CALL = re.compile(r"\[\s*([\w.\-]+)\(")
_PYTHON_PART = re.compile(
    r"\"\"\".*?\"\"\"|'''.*?'''|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[\"'()\[\]{}]", re.DOTALL
)
_DECODER = json.JSONDecoder()
_COLON = re.compile(r"[:：]")
_FENCE_RUN = re.compile(r"```+|~~~+")
_WORDS = re.compile(r"\w[.,:;!?]?[ \t]+\w")
_MOST_UNREAD = 16_384
"""Pieces of prose that are kept before they are joined, because small strings take much memory."""
_READ_AGAIN = 262_144
"""Characters of one answer that may be read twice, where a quoted mark opened no call. Beyond that it is taken for a call."""
_NO_INTRO = f" \t\r\n{CALL_HERE}"
_MENTION_LIMIT = 120
_INTRO_LIMIT = 400


class _BrokenText(str):
    """The text of a broken call."""

    __slots__ = ()


class RestartError(Exception):
    """Raised to restart the grammar after the cursor: what it took for a call was thinking."""


TEXT, REASONING, CALLS = "text", "reasoning", "calls"


@dataclass(slots=True)
class Item:
    """A section of the text: prose, reasoning, or calls with their text."""

    kind: str
    text: str
    start: int = 0
    """The position of calls in the whole text."""
    at_line_start: bool = False
    """Only blanks precede them on their line."""
    calls: list[CallWritten] = field(default_factory=list)
    end: int = 0
    size: int = 0
    """The length of the calls' own text; what follows are end marks and blanks."""
    span: OpenSpan | None = None
    """A quotation that was open before the calls, and quotes them if it closes after them."""
    quoted: str | None = None
    """The reason why they do not run."""
    intro: str = ""
    """The last line before them."""

    @property
    def is_whole(self) -> bool:
        return all(call.flaw is None for call in self.calls)

    @property
    def is_blank_text(self) -> bool:
        return self.kind == TEXT and not self.text.strip()

    @property
    def has_prose_in_it(self) -> bool:
        """True if more than end marks was read after the calls."""
        return _WORDS.search(self.text, self.size) is not None

    @property
    def aside(self) -> str:
        """Return evidence that the calls may be an example: prose that was read with them, or indentation as code."""
        if self.has_prose_in_it:
            return self.text[self.size :].strip()
        return quoting.INDENTED if self.span is not None and quoting.INDENTED in self.span.ends else ""


EchoCheck: TypeAlias = Callable[[Item], bool]
"""Returns whether the text of calls is in the request."""


@dataclass(frozen=True, slots=True)
class Unclosed:
    """Unclosed reasoning with a line in it that begins like a call."""

    text: str
    call_may_begin: int
    """The position of that line."""


class EventSink:
    """Collects the events of the text so far, and its state for grammars."""

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
        fenced_runs: bool = True,
        is_judging: bool = True,
    ) -> None:
        """`unmarked`: text that every call without marks has; prose with it may begin a call with the rest in its value.
        `is_judging`: whether quoted calls are prose; without it every call that the grammar finds counts."""
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
        self.fenced_runs = fenced_runs
        self.is_judging = is_judging
        self.may_end_alone = thinking != "prefilled"
        """There was no think tag so far."""
        self.had_lone_end = False
        self.is_spoilt = False
        """A call without an end mark broke off in a string, or may be quoted, so that all following text may be part of it."""
        self.quoting = ""
        """The reason why the current text is quoted: its calls do not run, and its text is prose."""
        self.unclosed: Unclosed | None = None
        """The reasoning in which the text ended."""
        self.not_run: list[ModelEvent] = []
        self._torn: Torn | None = None
        self._unmarked = unmarked if is_judging else ""
        self._braced: list[str] = []
        """Prose since the first piece in which a call without marks may begin."""
        self._holds_all = thinking == "unknown"
        self._holds_reasoning = False
        self._events: list[ModelEvent] = []
        self._items: list[Item] = []
        self._blocks = 0
        self._run: list[str] = []
        self._run_is_text = True
        self._context = QuoteTracker() if is_judging else None
        self._quoted_here: str | None = None
        """How the place after all text that the quote tracker has read is quoted."""
        self._unread: list[str] = []
        """Prose that the quote tracker has not read yet."""
        self._is_plain = True
        """There was only prose so far."""
        self._open_line: list[Item] = []
        """Calls on the current line."""
        self._line_rest = ""
        self._prose_line = False
        self._tail = ""
        self._channel_marks: dict[tuple[str, ...], Finder] = {}
        self._quoted_mark = ""
        self._quoted_calls: list[CallWritten] = []
        self._read_again = _READ_AGAIN

    # -- what grammars add

    def add_text(self, text: str) -> None:
        """Add prose that was not read by `Prose`: a mark that opened nothing, or text that was held for a call."""
        if self.quoting or not text:
            return
        if self.may_end_alone and "</think" in text and self.is_judging:
            self._look_for_lone_end(text)
        self.add_prose(text)

    def add_prose(self, text: str, context: str | None = None) -> None:
        """Add prose. `context`: its replacement for the quote tracker."""
        if self.indent >= 0 or "\n" in text:
            self.indent = _indent_after(self.indent, text)
        if self.is_silent:
            self.is_silent = not text.strip()
        if self._unmarked and (self._braced or self._unmarked in text):
            self._braced.append(text)
        if self._is_plain:
            # The usual case: nothing but prose so far.
            self.cursor.forget()
            self._unread.append(text if context is None else context)
            self._run.append(text)
            return
        if self._blocks:
            self._add_behind_block(text)
        else:
            self.cursor.forget()
            if self._prose_line and "\n" in text:
                self._prose_line = False
        self._unread.append(text if context is None else context)
        if not self._run_is_text:
            self._end_run()
            self._run_is_text = True
        self._run.append(text)

    def add_reasoning(self, text: str) -> None:
        if self.quoting:
            return
        self._is_plain = False
        if self._blocks:
            self._swallow(self._take().removesuffix(text))
        else:
            self.cursor.forget()
        if self._run_is_text:
            self._end_run()
            self._run_is_text = False
        self._run.append(text)

    def add_call(self, call: CallWritten) -> None:
        if self.quoting:
            self._quoted_calls.append(call)
            return
        self._is_plain = False
        self._end_run()
        raw = self._take()
        last = self._items[-1] if self._items else None
        if last is not None and last.kind == CALLS and not raw:
            block = last
        else:
            start = self.cursor.offset - len(raw)
            span = self._context.open_span() if self._context is not None and self.quoted() is None else None
            quoted = quoting.NESTED if self.is_spoilt or self._may_be_in_value() else None
            if quoted is None and self._is_behind_invented_turn():
                quoted = quoting.INVENTED_TURN
            block = Item(CALLS, raw, start, self.indent >= 0, span=span, quoted=quoted)
            block.intro = self._tail.rstrip(_NO_INTRO).rpartition("\n")[2]
            self._items.append(block)
            self._blocks += 1
            self._open_line.append(block)
            # The text of a broken call may open a quotation of later text.
            self._note_call_text(raw, is_whole=call.flaw is None)
        block.calls.append(call)
        block.size, block.end = len(block.text), self.cursor.offset
        if not self.is_judging:
            return
        if call.flaw is not None and self.may_end_alone and "</think" in block.text:
            self._restart_behind_lone_end(block)
        if self._prose_line:
            self._demote_prose([block])
            self._open_line.clear()

    def _is_behind_invented_turn(self) -> bool:
        if self._context is None:
            return False
        self.quoted()
        return self.has_invented_turn or self._context.is_behind_invented_turn

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
                self.is_spoilt = True
                return True
            at = text.find(self._unmarked, end)
        return False

    def forget(self, mark: str = "") -> None:
        """Drop `mark`, which was read last and is no part of a call."""
        if self.quoting:
            return
        if not self._blocks:
            self.cursor.forget()
            return
        self._swallow(self._take())
        if not mark or _NEW_MESSAGE.search(mark):
            return
        # After a mark behind calls, perhaps on a line of its own, the calls end with its line.
        if not self._open_line and self._items and self._items[-1].calls and not self._run:
            self._open_line = [self._items[-1]]
            self._line_rest = ""

    def drop(self, mark: str) -> None:
        """Drop the mark of a reasoning channel, which is no part of a call before it."""
        if not self._blocks:
            self.cursor.forget()
        elif before := self._take().removesuffix(mark):
            self._swallow(before)

    def prose(self, *marks: str) -> "Prose":
        return Prose(self, marks)

    # -- what is quoted

    def quoted(self) -> str | None:
        """Return why a call at this place would be quoted; None if it would not."""
        if self._unread and self._context is not None:
            self._read_unread(self._context)
            self._quoted_here = self._context.quoted()
        return self._quoted_here

    def _read_unread(self, context: QuoteTracker) -> None:
        run: list[str] = []
        for text in self._unread:
            if type(text) is not _BrokenText:
                run.append(text)
                continue
            self._read_run(context, run)
            has_fence = "```" in text or "~~~" in text
            context.feed(CALL_HERE + (_FENCE_RUN.sub("", text) if has_fence else text).lstrip())
            if has_fence:
                context.doubt_fences(any_number=True)
            if _COLON.search(text, max(0, len(text) - _MENTION_LIMIT)):
                self._tail = text[-_MENTION_LIMIT:]
        self._unread.clear()
        self._read_run(context, run)

    def _read_run(self, context: QuoteTracker, run: list[str]) -> None:
        text = "".join(run)
        run.clear()
        context.feed(text)
        self._tail = (self._tail + text)[-_INTRO_LIMIT:]

    def begin_message(self) -> None:
        """Close all open quotations at the beginning of a message."""
        self._unread.clear()
        self._tail = ""
        self._quoted_here = None
        if self._context is not None:
            self._context = QuoteTracker()

    def begin_quoted(self, mark: str, reason: str) -> None:
        """Begin a quoted call after its mark was read: the grammar reads it up to `end_quoted` like a call."""
        if self.cursor.untaken > len(mark):
            self._swallow(self.cursor.take().removesuffix(mark))
            self.cursor.put_back(mark)
            self.cursor.at += len(mark)
        self.quoting, self._quoted_mark = reason, mark
        self._quoted_calls = []

    def _note_call_text(self, text: str, *, is_whole: bool) -> None:
        """Note the text of a call for the quote tracker. The text of a broken one may begin a quotation, and its fences may or
        may not be its own."""
        self._unread.append(CALL_HERE if is_whole else _BrokenText(text))

    def end_quoted(self, *, reads_again: bool = True) -> None:
        """Make all text since the mark prose. `reads_again`: if it was no call, the text after the mark is read again, because
        it may have marks of its own."""
        if not self.quoting:
            return
        reason, self.quoting = self.quoting, ""
        text, mark = self.cursor.take(), self._quoted_mark
        found = Item(CALLS, text, calls=self._quoted_calls, quoted=reason)
        if not any(call.name for call in found.calls):
            if reads_again and len(text) <= self._read_again:
                self._read_again -= len(text)
                self.cursor.put_back(text)
                self.cursor.at += len(mark)
                text = mark
            else:
                self.cursor.untake(text)
            self.add_text(text)
            return
        if not found.is_whole and self.may_end_alone and "</think" in text:
            self._restart_behind_lone_end_in(text)
        if has_open_marks(found):
            self._is_plain = False
            self._end_run()
            self._items.append(found)
            self._blocks += 1
            found.size, found.end = len(text), self.cursor.offset
            self._note_call_text(text, is_whole=False)
            return
        offered = [call.name for call in found.calls if call.name and resolve_name(call.name, self.tools)]
        self.not_run += [CallNotRun(name, reason) for name in offered]
        self.cursor.untake(text)
        is_known = found.is_whole or reason == quoting.BLOCK_QUOTE
        if not is_known and "```" in text and self._context is not None:
            self.quoted()
            self._context.doubt_fences(any_number=True)
        self.add_prose(text, f"{CALL_HERE}{text[len(text.rstrip()) :]}" if is_known else None)

    # -- thinking

    def begin_channel(self) -> None:
        """Open a reasoning channel: text that was held for a lone end of thinking is prose."""
        self.may_end_alone = False
        self._holds_all = False

    def passes_channel(self, mark: str) -> bool:
        """Read the reasoning channel after its mark, if it is complete."""
        cursor, end = self.cursor, self.channels[mark]
        place = cursor.text.find(end, cursor.at)
        if place < 0:
            return False
        self.drop(mark)
        self.may_end_alone = self._holds_all = False
        if place > cursor.at:
            start, cursor.at = cursor.at, place
            self.add_reasoning(cursor.text[start:place])
        cursor.at = place + len(end)
        self.drop(end)
        return True

    def channel_marks(self, ends: tuple[str, ...]) -> Finder:
        """Return the marks that end a reasoning channel, and those that may begin a call in it."""
        if ends not in self._channel_marks:
            openings = (opening for opening in self.openings if not any(opening in end for end in ends))
            self._channel_marks[ends] = finder((*ends, *openings))
        return self._channel_marks[ends]

    def hold_reasoning(self, *, held: bool) -> None:
        """Begin or end to hold reasoning back, because a call may begin here if the reasoning is never closed."""
        self._end_run()
        if held and not self._blocks:
            self._emit(self._items)
            self._items.clear()
        self._holds_reasoning = held

    def end_alone(self, *, in_value: bool = False) -> None:
        """Handle a closing think tag without an opening one: all text before it is reasoning, except for prose that was
        emitted. `in_value`: it is in a value of a call that may be quoted."""
        self._end_run()
        is_reasoning = self._holds_all
        for item in self._items:
            if item.kind == CALLS:
                self.note_not_run(item.calls, quoting.THINKING)
                is_reasoning = True
            if is_reasoning:
                item.kind = REASONING
        self.may_end_alone, self.had_lone_end = False, True
        self._holds_all = False
        self._blocks = 0
        self.cursor.forget()
        self.indent, self.is_silent, self._prose_line = 0, True, False
        self._open_line.clear()
        self._is_plain = False
        if not in_value:
            self.begin_message()

    def _restart_behind_lone_end_in(self, text: str) -> None:
        """Restart the grammar after a lone end of thinking in quoted text that was just read."""
        found = _LONE_END.search(text)
        if found is None or is_in_value(text[: found.start()]):
            # The whole call is quoted, with any tags in its values.
            return
        self.end_alone()
        self.add_reasoning(text[: found.start()])
        self.cursor.put_back(text[found.end() :])
        raise RestartError

    def _look_for_lone_end(self, text: str) -> None:
        """Look for a lone end of thinking in text that a grammar held for a call."""
        found = _LONE_END.search(text)
        if found is None:
            return
        taken = self.cursor.take()
        place = taken.find(text)
        behind = taken[place + found.end() :] if place >= 0 else text[found.end() :]
        self.may_end_alone = False
        if before := text[: found.start()]:
            self.add_prose(before)
        self.end_alone()
        self.cursor.put_back(behind)
        raise RestartError

    def _restart_behind_lone_end(self, block: Item, start: int = 0) -> None:
        """Restart the grammar after a lone end of thinking in a broken call, which was only a mark in the thinking."""
        found = _LONE_END.search(block.text, start)
        if found is None:
            return
        behind = block.text[found.end() :]
        block.text = block.text[: found.start()]
        in_value = is_in_value(block.text)
        if in_value:
            self._torn = Torn(block.text)
        self.end_alone(in_value=in_value)
        self.cursor.put_back(behind)
        raise RestartError

    # -- what follows a call

    def _add_behind_block(self, text: str) -> None:
        """Add text after a held call: end marks belong to the call's text, and prose on the same line shows that it was no
        call."""
        taken = self._take()
        if taken != text:
            if taken.endswith(text):
                self._swallow(taken[: len(taken) - len(text)])
            elif taken.startswith(text):
                self.cursor.untake(taken[len(text) :])
            elif not taken and not self._run and (last := self._items[-1]).kind == CALLS and last.text.endswith(text):
                last.text = last.text[: len(last.text) - len(text)]
        if not self._open_line:
            if self._prose_line and "\n" in text:
                self._prose_line = False
            return
        line, line_break, _ = text.partition("\n")
        self._line_rest += line
        shown = self._line_rest.lstrip(" \t\r;,")
        is_prose = bool(shown) and shown[0] not in _SPECIAL_STARTS
        if (line_break or len(shown) > _SPECIAL_LIMIT) and not is_prose:
            is_prose = not _ends_calls(self._line_rest)
        if is_prose:
            self._prose_line = not line_break
            self._demote_prose(self._open_line)
        if is_prose or line_break:
            self._open_line.clear()
            self._line_rest = ""

    def _take(self) -> str:
        """Take the text since the last call of this. Text that was put back after a call does not belong to the call."""
        text = self.cursor.take()
        if self._blocks and not self._run and (last := self._items[-1]).kind == CALLS:
            overlap = last.end - (self.cursor.offset - len(text))
            if 0 < overlap <= len(last.text):
                last.text = last.text[: len(last.text) - overlap]
                last.size = min(last.size, len(last.text))
                last.end -= overlap
        return text

    def _swallow(self, text: str) -> None:
        if text and self._blocks:
            if _NEW_MESSAGE.search(text):
                self._open_line, self._line_rest = [], ""
            self._end_run()
            if len(self._items) > 1 and self._items[-2].kind == CALLS and self._items[-1].is_blank_text:
                # Blanks between calls and their end mark.
                text = self._items.pop().text + text
                self._unread.append(CALL_HERE)
            if (last := self._items[-1]).kind == CALLS:
                last.text += text
                last.end = self.cursor.offset
            else:
                self._items.append(last := Item(CALLS, text, self.cursor.offset - len(text)))
                self._blocks += 1
            if self.is_judging and self.may_end_alone and "</think" in text:
                self._restart_behind_lone_end(last, last.size if last.is_whole else 0)

    def _demote_prose(self, blocks: list[Item]) -> None:
        """Make calls prose because prose follows them. A broken call is still reported to the model if it was alone before."""
        self._demote([block for block in blocks if block.is_whole or not block.at_line_start], quoting.PROSE_BEHIND)

    def _demote(self, blocks: list[Item], reason: str) -> None:
        """Make calls prose."""
        if not self.is_judging:
            return
        for block in blocks:
            self.note_not_run(block.calls, reason)
            block.kind = TEXT
            self._blocks -= 1

    def note_nested(self, name: str) -> None:
        """Note a call of this tool in a value of a broken call."""
        if not self.quoting:
            self.not_run.append(CallNotRun(name, quoting.NESTED))

    def note_not_run(self, calls: Iterable[CallWritten], reason: str) -> None:
        self.not_run += [CallNotRun(call.name, reason) for call in calls if call.name and call.flaw is None]

    # -- what comes out

    def take(self) -> list[ModelEvent]:
        """Return the new events that later text cannot change."""
        if self._is_plain and not self._holds_all:
            if not self._run:
                return []
            text = self._run[0] if len(self._run) == 1 else "".join(self._run)
            self._run.clear()
            if len(self._unread) > _MOST_UNREAD:
                self._unread = ["".join(self._unread)]
            return [TextDelta(text)] if text else []
        if self._holds_all or self._holds_reasoning:
            events, self._events = self._events, []
            return events
        if not self._blocks:
            self._end_run()
            self._emit(self._items)
            self._items.clear()
        else:
            first = next(place for place, item in enumerate(self._items) if item.kind == CALLS)
            self._emit(self._items[:first])
            del self._items[:first]
        events, self._events = self._events, []
        return events

    def finish(self, is_echo: EchoCheck) -> list[ModelEvent]:
        """Return the remaining events at the end of the text."""
        self.end_quoted(reads_again=False)
        self._end_run()
        self.forget()
        if self._open_line and not _ends_calls(self._line_rest):
            self._demote_prose(self._open_line)
        if self.is_judging and self._blocks:
            self._judge_nested()
            self._judge_kept(is_echo)
        self._holds_all = self._holds_reasoning = False
        self._emit(self._items)
        self._items.clear()
        self._blocks = 0
        events, self._events = self._events, []
        return events

    def replace_unclosed(self, items: list[Item]) -> None:
        """Replace the held part of unclosed reasoning."""
        self._end_run()
        del self._items[-1:]
        self._items += items
        self._blocks += sum(item.kind == CALLS for item in items)

    def items_left(self) -> list[Item]:
        self.end_quoted(reads_again=False)
        self._end_run()
        self.forget()
        self._judge_nested()
        return self._items

    def _judge_nested(self) -> None:
        """Make calls inside other calls a part of those, and mark calls whose reader missed inner calls as broken."""
        if self._torn is not None:
            self._judge_torn(self._torn)
        suspects = [item for item in self._items if item.kind == CALLS and has_open_marks(item)]
        if not suspects:
            return
        nesting = Nesting("".join("" if item.kind == REASONING else item.text for item in self._items))
        at = end = 0
        for item in self._items:
            if item.kind == CALLS and at < end:
                item.quoted = item.quoted or quoting.NESTED
            elif any(item is suspect for suspect in suspects):
                end = nesting.reach(item, at)
                if end > at + len(item.text) and item.is_whole:
                    item.calls = [replace(call, arguments=None, flaw=Flaw.INVALID_MARKUP) for call in item.calls]
            at += 0 if item.kind == REASONING else len(item.text)

    def _judge_torn(self, torn: Torn) -> None:
        """Handle an end of thinking in the value of a call. If the call ends after it, it was no end of thinking, and the text
        up to the call's end is part of its value."""
        items = [item for item in self._items if item.kind != REASONING]
        end = torn.reach("".join(item.text for item in items))
        at = 0
        for item in items:
            if item.kind == CALLS and at < end:
                item.quoted = item.quoted or quoting.NESTED
            at += len(item.text)

    def _judge_kept(self, is_echo: EchoCheck) -> None:
        rest = ParagraphRest()
        ends_thinking = False
        behind = ""
        for item in reversed(self._items):
            if item.kind != CALLS:
                if item.kind == TEXT:
                    ends_thinking = ends_thinking or _LATER_END.search(item.text) is not None
                    rest.add_before(item.text)
                    behind = item.text if _WORDS.search(item.text) else behind
                continue
            swallowed = item.text[item.size :]
            if swallowed or not item.is_whole:
                # The end of a quotation may be in the text of a broken call.
                rest.add_before(swallowed if item.is_whole else item.text)
            if item.quoted is not None:
                self._demote([item], item.quoted)
                continue
            ends_thinking = ends_thinking or (bool(swallowed) and _LATER_END.search(swallowed) is not None)
            if ends_thinking:
                self._demote([item], quoting.THINKING)
                continue
            reason = item.span.is_closed_by(rest) if item.span is not None else None
            if reason is None and quoting.is_only_shown(item.intro, behind or item.aside):
                reason = quoting.EXAMPLE
            if reason is None and item.calls and item.is_whole and is_echo(item):
                reason = quoting.ECHO
            if reason is not None:
                self._demote([item], reason)

    def _emit(self, items: list[Item]) -> None:
        """Emit items; consecutive prose or reasoning is one event."""
        run: list[str] = []
        kind = TEXT
        for item in items:
            if item.kind != kind:
                _append_run(self._events, run, kind)
                run, kind = [], item.kind
            if kind == CALLS:
                self._events += item.calls
            else:
                run.append(item.text)
        _append_run(self._events, run, kind)

    def _end_run(self) -> None:
        if self._run:
            self._items.append(Item(TEXT if self._run_is_text else REASONING, "".join(self._run)))
            self._run = []


def _ends_calls(line: str) -> bool:
    """True if the rest of a line with calls is no prose of the model's own."""
    turn = quoting.TURN.search(line)
    return _SPECIAL.fullmatch(line, 0, turn.start() if turn else len(line)) is not None


def _append_run(events: list[ModelEvent], run: list[str], kind: str) -> None:
    if text := "".join(run):
        events.append(TextDelta(text) if kind == TEXT else ReasoningDelta(text, source="text"))


_LINE_REST = re.compile(r"[^<{\[\n]*")
_SENTENCE_ENDS = re.compile(r"[\"'”’»).,;:!?]+(?:\s|$)")
_WORDS_BEHIND = re.compile(r"[ \t]+([^\W\d_]+)(?:[ \t]+[^\W_]|[.,;:!?](?:\s|$)|[ \t]*$)")
_LATER_END = re.compile(r"(?:^|\n)[ \t]*</think(?:ing)?>")
"""A further lone end of thinking: only at the beginning of a line, because inside a line the tag may be mentioned."""
_LONE_END = re.compile("|".join(map(re.escape, THINK_TAGS.values())))


class Prose:
    """Reads prose up to one of a grammar's marks."""

    def __init__(self, out: EventSink, marks: tuple[str, ...]) -> None:
        self._out = out
        self._marks = frozenset(marks) - {"\n"}
        self._mentionable = {mark for mark in out.openings if mark[-1] != "["} if out.is_judging else ()
        self._asides = (*out.channels, *out.dropped)
        self._lone_ends = frozenset(out.channels.values()) - set(self._asides)
        self._stray_ends = self._lone_ends - frozenset(THINK_TAGS.values())
        """The tokens of the format, without think tags, which a model may write about."""
        self._finder = finder((*marks, *self._asides, *sorted(self._stray_ends)))
        self._first_finder = finder((*marks, *self._asides, *sorted(self._lone_ends)))

    def step(self) -> Steps[str | None]:
        """Emit text up to the next mark, read and return it. `ASIDE`: it was no mark of the grammar and is handled. None: the
        text has ended."""
        out = self._out
        if out.quoting:
            out.end_quoted()
        current = self._first_finder if out.may_end_alone else self._finder
        mark = yield from out.cursor.until(current, out.add_prose)
        if mark is None or mark == "\n":
            return mark
        reason = out.quoted()
        if mark in out.dropped and (not reason or reason in _SPOKEN):
            out.forget(mark)
            if mark in _BEFORE_CALL:
                out.indent = 0
            return ASIDE
        if mark in self._mentionable and out.indent < 0 and (yield from _is_mention(out.cursor, out.tools)):
            out.add_prose(mark)
            return ASIDE
        if reason and mark not in out.openings and not (mark in self._marks and reason in _SPOKEN):
            out.add_prose(mark)
            return ASIDE
        if mark in self._marks:
            if reason and mark in out.openings:
                out.begin_quoted(mark, reason)
            return mark
        if mark not in out.channels or not out.passes_channel(mark):
            yield from self._aside(out, mark)
        return ASIDE

    def _aside(self, out: EventSink, mark: str) -> Steps[None]:
        """Handle a mark that opens no call."""
        if mark in out.channels:
            yield from read_channel(out, (out.channels[mark],), mark)
        elif mark in self._lone_ends and out.may_end_alone:
            out.forget(mark)
            out.end_alone()
        elif mark in self._stray_ends:
            out.forget(mark)
        else:
            out.add_prose(mark)


def _is_mention(cursor: TextCursor, tools: Collection[str]) -> Steps[bool]:
    """Find out whether a mark within a line is only mentioned: a sentence continues after it, or a quotation closes."""
    while True:
        end = min(cursor.at + _MENTION_LIMIT, len(cursor.text))
        found = _LINE_REST.match(cursor.text, cursor.at, end)
        assert found is not None, "it matches nothing as well"
        if found.end() < end or end < len(cursor.text) or not (yield from cursor.more()):
            break
    line, char = found.group(), cursor.text[found.end() : found.end() + 1]
    if not line:
        return False
    if _SENTENCE_ENDS.match(line):
        return True
    if char in ("{", "[") or (char == "<" and (yield from cursor.peek(len(line) + 1)) != "/"):
        return False
    words = _WORDS_BEHIND.match(line)
    return words is not None and words[1] not in tools


def read_channel(out: EventSink, ends: tuple[str, ...], mark: str = "") -> Steps[None]:
    """Read reasoning up to one of `ends`. It is held from a line that begins like a call, where it may have ended if it is
    never closed."""
    cursor = out.cursor
    out.drop(mark)
    out.begin_channel()
    begin, call_may_begin = cursor.offset, -1
    marks = out.channel_marks(ends)
    line = "\n"
    pieces: list[str] = []

    def sink(text: str) -> None:
        nonlocal line
        line = text[text.rfind("\n") :] if "\n" in text else (line + text)[-64:]
        pieces.append(text)
        out.add_reasoning(text)

    while (mark_found := (yield from cursor.until(marks, sink))) not in ends:
        if mark_found is None:
            if call_may_begin >= 0:
                out.unclosed = Unclosed("".join(pieces), call_may_begin - begin)
            return
        if call_may_begin < 0 and ((line[0] == "\n" and not line.strip()) or mark_found in out.ends_thinking):
            call_may_begin = cursor.offset - len(mark_found)
            out.hold_reasoning(held=True)
        sink(mark_found)
    out.drop(mark_found)
    if call_may_begin >= 0:
        out.hold_reasoning(held=False)


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
