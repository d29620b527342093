"""Reads tool calls that a model wrote as text, in the formats of `tests/corpus/README.md`.

`reader_for` gives the reader of a format; it is fed text as it comes and answers with model events: prose and
reasoning go out at once, save for an end that may still become a mark, and a call comes when it has ended. How a
format is written is said in `formats`; whether a call may run is decided by the gate (`callgate.calls`), not here.
"""

from collections.abc import Collection
from typing import Protocol

from callgate.conversation.events import ModelEvent
from callgate.text_calls.event_sink import EventSink
from callgate.text_calls.formats import GRAMMARS, Grammar
from callgate.text_calls.text_cursor import TextCursor

FORMATS: frozenset[str] = frozenset(GRAMMARS)


class Reader(Protocol):
    """Something that makes events out of text. However the text is cut, the events say the same."""

    def feed(self, text: str) -> list[ModelEvent]: ...

    def finish(self) -> list[ModelEvent]:
        """The text has ended: what was held back goes out, and calls that were cut off are said to be."""
        ...


def reader_for(format: str, tools: Collection[str], *, whole: bool = False) -> Reader:
    """The reader of a format. `tools` are the names of the tools on offer.

    `whole` is for a text that comes as one: a lone closing think tag then makes what precedes it reasoning, which
    means that prose is held back until it is known whether there is one.
    """
    return TextReader(GRAMMARS[format], tools, whole=whole)


class TextReader:
    """Runs a grammar over text as it comes."""

    def __init__(self, grammar: Grammar, tools: Collection[str], *, whole: bool) -> None:
        self._cursor = TextCursor()
        self._out = EventSink(
            self._cursor, frozenset(tools), whole=whole, channels=grammar.channels, dropped=grammar.dropped
        )
        self._steps = grammar.read(self._out)
        self._go_on()

    def feed(self, text: str) -> list[ModelEvent]:
        self._cursor.push(text)
        self._go_on()
        return self._out.take()

    def finish(self) -> list[ModelEvent]:
        self._cursor.ended = True
        self._go_on()
        self._out.settle()
        return self._out.take()

    def _go_on(self) -> None:
        next(self._steps, None)
