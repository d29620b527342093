"""How the tools of a model's requests, or of a key's, are kept out of its prompts."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from callgate.config.schema.values import NO_BOOLEAN, Globs, Section, off_or_on

MODES = ("off", "auto", "on")
LEAST_RESULT = 500
MOST_RESULT = 100_000


class SearchThreshold(Section):
    """From where on tools are searched for, with `auto`: beyond either of the two."""

    tokens: Annotated[int, Field(ge=0), NO_BOOLEAN] = 8000
    """Tokens of all tools on offer, as `callgate tools list` estimates them."""
    share: Annotated[float, Field(gt=0, le=1), NO_BOOLEAN] = 0.1
    """Their share of `max_input_tokens`: of `model_info`, else of litellm's list."""


class ToolSearchSection(Section):
    """Whether tools are searched for instead of standing in every prompt, and how."""

    mode: Annotated[Literal["off", "auto", "on"], BeforeValidator(off_or_on)] = "auto"
    """`off`, `on`, or `auto`: where there are more of them than `over` says. The word alone stands for the whole."""
    over: SearchThreshold = SearchThreshold.by_default()
    """From where on `auto` searches."""
    pin: Globs = ()
    """Tools that always stand in the prompt, as names or globs."""
    way: Literal["auto", "bridge", "reveal"] = "auto"
    """How the model calls what it found: `auto` as its provider has it, else through `call_tool`; `bridge` always so; `reveal` by its
    name, from a list of tools that grows, which costs the provider's cache of the prompt."""
    result_tokens: Annotated[int, Field(ge=LEAST_RESULT, le=MOST_RESULT), NO_BOOLEAN] = 4000
    """How many tokens of schemas one search gives."""

    def values(self) -> dict[str, Any]:
        """Return the fields of a `SearchSetting`."""
        fields = {"mode": self.mode, "way": self.way, "pins": self.pin, "result_tokens": self.result_tokens}
        return {**fields, "tokens": self.over.tokens, "share": self.over.share}


class _OrTheMode:
    """Allows the mode alone instead of the whole."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._section, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"enum": [*MODES, True, False]}, handler(schema)]}

    def _section(self, value: Any) -> Any:
        mode = off_or_on(value)
        if isinstance(mode, str) and mode in MODES:
            return {"mode": mode}
        if not isinstance(value, (Mapping, ToolSearchSection)):
            raise PydanticCustomError("tool_search", "should be `off`, `auto`, `on`, or a mapping with `mode`")
        return value


ToolSearch: TypeAlias = Annotated[ToolSearchSection, _OrTheMode()]
