"""What the MCP SDK has for clients, imported without what they do not use.

The SDK's package imports its own server as well, with cryptography and sixty modules, and the messages of every revision of the
protocol as pydantic's models: fifteen megabytes, and a fifth of a second. Stand-ins take their places, until anybody uses
them: the messages with the first server that speaks so, the server with a tool that is one itself.
"""

import importlib
import sys
from typing import Any, Final

from callgate.stand_ins import without

SERVER: Final = ("mcp.server", "mcp.server.mcpserver", "mcp.server.runner", "mcp.server.session", "mcp.server.stdio")
"""Modules of the SDK's server that its client imports."""
MESSAGES: Final = ("mcp_types._v2025_11_25", "mcp_types._v2026_07_28")
"""The messages of two revisions, by which what a server sends is validated."""
OF_PACKAGE: Final = {"ServerSession": "mcp.server.session", "stdio_server": "mcp.server.stdio"}
"""What the SDK's package has of the server as its own."""


def _import_client() -> None:
    if sys.modules.keys() & {"mcp", "mcp_types.methods"}:  # somebody else has imported all of it
        return
    with without(*SERVER, *MESSAGES):
        import mcp
    for name in OF_PACKAGE:
        delattr(mcp, name)
    mcp.__getattr__ = _of_package  # type: ignore[method-assign]


def _of_package(name: str) -> Any:
    """Return what the SDK's package has of its server, as its `__getattr__`."""
    if name not in OF_PACKAGE:
        raise AttributeError(f"module 'mcp' has no attribute {name!r}")
    return getattr(importlib.import_module(OF_PACKAGE[name]), name)


_import_client()

from mcp.client import Client, Transport  # noqa: E402 - they find it imported
from mcp.client.session import ClientRequestContext  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost  # noqa: E402
from mcp.shared.exceptions import MCPError  # noqa: E402
from mcp.shared.inbound import encode_header_value  # noqa: E402
from mcp.shared.message import SessionMessage  # noqa: E402

__all__ = [
    "Client",
    "ClientRequestContext",
    "ListenNotSupportedError",
    "MCPError",
    "SessionMessage",
    "SubscriptionLost",
    "Transport",
    "encode_header_value",
    "streamable_http_client",
]
