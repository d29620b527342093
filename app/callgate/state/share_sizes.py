"""Remembers the sizes of shares, for stores in databases: there adding up a share reads all of its entries."""

from typing import Final

from callgate.state.store import Share

SUM_EVERY: Final = 64
"""Entries put into a share between two times that it is added up, unless it may be full: other processes put in entries too."""
PRUNE_EVERY: Final = 256
"""Entries put into a store between two times that expired ones are deleted."""
MOST_SHARES: Final = 10_000


class ShareSizes:
    """Upper bounds of the sizes of shares, as far as one process knows."""

    def __init__(self) -> None:
        self._bounds: dict[str, tuple[int, int]] = {}
        """By share: its bound, and the number of entries put in since it was added up."""
        self._entries = 0

    def may_exceed(self, share: Share, size: int) -> bool:
        """Note that an entry was put into a share; return whether the share has to be added up."""
        bound, entries = self._bounds.get(share.name, (share.bytes, 0))
        if bound + size > share.bytes or entries >= SUM_EVERY:
            return True
        self._bounds[share.name] = (bound + size, entries + 1)
        return False

    def note_sum(self, share: Share, total: int) -> int:
        """Note the size of a share; return by how many bytes it exceeds its limit, which are evicted then."""
        if len(self._bounds) >= MOST_SHARES:
            self._bounds.clear()
        self._bounds[share.name] = (min(total, share.bytes), 0)
        return total - share.bytes

    def is_time_to_prune(self) -> bool:
        """Note that an entry was put in; return whether expired ones have to be deleted."""
        self._entries += 1
        return self._entries % PRUNE_EVERY == 0
