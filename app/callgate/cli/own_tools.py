"""Opens the tools of a config for one command, without a server."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from callgate.cli.own_logins import has_logins, opened_logins
from callgate.cli.shared import give_up
from callgate.config import redaction
from callgate.config.entry_errors import BadEntry
from callgate.config.load import Loaded
from callgate.parsers.building import parsers_of
from callgate.parsers.pool import ParserPool
from callgate.runtime.limits import processes_of, threads_of
from callgate.state.building import pins_file
from callgate.telemetry import logs
from callgate.tools.building import registry_of
from callgate.tools.kinds.command.process import CommandProcesses
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp.pins import Pins
from callgate.tools.kinds.python.threads import ThreadPool
from callgate.tools.registry import Registry

if TYPE_CHECKING:
    from callgate.tools.kinds.mcp.oauth.service import OAuthLogins

OPEN_SECONDS = 30.0
"""The timeout for tool servers to open; a server by npx may have to be downloaded."""


def keep_quiet(loaded: Loaded, level: str = "error") -> None:
    """Log only errors, with secrets masked, because a command prints its own output."""
    redaction.current.add(*loaded.secrets)
    logs.configure(redaction.current, level=level, format="console")


@asynccontextmanager
async def opened_tools(
    loaded: Loaded, wait: float, name: str | None = None, logins: "OAuthLogins | None" = None
) -> AsyncIterator[Registry]:
    """Open all tools, with a timeout of `wait` seconds for their sources. With a `name`, only sources that may have that tool
    are opened, and the others if none has it. `logins`: those to servers, where they are open already."""
    async with AsyncExitStack() as stack:
        web = Web()
        stack.push_async_callback(web.close)
        if logins is None and has_logins(loaded.config):
            logins = await stack.enter_async_context(opened_logins(loaded, web))
        async with _opened_tools(loaded, wait, name, web, logins) as registry:
            yield registry


@asynccontextmanager
async def _opened_tools(
    loaded: Loaded, wait: float, name: str | None, web: Web, logins: "OAuthLogins | None"
) -> AsyncIterator[Registry]:
    threads = threads_of(loaded.config)
    processes = processes_of(loaded.config)
    parsers = parsers_of(loaded.config)
    try:
        registry = built_tools(loaded, web, threads, processes, parsers, logins)
        try:
            if name is not None:
                await registry.open(wait, registry.may_have(name))
            if name is None or (registry.find(name) is None and all(tool.address != name for tool in registry.tools())):
                await registry.open(wait)
            yield registry
        finally:
            await registry.close()
    finally:
        await processes.close()
        await parsers.close()
        threads.close()


def built_tools(
    loaded: Loaded,
    web: Web,
    threads: ThreadPool,
    processes: CommandProcesses,
    parsers: ParserPool,
    logins: "OAuthLogins | None",
) -> Registry:
    """Build all tools without network access; exits with an error message for a mistake."""
    try:
        pins = Pins(file=pins_file(loaded.config), only_read=True)
        return registry_of(
            loaded.config,
            web,
            threads,
            processes,
            parsers=parsers,
            pins=pins,
            logins=None if logins is None else lambda: logins,
        )
    except BadEntry as error:
        raise give_up(loaded.complaint(*error.mistakes())) from None
