"""Limits the memory of all large request bodies together. A body is held until the end of its request, which a client can
delay by sending it slowly, or by choosing a slow model."""

from collections import Counter
from typing import Final

LARGE: Final = 262_144
"""Smaller bodies are not counted."""
OF_ALL: Final = 48
"""The limit, in bodies of the largest size."""
OF_ONE: Final = 24
"""The limit of one key, which leaves room for others."""


class LargeBodies:
    """Counts the bytes of one process."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()

    def grow(self, owner: str, more: int, largest: int) -> bool:
        """Count further bytes; return false, without counting them, where there is no room. `largest`: the limit of a body."""
        if self._of[owner] + more > OF_ONE * largest or self._of.total() + more > OF_ALL * largest:
            return False
        self._of[owner] += more
        return True

    def shrink(self, owner: str, less: int) -> None:
        self._of[owner] -= less
        if not self._of[owner]:
            del self._of[owner]
