"""A fleet on this machine: workers as child processes, and the side of a proxy in the test's own event loop."""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from callgate.calls.outcome import Outcome
from callgate.calls.states import ReadyCall
from callgate.config.schema.whole import Config
from callgate.conversation.ports import ProgressReport
from callgate.fleet.fleet import Fleet
from callgate.runtime.limits import processes_of, threads_of
from callgate.state.cluster.postgres import PostgresLedger, migrate
from callgate.state.fleet_calls import FleetLedger
from callgate.state.ledger import SharedLedger, open_ledger
from callgate.tools.building import registry_of
from callgate.tools.registry import Registry
from callgate.tools.toolbox import RequestToolbox, ToolSet
from tests.harness import fleet_tools
from tests.harness.configs import as_yaml, config_dict
from tests.harness.process import Child, child
from tests.harness.redis import redis_server

DEAD_AFTER = 2.0
_count = itertools.count()


@dataclass
class Stores:
    """Where a fleet's state is, and its config."""

    config: Path
    settings: Config
    postgres: str
    schema: str
    redis: str


def placed(function: str, /, **more: Any) -> dict[str, Any]:
    """One of the tools, run on the pool `gpu`."""
    return {"kind": "python", "function": f"{fleet_tools.__name__}:{function}", "run_on": "gpu", **more}


def config_file(folder: Path, whole: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "fleet.yaml"
    file.write_text(as_yaml(whole))
    return file


async def stores(
    folder: Path,
    redis: str,
    postgres: str,
    schema: str,
    tools: Iterable[Mapping[str, Any]],
    *,
    upstream: str = "http://127.0.0.1:9",
    pools: Mapping[str, Any] | None = None,
    dead_after: float = DEAD_AFTER,
    **sections: Any,
) -> Stores:
    """A config file for a fleet, and its tables."""
    whole = config_dict(
        upstream,
        tools=tools,
        ledger={"url": postgres, "namespace": schema},
        store={"redis_url": redis, "prefix": f"{schema}:"},
        pools={"gpu": {}} if pools is None else pools,
        runs={"dead_after_seconds": dead_after},
        **sections,
    )
    await migrate(postgres, schema)
    return Stores(config_file(folder, whole), Config.model_validate(whole), postgres, schema, redis)


@contextlib.asynccontextmanager
async def working(stores: Stores, pool: str = "gpu", concurrency: int = 1) -> AsyncIterator[Child]:
    """`callgate worker`; ready when it says so."""
    options = ["worker", "--config", str(stores.config), "--pool", pool, "--concurrency", str(concurrency)]
    async with child(options) as started:
        await started.line("worker_ready")
        yield started


class Proxy:
    """What a proxy has of a fleet, without a server around it."""

    def __init__(self, shared: SharedLedger, fleet: Fleet, ledger: FleetLedger, registry: Registry) -> None:
        self.shared, self.fleet, self.fleet_ledger, self.registry = shared, fleet, ledger, registry
        self.database = shared.database
        self.said: list[tuple[str, float | None]] = []

    async def call(self, name: str, /, **arguments: Any) -> Outcome:
        """One call, as a chat has it run."""
        toolbox = self.toolbox()
        call = ReadyCall(f"call_{next(_count)}", name, arguments, "{}")
        toolbox.plan([call])
        return await toolbox.run(call, self._report)

    def toolbox(self, run_id: str = "") -> RequestToolbox:
        from callgate.state.journal import LedgerJournal

        run_id = run_id or f"run_{next(_count)}"
        journal = LedgerJournal(self.shared.calls, run_id=run_id, key_name="alice")
        return RequestToolbox(server_tools=ToolSet(self.registry.tools()), run_id=run_id, journal=journal)

    async def _report(self, progress: ProgressReport) -> None:
        self.said.append((progress.message, progress.fraction))

    async def states(self) -> dict[str, str]:
        """Of this proxy's calls, by id."""
        rows = await self.database.fetch(
            "SELECT id, state FROM calls WHERE pool IS NOT NULL AND process = ?1", self.shared.calls.process
        )
        return dict(rows)

    async def until(self, expected: Callable[[list[str]], bool], within: float = 40.0) -> list[str]:
        """The states of all calls, once they are as expected."""
        async with asyncio.timeout(within):
            while not expected(found := sorted((await self.states()).values())):  # noqa: ASYNC110 - asks a server
                await asyncio.sleep(0.02)
        return found


@contextlib.contextmanager
def shared_worker(
    postgres: str, folder: Path, tools: Iterable[Mapping[str, Any]], pools: Mapping[str, Any]
) -> Iterator[tuple[Stores, Child]]:
    """A fleet with one worker for several tests, kept by a loop of its own: of the worker they may read the log."""
    with start_blocking_portal() as portal, contextlib.ExitStack() as stack:
        redis = stack.enter_context(portal.wrap_async_context_manager(redis_server(folder)))
        made = portal.call(
            partial(stores, folder, redis, postgres, f"fleet_{secrets.token_hex(6)}", tools, pools=pools)
        )
        yield made, stack.enter_context(portal.wrap_async_context_manager(working(made)))


@contextlib.asynccontextmanager
async def proxying(stores: Stores) -> AsyncIterator[Proxy]:
    config = stores.settings
    shared = await open_ledger(
        url=stores.postgres,
        schema=stores.schema,
        dead_after=config.runs.dead_after_seconds,
        on_lost=lambda _: None,
    )
    assert isinstance(shared.calls, PostgresLedger)
    fleet = Fleet(stores.redis, config.store.prefix, lambda _: None)
    ledger = FleetLedger(shared.database, shared.calls.process, config.runs.dead_after_seconds)
    await fleet.open(ledger, shared.calls, shared.presence)
    threads, processes = threads_of(config), processes_of(config)

    def no_web() -> Any:
        from callgate.tools.kinds.http.client import Web

        return Web()

    try:
        yield Proxy(shared, fleet, ledger, registry_of(config, no_web, threads, processes, fleet=fleet))
    finally:
        await fleet.close()
        await processes.close()
        threads.close()
        await shared.close()
