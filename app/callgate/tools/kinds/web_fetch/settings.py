"""An entry of `tools` that fetches pages of the web."""

from typing import Annotated, Literal

from pydantic import Field

from callgate.config.schema.guards import ADMITS, CEILING, WIDENS_ON
from callgate.config.schema.values import NO_BOOLEAN, Globs, Switch, ToolName
from callgate.tools.settings import ToolSection


class WebFetchTool(ToolSection):
    """The fetching of a page as a tool."""

    kind: Literal["web_fetch"]
    """`web_fetch`"""
    name: ToolName = "web_fetch"
    """What the model calls it."""
    description: Annotated[str, Field(min_length=1)] = (
        "Fetches a page of the web by its address, and returns its text. Long pages are read on with read_more."
    )
    """The description that the model gets."""
    max_bytes: Annotated[int, Field(ge=1024, le=50_000_000), NO_BOOLEAN, CEILING] = 5_000_000
    """How much of a page is read."""
    max_redirects: Annotated[int, Field(ge=0, le=20), NO_BOOLEAN, CEILING] = 5
    """How many redirects are followed, each of which is checked as the address itself is."""
    allow_private: Annotated[Switch, WIDENS_ON] = False
    """Allow private and loopback addresses, which are refused otherwise."""
    allow_hosts: Annotated[Globs, ADMITS] = ()
    """Hosts, as names or globs, whose private addresses may be reached all the same; networks are allowed whole."""
