"""Resolves the name in a call to an offered tool. A few prefixes and tokens that provider templates leave on names are
removed. Similar names are never matched, since each may be another tool.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec

from callgate.calls.legal_names import RESERVED_PREFIX

PREFIXES = ("functions.", "function.", "tools.", "tool.", "default_api.", "default_api:", "functions:")
"""Namespaces that prompt templates put before a name, and that models copy."""
PARALLEL = "multi_tool_use.parallel"
"""The name of a call that holds several calls, on which some models were trained."""
BRIDGE = "call_tool"
"""The name of our tool by which a model calls one that it found, `callgate__` before it where another tool has it."""
MAX_COMPARED = 128
"""Characters of an unknown name that are compared with the offered ones."""


class ToolName(msgspec.Struct, frozen=True, gc=False):
    """The name of an offered tool, and whether the name in the call had to be repaired."""

    name: str
    repaired: bool = False


def resolve_name(raw: str, offered: Collection[str]) -> ToolName | None:
    """Return the offered tool that is meant, or None."""
    if raw in offered:
        return ToolName(raw)
    return next((ToolName(name, repaired=True) for name in _readings(raw) if name in offered), None)


def is_parallel(raw: str, offered: Collection[str]) -> bool:
    """True if this is the wrapper of several calls, and no tool of that name."""
    meant = raw not in offered and _without_tokens(raw).removeprefix("functions.") == PARALLEL
    return meant and resolve_name(raw, offered) is None


def inner_calls(arguments: dict[str, Any]) -> list[tuple[str, dict[str, Any]]] | None:
    """Return the calls in such a wrapper, or None if it is not exactly of its shape."""
    uses = arguments.get("tool_uses")
    if len(arguments) != 1 or not isinstance(uses, list) or not uses:
        return None
    calls: list[tuple[str, dict[str, Any]]] = []
    for use in uses:
        match use:
            case {"recipient_name": str(name), "parameters": dict(parameters), **other_fields} if not other_fields:
                calls.append((name, parameters))
            case _:
                return None
    return calls


def is_bridge(name: str) -> bool:
    """True if a call of this name in a history is one of the bridge, or may be."""
    return name == BRIDGE or (name.startswith(RESERVED_PREFIX) and name.removesuffix(BRIDGE) != name)


def close_names(raw: str, offered: Iterable[str]) -> list[str]:
    """Return offered names that look like this one, as suggestions in an error; they are never run."""
    by_folded = {_folded(name): name for name in offered}
    near = difflib.get_close_matches(_folded(raw.strip()[:MAX_COMPARED]), by_folded, n=3)
    return [by_folded[name] for name in near]


def _readings(raw: str) -> Iterator[str]:
    """Return the names that may be meant, the least altered first."""
    name = _without_tokens(raw)
    yield name
    without_counter = _COUNTER.sub("", name)
    yield without_counter
    for prefix in PREFIXES:
        if name.startswith(prefix):
            yield name.removeprefix(prefix)
            yield without_counter.removeprefix(prefix)


def _without_tokens(raw: str) -> str:
    """Cut the name at the first control token that leaked into it."""
    return raw.strip().partition("<|")[0].rstrip()


_COUNTER = re.compile(r":[0-9]+\Z")


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")
