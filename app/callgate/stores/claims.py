"""Claims on idempotency keys: which process answers a request, whether a tool of it began, and its answer.

A claim is stored before anything runs, and updated before the first tool runs. Where it cannot be stored nothing runs. The claim
of a dead process is taken over if no tool had begun, and is interrupted otherwise.
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
"""Without a heartbeat for so long a process is taken for dead."""


class Claim(msgspec.Struct, array_like=True, frozen=True):
    """The value stored under a key."""

    digest: bytes
    """The digest of the request."""
    state: Literal["claimed", "begun", "done"]
    owner: str
    """The process that answers it."""
    token: str
    run_id: str = ""
    status: int = 0
    headers: list[tuple[bytes, bytes]] = []
    body: bytes = b""


class ClaimHeld(Exception):
    """Raised where another process is answering the request with this key."""


class Interrupted(Exception):
    """Raised where a tool had begun when the process or the claim was lost."""


class StoreProcesses(Protocol):
    """The processes that share a store."""

    @property
    def own(self) -> str: ...

    async def announce(self) -> None:
        """Make sure that other processes see that this one is alive."""
        ...

    async def is_alive(self, process: str) -> bool: ...

    async def close(self) -> None: ...


class OneProcess:
    """Used where the store is not shared."""

    own = "this"

    async def announce(self) -> None:
        """Do nothing: there is no other process."""

    async def is_alive(self, process: str) -> bool:
        return process == self.own

    async def close(self) -> None:
        """Do nothing."""


class LockedProcesses:
    """Processes on one machine, each with a file lock that the system releases when it ends."""

    def __init__(self, own: Callable[[], str], is_gone: Callable[[str], bool]) -> None:
        self._own, self._is_gone = own, is_gone

    @property
    def own(self) -> str:
        return self._own()

    async def announce(self) -> None:
        """Do nothing: the lock is already held."""

    async def is_alive(self, process: str) -> bool:
        return not await asyncio.to_thread(self._is_gone, process)

    async def close(self) -> None:
        """Do nothing: the ledger releases the lock."""


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
                continue  # the next claim reports the error

    async def _pulse(self) -> None:
        began = time.monotonic()
        await self._store.put(f"process:{self.own}", b"1", GONE_SECONDS)
        self._seen_at = began


class Claims:
    """The claims in one store. Methods raise `StoreError`."""

    def __init__(self, store: KeyValueStore, processes: StoreProcesses, *, own_store: bool = False) -> None:
        """`own_store`: whether the store is closed with the claims."""
        self.outlive_us = not isinstance(processes, OneProcess)
        """Whether claims survive this process, and are not evicted."""
        self._store, self._processes, self._own_store = store, processes, own_store

    @property
    def processes(self) -> StoreProcesses:
        """The processes that share the store."""
        return self._processes

    async def claim(self, key: str, digest: bytes, seconds: float) -> Claim:
        """Claim a key; return our claim, or the existing one of another request or a done one.

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
            # A claim of this process whose request has ended without being marked as done.
            if found.owner != ours.owner and await self._processes.is_alive(found.owner):
                raise ClaimHeld
            if found.state == "begun":
                raise Interrupted
            # Of several concurrent requests the first to take the token continues.
            if not await self._store.add(f"{key}:{found.token}", b"1", seconds):
                raise ClaimHeld
            await self._store.put(key, _encode(ours), seconds)
            break
        return ours

    async def begin(self, key: str, ours: Claim, run_id: str, seconds: float) -> None:
        """Store that a tool is about to run. Raises `Interrupted` where another process has taken the claim."""
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
