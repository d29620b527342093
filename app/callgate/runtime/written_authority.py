"""What was allowed, written down for the next start: in the database of the ledger, or else in the data folder."""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from callgate.config.schema.whole import Config
from callgate.state.database import Database
from callgate.state.store import StoreError
from callgate.untrusted.doors import Door, Untrusted
from callgate.untrusted.readers import READ_ERRORS, read_value

if TYPE_CHECKING:
    from callgate.state.cluster.ledger_store import LedgerStore

AUTHORITY: Final = Door(name="what was allowed", bytes=64 * 1024 * 1024)
FILE: Final = "authority.json"
KEY: Final = "authority"
SECONDS: Final = 10 * 365 * 86_400.0
"""How long the ledger has it without a start or a reload."""


class CannotRead(Exception):
    """Raised where something was written that cannot be read."""


class CannotReach(Exception):
    """Raised where it cannot be reached."""


class WrittenAuthority(Protocol):
    """Where it is written."""

    place: str
    """For people."""
    is_shared: bool
    """Whether other processes start by it too."""

    async def read(self) -> Any:
        """Return what the last start wrote; None where there was none. Raises `CannotRead`, and `CannotReach` where it is away."""
        ...

    async def write(self, values: Mapping[str, Any]) -> None:
        """Replace it. Raises `CannotReach`."""
        ...


def written_authority_of(config: Config, database: Callable[[], Database | None]) -> WrittenAuthority | None:
    """Return where a server writes it; None where nothing of it outlives its process."""
    if config.ledger.url is not None:
        from callgate.state.cluster.ledger_store import LedgerStore

        return AuthorityInLedger(LedgerStore(database))
    if config.data_dir is not None:
        return AuthorityInFile(Path(config.data_dir) / FILE)
    return None


class AuthorityInFile:
    """A file of the data folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.place = str(path)
        self.is_shared = False

    async def read(self) -> Any:
        try:
            if self._path.exists() and not self._path.is_file():
                raise CannotRead("it is no file")
            return _values(await asyncio.to_thread(self._path.read_bytes))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CannotRead(type(error).__name__) from error

    async def write(self, values: Mapping[str, Any]) -> None:
        try:
            await asyncio.to_thread(self._replace, json.dumps(values, default=str))
        except OSError as error:
            raise CannotReach(os.strerror(error.errno or 0)) from error

    def _replace(self, text: str) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        fresh.replace(self._path)


class AuthorityInLedger:
    """A row of the ledger's database, for all processes that share it."""

    place = "the ledger"
    is_shared = True

    def __init__(self, store: "LedgerStore") -> None:
        self._store = store

    async def read(self) -> Any:
        try:
            text = await self._store.get(KEY)
        except StoreError as error:
            raise CannotReach(str(error)) from error
        if text is None:
            return None
        return await asyncio.to_thread(_values, text)

    async def write(self, values: Mapping[str, Any]) -> None:
        try:
            await self._store.put(KEY, json.dumps(values, default=str).encode(), SECONDS)
        except StoreError as error:
            raise CannotReach(str(error)) from error


def _values(text: bytes) -> Any:
    try:
        return read_value(Untrusted(text, AUTHORITY).open())
    except READ_ERRORS as error:
        raise CannotRead(type(error).__name__) from error
