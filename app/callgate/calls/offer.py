"""A tool that was offered in a request, as the gate needs it: its name, its schema, and a check of arguments."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from callgate.calls.states import FlawDetail

Check: TypeAlias = Callable[[dict[str, Any]], FlawDetail | None]
"""Returns what is wrong with arguments under a compiled schema, or None when they satisfy it."""


class OfferedTool(msgspec.Struct, frozen=True):
    """A tool as the gate needs it, the client's or ours."""

    name: str
    parameters: Mapping[str, Any]
    """The JSON Schema of the arguments; read for conversion of strings and for what is required."""
    check: Check | None = None
    """None where the schema is not ours to enforce: a tool of the client's."""
    is_hidden: bool = False
    """The model was not sent its schema, which it finds by searching."""
    may_run_again: bool = False
    """It only reads what Callgate itself has, so that a call may be run again at any time."""
    bridge: "Bridge | None" = None
    """Set for the tool by which a model calls tools that it found."""


class Bridge(msgspec.Struct, frozen=True):
    """What can be called through a tool that takes the name and the arguments of another."""

    inner: "Offer"
    """The tools behind it, none of which is a bridge."""
    near: Callable[[str], Sequence[str]]
    """Returns the names of those that are the most like a name that none has."""


Offer: TypeAlias = Mapping[str, OfferedTool]
"""All tools offered in one request, by the names that the model calls them by."""
