"""A store in memory, bounded in entries and bytes. It evicts the least recently used entry of the largest share."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from callgate.state.store import Share


class _KeptValue(msgspec.Struct, frozen=True):
    value: bytes
    until: float
    size: int
    share: str


class _CallerShare(msgspec.Struct):
    """The entries of one share, the oldest first."""

    keys: OrderedDict[str, None] = msgspec.field(default_factory=OrderedDict)
    size: int = 0


class MemoryStore:
    def __init__(self, entries: int, bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries = entries
        self._bytes = bytes
        self._clock = clock
        self._kept: dict[str, _KeptValue] = {}
        self._shares: dict[str, _CallerShare] = {}
        """The shares by name; entries without a share are under the empty name."""
        self.size = 0
        """The size in bytes, keys included."""

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, key: str) -> bytes | None:
        entry = self._alive(key)
        if entry is None:
            return None
        return entry.value

    async def get_all(self, keys: Sequence[str], *, renew: float) -> list[bytes | None]:
        return [self._renewed(key, renew) for key in keys]

    async def put(self, key: str, value: bytes, seconds: float, share: Share | None = None) -> None:
        self._drop(key)
        if share is None:
            name = ""
            size = len(key) + len(value)
        else:
            name = share.name
            size = share.counted(len(key) + len(value))
        if size > self._bytes:
            return  # larger than the whole store
        self._kept[key] = _KeptValue(value, self._clock() + seconds, size, name)
        share_entries = self._shares.setdefault(name, _CallerShare())
        share_entries.keys[key] = None
        share_entries.size += size
        self.size += size
        # Expired entries are evicted in this way too.
        while share is not None and share_entries.size > share.bytes:
            self._drop(next(iter(share_entries.keys)))
        while len(self._kept) > self._entries:
            self._drop_oldest_of_most(lambda share_entries: len(share_entries.keys))
        while self.size > self._bytes:
            self._drop_oldest_of_most(lambda share_entries: share_entries.size)

    async def add(self, key: str, value: bytes, seconds: float, share: Share | None = None) -> bool:
        if self._alive(key) is not None:
            return False
        await self.put(key, value, seconds, share)
        return True

    async def delete(self, key: str, share: Share | None = None) -> None:
        self._drop(key)

    async def close(self) -> None:
        self._kept.clear()
        self._shares.clear()
        self.size = 0

    def _drop_oldest_of_most(self, most: Callable[[_CallerShare], int]) -> None:
        """Evict from shares first, because decisions, which are in none, have to outlive what they are about."""
        name = max(self._shares, key=lambda name: (name != "", most(self._shares[name])))
        self._drop(next(iter(self._shares[name].keys)))

    def _renewed(self, key: str, seconds: float) -> bytes | None:
        entry = self._alive(key)
        if entry is None:
            return None
        self._kept[key] = replace(entry, until=self._clock() + seconds)
        self._shares[entry.share].keys.move_to_end(key)
        return entry.value

    def _alive(self, key: str) -> _KeptValue | None:
        entry = self._kept.get(key)
        if entry is not None and entry.until <= self._clock():
            self._drop(key)
            return None
        return entry

    def _drop(self, key: str) -> None:
        entry = self._kept.pop(key, None)
        if entry is not None:
            self.size -= entry.size
            share_entries = self._shares[entry.share]
            share_entries.size -= entry.size
            del share_entries.keys[key]
            if not share_entries.keys:
                del self._shares[entry.share]
