"""Which tools of the house somebody gets: patterns from a model's entry, a key, a request. Each can only narrow."""

import fnmatch
import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar


class Named(Protocol):
    """Something that patterns can be held against."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str:
        """`source/name as the source has it`: what a pattern for all tools of a source is held against."""
        ...


@dataclass(frozen=True, slots=True)
class ToolFilter:
    """Lets through what one of its patterns names; without patterns, nothing."""

    patterns: tuple[str, ...]

    def admits(self, tool: Named) -> bool:
        return any(
            fnmatch.fnmatchcase(tool.address if "/" in pattern else tool.name, pattern) for pattern in self.patterns
        )


def tool_filter(text: str | None) -> ToolFilter | None:
    """What a request asks for in `X-Callgate-Tools` or `metadata.tools`: `none`, or names and globs with commas.

    None where nothing was said. Something was said where it is empty: then nothing is let through.
    """
    if text is None:
        return None
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    return ToolFilter(() if names == ("none",) else names)


def allowed_filter(names: frozenset[str] | None) -> ToolFilter | None:
    """What `tool_choice` allows, as a filter: names that mean only themselves."""
    return None if names is None else ToolFilter(tuple(glob.escape(name) for name in sorted(names)))


T = TypeVar("T", bound=Named)


def narrowed(tools: Iterable[T], filters: Sequence[ToolFilter | None]) -> tuple[T, ...]:
    """The tools that every filter lets through; a filter that is None has no opinion."""
    opinions = [each for each in filters if each is not None]
    return tuple(tool for tool in tools if all(each.admits(tool) for each in opinions))
