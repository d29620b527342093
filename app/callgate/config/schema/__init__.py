"""The shape of `config.yaml`: every setting, its default and what it means. A module for each part of it.

The outside comes in here, so this is pydantic: unknown keys are refused and the result is an immutable value.
Reading files, variables and secrets is `load`'s; acting on a setting is the business of the package it is for.
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
