"""The tools of a config, opened for the time of one command, without a server around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from callgate.cli.shared import give_up
from callgate.config.load import Loaded
from callgate.runtime.builders.errors import BadEntry
from callgate.runtime.builders.limits import processes_of, threads_of
from callgate.runtime.builders.tools import registry_of
from callgate.telemetry import logs
from callgate.telemetry.redaction import Redactor
from callgate.tools.http_client import Web
from callgate.tools.process import CommandProcesses
from callgate.tools.registry import Registry
from callgate.tools.threads import ThreadPool


def keep_quiet(loaded: Loaded, level: str = "error") -> None:
    """A command says itself what there is to say; only what is really wrong is logged, for people, with secrets masked."""
    logs.configure(Redactor(loaded.secrets), level=level, format="console")


@asynccontextmanager
async def opened_tools(loaded: Loaded, wait: float, name: str | None = None) -> AsyncIterator[Registry]:
    """All tools, their sources given `wait` seconds to open. With a `name`, only the sources that may have a tool of it
    are opened, and the others where none has."""
    web = Web()
    threads, processes = threads_of(loaded.config), processes_of(loaded.config)
    try:
        registry = built_tools(loaded, web, threads, processes)
        try:
            if name is not None:
                await registry.open(wait, registry.may_have(name))
            if name is None or (registry.find(name) is None and all(it.address != name for it in registry.tools())):
                await registry.open(wait)
            yield registry
        finally:
            await registry.close()
    finally:
        await web.close()
        await processes.close()
        threads.close()


def built_tools(loaded: Loaded, web: Web, threads: ThreadPool, processes: CommandProcesses) -> Registry:
    """All tools that can be made without asking anybody, or the end of the command with the place of the mistake."""
    try:
        return registry_of(loaded.config, web, threads, processes)
    except BadEntry as error:
        raise give_up(loaded.complaint(*error.mistakes)) from None
