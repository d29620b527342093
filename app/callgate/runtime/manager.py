"""Holds the current runtime, and replaces it when the config is reloaded.

A request leases the current `Runtime` and keeps it to its end. When the config changes the new runtime is built and opened
first, and if that fails the old one stays.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Self

import structlog

from callgate.config.authority import Widening
from callgate.config.entry_errors import BadEntry
from callgate.config.problems import ConfigError, Problem, Spot
from callgate.config.schema.whole import Config
from callgate.conversation.ids import new_id
from callgate.models import litellm_model
from callgate.models.building import model_entries
from callgate.records.ports import SharedNews
from callgate.runtime.authority import KnownAuthority
from callgate.runtime.parts import ALONE, ServerParts
from callgate.runtime.reload import ConfigSource, ReloadResult, Widens, changed_blocks, needs_restart, places_of
from callgate.runtime.reloading import Reloader
from callgate.runtime.runtime import OpenRuntime, Runtime
from callgate.runtime.shared import SharedResources
from callgate.runtime.widenings import count_widened
from callgate.runtime.workers import WorkerGroup
from callgate.runtime.written_authority import CannotReach, CannotRead, written_authority_of
from callgate.state.building import news_of, responses_of, run_streams_of, store_of
from callgate.state.cluster.redis_news import LISTENING
from callgate.state.conversations import Conversations
from callgate.state.database import Database
from callgate.telemetry.metrics import Metrics, added_up
from callgate.tools.building import import_tools
from callgate.tools.stored_results import StoredResults

RELOAD = "reload"
RELOAD_AND_WIDEN = "reload_and_widen"
TAKEN = "taken"
"""The note with the digest of the config file that was taken last although it widens."""

audit = structlog.get_logger("callgate.audit")


class RuntimeManager:
    """The current runtime, and older ones that still have requests."""

    current: Runtime
    """The runtime of new requests, from `__aenter__` on."""
    leased: OpenRuntime
    """The same, as a context: a request that has entered it keeps its runtime, even if another one becomes current meanwhile."""
    shared: SharedResources
    """What outlives any one runtime, from `__aenter__` on."""

    def __init__(
        self,
        config: Config,
        source: ConfigSource | None = None,
        workers: WorkerGroup | None = None,
        parts: ServerParts = ALONE,
    ) -> None:
        """`source` reads the config again; without it there are no reloads. `workers` are the other workers of the same
        server, `parts` the subjects that it has beside chat."""
        self.config = config
        self._first_config = config
        self._workers = workers
        self._parts = parts
        self.metrics = Metrics()
        self.recorder = parts.recorder.recorder(config, self.metrics)
        self.store = store_of(config)
        self.conversations = Conversations(
            self.store, config.store.conversation_seconds, new_call_id, config.store.conversation_bytes
        )
        self.responses = responses_of(config, self.store, self._database)
        self._news = news_of(config, self._on_news)
        self.run_news: SharedNews | None = None
        """The news of runs between the processes that share a Redis."""
        if self._news is not None:
            self.run_news = parts.recorder.news(self.recorder, self._news.say)
        self.run_streams = run_streams_of(config)
        """The streams of running runs, for clients of other processes."""
        self.draining = asyncio.Event()
        """Set when the server drains, to end what would not end by itself."""
        self.opened_at = int(time.time())
        self._source = source
        self._reloader: Reloader | None = None
        if source is not None:
            self._reloader = Reloader(source, self, self.metrics, self.recorder, workers)
        self._applying = asyncio.Lock()
        self._background: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_open = False
        self._closing = AsyncExitStack()

    @property
    def is_keyless(self) -> bool:
        """True if no key is required."""
        return self.current.access.is_keyless

    @property
    def is_one_of_many(self) -> bool:
        """True if other processes serve the same clients."""
        return self._workers is not None or self._news is not None

    def is_ready(self) -> bool:
        """True if a load balancer should send requests here; not while fewer than half of the workers are left."""
        return self._is_open and (self._workers is None or self._workers.are_enough())

    def degraded(self) -> list[str]:
        """Return the stores that cannot be used at the moment, so that requests which need them are refused."""
        if not self._is_open:
            return []
        return [store for store, is_away in self._stores_away() if is_away]

    def _stores_away(self) -> list[tuple[str, bool]]:
        shared = self.shared
        stores = [("keys", shared.control.keys_are_away()), ("issuer", shared.control.issuer_is_away())]
        if shared.shared_ledger is not None:
            stores.append(("ledger", shared.shared_ledger.presence.is_away))
        return stores

    @property
    def refused(self) -> tuple[str, ...]:
        """What is wrong with the config on disk, which is not the one in use; empty where it is."""
        if self._reloader is None:
            return ()
        return self._reloader.refused

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics of all workers, and their content type."""
        if self._workers is None:
            return self.metrics.exposition(accept)
        own, _ = self.metrics.exposition()
        counted = await self._workers.counted(own)
        return added_up(counted.living, accept, ended=counted.ended)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._closing = stack.pop_all()
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        await self._closing.aclose()

    async def _open(self, stack: AsyncExitStack) -> None:
        """Open everything. Each is closed after those that are opened after it."""
        config = self._first_config
        stack.push_async_callback(litellm_model.close)
        stack.push_async_callback(self.store.close)
        self.shared = await stack.enter_async_context(
            SharedResources.open(config, self.metrics, self.recorder, self._parts, self.store)
        )
        if config.store.redis_url is not None:
            self.shared.kept_results.shared = StoredResults(self.store)
        stack.push_async_callback(self.responses.close)
        if self.run_streams is not None:
            stack.push_async_callback(self.run_streams.close)
        stack.push_async_callback(self._wait_for_background)
        self.metrics.watch_stores(self._stores_away)
        self._use(await OpenRuntime.begin(Runtime(config, self.shared)))
        stack.push_async_callback(self._end_runtime)
        self._authority = KnownAuthority(config, self.current.registry)
        self._remember_keys()
        self._written = written_authority_of(config, self._database)
        await self._compare_with_last_start()
        self._loop = asyncio.get_running_loop()
        if self._reloader is not None:
            await self._reloader.reload_if_outdated()
            await stack.enter_async_context(_running(self._reloader.run(), "reloading"))
            if self.config.reload.watch and self._reloader.has_files():
                await stack.enter_async_context(_running(self._reloader.watch(), "watching the config"))
        if self.run_news is not None:
            stack.push_async_callback(self.run_news.close)
        if self._news is not None:
            self._news.open()
            stack.push_async_callback(self._news.close)
        if self._workers is not None:
            await self._workers.open(lambda: self.metrics.exposition()[0])
            stack.push_async_callback(self._workers.close)

    async def _end_runtime(self) -> None:
        await self.leased.end()

    async def _wait_for_background(self) -> None:
        if self._background:
            await asyncio.wait(self._background)

    def begin_draining(self) -> None:
        """Begin to drain, and end what would not end by itself. For signal handlers."""
        self._is_open = False
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.recorder.watchers.end)
            self._loop.call_soon_threadsafe(self.draining.set)

    def ask_to_reload(self) -> None:
        """Reload the config soon. May be called from a signal handler or another thread."""
        if self._reloader is None:
            return
        if self._loop is None:  # not open yet; checked when it is
            self._reloader.request()
        else:
            self._loop.call_soon_threadsafe(self._reloader.request)

    async def reload(self, *, widen: bool = False, by: str = "", through: str = "") -> ReloadResult:
        """Read the config again and apply it. Raises `ConfigError`, in which case nothing has changed. `widen`: also where the
        new config allows more; `by`: who says so; `through`: by which route or signal."""
        if self._reloader is None:
            raise ConfigError([Problem(Spot("config"), "", "it was not read from anywhere that could be read again")])
        # In a task of its own, because the request that caused it may be cancelled.
        task = asyncio.create_task(self._reloader.reload(widen=widen, by=by, through=through), name="reload")
        self._follow(task)
        return await asyncio.shield(task)

    async def have_others_reload(self, *, widen: bool = False) -> bool:
        """Ask all processes that share a Redis with this one to reload their config; return whether they were notified."""
        if self._news is None:
            return False
        if widen and self._reloader is not None:
            await self._news.leave_note(TAKEN, self._reloader.taken_digest)
        return await self._news.say(RELOAD_AND_WIDEN if widen else RELOAD)

    def _on_news(self, news: str) -> None:
        if self._reloader is not None:
            if news in (RELOAD, RELOAD_AND_WIDEN):
                self._reloader.request(widen=news == RELOAD_AND_WIDEN)
            elif news == LISTENING:
                self._in_background(self._catch_up(self._reloader), "missed news")
        if self.run_news is not None:
            self.run_news.on_message(news)

    async def _catch_up(self, reloader: Reloader) -> None:
        """Reload what others have reloaded while this process did not listen, also where they said that it may widen."""
        assert self._news is not None, "it listens"
        reloader.note_taken(await self._news.read_note(TAKEN))
        await reloader.request_if_changed()

    async def apply(self, config: Config, *, widen: bool = True) -> ReloadResult:
        """Replace the runtime by one for another config. Requests that have leased the old one keep it.

        The new runtime is built and opened first; if that fails the error is raised, and nothing has changed. Without `widen`
        a config that allows more than the current one raises `Widens`.
        """
        async with self._applying:
            await asyncio.to_thread(import_tools, config)  # users' modules may take long to import
            with contextlib.suppress(BadEntry):  # raised again below; in a thread, because it may load litellm
                await asyncio.to_thread(model_entries, config)
            runtime = Runtime(config, self.shared, self.current)
            widenings = self._authority.widened_by(config, runtime.registry)
            if widenings and not widen:
                raise Widens(widenings)
            handed_over = runtime.registry.handed_over()
            next_runtime = await OpenRuntime.begin(runtime)
            if self.current.access.is_keyless and not runtime.access.is_keyless:
                self.shared.control.warn_of_first_key([key.name for key in config.keys])
            self._in_background(self.leased.end(), "leaving a runtime")
            self._use(next_runtime)
            sources = (source.name for source in runtime.registry.sources())
            result = ReloadResult(
                changed=changed_blocks(self.config, config),
                kept_sources=handed_over,
                opened_sources=tuple(sorted(name for name in sources if name not in handed_over)),
                needs_restart=needs_restart(self._first_config, config),
                widenings=tuple(widenings),
                widened=tuple(map(str, widenings)),
            )
            self.config = config
            self._authority.replace(config, runtime.registry)
            self._remember_keys()
            await self._write_authority()
            return result

    def stored_keys(self) -> int:
        """Return how many keys there are beside those of the config."""
        return len(self.shared.control.stored_keys())

    def _database(self) -> Database | None:
        """Return the database of the ledger, if there is one."""
        ledger = self.shared.shared_ledger
        if ledger is None:
            return None
        return ledger.database

    def _use(self, next_runtime: OpenRuntime) -> None:
        self.leased = next_runtime
        self.current = next_runtime.runtime

    def _remember_keys(self) -> None:
        if self.config.keys_and_issuers() and self.config.auth.mode == "keys":
            self.shared.control.remember_keys()

    async def _compare_with_last_start(self) -> None:
        """Announce what is allowed more than when the server ran last, as far as something of then is written."""
        if self._written is None or not self._is_first:
            return
        widened: list[Widening] = []
        told: list[str] = []
        since = secrets.token_hex(8)
        try:
            values = await self._written.read()
            if values is not None:
                widened = self._authority.widened_since(values)
                since = values.get("id", since)
                told = list(map(str, widened))
        except CannotReach as error:
            audit.warning("authority_not_written", place=self._written.place, reason=str(error))
            return  # what is written stays for the next start
        except (CannotRead, TypeError, KeyError, AttributeError, ValueError) as error:
            reason = str(error) if isinstance(error, CannotRead) else type(error).__name__
            told = [f"{self._written.place} cannot be read ({reason}): nobody knows what was allowed before"]
        if told:
            places = [] if self._source is None else places_of(widened, await asyncio.to_thread(self._source.read))
            by = "who started the server"
            if self._written.is_shared:
                await self.shared.widenings.count_once(told, by=by, through="a restart", places=places, since=since)
            else:
                count_widened(self.metrics, told, by=by, through="a restart", places=places)
        await self._write_authority()

    async def _write_authority(self) -> None:
        """Write down what is allowed, for the next start."""
        if self._written is None or not self._is_first:
            return
        try:
            await self._written.write({"id": secrets.token_hex(8), **self._authority.written()})
        except CannotReach as error:
            audit.warning("authority_not_written", place=self._written.place, reason=str(error))

    @property
    def _is_first(self) -> bool:
        """True for one of the workers of a server."""
        return self._workers is None or self._workers.place == 0

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._follow(asyncio.create_task(work, name=name))

    def _follow(self, task: "asyncio.Task[Any]") -> None:
        """Have a task end before the manager is closed."""
        self._background.add(task)
        task.add_done_callback(self._is_done)

    def _is_done(self, task: "asyncio.Task[Any]") -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None and task.get_name() != "reload":
            audit.error("runtime_not_closed", exc_info=task.exception())


@contextlib.asynccontextmanager
async def _running(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run some work in a task until the end of the block."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def new_call_id() -> str:
    return new_id("call")
