"""What a runtime has to know of the workers that serve beside it: whether they do, their metrics, and the config that they took."""

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Counted(NamedTuple):
    """The metrics of a server's workers, one page each."""

    living: list[bytes]
    ended: list[bytes]
    """The last pages of workers that have ended."""


class WorkerGroup(Protocol):
    """The workers of one server, of which this process is one."""

    place: int
    """The number of this one, from 0."""

    def are_enough(self) -> bool:
        """True if at least half of them serve."""
        ...

    def have_served(self) -> bool:
        """True if any of them ever has."""
        ...

    def take(self, digest: str) -> None:
        """Note that a config file with this digest was taken although it widens what is allowed."""
        ...

    def have_taken(self, digest: str) -> bool:
        """True if one of them has taken this very file, as a worker that replaces it has to know."""
        ...

    async def open(self, exposition: Callable[[], bytes]) -> None:
        """Note that this worker serves, and publish its metrics."""
        ...

    async def close(self) -> None: ...

    async def counted(self, own: bytes) -> Counted:
        """Return the metrics of all workers; `own` are those of this process."""
        ...
