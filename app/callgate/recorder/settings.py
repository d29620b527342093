"""What is recorded of the requests that were answered."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from callgate.config.schema.guards import ALL_KEPT, KEEPS_TEXTS, WidensTo
from callgate.config.schema.values import NO_BOOLEAN, Globs, Section, Switch, off_or_on


class RecordKeep(Section):
    """How long runs stay in the file."""

    days: Annotated[float, Field(gt=0), NO_BOOLEAN] = 14.0
    """Older runs are removed."""
    bytes: Annotated[int, Field(ge=1_048_576), NO_BOOLEAN] = 1_073_741_824
    """Beyond it the oldest texts are removed, then the oldest runs."""


class WireKeep(Section):
    """How long bodies of providers' answers stay in the file."""

    days: Annotated[float, Field(gt=0), NO_BOOLEAN] = 1.0
    """Those of older runs are removed; the other texts stay as long as `keep` says."""


class RecordLess(Section):
    """Requests of which less is recorded: those with one of these keys, to one of these models."""

    keys: Globs = ()
    """Names of keys, or globs; all of them if left out."""
    models: Globs = ()
    """Names of models, or globs; all of them if left out."""
    keep: Annotated[Literal["no_content", "off"], BeforeValidator(off_or_on)]
    """`no_content`: rows and events without texts; `off`: nothing, not even when they fail."""

    @model_validator(mode="after")
    def _names_something(self) -> "RecordLess":
        if not self.keys and not self.models:
            raise PydanticCustomError("config", "should name `keys`, `models` or both")
        return self


class Record(Section):
    """Recorded runs: the newest 200 in memory, and all of them in `data_dir`, if there is one."""

    runs: Annotated[Literal["all", "eventful", "off"], BeforeValidator(off_or_on)] = "all"
    """`eventful`: only runs that called a tool, had a finding or a retry, failed, or took over 30 seconds."""
    passed: Annotated[Literal["all", "errors"], BeforeValidator(off_or_on)] = "errors"
    """The same for requests that are passed through without a tool of Callgate's; `errors` includes requests that succeeded after a retry."""
    content: Annotated[Switch | None, KEEPS_TEXTS] = None
    """`on`: keep texts too: the request, the model's text, arguments and results. They may contain anything; secrets known to
    Callgate are masked. `off`: keep none. If left out, they are kept in memory alone, of the newest runs: those of a server without keys
    that serves this machine alone, and those of requests with `X-Callgate-Record: own`, which the Playground sends. Only the key of
    such a request is shown them."""
    content_bytes: Annotated[int, Field(ge=256, le=10_000_000), NO_BOOLEAN] = 65_536
    """How much of each text is kept."""
    wire: Annotated[
        Literal["off", "on_error", "on"], BeforeValidator(off_or_on), WidensTo(("off", "on_error", "on"))
    ] = "off"
    """Keep the bodies of providers' answers too, unchanged, beside the other texts: of all runs, or of those with an error,
    a broken or failed call, or a retry. Needs `content`."""
    keep: RecordKeep = RecordKeep.by_default()
    """How long runs stay in the file."""
    wire_keep: WireKeep = WireKeep.by_default()
    """How long bodies of providers' answers stay in the file."""
    less: Annotated[tuple[RecordLess, ...], ALL_KEPT] = ()
    """Keys and models whose requests are recorded less. If several entries match, the strictest applies."""

    @model_validator(mode="after")
    def _has_content(self) -> "Record":
        if self.wire != "off" and not self.content:
            message = "`wire` is kept beside the other texts: it needs `content: on`"
            raise PydanticCustomError("config", "{message}", {"message": message})
        return self
