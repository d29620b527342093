"""Callgate: an OpenAI-compatible HTTP proxy that runs your tools, and never runs half a call.

For authors of Python tools, and for programs that gather tool calls themselves:
`from callgate import tool, start, stop, Context, ToolError, Image, ToolCallBuffer, ToolUseBuffer`. Each name is imported when it is first
used, and none of them loads the server.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callgate.calls.buffer import ToolCallBuffer
    from callgate.calls.outcome import Image
    from callgate.text_calls.blocks import ToolUseBuffer
    from callgate.tools.kinds.python.authoring import Context, ToolError, start, stop, tool

__version__ = "0.1.0"
__all__ = ["Context", "Image", "ToolCallBuffer", "ToolError", "ToolUseBuffer", "start", "stop", "tool"]

_MODULES = {
    "Context": "callgate.tools.kinds.python.authoring",
    "Image": "callgate.calls.outcome",
    "ToolCallBuffer": "callgate.calls.buffer",
    "ToolError": "callgate.tools.kinds.python.authoring",
    "ToolUseBuffer": "callgate.text_calls.blocks",
    "start": "callgate.tools.kinds.python.authoring",
    "stop": "callgate.tools.kinds.python.authoring",
    "tool": "callgate.tools.kinds.python.authoring",
}


if not TYPE_CHECKING:  # a type checker would believe that it has every name

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
