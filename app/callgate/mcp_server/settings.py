"""How MCP clients are served."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from callgate.config.schema.guards import WidensTo
from callgate.config.schema.tool_search import ToolSearch, ToolSearchSection
from callgate.config.schema.values import Section, off_or_on

WORDS = ("off", "auto", "on")


class McpServing(Section):
    """Whether `/mcp` is served, where MCP clients call the tools of this config. The word alone stands for the whole."""

    serve: Annotated[Literal["off", "auto", "on"], BeforeValidator(off_or_on), WidensTo(WORDS)] = "auto"
    """`auto`: to clients with a key, and without one to those of this machine alone; `on`: also to clients without a key that others
    reach, where `auth: off` lets them in; `off`: to nobody."""
    tool_search: ToolSearch = ToolSearchSection.by_default(mode="off")
    """Whether a list of tools is `find_tools`, `call_tool` and what is pinned, as at a model's entry. Off, because most clients search
    themselves."""


class _OrServeAlone:
    """Allows the word alone instead of the whole."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._section, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"enum": [*WORDS, True, False]}, handler(schema)]}

    def _section(self, value: Any) -> Any:
        word = off_or_on(value)
        if isinstance(word, str) and word in WORDS:
            return {"serve": word}
        if not isinstance(value, (Mapping, McpServing)):
            raise PydanticCustomError("mcp", "should be `off`, `auto`, `on`, or a mapping with `serve`")
        return value


McpSetting: TypeAlias = Annotated[McpServing, _OrServeAlone()]
