"""A tool that was offered in a request, as the gate needs it: its name, its schema, and a check of arguments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from callgate.calls.states import FlawDetail

Check: TypeAlias = Callable[[dict[str, Any]], FlawDetail | None]
"""Returns what is wrong with arguments under a compiled schema, or None when they satisfy it."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as the gate needs it, the client's or ours."""

    name: str
    parameters: Mapping[str, Any]
    """The JSON Schema of the arguments; read for conversion of strings and for what is required."""
    check: Check | None = None
    """None where the schema is not ours to enforce: a tool of the client's."""


Offer: TypeAlias = Mapping[str, OfferedTool]
"""All tools offered in one request, by the names that the model calls them by."""
