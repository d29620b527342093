"""An entry of `tools` that is an HTTP request."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_core import PydanticCustomError

from callgate.config.schema.guards import (
    ADMITS,
    ARGUMENTS,
    FIXED,
    FIXED_IN_URL,
    WIDENS_ON,
    WidensTo,
)
from callgate.config.schema.values import (
    Globs,
    Switch,
    ToolName,
    WebAddress,
)
from callgate.tools.settings import PlacedTool


def _scalars(query: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in query.items():
        if not isinstance(value, str | int | float):
            raise PydanticCustomError("scalar", "`{name}` should be a text, a number or a boolean", {"name": name})
    return query


MultiSegment: TypeAlias = Switch | Literal["encoded"]
SEGMENTS = WidensTo((False, "encoded", True))


class HttpTool(PlacedTool):
    """One HTTP request as a tool."""

    kind: Literal["http"]
    """`http`"""
    name: ToolName
    """What the model calls it."""
    description: Annotated[str, Field(min_length=1)]
    """The description that the model gets."""
    method: Annotated[
        Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
        BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
    ] = "GET"
    """The HTTP method."""
    url: Annotated[WebAddress, Field(repr=False), FIXED_IN_URL]
    """Where to send it. `{name}` stands for an argument, quoted as part of a path or a query."""
    multi_segment: Annotated[MultiSegment, SEGMENTS] = False
    """Let an argument in the path contain `/`: `on` for several segments, `encoded` to send it as `%2F`."""
    headers: Annotated[Mapping[str, SecretStr], FIXED] = Field(default_factory=dict)
    """Headers to send. Arguments are not filled in here."""
    query: Annotated[Mapping[str, Any], AfterValidator(_scalars), FIXED] = Field(default_factory=dict, repr=False)
    """Query parameters; `{name}` stands for an argument."""
    body: Annotated[Any, FIXED] = Field(None, repr=False)
    """What to send as JSON; a text that is nothing but `{name}` becomes the argument itself."""
    parameters: Annotated[Mapping[str, Any], ARGUMENTS] = Field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    """The JSON Schema of the arguments."""
    allow_private: Annotated[Switch, WIDENS_ON] = False
    """Allow private and loopback addresses, which are refused otherwise."""
    allow_hosts: Annotated[Globs, ADMITS] = ()
    """Hosts, as names or globs, whose private addresses may be reached all the same; networks are allowed whole."""
