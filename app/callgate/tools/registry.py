"""The registry of all server tools, of the config and of sources, with legal and unique names.

Schemas are compiled and encoded here, once. A tool that cannot be used is listed with the reason, without affecting others; a
source that cannot be opened is listed and retried, and its tools appear when it is open.

Rules about a tool (approval, filters, limits) belong to its origin, which is its source and its name there. If two sources
claim one name, neither gets it, the clash is logged and listed, and the rules of both still apply. While a source has not
been open yet its names are unknown, so that until then a pattern with a name alone grants and exempts nothing of another
source, if the unopened one could claim that name too.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec
import structlog
from msgspec.structs import replace

from callgate.callers.caller import Principal
from callgate.calls.legal_names import MAX_STEM
from callgate.calls.offer import Check, OfferedTool
from callgate.calls.selection import OF_REQUESTS, ToolOrigin
from callgate.tools.approvals.rules import NO_RULE, ApprovalRule
from callgate.tools.concurrency import ConcurrencyLimits
from callgate.tools.executor import (
    HasHeld,
    HasIntroduction,
    HasLeftOut,
    HasPrefix,
    KnowsIdentities,
    Safety,
    Source,
    Tool,
    not_compiled,
)
from callgate.tools.schema import SchemaError, compile_schema
from callgate.tools.shaped_results import ResultRules, shaped
from callgate.tools.source_pool import SourcePool
from callgate.tools.source_supervisor import Delay, SourceState, SourceStatus, SourceSupervisor, reopening_delay
from callgate.tools.tool_filter import ToolFilter, is_glob, narrowed, spelt_out
from callgate.tools.tool_names import CONFIG, SHARE, Steps, ToolIdentity, ToolNames, at_once, claimed_name

if TYPE_CHECKING:  # imported with the first tool whose results are kept
    from callgate.tools.result_cache import ResultCache

FIRST_WAIT = 5.0
QUIET_SECONDS = 1.0
"""How long servers are opened before a line says so."""
"""How long a start waits for the first attempt to open every source; slower ones continue in the background."""
MAX_SCHEMA_BYTES = 262_144
"""The limit of one encoded tool, which is sent with every request."""
CONFIG_ADDRESS = "config"
"""The name of that source in addresses, which no other source may have."""

log = structlog.get_logger("callgate.tools")


class ToolAtSource(msgspec.Struct, frozen=True):
    """A tool by its name at the source, which is used in the source's entry in the config."""

    name: str
    address: str

    contested = False

    @property
    def claimed(self) -> str:
        return self.name


class RegisteredTool(msgspec.Struct, frozen=True):
    """A tool with its name and its origin."""

    tool: Tool
    """The tool with its final name and its compiled schema."""
    source: str
    """The name of its source; `CONFIG` for none."""
    original: str
    """Its name at the source."""
    address: str
    """`source/original`, for patterns of the config."""
    definition: msgspec.Raw
    """`{"type":"function",…}`, encoded."""
    offered: OfferedTool
    claimed: str
    """The name that it claims, which it gets unless another source claims it too."""
    contested: bool = False
    """Whether a source that has not been open yet may claim its name too."""

    @property
    def name(self) -> str:
        return self.offered.name

    def names(self) -> tuple[str, ...]:
        """Return all names that it has or claims."""
        return (self.name, self.original, self.address, self.claimed)

    def origin(self) -> ToolOrigin:
        read_only = self.tool.policy.safety is Safety.READ_ONLY
        return ToolOrigin(source=self.source, names=frozenset((self.name, self.original)), read_only=read_only)

    def at_source(self) -> "ToolAtSource":
        return ToolAtSource(self.original, self.address)

    def under(self, name: str) -> "RegisteredTool":
        """Return the tool with another name."""
        definition = encoded(name, self.tool.description, self.offered.parameters)
        return replace(self, definition=definition, offered=replace(self.offered, name=name))


class Quarantined(msgspec.Struct, frozen=True):
    """A tool that cannot be offered, with the reason."""

    name: str
    source: str
    reason: str
    is_held: bool = False
    """It could be, and waits until somebody accepts what it says of itself."""


class NameClash(msgspec.Struct, frozen=True):
    """A name that several tools claim, and the names that these got."""

    claimed: str
    names: tuple[tuple[str, str], ...]
    """The address and the name of each; an empty name for one that is missing at present."""

    def __str__(self) -> str:
        outcomes = []
        for origin, name in self.names:
            outcome = f"called {name}" if name else "not there now"
            outcomes.append(f"{origin} is {outcome}")
        return f"the name {self.claimed} is not given to all that ask for it: {', '.join(outcomes)}"


class _RegisteredSource(msgspec.Struct, frozen=True):
    """A source with the identity by which the pool knows it from an earlier registry."""

    identity: Hashable
    source: Source


SourceTools: TypeAlias = tuple[str, tuple[Tool, ...]]
"""A source by its name, with its current tools."""


class DescriptionJudge(Protocol):
    """Judges what tools say of themselves."""

    def apart(self) -> "DescriptionJudge":
        """Return one for the tools of a single request."""
        ...

    async def look(self, tools: Iterable[tuple[str, Tool]]) -> None:
        """Judge tools, each with the name of its source."""
        ...

    def judged(self, source: str, tool: Tool) -> Tool:
        """Return a tool as it may be offered. Raises `ValueError` with the reason where it may not."""
        ...


class Registry:
    """The tools of one runtime, opened and closed with it."""

    def __init__(
        self,
        *,
        limits: ConcurrencyLimits | None = None,
        delay: Delay = reopening_delay,
        on_status: Callable[[SourceStatus], None] | None = None,
        approval: ApprovalRule = NO_RULE,
        pool: SourcePool | None = None,
    ) -> None:
        """`approval`: the rule for tools without a setting in their entry or of their own.

        `pool` has sources that are open already; without one the registry opens all sources itself, with `delay` and
        `on_status`.
        """
        self.limits = limits or ConcurrencyLimits()
        self._approval = approval
        self._approval_of: dict[tuple[str, str] | str, ApprovalRule] = {}
        self._results_of: dict[tuple[str, str] | str, ResultRules] = {}
        if pool is None:
            self._pool = SourcePool(on_status, delay=delay)
        else:
            self._pool = pool
        self._sources: dict[str, _RegisteredSource] = {}
        self.knows_identities = False
        """Whether any source is used by each caller as himself."""
        self._config_tools: dict[str, Tool] = {}
        self._supervisors: dict[str, SourceSupervisor] = {}
        self._sorted_supervisors: list[tuple[str, SourceSupervisor]] = []
        self._given_back: set[str] = set()
        """The sources that were given back to the pool."""
        self._services: dict[str, Source] = {}
        self._open_services: dict[str, SourceSupervisor] = {}
        self._built_from: list[SourceTools] | None = None
        """The tools of the sources of which the attributes below were made."""
        self._indexing: asyncio.Task[None] | None = None
        """Builds them anew."""
        self._tools: tuple[RegisteredTool, ...] = ()
        self._quarantined: tuple[Quarantined, ...] = ()
        self._tools_by_name: dict[str, RegisteredTool] = {}
        self._clashes: tuple[NameClash, ...] = ()
        self._told_unruled: frozenset[str] = frozenset()
        """The tools of sources that the log has named as destructive and without a rule."""
        self._result_cache: ResultCache | None = None
        """Made with the first tool whose results are kept."""
        self._definitions: frozenset[bytes] = frozenset()
        self.untrusted: frozenset[str] = frozenset()
        """The tools whose results hold words of others, also those whose source is away by now: a history may have them."""
        self.description_judge: DescriptionJudge | None = None
        """Judges what tools say of themselves, where a guardrail looks at it."""
        self._names = ToolNames()
        self._checks: dict[bytes, Check] = {}
        """The compiled schemas of the current tools, by their encoded parameters."""

    def add(self, *tools: Tool, approval: ApprovalRule = NO_RULE, results: ResultRules | None = None) -> None:
        """Register tools of the config. Their names take precedence over those of sources."""
        for tool in tools:
            if tool.name in self._config_tools:
                raise ValueError(f"two tools are called {tool.name}: leave one out, or give it another name")
            self._config_tools[tool.name] = tool
            self._approval_of[CONFIG, tool.name] = approval
            if results is not None:
                self._results_of[CONFIG, tool.name] = results
            for service in tool.services:
                self._services.setdefault(service.name, service)
        self._built_from = None

    def add_source(
        self,
        source: Source,
        *,
        concurrency: int | None = None,
        is_here: bool = False,
        approval: ApprovalRule = NO_RULE,
        identity: Hashable | None = None,
        results: ResultRules | None = None,
    ) -> None:
        """Register a source, which is opened with the registry. `concurrency` limits the calls of all its tools together;
        `is_here`: each process has its own instance.

        If the pool has an open source with the same `identity`, that one is used and `source` is not opened.
        """
        if source.name in self._sources:
            raise ValueError(f"two sources are called {source.name!r}")
        if source.name in (CONFIG, CONFIG_ADDRESS) or f"{source.name}/".startswith(OF_REQUESTS):
            raise ValueError(
                f"{source.name!r} is no name for a source: it stands for the config's own tools, or for servers of requests"
            )
        for other in self._sources:
            if f"{other}/".startswith(f"{source.name}/") or f"{source.name}/".startswith(f"{other}/"):
                raise ValueError(f"the sources {other!r} and {source.name!r} cannot be told apart in `source/tool`")
        if identity is None:
            identity = object()
        self._sources[source.name] = _RegisteredSource(identity, source)
        self.knows_identities = self.knows_identities or isinstance(source, KnowsIdentities)
        self._approval_of[source.name] = approval
        if results is not None:
            self._results_of[source.name] = results
        self.limits.limit_source(source.name, concurrency, is_here=is_here)

    async def open(self, wait: float = FIRST_WAIT, only: Collection[str] | None = None) -> None:
        """Start to open all sources and services, or `only` some, and wait a while for their first attempts. Failures do not raise."""
        # Borrowed here and not in `add_source`, because a registry that is never opened is not closed either.
        for name, registered in self._sources.items():
            if name not in self._supervisors and (only is None or name in only):
                self._supervisors[name] = self._pool.borrow(registered.identity, registered.source)
        self._sorted_supervisors = sorted(self._supervisors.items(), key=itemgetter(0))
        for name, service in self._services.items():
            if name not in self._open_services and (only is None or name in only):
                self._open_services[name] = self._pool.borrow(_service_identity(name), service)
        to_open = (*self._supervisors.values(), *self._open_services.values())
        first_attempts = [asyncio.create_task(supervisor.tried()) for supervisor in to_open]
        if not first_attempts:
            return
        try:
            _, late = await asyncio.wait(first_attempts, timeout=min(wait, QUIET_SECONDS))
            if late:
                log.info("tool_servers_opening", servers=self._not_open(), seconds=wait)
                await asyncio.wait(late, timeout=wait - min(wait, QUIET_SECONDS))
        finally:
            for attempt in first_attempts:
                attempt.cancel()
            await asyncio.wait(first_attempts)
        await self.settle()

    def _not_open(self) -> list[str]:
        """Return the names of the sources and services that have not been tried yet."""
        opening = {**self._supervisors, **self._open_services}
        return sorted(name for name, supervisor in opening.items() if supervisor.status.state is SourceState.OPENING)

    async def close(self) -> None:
        """Give all sources and services back, concurrently. Those without other borrowers are closed."""
        if self._indexing is not None:
            self._indexing.cancel()
            await asyncio.wait({self._indexing})
        borrowed = [self._sources[name].identity for name in self._supervisors if name not in self._given_back]
        self._given_back |= set(self._supervisors)
        borrowed += map(_service_identity, self._open_services)
        self._open_services = {}
        await asyncio.gather(*(self._pool.give_back(identity) for identity in borrowed))

    async def settle(self) -> None:
        """Wait until the tools are those that the sources list. Long lists take a while, in which the event loop goes on."""
        if self._indexing is None and self._current() != self._built_from:
            self._indexing = asyncio.create_task(self._index(), name="index of tools")
        if self._indexing is not None:
            await asyncio.shield(self._indexing)

    async def screen_with(self, screen: DescriptionJudge) -> None:
        """Have what tools say of themselves judged, from now on before it is taken."""
        self.description_judge = screen
        self._built_from = None
        await self.settle()

    def tools(self) -> tuple[RegisteredTool, ...]:
        """Return all tools, sorted by name. Cheap while nothing changes; after a long list has changed, the ones of before until
        the new ones are ready."""
        self._refresh()
        return self._tools

    def is_complete(self) -> bool:
        """True if every source is open and its tools are here, so that a missing tool does not exist."""
        self._refresh()
        if self._indexing is not None:
            return False
        return len(self._supervisors) == len(self._sources) and all(
            supervisor.status.state is SourceState.READY for supervisor in self._supervisors.values()
        )

    def source_names(self) -> tuple[str, ...]:
        return tuple(self._sources)

    def defines(self, definition: bytes) -> bool:
        """True if an encoded tool is one of these, with its own name."""
        return definition in self._definitions

    def claims(self) -> frozenset[str]:
        """Return all names that tools have or claim, those of tools that are not there now included."""
        self._refresh()
        return frozenset((*self._tools_by_name, *(name for name, _ in self._names.claimants())))

    def find(self, name: str) -> RegisteredTool | None:
        self._refresh()
        return self._tools_by_name.get(name)

    def may_have(self, name: str) -> tuple[str, ...]:
        """Return the sources that may have a tool of this name or address; where it is a tool of the config, what it needs."""
        of_config = self._config_tools.get(name.removeprefix(f"{CONFIG_ADDRESS}/"))
        if of_config is not None:
            return tuple(service.name for service in of_config.services)
        if "/" in name:
            return tuple(source for source in self._sources if name.startswith(f"{source}/"))
        return tuple(source for source, registered in self._sources.items() if _may_claim(name, registered.source))

    def select(self, patterns: Sequence[str]) -> tuple[RegisteredTool, ...]:
        """Return the tools that match one of the patterns. A pattern with a slash matches `source/name`."""
        return narrowed(self.tools(), [ToolFilter(tuple(patterns))])

    def clashes(self) -> tuple[NameClash, ...]:
        """Return the names that several tools claim."""
        self._refresh()
        return self._clashes

    def quarantined(self) -> tuple[Quarantined, ...]:
        """Return the tools that cannot be offered: invalid ones, and those that sources leave out."""
        self._refresh()
        left_out = []
        for name, supervisor in self._sorted_supervisors:
            if isinstance(supervisor.source, HasLeftOut):
                left_out += [Quarantined(tool, name, reason) for tool, reason in supervisor.source.left_out()]
            if isinstance(supervisor.source, HasHeld):
                held = supervisor.source.held_back()
                left_out += [Quarantined(tool, name, reason, is_held=True) for tool, reason in held]
        return (*self._quarantined, *left_out)

    def sources(self) -> tuple[SourceStatus, ...]:
        """Return the states of all sources, those that were opened first."""
        unopened = [
            SourceStatus(registered.source.name, registered.source.kind)
            for name, registered in self._sources.items()
            if name not in self._supervisors
        ]
        return (*(supervisor.status for supervisor in self._supervisors.values()), *unopened)

    def services(self) -> tuple[SourceStatus, ...]:
        """Return the states of what the config's tools need, as far as it was opened."""
        return tuple(supervisor.status for supervisor in self._open_services.values())

    def introductions(self) -> dict[str, str]:
        """Return what sources say of themselves, by their names."""
        return {
            name: supervisor.source.introduction()
            for name, supervisor in self._sorted_supervisors
            if isinstance(supervisor.source, HasIntroduction)
        }

    def unlisted(self, principal: Principal) -> frozenset[str]:
        """Return the names of the tools that their servers do not list for a caller."""
        unlisted: dict[str, frozenset[str]] = {}
        for name, supervisor in self._sorted_supervisors:
            if isinstance(supervisor.source, KnowsIdentities) and (tools := supervisor.source.unlisted(principal)):
                unlisted[name] = tools
        if not unlisted:
            return frozenset()
        return frozenset(tool.name for tool in self.tools() if tool.original in unlisted.get(tool.source, ()))

    def handed_over(self) -> tuple[str, ...]:
        """Return the sources that are already open in the pool. To be called before the registry is opened."""
        return tuple(sorted(name for name, registered in self._sources.items() if self._pool.has(registered.identity)))

    def may_free(self, source: str, pattern: str) -> bool:
        """True if a pattern of the general rule can remove the approval of a source's tools.

        Because a source chooses the names of its tools, a glob frees them only if its beginning is the prefix of that source
        and of no other. `*` means all tools.
        """
        if not source or "/" in pattern or pattern == "*" or not is_glob(pattern):
            return True
        lengths = {}
        for name, registered in self._sources.items():
            if isinstance(registered.source, HasPrefix) and registered.source.prefix:
                prefix = f"{registered.source.prefix}_"[:MAX_STEM]
                if spelt_out(pattern).startswith(prefix):
                    lengths[name] = len(prefix)
        longest = max(lengths.values(), default=0)
        return [name for name, length in lengths.items() if length == longest] == [source]

    def _refresh(self) -> None:
        """Rebuild the tools if those of any source have changed: at once where there are few, else in the background."""
        if (not self._supervisors and self._built_from is not None) or self._indexing is not None:
            return  # only tools of the config, which do not change; or they are being built
        current = self._current()
        if current == self._built_from:
            return
        is_long = self._built_from is not None and sum(len(tools) for _, tools in current) > SHARE
        if (is_long or self.description_judge is not None) and _is_on_a_loop():
            self._indexing = asyncio.create_task(self._index(), name="index of tools")
            return
        at_once(self._build(current))

    def _current(self) -> list[SourceTools]:
        current: list[SourceTools] = [(CONFIG, tuple(self._config_tools.values()))]
        for name, supervisor in self._sorted_supervisors:
            if supervisor.status.has_tools:
                current.append((name, supervisor.source.tools()))
        return current

    async def _index(self) -> None:
        """Build the tools in steps, until they are those that the sources list."""
        try:
            while (current := self._current()) != self._built_from:
                if self.description_judge is not None:
                    await self.description_judge.look((source, tool) for source, tools in current for tool in tools)
                for _ in self._build(current):
                    await asyncio.sleep(0)
        finally:
            self._indexing = None

    def _build(self, current: list[SourceTools]) -> Steps[None]:
        """Build the tools, in steps. What was there before stays until all of it is built."""
        tools: dict[ToolIdentity, Tool] = {}
        quarantined: list[Quarantined] = []
        for source, tools_of_source in current:
            yield
            for tool in tools_of_source:
                identity = ToolIdentity(source, tool.name)
                if identity in tools:
                    quarantined.append(Quarantined(tool.name, source, "the source has two tools of this name"))
                else:
                    tools[identity] = tool
        names = yield from self._names.names_of(tools, [source for source, _ in current])
        registered: list[RegisteredTool] = []
        checks: dict[bytes, Check] = {}
        for place, (identity, name) in enumerate(names.items()):
            if place % SHARE == 0:
                yield
            try:
                registered.append(self._registered(identity, name, tools[identity], checks))
            except SchemaError as error:
                quarantined.append(Quarantined(name, identity.source, str(error)))
        yield
        registered.sort(key=attrgetter("name"))
        definitions = frozenset(bytes(tool.definition) for tool in registered)
        yield
        clashes = self._clashes_of(names)
        yield
        self._built_from = current
        self._checks = checks
        self._tools = tuple(registered)
        self._quarantined = tuple(sorted(quarantined, key=attrgetter("name", "source")))
        self._tools_by_name = {tool.name: tool for tool in self._tools}
        self._definitions = definitions
        self._clashes = clashes
        self.untrusted |= {tool.name for tool in registered if tool.tool.policy.untrusted}
        self._tell_of_unruled()
        self.limits.forget_tools_except({tool.address for tool in self._tools})
        for usable in self._tools:
            self.limits.limit_tool(usable.address, usable.tool.policy.concurrency)

    def _clashes_of(self, names: Mapping[ToolIdentity, str]) -> tuple[NameClash, ...]:
        """Return the clashes. Logs each once, and again when it has changed."""
        clashes = []
        for claimed, identities in self._names.claimants():
            if any(names.get(identity, claimed) != claimed for identity in identities):
                outcomes = [(address(*identity), names.get(identity, "")) for identity in identities]
                clashes.append(NameClash(claimed, tuple(outcomes)))
        for clash in clashes:
            if clash not in self._clashes:
                log.warning("tool_name_clash", name=clash.claimed, tools=dict(clash.names))
        return tuple(clashes)

    def opinion_of_request(self, tool: RegisteredTool) -> bool | None:
        """Decide by the general rule whether a tool of a server that a request names needs approval; None where the rule does not say.
        Only a pattern for such servers frees it: a client chooses its name."""
        return self._approval.opinion(
            tool, tool.tool.policy.safety, may_free=lambda pattern: pattern.startswith(OF_REQUESTS)
        )

    def unruled(self) -> tuple[RegisteredTool, ...]:
        """Return the destructive tools whose calls wait for approval because no rule says whether they do."""
        return tuple(tool for tool in self.tools() if tool.tool.policy.waits_by_default)

    def _tell_of_unruled(self) -> None:
        """Log each such tool of a source once. Those of the config are told before the start."""
        unruled = frozenset(
            tool.address for tool in self._tools if tool.source != CONFIG and tool.tool.policy.waits_by_default
        )
        if not unruled <= self._told_unruled:
            log.warning("destructive_tools_unruled", tools=sorted(unruled - self._told_unruled))
        self._told_unruled |= unruled

    def _registered(self, identity: ToolIdentity, name: str, tool: Tool, checks: dict[bytes, Check]) -> RegisteredTool:
        """Return a tool with its name and its schema, whose check is also put into `checks`."""
        if tool.schema_error:
            raise SchemaError(tool.schema_error)
        if self.description_judge is not None:
            tool = self._judged(identity, tool, self.description_judge)
        parameters = whole_schema(tool.parameters)
        definition = encoded(name, tool.description, parameters)
        check = tool.check
        if check is not_compiled:
            text = schema_text(parameters)
            check = self._checks.get(text) or compile_schema(parameters)
            checks[text] = check
        rules = self._results_of.get((identity.source, identity.original)) or self._results_of.get(identity.source)
        if rules is not None:
            tool = shaped(tool, identity.original, rules)
        if rules is not None and rules.nano:
            from callgate.tools.priced_calls import PricedTool

            tool = replace(tool, executor=PricedTool(tool.executor, rules.nano))
        if rules is not None and rules.cache_seconds and tool.policy.safety is Safety.READ_ONLY:
            tool = self._cached(tool, identity, bytes(definition), rules)
        claimed = claimed_name(tool)
        registered = RegisteredTool(
            tool=replace(tool, name=name, parameters=parameters, check=check),
            source=identity.source,
            original=identity.original,
            address=address(identity.source, identity.original),
            definition=definition,
            offered=OfferedTool(name, parameters, check),
            claimed=claimed,
            contested=self._is_contested(identity.source, claimed),
        )
        opinion = self._opinion(registered)
        by_default = opinion is None and tool.policy.safety is Safety.DESTRUCTIVE
        required = by_default or bool(opinion)
        if required == tool.policy.require_approval:
            return registered
        policy = replace(tool.policy, require_approval=required, waits_by_default=by_default)
        return replace(registered, tool=replace(registered.tool, policy=policy))

    def _judged(self, identity: ToolIdentity, tool: Tool, screen: DescriptionJudge) -> Tool:
        """Return a tool with what it may say of itself."""
        try:
            return screen.judged(identity.source, tool)
        except ValueError as error:
            raise SchemaError(str(error)) from error

    def _cached(self, tool: Tool, identity: ToolIdentity, definition: bytes, rules: ResultRules) -> Tool:
        """Return a tool whose results are kept."""
        from callgate.tools.result_cache import CachedTool, ResultCache

        if self._result_cache is None:
            self._result_cache = ResultCache()
        version = b"\0".join((address(*identity).encode("utf-8", "replace"), definition))
        seconds = rules.cache_seconds
        executor = CachedTool(
            tool.executor,
            self._result_cache,
            version=version,
            seconds=seconds,
            shared=rules.cache_shared,
            identify=tool.identify,
            login=tool.login,
        )
        return replace(tool, executor=executor)

    def _is_contested(self, source: str, claimed: str) -> bool:
        """True if a source that has not been open yet may claim the name of another source's tool."""
        if source == CONFIG:
            return False
        return any(
            name != source and not self._names.is_known(name) and _may_claim(claimed, registered.source)
            for name, registered in self._sources.items()
        )

    def _opinion(self, tool: RegisteredTool) -> bool | None:
        """Decide whether a tool needs approval: by its entry, else by the tool itself, else by the general rule. None where nothing says."""
        policy = tool.tool.policy
        rule = self._approval_of.get((tool.source, tool.original)) or self._approval_of.get(tool.source, NO_RULE)
        required = rule.opinion(tool, policy.safety, tool.at_source())
        if required is not None:
            return required
        if policy.require_approval:
            return True
        return self._approval.opinion(tool, policy.safety, may_free=partial(self.may_free, tool.source))


def _service_identity(name: str) -> Hashable:
    return ("service", name)


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def address(source: str, original: str) -> str:
    """Return the address of a tool for patterns of the config."""
    return f"{source or CONFIG_ADDRESS}/{original}"


def whole_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema as providers require it: an object with `properties`, even if there are none."""
    if not isinstance(parameters, Mapping):
        raise SchemaError("the schema of the arguments is not an object")
    if parameters.get("type", "object") != "object":
        raise SchemaError(f"arguments are an object, and this schema asks for {parameters['type']!r}")
    whole = {"type": "object", "properties": {}, **parameters}
    whole.pop("$schema", None)  # some providers refuse the whole request over it
    return whole


def encoded(name: str, description: str, parameters: Mapping[str, Any]) -> msgspec.Raw:
    function = {"name": name, "description": description, "parameters": parameters}
    text = schema_text({"type": "function", "function": function})
    if len(text) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"name, description and schema take {len(text)} bytes, and {MAX_SCHEMA_BYTES} are allowed")
    return msgspec.Raw(text)


def schema_text(value: Any) -> bytes:
    """Encode a schema, or what has one in it. Raises `SchemaError`."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise SchemaError(f"the schema cannot be written as JSON: {error}") from error


def _may_claim(name: str, source: Source) -> bool:
    """True if a source may have a tool that claims this name."""
    return not isinstance(source, HasPrefix) or not source.prefix or name.startswith(f"{source.prefix}_"[:MAX_STEM])
