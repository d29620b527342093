"""Replays stored turns to a chat that another process resumes.

The same model events make the same turns, calls and decisions. So a chat is resumed by running it from its beginning, with
its first turns from the stored events.
"""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, get_args

import msgspec

from callgate.conversation import raw_json
from callgate.conversation.attempts import Attempts
from callgate.conversation.events import ModelEvent, ReasoningDelta, TextDelta
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough, TurnModel
from callgate.conversation.preloaded_model import PreloadedAnswer

_KINDS: Final[Mapping[str, type[ModelEvent]]] = {kind.__name__: kind for kind in get_args(ModelEvent)}


class StoredTurn(msgspec.Struct, frozen=True):
    """One answer of a model, from its first event to its last."""

    events: Sequence[ModelEvent]
    lane: str
    reason_is_raw: bool

    def encode(self) -> bytes:
        kept = {
            "events": [
                [type(event).__name__, msgspec.to_builtins(event, enc_hook=_plain)] for event in joined(self.events)
            ],
            "lane": self.lane,
            "raw": self.reason_is_raw,
        }
        # Python's own JSON, which can write half a pair of surrogates, and a model may.
        return zlib.compress(json.dumps(kept, separators=(",", ":")).encode(), 1)

    @classmethod
    def decode(cls, body: bytes) -> "StoredTurn":
        kept = json.loads(zlib.decompress(body))
        events = [msgspec.convert(value, _KINDS[name]) for name, value in kept["events"]]
        return cls(events, kept["lane"], kept["raw"])


def joined(events: Sequence[ModelEvent]) -> list[ModelEvent]:
    """Return the events with consecutive text joined: an answer has thousands of them."""
    whole: list[ModelEvent] = []
    pieces: list[str] = []
    for event in events:
        last = whole[-1] if whole else None
        is_next = (type(event) is TextDelta and type(last) is TextDelta) or (
            isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta) and event.source == last.source
        )
        if is_next:
            assert isinstance(event, TextDelta | ReasoningDelta)
            pieces.append(event.text)
            continue
        _close(whole, pieces)
        whole.append(event)
        if isinstance(event, TextDelta | ReasoningDelta):
            pieces = [event.text]
    _close(whole, pieces)
    return whole


def _close(whole: list[ModelEvent], pieces: list[str]) -> None:
    if len(pieces) > 1:
        last = whole[-1]
        assert isinstance(last, TextDelta | ReasoningDelta)
        whole[-1] = msgspec.structs.replace(last, text="".join(pieces))
    pieces.clear()


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        return raw_json.read(value)
    raise NotImplementedError(f"no event holds a {type(value).__name__}")


class StoredTurnsModel:
    """Wraps a model: answers with the stored turns, then asks it. Each further turn is stored before it has consequences: by
    `keep` before its calls run, or when the next is asked for. A turn that broke off and is asked again is not stored."""

    def __init__(
        self, model: TurnModel, turns: Sequence[StoredTurn], keep: Callable[[int, StoredTurn], Awaitable[None]]
    ) -> None:
        self.name = model.name
        self._model, self._turns, self._write = model, turns, keep
        self._next = 0
        self._ended: StoredTurn | None = None
        """The turn that is not stored yet."""
        self._attempts: Attempts | None = None
        self._keeping = asyncio.Lock()

    @asynccontextmanager
    async def ask(
        self, ask: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AsyncIterator[ModelAnswer]:
        if attempts is not None and attempts is self._attempts:
            self._ended = None
        await self.keep()
        self._attempts = attempts
        if self._next < len(self._turns):
            self._next += 1
            turn = self._turns[self._next - 1]
            yield PreloadedAnswer(turn.events, turn.lane, turn.reason_is_raw)
            return
        async with self._model.ask(ask, attempts) as answer:
            yield _ObservedAnswer(answer, self._note)

    @property
    def has_more(self) -> bool:
        """True if the turn after this one is stored, so that all calls of this one have been answered."""
        return self._next < len(self._turns)

    async def keep(self) -> bool:
        """Store the turns so far; return whether one was not stored before."""
        async with self._keeping:
            if self._ended is None:
                return False
            await self._write(self._next, self._ended)
            self._ended = None
            self._next += 1
            return True

    def _note(self, turn: StoredTurn) -> None:
        self._ended = turn


class _ObservedAnswer:
    def __init__(self, answer: ModelAnswer, note: Callable[[StoredTurn], None]) -> None:
        self._answer, self._note = answer, note
        self._read = aiter(answer)
        self._events: list[ModelEvent] = []

    @property
    def lane(self) -> str:
        return self._answer.lane

    @property
    def reason_is_raw(self) -> bool:
        return self._answer.reason_is_raw

    def __aiter__(self) -> "_ObservedAnswer":
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:
        try:
            events = await anext(self._read)
        except StopAsyncIteration:
            self._note(StoredTurn(self._events, self.lane, self.reason_is_raw))
            raise
        self._events += events
        return events
