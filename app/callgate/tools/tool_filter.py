"""Selects the server tools for a model, a key or a request. Filters only narrow the selection.

A filter of the config belongs to a tool's origin. A pattern with a slash matches `source/name`, which is unique. A pattern
without one has to match the name that the tool claims *and* the name that it got: where several sources claim one name, or one
that has not been open yet may, it matches none of them, and the operator needs a slash.
"""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from callgate.conversation.errors import ChatError

MAX_REQUEST_BYTES = 8192
"""The limit of the patterns of one request: about a hundred names."""
MAX_REQUEST_GLOBS = 32
"""The limit of globs among them, each of which is compared with every tool."""
MAX_REQUEST_GLOB = 256
"""Characters of a glob, which is compiled and cached."""
MAX_NEAR = 5
"""Patterns for which a similar name is searched, which compares all tools."""
_GLOB = re.compile(r"[*?\[]")


class Named(Protocol):
    """Something that patterns can match."""

    @property
    def name(self) -> str:
        """The name for models."""
        ...

    @property
    def claimed(self) -> str:
        """The name that it claims."""
        ...

    @property
    def contested(self) -> bool:
        """True if another source, which has not been open yet, may claim that name as well."""
        ...

    @property
    def address(self) -> str:
        """`source/name`, by its name at the source."""
        ...


class ToolFilter:
    """Admits tools that match one of its patterns; without patterns, none."""

    def __init__(self, patterns: tuple[str, ...], *, by_given_name: bool = False) -> None:
        """`by_given_name`: true for patterns of requests, which match the names that are offered."""
        self.patterns = patterns
        self.by_given_name = by_given_name
        self._exact = frozenset(pattern for pattern in patterns if not is_glob(pattern))
        self._globs = [("/" in pattern, compiled(pattern)) for pattern in dict.fromkeys(patterns) if is_glob(pattern)]
        """Each with whether it is one of addresses."""

    def admits(self, tool: Named) -> bool:
        if tool.address in self._exact:
            return True
        if self.by_given_name:
            names = {tool.name}
        else:
            names = {tool.name, tool.claimed}
        if len(names) == 1 and tool.name in self._exact and (self.by_given_name or not tool.contested):
            return True
        return any(
            glob.match(tool.address) if of_address else all(map(glob.match, names)) for of_address, glob in self._globs
        )


def names_exactly(pattern: str, tool: Named) -> bool:
    """True if a pattern of the config matches this tool unambiguously."""
    return ToolFilter((pattern,)).admits(tool)


def names_loosely(pattern: str, tool: Named) -> bool:
    """True if a pattern matches this tool or any other that claims its name: for rules that restrict."""
    return any(glob_matches(pattern, name) for name in (tool.address, tool.name, tool.claimed))


def requested_filter(text: str | None) -> ToolFilter | None:
    """Read the filter in `X-Callgate-Tools` or `metadata.tools` of a request: `none`, or names and globs with commas.

    None where it is missing. An empty one admits nothing.
    """
    if text is None:
        return None
    if len(text) > MAX_REQUEST_BYTES:
        raise _too_many(f"at most {MAX_REQUEST_BYTES} bytes of names of tools are read")
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    globs = [name for name in names if is_glob(name)]
    if len(globs) > MAX_REQUEST_GLOBS or any(len(glob) > MAX_REQUEST_GLOB for glob in globs):
        raise _too_many(f"at most {MAX_REQUEST_GLOBS} may be patterns, of at most {MAX_REQUEST_GLOB} characters each")
    return ToolFilter(() if names == ("none",) else names, by_given_name=True)


class NameFilter(msgspec.Struct, frozen=True):
    """Admits the tools with exactly these names."""

    names: frozenset[str]

    def admits(self, tool: Named) -> bool:
        return tool.name in self.names


T = TypeVar("T", bound=Named)


def narrowed(tools: Iterable[T], filters: Sequence[ToolFilter | NameFilter | None]) -> tuple[T, ...]:
    """Return the tools that all filters admit; None as a filter admits all."""
    opinions = [a_filter for a_filter in filters if a_filter is not None]
    return tuple(tool for tool in tools if all(a_filter.admits(tool) for a_filter in opinions))


def is_glob(pattern: str) -> bool:
    return _GLOB.search(pattern) is not None


def spelt_out(pattern: str) -> str:
    """Return the literal beginning of a pattern."""
    return _GLOB.split(pattern, maxsplit=1)[0]


def glob_matches(pattern: str, text: str) -> bool:
    if not is_glob(pattern):
        return pattern == text
    return compiled(pattern).match(text) is not None


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a glob. Matching is linear, because `fnmatch` uses atomic groups. `re` caches some hundred patterns."""
    return re.compile(fnmatch.translate(pattern))


# Patterns that match nothing ----------------------------------------------------------------------


class Unmatched(msgspec.Struct, frozen=True):
    """A pattern that matches no tool."""

    pattern: str
    near: str = ""
    """The most similar name; empty where there is none."""

    def __str__(self) -> str:
        return f"{self.pattern[:64]!a} names no tool" + (f"; did you mean {self.near!a}?" if self.near else "")


def unmatched(patterns: Iterable[str], tools: Sequence[Named], *, by_given_name: bool = False) -> tuple[Unmatched, ...]:
    """Return the patterns that match none of the tools; never `*`."""
    missing: list[Unmatched] = []
    for pattern in dict.fromkeys(patterns):
        a_filter = ToolFilter((pattern,), by_given_name=by_given_name)
        if pattern != "*" and not any(map(a_filter.admits, tools)):
            missing.append(Unmatched(pattern, _near(pattern, tools) if len(missing) < MAX_NEAR else ""))
    return tuple(missing)


def _near(pattern: str, tools: Sequence[Named]) -> str:
    """Return the name of a tool that is similar to the pattern; its address where several sources claim the name."""
    for tool in tools:
        if pattern in (tool.claimed, tool.name) and tool.name != tool.claimed:
            return tool.address
    return nearest(pattern, [tool.address if "/" in pattern else tool.name for tool in tools])


def nearest(word: str, candidates: Sequence[str]) -> str:
    """Return the most similar of some names, or an empty string."""
    return next(iter(difflib.get_close_matches(word[:128], candidates[:2000], n=1)), "")


def _too_many(why: str) -> ChatError:
    return ChatError(400, f"Too many tools are named: {why}.", param="tools", code="too_many_tool_names")
