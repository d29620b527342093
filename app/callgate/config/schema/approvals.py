"""Which calls wait for a person's word, and how."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from callgate.config.schema.values import Count, Globs, Seconds, Section, Switch


class ApprovalLists(Section):
    """Which tools wait for a person's word. Of the patterns that name a tool, the one that spells out most counts."""

    always: Globs = ()
    """Tools whose calls wait, as names or globs; `safety:destructive` names all tools of that class."""
    never: Globs = ()
    """Tools whose calls do not wait, in the same way."""


class _OrOneWord:
    """Lets `never` and `always` stand for the lists that say it of all tools."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._lists, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"enum": ["never", "always"]}, handler(schema)]}

    def _lists(self, value: Any) -> Any:
        if value in ("never", "always"):
            return {value: ["*"]}
        if not isinstance(value, (Mapping, ApprovalLists)):
            message = "should be `never`, `always`, or a mapping with lists of names under `never` and `always`"
            raise PydanticCustomError("approval", message)
        return value


RequireApproval: TypeAlias = Annotated[ApprovalLists, _OrOneWord()]


class Approvals(Section):
    """How calls wait for a person's word."""

    timeout_seconds: Seconds = 300.0
    """How long a call waits; then it is not run, and the model gets that as its result. `limits.request_seconds` goes on meanwhile."""
    max_waiting: Count = 100
    """Calls that may wait at the same time; further ones are refused at once."""
    demand_hash: Switch = False
    """Take a decision only together with the hash of the arguments it is about."""
