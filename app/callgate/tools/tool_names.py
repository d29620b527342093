"""Gives every tool a name for models that is legal, unique, and the same whatever order the tools are listed in.

A tool claims a name: its own at its source, with the source's prefix. It gets it unless a tool of another source ever claimed
it too; tools of the config get theirs in any case. All others get a name with a hash of their identity.
"""

from collections.abc import Collection, Generator, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias, TypeVar

from callgate.calls.legal_names import RESERVED_PREFIX, hashed_name, legal_name
from callgate.tools.executor import Tool

CONFIG: Final = ""
"""The source of tools that are entries of the config."""
MAX_CLAIMS: Final = 10_000
"""Claimed names that are kept after their tools are gone, bounded against a server that lists ever new ones."""


SHARE: Final = 200
"""The tools that are named or registered in one step, between which the event loop may go on: about 3 ms."""
T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Work in steps, and what it comes to."""


def at_once(steps: Steps[T]) -> T:
    """Take all steps, and return what they come to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class ToolIdentity(NamedTuple):
    """What tells a tool from all others."""

    source: str
    original: str
    """Its name at the source."""


class ToolNames:
    """The names that tools have ever claimed.

    Claims outlive their tools, so that a server which comes and goes does not change the names of another's tools.
    """

    def __init__(self) -> None:
        self._claims: dict[str, set[ToolIdentity]] = {}
        self._known_sources: set[str] = set()

    def is_known(self, source: str) -> bool:
        """True if a source has been open, so that the names of its tools are known."""
        return source in self._known_sources

    def names_of(self, tools: Mapping[ToolIdentity, Tool], sources: Collection[str]) -> Steps[dict[ToolIdentity, str]]:
        """Return the name of every tool, in steps. `sources` are those that are open, also where they have no tools."""
        self._known_sources |= set(sources)
        yield from self._claim(tools)
        if len(self._claims) > MAX_CLAIMS:
            self._claims = {}
            self._known_sources = set(sources)
            yield from self._claim(tools)
        granted: dict[ToolIdentity, str] = {}
        for place, (name, claimants) in enumerate(self._claims.items()):
            if place % SHARE == 0:
                yield
            owner = _owner_of(claimants)
            if owner is not None:
                granted[owner] = name
        taken_names = {name for identity, name in granted.items() if identity.source == CONFIG}
        names: dict[ToolIdentity, str] = {}
        for place, identity in enumerate(sorted(tools)):
            if place % SHARE == 0:
                yield
            if identity not in granted:
                names[identity] = _hashed(identity, tools[identity], taken_names)
                taken_names.add(names[identity])
        for place, identity in enumerate(sorted(tools.keys() & granted.keys())):
            if place % SHARE == 0:
                yield
            name = granted[identity]
            if name in taken_names and identity.source != CONFIG:  # it was made for another tool
                name = _hashed(identity, tools[identity], {*taken_names, *granted.values()})
            names[identity] = name
            taken_names.add(name)
        return names

    def claimants(self) -> list[tuple[str, list[ToolIdentity]]]:
        """Return all claimed names, sorted, and who claimed them."""
        return [(name, sorted(identities)) for name, identities in sorted(self._claims.items())]

    def _claim(self, tools: Mapping[ToolIdentity, Tool]) -> Steps[None]:
        for place, (identity, tool) in enumerate(tools.items()):
            if place % SHARE == 0:
                yield
            self._claims.setdefault(claimed_name(tool), set()).add(identity)


def claimed_name(tool: Tool) -> str:
    """Return the name that a tool claims. Names with our own prefix are changed."""
    claimed = tool.claimed or tool.name
    if claimed.startswith(RESERVED_PREFIX):
        return hashed_name(claimed, claimed)
    return legal_name(claimed)


def _owner_of(claimants: Iterable[ToolIdentity]) -> ToolIdentity | None:
    """Return who gets a name: the config, else the only source that ever claimed it, else nobody."""
    identities = sorted(claimants)
    if identities[0].source == CONFIG or len(identities) == 1:
        return identities[0]
    return None


def _hashed(identity: ToolIdentity, tool: Tool, taken_names: Collection[str]) -> str:
    salt = f"{identity.source}\0{identity.original}"
    while (name := hashed_name(tool.claimed or identity.original, salt)) in taken_names:
        salt += "\0"
    return name
