"""Keys in an SQLite file: created, listed and revoked by the command line while a server reads them.

A server notices a change within a second. It also remembers that the config had keys. A revoked key stays in the file: its name and its hash cannot be used again, and
while there are only revoked keys every request is refused.
"""

import contextlib
import dataclasses
import json
import os
import re
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

import structlog

from callgate.auth.keys import KeyEntry
from callgate.auth.limits import Allowance

FILE: Final = "keys.sqlite3"
LOOK_SECONDS: Final = 1.0
"""How often a server checks whether the file has changed: the longest time that a revoked key still works."""
DAMAGE: Final = (sqlite3.Error, ValueError, TypeError)
"""Errors of a damaged file or row."""
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


class DamagedStore(Exception):
    """Raised where the file cannot be read as a key store."""

    def __init__(self, path: Path, why: object) -> None:
        what = "put a copy in its place, or move it away and make new keys with `callgate keys create`"
        if isinstance(why, sqlite3.OperationalError):
            what = "its disk may be full, or not writable"
        super().__init__(f"{path} cannot be read ({why}). No key in it is accepted: {what}")


class NameTaken(Exception):
    """Raised where another key, perhaps a revoked one, has this name or hash."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One row."""

    entry: KeyEntry
    created_at: float
    revoked_at: float | None


class KeyStore:
    """The key file. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / FILE
        if not path.exists():
            _make(path)
        self._database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        self._entries: tuple[KeyEntry, ...] = ()
        self._in_use = False
        self._had_keys = False
        self._version = -1
        self._look_at = -inf
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            columns = {name for _, name, *_ in self._database.execute("PRAGMA table_info(keys)")}
            for name, kind in _LATER.items() if columns else ():
                if name not in columns:
                    self._database.execute(f"ALTER TABLE keys ADD COLUMN {name} {kind}")
            self._look(time.monotonic())
        except DAMAGE as failure:
            self._database.close()
            raise DamagedStore(path, failure) from None

    def close(self) -> None:
        self._database.close()

    # -- read by a server

    def entries(self) -> Sequence[KeyEntry]:
        now = time.monotonic()
        if now >= self._look_at:
            self._look(now)
        return self._entries

    @property
    def in_use(self) -> bool:
        return self._in_use or self._had_keys

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
        try:
            [version] = self._database.execute("PRAGMA data_version").fetchone()
            if version != self._version:
                self._read()
                self._version = version
        except DAMAGE as failure:
            if self._version < 0:
                raise
            # The keys that were read last stay valid: a short failure of the disk must not refuse every request.
            log.exception("key_store_unreadable", error=str(failure))

    def _read(self) -> None:
        stored = self.all()
        [version] = self._database.execute("PRAGMA user_version").fetchone()
        self._had_keys = version == _HAD_KEYS
        self._in_use = bool(stored)
        if stored:
            self.remember_keys()
        self._entries = tuple(key.entry for key in stored if key.revoked_at is None)

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

    def rotate(self, name: str, digest: str, old_expires_at: float) -> bool:
        """Replace the key of a name; the old one stays valid until `old_expires_at`. Return whether there was such a key."""
        changed = self._database.execute(
            "UPDATE keys SET old_hash = hash, old_expires_at = ?, hash = ? WHERE name = ? AND revoked_at IS NULL",
            (old_expires_at, digest, name),
        ).rowcount
        self._read()
        return bool(changed)


def row_of(entry: KeyEntry) -> tuple[Any, ...]:
    """Return the row of a new key, in the order of `COLUMNS`."""
    return (
        entry.name,
        entry.hash,
        json.dumps(entry.models),
        json.dumps(entry.tools),
        json.dumps(dataclasses.asdict(entry.allowance)),
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


def key_facts(entry: KeyEntry, stored: StoredKey | None = None) -> dict[str, Any]:
    """Describe a key for people, without the key or its hash."""
    limits = {name: value for name, value in dataclasses.asdict(entry.allowance).items() if value is not None}
    return {
        "name": entry.name,
        "kept_in": "config" if stored is None else "store",
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
        "created_at": written_moment(stored.created_at if stored else None),
        "revoked_at": written_moment(stored.revoked_at if stored else None),
    }


def written_moment(at: float | None) -> str | None:
    """Format a time in UTC."""
    return None if at is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


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
        allowance=Allowance(**json.loads(allowance)),
        expires_at=expires_at,
        old_hash=old,
        old_expires_at=old_end,
    )
    return StoredKey(entry, created_at, revoked_at)


def _names(text: str) -> tuple[str, ...]:
    names = json.loads(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("a list of names is none")
    return tuple(names)


_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
