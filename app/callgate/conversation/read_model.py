"""Models whose answers were read already."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from callgate.conversation.attempts import Attempts
from callgate.conversation.events import ModelEvent
from callgate.conversation.ports import ModelRequest, Passthrough


class ReadModel:
    """Gives out the answer it was made with."""

    def __init__(self, name: str, events: Sequence[ModelEvent], lane: str = "direct") -> None:
        self.name = name
        self._answer = ReadAnswer(events, lane)

    @asynccontextmanager
    async def ask(
        self, ask: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AsyncIterator["ReadAnswer"]:
        yield self._answer


class ReadTurns:
    """Gives out answers that are known before, one a turn, and then says nothing more."""

    def __init__(self, name: str, turns: Iterable[Sequence[ModelEvent]], lane: str = "") -> None:
        self.name = name
        self._turns = iter(turns)
        self._lane = lane

    @asynccontextmanager
    async def ask(
        self, ask: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AsyncIterator["ReadAnswer"]:
        yield ReadAnswer(next(self._turns, ()), self._lane)


class ReadAnswer:
    """An answer that was read to its end, as one batch."""

    reason_is_raw = True

    def __init__(self, events: Sequence[ModelEvent], lane: str) -> None:
        self._events = events
        self.lane = lane

    def __aiter__(self) -> "ReadAnswer":
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:
        events, self._events = self._events, ()
        if not events:
            raise StopAsyncIteration
        return events
