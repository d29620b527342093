"""An entry of `tools` that is a command line."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr

from callgate.config.schema.guards import (
    ADMITS,
    ARGUMENTS,
    CEILING,
    PRESENT,
    WIDENS_OFF,
    WIDENS_ON,
)
from callgate.config.schema.values import (
    NO_BOOLEAN,
    BesideFile,
    Count,
    Section,
    Switch,
    ToolName,
)
from callgate.tools.settings import PlacedTool


class CommandLimits(Section):
    """What a command may use. All but `processes` hold for each process of it."""

    cpu_seconds: Annotated[Count, CEILING] = 30
    """Seconds of processor time."""
    memory_bytes: Annotated[int, Field(ge=1_048_576), NO_BOOLEAN, CEILING] = 1_073_741_824
    """Memory of its own; libraries it shares do not count."""
    file_bytes: Annotated[int, Field(ge=0), NO_BOOLEAN, CEILING] = 104_857_600
    """The largest file it may write."""
    open_files: Annotated[int, Field(ge=8), NO_BOOLEAN, CEILING] = 256
    """Files open at once."""
    processes: Annotated[Count, CEILING] = 64
    """Processes at once, itself included."""


class CommandPaths(Section):
    """The only places a command may open, beside the system's own programs and libraries."""

    read: Annotated[tuple[BesideFile, ...], ADMITS] = ()
    """Files and folders it may read, and run."""
    write: Annotated[tuple[BesideFile, ...], ADMITS] = ()
    """Files and folders it may also write."""


class CommandTool(PlacedTool):
    """A command line as a tool. No shell reads it."""

    kind: Literal["command"]
    """`command`"""
    name: ToolName
    """What the model calls it."""
    description: Annotated[str, Field(min_length=1)]
    """The description that the model gets."""
    argv: Annotated[tuple[str | tuple[str, ...], ...], Field(min_length=1)]
    """The program and its arguments; `{name}` stands for an argument of the call. A list in it is left out as a whole
    when one of its arguments is not given."""
    stdin: str | None = None
    """What it reads: `json` for all arguments as one object, or a text with places like `{name}`; nothing if not set."""
    parameters: Annotated[Mapping[str, Any], ARGUMENTS] = Field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    """The JSON Schema of the arguments."""
    cwd: Annotated[BesideFile, Field(validate_default=True)] = "."
    """The folder it runs in; the one this file is in where it is not set."""
    env: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Its environment. Of Callgate's own it has only PATH and TZ."""
    allow_options: Annotated[Switch, WIDENS_ON] = False
    """Let an argument's value begin with a dash where it begins an element of `argv`, and so be an option."""
    ok_codes: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    """Exit codes that are no failure."""
    limits: CommandLimits = CommandLimits.by_default()
    """What it may use."""
    paths: Annotated[CommandPaths | None, PRESENT] = None
    """The only places it may open; where not set, all that the user Callgate runs as may. Needs Landlock (Linux)."""
    pid_namespace: Annotated[Switch, WIDENS_OFF] = True
    """Run it in a PID namespace where the system has one (Linux): it sees no processes but its own, and none of them
    outlives it. Off for a command that is to look at the processes of the machine."""
