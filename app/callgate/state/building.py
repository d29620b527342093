"""Builds the stores: of conversations and responses, the ledger, the pinned descriptions of tools."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from callgate import __version__
from callgate.config.entry_errors import BadEntry, raise_all
from callgate.config.schema.whole import Config
from callgate.state.cluster.redis_news import RedisNews
from callgate.state.cluster.run_streams import RunStreams
from callgate.state.database import Database, DatabaseAway, NotMigrated
from callgate.state.ledger import SharedLedger, open_ledger
from callgate.state.local.disk import DiskStore
from callgate.state.local.memory import MemoryStore
from callgate.state.local.sqlite import FILE, DamagedLedger, check_ledger
from callgate.state.responses import ResponseStore
from callgate.state.sealing import BadSecret, Sealer, check_secret, sealer_of
from callgate.state.store import KeyValueStore
from callgate.telemetry.tool_servers import ToolServers
from callgate.tools.kinds.mcp.pins import DamagedPins, Pins, read_pins

if TYPE_CHECKING:
    from callgate.fleet.fleet import Fleet

log = structlog.get_logger("callgate.store")

PINS = "tool_pins.json"
NO_DRIVER = "Postgres needs a package that is not installed: pip install 'callgate[postgres]'"


def store_of(config: Config) -> KeyValueStore:
    section = config.store
    if section.redis_url is not None:
        from callgate.state.cluster.redis import RedisStore

        try:
            return RedisStore(section.redis_url.get_secret_value(), section.prefix)
        except ModuleNotFoundError:
            why = "Redis needs a package that is not installed: pip install 'callgate[redis]'"
            raise BadEntry(("store", "redis_url"), None, why) from None
        except ValueError:  # its text includes the URL, which may hold a password
            raise BadEntry(("store", "redis_url"), None, "is no address that Redis can be reached at") from None
    if config.data_dir is not None and config.ledger.url is None:
        return DiskStore(Path(config.data_dir) / FILE)
    return MemoryStore(section.entries, section.bytes)


def news_of(config: Config, on_news: Callable[[str], None]) -> RedisNews | None:
    """Build the news channel between processes, where they share a Redis."""
    section = config.store
    if section.redis_url is None:
        return None
    return RedisNews(section.redis_url.get_secret_value(), section.prefix, on_news)


def run_streams_of(config: Config) -> RunStreams | None:
    section = config.store
    if section.redis_url is None:
        return None
    return RunStreams(section.redis_url.get_secret_value(), section.prefix)


def fleet_of(config: Config, on_lost: Callable[[int], None]) -> "Fleet | None":
    """Build the connection to the workers of the config's pools, if it has any."""
    if not config.pools:
        return None
    try:
        from callgate.fleet.fleet import Fleet
    except ModuleNotFoundError as missing:
        raise BadEntry(("pools",), None, f"this server has no fleet of workers ({missing})") from None
    if config.store.redis_url is None:
        return None
    return Fleet(config.store.redis_url.get_secret_value(), config.store.prefix, on_lost)


async def open_fleet(fleet: "Fleet", ledger: SharedLedger) -> None:
    """Have the workers reached through the ledger."""
    from callgate.state.cluster.postgres import PostgresLedger
    from callgate.state.fleet_calls import FleetLedger

    assert isinstance(ledger.calls, PostgresLedger), "pools need `ledger.url`"
    calls = FleetLedger(ledger.database, ledger.calls.process, ledger.presence.dead_after)
    await fleet.open(calls, ledger.calls, ledger.presence)


def responses_of(config: Config, store: KeyValueStore, database: Callable[[], Database | None]) -> ResponseStore:
    """Build the store of responses: shared by all processes that share a store or a ledger, else on the disk. `database` returns
    the ledger's, once it is open."""
    section = config.store
    seconds = section.conversation_seconds
    owner_bytes = section.response_bytes
    if section.redis_url is not None:
        return ResponseStore(store, seconds, owner_bytes)
    if config.ledger.url is not None:
        from callgate.state.cluster.ledger_store import LedgerStore

        return ResponseStore(LedgerStore(database), seconds, owner_bytes)
    if config.data_dir is not None:
        return ResponseStore(store, seconds, owner_bytes)
    # Separate from chats, so that they do not evict responses.
    return ResponseStore(MemoryStore(section.entries, section.bytes), seconds, owner_bytes, own_store=True)


def claims_of(config: Config, store: KeyValueStore, ledger: SharedLedger | None) -> KeyValueStore:
    """Return where the processes of one server claim what one of them is to do."""
    if config.ledger.url is None or ledger is None:
        return store
    from callgate.state.cluster.ledger_store import LedgerStore

    return LedgerStore(lambda: ledger.database)


def check_secret_file(config: Config) -> None:
    """Raise `BadEntry` where the folder or its secret cannot be used, without which nothing is served. Does not write."""
    folder = None if config.data_dir is None else Path(config.data_dir)
    try:
        check_secret(folder)
    except BadSecret as error:
        raise BadEntry(("data_dir",), None, str(error)) from None
    if folder is None:
        return
    if not (existing := next(path for path in (folder, *folder.parents) if path.exists())).is_dir():
        raise BadEntry(("data_dir",), None, f"{existing} is not a folder")


def check_files(config: Config) -> None:
    """Raise `BadEntry` where a stored file cannot be read, without which some things are refused. Does not write."""
    check_secret_file(config)
    if config.data_dir is None:
        return
    folder = Path(config.data_dir)
    errors: list[BadEntry] = []
    checks: list[Callable[[], object]] = [lambda: check_ledger(folder), lambda: read_pins(folder / PINS)]
    for check in checks:
        try:
            check()
        except (DamagedLedger, DamagedPins, OSError) as error:
            errors.append(BadEntry(("data_dir",), None, str(error)))
    raise_all(errors)


def opened_sealer(config: Config) -> Sealer:
    """Return what seals with the secret of this server, whose file it makes if it needs one."""
    try:
        return sealer_of(None if config.data_dir is None else Path(config.data_dir))
    except BadSecret as error:
        raise BadEntry(("data_dir",), None, str(error)) from None


async def ledger_of(config: Config, on_lost: Callable[[int], None]) -> SharedLedger | None:
    """Open the ledger, if there is one. Raises `BadEntry` where its driver is not installed, and `NotMigrated`."""
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


async def check_postgres(config: Config, *, may_be_away: bool = False) -> None:
    """Raise `BadEntry` where the Postgres server of the ledger cannot be used; with `may_be_away` not where it is only away now."""
    if config.ledger.url is None:
        return
    try:
        from callgate.state.cluster.postgres import PostgresDatabase

        database = PostgresDatabase(config.ledger.url.get_secret_value(), config.ledger.namespace)
        await database.open()
    except ModuleNotFoundError:
        raise BadEntry(("ledger", "url"), None, NO_DRIVER) from None
    except DatabaseAway as error:
        if may_be_away:
            return
        raise BadEntry(("ledger", "url"), None, str(error)) from None
    except NotMigrated as error:
        raise BadEntry(("ledger", "url"), None, str(error)) from None
    await database.close()


def pins_of(config: Config, servers: ToolServers) -> Pins:
    return Pins(servers.changed, pins_file(config), servers.holds_back)


def pins_file(config: Config) -> Path | None:
    """Return the file of what tools of MCP servers said of themselves; None where it is not kept in one."""
    if config.data_dir is None or config.ledger.url is not None:
        return None
    return Path(config.data_dir) / PINS


async def warn_of_what_is_not_shared(config: Config, ledger: SharedLedger, sealer: Sealer) -> None:
    """Say what processes that share this ledger do not share."""
    try:
        others = await ledger.presence.others()
    except DatabaseAway:  # said by its presence
        return
    if not others:
        return
    if config.store.redis_url is None:
        log.warning("store_not_shared", others=others)
    if sealer.source != "environment":
        log.warning("secret_not_shared", others=others, todo="give all of them the same CALLGATE_SECRET")
