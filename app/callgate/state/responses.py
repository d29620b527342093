"""Stores responses by owner, until they expire or are deleted."""

import asyncio
import hashlib
from typing import Any, Final

import msgspec

from callgate.state.store import KeyValueStore, LargerThanShare, Share, StoreError
from callgate.untrusted.doors import OWN_BYTES, Door, TooMuch, Untrusted
from callgate.untrusted.readers import json_reader

SHARES = 1024
"""Owners whose shares are cached."""
LARGE = 262_144
"""The size of a response from which it is decoded in a thread."""


class StoredResponse(msgspec.Struct):
    """One response, with all that a chat needs to continue it. Independent of other responses, so that each can be deleted."""

    response: msgspec.Raw
    input: list[msgspec.Raw]
    """Its input items, each with an id."""
    history: list[Any]
    """The messages of the chat with our calls, reasoning and signatures; without its instructions."""
    approvals: dict[str, str] = {}
    """The calls that wait for the client's decision, by the ids of the approval requests."""
    after: list[Any] = []
    """Messages after the client's answers to its calls: images, which tool messages cannot have."""
    conversation: str = ""
    """The id of the first response of its chain; of a thread's message, that of the first message."""
    listed: dict[str, str] = {}
    """Marks of the lists of tools that its client has, by the labels of their servers."""
    size: int = 0
    """Its stored size in bytes."""


class ResponseStore:
    """Stores responses by owner and id."""

    def __init__(self, store: KeyValueStore, seconds: float, owner_bytes: int, *, own_store: bool = False) -> None:
        """`owner_bytes`: the limit of one owner, beyond which its oldest responses are evicted. `own_store`: whether the store
        is closed with the responses."""
        self._store = store
        self._seconds = seconds
        self._own_store = own_store
        self._owner_bytes = owner_bytes
        self._shares: dict[str, Share] = {}

    async def put(self, owner: str, id: str, response: StoredResponse) -> None:
        key = _key(owner, id)
        value = encode_response(response)
        if len(key) + len(value) > self._owner_bytes:
            raise LargerThanShare(len(value), self._owner_bytes)
        await self._store.put(key, value, self._seconds, self._share(owner))

    async def get(self, owner: str, id: str) -> StoredResponse | None:
        value = await self._store.get(_key(owner, id))
        if value is None:
            return None
        if len(value) < LARGE:
            response = decode_response(value)
        else:
            response = await asyncio.to_thread(decode_response, value)
        response.size = len(value)
        return response

    async def delete(self, owner: str, id: str) -> bool:
        """Delete a response; return whether there was one."""
        key = _key(owner, id)
        is_stored = await self._store.get(key) is not None
        await self._store.delete(key, self._share(owner))
        return is_stored

    async def decide(self, owner: str, id: str, run_id: str) -> bool:
        """Store that a run used a decision; return False where another one did already."""
        key = _key(owner, id, "decided:")
        run = run_id.encode()
        return await self._store.add(key, run, self._seconds) or await self._store.get(key) == run

    async def get_other(self, owner: str, id: str, kind: str) -> bytes | None:
        """Return what is stored of an owner's object of another kind."""
        return await self._store.get(_key(owner, id, kind))

    async def put_other(self, owner: str, id: str, kind: str, value: bytes) -> None:
        """Store an object of another kind. It counts in the share of its owner, and expires as responses do."""
        key = _key(owner, id, kind)
        if len(key) + len(value) > self._owner_bytes:
            raise LargerThanShare(len(value), self._owner_bytes)
        await self._store.put(key, value, self._seconds, self._share(owner))

    async def delete_other(self, owner: str, id: str, kind: str) -> None:
        await self._store.delete(_key(owner, id, kind), self._share(owner))

    async def lock(self, owner: str, id: str, kind: str, seconds: float) -> bool:
        """Lock an object for all processes; return False where another one has it. The lock ends with these seconds."""
        return await self._store.add(_key(owner, id, f"locked {kind}"), b"1", seconds)

    async def unlock(self, owner: str, id: str, kind: str) -> None:
        await self._store.delete(_key(owner, id, f"locked {kind}"))

    async def close(self) -> None:
        if self._own_store:
            await self._store.close()

    def _share(self, owner: str) -> Share:
        share = self._shares.get(owner)
        if share is None:
            if len(self._shares) >= SHARES:
                self._shares.clear()
            name = hashlib.sha256(owner.encode(errors="surrogatepass")).hexdigest()
            share = self._shares[owner] = Share(name, self._owner_bytes)
        return share


encode_response = msgspec.json.Encoder().encode
STORED: Final = Door(name="a stored response", bytes=OWN_BYTES)
_read = json_reader(StoredResponse)


def decode_response(data: bytes) -> StoredResponse:
    """Decode what a store held, into which others may write. Raises `StoreError` for too much of it."""
    try:
        return _read(Untrusted(data, STORED).open())
    except TooMuch as error:
        raise StoreError(str(error)) from None


def _key(owner: str, id: str, kind: str = "response:") -> str:
    return kind + hashlib.sha256(f"{owner}\0{id}".encode(errors="surrogatepass")).hexdigest()
