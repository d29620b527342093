"""The database interface of the ledger, implemented for SQLite and Postgres.

A statement is written once, with `?1`, `?2`, … for its values and `{now}` for the database's clock (see `tables`), and is
a transaction of its own. Statements are so made that doing one twice does what doing it once does: where a connection was
lost it is not known whether one was done.
"""

from typing import Any, Protocol

from callgate.ledger.tables import Row


class DatabaseAway(Exception):
    """It could not be asked, or did not answer: what was asked may have been done, or not."""


class Database(Protocol):
    """Raises `DatabaseAway` where it cannot be asked."""

    @property
    def sees_deaths(self) -> bool:
        """True if the end of a process is seen, and not concluded from its silence."""
        ...

    async def fetch(self, statement: str, *values: Any) -> list[Row]: ...

    async def beat(self, process: str, kind: str, version: str) -> bool:
        """Say that a process lives. Whether another may have died since."""
        ...

    async def mark_lost(self, silence: float) -> list[Row]:
        """Put down the ends of calls whose processes were not seen for so many seconds; their states. It does not wait for
        what else is asked, as little as a beat does."""
        ...

    async def leave(self, process: str) -> None:
        """A process ends in order."""
        ...

    async def identity(self) -> str:
        """The same for all processes that share it, and for nobody else."""
        ...

    async def close(self) -> None: ...
