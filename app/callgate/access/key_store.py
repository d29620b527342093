"""Keys in an SQLite file: created, listed and revoked by the command line while a server reads them.

A server notices a change within a second. It also remembers that the config had keys. A revoked key stays in the file: its name and its hash cannot be used again, and
while there are only revoked keys every request is refused.
"""

import asyncio
import contextlib
import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog

from callgate.access.keys import NO_LOOK, KeyEntry, KeysUnknown, Look
from callgate.callers.allowance import Allowance
from callgate.callers.exposure import KEYS_FILE
from callgate.state.database import DamagedFile
from callgate.state.local.file_identity import identity_of
from callgate.state.local.journal_mode import use_write_ahead_journal
from callgate.telemetry.outages import Outage
from callgate.untrusted.doors import Door, open_text
from callgate.untrusted.readers import read_leniently

Written = TypeVar("Written")
FILE: Final = KEYS_FILE
LOOK_SECONDS: Final = 1.0
"""How often a server checks whether the file has changed: the longest time that a revoked key still works."""
DAMAGE: Final = (sqlite3.Error, ValueError, TypeError)
"""Errors of a damaged file or row."""
LONGEST_PAUSE: Final = 15.0
"""Seconds before a file that could not be opened is tried again."""
BUSY_SECONDS: Final = 2.0
"""The wait for another process that writes."""

_TABLE: Final = """
CREATE TABLE keys (
  name TEXT PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  models TEXT NOT NULL,
  tools TEXT NOT NULL,
  allowance TEXT NOT NULL,
  approve INTEGER NOT NULL,
  admin INTEGER NOT NULL,
  created_at REAL NOT NULL,
  revoked_at REAL,
  see TEXT NOT NULL DEFAULT 'none',
  expires_at REAL,
  old_hash TEXT,
  old_expires_at REAL,
  events TEXT,
  usage TEXT,
  offer TEXT
) STRICT
"""
_LATER: Final = {
    "see": "TEXT NOT NULL DEFAULT 'none'",
    "expires_at": "REAL",
    "old_hash": "TEXT",
    "old_expires_at": "REAL",
    "events": "TEXT",
    "usage": "TEXT",
    "offer": "TEXT",
}
"""Columns that a file of an earlier version does not have."""
_HAD_KEYS: Final = 1
"""The `user_version` of a file whose server had keys, in its config or here."""
COLUMNS: Final = "name, hash, models, tools, allowance, approve, admin, created_at, revoked_at, see, expires_at, old_hash, old_expires_at, events, usage, offer"
"""The columns of a key, in the file and in the ledger."""
_ALL: Final = f"SELECT {COLUMNS} FROM keys ORDER BY created_at, name"  # noqa: S608 - constants


log = structlog.get_logger("callgate.keys")


class DamagedStore(DamagedFile):
    """Raised where the file cannot be read as a key store."""

    def __init__(self, path: Path, why: object) -> None:
        what = "put a copy in its place, or move it away and make new keys with `callgate keys create`"
        if "locked" in str(why):
            what = "another program has it open"
        elif isinstance(why, sqlite3.OperationalError) and "no such" not in str(why):
            what = "its disk may be full, or not writable"
        super().__init__(f"{path} cannot be read ({why}). No key in it is accepted: {what}")


class NameTaken(Exception):
    """Raised where another key, perhaps a revoked one, has this name or hash."""


class StoredKey(msgspec.Struct, frozen=True):
    """One row."""

    entry: KeyEntry
    created_at: float
    revoked_at: float | None


class KeyStore:
    """The key file. Not thread-safe."""

    def __init__(self, folder: Path, patience: float = BUSY_SECONDS) -> None:
        """`patience`: the seconds to wait for who has locked it."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / FILE
        if not path.exists():
            _make(path)
        if not path.is_file():
            raise DamagedStore(path, "it is no file")
        self._path = path
        self._database = sqlite3.connect(path, timeout=patience, isolation_level=None)
        self._file = identity_of(path)
        self.is_moved = False
        """True if the file was moved, deleted or replaced when it was looked at last: what others write now is in another one."""
        self._entries: tuple[KeyEntry, ...] = ()
        self._in_use = False
        self._had_keys = False
        self._version = -1
        self._look_at = -inf
        self.look = Look(-inf)
        self._outage = Outage()
        try:
            use_write_ahead_journal(self._database, patience)
            columns = {name for _, name, *_ in self._database.execute("PRAGMA table_info(keys)")}
            for name, kind in _LATER.items() if columns else ():
                if name not in columns:
                    self._database.execute(f"ALTER TABLE keys ADD COLUMN {name} {kind}")
            self._look(time.monotonic())
        except DAMAGE as failure:
            self._database.close()
            raise DamagedStore(path, failure) from None
        self._database.execute(f"PRAGMA busy_timeout = {round(BUSY_SECONDS * 1000)}")

    def close(self) -> None:
        self.look.until = -inf
        self._database.close()

    # -- read by a server

    def entries(self) -> Sequence[KeyEntry]:
        now = time.monotonic()
        if now >= self._look_at:
            self._look(now)
        return self._entries

    def look_now(self) -> None:
        """Read what another connection has just written."""
        self._look(time.monotonic())

    @property
    def in_use(self) -> bool:
        return self._in_use or self._had_keys

    @property
    def is_away(self) -> bool:
        """True if the file could not be read the last time."""
        return self._outage.is_on

    def remember_keys(self) -> None:
        """Write down that there are keys, so that a start without any is noticed."""
        if self._had_keys:
            return
        try:
            self._database.execute(f"PRAGMA user_version = {_HAD_KEYS}")
        except sqlite3.Error as failure:
            log.warning("keys_not_remembered", error=str(failure))
        else:
            self._had_keys = True

    def _look(self, now: float) -> None:
        """Read the keys again if another process has written: `data_version` changes then, and is cheap to read."""
        self._look_at = now + LOOK_SECONDS
        self.look.until = -inf
        try:
            self.is_moved = identity_of(self._path) != self._file
        except OSError:
            self.is_moved = True
        try:
            [version] = self._database.execute("PRAGMA data_version").fetchone()
            if version != self._version:
                self._read()
                self._version = version
            if failures := self._outage.over():
                log.warning("key_store_readable_again", failures=failures)
        except DAMAGE as failure:
            if self._version < 0:
                raise
            # The keys that were read last stay valid: a short failure of the disk must not refuse every request.
            if failures := self._outage.failed():
                log.error("key_store_unreadable", error=str(failure), failures=failures)  # noqa: TRY400 - the reason is all there is to say
        self.look = Look(self._look_at)

    def _read(self) -> None:
        self.look.until = -inf
        keys = self.all()
        [version] = self._database.execute("PRAGMA user_version").fetchone()
        self._had_keys = version == _HAD_KEYS
        self._in_use = bool(keys)
        if keys:
            self.remember_keys()
        self._entries = tuple(key.entry for key in keys if key.revoked_at is None)

    # -- written by the command line

    def all(self) -> list[StoredKey]:
        """Return all keys, revoked ones included, the oldest first."""
        return [stored_key(row) for row in self._database.execute(_ALL)]

    def add(self, entry: KeyEntry) -> None:
        row = row_of(entry)
        try:
            self._database.execute(f"INSERT INTO keys ({COLUMNS}) VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608 - constants
        except sqlite3.IntegrityError:
            raise NameTaken(entry.name) from None
        self._read()

    def revoke(self, name: str) -> bool:
        """Revoke a key; return whether there was one of that name."""
        changed = self._database.execute(
            "UPDATE keys SET revoked_at = ? WHERE name = ? AND revoked_at IS NULL", (time.time(), name)
        ).rowcount
        self._read()
        return bool(changed)

    def limit(self, name: str, allowance: Allowance) -> bool:
        """Give a key other limits; return whether there was one of that name."""
        changed = self._database.execute(
            "UPDATE keys SET allowance = ? WHERE name = ? AND revoked_at IS NULL", (allowance_text(allowance), name)
        ).rowcount
        self._read()
        return bool(changed)

    def rotate(self, name: str, digest: str, old_expires_at: float) -> bool:
        """Replace the key of a name; the old one stays valid until `old_expires_at`. Return whether there was such a key."""
        changed = self._database.execute(
            "UPDATE keys SET old_hash = hash, old_expires_at = ?, hash = ? WHERE name = ? AND revoked_at IS NULL",
            (old_expires_at, digest, name),
        ).rowcount
        self._read()
        return bool(changed)


def _written(folder: Path, write: Callable[[KeyStore], Written]) -> Written:
    with contextlib.closing(KeyStore(folder)) as store:
        return write(store)


class FileKeys:
    """The key file of a server, which is opened as soon as it can be. Where it cannot be written it is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store: KeyStore | None = None
        self._snapshot: _Snapshot | None = None
        """What was read without writing."""
        self._reason = ""
        self._remembers = False
        self._lost_keys = False
        """True if a file was moved away from under a server with keys."""
        self._open_at = -inf
        self._pause = LOOK_SECONDS
        self._outage = Outage()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def entries(self) -> Sequence[KeyEntry]:
        if self._store is not None:
            entries = self._store.entries()
            if not self._store.is_moved:
                return entries
            self._leave(self._store)
        if time.monotonic() >= self._open_at:
            self._open()
            if self._store is not None:
                return self._store.entries()
        if self._snapshot is None:
            raise KeysUnknown
        return self._snapshot.entries

    @property
    def look(self) -> Look:
        if self._store is not None:
            return self._store.look
        return NO_LOOK

    @property
    def in_use(self) -> bool:
        if self._store is not None:
            return self._store.in_use
        return self._snapshot is None or self._snapshot.in_use

    def look_away(self) -> bool:
        """Look, and return whether the file cannot be used at the moment."""
        with contextlib.suppress(KeysUnknown):
            self.entries()
        return self._store is None or self._store.is_away

    def remember_keys(self) -> None:
        """Write down that there are keys, so that a start without any is noticed."""
        self._remembers = True
        if self._store is not None:
            self._store.remember_keys()

    def all(self) -> list[StoredKey]:
        """Return all keys, revoked ones included, the oldest first. Raises `KeysUnknown`."""
        self.entries()
        if self._store is not None:
            return self._store.all()
        if self._snapshot is None:
            raise KeysUnknown
        return self._snapshot.keys

    async def add(self, entry: KeyEntry) -> None:
        """Store a key. Raises `NameTaken`, and `KeysUnknown` where the file cannot be written."""
        await self._write(lambda store: store.add(entry))

    async def revoke(self, name: str) -> bool:
        """Revoke a key; return whether there was one of that name. Raises `KeysUnknown`."""
        return await self._write(lambda store: store.revoke(name))

    async def limit(self, name: str, allowance: Allowance) -> bool:
        """Give a key other limits; return whether there was one of that name. Raises `KeysUnknown`."""
        return await self._write(lambda store: store.limit(name, allowance))

    async def _write(self, write: Callable[[KeyStore], Written]) -> Written:
        """Write in a thread, over a connection of its own: another program may have the file locked."""
        self.entries()  # opens a file that has come back, and leaves one that was moved
        if self._store is None:
            raise KeysUnknown
        try:
            written = await asyncio.to_thread(_written, self._folder, write)
        except (*DAMAGE, DamagedStore, OSError) as failure:
            log.error("key_store_not_written", error=str(failure))  # noqa: TRY400 - the reason is all there is to say
            raise KeysUnknown from None
        if self._store is not None:
            self._store.look_now()
        return written

    def _leave(self, store: KeyStore) -> None:
        """Close a file that was moved. What is in its place counts from now on, but it does not make a server with keys one without."""
        self._remembers = self._remembers or store.in_use
        self._lost_keys = self._remembers
        self._store = None
        self._open_at = 0.0
        self._pause = LOOK_SECONDS
        store.close()

    def _open(self) -> None:
        """Open the file, or read it where that fails; the pause before the next attempt is longer each time."""
        is_first = self._open_at == -inf
        self._open_at = time.monotonic() + self._pause
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)
        path = self._folder / FILE
        try:
            if self._lost_keys:
                path.stat()  # one that is gone is not made anew: with it went the keys, and that there were any
            self._store = KeyStore(self._folder, BUSY_SECONDS if is_first else 0.0)
        except (DamagedStore, OSError) as failure:
            if self._lost_keys and not os.path.lexists(path):
                self._snapshot = None
            else:
                self._snapshot = _read_only(path)
            if self._snapshot is not None:
                self._pause = LOOK_SECONDS  # a key that was revoked meanwhile
                self._open_at = time.monotonic() + LOOK_SECONDS
            if failures := self._outage.failed():
                log.error("key_store_unreadable", error=str(failure), failures=failures)  # noqa: TRY400 - the reason is all there is to say
            return
        self._snapshot = None
        if failures := self._outage.over():
            log.warning("key_store_readable_again", failures=failures)
        if self._remembers:
            self._store.remember_keys()


class _Snapshot(msgspec.Struct, frozen=True):
    """The keys of a file as they were when it was read without writing."""

    keys: list[StoredKey]
    entries: tuple[KeyEntry, ...]
    in_use: bool


def _read_only(path: Path) -> _Snapshot | None:
    """Read a file that cannot be opened as usual, because its disk is full or nothing may be written to it. None where it cannot be
    read, or where that may miss what others have written."""
    journal = path.with_name(f"{path.name}-wal")
    ways = ["mode=rw"]  # alone with it: no file in shared memory has to be made
    try:
        if not os.path.lexists(path):
            return _Snapshot([], (), in_use=False)
        if not path.is_file():
            return None
        if not journal.exists() or not journal.stat().st_size:
            ways.append("mode=ro&immutable=1")
    except OSError:
        return None
    for way in ways:
        try:
            with contextlib.closing(
                sqlite3.connect(f"{path.absolute().as_uri()}?{way}", timeout=0.0, uri=True, isolation_level=None)
            ) as database:
                database.execute("PRAGMA locking_mode = EXCLUSIVE")
                keys = [stored_key(row) for row in database.execute(_ALL)]
                [version] = database.execute("PRAGMA user_version").fetchone()
        except sqlite3.OperationalError as failure:
            if "locked" in str(failure):
                return None
        except DAMAGE:
            return None
        else:
            entries = tuple(key.entry for key in keys if key.revoked_at is None)
            return _Snapshot(keys, entries, in_use=bool(keys) or version == _HAD_KEYS)
    return None


def row_of(entry: KeyEntry) -> tuple[Any, ...]:
    """Return the row of a new key, in the order of `COLUMNS`."""
    return (
        entry.name,
        entry.hash,
        json.dumps(entry.models),
        json.dumps(entry.tools),
        allowance_text(entry.allowance),
        int(entry.approve),
        int(entry.admin),
        time.time(),
        None,
        entry.see,
        entry.expires_at,
        entry.old_hash,
        entry.old_expires_at,
        entry.events,
        entry.usage,
        entry.offer,
    )


def allowance_text(allowance: Allowance) -> str:
    """Return limits as they are stored."""
    return json.dumps(msgspec.structs.asdict(allowance))


def key_facts(entry: KeyEntry, key: StoredKey | None = None) -> dict[str, Any]:
    """Describe a key for people, without the key or its hash."""
    limits = {name: value for name, value in msgspec.structs.asdict(entry.allowance).items() if value is not None}
    return {
        "name": entry.name,
        "kept_in": "config" if key is None else "store",
        "models": list(entry.models),
        "tools": list(entry.tools),
        "approve": entry.approve,
        "admin": entry.admin,
        "see": entry.see,
        "events": entry.events,
        "usage": entry.usage,
        "offer": entry.offer,
        "limits": limits,
        "expires": written_moment(entry.expires_at),
        "old_key_until": None
        if entry.old_hash is None
        else written_moment(entry.old_expires_at) or "9999-12-31T00:00:00Z",
        "created_at": written_moment(key.created_at if key else None),
        "revoked_at": written_moment(key.revoked_at if key else None),
    }


def written_moment(at: float | None) -> str | None:
    """Format a time in UTC."""
    if at is None:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _make(path: Path) -> None:
    """Create the file atomically: a file without its table was damaged, and is not an empty store."""
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    try:
        with contextlib.closing(sqlite3.connect(fresh)) as database:
            database.execute(_TABLE)
        path.hardlink_to(fresh)
    except FileExistsError:
        pass  # another process has created it
    except OSError:
        fresh.replace(path)  # a file system without links
    finally:
        fresh.unlink(missing_ok=True)


def stored_keys(folder: Path) -> int:
    """Count all keys in a folder, revoked ones included, without creating the file."""
    if not (folder / FILE).exists():
        return 0
    store = KeyStore(folder)
    try:
        return len(store.all())
    finally:
        store.close()


def had_keys(folder: Path) -> bool:
    """True if a server with this folder ever had keys. Does not create the file."""
    if not (folder / FILE).exists():
        return False
    store = KeyStore(folder)
    try:
        return store.in_use
    finally:
        store.close()


def stored_key(row: tuple[Any, ...]) -> StoredKey:
    (
        name,
        digest,
        models,
        tools,
        allowance,
        approve,
        admin,
        created_at,
        revoked_at,
        see,
        expires_at,
        old,
        old_end,
        events,
        usage,
        offer,
    ) = row
    if not _HASH.fullmatch(digest) or not (old is None or _HASH.fullmatch(old)):
        raise ValueError(f"the hash of {name!r} is none")
    entry = KeyEntry(
        name,
        digest,
        _names(models),
        _names(tools),
        approve=bool(approve),
        admin=bool(admin),
        see=see,
        events=events,
        usage=usage,
        offer=offer,
        allowance=Allowance(**_text(allowance)),
        expires_at=expires_at,
        old_hash=old,
        old_expires_at=old_end,
    )
    return StoredKey(entry, created_at, revoked_at)


def _names(text: str) -> tuple[str, ...]:
    names = _text(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("a list of names is none")
    return tuple(names)


def _text(text: str) -> Any:
    return read_leniently(open_text(text, KEY_ROW))


KEY_ROW: Final = Door(name="a stored key", bytes=1024 * 1024, values=100_000)
"""Other processes write keys into the same store."""
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
