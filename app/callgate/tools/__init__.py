"""What can be run, and the running of it.

For authors of Python tools: `from callgate.tools import tool, Context, ToolError, image`.
"""

from callgate.tools.python_function import Context, ToolError, tool
from callgate.tools.results import image

__all__ = ["Context", "ToolError", "image", "tool"]
