"""An entry of `tools` that is Python."""

from typing import Literal

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from callgate.config.schema.values import (
    FunctionPath,
    ModulePath,
    ToolName,
)
from callgate.tools.settings import PlacedTool


class PythonTool(PlacedTool):
    """A Python function, or all tools of a Python module."""

    kind: Literal["python"]
    """`python`"""
    function: FunctionPath | None = None
    """One function, as `package.module:function`."""
    module: ModulePath | None = None
    """A module, all of whose functions marked as tools are offered."""
    name: ToolName | None = None
    """What the model calls the function; its own name where it is not set."""
    description: str | None = None
    """The description that the model gets; its docstring where it is not set."""

    @model_validator(mode="after")
    def _one_of_both(self) -> "PythonTool":
        if (self.function is None) == (self.module is None):
            raise PydanticCustomError("one_of", "needs either `function` or `module`")
        if self.module is not None and (self.name or self.description):
            raise PydanticCustomError("one_of", "`name` and `description` go with `function`, not with `module`")
        return self
