"""Claims on idempotency keys: which process answers a request, whether a tool of it began, and its outcome.

A claim is kept before anything runs, and says that a tool is about to run before one does. Where it cannot be kept nothing
runs. A claim of a process that is gone is taken over where no tool had been begun, and is interrupted otherwise.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from math import inf
from typing import Final, Literal, Protocol

import msgspec

from callgate.stores.store import KeyValueStore, StoreError

PULSE_SECONDS: Final = 2.0
GONE_SECONDS: Final = 8.0
"""Without a pulse for so long a process is taken for gone."""


class Claim(msgspec.Struct, array_like=True, frozen=True):
    """The value kept under a key."""

    digest: bytes
    """Of the request."""
    state: Literal["claimed", "begun", "done"]
    owner: str
    """The process that answers it."""
    token: str
    run_id: str = ""
    status: int = 0
    headers: list[tuple[bytes, bytes]] = []
    body: bytes = b""


class ClaimHeld(Exception):
    """Another process is at work on this key."""


class Interrupted(Exception):
    """A tool had been begun when the process was lost, or the claim."""


class StoreProcesses(Protocol):
    """The processes that share a store."""

    @property
    def own(self) -> str: ...

    async def announce(self) -> None:
        """Make sure that other processes can see that this one lives."""
        ...

    async def is_alive(self, process: str) -> bool: ...

    async def close(self) -> None: ...


class OneProcess:
    """Used where the store is not shared, and ends with the process."""

    own = "this"

    async def announce(self) -> None:
        """Do nothing: there is no other process."""

    async def is_alive(self, process: str) -> bool:
        return process == self.own

    async def close(self) -> None:
        """There is nothing to close."""


class LockedProcesses:
    """Processes on one machine, each with a lock that the system lets go when it ends, however it ends."""

    def __init__(self, own: Callable[[], str], is_gone: Callable[[str], bool]) -> None:
        self._own, self._is_gone = own, is_gone

    @property
    def own(self) -> str:
        return self._own()

    async def announce(self) -> None:
        """The lock is held already."""

    async def is_alive(self, process: str) -> bool:
        return not await asyncio.to_thread(self._is_gone, process)

    async def close(self) -> None:
        """The lock belongs to the ledger."""


class PulsingProcesses:
    """Processes on several machines, each of which renews an entry of the shared store."""

    def __init__(self, store: KeyValueStore) -> None:
        self.own = secrets.token_hex(8)
        self._store = store
        self._seen_at = -inf
        self._task: asyncio.Task[None] | None = None

    async def announce(self) -> None:
        if time.monotonic() - self._seen_at > PULSE_SECONDS:
            await self._pulse()
        if self._task is None:
            self._task = asyncio.create_task(self._keep_pulsing(), name="pulse of this process")

    async def is_alive(self, process: str) -> bool:
        return await self._store.get(f"process:{process}") is not None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _keep_pulsing(self) -> None:
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            try:
                await self._pulse()
            except StoreError:
                continue  # whoever claims next is refused, and says so

    async def _pulse(self) -> None:
        began = time.monotonic()
        await self._store.put(f"process:{self.own}", b"1", GONE_SECONDS)
        self._seen_at = began


class Claims:
    """Claims in one store. Raises `StoreError` where that cannot be asked."""

    def __init__(self, store: KeyValueStore, processes: StoreProcesses, *, own_store: bool = False) -> None:
        """`own_store`: whether the store is closed with the claims."""
        self.outlive_us = not isinstance(processes, OneProcess)
        """Whether a claim is there after this process has ended, and is not pushed out by others."""
        self._store, self._processes, self._own_store = store, processes, own_store

    @property
    def processes(self) -> StoreProcesses:
        """Those that share the store."""
        return self._processes

    async def claim(self, key: str, digest: bytes, seconds: float) -> Claim:
        """A claim of ours, or the one that is there: another request's, or one that is done.

        Raises `ClaimHeld` and `Interrupted`."""
        await self._processes.announce()
        ours = Claim(digest, "claimed", self._processes.own, secrets.token_hex(8))
        while not await self._store.add(key, _encode(ours), seconds):
            kept = await self._store.get(key)
            if kept is None:
                continue
            found = _decode(kept)
            if found.digest != digest or found.state == "done":
                return found
            # One of this process has ended without being put down as done, or nobody would ask here.
            if found.owner != ours.owner and await self._processes.is_alive(found.owner):
                raise ClaimHeld
            if found.state == "begun":
                raise Interrupted
            # Of several that come now, the first to take its token answers.
            if not await self._store.add(f"{key}:{found.token}", b"1", seconds):
                raise ClaimHeld
            await self._store.put(key, _encode(ours), seconds)
            break
        return ours

    async def begin(self, key: str, ours: Claim, run_id: str, seconds: float) -> None:
        """Put down that a tool is about to run. Raises `Interrupted` where the claim has become another's."""
        begun = msgspec.structs.replace(ours, state="begun", run_id=run_id)
        kept = await self._store.get(key)
        if kept is not None and _decode(kept).token != ours.token:
            raise Interrupted
        await self._store.put(key, _encode(begun), seconds)

    async def finish(self, key: str, done: Claim, seconds: float) -> None:
        await self._store.put(key, _encode(done), seconds)

    async def forget(self, key: str) -> None:
        await self._store.delete(key)

    async def close(self) -> None:
        await self._processes.close()
        if self._own_store:
            await self._store.close()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Claim).decode
