"""What can be run, and the running of it.

For authors of Python tools: `from app.tools import tool, Context, ToolError, image`.
"""

from app.tools.python_function import Context, ToolError, tool
from app.tools.results import image

__all__ = ["Context", "ToolError", "image", "tool"]
