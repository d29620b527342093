"""Concurrency limits of keys, models and tools counted for several processes that serve as one.

Each request holds a slot with a lease of half a minute, which is renewed while it runs, so that the slots of a dead process
expire.
"""

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Final

from callgate.access.limits import limits_unavailable
from callgate.state.cancelling import cancel_until_ended

LEASE_SECONDS: Final = 30.0
RENEW_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.05
"""The interval of attempts of a request that waits for a slot."""
CLOSING_SECONDS: Final = 1.0
"""How long is waited at the end until slots are given back."""


class LeasedSlot:
    """The slot of one request."""

    __slots__ = ("_places", "id", "is_wanted", "key")

    def __init__(self, places: "LeasedPlaces", key: str) -> None:
        self._places = places
        self.key = key
        self.id = secrets.token_hex(8)
        self.is_wanted = True

    def leave(self) -> None:
        """Release the slot in the background."""
        self._places.give_back(self)


class LeasedPlaces(ABC):
    """The slots of all keys."""

    def __init__(self, *, refuses_while_away: bool = False) -> None:
        """`refuses_while_away`: requests are refused while slots cannot be counted; else each process counts alone."""
        self.lease_seconds = LEASE_SECONDS
        self._refuses_while_away = refuses_while_away
        self._held: dict[str, dict[str, LeasedSlot]] = {}
        self._work: set[asyncio.Task[Any]] = set()
        self._renewing: asyncio.Task[None] | None = None

    @abstractmethod
    async def take(self, key: str, slot: str, places: int) -> bool | None:
        """Take a slot; False where all are taken, None where that cannot be found out now."""

    @abstractmethod
    async def renew(self, key: str, slots: list[str]) -> None:
        """Renew the leases of slots."""

    @abstractmethod
    async def release(self, key: str, slot: str) -> None: ...

    async def enter(self, key: str, places: int, wait_seconds: float) -> "LeasedSlot | bool":
        """Take a slot; False where there was none in time; True where this process should count alone."""
        until = time.monotonic() + wait_seconds
        slot = LeasedSlot(self, key)
        taking = asyncio.get_running_loop().create_task(self._take_in_time(slot, places, until))
        try:
            is_taken = await asyncio.shield(taking)
        except asyncio.CancelledError:
            slot.is_wanted = False
            self._begin(self._undo(taking, slot))  # it may have been taken already
            raise
        if is_taken is None:
            if self._refuses_while_away:
                raise limits_unavailable()
            return True
        if not is_taken:
            return False
        self._held.setdefault(key, {})[slot.id] = slot
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._keep_renewing(), name="leases of slots")
        return slot

    def give_back(self, slot: LeasedSlot) -> None:
        slots = self._held.get(slot.key, {})
        slots.pop(slot.id, None)
        if not slots:
            self._held.pop(slot.key, None)
        self._begin(self.release(slot.key, slot.id))

    async def close(self) -> None:
        if self._renewing is not None:
            await cancel_until_ended(self._renewing)
        if self._work:
            await asyncio.wait(self._work, timeout=CLOSING_SECONDS)

    async def _take_in_time(self, slot: LeasedSlot, places: int, until: float) -> bool | None:
        while True:
            is_taken = await self.take(slot.key, slot.id, places)
            if is_taken or is_taken is None:
                return is_taken
            if time.monotonic() + LOOK_SECONDS > until or not slot.is_wanted:
                return False
            await asyncio.sleep(LOOK_SECONDS)

    async def _undo(self, taking: "asyncio.Task[bool | None]", slot: LeasedSlot) -> None:
        if await taking:
            await self.release(slot.key, slot.id)

    async def _keep_renewing(self) -> None:
        while self._held:
            await asyncio.sleep(RENEW_SECONDS)
            for key, slots in list(self._held.items()):
                await self.renew(key, list(slots))

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="giving back a slot")
        self._work.add(task)
        task.add_done_callback(self._work.discard)
