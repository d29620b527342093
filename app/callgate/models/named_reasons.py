"""Gives finish reasons the meaning that the operator has named for them in the model's entry."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from msgspec.structs import replace

from callgate.conversation.events import Finished, ModelEvent, Passed
from callgate.conversation.finish_words import Meaning, normalized
from callgate.conversation.ports import Model, ModelAnswer, ModelRequest, Passthrough, hand_nothing


class NamedReasonsModel:
    """Wraps a model whose entry names finish reasons."""

    def __init__(self, inner: Model, named: Mapping[str, Meaning]) -> None:
        self.name = inner.name
        self._inner = inner
        self._named = named

    def send(self, request: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]:
        return self._send(request)

    @asynccontextmanager
    async def _send(self, request: ModelRequest | Passthrough) -> AsyncIterator[ModelAnswer]:
        async with self._inner.send(request) as answer:
            yield _NamedReasons(answer, self._named)


class _NamedReasons:
    def __init__(self, inner: ModelAnswer, named: Mapping[str, Meaning]) -> None:
        self._inner = inner
        self._batches = aiter(inner)
        self._named = named

    @property
    def reason_is_raw(self) -> bool:
        return self._inner.reason_is_raw

    @property
    def lane(self) -> str:
        return self._inner.lane

    hand_to = hand_nothing

    def __aiter__(self) -> "_NamedReasons":
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:
        return [self._meant(event) for event in await anext(self._batches)]

    def _meant(self, event: ModelEvent) -> ModelEvent:
        if isinstance(event, Finished):
            return self._finished(event)
        if isinstance(event, Passed) and event.reasons:
            return replace(event, reasons=tuple(map(self._finished, event.reasons)))
        return event

    def _finished(self, event: Finished) -> Finished:
        meaning = self._named.get(normalized(event.reason))
        if meaning is None:
            return event
        return replace(event, meaning=meaning)
