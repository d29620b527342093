"""Models whose answers were read before they are asked."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec

from callgate.conversation.attempts import Attempts
from callgate.conversation.events import ModelEvent, Passed
from callgate.conversation.ports import ModelRequest, Passthrough, hand_nothing


class PreloadedModel:
    """Answers with the events that it was made with."""

    def __init__(self, name: str, events: Sequence[ModelEvent], lane: str = "direct") -> None:
        self.name = name
        self._answer = PreloadedAnswer(events, lane)

    @asynccontextmanager
    async def send(
        self, request: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AsyncIterator["PreloadedAnswer"]:
        yield self._answer


class PreloadedTurns:
    """Answers with given events, one list for each turn, and then with nothing."""

    def __init__(self, name: str, turns: Iterable[Sequence[ModelEvent]], lane: str = "") -> None:
        self.name = name
        self._turns = iter(turns)
        self._lane = lane

    @asynccontextmanager
    async def send(
        self, request: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AsyncIterator["PreloadedAnswer"]:
        yield PreloadedAnswer(next(self._turns, ()), self._lane)


class PreloadedAnswer(msgspec.Struct, eq=False):
    """An answer that was read to its end, as one batch."""

    events: Sequence[ModelEvent]
    lane: str
    reason_is_raw: bool = True

    hand_to = hand_nothing

    def passed(self) -> Passed | None:
        """Return what the answer consists of, where that goes to the client as its provider's bytes, all of them."""
        if len(self.events) == 1 and self.reason_is_raw:
            passed = self.events[0]
            if type(passed) is Passed and not passed.left_out:
                return passed
        return None

    def __aiter__(self) -> "PreloadedAnswer":
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:
        events = self.events
        self.events = ()
        if not events:
            raise StopAsyncIteration
        return events
