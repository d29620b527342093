"""One entry of `tools`, of any kind."""

from typing import Annotated, TypeAlias

from pydantic import Field

from callgate.tools.kinds.command.settings import CommandTool
from callgate.tools.kinds.http.settings import HttpTool
from callgate.tools.kinds.openapi.settings import OpenApiTool
from callgate.tools.kinds.python.settings import PythonTool
from callgate.tools.kinds.web_fetch.settings import WebFetchTool
from callgate.tools.kinds.web_search.settings import WebSearchTool

ToolEntry: TypeAlias = Annotated[
    PythonTool | HttpTool | OpenApiTool | CommandTool | WebSearchTool | WebFetchTool, Field(discriminator="kind")
]
"""A further kind is one more class here, with a `kind` of its own."""
