"""A store in this process: bounded in entries and in bytes, forgetting what was not touched for longest."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Kept:
    value: bytes
    until: float
    size: int


class MemoryStore:
    def __init__(self, entries: int, bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries, self._bytes = entries, bytes
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self.size = 0
        """Bytes held, keys included."""

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, key: str) -> bytes | None:
        kept = self._alive(key)
        return None if kept is None else kept.value

    async def get_all(self, keys: Sequence[str], *, renew: float) -> list[bytes | None]:
        return [self._renewed(key, renew) for key in keys]

    async def put(self, key: str, value: bytes, seconds: float) -> None:
        self._drop(key)
        size = len(key) + len(value)
        if size > self._bytes:
            return  # larger than the whole store: kept for no time at all
        self._kept[key] = _Kept(value, self._clock() + seconds, size)
        self.size += size
        # What has expired and is never asked for goes this way too: it comes to the front and falls out.
        while len(self._kept) > self._entries or self.size > self._bytes:
            _, kept = self._kept.popitem(last=False)
            self.size -= kept.size

    async def add(self, key: str, value: bytes, seconds: float) -> bool:
        if self._alive(key) is not None:
            return False
        await self.put(key, value, seconds)
        return True

    async def delete(self, key: str) -> None:
        self._drop(key)

    async def close(self) -> None:
        self._kept.clear()
        self.size = 0

    def _renewed(self, key: str, seconds: float) -> bytes | None:
        kept = self._alive(key)
        if kept is None:
            return None
        self._kept[key] = _Kept(kept.value, self._clock() + seconds, kept.size)
        self._kept.move_to_end(key)
        return kept.value

    def _alive(self, key: str) -> _Kept | None:
        kept = self._kept.get(key)
        if kept is not None and kept.until <= self._clock():
            self._drop(key)
            return None
        return kept

    def _drop(self, key: str) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.size -= kept.size
