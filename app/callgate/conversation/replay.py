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
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough, TurnModel, hand_nothing
from callgate.conversation.preloaded_model import PreloadedAnswer
from callgate.untrusted.doors import SLICE, Door, TooMuch, Untrusted
from callgate.untrusted.readers import read_leniently
from callgate.untrusted.slices import open_in_slices
from callgate.untrusted.work import TurnShare

_KINDS: Final[Mapping[str, type[ModelEvent]]] = {kind.__name__: kind for kind in get_args(ModelEvent)}


class StoredTurn(msgspec.Struct, frozen=True):
    """One answer of a model, from its first event to its last."""

    events: Sequence[ModelEvent]
    lane: str
    reason_is_raw: bool

    def encode(self) -> bytes:
        """Encode it as JSON, one line for each event, so that they are read one by one."""
        # Python's own JSON, which can write half a pair of surrogates, and a model may.
        head = json.dumps({"lane": self.lane, "raw": self.reason_is_raw, "events": []}, separators=(",", ":"))
        lines = [
            json.dumps([type(event).__name__, msgspec.to_builtins(event, enc_hook=_plain)], separators=(",", ":"))
            for event in joined(self.events)
        ]
        return zlib.compress("\n".join([head.removesuffix("]}"), ",\n".join(lines), "]}"]).encode(), 1)

    @classmethod
    async def decode(cls, body: bytes) -> "StoredTurn":
        """Decode what a process stored, and let the event loop go on meanwhile. Raises the errors of `READ_ERRORS`."""
        text = await _decompressed(body)
        share = TurnShare()
        head, *lines = text.split(b"\n")
        if not lines:  # an earlier version wrote all of it in one line
            turn = msgspec.convert(read_leniently(await open_in_slices(Untrusted(text, STORED_EVENT))), _EarlierTurn)
            return cls([_event(*event) for event in turn.events], turn.lane, turn.raw)
        facts = msgspec.convert(read_leniently(Untrusted(head + b"]}", STORED_HEAD).open()), _EarlierTurn)
        events: list[ModelEvent] = []
        for line in lines[:-1]:
            if line:
                opened = await open_in_slices(Untrusted(line.removesuffix(b","), STORED_EVENT))
                events.append(_event(*msgspec.convert(read_leniently(opened), tuple[str, Any])))
            share.take(len(line))
            if not share.is_left:
                await asyncio.sleep(0)
                share = TurnShare()
        return cls(events, facts.lane, facts.raw)


class _EarlierTurn(msgspec.Struct):
    lane: str
    raw: bool
    events: list[tuple[str, Any]]


STORED_TURN_BYTES: Final = 256 * 1024 * 1024
"""Of a turn that is not compressed any more: an answer of `limits.answer_bytes` whose letters are all escaped."""
STORED_HEAD: Final = Door(name="head of a stored turn", bytes=64 * 1024)
STORED_EVENT: Final = Door(name="event of a stored turn", bytes=STORED_TURN_BYTES, depth=520)
"""The values of an answer, and what is around them."""


async def _decompressed(body: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    parts: list[bytes] = []
    size = 0
    try:
        while True:
            parts.append(unpacking.decompress(body, SLICE))
            size += len(parts[-1])
            if size > STORED_TURN_BYTES:
                raise TooMuch("a stored turn", "bytes", STORED_TURN_BYTES)
            body = unpacking.unconsumed_tail
            if not body:
                return b"".join(parts)
            await asyncio.sleep(0)
    except zlib.error as error:
        raise ValueError(f"it is not compressed as it should be: {error}") from None


def _event(kind: str, value: Any) -> ModelEvent:
    if kind not in _KINDS:
        raise ValueError(f"there is no event {kind[:64]!r}")
    return msgspec.convert(value, _KINDS[kind])


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
        self._model = model
        self._turns = turns
        self._write = keep
        self._next = 0
        self._ended: StoredTurn | None = None
        """The turn that is not stored yet."""
        self._attempts: Attempts | None = None
        self._keeping = asyncio.Lock()

    @asynccontextmanager
    async def send(
        self, request: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AsyncIterator[ModelAnswer]:
        if attempts is not None and attempts is self._attempts:
            self._ended = None
        await self.keep()
        self._attempts = attempts
        if self._next < len(self._turns):
            self._next += 1
            turn = self._turns[self._next - 1]
            yield PreloadedAnswer(events=turn.events, lane=turn.lane, reason_is_raw=turn.reason_is_raw)
            return
        async with self._model.send(request, attempts) as answer:
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
        self._answer = answer
        self._note = note
        self._read = aiter(answer)
        self._events: list[ModelEvent] = []

    @property
    def lane(self) -> str:
        return self._answer.lane

    @property
    def reason_is_raw(self) -> bool:
        return self._answer.reason_is_raw

    hand_to = hand_nothing

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
