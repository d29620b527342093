"""The tools of a config, opened for the time of one command, without a server around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from callgate.cli.shared import give_up
from callgate.config.load import Loaded
from callgate.runtime import builders
from callgate.telemetry import logs
from callgate.telemetry.redaction import Redactor
from callgate.tools.http_client import Web
from callgate.tools.process import Processes
from callgate.tools.registry import Registry
from callgate.tools.threads import ThreadPool


def keep_quiet(loaded: Loaded) -> None:
    """A command says itself what there is to say; only what is really wrong is logged, with secrets masked."""
    logs.configure(Redactor(loaded.secrets), level="error", format=loaded.config.logging.format)


@asynccontextmanager
async def opened_tools(loaded: Loaded, wait: float) -> AsyncIterator[Registry]:
    """All tools, their sources given `wait` seconds to open."""
    web = Web()
    threads, processes = builders.threads_of(loaded.config), builders.processes_of(loaded.config)
    try:
        registry = built_tools(loaded, web, threads, processes)
        try:
            await registry.open(wait)
            yield registry
        finally:
            await registry.close()
    finally:
        await web.close()
        await processes.close()
        threads.close()


def built_tools(loaded: Loaded, web: Web, threads: ThreadPool, processes: Processes) -> Registry:
    """All tools that can be made without asking anybody, or the end of the command with the place of the mistake."""
    try:
        return builders.registry_of(loaded.config, web, threads, processes)
    except builders.BadEntry as error:
        raise give_up(loaded.complaint(error.path, error.reason)) from None
