"""The schema of `config.yaml`: every setting, its default and its meaning, one module for each part.

In pydantic: unknown keys are refused and the result is immutable. `load` reads files, variables and secrets.
`python -m callgate.config.schema` prints the JSON Schema that editors use.
"""

from callgate.config.schema.approvals import ApprovalLists, Approvals
from callgate.config.schema.keys import Key
from callgate.config.schema.limits import Limits, Loop, Upstream
from callgate.config.schema.mcp import McpServer
from callgate.config.schema.models import LitellmParams, ModelEntry
from callgate.config.schema.process import Logging, Reload, Store
from callgate.config.schema.server import Server
from callgate.config.schema.tools import (
    CommandLimits,
    CommandPaths,
    CommandTool,
    HttpTool,
    OpenApiTool,
    PlacedTool,
    PythonTool,
    ToolEntry,
    ToolSection,
)
from callgate.config.schema.values import FOLDER, SHAPES, Section
from callgate.config.schema.whole import Config

__all__ = [
    "FOLDER",
    "SHAPES",
    "ApprovalLists",
    "Approvals",
    "CommandLimits",
    "CommandPaths",
    "CommandTool",
    "Config",
    "HttpTool",
    "Key",
    "Limits",
    "LitellmParams",
    "Logging",
    "Loop",
    "McpServer",
    "ModelEntry",
    "OpenApiTool",
    "PlacedTool",
    "PythonTool",
    "Reload",
    "Section",
    "Server",
    "Store",
    "ToolEntry",
    "ToolSection",
    "Upstream",
]
