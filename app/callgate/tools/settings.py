"""The settings that tools of all kinds share. Each kind has its own in `kinds/`."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from callgate.config.schema.guards import (
    DISTRUSTS,
    SAFETY,
    WAITS,
    WIDENS_ON,
)
from callgate.config.schema.select import Select
from callgate.config.schema.values import (
    NO_BOOLEAN,
    Count,
    Money,
    Retries,
    Seconds,
    Section,
    Switch,
)
from callgate.fleet.settings import PoolName
from callgate.tools.approvals.settings import RequireApproval

MOST_CACHED: Final = 3600
"""Seconds: a wrong answer stays no longer."""


class ToolSection(Section):
    """The settings of every kind of tool. Where a policy is not set, the tool's own applies, or the default."""

    timeout: Seconds | None = None
    """Seconds for one call, retries included; 30 by default."""
    concurrency: Count | None = None
    """How many calls may run at once; unlimited by default."""
    max_result_bytes: Annotated[int, Field(ge=256), NO_BOOLEAN] | None = None
    """How much of a result the model gets; `limits.tool_result_bytes` by default."""
    safety: Annotated[Literal["read_only", "write", "destructive"] | None, SAFETY] = None
    """What it may do to the world. Only read-only tools are ever tried again."""
    in_order: Switch | None = None
    """Whether a call that may write waits for the calls before it in its turn, and those behind it wait for it; on by default."""
    untrusted: Annotated[Switch | None, DISTRUSTS] = None
    """Whether its results hold words of others, such as web pages or mail: after one of them, tools that may write wait for approval
    for the rest of the chat; off by default, but for `web_search` and `web_fetch`."""
    select: Select | None = None
    """What of its results the model gets, as a JMESPath expression; for the tools of a source by their names there, or globs."""
    result: Literal["text", "structured", "auto"] = "auto"
    """Which of two results it gives the model gets: the `text`, the one for programs (`structured`), or that one where the
    source says how it looks and `select` takes a part of it (`auto`)."""
    cache_seconds: Annotated[int, Field(ge=0, le=MOST_CACHED), NO_BOOLEAN] = 0
    """How long a result is kept for equal calls of the same key, in seconds; for tools whose entry says `safety: read_only`."""
    cache_shared: Annotated[Switch, WIDENS_ON] = False
    """Whether its results are the same whoever calls, so that one key's are another's too."""
    price: Money | None = None
    """US dollars that one call costs: counted in the key's budgets before it runs. Nothing, where it is not set."""
    retries: Retries | None = None
    """Further tries after a failure, for read-only tools; 0 by default."""
    require_approval: Annotated[RequireApproval | None, WAITS] = None
    """Whether its calls wait for approval: `never`, `always`, or lists of names; else the top-level one counts."""

    @model_validator(mode="after")
    def _keeps_what_is_only_read(self) -> Self:
        if self.cache_seconds and self.safety != "read_only":
            raise PydanticCustomError("cache", "`cache_seconds` goes with `safety: read_only`, in the same entry")
        return self


class PlacedTool(ToolSection):
    """A tool that may run here or on a fleet of workers."""

    run_on: PoolName | None = None
    """The pool of `pools` whose workers run it; here where it is not set."""
