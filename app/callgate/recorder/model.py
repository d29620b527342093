"""Wraps a model, and records its requests and answers, for runs with stored texts."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from callgate.conversation.attempts import Attempts
from callgate.conversation.events import ModelEvent, ReasoningDelta, TextDelta
from callgate.conversation.ports import Message, ModelAnswer, ModelRequest, Passthrough, TakeEvents, TurnModel

MASKED_BEYOND: Final = 16 * 1024
"""Characters beyond the kept ones that are searched for secrets: no secret is longer."""

_SAID: Final = (TextDelta, ReasoningDelta)

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
        self.inner = inner
        self._choice = choice
        self._texts = texts
        self._known = messages
        self._most = most + MASKED_BEYOND
        self._wire = wire
        self._turn = -1
        self._answers = 0
        self._bodies: list[bytearray] = []
        self._last: ModelRequest | Passthrough | None = None

    def send(
        self, request: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AbstractAsyncContextManager[ModelAnswer]:
        return _RecordedRequest(self, request, attempts)

    def begin(self, request: ModelRequest | Passthrough) -> ModelRequest | Passthrough:
        """Record a request that is about to be sent; return it as it is sent."""
        if request is not self._last:  # otherwise a retry in the same turn
            self._turn += 1
            self._answers = 0
            self._last = request
            self._keep_request(request)
        if self._wire:
            return replace(request, record_body=self._begin_body)
        return request

    def keep_answer(self, answer: "_RecordedAnswer") -> None:
        """Record what an answer said. It replaces one that broke off."""
        if answer.text:
            self._keep_text(f"turn.{self._turn}.text", "".join(answer.text))
        if answer.reasoning:
            self._keep_text(f"turn.{self._turn}.reasoning", "".join(answer.reasoning))

    def keep_bodies(self) -> None:
        """Record the bodies of the responses to a request."""
        for body in self._bodies:
            self._keep_text(f"wire.{self._turn}.{self._answers}", body.decode(errors="backslashreplace"))
            self._answers += 1
        self._bodies = []

    def _keep_text(self, part: str, text: str) -> None:
        self._texts.keep_text(part_of(self._choice, part), text)

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
        messages = request.messages
        if messages is self._known:  # as in most first turns
            return
        sent_before = len(self._known)
        is_longer = list(messages[:sent_before]) == list(self._known)
        self._known = messages
        if new := messages[sent_before:] if is_longer else messages:
            self._keep_text(
                f"turn.{self._turn}.{'asked' if is_longer else 'history'}", encode(new).decode(errors="replace")
            )


class _RecordedRequest:
    """The context manager of one request. A class, because a generator is slower and this is used in every turn."""

    __slots__ = ("_answer", "_attempts", "_inner", "_model", "_request")

    def __init__(self, model: RecordedModel, request: ModelRequest | Passthrough, attempts: Attempts | None) -> None:
        self._model = model
        self._request = request
        self._attempts = attempts

    async def __aenter__(self) -> "_RecordedAnswer":
        model = self._model
        request = model.begin(self._request)
        try:
            self._inner = model.inner.send(request, self._attempts)
            self._answer = _RecordedAnswer(await self._inner.__aenter__())
        except BaseException:
            model.keep_bodies()
            raise
        return self._answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._model.keep_answer(self._answer)
        try:
            return await self._inner.__aexit__(kind, error, trace)
        finally:
            self._model.keep_bodies()


class _RecordedAnswer:
    """Passes the events of an answer on, and collects their text."""

    __slots__ = ("_batches", "_inner", "_pieces_of", "reasoning", "text")

    def __init__(self, inner: ModelAnswer) -> None:
        self._inner = inner
        self._batches = aiter(inner)
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self._pieces_of: dict[type, list[str]] = {TextDelta: self.text, ReasoningDelta: self.reasoning}

    @property
    def reason_is_raw(self) -> bool:
        return self._inner.reason_is_raw

    @property
    def lane(self) -> str:
        return self._inner.lane

    def hand_to(self, take: TakeEvents) -> None:
        self._inner.hand_to(partial(self._collect_and_hand, take))

    def __aiter__(self) -> AsyncIterator[Sequence[ModelEvent]]:
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:
        events: Sequence[ModelEvent] = await self._batches.__anext__()
        self._collect(events)
        return events

    def _collect_and_hand(self, take: TakeEvents, events: Sequence[ModelEvent]) -> Awaitable[None]:
        self._collect(events)
        return take(events)

    def _collect(self, events: Sequence[ModelEvent]) -> None:
        pieces_of = self._pieces_of
        for event in events:
            if (pieces := pieces_of.get(type(event))) is not None:
                assert isinstance(event, _SAID), "a text or reasoning"
                pieces.append(event.text)


def part_of(choice: int, part: str) -> str:
    """Return the name of a text. It includes the choice from the second one on."""
    if choice:
        return f"choice.{choice}.{part}"
    return part
