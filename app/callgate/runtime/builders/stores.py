"""Builds the stores: of conversations and responses, the ledger, the pinned descriptions of tools."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from callgate import __version__
from callgate.auth.sealing import BadSecret, Sealer, check_secret, sealer_of
from callgate.config.schema import Config
from callgate.ledger.database import Database, DatabaseAway
from callgate.ledger.shared import SharedLedger, open_ledger
from callgate.ledger.sqlite import FILE, DamagedLedger, check_ledger, is_gone
from callgate.recorder.recorder import Recorder
from callgate.recorder.recording import RecordPolicy
from callgate.runtime.builders.errors import BadEntry
from callgate.runtime.ledger_store import LedgerStore
from callgate.runtime.run_sockets import RunSockets
from callgate.stores.claims import Claims, LockedProcesses, OneProcess, PulsingProcesses
from callgate.stores.disk import DiskStore
from callgate.stores.memory import MemoryStore
from callgate.stores.redis import RedisStore
from callgate.stores.redis_news import RedisNews
from callgate.stores.responses import ResponseStore
from callgate.stores.run_streams import RunStreams
from callgate.stores.store import KeyValueStore
from callgate.telemetry import logs
from callgate.telemetry.metrics import Metrics
from callgate.telemetry.tool_servers import ToolServers
from callgate.tools.mcp_descriptors import DamagedPins, Pins

if TYPE_CHECKING:
    from callgate.fleet.fleet import Fleet

PINS = "tool_pins.json"
NO_DRIVER = "Postgres needs a package that is not installed: pip install 'callgate[postgres]'"


def store_of(config: Config) -> KeyValueStore:
    section = config.store
    if section.redis_url is not None:
        try:
            return RedisStore(section.redis_url.get_secret_value(), section.prefix)
        except ModuleNotFoundError:
            why = "Redis needs a package that is not installed: pip install 'callgate[redis]'"
            raise BadEntry(("store", "redis_url"), None, why) from None
        except ValueError:  # its text includes the URL, which may hold a password
            raise BadEntry(("store", "redis_url"), None, "is no address that Redis can be reached at") from None
    return MemoryStore(section.entries, section.bytes)


def news_of(config: Config, on_news: Callable[[str], None]) -> RedisNews | None:
    """Build the news channel between processes, where they share a Redis."""
    section = config.store
    return (
        None if section.redis_url is None else RedisNews(section.redis_url.get_secret_value(), section.prefix, on_news)
    )


def run_streams_of(config: Config) -> RunStreams | None:
    section = config.store
    return None if section.redis_url is None else RunStreams(section.redis_url.get_secret_value(), section.prefix)


def fleet_of(config: Config, on_lost: Callable[[int], None]) -> "Fleet | None":
    """Build the connection to the workers of the config's pools, if it has any."""
    if not config.pools or config.store.redis_url is None:
        return None
    from callgate.fleet.fleet import Fleet

    return Fleet(config.store.redis_url.get_secret_value(), config.store.prefix, on_lost)


def recorder_of(config: Config, metrics: Metrics) -> Recorder:
    """Build the recorder of runs, which writes where there is a `data_dir`."""
    folder = None if config.data_dir is None else Path(config.data_dir)
    return Recorder(logs.masked, folder, metrics.runs_dropped.inc, metrics.used)


def run_sockets_of(config: Config, recorder: Recorder) -> RunSockets | None:
    """Build what says to other processes which runs are here, where they share a data folder and no Redis."""
    if config.data_dir is None or config.store.redis_url is not None:
        return None
    return RunSockets(recorder, Path(config.data_dir))


def claims_of(config: Config, store: KeyValueStore, process: Callable[[], str]) -> Claims:
    """Build the claims of idempotency keys: shared by all processes where they share a store, else on the disk where there
    is a `data_dir`. `process` returns the name of this process in the ledger of that folder."""
    if config.store.redis_url is not None:
        return Claims(store, PulsingProcesses(store))
    if config.data_dir is None:
        return Claims(store, OneProcess())
    folder = Path(config.data_dir)
    return Claims(DiskStore(folder / FILE), LockedProcesses(process, partial(is_gone, folder)), own_store=True)


def responses_of(config: Config, store: KeyValueStore, database: Callable[[], Database | None]) -> ResponseStore:
    """Build the store of responses: shared by all processes that share a store or a ledger, else on the disk. `database` returns
    the ledger's, once it is open."""
    section = config.store
    seconds, owner_bytes = section.conversation_seconds, section.response_bytes
    if section.redis_url is not None:
        return ResponseStore(store, seconds, owner_bytes)
    if config.ledger.url is not None:
        return ResponseStore(LedgerStore(database), seconds, owner_bytes)
    own = (
        # Separate from chats, so that they do not evict responses.
        MemoryStore(section.entries, section.bytes)
        if config.data_dir is None
        else DiskStore(Path(config.data_dir) / FILE)
    )
    return ResponseStore(own, seconds, owner_bytes, own_store=True)


def check_files(config: Config) -> None:
    """Raise `BadEntry` where a stored file cannot be read. Does not write."""
    folder = None if config.data_dir is None else Path(config.data_dir)
    try:
        check_secret(folder)
    except BadSecret as error:
        raise BadEntry(("data_dir",), None, str(error)) from None
    if folder is None:
        return
    if not (there := next(each for each in (folder, *folder.parents) if each.exists())).is_dir():
        raise BadEntry(("data_dir",), None, f"{there} is not a folder")
    try:
        check_ledger(folder)
        Pins(file=folder / PINS)
    except (DamagedLedger, DamagedPins) as error:
        raise BadEntry(("data_dir",), None, str(error)) from None


def opened_sealer(config: Config) -> Sealer:
    """Return what seals with the secret of this server, whose file it makes if it needs one."""
    try:
        return sealer_of(None if config.data_dir is None else Path(config.data_dir))
    except BadSecret as error:
        raise BadEntry(("data_dir",), None, str(error)) from None


def record_policy_of(config: Config) -> RecordPolicy:
    section = config.record
    return RecordPolicy(
        runs=section.runs,
        passed=section.passed,
        content_bytes=section.content_bytes if section.content else None,
        wire=section.wire,
        keep_days=section.keep.days,
        keep_bytes=section.keep.bytes,
        wire_days=section.wire_keep.days,
    )


async def ledger_of(config: Config, on_lost: Callable[[int], None]) -> SharedLedger | None:
    """Open the ledger. Raises `BadEntry` where its driver is not installed, and what `open_ledger` raises."""
    url = config.ledger.url
    if url is None and config.data_dir is None:
        return None
    try:
        return await open_ledger(
            folder=None if config.data_dir is None else Path(config.data_dir),
            url=None if url is None else url.get_secret_value(),
            schema=config.ledger.namespace,
            dead_after=config.runs.dead_after_seconds,
            on_lost=on_lost,
            version=__version__,
        )
    except ModuleNotFoundError:
        raise BadEntry(("ledger", "url"), None, NO_DRIVER) from None


async def check_postgres(config: Config) -> None:
    """Raise `BadEntry` where the Postgres server of the ledger cannot be used."""
    if config.ledger.url is None:
        return
    try:
        from callgate.ledger.postgres import NotMigrated, PostgresDatabase

        database = PostgresDatabase(config.ledger.url.get_secret_value(), config.ledger.namespace)
        await database.open()
    except ModuleNotFoundError:
        raise BadEntry(("ledger", "url"), None, NO_DRIVER) from None
    except (DatabaseAway, NotMigrated) as error:
        raise BadEntry(("ledger", "url"), None, str(error)) from None
    await database.close()


def pins_of(config: Config, servers: ToolServers) -> Pins:
    return Pins(servers.changed, None if config.data_dir is None else Path(config.data_dir) / PINS)
