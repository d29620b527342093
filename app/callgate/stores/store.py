"""The protocol of a store: bytes under a key until they expire."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class StoreError(Exception):
    """The store could not be asked. What was kept may still be there."""


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one owner in a store. Over it the oldest of its own entries go, and no others."""

    name: str
    bytes: int


class KeyValueStore(Protocol):
    """Keys are text of ours. Nothing here is kept for ever, and a store that is full forgets the oldest."""

    async def get(self, key: str) -> bytes | None:
        """Return the value kept under a key, if any."""
        ...

    async def get_all(self, keys: Sequence[str], *, renew: float) -> list[bytes | None]:
        """The same for many keys in one exchange; what is there is kept for so many seconds from now on."""
        ...

    async def put(self, key: str, value: bytes, seconds: float, share: Share | None = None) -> None:
        """Keep something, in place of what was there. It counts in a share, if one is given."""
        ...

    async def add(self, key: str, value: bytes, seconds: float) -> bool:
        """Keep something unless the key is taken; whether it was free. Of several at once exactly one succeeds."""
        ...

    async def delete(self, key: str, share: Share | None = None) -> None:
        """Forget it; `share` is the one that it was put into."""
        ...

    async def close(self) -> None: ...
