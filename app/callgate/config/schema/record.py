"""What is recorded of the requests that were answered."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from callgate.config.schema.values import NO_BOOLEAN, Section, Switch, off_or_on


class RecordKeep(Section):
    """How long runs stay in the file."""

    days: Annotated[float, Field(gt=0), NO_BOOLEAN] = 14.0
    """Older runs are removed."""
    bytes: Annotated[int, Field(ge=1_048_576), NO_BOOLEAN] = 1_073_741_824
    """Beyond it the oldest texts are removed, then the oldest runs."""


class Record(Section):
    """Recorded runs: the newest 200 in memory, and all of them in `data_dir`, if there is one."""

    runs: Annotated[Literal["all", "eventful", "off"], BeforeValidator(off_or_on)] = "all"
    """`eventful`: only runs that called a tool, had a finding, were asked again, failed, or took over 30 seconds."""
    passed: Annotated[Literal["all", "errors"], BeforeValidator(off_or_on)] = "errors"
    """The same for requests that are passed through without a tool of Callgate's; `errors` are a provider's too that the request outlived."""
    content: Switch = False
    """Keep what was said too: the request, texts, arguments and results. They may hold anything; secrets known to
    Callgate are masked."""
    content_bytes: Annotated[int, Field(ge=256, le=10_000_000), NO_BOOLEAN] = 65_536
    """How much of each text is kept."""
    wire: Annotated[Literal["off", "on_error", "on"], BeforeValidator(off_or_on)] = "off"
    """Keep the bodies of providers' answers too, as they came, beside the other texts: of all runs, or of those that did not
    simply answer. Needs `content`."""
    keep: RecordKeep = RecordKeep()
    """How long runs stay in the file."""

    @model_validator(mode="after")
    def _has_content(self) -> "Record":
        if self.wire != "off" and not self.content:
            message = "`wire` is kept beside the other texts: it needs `content: on`"
            raise PydanticCustomError("config", "{message}", {"message": message})
        return self
