"""`callgate worker`, which runs tools for proxies, and `callgate pools`, which shows the state of the pools."""

import asyncio
import json
import secrets
import socket
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callgate.cli.options import ConfigOption, JsonOption
from callgate.cli.shared import WRONG, give_up, read_config
from callgate.telemetry.terminal import say

if TYPE_CHECKING:
    from callgate.config.schema.whole import Config
    from callgate.state.fleet_calls import FleetLedger

NO_CELERY = "a worker needs packages that are not installed: pip install 'callgate[worker]'"
PATIENCE = 5.0


def worker(
    pool: Annotated[
        str, typer.Option("--pool", metavar="NAMES", help="The pools whose calls it runs: names, with commas between.")
    ],
    concurrency: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many calls it runs at once, a process for each.")
    ] = 1,
    config: ConfigOption = None,
) -> None:
    """Run tools for the proxies of the same config."""
    loaded = read_config(config, without_variables=True)
    pools = list(dict.fromkeys(filter(None, pool.split(","))))
    if not pools:
        raise give_up("--pool: names no pool")
    from callgate.config.problems import near

    for pool_name in pools:
        if pool_name not in loaded.config.pools:
            raise give_up(
                f"--pool: no pool of the config is called {pool_name}{near(pool_name, list(loaded.config.pools))}"
            )
    from callgate.cli.shared import check_reachable

    check_reachable(loaded)
    try:
        import celery  # noqa: F401
        import redis  # noqa: F401

        from callgate.fleet.worker.run import CannotStart, work
    except ModuleNotFoundError:
        raise give_up(NO_CELERY) from None
    try:
        code = work(loaded, pools, concurrency)
    except CannotStart as error:
        raise give_up(error) from None
    raise typer.Exit(code)


def pools(config: ConfigOption = None, *, as_json: JsonOption = False) -> None:
    """The pools of workers, and what waits and runs in each."""
    settings = read_config(config, without_variables=True).config
    if not settings.pools:
        raise give_up("the config has no `pools`")
    pool_facts = pools_in_ledger(settings)
    if as_json:
        say(json.dumps(pool_facts))
        return
    for name, facts in pool_facts.items():
        say(f"{name}: {facts['waiting']} waiting, {facts['running']} running, {len(facts['workers'])} workers")
        for worker in facts["workers"]:
            say(f"  {worker['name']}, seen {worker['seen_seconds']:.1f} s ago")


def pools_in_ledger(config: "Config") -> dict[str, dict[str, Any]]:
    """Return the state of each pool in the ledger; exits with an error message."""

    async def facts(ledger: "FleetLedger") -> dict[str, dict[str, Any]]:
        counts = await ledger.counts()
        workers = await ledger.workers()
        return {
            name: {
                "waiting": counts[name].offered if name in counts else 0,
                "running": counts[name].running if name in counts else 0,
                "workers": [
                    {"name": worker, "seen_seconds": round(age, 1)}
                    for worker, pools, age in workers
                    if name in pools.split(",")
                ],
            }
            for name in config.pools
        }

    from callgate.state.database import DatabaseAway

    try:
        facts_by_pool: dict[str, dict[str, Any]] = _query(config, facts)
    except (DatabaseAway, TimeoutError, _OtherTables) as error:
        raise give_up(f"ledger.url: {str(error) or 'no answer'}") from None
    return facts_by_pool


def check_worker(config: "Config") -> None:
    """Exit code 0 where a worker of this machine was seen in the ledger.

    And where the ledger cannot be asked, takes no writes, or is of another version: what workers run goes on without it, and a
    probe that fails would have them ended."""
    from callgate.state.database import DatabaseAway

    host = socket.gethostname()

    async def names(ledger: "FleetLedger") -> list[str]:
        local_workers = [name for name, _, _ in await ledger.workers() if name.rsplit("-", 2)[0] == host]
        if not local_workers:
            await ledger.check_beats(f"health-{host}-{secrets.token_hex(4)}")
        return local_workers

    try:
        worker_names = _query(config, names)
    except (DatabaseAway, TimeoutError, _OtherTables) as error:
        say(f"whether a worker of {host} lives cannot be seen: ledger.url: {str(error) or 'no answer'}", err=True)
        return
    say(", ".join(worker_names) or f"no worker of {host} was seen", err=not worker_names)
    if not worker_names:
        raise typer.Exit(WRONG)


def _query(config: "Config", ask: Any) -> Any:
    """Query the ledger. Raises `DatabaseAway` and `TimeoutError`."""
    if config.ledger.url is None:
        raise give_up("the config has no `ledger.url`")
    url = config.ledger.url.get_secret_value()

    async def answer() -> Any:
        from callgate.state.cluster.postgres import PostgresDatabase
        from callgate.state.fleet_calls import FleetLedger

        database = PostgresDatabase(url, config.ledger.namespace, connections=1)
        await database.open()
        try:
            async with asyncio.timeout(PATIENCE):
                return await ask(FleetLedger(database, "", config.runs.dead_after_seconds))
        finally:
            await database.close()

    from callgate.state.database import NotMigrated

    try:
        return asyncio.run(answer())
    except ModuleNotFoundError:
        raise give_up(NO_CELERY) from None
    except NotMigrated as error:
        raise _OtherTables(str(error)) from None


class _OtherTables(Exception):
    """The tables are of another version."""
