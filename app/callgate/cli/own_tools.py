"""Opens the tools of a config for one command, without a server."""

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
    """Log only errors, with secrets masked, because a command prints its own output."""
    logs.configure(Redactor(loaded.secrets), level=level, format="console")


@asynccontextmanager
async def opened_tools(loaded: Loaded, wait: float, name: str | None = None) -> AsyncIterator[Registry]:
    """Open all tools, with a timeout of `wait` seconds for their sources. With a `name`, only sources that may have that tool
    are opened, and the others if none has it."""
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
    """Build all tools without network access; exits with an error message for a mistake."""
    try:
        return registry_of(loaded.config, web, threads, processes)
    except BadEntry as error:
        raise give_up(loaded.complaint(*error.mistakes)) from None
