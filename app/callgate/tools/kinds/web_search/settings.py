"""An entry of `tools` that searches the web."""

from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from callgate.config.schema.guards import MAY_BE_PRIVATE
from callgate.config.schema.values import NO_BOOLEAN, Switch, ToolName, WebAddress
from callgate.tools.settings import ToolSection


class WebSearchTool(ToolSection):
    """A search of the web as a tool."""

    kind: Literal["web_search"]
    """`web_search`"""
    name: ToolName = "web_search"
    """What the model calls it."""
    description: Annotated[str, Field(min_length=1)] = (
        "Searches the web. Returns titles, addresses and short extracts of the pages found."
    )
    """The description that the model gets."""
    engine: Literal["searxng", "brave", "tavily"]
    """Who searches: your own SearXNG, or the API of Brave or Tavily."""
    url: WebAddress | None = Field(None, repr=False)
    """The engine's address, which SearXNG needs; that of its public API where it is not set."""
    api_key: SecretStr | None = None
    """The key that Brave and Tavily need."""
    max_results: Annotated[int, Field(ge=1, le=20), NO_BOOLEAN] = 8
    """How many pages a search returns at most."""
    allow_private: Annotated[Switch | None, MAY_BE_PRIVATE] = None
    """Allow the engine to have a private address. Not set: if the address is plainly your own, as localhost is."""

    @model_validator(mode="after")
    def _has_what_its_engine_needs(self) -> "WebSearchTool":
        if self.engine == "searxng":
            if self.url is None:
                raise PydanticCustomError("one_of", "`engine: searxng` needs the `url` of your server")
        elif self.api_key is None:
            raise PydanticCustomError("one_of", "`engine: {engine}` needs an `api_key`", {"engine": self.engine})
        return self
