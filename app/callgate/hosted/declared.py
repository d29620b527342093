"""Reads what a request says of a tool that one of ours stands for: the limits that are kept, and what nobody heeds."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from callgate.conversation.errors import ChatError
from callgate.hosted.domains import DomainRules, domains_in
from callgate.hosted.rows import HostedRow, row_of

OF_EVERY_TOOL: Final = frozenset({"type", "name", "max_uses", "allowed_domains", "blocked_domains", "filters"})
"""Fields of a declaration that are read here, or that say nothing beside what its type says."""
SAYS_NOTHING: Final[Mapping[str, Any]] = {
    "external_web_access": True,
    "search_context_size": "medium",
    "allowed_callers": ["direct"],
    "container": {"type": "auto"},
    "citations": {"enabled": False},
    "use_cache": True,
    "strict": False,
    "defer_loading": False,
}
"""Values that say what is done anyway."""


class StandIn(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of ours that stands for a family, as a request is offered it."""

    name: str
    properties: Mapping[str, Any]
    """Its parameters, by name."""
    beside: Callable[[Collection[str]], str]
    """Returns the name that it has beside those of the client's tools."""


StandIns: TypeAlias = Mapping[str, StandIn]
"""By the names of families. What is not in it is left to the provider."""
AskStandIns: TypeAlias = Callable[[], StandIns]
"""Returns what stands for which family in a request; asked where it declares a tool of one."""


def no_stand_ins() -> StandIns:
    """All tools that are declared are left to the provider."""
    return {}


class HostedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that a request declares, and that one of ours stands for."""

    row: HostedRow
    kind: str
    """Its type, as the request has it."""
    name: str
    """The name in the chat of the tool that stands for it."""
    tool: str
    """The name of that tool, which is another where the client has a tool of that name."""
    called: str
    """The name that the request gives it."""
    subject: str
    """The parameter of that tool that a call is about."""
    max_uses: int | None = None
    domains: DomainRules | None = None
    """The bound of the addresses that its calls may be about, where it is kept by looking at them."""
    fixed: Mapping[str, Any] = {}
    """The arguments that the request fixes."""
    bounds: Mapping[str, DomainRules] = {}
    """The arguments that tell its tool of domains."""


class HostedTools(msgspec.Struct, frozen=True, kw_only=True):
    """All of them in one request."""

    by_name: Mapping[str, HostedTool]
    """By the names that the tools which stand for them have in the chat."""
    unheard: Sequence[str] = ()
    """The names of what nobody heeds."""
    comes_back: bool = False
    """Its API shows calls in a form that the client sends back."""

    def names_in_chat(self) -> Mapping[str, str]:
        """Return the names in the chat by those that the request has."""
        return {tool.called: name for name, tool in self.by_name.items()}

    def tool_names(self) -> frozenset[str]:
        """Return the names of the tools of ours that stand for them."""
        return frozenset(tool.tool for tool in self.by_name.values())

    def has_kind(self, kind: str | None) -> bool:
        """True for the type of one of them, as the request has it."""
        return any(tool.kind == kind for tool in self.by_name.values())

    def not_offered(self, offers: Callable[[str], bool]) -> Sequence[str]:
        """Return the types of those that are not on offer after all: the request narrows it."""
        return [tool.kind for tool in self.by_name.values() if not offers(tool.tool)]


def by_name_in(hosted: HostedTools | None) -> Mapping[str, HostedTool]:
    """Return the declared tools of a request, if any, by the names in the chat of those that stand for them."""
    if hosted is None:
        return {}
    return hosted.by_name


class Declarations:
    """Gathers the declared tools of one request."""

    def __init__(self, ask: AskStandIns, *, dotted: bool = False) -> None:
        """`dotted`: places are written in Anthropic's format."""
        self._ask = ask
        self._stand_ins: StandIns | None = None
        self._dotted = dotted
        self._by_name: dict[str, HostedTool] = {}
        self._unheard: list[str] = []

    def take(self, fields: Mapping[str, Any], where: str, *, shown_in: str = "item", called: str = "") -> str | None:
        """Read a tool that one of ours stands for, and return the name of that in the chat; None for any other tool. Raises
        `ChatError` for a bound that would not be kept. `shown_in`: the field of the row that its calls need on this API. `called`: the name
        that it has unless it says another."""
        row = row_of(fields.get("type"))
        if row is None or not getattr(row, shown_in):
            return None
        if self._stand_ins is None:
            self._stand_ins = self._ask()
        stand_in = self._stand_ins.get(row.family)
        if stand_in is None:
            return None
        subject = row.subject_in(stand_in.properties)
        domains, at = self._domains(row, fields, where)
        fixed: dict[str, Any] = {}
        bounds: dict[str, DomainRules] = {}
        checked = None
        if domains is not None:
            bounds = self._bounds(row, stand_in, domains)
            if not bounds and row.family == "web_fetch":
                checked = domains  # the address that is fetched is an argument
            elif not bounds:
                raise self._not_kept(at, stand_in.name)
        if row.family == "file_search" and fields.get("filters") is not None:
            if "filters" not in stand_in.properties:
                raise self._not_kept(f"{where}.filters", stand_in.name)
            fixed["filters"] = fields["filters"]
        for field, value in _further(fields):
            names = row.hints.get(field, (field,))
            # What a call is about is the model's, and shown as such.
            name = next((name for name in names if name in stand_in.properties and name != subject), None)
            argument = None
            if name is not None:
                argument = _passed_as(name, field, value)
            if name is not None and argument is not None:
                fixed[name] = argument
            else:
                self._unheard.append(f"tools.{row.family}.{field}")
        self._by_name[stand_in.name] = HostedTool(
            row=row,
            kind=fields["type"],
            name=stand_in.name,
            tool=stand_in.name,
            called=str(fields.get("name") or called or row.family),
            subject=subject,
            max_uses=self._uses(fields.get("max_uses"), f"{where}.max_uses"),
            domains=checked,
            fixed=fixed,
            bounds=bounds,
        )
        return stand_in.name

    def tools(self, client_names: Collection[str], *, comes_back: bool) -> HostedTools | None:
        """Return what was gathered; None where it is nothing. `client_names`: of the client's own tools, which keep their names."""
        if not self._by_name or self._stand_ins is None:
            return None
        for name in [name for name in self._by_name if name in client_names]:
            tool = self._by_name.pop(name)
            free_name = self._stand_ins[tool.row.family].beside(client_names)
            self._by_name[free_name] = replace(tool, name=free_name)
        return HostedTools(by_name=self._by_name, unheard=tuple(dict.fromkeys(self._unheard)), comes_back=comes_back)

    def _domains(self, row: HostedRow, fields: Mapping[str, Any], where: str) -> tuple[DomainRules | None, str]:
        """Return the bound of the domains, and its place."""
        if "allowed_domains" not in row.narrows:
            return None, where
        filters = fields.get("filters")
        at = where
        if isinstance(filters, Mapping):
            at = f"{where}.filters"
            for name in filters:
                if name not in row.narrows:
                    raise self._wrong(f"{at}.{name[:64]}", "this filter is not known here")
        else:
            filters = fields
        named = [name for name in row.narrows if filters.get(name)]
        if len(named) > 1:
            raise self._wrong(f"{at}.{named[1]}", "cannot be given beside `allowed_domains`")
        for name in named:
            listed = domains_in(filters[name])
            if listed is None:
                raise self._wrong(f"{at}.{name}", "expected names of hosts, each perhaps with a path")
            return DomainRules(field=name, listed=listed), f"{at}.{name}"
        return None, at

    def _bounds(self, row: HostedRow, stand_in: StandIn, domains: DomainRules) -> dict[str, DomainRules]:
        """Return the parameter that tells the tool of the domains, if it has one."""
        for name in row.narrows[domains.field]:
            if name in stand_in.properties:
                return {name: domains}
        return {}

    def _uses(self, value: Any, where: str) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(where, "expected a whole number of at least 1")
        return value

    def _not_kept(self, where: str, tool: str) -> ChatError:
        return self._wrong(where, f"the tool `{tool}`, which runs this here, cannot be bounded so")

    def _wrong(self, where: str, what: str) -> ChatError:
        place = where if self._dotted else f"'{where}'"
        return ChatError(400, f"{place}: {what}.", param=where, code="unsupported_value")


def _further(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if name in OF_EVERY_TOOL or value is None or value == [] or SAYS_NOTHING.get(name) == value:
            continue
        yield name, value


def _passed_as(name: str, field: str, value: Any) -> Any:
    """Return the value of a field for the parameter of a tool. A country alone is less than a location."""
    if field == "user_location" and name == "country":
        if isinstance(value, Mapping) and isinstance(inner := value.get("approximate", value), Mapping):
            return inner.get("country")
        return None
    return value
