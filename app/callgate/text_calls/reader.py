"""Reads tool calls that a model wrote as text, in the formats of `tests/corpus/README.md`.

`reader_for` returns the reader of a format; it is fed text and returns model events. Prose and reasoning are emitted at once,
except for an end that may become a mark; calls are emitted at the end of the text, because later text may show that they were
quoted or part of the reasoning (`event_sink`). `formats` defines the formats; the gate (`callgate.calls`) decides whether a
call may run.
"""

from collections.abc import Collection

from msgspec.structs import replace

from callgate.calls.states import Flaw
from callgate.conversation.events import CallWritten, ModelEvent
from callgate.text_calls.echoes import NO_ECHOES, Echoes
from callgate.text_calls.event_sink import EventSink, RestartError, Thinking
from callgate.text_calls.formats import GRAMMARS, Grammar
from callgate.text_calls.judging import TextRules, judge_nested
from callgate.text_calls.prose import read_channel
from callgate.text_calls.text_cursor import Steps, TextCursor
from callgate.text_calls.text_log import CALLS, TEXT, Item

FORMATS: frozenset[str] = frozenset(GRAMMARS)

_THINK_END = "</think"


def reader_for(
    format: str,
    tools: Collection[str],
    *,
    thinking: Thinking = "none",
    echoes: Echoes = NO_ECHOES,
    is_demanded: bool = False,
    is_judging: bool = True,
) -> "TextReader":
    """Return the reader of a format.

    `tools`: the names of the offered tools; a mapping also has the names of their parameters. `thinking`: whether the model's
    template opens its thinking. `echoes`: compares calls with the text of the request. `is_demanded`: the request demanded a call,
    so that prose behind one is no doubt. Without `is_judging` quoted calls count as well, for text that is known to be only a
    call.
    """
    return TextReader(
        GRAMMARS[format],
        tools,
        thinking=thinking,
        echoes=echoes,
        is_demanded=is_demanded,
        is_judging=is_judging,
    )


class TextReader:
    """Runs a grammar over text in pieces."""

    def __init__(
        self,
        grammar: Grammar,
        tools: Collection[str],
        *,
        thinking: Thinking = "none",
        echoes: Echoes = NO_ECHOES,
        is_demanded: bool = False,
        is_judging: bool = True,
    ) -> None:
        self._grammar = grammar
        self._tools = tools
        self._echoes = echoes
        self._cursor = TextCursor()
        self._out = EventSink(
            self._cursor,
            tools,
            thinking=thinking,
            channels=grammar.channels,
            dropped=grammar.dropped,
            openings=grammar.openings,
            ends_thinking=grammar.ends_thinking,
            unmarked=grammar.unmarked,
            rules=_rules(grammar, is_demanded=is_demanded) if is_judging else None,
        )
        if thinking != "prefilled":
            self._steps = grammar.read(self._out)
        else:
            self._steps = self._read_prefilled()
        self._go_on()

    @property
    def had_lone_end(self) -> bool:
        """True if the text had a closing think tag before any opening one, so that the template opens the thinking."""
        return self._out.had_lone_end

    @property
    def unread_size(self) -> int:
        """The length of the text that is held for an incomplete call."""
        return self._cursor.offset - self._cursor.logged

    def feed(self, text: str) -> list[ModelEvent]:
        if _THINK_END in text:
            text = self._feed_before_ends(text)
        self._cursor.push(text)
        self._go_on()
        return self._out.take()

    def _feed_before_ends(self, text: str) -> str:
        """Feed a text up to its last end of thinking: a tag in the middle of something else begins a new piece."""
        start = 0
        while self._out.may_end_alone and (end := text.find(_THINK_END, start + 1)) > 0:
            self._cursor.push(text[start:end])
            self._go_on()
            start = end
        return text[start:]

    def end_hold(self) -> None:
        """Hold no text for thinking that it may have begun in: the provider told the thinking apart from it."""
        self._out.end_hold()

    def finish(self, *, in_order: bool = True) -> list[ModelEvent]:
        if self._cursor.ended:
            return []
        self._read_to_end()
        if in_order and self._out.is_judging:
            calls = self._calls_at_end_of_thinking()
        else:
            calls = []
        items = self._out.items(calls, is_cut=not in_order)
        return self._out.finish(items, self._echoes.is_echo)

    def break_off(self, flaw: Flaw) -> list[ModelEvent]:
        """Stop reading, and break the current call with this flaw."""
        events = self.finish(in_order=False)
        last = next((at for at in reversed(range(len(events))) if isinstance(events[at], CallWritten)), None)
        if last is not None:
            events[last] = replace(events[last], arguments=None, flaw=flaw)
        return events

    def _go_on(self) -> None:
        """Read what is there, with the grammar that begins anew where it is restarted."""
        while True:
            try:
                next(self._steps, None)
            except RestartError:
                self._steps = self._grammar.read(self._out)
            else:
                return

    def _read_to_end(self) -> None:
        self._cursor.ended = True
        while True:
            self._go_on()
            try:
                self._out.close()
            except RestartError:
                self._steps = self._grammar.read(self._out)
            else:
                return

    def _read_prefilled(self) -> Steps[None]:
        """Read a text that begins in the thinking."""
        out = self._out
        yield from self._cursor.space(out.add_reasoning)
        opened = yield from self._cursor.one_of(tuple(out.channels))
        ends = (out.channels[opened],) if opened else tuple(dict.fromkeys(out.channels.values()))
        yield from read_channel(out, ends, opened or "")
        yield from self._grammar.read(out)

    def _calls_at_end_of_thinking(self) -> list[Item]:
        """Return the calls at the end of unclosed thinking: those from the beginning of a line on, unless more thinking
        follows."""
        unclosed = self._out.unclosed
        if unclosed is None:
            return []
        thinking = self._cursor.between(unclosed.start, self._cursor.offset)
        items = TextReader(self._grammar, self._tools).items_of(thinking)
        first = len(items)
        while first and (items[first - 1].kind == CALLS or not items[first - 1].text.strip()):
            first -= 1
        calls = [item for item in items[first:] if item.kind == CALLS]
        if not calls or not calls[0].calls or unclosed.start + calls[0].start < unclosed.call_may_begin:
            return []
        before = "".join(item.text for item in items[: items.index(calls[0])] if item.kind == TEXT)
        if before.rpartition("\n")[2].strip() and not thinking.startswith(
            self._grammar.ends_thinking or "\n", calls[0].start
        ):
            return []
        return calls

    def items_of(self, text: str) -> list[Item]:
        """Return the items of a whole text."""
        self._out.channels = {}
        self._out.may_end_alone = False
        self._cursor.push(text)
        self._read_to_end()
        items = self._out.items()
        judge_nested(items)
        return items


def _rules(grammar: Grammar, *, is_demanded: bool) -> TextRules:
    looks_behind = grammar.tokens is not None and not grammar.only_first and not is_demanded
    return TextRules(looks_behind, grammar.tokens or (), grammar.only_first)
