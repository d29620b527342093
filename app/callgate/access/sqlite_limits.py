"""Rate limits, budgets and concurrency limits counted in an SQLite file, for the workers of one machine.

Each change is one transaction, decided by the same rules as in memory. What was counted in the last minute is not synced to the disk;
spending is also in the ledger.
"""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import structlog

from callgate.access.leased_places import LeasedPlaces
from callgate.access.limits import (
    SLOT_SECONDS,
    WINDOW,
    Account,
    Amount,
    Correction,
    MemoryLimiter,
    Remember,
    Reservation,
    SpentBefore,
    periods_of,
)
from callgate.access.shared_limits import JointLimiter, Recall
from callgate.callers.allowance import Allowance, OverLimit
from callgate.state.local.journal_mode import use_write_ahead_journal
from callgate.telemetry.outages import Outage

FILE: Final = "limits.sqlite3"
BUSY_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 1.0
"""How long the file is not used after a failure."""

_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS minutes (key TEXT, second INTEGER, requests INTEGER, tokens INTEGER,
    PRIMARY KEY (key, second)) STRICT""",
    "CREATE TABLE IF NOT EXISTS spent (key TEXT, period TEXT, nano INTEGER, PRIMARY KEY (key, period)) STRICT",
    "CREATE TABLE IF NOT EXISTS slots (name TEXT, slot TEXT, until REAL, PRIMARY KEY (name, slot)) STRICT",
)
_SPEND: Final = (
    "INSERT INTO spent VALUES (?1, ?2, max(0, ?3)) ON CONFLICT (key, period) DO UPDATE SET nano = max(0, nano + ?3)"
)

_AT_LEAST: Final = "INSERT INTO spent VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET nano = max(nano, excluded.nano)"

log = structlog.get_logger("callgate.limits")
T = TypeVar("T")


class LimitsFile:
    """The file of one data folder, used by one thread of this process at a time, and not by the event loop."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._broken_until = 0.0
        self._outage = Outage()

    async def change(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Do some work in one transaction; None where the file cannot be used at the moment."""
        if time.monotonic() < self._broken_until:
            return None
        try:
            result = await asyncio.to_thread(self._change, work)
        except (sqlite3.Error, OSError) as failure:
            if failures := self._outage.failed():
                reason = f"{type(failure).__name__}: {failure}"
                log.error("limits_file_unusable", error=reason, counting="alone", failures=failures)  # noqa: TRY400 - the reason is all there is to say
            self._broken_until = time.monotonic() + AGAIN_SECONDS
            return None
        if failures := self._outage.over():
            log.warning("limits_file_usable_again", failures=failures)
        return result

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            database = self._connection
            database.execute("BEGIN IMMEDIATE")
            try:
                result = work(database)
                database.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    database.execute("ROLLBACK")
                raise
            return result

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self._path.exists():
            self._path.touch(mode=0o600)
        database = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        use_write_ahead_journal(database, BUSY_SECONDS)
        database.execute("PRAGMA synchronous = NORMAL")
        for statement in _TABLES:
            database.execute(statement)
        return database


class SqliteLimiter(JointLimiter):
    """Counts in the file. While that cannot be used each process counts alone."""

    def __init__(self, file: LimitsFile, spent: SpentBefore, remember: Remember, recall: Recall | None = None) -> None:
        """`spent` returns the spending that was in the ledger, `recall` that of one key by now. `remember` is called with each change of
        it."""
        super().__init__(remember, MemoryLimiter(spent, remember), recall)
        self._file = file
        self._spent_before: SpentBefore | None = spent
        """None once it is in the file."""

    async def count(
        self, key: str, allowance: Allowance, estimate: Amount, slot: str
    ) -> Reservation | OverLimit | None:
        def count(database: sqlite3.Connection) -> Reservation | OverLimit | None:
            if not self._take_in_spending(database) and allowance.has_budget:
                return None
            now = time.time()
            moment = time.monotonic()  # the same for all processes of the machine
            second = int(moment)
            account = _account(database, key, now, second)
            refused = account.refusal(allowance, estimate, now, moment)
            if refused is not None:
                return refused
            account.count(estimate, now, second)
            _count(database, key, estimate, now, second, slot)
            headers = account.headers(allowance, now, moment)
            return Reservation(key, estimate, second, headers, slot=slot, made_at=now)

        return await self._file.change(count)

    async def correct(self, reservation: Reservation, correction: Correction) -> bool | None:
        key = reservation.key

        def correct(database: sqlite3.Connection) -> bool:
            database.execute("DELETE FROM slots WHERE name = ? AND slot = ?", (_of_chats(key), reservation.slot))
            database.execute(
                "UPDATE minutes SET tokens = max(0, tokens + ?), requests = requests + ? WHERE key = ? AND second = ?",
                (correction.tokens, correction.requests, key, reservation.second),
            )
            for period in correction.periods:
                database.execute(_SPEND, (key, period, correction.nano))
            return True

        return await self._file.change(correct)

    async def raise_to(self, key: str, spent: tuple[int, int]) -> bool | None:
        def raise_counts(database: sqlite3.Connection) -> bool:
            for period, nano in zip(periods_of(time.time()), spent, strict=True):
                database.execute(_AT_LEAST, (key, period, nano))
            return True

        return await self._file.change(raise_counts)

    async def spent(self, key: str) -> tuple[int, int] | None:
        def read(database: sqlite3.Connection) -> tuple[int, int] | None:
            if not self._take_in_spending(database):
                return None
            periods = periods_of(time.time())
            spent = _spent(database, key, periods)
            day, month = (spent.get(period, 0) for period in periods)
            return day, month

        return await self._file.change(read)

    async def close(self) -> None:
        await super().close()
        self._file.close()

    def _take_in_spending(self, database: sqlite3.Connection) -> bool:
        """Take in what the ledger had when this process began: the file may be new. Return whether it is known."""
        if self._spent_before is None:
            return True
        spent = self._spent_before()
        if spent is None:
            return False
        for (key, period), nano in spent.items():
            database.execute(_AT_LEAST, (key, period, nano))
        self._spent_before = None
        return True


def _account(database: sqlite3.Connection, key: str, now: float, second: int) -> Account:
    """Return the counts of a key, after dropping what is of long ago."""
    # Seconds ahead of the clock are of before the machine was started.
    database.execute(
        "DELETE FROM minutes WHERE key = ? AND (second < ? OR second > ?)", (key, second - WINDOW, second + 1)
    )
    database.execute("DELETE FROM slots WHERE name = ? AND until < ?", (_of_chats(key), now))
    account = Account()
    for at, requests, tokens in database.execute(
        "SELECT second, requests, tokens FROM minutes WHERE key = ? ORDER BY second", (key,)
    ):
        account.requests.add(at, requests)
        account.tokens.add(at, tokens)
    account.spent = _spent(database, key, periods_of(now))
    [account.running] = database.execute("SELECT count(*) FROM slots WHERE name = ?", (_of_chats(key),)).fetchone()
    return account


def _spent(database: sqlite3.Connection, key: str, periods: tuple[str, str]) -> dict[str, int]:
    rows = database.execute("SELECT period, nano FROM spent WHERE key = ? AND period IN (?, ?)", (key, *periods))
    return dict(rows.fetchall())


def _count(database: sqlite3.Connection, key: str, amount: Amount, now: float, second: int, slot: str) -> None:
    """Count a request that begins."""
    database.execute(
        "INSERT INTO minutes VALUES (?1, ?2, ?3, ?4) ON CONFLICT (key, second)"
        " DO UPDATE SET requests = requests + ?3, tokens = tokens + ?4",
        (key, second, amount.requests, amount.tokens),
    )
    database.execute("INSERT INTO slots VALUES (?, ?, ?)", (_of_chats(key), slot, now + SLOT_SECONDS))
    for period in periods_of(now):
        database.execute(_SPEND, (key, period, amount.nano))


def _of_chats(key: str) -> str:
    """Return the name of the slots of a key's running chats."""
    return f"chats:{key}"


class SqlitePlaces(LeasedPlaces):
    """Places in the file. While that cannot be used each process counts alone."""

    def __init__(self, file: LimitsFile, prefix: str = "") -> None:
        super().__init__()
        self._file = file
        self._prefix = f"places:{prefix}"

    async def close(self) -> None:
        await super().close()
        self._file.close()

    async def take(self, key: str, slot: str, places: int) -> bool | None:
        def take(database: sqlite3.Connection) -> bool:
            name = self._prefix + key
            now = time.time()
            database.execute("DELETE FROM slots WHERE name = ? AND until < ?", (name, now))
            [count] = database.execute("SELECT count(*) FROM slots WHERE name = ?", (name,)).fetchone()
            if count >= places:
                return False
            database.execute("INSERT OR REPLACE INTO slots VALUES (?, ?, ?)", (name, slot, now + self.lease_seconds))
            return True

        return await self._file.change(take)

    async def renew(self, key: str, slots: list[str]) -> None:
        def renew(database: sqlite3.Connection) -> None:
            until = time.time() + self.lease_seconds
            for slot in slots:
                database.execute("INSERT OR REPLACE INTO slots VALUES (?, ?, ?)", (self._prefix + key, slot, until))

        await self._file.change(renew)

    async def release(self, key: str, slot: str) -> None:
        def release(database: sqlite3.Connection) -> None:
            database.execute("DELETE FROM slots WHERE name = ? AND slot = ?", (self._prefix + key, slot))

        await self._file.change(release)
