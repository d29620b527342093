"""An entry of `tools` that is an API with an OpenAPI document."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from callgate.config.schema.guards import (
    ADMITS,
    EXCLUDES,
    FIXED,
    WIDENS_ON,
)
from callgate.config.schema.values import (
    DocumentPlace,
    Globs,
    Switch,
    ToolName,
    WebAddress,
    shape,
)
from callgate.tools.kinds.http.settings import SEGMENTS, MultiSegment
from callgate.tools.settings import ToolSection


class OpenApiTool(ToolSection):
    """Many tools from one OpenAPI document."""

    kind: Literal["openapi"]
    """`openapi`"""
    name: ToolName
    """What the API is called, for people; its tools have the names of their operations."""
    document: DocumentPlace
    """A file, from the folder this file is in, or an address; OpenAPI 3.0 or later, as YAML or JSON."""
    base_url: WebAddress | None = None
    """Where the API is; what the document says of its servers where it is not set."""
    auth: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Credentials by the names of the document's security schemes: a key, a token, or `user:password`."""
    headers: Annotated[Mapping[str, SecretStr], FIXED] = Field(default_factory=dict)
    """Headers to send with every call."""
    include: Annotated[Globs, Field(min_length=1), ADMITS] = ("*",)
    """Operations to offer, by their names, `METHOD /path` or tags; globs."""
    exclude: Annotated[Globs, EXCLUDES] = ()
    """Of these, the ones not to offer."""
    prefix: Annotated[str, shape(r"^[A-Za-z0-9_-]{0,40}$", "should be at most 40 letters, digits, `_` or `-`")] = ""
    """What goes before its tools' names, with `_` between."""
    rename: Mapping[str, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    """Other names for operations, by their names or globs; `{name}`, `{method}` and `{tag}` stand for those of each."""
    multi_segment: Annotated[MultiSegment, SEGMENTS] = False
    """Let an argument in a path contain `/`: `on` for several segments, `encoded` to send it as `%2F`."""
    allow_private: Annotated[Switch, WIDENS_ON] = False
    """Allow private and loopback addresses, which are refused otherwise."""
    allow_hosts: Annotated[Globs, ADMITS] = ()
    """Hosts, as names or globs, whose private addresses may be reached all the same; networks are allowed whole."""
