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
from callgate.text_calls.judging import TextRules
from callgate.text_calls.prose import read_channel
from callgate.text_calls.text_cursor import Steps, TextCursor
from callgate.text_calls.text_log import CALLS, REASONING, Item

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
        self._is_judging = is_judging
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
        self._steps = grammar.read(self._out) if thinking != "prefilled" else self._read_prefilled()
        self._go_on()

    @property
    def had_lone_end(self) -> bool:
        """True if the text had a closing think tag before any opening one, so that the template opens the thinking."""
        return self._out.had_lone_end

    @property
    def unread_size(self) -> int:
        """The length of the text that is held for an incomplete call."""
        return self._cursor.untaken

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

    def finish(self, *, in_order: bool = True) -> list[ModelEvent]:
        if self._cursor.ended:
            return []
        self._cursor.ended = True
        self._go_on()
        if in_order and self._is_judging and self._out.unclosed is not None:
            self._end_thinking_at_calls(self._out.unclosed.text, self._out.unclosed.call_may_begin)
        while True:
            try:
                return self._out.finish(self._echoes.is_echo, is_cut=not in_order)
            except RestartError:
                self._steps = self._grammar.read(self._out)
                self._go_on()

    def break_off(self, flaw: Flaw) -> list[ModelEvent]:
        """Stop reading, and break the current call with this flaw."""
        events = self.finish(in_order=False)
        last = next((at for at in reversed(range(len(events))) if isinstance(events[at], CallWritten)), None)
        if last is not None:
            events[last] = replace(events[last], arguments=None, flaw=flaw)
        return events

    def _go_on(self) -> None:
        while True:
            try:
                next(self._steps, None)
            except RestartError:
                self._steps = self._grammar.read(self._out)
            else:
                return

    def _read_prefilled(self) -> Steps[None]:
        out = self._out
        yield from self._cursor.space(out.add_reasoning)
        opened = yield from self._cursor.one_of(tuple(out.channels))
        ends = (out.channels[opened],) if opened else tuple(dict.fromkeys(out.channels.values()))
        yield from read_channel(out, ends, opened or "")
        yield from self._grammar.read(out)

    def _end_thinking_at_calls(self, thinking: str, call_may_begin: int) -> None:
        """Read calls at the end of unclosed thinking: calls at the beginnings of lines count, unless more thinking follows."""
        inner = TextReader(self._grammar, self._tools)
        items = inner.items_of(thinking)
        first = len(items)
        while first and (items[first - 1].kind == CALLS or not items[first - 1].text.strip()):
            first -= 1
        calls = [item for item in items[first:] if item.kind == CALLS]
        begins = bool(calls) and (
            calls[0].at_line_start or thinking.startswith(self._grammar.ends_thinking or "\n", calls[0].start)
        )
        if begins and calls[0].start >= call_may_begin:
            considered = Item(REASONING, thinking[call_may_begin : calls[0].start])
            self._out.replace_unclosed([considered, *calls])

    def items_of(self, text: str) -> list[Item]:
        """Return the items of a whole text."""
        self._out.channels, self._out.may_end_alone = {}, False
        self._cursor.push(text)
        self._go_on()
        self._cursor.ended = True
        self._go_on()
        return self._out.items_left()


def _rules(grammar: Grammar, *, is_demanded: bool) -> TextRules:
    looks_behind = grammar.tokens is not None and not grammar.only_first and not is_demanded
    return TextRules(looks_behind, grammar.tokens or (), grammar.only_first)
