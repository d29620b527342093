"""An MCP server as a source of tools: one session for all requests, opened again when it is lost.

`registry` keeps the source open and names its tools; `mcp_session` has the session. This module makes tools of the server's
list, and outcomes of its answers.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import mcp_types as types

from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.states import ReadyCall
from callgate.parsers.jobs import ParserFailed
from callgate.parsers.pool import ParserPool
from callgate.tools.executor import DEFAULT_POLICY, CallContext, Policy, Safety, Tool
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp.descriptors import Descriptor, Pins, described, is_allowed, is_callable
from callgate.tools.kinds.mcp.elicitation import Elicitations, Mode
from callgate.tools.kinds.mcp.http import HttpLink, HttpSpec, SseLink
from callgate.tools.kinds.mcp.process import StdioSpec
from callgate.tools.kinds.mcp.results import outcome_of
from callgate.tools.kinds.mcp.rounds import INPUT_REQUIRED, NOBODY_HERE, CannotAsk, in_rounds
from callgate.tools.kinds.mcp.session import Link, Session
from callgate.tools.kinds.mcp.stdio import StdioLink
from callgate.tools.kinds.mcp.wire import SESSION_FORGOTTEN, Forgotten, Gone, NotSent, RpcAnswer, Unreadable
from callgate.tools.source_schemas import SourceSchemas
from callgate.tools.source_supervisor import CannotOpen, MustRenew

TOOLS_AT_ONCE = 20
"""Descriptions that are read between two turns of the event loop."""

REOPEN_SECONDS = 10.0
"""How long a call waits for a new session when the server has lost the old one."""
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """A server's settings in the config."""

    name: str
    transport: StdioSpec | HttpSpec
    prefix: str
    """The prefix for the names of its tools; empty for none."""
    allowed_tools: tuple[str, ...] | None = None
    policy: Policy = DEFAULT_POLICY
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """The operator's policy, which takes precedence over the server's annotations."""
    modes: frozenset[Mode] = frozenset()
    """The ways in which it may ask a person while a tool runs."""


class McpSource:
    """The source of one server's tools."""

    kind = "mcp"

    def __init__(self, spec: ServerSpec, web: Web, pins: Pins | None = None, parsers: ParserPool | None = None) -> None:
        """`parsers` compiles the schemas of its tools first, where these are many or large."""
        self.name = spec.name
        self._schemas = SourceSchemas(spec.name, parsers or ParserPool())
        self._spec = spec
        self._web = web
        self._pins = pins or Pins()
        self._session: Session | None = None
        self._tools: tuple[Tool, ...] = ()
        self._reopened = asyncio.Event()
        self._renewing = False
        """Whether a running server is getting a new session, for which calls wait."""
        self._speaks_sse = False

    @property
    def prefix(self) -> str:
        return self._spec.prefix

    async def open(self) -> None:
        link = self._link()
        try:
            self._session = await self._open_session(link)
        except CannotOpen as refusal:
            if not (isinstance(link, HttpLink) and link.may_be_older):
                raise
            # The protocol's fallback to SSE for a URL that refuses POST. If that fails too, the first failure is raised.
            try:
                session = await self._open_session(SseLink(link.spec, self._web))
            except CannotOpen:
                raise refusal from None
            self._speaks_sse = True
            self._session = session
        finally:
            self._renewing = False
            self._reopened.set()

    def tools(self) -> tuple[Tool, ...]:
        return self._tools

    async def lost(self) -> str:
        assert self._session is not None, "only an open source can be lost"
        why = await self._session.lost()
        if why == SESSION_FORGOTTEN:
            self._renewing = True
            raise MustRenew
        return why

    async def close(self) -> None:
        session = self._session
        self._session = None
        self._reopened.clear()
        if session is not None:
            await session.close()

    async def call(self, tool: Descriptor, arguments: Mapping[str, Any], context: CallContext) -> RpcAnswer:
        """Call a tool, and answer what it asks a person meanwhile."""
        params = {"name": tool.name, "arguments": arguments}
        if not self._spec.modes:
            answer = await self._send(params, context, None, direct=tool.direct)
            if answer.result is not None and answer.result.kind == INPUT_REQUIRED:
                raise CannotAsk(NOBODY_HERE)
            return answer
        asking = Elicitations(self.name, self._spec.modes, context.ask)

        async def send(more: Mapping[str, Any]) -> RpcAnswer:
            return await self._send({**params, **more}, context, asking, direct=tool.direct)

        return await in_rounds(send, asking)

    async def _send(
        self, params: Mapping[str, Any], context: CallContext, asking: Elicitations | None, *, direct: bool
    ) -> RpcAnswer:
        """Send a request; a second time on a new session, where the server only refused the old one."""
        session = self._session or await self._renewed(None)
        try:
            answer = await session.call(params, context.report, direct=direct, elicitations=asking)
        except Forgotten:
            self._renewing = self._renewing or self._session is session
            session = await self._renewed(session)
            return await session.call(params, context.report, direct=direct, elicitations=asking)
        if answer.error is not None and answer.error.code == types.HEADER_MISMATCH and direct:
            # Refused for its format, before anything ran; the SDK supports other versions.
            return await session.call(params, context.report, direct=False, elicitations=asking)
        return answer

    async def _renewed(self, old: Session | None) -> Session:
        """Wait for the session after this one. Raises `NotSent` where none is being opened, or that fails."""
        async with asyncio.timeout(REOPEN_SECONDS):
            while self._session is None or self._session is old:
                if not self._renewing:
                    raise NotSent
                self._reopened.clear()
                await self._reopened.wait()
        return self._session

    def _link(self) -> Link:
        match self._spec.transport:
            case StdioSpec() as spec:
                return StdioLink(spec)
            case HttpSpec() as spec if spec.sse or self._speaks_sse:
                return SseLink(spec, self._web)
            case HttpSpec() as spec:
                return HttpLink(spec, self._web)

    async def _open_session(self, link: Link) -> Session:
        session = Session(link, self._listed, self._spec.modes)
        await session.open()
        return session

    async def _listed(self, tools: tuple[types.Tool, ...]) -> None:
        spec = self._spec
        descriptors: list[Descriptor] = []
        for place, tool in enumerate(tools):
            if place % TOOLS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if is_callable(tool) and is_allowed(tool.name, spec.allowed_tools):
                descriptors.append(described(tool))
        described_tools: list[Tool] = []
        for start in range(0, len(descriptors), TOOLS_AT_ONCE):
            await asyncio.sleep(0)
            pinned = self._pins.look(spec.name, descriptors[start : start + TOOLS_AT_ONCE])
            described_tools += map(self._tool, pinned)
        self._pins.save()
        try:
            tools_of_server = await self._schemas.compile(described_tools)
        except ParserFailed as failure:
            raise CannotOpen(f"the schemas of its tools cannot be read: {failure}") from None
        if tools_of_server != self._tools:
            self._tools = tools_of_server

    def _tool(self, descriptor: Descriptor) -> Tool:
        spec = self._spec
        suggested: dict[str, Any] = {}
        if descriptor.safety is not None:
            suggested = {"safety": descriptor.safety, "safety_is_given": True}
        policy = replace(spec.policy, **{**suggested, **spec.overrides})
        return Tool(
            name=descriptor.name,
            description=descriptor.description,
            parameters=descriptor.parameters,
            executor=McpTool(self, descriptor, read_only=policy.safety is Safety.READ_ONLY),
            policy=policy,
            kind="mcp",
            source=spec.name,
            claimed=prefixed(spec.prefix, descriptor.name),
            output_schema=descriptor.output_schema,
            asks=bool(spec.modes),
        )


@dataclass(frozen=True, slots=True)
class McpTool:
    """Runs calls of one tool of a server."""

    server: McpSource
    descriptor: Descriptor
    read_only: bool

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        try:
            answer = await self.server.call(self.descriptor, call.arguments, context)
            return outcome_of(answer, with_structured=context.wants_structured)
        except Unreadable as error:
            return Failed(str(error))
        except CannotAsk as error:
            return Failed(str(error), FailureKind.REFUSED)
        except TimeoutError:
            return self._unavailable()
        except Gone as gone:
            if not gone.sent:
                return self._unavailable()
            if self.read_only:
                return Failed(
                    f"The tool's server, {self.server.name}, went away while the tool ran.", FailureKind.UNAVAILABLE
                )
            return Failed(
                f"The tool's server, {self.server.name}, went away while the tool ran. "
                "What the tool should do may or may not have happened.",
                FailureKind.UNKNOWN,
            )

    def _unavailable(self) -> Failed:
        return Failed(
            f"Not run: the tool's server, {self.server.name}, cannot be reached at the moment. Try again later, or go on without it.",
            FailureKind.UNAVAILABLE,
        )


def prefixed(prefix: str, name: str) -> str:
    """Add a prefix: `github` and `search` make `github_search`; a name with the prefix is kept."""
    if not prefix or name.startswith(f"{prefix}_"):
        return name
    return f"{prefix}_{name}"


def legal_prefix(server: str) -> str:
    """Return a server's name as a legal prefix."""
    return _ILLEGAL.sub("_", server).strip("_")
