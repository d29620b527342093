"""Opens the MCP servers that a request names by their addresses, side by side and within a bound, and closes them after it."""

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import structlog
from msgspec.structs import replace

from callgate.callers.client_mcp import ClientMcp, NamedServers, RequestedServer, claimed_name
from callgate.calls.legal_names import hashed_name
from callgate.calls.offer import OfferedTool
from callgate.conversation.errors import ChatError
from callgate.conversation.events import ToolsListed
from callgate.parsers.pool import ParserPool
from callgate.runtime.route import Route
from callgate.telemetry.metrics import Metrics
from callgate.tools.executor import Policy, Safety, Tool
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp.client_server import ClientServer, rules_for_request
from callgate.tools.registry import DescriptionJudge, RegisteredTool, Registry, address, encoded, whole_schema
from callgate.tools.schema import SchemaError
from callgate.tools.source_supervisor import CannotOpen, reason
from callgate.tools.toolbox import ToolSet

OPEN_SECONDS: Final = 10.0
"""How long all servers of a request together may take to be opened."""

log = structlog.get_logger("callgate.tools")


class ClientServers:
    """Opens and closes servers for the requests of one runtime."""

    def __init__(
        self,
        registry: Registry,
        web: Web,
        parsers: ParserPool,
        metrics: Metrics,
        *,
        result_bytes: int,
        port: int,
    ) -> None:
        """`port`: the one that this server listens at."""
        self._registry = registry
        self._web = web
        self._parsers = parsers
        self._metrics = metrics
        self._result_bytes = result_bytes
        self._port = port
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self, named: NamedServers, client: ClientMcp, ports: Collection[int]) -> "OpenedServers":
        """Open the servers that a request names. What fails is said in the lists. `ports`: those at which its client found us. Raises
        `ChatError` where the one that has to be called is not there."""
        own_ports = {self._port, *ports}
        servers = OpenedServers([self._server(server, client, own_ports) for server in named.clients], self)
        try:
            await servers.open(OPEN_SECONDS)
            if (judge := self._registry.description_judge) is not None:
                await servers.judge(judge.apart())
            servers.register(self._registry, client.tools)
            self._tell(servers)
            servers.check_demanded(named.demanded)
        except BaseException:
            servers.close()
            raise
        return servers

    async def close(self) -> None:
        """Wait until all sessions are closed."""
        while self._closing:
            await asyncio.wait(self._closing)

    def close_soon(self, server: ClientServer, opening: "asyncio.Task[None]") -> None:
        """Close a session, without the request waiting for that."""
        task = asyncio.create_task(_closed(server, opening), name="closes a server of a request")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _server(self, requested: RequestedServer, client: ClientMcp, ports: Collection[int]) -> ClientServer:
        policy = Policy(
            timeout=client.timeout,
            max_result_bytes=client.result_bytes or self._result_bytes,
            untrusted=True,
        )
        rules = rules_for_request(client, requested, ports)
        return ClientServer(requested, client, rules, policy, self._web, self._parsers)

    def _tell(self, servers: "OpenedServers") -> None:
        for server in servers.servers:
            label = server.requested.label
            origin = server.requested.address.origin
            failure = servers.failures.get(server.requested.source())
            if failure is None:
                self._metrics.client_servers.of("opened").inc()
                log.info("client_server_opened", server=label, origin=origin, tools=len(server.listed))
            else:
                self._metrics.client_servers.of("failed").inc()
                error = server.masked(reason(failure.__cause__ or failure))
                log.warning("client_server_failed", server=label, origin=origin, error=error)


class OpenedServers:
    """The servers of one request, while it is answered."""

    def __init__(self, servers: Sequence[ClientServer], owner: ClientServers) -> None:
        self.servers = servers
        self.failures: dict[str, Exception] = {}
        """Why servers could not be opened, by their sources."""
        self.tools: list[RegisteredTool] = []
        self._owner = owner
        self._judge: DescriptionJudge | None = None
        self._opening: dict[str, asyncio.Task[None]] = {}

    async def open(self, seconds: float) -> None:
        """Open them side by side. One that is not open by then has failed."""
        self._opening = {
            server.requested.source(): asyncio.create_task(server.open(), name="opens a server of a request")
            for server in self.servers
        }
        await asyncio.wait(self._opening.values(), timeout=seconds)
        for source, task in self._opening.items():
            if not task.done():
                task.cancel()
                self.failures[source] = CannotOpen(f"no answer within {seconds:g} s")
            elif (error := task.exception()) is not None:
                self.failures[source] = error if isinstance(error, CannotOpen) else CannotOpen(reason(error))

    async def judge(self, judge: DescriptionJudge) -> None:
        """Have what their tools say of themselves judged."""
        self._judge = judge
        opened = [server for server in self.servers if server.requested.source() not in self.failures]
        await judge.look((server.requested.source(), tool) for server in opened for tool in server.tools())

    def _judged(self, source: str, tools: Iterable[Tool]) -> Iterator[Tool]:
        """Yield the tools with what they may say of themselves, without those that are held out, as the log says."""
        for tool in tools:
            if self._judge is None:
                yield tool
                continue
            with contextlib.suppress(ValueError):
                yield self._judge.judged(source, tool)

    def register(self, registry: Registry, most: int) -> None:
        """Give each tool a name that no tool of the config has. `most`: the limit of tools of all servers together."""
        taken_names = set(registry.claims())
        for server in self.servers:
            source = server.requested.source()
            if source in self.failures:
                continue
            if len(self.tools) + len(server.listed) > most:
                self.failures[source] = CannotOpen(f"more than {most} tools of all servers together")
                continue
            for tool in self._judged(source, server.tools()):
                if (registered := _registered(tool, server.requested, taken_names, registry)) is not None:
                    self.tools.append(registered)
                    taken_names.add(registered.name)

    def check_demanded(self, label: str) -> None:
        """Raise where the server that has to be called is not there."""
        for server in self.servers:
            failure = self.failures.get(server.requested.source())
            if server.requested.label == label and failure is not None:
                message = f"Invalid value for 'tool_choice': the tools of '{label}' are not to be had, {failure}."
                raise ChatError(400, message, param="tool_choice", code="server_unavailable")

    def lists(self) -> Iterator[ToolsListed]:
        """Yield what is to be told of each server."""
        for server in self.servers:
            requested = server.requested
            failure = self.failures.get(requested.source())
            if failure is not None:
                yield ToolsListed(requested.label, error=str(failure))
            else:
                yield ToolsListed(requested.label, server.listed, is_told=requested.listing is None)

    def added_to(self, route: Route, allowed: frozenset[str] | None) -> Route:
        """Return the route with the tools. `allowed`: the names of those that may be used; None for all."""
        tools = [tool for tool in self.tools if allowed is None or tool.name in allowed]
        if not tools:
            return route
        if route.server_tools is None:
            return replace(route, server_tools=ToolSet(tools, with_read_more=True), may_offer_tools=True)
        whole = route.server_tools.replaced((*route.server_tools.by_name.values(), *tools))
        searched = None if whole.search is None else whole.search.counts()
        return replace(route, server_tools=whole, may_offer_tools=True, searched=searched)

    def close(self) -> None:
        """Close all of them, in the background: no answer waits for their goodbyes."""
        for server in self.servers:
            opening = self._opening.get(server.requested.source())
            if opening is not None:
                self._owner.close_soon(server, opening)
        self._opening = {}


def _registered(
    tool: Tool, requested: RequestedServer, taken_names: Collection[str], registry: Registry
) -> RegisteredTool | None:
    """Return a tool under a free name; None for one that cannot be offered."""
    if tool.schema_error:
        return None
    original = tool.name
    claimed = claimed_name(requested.label, original)
    place = address(requested.source(), original)
    name = claimed
    salt = place
    while name in taken_names:
        name = hashed_name(claimed, salt)
        salt += "\0"
    try:
        parameters = whole_schema(tool.parameters)
        definition = encoded(name, tool.description, parameters)
    except SchemaError:
        return None
    registered = RegisteredTool(
        tool=replace(tool, name=name, parameters=parameters, claimed=claimed),
        source=requested.source(),
        original=original,
        address=place,
        definition=definition,
        offered=OfferedTool(name, parameters, tool.check),
        claimed=claimed,
    )
    opinion = registry.opinion_of_request(registered)
    is_destructive = tool.policy.safety is Safety.DESTRUCTIVE
    waits = (requested.waits or is_destructive) if opinion is None else opinion
    if not waits:
        return registered
    policy = replace(tool.policy, require_approval=True)
    return replace(registered, tool=replace(registered.tool, policy=policy))


async def _closed(server: ClientServer, opening: "asyncio.Task[None]") -> None:
    """Close a session, whether or not it is open by now."""
    if not opening.done():
        opening.cancel()
    await asyncio.wait([opening])
    if not opening.cancelled():
        opening.exception()  # marks it as retrieved
    await server.close()
