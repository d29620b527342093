"""Stores conversations by owner, beside the responses: in the same store, within the same share, for as long."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
import structlog

from callgate.state.responses import LARGE, ResponseStore
from callgate.state.store import StoreError
from callgate.untrusted.doors import OWN_BYTES, Door, TooMuch, Untrusted
from callgate.untrusted.readers import json_reader

KIND: Final = "conversation:"
LOCK_SECONDS: Final = 10.0
"""How long a process that ended may keep a conversation locked."""
LOOK_SECONDS: Final = 0.05
LOOKS: Final = 40
"""How often a conversation is looked for that another process changes."""
STORED: Final = Door(name="a stored conversation", bytes=OWN_BYTES)

log = structlog.get_logger("callgate.conversations")


class ConversationLocked(Exception):
    """Raised where another process is changing a conversation."""


class StoredConversation(msgspec.Struct):
    """One conversation: its items, and the chat that the first of them became."""

    created_at: int
    metadata: dict[str, str] = {}
    items: list[msgspec.Raw] = []
    """Each with an id."""
    ids: list[str] = []
    """The ids of the items."""
    covered: int = 0
    """How many of the items the history covers."""
    history: list[Any] = []
    """The messages of the chat, with our calls, reasoning and signatures; without instructions."""
    after: list[Any] = []
    """Messages after the client's answers to its calls."""
    approvals: dict[str, str] = {}
    """The calls that wait for the client's decision, by the ids of the approval requests."""
    listed: dict[str, str] = {}
    """Marks of the lists of tools in the items that the history covers, by the labels of their servers."""
    changes: int = 0
    """How often items were added or removed."""
    size: int = 0
    """Its stored size in bytes."""

    def add(self, items: Sequence[msgspec.Raw], ids: Sequence[str]) -> None:
        self.changes += 1
        self.items += items
        self.ids += ids

    def remove(self, id: str) -> None:
        """Remove an item. The history that had it is not used any more."""
        self.changes += 1
        place = self.ids.index(id)
        del self.items[place]
        del self.ids[place]
        if place < self.covered:
            self.covered = 0
            self.history = []
            self.after = []
            self.approvals = {}
            self.listed = {}


_encode = msgspec.json.Encoder().encode
_read = json_reader(StoredConversation)


class ConversationStore:
    """Stores conversations. One that is changed is locked: for the tasks of this process, and for other processes."""

    def __init__(self, responses: ResponseStore) -> None:
        self._store = responses
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def get(self, owner: str, id: str) -> StoredConversation | None:
        value = await self._store.get_other(owner, id, KIND)
        if value is None:
            return None
        if len(value) < LARGE:
            conversation = _decoded(value)
        else:
            conversation = await asyncio.to_thread(_decoded, value)
        conversation.size = len(value)
        return conversation

    async def put(self, owner: str, id: str, conversation: StoredConversation) -> None:
        if conversation.size < LARGE:
            value = _encode(conversation)
        else:
            value = await asyncio.to_thread(_encode, conversation)
        await self._store.put_other(owner, id, KIND, value)

    @asynccontextmanager
    async def changed(self, owner: str, id: str) -> AsyncIterator[StoredConversation | None]:
        """Lock a conversation, and give it to be changed; None where there is none. It is stored at the end, unless that raises.
        Raises `ConversationLocked`."""
        async with self._locked(owner, id):
            conversation = await self.get(owner, id)
            yield conversation
            if conversation is not None:
                await self.put(owner, id, conversation)

    async def delete(self, owner: str, id: str) -> bool:
        """Delete a conversation; return whether there was one."""
        async with self._locked(owner, id):
            is_stored = await self._store.get_other(owner, id, KIND) is not None
            await self._store.delete_other(owner, id, KIND)
            return is_stored

    @asynccontextmanager
    async def _locked(self, owner: str, id: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault((owner, id), asyncio.Lock())
        async with lock:
            for _ in range(LOOKS):
                if await self._store.lock(owner, id, KIND, LOCK_SECONDS):
                    break
                await asyncio.sleep(LOOK_SECONDS)
            else:
                raise ConversationLocked
            try:
                yield
            finally:
                try:
                    await self._store.unlock(owner, id, KIND)
                except StoreError as error:
                    log.warning("conversation_still_locked", seconds=LOCK_SECONDS, error=str(error))


def _decoded(data: bytes) -> StoredConversation:
    """Decode what a store held, into which others may write. Raises `StoreError` for what is no conversation."""
    try:
        return _read(Untrusted(data, STORED).open())
    except TooMuch as error:
        raise StoreError(str(error)) from None
