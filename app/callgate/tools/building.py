"""Builds the registry of tools: configured tools, and sources of further tools."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from callgate.config.entry_errors import BadEntry, BadTool, raise_all
from callgate.config.schema.whole import Config
from callgate.parsers.pool import ParserPool
from callgate.tools.concurrency import ConcurrencyLimits
from callgate.tools.executor import Policy, Tool
from callgate.tools.kinds.command.process import CommandProcesses
from callgate.tools.kinds.command.settings import CommandTool
from callgate.tools.kinds.http.settings import HttpTool
from callgate.tools.kinds.mcp.pins import Pins
from callgate.tools.kinds.openapi.settings import OpenApiTool
from callgate.tools.kinds.python.function import NotATool, functions_at
from callgate.tools.kinds.python.settings import PythonTool
from callgate.tools.kinds.python.threads import ThreadPool
from callgate.tools.kinds.web import tool_of_the_web
from callgate.tools.policies import approval_rule, fingerprint, result_rules, stamp_of
from callgate.tools.registry import Registry
from callgate.tools.settings import PlacedTool
from callgate.tools.source_pool import SourcePool

if TYPE_CHECKING:  # takes half a second and thirty megabytes, so it is imported with the first tool that needs it
    from callgate.fleet.fleet import Fleet
    from callgate.tools.kinds.http.client import Web
    from callgate.tools.kinds.mcp.oauth.service import OAuthLogins


def registry_of(
    config: Config,
    web: "Web | Callable[[], Web]",
    threads: ThreadPool,
    processes: CommandProcesses,
    *,
    pins: Pins | None = None,
    pool: SourcePool | None = None,
    limits: ConcurrencyLimits | None = None,
    fleet: "Fleet | None" = None,
    parsers: ParserPool | None = None,
    shapes_results: bool = True,
    logins: "Callable[[], OAuthLogins] | None" = None,
) -> Registry:
    """Build all tools of the config. A tool that cannot be built is the operator's mistake and fails the start.

    `pins` has the known descriptions of servers' tools, `pool` the open sources, and `limits` those of the previous
    runtime. `fleet` runs tools on workers; without it their calls are refused. `parsers` reads documents and long lists.
    `shapes_results`: off for a worker, whose results are shaped where they are asked for. `logins` gives the logins to servers.
    """
    registry = Registry(approval=approval_rule(config.require_approval), pool=pool, limits=limits)
    defaults = Policy(max_result_bytes=config.limits.tool_result_bytes)
    errors: list[BadEntry] = []
    for index, entry in enumerate(config.tools):
        approval = approval_rule(entry.require_approval)
        try:
            if isinstance(entry, OpenApiTool):
                from callgate.tools.kinds.openapi.building import open_api_source

                source = open_api_source(entry, defaults, parsers)
                made_from = (fingerprint(entry), defaults, stamp_of(entry.document))
                registry.add_source(
                    source,
                    concurrency=entry.concurrency,
                    approval=approval,
                    identity=made_from,
                    results=result_rules(entry),
                )
                continue
            if not isinstance(entry, PythonTool | HttpTool | CommandTool):
                tool = tool_of_the_web(entry, defaults, _web_of(web), parsers)
                registry.add(tool, approval=approval, results=result_rules(entry))
                continue
            for tool in _tools(entry, defaults, web, threads, processes):
                results = result_rules(entry) if shapes_results else None
                registry.add(_placed(tool, entry, config, fleet), approval=approval, results=results)
        except (ValueError, NotATool) as error:
            errors.append(BadTool(("tools", index), entry.name, str(error)))
            errors[-1].__cause__ = error
    for name, server in config.mcp_servers.items():
        if not server.disabled:
            from callgate.tools.kinds.mcp.building import server_source

            try:
                registry.add_source(
                    server_source(name, server, defaults, _web_of(web), pins, parsers, logins),
                    concurrency=server.concurrency,
                    is_here=server.command is not None,
                    approval=approval_rule(server.require_approval),
                    identity=(name, fingerprint(server), defaults),
                    results=result_rules(server),
                )
            except ValueError as error:
                errors.append(BadEntry(("mcp_servers", name), None, str(error)))
                errors[-1].__cause__ = error
    raise_all(errors)
    return registry


def _placed(tool: Tool, entry: PlacedTool, config: Config, fleet: "Fleet | None") -> Tool:
    """Return a tool that runs where its entry says."""
    if entry.run_on is None:
        return tool
    from callgate.fleet.executor import NoFleet, on_fleet
    from callgate.fleet.fleet import FleetPool

    tool = replace(tool, services=())  # they are opened where it runs
    if fleet is None:
        return replace(tool, executor=NoFleet(entry.run_on), queue=None)
    return on_fleet(tool, fleet, FleetPool(entry.run_on, config.pools[entry.run_on].queue_seconds))


def _web_of(web: "Web | Callable[[], Web]") -> "Web":
    if callable(web):
        return web()
    return web


def import_tools(config: Config) -> None:
    """Import the modules that the config names, so that building the registry does not wait for them.

    Errors are reported when the registry is built, together with those of other entries.
    """
    for entry in config.tools:
        if isinstance(entry, PythonTool):
            with contextlib.suppress(ValueError, NotATool):
                functions_at(entry.function or entry.module or "")


def _tools(
    entry: PythonTool | HttpTool | CommandTool,
    defaults: Policy,
    web: "Web | Callable[[], Web]",
    threads: ThreadPool,
    processes: CommandProcesses,
) -> Iterator[Tool]:
    # Imported with the first tool of each kind.
    match entry:
        case PythonTool():
            from callgate.tools.kinds.python.building import python_tools

            yield from python_tools(entry, defaults, threads)
        case HttpTool():
            from callgate.tools.kinds.http.building import http_tool

            yield http_tool(entry, defaults, _web_of(web))
        case CommandTool():
            from callgate.tools.kinds.command.building import command_tool

            yield command_tool(entry, defaults, processes)
        case _:
            assert_never(entry)
