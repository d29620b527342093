"""The tools: the settings that all kinds share, and a class for each kind."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from callgate.config.schema.approvals import RequireApproval
from callgate.config.schema.guards import (
    ADMITS,
    ARGUMENTS,
    CEILING,
    EXCLUDES,
    FIXED,
    FIXED_IN_URL,
    PRESENT,
    SAFETY,
    WAITS,
    WIDENS_OFF,
    WIDENS_ON,
    WidensTo,
)
from callgate.config.schema.pools import PoolName
from callgate.config.schema.values import (
    NO_BOOLEAN,
    BesideFile,
    Count,
    DocumentPlace,
    FunctionPath,
    Globs,
    ModulePath,
    Retries,
    Seconds,
    Section,
    Switch,
    ToolName,
    WebAddress,
    shape,
)


class ToolSection(Section):
    """The settings of every kind of tool. Where a policy is not set, the tool's own applies, or the default."""

    timeout: Seconds | None = None
    """Seconds for one call, retries included; 30 by default."""
    concurrency: Count | None = None
    """How many calls may run at once; unlimited by default."""
    max_result_bytes: Annotated[int, Field(ge=256), NO_BOOLEAN] | None = None
    """How much of a result the model gets; `limits.tool_result_bytes` by default."""
    safety: Annotated[Literal["read_only", "write", "destructive"] | None, SAFETY] = None
    """What it may do to the world. Only read-only tools are ever tried again."""
    in_order: Switch | None = None
    """Whether a call that may write waits for the calls before it in its turn, and those behind it wait for it; on by default."""
    retries: Retries | None = None
    """Further tries after a failure, for read-only tools; 0 by default."""
    require_approval: Annotated[RequireApproval | None, WAITS] = None
    """Whether its calls wait for approval: `never`, `always`, or lists of names; else the top-level one counts."""


class PlacedTool(ToolSection):
    """A tool that may run here or on a fleet of workers."""

    run_on: PoolName | None = None
    """The pool of `pools` whose workers run it; here where it is not set."""


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


def _scalars(query: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in query.items():
        if not isinstance(value, str | int | float):
            raise PydanticCustomError("scalar", "`{name}` should be a text, a number or a boolean", {"name": name})
    return query


MultiSegment: TypeAlias = Switch | Literal["encoded"]
SEGMENTS = WidensTo((False, "encoded", True))


class HttpTool(PlacedTool):
    """One HTTP request as a tool."""

    kind: Literal["http"]
    """`http`"""
    name: ToolName
    """What the model calls it."""
    description: Annotated[str, Field(min_length=1)]
    """The description that the model gets."""
    method: Annotated[
        Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
        BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
    ] = "GET"
    """The HTTP method."""
    url: Annotated[WebAddress, Field(repr=False), FIXED_IN_URL]
    """Where to send it. `{name}` stands for an argument, quoted as part of a path or a query."""
    multi_segment: Annotated[MultiSegment, SEGMENTS] = False
    """Let an argument in the path contain `/`: `on` for several segments, `encoded` to send it as `%2F`."""
    headers: Annotated[Mapping[str, SecretStr], FIXED] = Field(default_factory=dict)
    """Headers to send. Arguments are not filled in here."""
    query: Annotated[Mapping[str, Any], AfterValidator(_scalars), FIXED] = Field(default_factory=dict, repr=False)
    """Query parameters; `{name}` stands for an argument."""
    body: Annotated[Any, FIXED] = Field(None, repr=False)
    """What to send as JSON; a text that is nothing but `{name}` becomes the argument itself."""
    parameters: Annotated[Mapping[str, Any], ARGUMENTS] = Field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    """The JSON Schema of the arguments."""
    allow_private: Annotated[Switch, WIDENS_ON] = False
    """Allow private and loopback addresses, which are refused otherwise."""
    allow_hosts: Annotated[Globs, ADMITS] = ()
    """Hosts, as names or globs, whose private addresses may be reached all the same; networks are allowed whole."""


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
    limits: CommandLimits = CommandLimits()
    """What it may use."""
    paths: Annotated[CommandPaths | None, PRESENT] = None
    """The only places it may open; where not set, all that the user Callgate runs as may. Needs Landlock (Linux)."""
    pid_namespace: Annotated[Switch, WIDENS_OFF] = True
    """Run it in a PID namespace where the system has one (Linux): it sees no processes but its own, and none of them
    outlives it. Off for a command that is to look at the processes of the machine."""


class OpenApiTool(ToolSection):
    """Many tools from one OpenAPI document."""

    kind: Literal["openapi"]
    """`openapi`"""
    name: ToolName
    """What the API is called, for people; its tools have the names of their operations."""
    document: DocumentPlace
    """A file, from the folder this file is in, or an address; OpenAPI 3.0 or later, as YAML or JSON."""
    base_url: WebAddress | None = None
    """Where the API is; what the document says of its servers where it is not set."""
    auth: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Credentials by the names of the document's security schemes: a key, a token, or `user:password`."""
    headers: Annotated[Mapping[str, SecretStr], FIXED] = Field(default_factory=dict)
    """Headers to send with every call."""
    include: Annotated[Globs, Field(min_length=1), ADMITS] = ("*",)
    """Operations to offer, by their names, `METHOD /path` or tags; globs."""
    exclude: Annotated[Globs, EXCLUDES] = ()
    """Of these, the ones not to offer."""
    prefix: Annotated[str, shape(r"^[A-Za-z0-9_-]{0,40}$", "should be at most 40 letters, digits, `_` or `-`")] = ""
    """What goes before its tools' names, with `_` between."""
    rename: Mapping[str, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    """Other names for operations, by their names or globs; `{name}`, `{method}` and `{tag}` stand for those of each."""
    multi_segment: Annotated[MultiSegment, SEGMENTS] = False
    """Let an argument in a path contain `/`: `on` for several segments, `encoded` to send it as `%2F`."""
    allow_private: Annotated[Switch, WIDENS_ON] = False
    """Allow private and loopback addresses, which are refused otherwise."""
    allow_hosts: Annotated[Globs, ADMITS] = ()
    """Hosts, as names or globs, whose private addresses may be reached all the same; networks are allowed whole."""


ToolEntry: TypeAlias = Annotated[PythonTool | HttpTool | OpenApiTool | CommandTool, Field(discriminator="kind")]
"""One entry of `tools`. A further kind is one more class here, with a `kind` of its own."""
