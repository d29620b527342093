"""An MCP server as a source of tools: one session for all requests, opened again when it is lost.

`registry` keeps the source open and names its tools; `mcp_session` has the session. This module makes tools of the server's
list, and outcomes of its answers.
"""

import asyncio
import re
from collections.abc import Awaitable, Coroutine, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
import msgspec
import structlog
from msgspec.structs import replace

from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.states import ReadyCall
from callgate.calls.unseen import visible
from callgate.conversation.ports import ProgressReport
from callgate.parsers.jobs import ParserFailed
from callgate.parsers.pool import ParserPool
from callgate.tools.executor import DEFAULT_POLICY, CallContext, Executor, Policy, Safety, Tool
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp.authorization import OPERATOR, Authorization, NeedsLogin
from callgate.tools.kinds.mcp.descriptors import Descriptor, described, is_allowed, is_callable
from callgate.tools.kinds.mcp.elicitation import Elicitations, Mode
from callgate.tools.kinds.mcp.http import HttpLink, HttpSpec, SseLink
from callgate.tools.kinds.mcp.identities import Per, place_of
from callgate.tools.kinds.mcp.pins import Holds, PinMode, Pins, what_is_held
from callgate.tools.kinds.mcp.process import StdioSpec
from callgate.tools.kinds.mcp.results import for_user, outcome_fast, outcome_of
from callgate.tools.kinds.mcp.rounds import CannotAsk, in_rounds
from callgate.tools.kinds.mcp.sender import OPERATORS, Sender, Visitor
from callgate.tools.kinds.mcp.session import Link, ResourceList, Session
from callgate.tools.kinds.mcp.stdio import StdioLink
from callgate.tools.kinds.mcp.wire import (
    CALL,
    READ,
    SESSION_FORGOTTEN,
    Forgotten,
    Gone,
    NotSent,
    RpcAnswer,
    RpcError,
    ServerRequest,
    Unreadable,
)
from callgate.tools.questions import AskPerson
from callgate.tools.source_schemas import SourceSchemas
from callgate.tools.source_supervisor import CannotOpen, MustRenew

TOOLS_AT_ONCE = 20
"""Descriptions that are read between two turns of the event loop, if they are small."""
BYTES_AT_ONCE = 256 * 1024
"""The length of them."""

READER = "read_resource"
"""The name at its server of the tool that reads resources, unless the server has one of that name itself."""
URI: Mapping[str, Any] = {
    "type": "object",
    "properties": {"uri": {"type": "string", "minLength": 1, "maxLength": 2_000}},
    "required": ["uri"],
    "additionalProperties": False,
}
HELD = "Not run: this tool is not what it was when it was accepted, and is held back until the operator of the server has looked at it."
MAX_FOR_USER = 16_384
"""Characters of what is for the user alone that are recorded."""
REOPEN_SECONDS = 10.0
"""How long a call waits for a new session when the server has lost the old one."""
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]+")
log = structlog.get_logger("callgate.tools")


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
    resources: bool = True
    """Whether its resources can be read."""
    per: Per = "server"
    """Whose identity its requests have."""
    authorization: Authorization | None = None
    """Authorizes its requests, where it wants that."""
    forwards: Mapping[str, str] = field(default_factory=dict)
    """The request's header for each header that is sent on to it."""
    pins: PinMode | None = None
    """What becomes of a tool that is new or different; by default held if it may write, where it is remembered what it was."""


class McpSource:
    """The source of one server's tools."""

    kind = "mcp"

    def __init__(
        self,
        spec: ServerSpec,
        web: Web,
        pins: Pins | None = None,
        parsers: ParserPool | None = None,
        visitor: Visitor = OPERATORS,
    ) -> None:
        """`parsers` compiles the schemas of its tools first, where these are many or large. `visitor`: as whom it is asked."""
        self.name = spec.name
        self._pinned_as = place_of(spec.name, visitor)
        self._sender: Sender | None = None
        """As whom it is asked, where it is told that."""
        if spec.authorization is not None or visitor.forwarded:
            self._sender = Sender(server=spec.name, visitor=visitor, authorization=spec.authorization)
        self._schemas = SourceSchemas(spec.name, parsers or ParserPool())
        self._spec = spec
        self._web = web
        self._pins = pins or Pins()
        self._session: Session | None = None
        self._listed_tools: tuple[tuple[str, Tool], ...] = ()
        """All of them with the server's own names, those that are held too."""
        self._tools: tuple[Tool, ...] = ()
        self.reader = ""
        """What models call the tool that reads its resources; empty where it has none."""
        self._pins_seen = self._pins.generation
        self._has_said = False
        """Whether it was said what becomes of tools that are different."""
        self._reopened = asyncio.Event()
        self._renewing = False
        """Whether a running server is getting a new session, for which calls wait."""
        self._speaks_sse = False
        self._logins = 0
        """How often its operator has logged in as somebody else, or out."""
        self._begins_anew = False
        """Whether its session ends with the calls that are under way, for another."""
        self._under_way = 0
        self.needs_login: NeedsLogin | None = None
        """Why it could not be opened, where that was because nobody is logged in."""

    @property
    def prefix(self) -> str:
        return self._spec.prefix

    def begin_anew(self, identity: Hashable) -> None:
        """Forget the session and the kept results, once no call needs them: the operator's login is another by now, or is no more."""
        if self._spec.per != "server" or self._spec.authorization is None or identity != OPERATOR:
            return
        self._logins += 1
        self._begins_anew = True
        self._end_where_quiet()

    def _end_where_quiet(self) -> None:
        if self._begins_anew and not self._under_way and self._session is not None:
            self._begins_anew = False
            self._renewing = True
            self._session.forget()

    def _login(self) -> int:
        return self._logins

    async def open(self) -> None:
        self._begins_anew = False
        link = self._link()
        try:
            self._session = await self._open_session(link)
            self.needs_login = None
        except CannotOpen as refusal:
            self.needs_login = link.needs_login
            if isinstance(link, HttpLink | SseLink) and link.challenges and self._spec.authorization is None:
                raise CannotOpen(await self._with_login_hint(str(refusal), link)) from None
            if not (isinstance(link, HttpLink) and link.may_be_older):
                raise
            # The protocol's fallback to SSE for a URL that refuses POST. If that fails too, the first failure is raised.
            try:
                session = await self._open_session(SseLink(link.spec, self._web, self._sender))
            except CannotOpen:
                raise refusal from None
            self._speaks_sse = True
            self._session = session
        finally:
            self._renewing = False
            self._reopened.set()

    async def _with_login_hint(self, refusal: str, link: HttpLink | SseLink) -> str:
        """Say what the entry of a server lacks that wants a login."""
        from callgate.tools.kinds.mcp.oauth.hint import login_hint

        words = await login_hint(self._web, link.spec.rules, link.spec.url, link.challenges)
        return f"{refusal}: {words}" if words else refusal

    def tools(self) -> tuple[Tool, ...]:
        if self._pins.generation != self._pins_seen:
            self._offer()
        return self._tools

    def held_back(self) -> tuple[tuple[str, str], ...]:
        return tuple((prefixed(self.prefix, tool.name), tool.reason) for tool in self._pins.held(self._pinned_as))

    def is_held(self, name: str) -> bool:
        """Return whether a tool is held by now: chats that began before still have it."""
        return self._pins.is_held(self._pinned_as, name)

    def introduction(self) -> str:
        """Return the server's instructions. Nothing compares them with what they were, so that `pins: hold` leaves them out."""
        if self._session is None or self._spec.pins == "hold":
            return ""
        return self._session.instructions

    def _offer(self) -> None:
        """Offer all tools but those that are held."""
        self._pins_seen = self._pins.generation
        tools = tuple(tool for name, tool in self._listed_tools if not self._pins.is_held(self._pinned_as, name))
        if tools != self._tools:
            self._tools = tools

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

    def ask(self, request: ServerRequest, person: AskPerson | None) -> Coroutine[Any, Any, RpcAnswer]:
        """Call a tool or read a resource, and answer what that asks a person meanwhile."""
        if not self._spec.modes:
            return self._send(request)
        asking = Elicitations(self.name, self._spec.modes, person)

        def send(answers: Mapping[str, Any]) -> Awaitable[RpcAnswer]:
            return self._send(
                msgspec.structs.replace(request, params={**request.params, **answers}, elicitations=asking)
            )

        return in_rounds(send, asking)

    async def _send(self, request: ServerRequest) -> RpcAnswer:
        """Send a request; a second time on a new session, where the server only refused the old one."""
        self._under_way += 1
        try:
            if self._session is None and self.needs_login is not None:
                raise self.needs_login
            session = self._session or await self._renewed(None)
            try:
                answer = await session.call(request)
            except Forgotten:
                self._renewing = self._renewing or self._session is session
                session = await self._renewed(session)
                return await session.call(request)
            if answer.error is not None and _is_for_sdk(answer.error, request):
                return await session.call(msgspec.structs.replace(request, is_direct=False))
            return answer
        finally:
            self._under_way -= 1
            self._end_where_quiet()

    async def _renewed(self, old: Session | None) -> Session:
        """Wait for the session after this one. Raises `NotSent` where none is being opened, or that fails, and
        `NeedsLogin` where it fails for that."""
        async with asyncio.timeout(REOPEN_SECONDS):
            while self._session is None or self._session is old:
                if not self._renewing:
                    raise self.needs_login or NotSent
                self._reopened.clear()
                await self._reopened.wait()
        return self._session

    def _link(self) -> Link:
        match self._spec.transport:
            case StdioSpec() as spec:
                return StdioLink(spec)
            case HttpSpec() as spec if spec.sse or self._speaks_sse:
                return SseLink(spec, self._web, self._sender)
            case HttpSpec() as spec:
                return HttpLink(spec, self._web, self._sender)

    async def _open_session(self, link: Link) -> Session:
        session = Session(link, self._listed, self._spec.modes)
        await session.open()
        return session

    async def _listed(self, tools: tuple[types.Tool, ...], resources: ResourceList | None = None) -> None:
        spec = self._spec
        pins = self._pins
        holds = self._holds()
        names: list[str] = []
        described_tools: list[Tool] = []
        for part in parts_of(tools):
            descriptors = [described(tool) for tool in part if is_callable(tool)]
            await asyncio.sleep(0)
            allowed = [tool for tool in descriptors if is_allowed(tool.name, spec.allowed_tools)]
            # What is not allowed is remembered too: when the operator allows it one day, it is known from the first list on.
            others = [tool for tool in descriptors if tool not in allowed]
            pins.look(self._pinned_as, others, told=False)
            pinned = pins.look(self._pinned_as, allowed, holds, told=spec.pins != "off")
            names += [tool.name for tool in pinned]
            described_tools += map(self._tool, pinned)
            await asyncio.sleep(0)
        pins.listed(self._pinned_as, frozenset(names))
        try:
            tools_of_server = await self._schemas.compile(described_tools)
        except ParserFailed as failure:
            raise CannotOpen(f"the schemas of its tools cannot be read: {failure}") from None
        listed = tuple(zip(names, tools_of_server, strict=True))
        if resources is not None and (reader := self._resource_tool(resources, frozenset(names))) is not None:
            listed = (*listed, (reader.name, reader))
        self._listed_tools = listed
        self._offer()

    def _resource_tool(self, resources: ResourceList, names: frozenset[str]) -> Tool | None:
        """Return the tool that reads the server's resources; None where it is not allowed."""
        spec = self._spec
        name = READER if READER not in names else f"callgate_{READER}"
        self.reader = ""
        if not (spec.resources and is_allowed(name, spec.allowed_tools)):
            return None
        claimed = prefixed(spec.prefix, name)
        self.reader = claimed
        policy = replace(spec.policy, **{"safety": Safety.READ_ONLY, "safety_is_given": True, **spec.overrides})
        return Tool(
            name=name,
            description=about_resources(spec.name, resources, named=spec.pins != "hold"),
            parameters=URI,
            executor=self._after_login(McpResources(self)),
            policy=policy,
            kind="mcp",
            source=spec.name,
            claimed=claimed,
            asks=bool(spec.modes),
            title="Read a resource",
        )

    def _after_login(self, executor: Executor) -> Executor:
        """Return an executor whose calls wait for the operator's login, or say that it is missing, where there is one."""
        spec = self._spec
        if spec.authorization is None or spec.per != "server":
            return executor
        from callgate.tools.kinds.mcp.login_wait import AfterLogin

        return AfterLogin(executor, spec.authorization, OPERATOR, spec.name, spec.modes)

    def _holds(self) -> Holds | None:
        """Return which tools are held if they are new or different: none of the first list that is seen."""
        which = what_is_held(self._spec.pins, are_kept=self._pins.are_kept)
        if not self._has_said:
            self._has_said = True
            log.info("tools_pinned", server=self.name, pins=self._spec.pins or "default", held=which)
        if which == "none" or not self._pins.knows(self._pinned_as):
            return None
        if which == "all":
            return lambda descriptor: True
        return lambda descriptor: self._policy(descriptor).safety is not Safety.READ_ONLY

    def _policy(self, descriptor: Descriptor) -> Policy:
        suggested: dict[str, Any] = {}
        if descriptor.safety is not None:
            suggested = {"safety": descriptor.safety, "safety_is_given": True}
        return replace(self._spec.policy, **{**suggested, **self._spec.overrides})

    def _tool(self, descriptor: Descriptor) -> Tool:
        spec = self._spec
        policy = self._policy(descriptor)
        return Tool(
            name=descriptor.name,
            description=descriptor.description,
            parameters=descriptor.parameters,
            executor=self._after_login(McpTool(self, descriptor, read_only=policy.safety is Safety.READ_ONLY)),
            policy=policy,
            kind="mcp",
            source=spec.name,
            claimed=prefixed(spec.prefix, descriptor.name),
            output_schema=descriptor.output_schema,
            asks=bool(spec.modes),
            login=self._login if spec.per == "server" and spec.authorization is not None else None,
            title=descriptor.title,
        )


@dataclass(frozen=True, slots=True)
class McpTool:
    """Runs calls of one tool of a server."""

    server: McpSource
    descriptor: Descriptor
    read_only: bool

    def execute(self, call: ReadyCall, context: CallContext) -> Coroutine[Any, Any, Outcome]:
        tool = self.descriptor
        if self.server.is_held(tool.name):
            return _held()
        params = {"name": tool.name, "arguments": call.arguments}
        request = ServerRequest(CALL, params, context.report, tool.direct)
        return _outcome(self.server, request, context, read_only=self.read_only)


@dataclass(frozen=True, slots=True)
class McpResources:
    """Reads resources of a server."""

    server: McpSource

    def execute(self, call: ReadyCall, context: CallContext) -> Coroutine[Any, Any, Outcome]:
        request = ServerRequest(READ, {"uri": call.arguments["uri"]}, context.report)
        return _outcome(self.server, request, context, read_only=True)


async def _held() -> Outcome:
    return Failed(HELD, FailureKind.REFUSED)


async def _outcome(server: McpSource, request: ServerRequest, context: CallContext, *, read_only: bool) -> Outcome:
    """Return what came of a request. Raises `NeedsLogin`."""
    try:
        answer = await server.ask(request, context.ask)
        if not (context.wants_structured or context.for_client):
            text = outcome_fast(answer)
            if text is not None:
                return text
        result = answer.result
        is_annotated = result is not None and any(piece.annotations is not None for piece in result.content)
        if is_annotated and (text_for_user := for_user(answer)):
            await context.report(
                ProgressReport("a part of the result is for the user only", answer=text_for_user[:MAX_FOR_USER])
            )
        return outcome_of(
            answer,
            with_structured=context.wants_structured or context.for_client,
            with_files=context.for_client,
            reader=server.reader,
        )
    except Unreadable as error:
        return Failed(str(error))
    except CannotAsk as error:
        return Failed(str(error), FailureKind.REFUSED)
    except TimeoutError:
        return unavailable(server.name)
    except Gone as gone:
        if not gone.sent:
            return unavailable(server.name)
        if read_only:
            return Failed(f"The tool's server, {server.name}, went away while the tool ran.", FailureKind.UNAVAILABLE)
        return Failed(
            f"The tool's server, {server.name}, went away while the tool ran. "
            "What the tool should do may or may not have happened.",
            FailureKind.UNKNOWN,
        )


def _is_for_sdk(error: RpcError, request: ServerRequest) -> bool:
    """Return whether a call was refused for its format, before anything ran: the SDK supports other versions."""
    return error.code == types.HEADER_MISMATCH and request.is_direct and request.method == CALL


def unavailable(server: str) -> Failed:
    return Failed(
        f"Not run: the tool's server, {server}, cannot be reached at the moment. Try again later, or go on without it.",
        FailureKind.UNAVAILABLE,
    )


def about_resources(server: str, resources: ResourceList, *, named: bool) -> str:
    """Describe the tool that reads resources. `named`: say which there are, in words of the server's."""
    about = f"Reads a resource of the server {server} by its URI, as links in its results name it."
    if not named:
        return about
    listed = "; ".join(f"{visible(name)[:80]} ({visible(uri)[:200]})" for name, uri in resources.names)
    return f"{about} It has: {listed}{'.' if resources.is_whole else '; and more.'}"


def parts_of(tools: Sequence[types.Tool]) -> Iterator[list[types.Tool]]:
    """Split a list into parts that hold the event loop for a moment only."""
    part: list[types.Tool] = []
    size = 0
    for tool in tools:
        part.append(tool)
        size += size_of(tool)
        if len(part) == TOOLS_AT_ONCE or size > BYTES_AT_ONCE:
            yield part
            part = []
            size = 0
    if part:
        yield part


def size_of(tool: types.Tool) -> int:
    """Return about how long a description is."""
    return len(tool.description or "") + _size_of(tool.input_schema)


def _size_of(value: Any) -> int:
    match value:
        case str():
            return len(value)
        case dict():
            return sum(len(key) + _size_of(inner) for key, inner in value.items())
        case list():
            return sum(map(_size_of, value))
        case _:
            return 8


def prefixed(prefix: str, name: str) -> str:
    """Add a prefix: `github` and `search` make `github_search`; a name with the prefix is kept."""
    if not prefix or name.startswith(f"{prefix}_"):
        return name
    return f"{prefix}_{name}"


def legal_prefix(server: str) -> str:
    """Return a server's name as a legal prefix."""
    return _ILLEGAL.sub("_", server).strip("_")
