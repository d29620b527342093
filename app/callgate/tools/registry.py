"""The registry of all server tools, of the config and of sources, with legal and unique names.

Schemas are compiled and encoded here, once. A tool that cannot be used is listed with the reason, without affecting others; a
source that cannot be opened is listed and retried, and its tools appear when it is open.

Rules about a tool (approval, filters, limits) belong to its origin, which is its source and its name there. If two sources
claim one name, neither gets it, the clash is logged and listed, and the rules of both still apply. While a source has not
been open yet its names are unknown, so that until then a pattern with a name alone grants and exempts nothing of another
source, if the unopened one could claim that name too.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

import msgspec
import structlog

from callgate.calls.legal_names import MAX_STEM, RESERVED_PREFIX, hashed_name, legal_name
from callgate.calls.offer import Check, OfferedTool
from callgate.calls.selection import ToolOrigin
from callgate.tools.approval_rules import NO_RULE, ApprovalRule
from callgate.tools.concurrency import ConcurrencyLimits
from callgate.tools.executor import HasLeftOut, HasPrefix, Safety, Source, Tool
from callgate.tools.schema import SchemaError, compile_schema
from callgate.tools.source_pool import SourcePool
from callgate.tools.source_supervisor import Delay, SourceState, SourceStatus, SourceSupervisor, reopening_delay
from callgate.tools.tool_filter import ToolFilter, is_glob, narrowed, spelt_out

FIRST_WAIT = 5.0
"""How long a start waits for the first attempt to open every source; slower ones continue in the background."""
MAX_SCHEMA_BYTES = 262_144
"""The limit of one encoded tool, which is sent with every request."""
MAX_CLAIMS = 10_000
"""Claimed names that are kept after their tools are gone, bounded against a server that lists ever new ones."""
CONFIG = ""
"""The source of tools that are entries of the config."""
CONFIG_ADDRESS = "config"
"""The name of that source in addresses, which no other source may have."""

log = structlog.get_logger("callgate.tools")


@dataclass(frozen=True, slots=True)
class ToolAtSource:
    """A tool by its name at the source, which is used in the source's entry in the config."""

    name: str
    address: str

    contested = False

    @property
    def claimed(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class RegisteredTool:
    """A tool with its name and its origin."""

    tool: Tool
    """With its final name and its compiled schema."""
    source: str
    """The name of its source; `CONFIG` for none."""
    original: str
    """Its name at the source."""
    schema: msgspec.Raw
    """`{"type":"function",…}`, encoded."""
    offered: OfferedTool
    claimed: str
    """The name that it claims, which it gets unless another source claims it too."""
    contested: bool = False
    """Whether a source that has not been open yet may claim its name too."""

    @property
    def name(self) -> str:
        return self.offered.name

    @property
    def address(self) -> str:
        return address(self.source, self.original)

    @property
    def origin(self) -> ToolOrigin:
        read_only = self.tool.policy.safety is Safety.READ_ONLY
        return ToolOrigin(source=self.source, names=frozenset((self.name, self.original)), read_only=read_only)

    def at_source(self) -> "ToolAtSource":
        return ToolAtSource(self.original, self.address)

    def under(self, name: str) -> "RegisteredTool":
        """Return the tool with another name."""
        schema = encoded(name, self.tool.description, self.offered.parameters)
        return replace(self, schema=schema, offered=replace(self.offered, name=name))


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A tool that cannot be offered, with the reason."""

    name: str
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class NameClash:
    """A name that several tools claim, and the names that these got."""

    claimed: str
    names: tuple[tuple[str, str], ...]
    """The address and the name of each; an empty name for one that is missing at present."""

    def __str__(self) -> str:
        named = ", ".join(f"{origin} is {f'called {name}' if name else 'not there now'}" for origin, name in self.names)
        return f"the name {self.claimed} is not given to all that ask for it: {named}"


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
        self._pool = SourcePool(on_status, delay=delay) if pool is None else pool
        self._wanted: dict[str, tuple[Hashable, Source]] = {}
        self._fixed: dict[str, Tool] = {}
        self._own: tuple[Tool, ...] = ()
        self._supervisors: dict[str, SourceSupervisor] = {}
        self._in_order: list[tuple[str, SourceSupervisor]] = []
        """The supervisors, sorted by name."""
        self._given_back: set[str] = set()
        self._seen: list[tuple[str, tuple[Tool, ...]]] | None = None
        self._tools: tuple[RegisteredTool, ...] = ()
        self._quarantined: tuple[Quarantined, ...] = ()
        self._by_name: dict[str, RegisteredTool] = {}
        self._clashes: tuple[NameClash, ...] = ()
        self._schemas: frozenset[bytes] = frozenset()
        self._claims: dict[str, set[tuple[str, str]]] = {}
        self._listed: set[str] = set()
        """The sources that have been open, so that their names are known."""
        self._compiled: dict[bytes, Check] = {}

    def add(self, *tools: Tool, approval: ApprovalRule = NO_RULE) -> None:
        """Register tools of the config. Their names take precedence over those of sources."""
        for tool in tools:
            if tool.name in self._fixed:
                raise ValueError(f"two tools are called {tool.name}: leave one out, or give it another name")
            self._fixed[tool.name] = tool
            self._approval_of[CONFIG, tool.name] = approval
        self._own = tuple(self._fixed.values())
        self._seen = None

    def add_source(
        self,
        source: Source,
        *,
        concurrency: int | None = None,
        is_here: bool = False,
        approval: ApprovalRule = NO_RULE,
        identity: Hashable | None = None,
    ) -> None:
        """Register a source, which is opened with the registry. `concurrency` limits the calls of all its tools together;
        `is_here`: each process has its own instance.

        If the pool has an open source with the same `identity`, that one is used and `source` is not opened.
        """
        if source.name in self._wanted:
            raise ValueError(f"two sources are called {source.name!r}")
        if source.name in (CONFIG, CONFIG_ADDRESS):
            raise ValueError(f"{source.name!r} is no name for a source: it stands for the config's own tools")
        for other in self._wanted:
            if f"{other}/".startswith(f"{source.name}/") or f"{source.name}/".startswith(f"{other}/"):
                raise ValueError(f"the sources {other!r} and {source.name!r} cannot be told apart in `source/tool`")
        self._wanted[source.name] = (object() if identity is None else identity, source)
        self._approval_of[source.name] = approval
        self.limits.limit_source(source.name, concurrency, is_here=is_here)

    async def open(self, wait: float = FIRST_WAIT, only: Collection[str] | None = None) -> None:
        """Start to open all sources, or `only` some, and wait a while for their first attempts. Failures do not raise."""
        # Borrowed here and not in `add_source`, because a registry that is never opened is not closed either.
        for name, (identity, source) in self._wanted.items():
            if name not in self._supervisors and (only is None or name in only):
                self._supervisors[name] = self._pool.borrow(identity, source)
        self._in_order = sorted(self._supervisors.items(), key=itemgetter(0))
        first = [asyncio.create_task(supervisor.tried()) for supervisor in self._supervisors.values()]
        if not first:
            return
        try:
            await asyncio.wait(first, timeout=wait)
        finally:
            for task in first:
                task.cancel()
            await asyncio.wait(first)

    async def close(self) -> None:
        """Give all sources back, concurrently. Those without other borrowers are closed."""
        borrowed = [self._wanted[name][0] for name in self._supervisors if name not in self._given_back]
        self._given_back |= set(self._supervisors)
        await asyncio.gather(*(self._pool.give_back(identity) for identity in borrowed))

    def tools(self) -> tuple[RegisteredTool, ...]:
        """Return all current tools, sorted by name. Cheap while nothing changes."""
        self._look()
        return self._tools

    @property
    def is_complete(self) -> bool:
        """True if every source is open, so that a missing tool does not exist."""
        return len(self._supervisors) == len(self._wanted) and all(
            each.status.state is SourceState.READY for each in self._supervisors.values()
        )

    @property
    def source_names(self) -> tuple[str, ...]:
        return tuple(self._wanted)

    def has_schema(self, schema: bytes) -> bool:
        """True if an encoded schema is that of one of these tools, with its own name."""
        return schema in self._schemas

    def find(self, name: str) -> RegisteredTool | None:
        self._look()
        return self._by_name.get(name)

    def may_have(self, name: str) -> tuple[str, ...]:
        """Return the sources that may have a tool of this name or address; none where it is a tool of the config."""
        if name.removeprefix(f"{CONFIG_ADDRESS}/") in self._fixed:
            return ()
        if "/" in name:
            return tuple(each for each in self._wanted if name.startswith(f"{each}/"))
        return tuple(each for each, (_, source) in self._wanted.items() if _may_ask_for(name, source))

    def select(self, patterns: Sequence[str]) -> tuple[RegisteredTool, ...]:
        """Return the tools that match one of the patterns. A pattern with a slash matches `source/name`."""
        return narrowed(self.tools(), [ToolFilter(tuple(patterns))])

    def clashes(self) -> tuple[NameClash, ...]:
        """Return the names that several tools claim."""
        self._look()
        return self._clashes

    def quarantined(self) -> tuple[Quarantined, ...]:
        """Return the tools that cannot be offered: invalid ones, and those that sources leave out."""
        self._look()
        sources = ((name, supervisor.source) for name, supervisor in self._in_order)
        left_out = ((name, source.left_out()) for name, source in sources if isinstance(source, HasLeftOut))
        return (*self._quarantined, *(Quarantined(tool, name, why) for name, them in left_out for tool, why in them))

    def sources(self) -> tuple[SourceStatus, ...]:
        unopened = (
            SourceStatus(it.name, it.kind) for name, (_, it) in self._wanted.items() if name not in self._supervisors
        )
        return (*(supervisor.status for supervisor in self._supervisors.values()), *unopened)

    def handed_over(self) -> tuple[str, ...]:
        """Return the sources that are already open in the pool. To be called before the registry is opened."""
        return tuple(sorted(name for name, (identity, _) in self._wanted.items() if self._pool.has(identity)))

    def may_free(self, source: str, pattern: str) -> bool:
        """True if a pattern of the general rule can remove the approval of a source's tools.

        Because a source chooses the names of its tools, a glob frees them only if its beginning is the prefix of that source
        and of no other. `*` means all tools.
        """
        if not source or "/" in pattern or pattern == "*" or not is_glob(pattern):
            return True
        prefixes = {
            name: f"{it.prefix}_"[:MAX_STEM]
            for name, (_, it) in self._wanted.items()
            if isinstance(it, HasPrefix) and it.prefix
        }
        fitting = {name: len(each) for name, each in prefixes.items() if spelt_out(pattern).startswith(each)}
        longest = max(fitting.values(), default=0)
        return [name for name, length in fitting.items() if length == longest] == [source]

    def _look(self) -> None:
        """Rebuild the tools if those of any source have changed."""
        if not self._supervisors and self._seen is not None and len(self._seen) == 1:
            return  # only tools of the config, which do not change
        there = [(CONFIG, self._own)]
        for name, supervisor in self._in_order:
            if supervisor.status.state is SourceState.READY:
                there.append((name, supervisor.source.tools()))
        if there != self._seen:
            self._build(there)
            self._seen = there

    def _build(self, there: list[tuple[str, tuple[Tool, ...]]]) -> None:
        usable: list[RegisteredTool] = []
        broken: list[Quarantined] = []
        compiled: dict[bytes, Check] = {}
        self._listed |= {source for source, _ in there}
        names, twice = self._named(there)
        for (source, original), (name, tool) in names.items():
            try:
                usable.append(self._registered(source, original, name, tool, compiled))
            except SchemaError as error:
                broken.append(Quarantined(name, source, str(error)))
        broken += [Quarantined(tool.name, source, "the source has two tools of this name") for source, tool in twice]
        self._compiled = compiled
        self._tools = tuple(sorted(usable, key=lambda each: each.name))
        self._quarantined = tuple(sorted(broken, key=lambda each: (each.name, each.source)))
        self._by_name = {each.name: each for each in self._tools}
        self._schemas = frozenset(bytes(each.schema) for each in self._tools)
        # Log each clash once, and again when it has changed.
        clashes = tuple(
            NameClash(
                claimed, tuple((address(*each), names[each][0] if each in names else "") for each in sorted(claims))
            )
            for claimed, claims in sorted(self._claims.items())
            if any(each in names and names[each][0] != claimed for each in claims)
        )
        for clash in clashes:
            if clash not in self._clashes:
                log.warning("tool_name_clash", name=clash.claimed, tools=dict(clash.names))
        self._clashes = clashes
        self.limits.forget_tools_except({each.address for each in self._tools})
        for each in self._tools:
            self.limits.limit_tool(each.address, each.tool.policy.concurrency)

    def _registered(
        self, source: str, original: str, name: str, tool: Tool, compiled: dict[bytes, Check]
    ) -> RegisteredTool:
        parameters = whole_schema(tool.parameters)
        schema = encoded(name, tool.description, parameters)
        text = _json(parameters)
        check = self._compiled.get(text) or compile_schema(parameters)
        compiled[text] = check
        final = replace(tool, name=name, parameters=parameters, check=check)
        claimed = _wanted(tool)
        contested = bool(source) and any(
            other != source and other not in self._listed and _may_ask_for(claimed, wanted)
            for other, (_, wanted) in self._wanted.items()
        )
        taken = RegisteredTool(
            final, source, original, schema, OfferedTool(name, parameters, check), claimed, contested=contested
        )
        # Whether it needs approval: by its entry, else by the tool itself, else by the general rule.
        policy = taken.tool.policy
        of_entry = self._approval_of.get((taken.source, taken.original)) or self._approval_of.get(taken.source, NO_RULE)
        required = of_entry.opinion(taken, policy.safety, taken.at_source())
        if required is None:
            may_free = partial(self.may_free, taken.source)
            required = policy.require_approval or self._approval.opinion(taken, policy.safety, may_free=may_free)
        waits = bool(required)
        if waits == tool.policy.require_approval:
            return taken
        return replace(taken, tool=replace(final, policy=replace(tool.policy, require_approval=waits)))

    def _named(
        self, there: list[tuple[str, tuple[Tool, ...]]]
    ) -> tuple[dict[tuple[str, str], tuple[str, Tool]], list[tuple[str, Tool]]]:
        """Return a name for every tool, independent of their order; and the tools that a source has twice."""
        found: dict[tuple[str, str], Tool] = {}
        twice: list[tuple[str, Tool]] = []
        for source, tools in there:
            for tool in tools:
                if (source, tool.name) in found:
                    twice.append((source, tool))
                else:
                    found[source, tool.name] = tool
                    self._claims.setdefault(_wanted(tool), set()).add((source, tool.name))
        if len(self._claims) > MAX_CLAIMS:
            self._claims = {}
            self._listed = {source for source, _ in there}
            for identity, tool in found.items():
                self._claims.setdefault(_wanted(tool), set()).add(identity)
        bare = {owner: name for name, claims in self._claims.items() if (owner := _owner(claims)) is not None}
        names: dict[tuple[str, str], tuple[str, Tool]] = {}
        kept = {name for owner, name in bare.items() if owner[0] == CONFIG}
        for identity in sorted(found):
            if identity not in bare:
                names[identity] = (_another(identity, found[identity], kept), found[identity])
                kept.add(names[identity][0])
        for identity in sorted(found.keys() & bare.keys()):
            # A name that was made for another tool is taken, also for a tool that claims it.
            free = bare[identity] not in kept or identity[0] == CONFIG
            name = bare[identity] if free else _another(identity, found[identity], kept | set(bare.values()))
            kept.add(name)
            names[identity] = (name, found[identity])
        return names, twice


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
    text = _json({"type": "function", "function": function})
    if len(text) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"name, description and schema take {len(text)} bytes, and {MAX_SCHEMA_BYTES} are allowed")
    return msgspec.Raw(text)


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise SchemaError(f"the schema cannot be written as JSON: {error}") from error


def _wanted(tool: Tool) -> str:
    """Return the name that a tool claims. Names with our own prefix are changed."""
    original = tool.wanted or tool.name
    if original.startswith(RESERVED_PREFIX):
        return hashed_name(original, original)
    return legal_name(original)


def _may_ask_for(name: str, source: Source) -> bool:
    return not isinstance(source, HasPrefix) or not source.prefix or name.startswith(f"{source.prefix}_"[:MAX_STEM])


def _owner(claims: set[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the owner of a name: the config, else the only source that ever claimed it, else None.

    Claims outlive their tools, so that a server which comes and goes does not change the names of another's tools.
    """
    fixed = sorted(claim for claim in claims if claim[0] == CONFIG)
    if fixed:
        return fixed[0]
    return next(iter(claims)) if len(claims) == 1 else None


def _another(identity: tuple[str, str], tool: Tool, taken: set[str]) -> str:
    source, original = identity
    salt = f"{source}\0{original}"
    while (name := hashed_name(tool.wanted or original, salt)) in taken:
        salt += "\0"
    return name
