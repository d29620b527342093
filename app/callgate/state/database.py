"""The database interface of the ledger, implemented for SQLite and Postgres.

Statements are the same for both, with `?1`, `?2`, … for values and `{now}` for the database's clock (see `tables`). Each is a
transaction of its own, and idempotent, because after a lost connection it is unknown whether it was executed.
"""

from typing import Any, Protocol

from callgate.state.tables import Row


class DamagedFile(Exception):
    """Raised where a file in the data folder is not what it has to be. The text says what to do."""


class DatabaseAway(Exception):
    """Raised where the database could not be reached or did not answer. The statement may or may not have been executed."""


class NotMigrated(Exception):
    """Raised where the tables of the database are missing, or of another version. The text says what to do."""


class Database(Protocol):
    """A database of the ledger. All methods raise `DatabaseAway`."""

    @property
    def sees_deaths(self) -> bool:
        """True if the end of a process is detected directly, and not by missing heartbeats."""
        ...

    async def fetch(self, statement: str, *values: Any) -> list[Row]: ...

    async def beat(self, process: str, kind: str, version: str) -> bool:
        """Write a heartbeat; return whether another process may have died since the last one."""
        ...

    async def mark_lost(self, silence: float) -> list[Row]:
        """Put down the ends of calls whose processes were not seen for so many seconds; their states. It does not wait for
        what else is asked, as little as a beat does."""
        ...

    async def leave(self, process: str) -> None:
        """Remove a process that ends in order."""
        ...

    async def close(self) -> None: ...
