"""Reloads of the config: reads it again when it has changed or somebody says so, and has the runtime replaced.

Also watches the files of the config, and hears of reloads in other processes.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

import structlog

from callgate.callers.exposure import check_exposure
from callgate.config.entry_errors import BadEntry
from callgate.config.load import Loaded
from callgate.config.problems import ConfigError
from callgate.config.schema.whole import Config
from callgate.config.watch import changes, digest_of
from callgate.records.ports import RunRecorder
from callgate.runtime.reload import ConfigSource, ConfigWidens, ReloadResult, Widens, places_of, reads_otherwise
from callgate.runtime.widenings import count_widened
from callgate.runtime.workers import WorkerGroup
from callgate.telemetry.metrics import Metrics

TAKE_IT = "it allows more than the config in use; `callgate reload --widen` takes it, and so does a restart"

audit = structlog.get_logger("callgate.audit")


class ConfigInUse(Protocol):
    """The config in use, which a reload replaces."""

    @property
    def config(self) -> Config: ...

    @property
    def is_keyless(self) -> bool:
        """True if no key is required."""
        ...

    def stored_keys(self) -> int:
        """Return how many keys there are beside those of the config."""
        ...

    async def apply(self, config: Config, *, widen: bool = True) -> ReloadResult:
        """Replace the config. Raises `BadEntry` and `Widens`, in which case nothing has changed."""
        ...


class Reloader:
    """Reads the config again, and applies it."""

    def __init__(
        self,
        source: ConfigSource,
        in_use: ConfigInUse,
        metrics: Metrics,
        recorder: RunRecorder,
        workers: WorkerGroup | None = None,
    ) -> None:
        self.refused: tuple[str, ...] = ()
        """What is wrong with the config on disk, which is not the one in use; empty where it is."""
        self._source = source
        self._in_use = in_use
        self._host = in_use.config.server.host
        """The address that is listened on, which a reload does not change."""
        self._metrics = metrics
        self._recorder = recorder
        self._workers = workers
        self._one_at_a_time = asyncio.Lock()
        self._is_requested = asyncio.Event()
        self._may_widen = False
        """Another process took a config that widens, and requests the same here."""
        self._taken_elsewhere = ""
        self.taken_digest = ""
        """The digest of the config file that was taken last here although it widens."""

    def request(self, *, widen: bool = False) -> None:
        """Have the config reloaded soon."""
        self._may_widen = self._may_widen or widen
        self._is_requested.set()

    def note_taken(self, digest: str) -> None:
        """Note that another process has taken a config file with this digest although it widens."""
        self._taken_elsewhere = digest

    async def request_if_changed(self) -> None:
        """Have the config reloaded soon, if it reads otherwise than the one in use."""
        if await asyncio.to_thread(reads_otherwise, self._source, self._in_use.config):
            self._is_requested.set()

    async def reload_if_outdated(self) -> None:
        """Reload the config before it is served. A worker that replaces a dead one starts with the config of its parent, which may
        be outdated; nothing that was removed since may be served again."""
        if self._workers is None or not self._workers.have_served():
            return
        if await asyncio.to_thread(reads_otherwise, self._source, self._in_use.config):
            with contextlib.suppress(Exception):  # logged by the reload; the other workers have not changed either
                await self.reload()

    async def run(self) -> None:
        """Reload the config whenever it is requested."""
        while True:
            await self._is_requested.wait()
            self._is_requested.clear()
            widen = self._may_widen
            self._may_widen = False
            with contextlib.suppress(Exception):  # logged by the reload; the old runtime stays until the next change
                by = "another process" if widen else ""
                await self.reload(widen=widen, by=by, through="a watched file, a signal or another process")

    async def watch(self) -> None:
        """Request a reload whenever a file of the config changes."""
        try:
            seen_digest = digest_of(self._source.files())  # before it is read, so that every later change is noticed
            await self.request_if_changed()  # it may have changed while we were starting
            async for _ in changes(self._source.files, seen_digest):
                if self._in_use.config.reload.watch:
                    self._is_requested.set()
        except Exception:  # noqa: BLE001 - whatever the system's way of watching files fails with, requests go on
            audit.exception("config_not_watched", advice="SIGHUP still has it read again")

    def has_files(self) -> bool:
        return bool(self._source.files())

    async def reload(self, *, widen: bool = False, by: str = "", through: str = "") -> ReloadResult:
        """Read the config again and apply it. Raises `ConfigError`, in which case nothing has changed. `widen`: also where the
        new config allows more; `by`: who says so; `through`: by which route or signal."""
        async with self._one_at_a_time:  # in order, so that the config that was read last is in use
            try:
                result, loaded = await self._read_and_apply(widen=widen)
            except ConfigError as error:
                self._metrics.reloads.of("refused").inc()
                problems = [str(problem) for problem in error.problems]
                if isinstance(error, ConfigWidens):
                    advice = {"todo": TAKE_IT}
                else:
                    advice = {}
                audit.error("config_not_reloaded", problems=problems, **advice)
                self._note_refused(problems)
                raise
            except Exception as error:
                self._metrics.reloads.of("failed").inc()
                audit.exception("config_not_reloaded")
                self._note_refused([f"it failed: {type(error).__name__}"])
                raise
            self._source.on_applied(loaded)
            self._metrics.reloads.of("done").inc()
            audit.info("config_reloaded", **result.facts())
            self._note_refused([])
            places = places_of(result.widenings, loaded)
            if result.widened:
                count_widened(self._metrics, result.widened, by=by, through=through, places=places)
            facts = {"by": by, "through": through, **result.facts(), "places": places, "refused": []}
            self._recorder.watchers.publish("config", {"object": "config", **facts})
            return result

    async def _read_and_apply(self, *, widen: bool) -> tuple[ReloadResult, Loaded]:
        source = self._source
        loaded = await asyncio.to_thread(source.read)
        source.on_read(loaded)  # before anything is built from it, because errors are logged
        # A reload must not remove the last key of a server.
        keys = loaded.config.keys_and_issuers() + self._in_use.stored_keys()
        had_keys = not self._in_use.is_keyless
        has_list = "keys" in loaded.config.model_fields_set
        mistake = check_exposure(self._host, loaded.config.auth.mode, keys, had_keys=had_keys, has_empty_list=has_list)
        if mistake is not None:
            raise loaded.complaint((("keys",), mistake))
        digest = " ".join(digest_of(source.files()))
        was_taken = bool(digest) and (
            digest == self._taken_elsewhere or (self._workers is not None and self._workers.have_taken(digest))
        )
        try:
            result = await self._in_use.apply(loaded.config, widen=widen or was_taken)
        except BadEntry as error:
            raise loaded.complaint(*error.mistakes()) from error
        except Widens as error:
            raise error.of_file(loaded) from None
        if widen:
            self.taken_digest = digest
        if widen and self._workers is not None:
            self._workers.take(digest)
        return result, loaded

    def _note_refused(self, problems: Sequence[str]) -> None:
        """Note, until it changes, whether the config on disk is refused."""
        self._metrics.config_refused.set(1 if problems else 0)
        if problems:
            self._recorder.watchers.publish("config", {"object": "config", "refused": list(problems)})
        self.refused = tuple(problems)
