"""Builds the registry of tools: configured tools, and sources of further tools."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from callgate.config.schema import CommandTool, Config, HttpTool, OpenApiTool, PythonTool
from callgate.runtime.builders.errors import BadEntry, BadTool, raise_all
from callgate.runtime.builders.policies import approval_rule, fingerprint, in_clear, policy_of, stamp_of
from callgate.runtime.builders.sources import open_api_source, server_spec
from callgate.tools.addresses import AddressRules
from callgate.tools.command import CommandLine
from callgate.tools.concurrency import ConcurrencyLimits
from callgate.tools.executor import Executor, Policy, Tool
from callgate.tools.mcp_descriptors import Pins
from callgate.tools.parameters import closed
from callgate.tools.process import CommandProcesses, Paths, ProcessLimits
from callgate.tools.python_function import NotATool, functions_at, python_tool
from callgate.tools.registry import Registry
from callgate.tools.source_pool import SourcePool
from callgate.tools.threads import ThreadPool

if TYPE_CHECKING:  # takes half a second and thirty megabytes, so it is imported with the first tool that needs it
    from callgate.fleet.fleet import Fleet
    from callgate.tools.http_client import Web


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
) -> Registry:
    """Build all tools of the config. A tool that cannot be built is the operator's mistake and fails the start.

    `pins` has the known descriptions of servers' tools, `pool` the open sources, and `limits` those of the previous
    runtime. `fleet` runs tools on workers; without it their calls are refused.
    """
    registry = Registry(approval=approval_rule(config.require_approval), pool=pool, limits=limits)
    defaults = Policy(max_result_bytes=config.limits.tool_result_bytes)
    errors: list[BadEntry] = []
    for index, entry in enumerate(config.tools):
        approval = approval_rule(entry.require_approval)
        try:
            if isinstance(entry, OpenApiTool):
                source = open_api_source(entry, defaults)
                made_from = (fingerprint(entry), defaults, stamp_of(entry.document))
                registry.add_source(source, concurrency=entry.concurrency, approval=approval, identity=made_from)
                continue
            for tool in _tools(entry, defaults, web, threads, processes):
                if entry.run_on is None:
                    placed = tool
                else:
                    from callgate.fleet.executor import NoFleet, on_fleet
                    from callgate.fleet.fleet import FleetPool

                    if fleet is None:
                        placed = replace(tool, executor=NoFleet(entry.run_on), queue=None)
                    else:
                        placed = on_fleet(
                            tool, fleet, FleetPool(entry.run_on, config.pools[entry.run_on].queue_seconds)
                        )
                registry.add(placed, approval=approval)
        except (ValueError, NotATool) as error:
            errors.append(BadTool(("tools", index), entry.name, str(error)))
            errors[-1].__cause__ = error
    for name, server in config.mcp_servers.items():
        if not server.disabled:
            from callgate.tools.mcp_server import McpSource

            try:
                registry.add_source(
                    McpSource(server_spec(name, server, defaults), _opened(web), pins),
                    concurrency=server.concurrency,
                    is_here=server.command is not None,
                    approval=approval_rule(server.require_approval),
                    identity=(name, fingerprint(server), defaults),
                )
            except ValueError as error:
                errors.append(BadEntry(("mcp_servers", name), None, str(error)))
                errors[-1].__cause__ = error
    raise_all(errors)
    return registry


def _opened(web: "Web | Callable[[], Web]") -> "Web":
    return web() if callable(web) else web


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
    match entry:
        case PythonTool():
            for function in functions_at(entry.function or entry.module or ""):
                yield python_tool(
                    function,
                    threads,
                    name=entry.name,
                    description=entry.description,
                    defaults=defaults,
                    overrides=policy_of(entry),
                )
        case HttpTool():
            yield _http_tool(entry, defaults, _opened(web))
        case CommandTool():
            yield _command_tool(entry, defaults, processes)
        case _:
            assert_never(entry)


def _http_tool(entry: HttpTool, defaults: Policy, web: "Web") -> Tool:
    from callgate.runtime.builders.http import path_values
    from callgate.tools.http_client import shown_address
    from callgate.tools.http_endpoint import HttpEndpoint

    executor = HttpEndpoint(
        web,
        method=entry.method,
        url=entry.url,
        headers=in_clear(entry.headers),
        query=entry.query,
        body=entry.body,
        parameters=entry.parameters,
        rules=AddressRules.of(allow_private=entry.allow_private, allow=entry.allow_hosts),
        path_values=path_values(entry.multi_segment),
    )
    return _tool(entry, executor, defaults, shown_address(entry.url))


def _command_tool(entry: CommandTool, defaults: Policy, processes: CommandProcesses) -> Tool:
    limits, paths = entry.limits, entry.paths
    executor = CommandLine(
        processes,
        argv=entry.argv,
        parameters=entry.parameters,
        cwd=entry.cwd,
        stdin=entry.stdin,
        env=in_clear(entry.env),
        allow_options=entry.allow_options,
        ok_codes=entry.ok_codes,
        limits=ProcessLimits(**{name: getattr(limits, name) for name in type(limits).model_fields}),
        paths=None if paths is None else Paths(read=paths.read, write=paths.write),
        pid_namespace=entry.pid_namespace,
    )
    program = entry.argv[0]
    tool = _tool(entry, executor, defaults, program if isinstance(program, str) else " ".join(program))
    return replace(tool, queue=processes.queue)


def _tool(entry: HttpTool | CommandTool, executor: Executor, defaults: Policy, source: str) -> Tool:
    return Tool(
        name=entry.name,
        description=entry.description,
        parameters=closed(entry.parameters),
        executor=executor,
        policy=replace(defaults, **policy_of(entry)),
        kind=entry.kind,
        source=source,
    )
