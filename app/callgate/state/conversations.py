"""Stores the hidden turns of chats for each caller, until the client comes back with its results."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog
from msgspec.structs import replace

from callgate.calls.states import Call, ReadyCall
from callgate.conversation.errors import ChatError
from callgate.conversation.events import CallsHandedBack, HiddenTurns
from callgate.conversation.hidden_history import decode_hidden, encode_hidden, handle_of, handles_in, put_back
from callgate.conversation.ports import Message
from callgate.conversation.turn_recovery import (
    FIELD,
    ForgottenTurn,
    Hint,
    Recovery,
    decode_hint,
    encode_hint,
    forgotten_turns,
    hint_of,
)
from callgate.hosted.returned import KeptCall, ReturnedCall, decode_call, encode_call, key_of
from callgate.state.store import KeyValueStore, Share, StoreError

HIDDEN = "unseen:"
HINT = "hint:"
HOSTED = "hosted:"
MOST_HOSTED = 2000
"""Calls of one history that are looked for, the last ones; a client may send any number of ids."""
LARGE = 262_144
"""The size of restored turns from which they are decoded in a thread."""
HINT_SECONDS = 30 * 86_400.0
"""How long hints are stored, which are small and outlive the results."""
OWNER_BYTES = 67_108_864
"""How many bytes of hidden turns are kept of one key."""
HINT_BYTES = 16_777_216
"""How many bytes of hints are kept of one key."""
ENTRY_BYTES = 1024
"""What an entry counts beside its own bytes, so that a share also bounds their number: 65,000 turns of a key."""

log = structlog.get_logger("callgate.conversations")


class Conversations:
    """Stores hidden turns by the handles of their calls; `caller` is part of every key."""

    def __init__(
        self, store: KeyValueStore, seconds: float, new_id: Callable[[], str], owner_bytes: int = OWNER_BYTES
    ) -> None:
        """`owner_bytes`: the limit of one key, beyond which its oldest turns go."""
        self._store = store
        self._seconds = seconds
        self._new_id = new_id
        self._owner_bytes = owner_bytes

    async def keep(
        self, caller: str, handed: CallsHandedBack, history: Sequence[Message] = (), *, with_hint: bool = False
    ) -> CallsHandedBack:
        """Store the hidden turns before the client is sent its calls; return the calls to send: a call whose id is in use, in
        its history or for another chat, gets a new id, and the first call gets a hint about the calls that ran."""
        if handed.hidden is None:
            return handed
        hint = hint_of(handed.hidden)
        place = _Place(caller, history)
        try:
            value = encode_hidden(handed.hidden)
            share = self._share(caller, HIDDEN)
            if handed.hidden.names:
                # Our own ids are unique to this chat, so that an existing value is from an earlier request of it.
                for handed_call in handed.calls:
                    await self._put(place.key(handed_call.id), value, share)
            else:
                calls = [await self._claimed(place, handed_call, value) for handed_call in handed.calls]
                names = {new.id: old.id for new, old in zip(calls, handed.calls, strict=True) if new.id != old.id}
                if names:
                    value = encode_hidden(replace(handed.hidden, names=names))
                    for handed_call in calls:
                        await self._put(place.key(handed_call.id), value, share)
                handed = replace(handed, calls=tuple(calls))
            for call in handed.calls if hint else ():
                key = place.key(call.id, HINT)
                await self._store.put(key, encode_hint(hint or {}), HINT_SECONDS, self._share(caller, HINT))
        except StoreError as error:
            # The calls are still sent; later the hidden turns will be missing.
            log.warning("conversation_not_kept", calls=[call.id for call in handed.calls], error=str(error))
        if hint is None or not with_hint:
            return handed
        first, *others = handed.calls
        return replace(handed, calls=(replace(first, extras={**first.extras, FIELD: hint}), *others))

    async def keep_call(self, caller: str, run_id: str, call: ReadyCall, result: str) -> None:
        """Keep a call of which the client is shown less than the model read."""
        key = _key_of_hosted(caller, key_of(run_id, call.id))
        try:
            await self._put(key, encode_call(KeptCall(call.name, call.text, result)), self._share(caller, HIDDEN))
        except StoreError as error:
            log.warning("conversation_not_kept", calls=[call.id], error=str(error))

    async def fill(self, caller: str, calls: Sequence[ReturnedCall], max_bytes: int) -> None:
        """Put into calls that a client sent back what is kept of them. The others stay as the client was shown them. `max_bytes`: as
        for hidden turns."""
        ours = [call for call in calls if call.key][-MOST_HOSTED:]
        try:
            values = await self._store.get_all([_key_of_hosted(caller, call.key) for call in ours], renew=self._seconds)
        except StoreError as error:
            log.warning("conversation_not_found", error=str(error))
            return
        if sum(len(value) for value in values if value is not None) > max_bytes:
            raise _too_much(max_bytes)
        for call, value in zip(ours, values, strict=True):
            if value is not None:
                call.fill(decode_call(value))

    async def with_hidden_turns(
        self, caller: str, messages: Sequence[Message], hints: Mapping[int, Hint], recovery: Recovery, max_bytes: int
    ) -> tuple[Message, ...]:
        """Return the history with its hidden turns restored, or recovered where they are not stored any more. `max_bytes`: the
        limit of restored bytes, because a small request may name megabytes."""
        handles = list(dict.fromkeys(handles_in(messages)))
        if not handles and not hints:
            return tuple(messages)
        turns: dict[str, HiddenTurns] = {}
        remembered: dict[str, Hint] = {}
        is_large = False
        try:
            values = await self._store.get_all([_key(caller, handle) for handle in handles], renew=self._seconds)
            stored_values = {handle: value for handle, value in zip(handles, values, strict=True) if value is not None}
            is_large = sum(len(value) for value in stored_values.values()) > LARGE
            reading = partial(_decoded, stored_values, max_bytes)
            if is_large:
                turns = await asyncio.to_thread(reading)
            else:
                turns = reading()
            remembered = await self._remembered(caller, [handle for handle in handles if handle not in turns])
        except StoreError as error:
            log.warning("conversation_not_found", error=str(error))
        for turn in forgotten_turns(messages, hints, turns, remembered) if hints or remembered else ():
            hidden = await recovery.make_again(turn)
            log.info("turn_recovered", calls=[call.id for call in turn.calls])
            turns |= dict.fromkeys(turn.handles, hidden)
            await self._keep_again(caller, turn, hidden)
        if not turns:
            return tuple(messages)
        if is_large:
            return await asyncio.to_thread(put_back, messages, turns)
        return put_back(messages, turns)

    async def _remembered(self, caller: str, handles: Sequence[str]) -> dict[str, Hint]:
        """Return the stored hints of turns that are not stored any more."""
        if not handles:
            return {}
        values = await self._store.get_all([_key(caller, handle, HINT) for handle in handles], renew=HINT_SECONDS)
        return {handle: decode_hint(value) for handle, value in zip(handles, values, strict=True) if value is not None}

    async def _keep_again(self, caller: str, turn: ForgottenTurn, hidden: HiddenTurns) -> None:
        """Store a recovered turn, so that it is recovered only once."""
        try:
            for handle in turn.handles:
                share = self._share(caller, HIDDEN)
                await self._store.add(_key(caller, handle), encode_hidden(hidden), self._seconds, share)
        except StoreError as error:
            log.warning("conversation_not_kept", calls=[call.id for call in turn.calls], error=str(error))

    async def _claimed(self, place: "_Place", call: Call, value: bytes) -> Call:
        """Return the call with a free id, because some providers number their ids in every turn."""
        while place.is_taken(call.id):
            call = replace(call, id=self._new_id())
        share = self._share(place.caller, HIDDEN)
        self._check_size(place.key(call.id), value, share)
        while not await self._store.add(place.key(call.id), value, self._seconds, share):
            if await self._store.get(place.key(call.id)) == value:
                break  # the same chat at the same place: a repeated request
            call = replace(call, id=self._new_id())
        return call

    async def _put(self, key: str, value: bytes, share: Share) -> None:
        self._check_size(key, value, share)
        await self._store.put(key, value, self._seconds, share)

    def _check_size(self, key: str, value: bytes, share: Share) -> None:
        """Raise `StoreError` for what would not fit alone."""
        if share.counted(len(key) + len(value)) > share.bytes:
            raise StoreError(f"of {len(value)} bytes, where {share.bytes} are kept of one key")

    def _share(self, caller: str, kind: str) -> Share:
        """Return the share of a key, whichever end users its requests name. Turns and hints expire after different times, so that
        each has one."""
        owner = caller.partition("\0")[0]
        name = hashlib.sha256(f"{kind}{owner}".encode(errors="surrogatepass")).hexdigest()
        return Share(name, self._owner_bytes if kind == HIDDEN else HINT_BYTES, ENTRY_BYTES)


class _Place:
    """The end of a history, with keys for the calls that follow it."""

    def __init__(self, caller: str, history: Sequence[Message]) -> None:
        self.caller = caller
        self._history = history
        self._taken = frozenset(handles_in(history))

    def is_taken(self, id: str) -> bool:
        return self._handle(id) in self._taken

    def key(self, id: str, kind: str = HIDDEN) -> str:
        return _key(self.caller, self._handle(id), kind)

    def _handle(self, id: str) -> str:
        return handle_of(id, self._history, len(self._history))


def _decoded(values: Mapping[str, bytes], max_bytes: int) -> dict[str, HiddenTurns]:
    """Decode the stored turns, by handle. Calls of one turn share one object; equal values at other places of the history are
    other turns."""
    places = {handle: (value, handle.partition("\0")[2]) for handle, value in values.items()}
    if sum(len(value) for value, _ in set(places.values())) > max_bytes:
        raise _too_much(max_bytes)
    turns: dict[tuple[bytes, str], HiddenTurns] = {}
    for place in places.values():
        if place not in turns:
            turns[place] = decode_hidden(place[0])
    return {handle: turns[place] for handle, place in places.items()}


def _key_of_hosted(caller: str, key: str) -> str:
    return _key(caller, key, HOSTED)


def _too_much(max_bytes: int) -> ChatError:
    return ChatError(
        413,
        f"What was done here in the turns of this conversation comes to more than {max_bytes} bytes. Leave its earliest turns out.",
        param="messages",
        code="request_too_large",
    )


def _key(caller: str, handle: str, kind: str = HIDDEN) -> str:
    """Return a digest as the key, because ids of providers may be long, and names need no escaping."""
    return kind + hashlib.sha256(f"{caller}\0{handle}".encode(errors="surrogatepass")).hexdigest()
