"""The shape of `config.yaml`: every setting, its default and what it means. A module for each part of it.

The outside comes in here, so this is pydantic: unknown keys are refused and the result is an immutable value.
Reading files, variables and secrets is `load`'s; acting on a setting is the business of the room it is for.
`python -m app.config.schema` prints the JSON Schema that editors use.
"""

from app.config.schema.approvals import ApprovalLists, Approvals
from app.config.schema.keys import Key
from app.config.schema.limits import Limits, Loop, Upstream
from app.config.schema.mcp import McpServer
from app.config.schema.models import LitellmParams, ModelEntry
from app.config.schema.process import Logging, Reload, Store
from app.config.schema.server import Server
from app.config.schema.tools import (
    CommandLimits,
    CommandPaths,
    CommandTool,
    HttpTool,
    OpenApiTool,
    PythonTool,
    ToolEntry,
    ToolSection,
)
from app.config.schema.values import FOLDER, SHAPES, Section
from app.config.schema.whole import Config

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
    "PythonTool",
    "Reload",
    "Section",
    "Server",
    "Store",
    "ToolEntry",
    "ToolSection",
    "Upstream",
]
