"""Limits the memory that large request bodies take together. A body is there from its first byte to the end of its
request, and how long that is a client may decide: by sending it slowly, or by asking a slow model."""

from collections import Counter
from typing import Final

LARGE: Final = 262_144
"""Smaller ones are not counted: a thousand of them are no more than a few of the largest."""
OF_ALL: Final = 48
"""How many of the largest there may be at once."""
OF_ONE: Final = 24
"""And how many of one key, which leaves room for others."""


class LargeBodies:
    """Counts the bytes of one process."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()

    def grow(self, owner: str, more: int, largest: int) -> bool:
        """Count bytes more; false, and nothing counted, where there is no room. `largest` is what one body may have."""
        if self._of[owner] + more > OF_ONE * largest or self._of.total() + more > OF_ALL * largest:
            return False
        self._of[owner] += more
        return True

    def shrink(self, owner: str, less: int) -> None:
        self._of[owner] -= less
        if not self._of[owner]:
            del self._of[owner]
