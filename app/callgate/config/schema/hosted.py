"""The setting that says which tools of the config stand for tools that clients declare for a provider to run."""

from collections.abc import Mapping
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field

from callgate.config.schema.values import off_or_on, shape

HostedFamily: TypeAlias = Annotated[
    str,
    shape(
        r"^(web_search|web_fetch|code_interpreter|code_execution|file_search|image_generation)$",
        "should be `web_search`, `web_fetch`, `code_interpreter` (or `code_execution`), `file_search` or `image_generation`",
    ),
]
StandInName: TypeAlias = Annotated[str, Field(min_length=1), BeforeValidator(off_or_on)]
"""The name of a tool, or `off`: left to the provider."""
HostedToolsSetting: TypeAlias = Mapping[HostedFamily, StandInName]
