"""Wraps a model, and records its requests and answers for runs with stored contents."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

import msgspec

from callgate.conversation.attempts import Attempts
from callgate.conversation.events import ModelEvent, ReasoningDelta, TextDelta
from callgate.conversation.ports import Message, ModelAnswer, ModelRequest, Passthrough, TurnModel
from callgate.http.wire import WIRE, Take

MASKED_BEYOND: Final = 16 * 1024
"""Characters that are looked at for secrets beyond what is kept: no secret is longer."""

encode = msgspec.json.Encoder(enc_hook=str).encode


class Texts(Protocol):
    """The store of texts."""

    def say(self, part: str, text: str) -> None: ...


class RecordedModel:
    """Records the question of each turn as far as it is new, and the words of its answer.

    The parts: `tools` (as they were offered), `turn.N.asked` (messages that the client did not send), `turn.N.text`,
    `turn.N.reasoning`, and `wire.N.M`: the body of the Mth answer of a provider in turn N, as it came.
    """

    def __init__(
        self, inner: TurnModel, texts: Texts, choice: int, messages: Sequence[Message], most: int, *, wire: bool = False
    ) -> None:
        """`messages`: those of the request. `most`: how many bytes of a text are kept."""
        self.name = inner.name
        self._inner = inner
        self._choice = choice
        self._say: Callable[[str, str], None] = lambda part, text: texts.say(part_of(choice, part), text)
        self._known = messages
        self._most = most + MASKED_BEYOND
        self._wire = wire
        self._turn = -1
        self._answers = 0
        self._bodies: list[bytearray] = []
        self._last: ModelRequest | Passthrough | None = None

    @asynccontextmanager
    async def ask(
        self, ask: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AsyncIterator[ModelAnswer]:
        if ask is not self._last:  # the same question is asked again in the same turn
            self._turn += 1
            self._answers = 0
            self._last = ask
            self._note_question(ask)
        token = WIRE.set(self) if self._wire else None
        try:
            async with self._inner.ask(ask, attempts) as answer:
                recorded = _RecordedAnswer(answer)
                try:
                    yield recorded
                finally:
                    for kind, pieces in recorded.said.items():  # in the place of those of an answer that broke off
                        self._say(f"turn.{self._turn}.{kind}", "".join(pieces))
        finally:
            if token is not None:
                WIRE.reset(token)
            for body in self._bodies:
                self._say(f"wire.{self._turn}.{self._answers}", body.decode(errors="backslashreplace"))
                self._answers += 1
            self._bodies = []

    def begin(self) -> Take:
        """An answer of a provider begins."""
        kept = bytearray()
        self._bodies.append(kept)

        def take(data: bytes) -> None:
            if len(kept) <= self._most:
                kept.extend(data)

        return take

    def _note_question(self, ask: ModelRequest | Passthrough) -> None:
        if not isinstance(ask, ModelRequest):
            return
        if self._turn == 0 and ask.tools:
            self._say("tools", encode(ask.tools).decode())
        known, messages = len(self._known), ask.messages
        is_longer = known <= len(messages) and all(
            old is new for old, new in zip(self._known, messages[:known], strict=True)
        )
        self._known = messages
        if new := messages[known:] if is_longer else messages:
            self._say(f"turn.{self._turn}.{'asked' if is_longer else 'history'}", encode(new).decode(errors="replace"))


class _RecordedAnswer:
    """Gathers the words of an answer on their way."""

    def __init__(self, inner: ModelAnswer) -> None:
        self._inner = inner
        self._batches = aiter(inner)
        self.said: dict[str, list[str]] = {"text": [], "reasoning": []}

    @property
    def reason_is_raw(self) -> bool:
        return self._inner.reason_is_raw

    @property
    def lane(self) -> str:
        return self._inner.lane

    def __aiter__(self) -> AsyncIterator[Sequence[ModelEvent]]:
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:
        events: Sequence[ModelEvent] = await self._batches.__anext__()
        for event in events:
            if isinstance(event, TextDelta | ReasoningDelta):
                kind = "text" if isinstance(event, TextDelta) else "reasoning"
                self.said[kind].append(event.text)
        return events


def part_of(choice: int, part: str) -> str:
    """The name of a text: the choice is said only where there are several."""
    return f"choice.{choice}.{part}" if choice else part
