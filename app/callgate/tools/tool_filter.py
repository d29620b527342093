"""Selects the server tools for a model, a key or a request. Filters only ever narrow.

A filter of the config belongs to a tool's origin. A pattern with a slash is held against `source/name`, which nobody
else can take. A pattern without one is held against the name that the tool asks for *and* the name it got: where
several sources ask for one name, or one that has not been open yet may, it means none of them, and the operator says
which with a slash.
"""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

from callgate.conversation.errors import ChatError

MAX_REQUEST_BYTES = 8192
"""Of the patterns that one request sends: room for a hundred names."""
MAX_REQUEST_GLOBS = 32
"""Of these, those that every tool has to be held against; plain names are looked up."""
MAX_REQUEST_GLOB = 256
"""Characters of one of these: they are compiled, and the last of them are remembered."""
MAX_NEAR = 5
"""Patterns for which a near name is looked for: each is compared with every tool."""
_GLOB = re.compile(r"[*?\[]")


class Named(Protocol):
    """Something that patterns can be held against."""

    @property
    def name(self) -> str:
        """The name that models are offered."""
        ...

    @property
    def claimed(self) -> str:
        """The name that it would have if no other source had the same."""
        ...

    @property
    def contested(self) -> bool:
        """True if another source may have that name as well, which is unknown before it has been open."""
        ...

    @property
    def address(self) -> str:
        """`source/name as the source has it`."""
        ...


@dataclass(frozen=True)
class ToolFilter:
    """Lets through what one of its patterns names; without patterns, nothing."""

    patterns: tuple[str, ...]
    by_given_name: bool = False
    """For what a request sends: it names tools as they were offered to it."""

    def admits(self, tool: Named) -> bool:
        if tool.address in self._exact:
            return True
        names = {tool.name} if self.by_given_name else {tool.name, tool.claimed}
        if len(names) == 1 and tool.name in self._exact and (self.by_given_name or not tool.contested):
            return True
        return any(
            glob.match(tool.address) if of_address else all(map(glob.match, names)) for of_address, glob in self._globs
        )

    @cached_property
    def _exact(self) -> frozenset[str]:
        return frozenset(pattern for pattern in self.patterns if not is_glob(pattern))

    @cached_property
    def _globs(self) -> tuple[tuple[bool, re.Pattern[str]], ...]:
        return tuple(("/" in each, compiled(each)) for each in dict.fromkeys(self.patterns) if is_glob(each))


def names_exactly(pattern: str, tool: Named) -> bool:
    """True if a pattern of the config means this tool, and not only something that asks for its name."""
    return ToolFilter((pattern,)).admits(tool)


def names_loosely(pattern: str, tool: Named) -> bool:
    """True if a pattern means this tool or any other that asks for its name: for rules that guard."""
    return any(glob_matches(pattern, name) for name in (tool.address, tool.name, tool.claimed))


def requested_filter(text: str | None) -> ToolFilter | None:
    """Read the filter in `X-Callgate-Tools` or `metadata.tools` of a request: `none`, or names and globs with commas.

    None where nothing was said. Something was said where it is empty: then nothing is let through.
    """
    if text is None:
        return None
    if len(text) > MAX_REQUEST_BYTES:
        raise _too_many(f"at most {MAX_REQUEST_BYTES} bytes of names of tools are read")
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    globs = [name for name in names if is_glob(name)]
    if len(globs) > MAX_REQUEST_GLOBS or any(len(each) > MAX_REQUEST_GLOB for each in globs):
        raise _too_many(f"at most {MAX_REQUEST_GLOBS} may be patterns, of at most {MAX_REQUEST_GLOB} characters each")
    return ToolFilter(() if names == ("none",) else names, by_given_name=True)


@dataclass(frozen=True)
class NameFilter:
    """Lets through the tools that have one of these names, and reads nothing into them."""

    names: frozenset[str]

    def admits(self, tool: Named) -> bool:
        return tool.name in self.names


T = TypeVar("T", bound=Named)


def narrowed(tools: Iterable[T], filters: Sequence[ToolFilter | NameFilter | None]) -> tuple[T, ...]:
    """The tools that every filter lets through; a filter that is None has no opinion."""
    opinions = [each for each in filters if each is not None]
    return tuple(tool for tool in tools if all(each.admits(tool) for each in opinions))


def is_glob(pattern: str) -> bool:
    return _GLOB.search(pattern) is not None


def spelt_out(pattern: str) -> str:
    """Return the literal beginning of a pattern."""
    return _GLOB.split(pattern, maxsplit=1)[0]


def glob_matches(pattern: str, text: str) -> bool:
    return pattern == text if not is_glob(pattern) else compiled(pattern).match(text) is not None


def compiled(pattern: str) -> re.Pattern[str]:
    """Takes time in proportion to the text, for `fnmatch` writes atomic groups. `re` remembers the last few hundred."""
    return re.compile(fnmatch.translate(pattern))


# Patterns that name nothing -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A pattern that names no tool there is."""

    pattern: str
    near: str = ""
    """The nearest name that there is; empty where none is near."""

    def __str__(self) -> str:
        return f"{self.pattern[:64]!a} names no tool" + (f"; did you mean {self.near!a}?" if self.near else "")


def unmatched(patterns: Iterable[str], tools: Sequence[Named], *, by_given_name: bool = False) -> tuple[Unmatched, ...]:
    """The patterns that name none of the tools; `*` names whatever there is, and so is never among them."""
    found: list[Unmatched] = []
    for pattern in dict.fromkeys(patterns):
        one = ToolFilter((pattern,), by_given_name)
        if pattern != "*" and not any(map(one.admits, tools)):
            found.append(Unmatched(pattern, _near(pattern, tools) if len(found) < MAX_NEAR else ""))
    return tuple(found)


def _near(pattern: str, tools: Sequence[Named]) -> str:
    """A tool whose name is like the pattern; where several sources ask for that name, the address of one of them."""
    for tool in tools:
        if pattern in (tool.claimed, tool.name) and tool.name != tool.claimed:
            return tool.address
    return nearest(pattern, [tool.address if "/" in pattern else tool.name for tool in tools])


def nearest(word: str, known: Sequence[str]) -> str:
    """The nearest of some names, or nothing."""
    return next(iter(difflib.get_close_matches(word[:128], known[:2000], n=1)), "")


def _too_many(why: str) -> ChatError:
    return ChatError(400, f"Too many tools are named: {why}.", param="tools", code="too_many_tool_names")
