"""What clients do not see of their chats, kept for each caller until the client comes back with its answers."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from app.calls.states import Call
from app.chat.events import CallsHandedBack, Unseen
from app.chat.lost import FIELD, Hint, LostTurn, hint_of, lost_turns, made_again
from app.chat.ports import Message, Toolbox
from app.chat.unseen import decode_unseen, encode_unseen, handed_ids, put_back
from app.stores.store import Store, StoreError

log = structlog.get_logger("callgate.conversations")


class Conversations:
    """Keeps under ids that clients send back; `caller` goes into every key, so that nobody fetches another's."""

    def __init__(self, store: Store, seconds: float, new_id: Callable[[], str]) -> None:
        self._store, self._seconds, self._new_id = store, seconds, new_id

    async def keep(
        self, caller: str, handed: CallsHandedBack, history: Sequence[Message] = (), *, with_hint: bool = False
    ) -> CallsHandedBack:
        """Keep what the client is not shown, before it is told of its calls. What comes back is what it may be told:
        a call whose id is in use, in its own history or for another chat, gets a new one, and the first call has a
        hint of what ran beside it."""
        if handed.unseen is None:
            return handed
        hint = hint_of(handed.unseen) if with_hint else None
        try:
            handed = await self._kept(caller, handed, handed.unseen, frozenset(handed_ids(history)))
        except StoreError as error:
            # The calls are still worth having: the client's answer to them only lacks what was not kept.
            log.warning("conversation_not_kept", calls=[call.id for call in handed.calls], error=str(error))
        if hint is None:
            return handed
        first, *others = handed.calls
        return replace(handed, calls=(replace(first, extras={**first.extras, FIELD: hint}), *others))

    async def made_whole(
        self, caller: str, messages: Sequence[Message], hints: Mapping[str, Hint], toolbox: Toolbox
    ) -> tuple[Message, ...]:
        """The history with what was kept for its calls put back, and made again where it is gone."""
        found: dict[bytes, Unseen] = {}
        kept: dict[str, Unseen] = {}
        try:
            ids = list(dict.fromkeys(handed_ids(messages)))
            values = await self._store.get_all([_key(caller, id) for id in ids], renew=self._seconds)
            for id, value in zip(ids, values, strict=True):
                if value is not None:
                    kept[id] = found.setdefault(value, decode_unseen(value))
        except StoreError as error:
            log.warning("conversation_not_found", error=str(error))
        for turn in lost_turns(messages, hints, kept) if hints else ():
            unseen = await made_again(turn, toolbox)
            log.info("lost_turn_made_again", calls=[call.id for call in turn.calls])
            kept |= dict.fromkeys(turn.ids, unseen)
            await self._keep_again(caller, turn, unseen)
        return put_back(messages, kept) if kept else tuple(messages)

    async def _keep_again(self, caller: str, turn: LostTurn, unseen: Unseen) -> None:
        """So that it is made again once, and not whenever the client returns."""
        try:
            for id in turn.ids:
                await self._store.add(_key(caller, id), encode_unseen(unseen), self._seconds)
        except StoreError as error:
            log.warning("conversation_not_kept", calls=list(turn.ids), error=str(error))

    async def _kept(
        self, caller: str, handed: CallsHandedBack, unseen: Unseen, taken: frozenset[str]
    ) -> CallsHandedBack:
        value = encode_unseen(unseen)
        if unseen.names:
            # Ids that we chose are the client's to ask with; whatever was there is this very chat, asked anew.
            for call in handed.calls:
                await self._store.put(_key(caller, call.id), value, self._seconds)
            return handed
        calls = [await self._claimed(caller, call, value, taken) for call in handed.calls]
        names = {new.id: old.id for new, old in zip(calls, handed.calls, strict=True) if new.id != old.id}
        if names:
            value = encode_unseen(replace(unseen, names=names))
            for call in calls:
                await self._store.put(_key(caller, call.id), value, self._seconds)
        return replace(handed, calls=tuple(calls))

    async def _claimed(self, caller: str, call: Call, value: bytes, taken: frozenset[str]) -> Call:
        """The call under an id that is free. Some providers count their ids, and every turn has a `call_0`."""
        while call.id in taken:
            call = replace(call, id=self._new_id())
        while not await self._store.add(_key(caller, call.id), value, self._seconds):
            if await self._store.get(_key(caller, call.id)) == value:
                break  # the same chat at the same place: the same question, asked again
            call = replace(call, id=self._new_id())
        return call


def _key(caller: str, id: str) -> str:
    """A digest, because ids are written by providers and may be long, and callers' names need no escaping then."""
    return "unseen:" + hashlib.sha256(f"{caller}\0{id}".encode(errors="surrogatepass")).hexdigest()
