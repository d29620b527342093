"""Where bytes are kept under a key until they expire. What the bytes mean is for those who keep them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class StoreError(Exception):
    """The store could not be asked. What was kept may still be there."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one owner may keep in a store. Over it the oldest of its own goes, and nobody else's."""

    name: str
    bytes: int


class KeyValueStore(Protocol):
    """Keys are text of ours. Nothing here is kept for ever, and a store that is full forgets the oldest."""

    async def get(self, key: str) -> bytes | None:
        """What is kept under a key, if anything."""
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
