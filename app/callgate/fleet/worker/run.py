"""Runs one worker, from its start to its exit code."""

import logging
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from celery.signals import setup_logging, worker_process_init, worker_process_shutdown, worker_ready

from callgate.config import redaction
from callgate.config.entry_errors import BadEntry
from callgate.config.load import Loaded
from callgate.config.schema.whole import Config
from callgate.fleet.worker.celery_app import celery_app, run_worker
from callgate.fleet.worker.child import ToolProcess, die_with, tools_of
from callgate.fleet.worker.watch import Watch
from callgate.state.database import DatabaseAway
from callgate.telemetry import logs
from callgate.tools.settings import PlacedTool

_SAYS_EVERY_CALL: Final = ("celery.worker.strategy", "celery.app.trace")
"""Celery's loggers with lines for each call, which the proxy logs itself."""

log = structlog.get_logger("callgate.worker")


class CannotStart(Exception):
    """Raised where a worker cannot be started, with the reason for the operator."""


def work(loaded: Loaded, pools: Sequence[str], concurrency: int) -> int:
    """Run the calls of some pools until a signal. Raises `CannotStart`."""
    config = of_pools(loaded.config, pools)
    redaction.current.add(*loaded.secrets)
    logs.configure(redaction.current, level=config.logging.level, format=config.logging.format)
    _try_tools(loaded, config)
    assert config.store.redis_url is not None
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    child = ToolProcess(config, name, pools)
    first = os.getpid()

    def begin(**_: Any) -> None:
        die_with(first)
        child.load()

    def end(**_: Any) -> None:
        child.close()

    def ready(**_: Any) -> None:
        log.info("worker_ready", worker=name, pools=list(pools), concurrency=concurrency)

    def run(fields: Mapping[str, Any]) -> None:
        child.run(fields)

    # Kept here, because Celery's signals have weak references.
    worker_process_init.connect(begin, weak=False)
    worker_process_shutdown.connect(end, weak=False)
    worker_ready.connect(ready, weak=False)
    setup_logging.connect(_leave_logging_alone, weak=False)
    watch = Watch(config, name, pools)
    try:
        watch.open()
    except DatabaseAway as away:
        raise CannotStart(f"ledger.url: {away}") from None
    try:
        app = celery_app(
            config.store.redis_url.get_secret_value(),
            config.store.prefix,
            watch.keys,
            fresh_process=any(config.pools[pool].fresh_process for pool in pools),
        )
        return run_worker(app, name, concurrency, run)
    finally:
        watch.close()


def of_pools(config: Config, pools: Sequence[str]) -> Config:
    """Return the config with only the tools of these pools, to run here."""
    tools = tuple(
        tool.model_copy(update={"run_on": None})
        for tool in config.tools
        if isinstance(tool, PlacedTool) and tool.run_on in pools
    )
    return config.model_copy(update={"tools": tools, "mcp_servers": {}})


def _leave_logging_alone(**_: Any) -> None:
    """Keep our logging: without a receiver of this signal Celery would configure its own."""
    if logging.getLogger().level > logging.DEBUG:
        for name in _SAYS_EVERY_CALL:
            logging.getLogger(name).setLevel(logging.WARNING)


def _try_tools(loaded: Loaded, config: Config) -> None:
    """Raise where a tool cannot be built. Tried in another process, because GPU libraries do not survive a fork after import."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        mistakes = ""
        try:
            tools_of(config)
        except BadEntry as error:
            mistakes = str(loaded.complaint(*error.mistakes()))
        except BaseException as error:  # noqa: BLE001 - a stranger's module, imported: said by the parent
            mistakes = f"{type(error).__name__}: {error}"
        os.write(writing, mistakes.encode(errors="replace")[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as report:
        mistakes = report.read().decode(errors="replace")
    if os.waitpid(pid, 0)[1] and not mistakes:
        mistakes = "importing the tools ended the process"
    if mistakes:
        raise CannotStart(mistakes)
