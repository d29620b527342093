"""An MCP server that everybody uses as himself: one source for the registry, and one session for each identity behind it.

Each identity has its own session, its own list of tools and its own pins. What any of them was listed is registered, once for each name;
whose list does not have a tool is neither offered it nor may call it. Which identity a call has is decided by whose request it belongs to.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from callgate.callers.caller import Principal
from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.calls.states import ReadyCall
from callgate.parsers.pool import ParserPool
from callgate.tools.executor import CallContext, Safety, Tool
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp.authorization import Identity, NeedsLogin
from callgate.tools.kinds.mcp.identities import NoIdentity, visitor_of
from callgate.tools.kinds.mcp.login_wait import after_login
from callgate.tools.kinds.mcp.pins import Pins
from callgate.tools.kinds.mcp.sender import OPERATORS, Visitor
from callgate.tools.kinds.mcp.server import McpSource, ServerSpec, prefixed, unavailable
from callgate.tools.kinds.mcp.visitors import IDLE_SECONDS, MAX_SESSIONS, VisitorSessions
from callgate.tools.kinds.mcp.wire import Gone
from callgate.tools.source_schemas import compile_at_once
from callgate.tools.source_supervisor import CannotOpen

MAX_LISTS: Final = 1024
"""Identities whose lists of tools are remembered after their sessions are closed."""
KNOWN_AT_START: Final = 4
"""Identities as which the tools are listed at the start, where the operator is not logged in himself."""
LOGIN: Final = "login"
NOTHING: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}
NOT_LISTED: Final = "Not run: the tool's server does not have this tool for who asks. Go on without it."
OTHER_SCHEMA: Final = "Not run: for who asks, the tool's server describes this tool otherwise: expected {expected} at {pointer}, got {got}."

STRICTNESS: Final = (Safety.READ_ONLY, Safety.WRITE, Safety.DESTRUCTIVE)

Link: TypeAlias = Callable[[str, Identity], str]
"""Returns where an identity logs in to a server."""
Known: TypeAlias = Callable[[], Awaitable[Sequence[Identity]]]
"""Returns the identities that are logged in."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """What somebody was listed."""

    tools: tuple[Tool, ...]
    by_name: Mapping[str, Tool]


class IdentitySource:
    """The source of one server's tools, for callers who are themselves there."""

    kind = "mcp"

    def __init__(
        self,
        spec: ServerSpec,
        web: Web,
        pins: Pins | None = None,
        parsers: ParserPool | None = None,
        *,
        list_known: Known | None = None,
        link: Link | None = None,
        most: int = MAX_SESSIONS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """`list_known`: returns who is logged in. `link`: where a user without a key logs in."""
        self.name = spec.name
        self._spec = spec
        self._pins = pins or Pins()
        self._list_known = list_known
        self._link = link
        self._listing: asyncio.Task[None] | None = None
        self._listing_anew: set[asyncio.Task[None]] = set()
        self._make = partial(McpSource, spec, web, self._pins, parsers)
        self._sessions = VisitorSessions(self._source_for, most=most, idle_seconds=idle_seconds)
        self._lists: OrderedDict[Visitor, _Listed] = OrderedDict()
        """What each was listed the last time; the one who came the longest ago first."""
        self._logins: dict[Identity, int] = {}
        """How often each has logged in as somebody else, or out."""
        self._tools: tuple[Tool, ...] = ()
        self._introduction = ""
        self._login = self._login_tool()

    @property
    def prefix(self) -> str:
        return self._spec.prefix

    async def open(self) -> None:
        """List the tools, as the operator or as somebody who is logged in. Without either they are listed by the first call."""
        try:
            await self._list_as(OPERATORS)
        except NeedsLogin:
            await self._list_as_anybody()
        self._unite()

    def list_again(self) -> None:
        """List the tools, where nobody was listed any so far: somebody has logged in."""
        if not self._lists and (self._listing is None or self._listing.done()):
            self._listing = asyncio.create_task(self._list_as_anybody(), name=f"tools of {self.name}")

    def begin_anew(self, identity: Hashable) -> None:
        """Forget the session and the kept results of an identity, whose login is another by now, or is no more; list its tools again."""
        known = {*self._sessions.visitors(), *self._lists}
        visitors = [visitor for visitor in known if visitor.identity == identity]
        self._sessions.leave(visitors)
        for visitor in visitors:
            self._logins[visitor.identity] = self._logins.get(visitor.identity, 0) + 1
            if not visitor.forwarded:
                task = asyncio.create_task(self._list_anew(visitor), name=f"tools of {self.name}")
                self._listing_anew.add(task)
                task.add_done_callback(self._listing_anew.discard)

    async def _list_anew(self, visitor: Visitor) -> None:
        with contextlib.suppress(NeedsLogin, CannotOpen, Gone):
            await self._list_as(visitor)

    async def _list_as_anybody(self) -> None:
        """List the tools as somebody who is logged in."""
        for identity in await self._logged_in():
            with contextlib.suppress(NeedsLogin, CannotOpen, Gone):
                await self._list_as(Visitor(identity))
                return

    def tools(self) -> tuple[Tool, ...]:
        return self._tools

    def introduction(self) -> str:
        return self._introduction

    def held_back(self) -> tuple[tuple[str, str], ...]:
        mine = (self.name, f"{self.name} as ")
        held_tools = [tool for tool in self._pins.held() if tool.server == mine[0] or tool.server.startswith(mine[1])]
        return tuple((prefixed(self.prefix, tool.name), tool.reason) for tool in held_tools)

    async def close(self) -> None:
        listing = [*self._listing_anew, *([self._listing] if self._listing is not None else [])]
        for task in listing:
            task.cancel()
        if listing:
            await asyncio.wait(listing)
        await self._sessions.close()

    # Who asks -------------------------------------------------------------------------------------

    def visitor_of(self, principal: Principal) -> Visitor:
        """Return as whom a call is made. Raises `NoIdentity`."""
        return visitor_of(self.name, self._spec.per, self._spec.forwards, principal)

    def identify(self, principal: Principal) -> str:
        """Return what the results of a call depend on beside its arguments."""
        try:
            visitor = self.visitor_of(principal)
            return repr((visitor, self._logins.get(visitor.identity, 0)))
        except NoIdentity as nobody:
            return str(nobody)

    def unlisted(self, principal: Principal) -> frozenset[str]:
        """Return the tools that the server does not list for who asks, by its own names; none as long as that is not known."""
        try:
            visitor = self.visitor_of(principal)
        except NoIdentity:
            return frozenset()
        if visitor not in self._lists:
            return frozenset()
        return frozenset(tool.name for tool in self._tools) - self._lists[visitor].by_name.keys()

    # Calls ----------------------------------------------------------------------------------------

    async def run(self, tool: Tool, call: ReadyCall, context: CallContext) -> Outcome:
        """Run a call of a tool as who asks."""
        return await self._as_who_asks(partial(self._run, tool, call, context), context)

    async def log_in(self, context: CallContext) -> Outcome:
        """Log in who asks, and list his tools."""

        async def list_tools(visitor: Visitor) -> Outcome:
            await self._list_as(visitor)
            names = ", ".join(prefixed(self.prefix, name) for name in self._lists[visitor].by_name)
            return Returned(f"Logged in at {self.name}. Its tools can be used from the next message on: {names}.")

        return await self._as_who_asks(list_tools, context)

    async def _as_who_asks(self, run: Callable[[Visitor], Awaitable[Outcome]], context: CallContext) -> Outcome:
        try:
            visitor = self.visitor_of(context.principal)
        except NoIdentity as nobody:
            return Failed(str(nobody), FailureKind.REFUSED)
        linked = partial(self._linked, run, visitor)
        try:
            try:
                return await linked()
            except NeedsLogin as needs_login:
                return await after_login(
                    needs_login,
                    linked,
                    self._spec.authorization,
                    visitor.identity,
                    self.name,
                    self._spec.modes,
                    context,
                )
        except (CannotOpen, Gone, TimeoutError):
            return unavailable(self.name)

    async def _linked(self, run: Callable[[Visitor], Awaitable[Outcome]], visitor: Visitor) -> Outcome:
        """Run something; where a user has to log in, who has no key for the page, give him an address of his own."""
        try:
            return await run(visitor)
        except NeedsLogin as needs_login:
            if self._link is None or not visitor.identity.user or not needs_login.address:
                raise
            address = self._link(self.name, visitor.identity)
            words = f"The tool's server {self.name} wants a login of this user."
            raise NeedsLogin(words, address=address) from needs_login

    async def _run(self, tool: Tool, call: ReadyCall, context: CallContext, visitor: Visitor) -> Outcome:
        async with self._sessions.use(visitor) as source:
            self._remember(visitor, source)
            own = self._lists[visitor].by_name.get(tool.name)
            if own is None:
                return Failed(NOT_LISTED, FailureKind.REFUSED)
            if own.parameters != tool.parameters and (flaw := own.check(dict(call.arguments))) is not None:
                text = OTHER_SCHEMA.format(expected=flaw.expected, pointer=flaw.pointer or "/", got=flaw.got)
                return Failed(text, FailureKind.REFUSED)
            return await own.executor.execute(call, context)

    async def _list_as(self, visitor: Visitor) -> None:
        async with self._sessions.use(visitor) as source:
            self._remember(visitor, source)

    async def _logged_in(self) -> Sequence[Identity]:
        if self._list_known is None:
            return ()
        return (await self._list_known())[:KNOWN_AT_START]

    # What they were listed ------------------------------------------------------------------------

    def _source_for(self, visitor: Visitor) -> McpSource:
        return self._make(visitor)

    def _remember(self, visitor: Visitor, source: McpSource) -> None:
        """Take note of what somebody is listed now."""
        self._introduction = self._introduction or source.introduction()
        tools = source.tools()
        listed = self._lists.get(visitor)
        if listed is None or listed.tools is not tools:
            self._lists[visitor] = _Listed(tools, {tool.name: tool for tool in tools})
            self._unite()
        self._lists.move_to_end(visitor)
        if len(self._lists) > MAX_LISTS:
            self._lists.popitem(last=False)
            self._unite()

    def _unite(self) -> None:
        """Register what anybody was listed, each tool with the strictest class that anybody was told."""
        united: dict[str, Tool] = {}
        for listed in self._lists.values():
            for tool in listed.tools:
                united_tool = united.setdefault(tool.name, tool)
                if STRICTNESS.index(tool.policy.safety) > STRICTNESS.index(united_tool.policy.safety):
                    united[tool.name] = replace(united_tool, policy=tool.policy)
        self._tools = tuple(self._registered(tool) for tool in united.values()) or (self._login,)

    def _registered(self, tool: Tool) -> Tool:
        return replace(tool, executor=ToolOfWhoAsks(self, tool), asks=bool(self._spec.modes), identify=self.identify)

    def _login_tool(self) -> Tool:
        """Return the tool that stands for all, as long as nobody was listed any."""
        about = (
            f"Connects the person who asks with {self.name}, whose tools are there after a login. Call it when something of"
            f" {self.name} is wanted."
        )
        [tool] = compile_at_once(
            [
                Tool(
                    name=LOGIN,
                    description=about,
                    parameters=NOTHING,
                    executor=LoginOfWhoAsks(self),
                    policy=replace(self._spec.policy, safety=Safety.READ_ONLY, safety_is_given=True),
                    kind="mcp",
                    source=self.name,
                    claimed=prefixed(self.prefix, LOGIN),
                    asks=bool(self._spec.modes),
                    identify=self.identify,
                )
            ]
        )
        return tool


@dataclass(frozen=True, slots=True)
class ToolOfWhoAsks:
    """Runs calls of one tool of a server, each as who asks."""

    server: IdentitySource
    tool: Tool

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        return await self.server.run(self.tool, call, context)


@dataclass(frozen=True, slots=True)
class LoginOfWhoAsks:
    """Logs in who asks."""

    server: IdentitySource

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        return await self.server.log_in(context)
