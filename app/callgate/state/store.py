"""The protocol of a store: bytes under a key until they expire."""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class StoreError(Exception):
    """Raised where the store could not be reached. Its entries may still be there."""


class LargerThanShare(StoreError):
    """Raised for a value that is larger than all that is kept of its owner."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(f"of {size} bytes, where {most} are kept of one key")


class Share(msgspec.Struct, frozen=True):
    """The share of one owner in a store. Beyond it its own oldest entries are evicted, and no others."""

    name: str
    bytes: int
    per_entry: int = 0
    """How many bytes each entry counts beside its own, where a share bounds the number of entries too."""

    def counted(self, size: int) -> int:
        """Return what an entry of so many bytes, its key included, counts."""
        return size + self.per_entry


class KeyValueStore(Protocol):
    """A store of bytes by key. Entries expire, and a full store evicts the oldest."""

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key, if any."""
        ...

    async def get_all(self, keys: Sequence[str], *, renew: float) -> list[bytes | None]:
        """Return the values of several keys in one request, and renew their expiry."""
        ...

    async def put(self, key: str, value: bytes, seconds: float, share: Share | None = None) -> None:
        """Store a value, replacing an earlier one. It counts in `share`, if given."""
        ...

    async def add(self, key: str, value: bytes, seconds: float, share: Share | None = None) -> bool:
        """Store a value unless the key is taken; return whether it was free. Atomic. It counts in `share`, if given."""
        ...

    async def delete(self, key: str, share: Share | None = None) -> None:
        """Delete a key; `share` is the one that it was put into."""
        ...

    async def close(self) -> None: ...
