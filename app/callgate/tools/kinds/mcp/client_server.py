"""An MCP server that a request names by its address: a session for that request alone, over which little may come.

It is asked once for its tools. What it says of their safety does not count unless the key's operator says so, and its credentials are
in no result, which would put them into a prompt.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types
import msgspec
from msgspec.structs import replace
from pydantic import ValidationError

from callgate.callers.client_mcp import ClientMcp, RequestedServer
from callgate.calls.outcome import Failed, Outcome
from callgate.calls.selection import ToolOrigin
from callgate.calls.states import ReadyCall
from callgate.conversation.events import ToolAsListed
from callgate.conversation.ports import ProgressReport
from callgate.parsers.jobs import ParserFailed
from callgate.parsers.pool import ParserPool
from callgate.tools.executor import CallContext, Executor, Policy, Safety, Tool
from callgate.tools.kinds.http.addresses import PUBLIC_ONLY, AddressRules
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.http.own_hosts import HOME_SUFFIXES, rules_of_host
from callgate.tools.kinds.mcp.descriptors import described, is_callable
from callgate.tools.kinds.mcp.http import HttpLink, HttpSpec
from callgate.tools.kinds.mcp.server import McpSource, ServerSpec, parts_of
from callgate.tools.kinds.mcp.session import Listing, ResourceList, Session
from callgate.tools.kinds.mcp.wire import NotSent
from callgate.tools.source_supervisor import CannotOpen
from callgate.untrusted.doors import written_here
from callgate.untrusted.pydantic_readers import read_model

LIST_BYTES: Final = 1_000_000
"""The longest list, all pages together."""
NOT_REACHED: Final = "it cannot be reached from here"
MASK: Final = "***"
SHORTEST_SECRET: Final = 8
"""Shorter values stand in ordinary texts."""


class ClientServer(McpSource):
    """The source of one server's tools, for one request."""

    def __init__(
        self,
        requested: RequestedServer,
        client: ClientMcp,
        rules: AddressRules,
        policy: Policy,
        web: Web,
        parsers: ParserPool,
    ) -> None:
        self._requested = requested
        self._client = client
        self._secrets = sorted(filter(_is_long, requested.secrets()), key=len, reverse=True)
        self._http = HttpSpec(
            requested.address.url, requested.headers, sse=False, rules=rules, posts_alone=True, most_bytes=LIST_BYTES
        )
        spec = ServerSpec(requested.label, self._http, prefix="", policy=policy, resources=False, pins="off")
        super().__init__(spec, web, parsers=parsers)
        self.listed: Sequence[ToolAsListed] = ()
        """Its tools that the request wants and that can be called."""
        self._offered: tuple[Tool, ...] = ()

    @property
    def requested(self) -> RequestedServer:
        return self._requested

    async def open(self) -> None:
        """Open the session, and list the tools where no earlier answer did. Raises `CannotOpen`."""
        listing = self._requested.listing
        is_known = False
        if listing is not None:
            is_known = await self._takes(listing)
        link = HttpLink(self._http, self._web)
        bounds = Listing(bytes=LIST_BYTES, resources=False, follows=False, is_known=is_known)
        session = Session(link, self._listed, listing=bounds)
        try:
            await session.open()
        except CannotOpen as problem:
            if not link.was_answered:  # what a name leads to, and who listens there, is not for clients to find out
                raise CannotOpen(NOT_REACHED) from problem
            raise CannotOpen(self.masked(str(problem))) from None
        self._session = session

    def tools(self) -> tuple[Tool, ...]:
        return self._offered

    def is_held(self, name: str) -> bool:
        return False  # there is nothing to compare it with

    def masked(self, text: str) -> str:
        """Return a text without the credentials of the server."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    async def _renewed(self, old: Session | None) -> Session:
        raise NotSent  # nobody opens it again

    async def _listed(self, tools: tuple[types.Tool, ...], resources: ResourceList | None = None) -> None:
        await self._offer_of(tools, trusts=self._client.trust_annotations)

    async def _takes(self, listing: Sequence[ToolAsListed]) -> bool:
        """Take the tools of an earlier answer; return whether all of them can be used."""
        try:
            tools = [
                types.Tool(name=tool.name, description=tool.description, input_schema=dict(tool.input_schema))
                for tool in listing
            ]
        except ValidationError:
            return False
        await self._offer_of(tools, trusts=False)
        if any(tool.schema_error for tool in self._offered):
            self._offered = ()
            return False
        return True

    async def _offer_of(self, tools: Sequence[types.Tool], *, trusts: bool) -> None:
        """Offer those of some tools that the request wants."""
        wanted: list[Tool] = []
        annotations: dict[str, Mapping[str, Any] | None] = {}
        names = set[str]()
        for part in parts_of(tools):
            for tool in part:
                if not is_callable(tool) or tool.name in names:
                    continue
                names.add(tool.name)
                offered = self._tool_of(tool, trusts=trusts)
                if not self._requested.tools.admits(self._origin(offered)):
                    continue
                wanted.append(offered)
                hints = tool.annotations
                annotations[tool.name] = (
                    None if hints is None else hints.model_dump(mode="json", by_alias=True, exclude_none=True)
                )
            await asyncio.sleep(0)
        if len(wanted) > self._client.tools:
            most = self._client.tools
            raise CannotOpen(f"it has {len(wanted)} tools, and {most} may be used: name them in `allowed_tools`")
        try:
            compiled = await self._schemas.compile(wanted)
        except ParserFailed as failure:
            raise CannotOpen(f"the schemas of its tools cannot be read: {failure}") from None
        self._offered = compiled
        self.listed = [
            ToolAsListed(tool.name, tool.description, tool.parameters, annotations[tool.name])
            for tool in compiled
            if not tool.schema_error
        ]

    def _without_secrets(self, tool: types.Tool) -> types.Tool:
        """Return a tool that does not repeat the credentials with which it was asked for."""
        text = tool.model_dump_json(by_alias=True)
        masked = self.masked(text)
        if masked == text:
            return tool
        return read_model(types.Tool, written_here(masked.encode()))

    def _origin(self, tool: Tool) -> ToolOrigin:
        read_only = tool.policy.safety is Safety.READ_ONLY
        return ToolOrigin(source=self._requested.source(), names=frozenset((tool.name,)), read_only=read_only)

    def _tool_of(self, tool: types.Tool, *, trusts: bool) -> Tool:
        descriptor = described(self._without_secrets(tool))
        if not trusts:
            descriptor = replace(descriptor, safety=None)
        made = self._tool(descriptor)
        return replace(made, executor=WithoutSecrets(made.executor, self), source=self._requested.address.origin)


def _is_long(secret: str) -> bool:
    return len(secret) >= SHORTEST_SECRET


@dataclass(frozen=True, slots=True)
class WithoutSecrets:
    """Runs a tool, and takes the credentials of its server out of what came of it."""

    inner: Executor
    server: ClientServer

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        async def report(progress: ProgressReport) -> None:
            words = self.server.masked(progress.message)
            await context.report(
                msgspec.structs.replace(progress, message=words, answer=self.server.masked(progress.answer))
            )

        outcome = await self.inner.execute(call, msgspec.structs.replace(context, report=report))
        text = self.server.masked(outcome.text)
        if text == outcome.text:
            return outcome
        if isinstance(outcome, Failed):
            return msgspec.structs.replace(outcome, text=text)
        return msgspec.structs.replace(outcome, text=text, structured=None)


def rules_for_request(client: ClientMcp, requested: RequestedServer, own_ports: Collection[int]) -> AddressRules:
    """Return the addresses that a server may have: public ones, and those of a host that its operator wrote out as his own."""
    address = requested.address
    rules = PUBLIC_ONLY
    for pattern in client.patterns_for(address):
        if pattern.is_written_out or pattern.host.endswith(HOME_SUFFIXES):
            rules = rules_of_host(address.host)
    return replace(rules, own_ports=frozenset(own_ports))
