"""Holds the current runtime, and replaces it when the config is reloaded.

A request leases the current `Runtime` and keeps it to its end. When the config changes the new runtime is built and opened
first, and if that fails the old one stays.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import structlog

from callgate.auth.key_store import KeyStore
from callgate.auth.keys import check_exposure, warn_of_first_key
from callgate.config.load import Loaded
from callgate.config.problems import ConfigError, Problem, Spot
from callgate.config.schema import Config
from callgate.config.watch import changes, digest_of
from callgate.conversation.ids import new_id
from callgate.runtime.authority import KnownAuthority
from callgate.runtime.builders.errors import BadEntry
from callgate.runtime.builders.models import model_entries
from callgate.runtime.builders.stores import claims_of, news_of, responses_of, run_sockets_of, run_streams_of, store_of
from callgate.runtime.builders.tools import import_tools
from callgate.runtime.lease import OpenRuntime
from callgate.runtime.reload import (
    ConfigSource,
    ConfigWidens,
    ReloadResult,
    Widens,
    changed_blocks,
    needs_restart,
    reads_otherwise,
)
from callgate.runtime.run_news import RunNews, RunPlace
from callgate.runtime.runtime import Runtime
from callgate.runtime.shared import SharedResources
from callgate.runtime.siblings import Siblings
from callgate.runtime.stored_results import StoredResults
from callgate.stores.conversations import Conversations
from callgate.stores.redis_news import LISTENING
from callgate.telemetry.metrics import added_up
from callgate.upstream import litellm_model

RELOAD = "reload"
TAKE_IT = "it allows more than the config in use; `callgate reload --widen` takes it, and so does a restart"
RELOAD_AND_WIDEN = "reload_and_widen"

audit = structlog.get_logger("callgate.audit")


class RuntimeManager:
    """The current runtime, and older ones that still have requests."""

    def __init__(self, config: Config, source: ConfigSource | None = None, siblings: Siblings | None = None) -> None:
        """`source` reads the config again; without it there are no reloads. `siblings` are the other workers of the same
        server."""
        self._config = config
        self._siblings = siblings
        self._first = config
        self._source = source
        self._applying = asyncio.Lock()
        self._reloading = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_reload = asyncio.Event()
        self._asked_to_widen = False
        """Another process took a config that widens, and asks for the same here."""
        self.refused: tuple[str, ...] = ()
        """What is wrong with the config on disk, which is not the one in use; empty where it is."""
        self._background: set[asyncio.Task[Any]] = set()
        self.shared = SharedResources(config)
        self.metrics = self.shared.metrics
        self.opened_at = int(time.time())
        self._is_open = False
        self.draining = asyncio.Event()
        """Set when the server drains, to end what would not end by itself."""
        self.store = store_of(config)
        if config.store.redis_url is not None:
            self.shared.kept_results.shared = StoredResults(self.store)
        self.claims = claims_of(config, self.store, lambda: self.shared.ledger.process)
        self.conversations = Conversations(self.store, config.store.conversation_seconds, new_call_id)
        self.responses = responses_of(config, self.store, self.shared.database)
        self._news = news_of(config, self._on_news)
        self.run_news = None if self._news is None else RunNews(self.shared.recorder, self.store, self._news.say)
        """The news of runs between the processes that share a Redis."""
        self._run_sockets = run_sockets_of(config, self.shared.recorder)
        self.run_streams = run_streams_of(config)
        """The streams of running runs, for clients of other processes."""
        self.closers: list[Callable[[], Awaitable[None]]] = []
        """Called at the end, before anything else is closed."""
        self._open: OpenRuntime | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def current(self) -> Runtime:
        assert self._open is not None, "it is not open"
        return self._open.runtime

    @property
    def is_ready(self) -> bool:
        """True if a load balancer should send requests here; not while fewer than half of the workers are left."""
        return self._is_open and (self._siblings is None or self._siblings.are_enough)

    async def place_of(self, run: str) -> RunPlace | None:
        """Return which other process has a run, of those that share a Redis or a data folder; None where none says so."""
        others = self.run_news or self._run_sockets
        return None if others is None else await others.place_of(run)

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics of all workers, and their content type."""
        if self._siblings is None:
            return self.metrics.exposition(accept)
        own, _ = self.metrics.exposition()
        counted = await self._siblings.counted(own)
        return added_up(counted.living, accept, ended=counted.ended)

    async def __aenter__(self) -> Self:
        await self.shared.open()
        self._open = await OpenRuntime.begin(Runtime(self._config, self.shared))
        self._authority = KnownAuthority(self._config, self._open.runtime.registry)
        self._remember_keys()
        self._loop = asyncio.get_running_loop()
        if self._source is not None:
            # A worker that replaces a dead one starts with the config of its parent, which may be outdated: the config is
            # read before it serves, so that nothing that was removed is served again.
            if (
                self._siblings is not None
                and self._siblings.have_served
                and await asyncio.to_thread(reads_otherwise, self._source, self._config)
            ):
                with contextlib.suppress(Exception):  # logged by the reload; the other workers have not changed either
                    await self._reload(self._source)
            self._tasks = [asyncio.create_task(self._reload_when_asked(self._source), name="reloading")]
            if self._config.reload.watch and self._source.files():
                self._tasks.append(asyncio.create_task(self._watch(self._source), name="watching the config"))
        if self._siblings is not None:
            await self._siblings.open(lambda: self.metrics.exposition()[0])
        if self._news is not None:
            self._news.open()
        if self._run_sockets is not None:
            await self._run_sockets.open()
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        for close in self.closers:
            await close()
        if self._siblings is not None:
            await self._siblings.close()
        if self._run_sockets is not None:
            await self._run_sockets.close()
        if self._news is not None:
            await self._news.close()
        if self.run_news is not None:
            await self.run_news.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._open is not None:
            await self._open.end()
        if self._background:
            await asyncio.wait(self._background)
        await self.claims.close()
        if self.run_streams is not None:
            await self.run_streams.close()
        await self.responses.close()
        await self.shared.close()
        await self.store.close()
        await litellm_model.close()

    def lease(self) -> AbstractContextManager[Runtime]:
        """Lease the current runtime until the end of the block, even if another one becomes current meanwhile."""
        assert self._open is not None, "it is not open"
        return self._open

    def begin_draining(self) -> None:
        """Begin to drain, and end what would not end by itself. For signal handlers."""
        self._is_open = False
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.shared.recorder.end_feeds)
            self._loop.call_soon_threadsafe(self.draining.set)

    def ask_to_reload(self) -> None:
        """Reload the config soon. May be called from a signal handler or another thread."""
        if self._loop is None:  # not open yet; checked when it is
            self._asked_to_reload.set()
        else:
            self._loop.call_soon_threadsafe(self._asked_to_reload.set)

    async def reload(self, *, widen: bool = False, by: str = "") -> ReloadResult:
        """Read the config again and apply it. Raises `ConfigError`, in which case nothing has changed. `widen`: also where the
        new config allows more; `by`: who says so."""
        if self._source is None:
            raise ConfigError([Problem(Spot("config"), "", "it was not read from anywhere that could be read again")])
        # In a task of its own, because the request that caused it may be cancelled.
        task = asyncio.create_task(self._reload(self._source, widen=widen, by=by), name="reload")
        self._background.add(task)
        task.add_done_callback(self._is_done)
        return await asyncio.shield(task)

    async def have_others_reload(self, *, widen: bool = False) -> bool:
        """Ask all processes that share a Redis with this one to reload their config; return whether they were notified."""
        return self._news is not None and await self._news.say(RELOAD_AND_WIDEN if widen else RELOAD)

    def _on_news(self, what: str) -> None:
        if what in (RELOAD, RELOAD_AND_WIDEN):
            self._asked_to_widen = self._asked_to_widen or what == RELOAD_AND_WIDEN
            self._asked_to_reload.set()
        elif what == LISTENING and self._source is not None:
            task = asyncio.create_task(self._reload_if_changed(self._source), name="missed news")
            self._background.add(task)
            task.add_done_callback(self._is_done)
        if self.run_news is not None:
            self.run_news.on_message(what)

    async def _reload_if_changed(self, source: ConfigSource) -> None:
        if await asyncio.to_thread(reads_otherwise, source, self._config):
            self._asked_to_reload.set()

    async def apply(self, config: Config, *, widen: bool = True) -> ReloadResult:
        """Replace the runtime by one for another config. Requests that have leased the old one keep it.

        The new runtime is built and opened first; if that fails the error is raised, and nothing has changed. Without `widen`
        a config that allows more than the current one raises `Widens`.
        """
        async with self._applying:
            assert self._open is not None, "it is not open"
            await asyncio.to_thread(import_tools, config)  # users' modules may take long to import
            with contextlib.suppress(BadEntry):  # raised again below; in a thread, because it may load litellm
                await asyncio.to_thread(model_entries, config)
            runtime = Runtime(config, self.shared, self._open.runtime)
            found = self._authority.widened_by(config, runtime.registry)
            if found and not widen:
                raise Widens(found)
            kept = runtime.registry.handed_over()
            opened = await OpenRuntime.begin(runtime)
            if self.current.is_keyless and not runtime.is_keyless:
                warn_of_first_key([key.name for key in config.keys])
            old, self._open = self._open, opened
            leaving = asyncio.create_task(old.end(), name="leaving a runtime")
            self._background.add(leaving)
            leaving.add_done_callback(self._is_done)
            result = ReloadResult(
                changed=changed_blocks(self._config, config),
                kept=kept,
                opened=tuple(sorted(it.name for it in runtime.registry.sources() if it.name not in kept)),
                needs_restart=needs_restart(self._first, config),
                widened=tuple(map(str, found)),
            )
            self._config = config
            self._authority.replace(config, runtime.registry)
            self._remember_keys()
            return result

    async def _reload(self, source: ConfigSource, *, widen: bool = False, by: str = "") -> ReloadResult:
        async with self._reloading:  # in order, so that the config that was read last is in use
            try:
                result, loaded = await self._read_and_apply(source, widen=widen)
            except ConfigError as error:
                self.metrics.reloads.of("refused").inc()
                problems = [str(problem) for problem in error.problems]
                advice = {"todo": TAKE_IT} if isinstance(error, ConfigWidens) else {}
                audit.error("config_not_reloaded", problems=problems, **advice)
                self._tell_refused(problems)
                raise
            except Exception as error:
                self.metrics.reloads.of("failed").inc()
                audit.exception("config_not_reloaded")
                self._tell_refused([f"it failed: {type(error).__name__}"])
                raise
            source.on_applied(loaded)
            self.metrics.reloads.of("done").inc()
            audit.info("config_reloaded", **result.facts())
            self._tell_refused([])
            if result.widened:
                audit.warning("authority_widened", by=by, widened=list(result.widened))
                self.metrics.widened.inc(len(result.widened))
            self.shared.recorder.publish("config", {"object": "config", "by": by, **result.facts(), "refused": []})
            return result

    async def _read_and_apply(self, source: ConfigSource, *, widen: bool) -> tuple[ReloadResult, Loaded]:
        loaded = await asyncio.to_thread(source.read)
        source.on_read(loaded)  # before anything is built from it, because errors are logged
        # A reload must not remove the last key of a server.
        keys = len(loaded.config.keys) + (0 if self.shared.keys is None else len(self.shared.keys.all()))
        had_keys = not self.current.is_keyless
        mistake = check_exposure(self._first.server.host, loaded.config.auth, keys, had_keys=had_keys)
        if mistake is not None:
            raise loaded.complaint((("keys",), mistake))
        digest = " ".join(digest_of(source.files()))
        was_taken = bool(digest) and self._siblings is not None and self._siblings.have_taken(digest)
        try:
            result = await self.apply(loaded.config, widen=widen or was_taken)
        except BadEntry as error:
            raise loaded.complaint(*error.mistakes) from error
        except Widens as error:
            raise error.of_file(loaded) from None
        if widen and self._siblings is not None:
            self._siblings.take(digest)
        return result, loaded

    def _tell_refused(self, problems: Sequence[str]) -> None:
        """Say, until it changes, whether the config on disk is refused."""
        self.metrics.config_refused.set(1 if problems else 0)
        if problems:
            facts = {"object": "config", "refused": list(problems)}
            self.shared.recorder.publish("config", facts)
        self.refused = tuple(problems)

    def _remember_keys(self) -> None:
        if isinstance(self.shared.keys, KeyStore) and self._config.keys and self._config.auth == "keys":
            self.shared.keys.remember_keys()

    def _is_done(self, task: "asyncio.Task[Any]") -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None and task.get_name() != "reload":
            audit.error("runtime_not_closed", exc_info=task.exception())

    async def _reload_when_asked(self, source: ConfigSource) -> None:
        while True:
            await self._asked_to_reload.wait()
            self._asked_to_reload.clear()
            # Logged by the reload; the old runtime stays until the next change.
            widen = self._asked_to_widen
            self._asked_to_widen = False
            with contextlib.suppress(Exception):
                await self._reload(source, widen=widen, by="another process" if widen else "")

    async def _watch(self, source: ConfigSource) -> None:
        try:
            seen = digest_of(source.files())  # before it is read, so that every later change is noticed
            await self._reload_if_changed(source)  # it may have changed while we were starting
            async for _ in changes(source.files, seen):
                if self._config.reload.watch:
                    self._asked_to_reload.set()
        except Exception:  # noqa: BLE001 - whatever the system's way of watching files fails with, requests go on
            audit.exception("config_not_watched", advice="SIGHUP still has it read again")


def new_call_id() -> str:
    return new_id("call")
