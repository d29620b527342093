"""Wraps a model, and records its requests and answers, for runs with stored texts."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from callgate.conversation.attempts import Attempts
from callgate.conversation.events import ModelEvent, ReasoningDelta, TextDelta
from callgate.conversation.ports import Message, ModelAnswer, ModelRequest, Passthrough, TurnModel, hand_nothing

MASKED_BEYOND: Final = 16 * 1024
"""Characters beyond the kept ones that are searched for secrets: no secret is longer."""

encode = msgspec.json.Encoder(enc_hook=str).encode


class TextStore(Protocol):
    """Keeps texts by the name of their part."""

    def keep_text(self, part: str, text: str) -> None: ...


class RecordedModel:
    """Records the new messages of each turn, and the text and reasoning of its answer.

    The parts: `tools` (the offered definitions), `turn.N.asked` (messages that the client did not send), `turn.N.history` (all
    messages, if they do not continue the previous ones), `turn.N.text`, `turn.N.reasoning`, and `wire.N.M`: the raw body of the Mth
    response of a provider in turn N.
    """

    def __init__(
        self,
        inner: TurnModel,
        texts: TextStore,
        choice: int,
        messages: Sequence[Message],
        most: int,
        *,
        wire: bool = False,
    ) -> None:
        """`messages`: those of the client's request. `most`: how many bytes of a text are kept."""
        self.name = inner.name
        self._inner = inner
        self._choice = choice
        self._keep_text: Callable[[str, str], None] = lambda part, text: texts.keep_text(part_of(choice, part), text)
        self._known = messages
        self._most = most + MASKED_BEYOND
        self._wire = wire
        self._turn = -1
        self._answers = 0
        self._bodies: list[bytearray] = []
        self._last: ModelRequest | Passthrough | None = None

    @asynccontextmanager
    async def send(
        self, request: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AsyncIterator[ModelAnswer]:
        if request is not self._last:  # otherwise a retry in the same turn
            self._turn += 1
            self._answers = 0
            self._last = request
            self._keep_request(request)
        if self._wire:
            request = replace(request, record_body=self._begin_body)
        try:
            async with self._inner.send(request, attempts) as answer:
                recorded = _RecordedAnswer(answer)
                try:
                    yield recorded
                finally:
                    for kind, pieces in recorded.pieces.items():  # replaces an answer that broke off
                        self._keep_text(f"turn.{self._turn}.{kind}", "".join(pieces))
        finally:
            for body in self._bodies:
                self._keep_text(f"wire.{self._turn}.{self._answers}", body.decode(errors="backslashreplace"))
                self._answers += 1
            self._bodies = []

    def _begin_body(self) -> Callable[[bytes], None]:
        """Return the function that takes the body of a provider's response, which begins."""
        body = bytearray()
        self._bodies.append(body)

        def take(data: bytes) -> None:
            if len(body) <= self._most:
                body.extend(data)

        return take

    def _keep_request(self, request: ModelRequest | Passthrough) -> None:
        if not isinstance(request, ModelRequest):
            return
        if self._turn == 0 and request.tools:
            self._keep_text("tools", encode(request.tools).decode())
        sent_before = len(self._known)
        messages = request.messages
        is_longer = sent_before <= len(messages) and all(
            old is new or old == new for old, new in zip(self._known, messages[:sent_before], strict=True)
        )
        self._known = messages
        if new := messages[sent_before:] if is_longer else messages:
            self._keep_text(
                f"turn.{self._turn}.{'asked' if is_longer else 'history'}", encode(new).decode(errors="replace")
            )


class _RecordedAnswer:
    """Passes the events of an answer on, and collects their text."""

    def __init__(self, inner: ModelAnswer) -> None:
        self._inner = inner
        self._batches = aiter(inner)
        self.pieces: dict[str, list[str]] = {"text": [], "reasoning": []}

    @property
    def reason_is_raw(self) -> bool:
        return self._inner.reason_is_raw

    @property
    def lane(self) -> str:
        return self._inner.lane

    hand_to = hand_nothing

    def __aiter__(self) -> AsyncIterator[Sequence[ModelEvent]]:
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:
        events: Sequence[ModelEvent] = await self._batches.__anext__()
        for event in events:
            if isinstance(event, TextDelta | ReasoningDelta):
                if isinstance(event, TextDelta):
                    kind = "text"
                else:
                    kind = "reasoning"
                self.pieces[kind].append(event.text)
        return events


def part_of(choice: int, part: str) -> str:
    """Return the name of a text. It includes the choice from the second one on."""
    if choice:
        return f"choice.{choice}.{part}"
    return part
