"""The shape of `config.yaml`: every setting, its default and what it means.

The outside comes in here, so this is pydantic: unknown keys are refused and the result is an immutable value.
Reading files, variables and secrets is `load`'s; acting on a setting is the business of the room it is for.
`python -m app.config.schema` prints the JSON Schema that editors use.
"""

import ast
import inspect
import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    SecretStr,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from app.config.problems import near

TextFormat: TypeAlias = Literal[
    "xml",
    "antml",
    "minimax",
    "deepseek_dsml",
    "qwen3_coder",
    "glm45",
    "hermes",
    "granite",
    "phi4",
    "mistral",
    "deepseek_v3",
    "deepseek_v31",
    "kimi_k2",
    "functionary_v32",
    "functionary_v31",
    "command_r",
    "harmony",
    "gemma4",
    "llama3_json",
    "litellm_json",
    "pythonic",
    "react",
]
ToolCalling: TypeAlias = Literal["auto", "native", "json", TextFormat]
CONSTRAINED: tuple[ToolCalling, ...] = ("auto", "json", "litellm_json", "llama3_json")
"""The formats whose call is one bare JSON object, which a server can be told the schema of."""
SchemaDialect: TypeAlias = Literal["auto", "full", "openai", "gemini", "anthropic", "llama_cpp"]
Lane: TypeAlias = Literal["auto", "direct", "translated", "litellm"]


def _no_boolean(value: Any) -> Any:
    """`timeout: yes` would otherwise be one second."""
    if isinstance(value, bool):
        raise PydanticCustomError("number", "should be a number")
    return value


_NO_BOOLEAN = BeforeValidator(_no_boolean)


def _off(value: Any) -> Any:
    """YAML reads an unquoted `off` as false."""
    return "off" if value is False else value


SHAPES: dict[str, str] = {}
"""What the patterns below ask for, in words, for errors."""


def _shape(pattern: str, words: str) -> StringConstraints:
    SHAPES[pattern] = words
    return StringConstraints(pattern=pattern)


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


FOLDER = "folder"
"""Under which `load` says, in the context of the validation, where relative paths start."""


def _beside_the_file(path: str, info: ValidationInfo) -> str:
    return str(Path(info.context[FOLDER] if info.context else "").resolve() / path)


BesideFile: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_beside_the_file)]
"""A path, from the folder that the config file is in."""


def _beside_the_file_or_an_address(place: str, info: ValidationInfo) -> str:
    return place if place.startswith(("http://", "https://")) else _beside_the_file(place, info)


DocumentPlace: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_beside_the_file_or_an_address)]
"""A path like that, or an address."""
Seconds: TypeAlias = Annotated[float, Field(gt=0), _NO_BOOLEAN]
Count: TypeAlias = Annotated[int, Field(ge=1), _NO_BOOLEAN]
Money: TypeAlias = Annotated[float, Field(ge=0), _NO_BOOLEAN]
Retries: TypeAlias = Annotated[int, Field(ge=0, le=10), _NO_BOOLEAN]
Switch: TypeAlias = Annotated[
    bool,
    PlainSerializer(lambda on: "on" if on else "off", when_used="json"),
    WithJsonSchema({"enum": ["on", "off", True, False]}),
]
Glob: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
Globs: TypeAlias = tuple[Glob, ...]
WebAddress: TypeAlias = Annotated[str, _shape(r"^https?://[^/\s]+", "should be an address like `https://example.com`")]
Origin: TypeAlias = Annotated[
    str, _shape(r"^(\*|https?://[^/\s]+)$", "should be an origin like `https://chat.example.com` (no path), or `*`")
]
KeyName: TypeAlias = Annotated[
    str, _shape(r"^[A-Za-z0-9._-]{1,64}$", "should be 1 to 64 letters, digits, `.`, `_` or `-`")
]
KeyHash: TypeAlias = Annotated[
    str,
    _shape(
        r"^sha256:[0-9a-f]{64}$",
        "should be `sha256:` and the 64 hex digits of the key's SHA-256; the key itself does not belong here",
    ),
]
ToolName: TypeAlias = Annotated[str, _shape(r"^[A-Za-z0-9_-]{1,64}$", "should be 1 to 64 letters, digits, `_` or `-`")]
FunctionPath: TypeAlias = Annotated[
    str, _shape(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_][\w.]*$", "should be like `package.module:function`")
]
ModulePath: TypeAlias = Annotated[str, _shape(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", "should be like `package.module`")]


class Section(BaseModel):
    """A block of the file. Unknown keys are mistakes, and nothing changes after reading."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        hide_input_in_errors=True,
    )


class Server(Section):
    """Where Callgate listens, and how it treats connections."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """The address to listen on. Any address that is not loopback needs `keys`, or `auth: off`."""
    port: Annotated[int, Field(ge=0, le=65535), _NO_BOOLEAN] = 8000
    """The port to listen on; 0 lets the system choose."""
    public_url: WebAddress | None = None
    """The address clients reach it under, when a proxy stands in front."""
    cors_origins: tuple[Origin, ...] = ()
    """Web pages that may call it from a browser, as origins (`https://chat.example.com`); `*` for any."""
    drain_seconds: Annotated[float, Field(ge=0), _NO_BOOLEAN] = 30.0
    """How long requests may go on after SIGTERM."""
    connections: Annotated[int, Field(ge=1), _NO_BOOLEAN] = 2000
    """Open connections; beyond it only health is answered, and idle ones are closed first."""
    header_bytes: Annotated[int, Field(ge=1024), _NO_BOOLEAN] = 65_536
    """The size of a request's headers; larger ones get a 431."""
    header_seconds: Seconds = 10.0
    """How long a request's headers may take to come."""
    body_seconds: Seconds = 10.0
    """The longest silence while a request's body comes; on average it has to make 1 KiB a second."""
    idle_seconds: Seconds = 75.0
    """How long a connection is kept open between two requests."""
    first_chunk_seconds: Annotated[float, Field(ge=0), _NO_BOOLEAN] = 5.0
    """How long a stream's HTTP status is held back for the model's first chunk, so that errors can be typed."""
    heartbeat_seconds: Seconds = 10.0
    """How often a silent stream is kept alive with an empty chunk."""


class Key(Section):
    """One client's key."""

    name: KeyName
    """Who it is; appears in logs."""
    hash: KeyHash
    """`sha256:` and the hex digest of the key. The key itself is never written down."""
    models: Globs = ("*",)
    """The models it may ask, as names or globs."""
    tools: Globs = ("*",)
    """The tools of the house it may use, as names or globs; `[]` for none."""
    approve: Switch = False
    """It may decide about calls that wait for approval, its own and everybody's."""
    admin: Switch = False
    """It may have the config read again."""
    requests_per_minute: Count | None = None
    """How many requests it may make in any minute; no limit where it is not set."""
    tokens_per_minute: Count | None = None
    """How many tokens, of questions and answers, it may use in any minute."""
    parallel: Count | None = None
    """How many of its requests may be under way at once, in each process."""
    budget_per_day: Money | None = None
    """US dollars it may spend in a day (UTC), by litellm's prices or those in `model_info`."""
    budget_per_month: Money | None = None
    """US dollars it may spend in a month (UTC)."""


class LitellmParams(BaseModel):
    """litellm's parameters for one model, any of them, passed on as they are.

    Its repr names the parameters without their values: any of them may be a secret.
    """

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=(), hide_input_in_errors=True)

    model: Annotated[str, Field(min_length=1, description="litellm's name of the model: `provider/model`.")]
    api_key: SecretStr | None = Field(None, description="The provider's key; `os.environ/NAME` is the usual way.")
    api_base: str | None = Field(None, description="The provider's address, where it is not the usual one.")

    def reveal(self) -> dict[str, Any]:
        """The parameters as litellm takes them, secrets included. A copy; what is not set is left out."""
        named: dict[str, Any] = {"model": self.model}
        if self.api_key is not None:
            named["api_key"] = self.api_key.get_secret_value()
        if self.api_base is not None:
            named["api_base"] = self.api_base
        return named | dict(self.__pydantic_extra__ or {})

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        yield "model", self.model
        yield "others", sorted(self.reveal().keys() - {"model"})


class ModelEntry(Section):
    """One entry of `model_list`: litellm's block as it is, and what Callgate adds to it."""

    model_name: Annotated[str, Field(min_length=1)]
    """The name clients ask for. `openai/*` stands for all models of a provider; the same name twice shares the load."""
    litellm_params: LitellmParams
    """Which model it is and how to reach it, in litellm's words."""
    model_info: Mapping[str, Any] = Field(default_factory=dict, repr=False)
    """What litellm should know of a model it does not know, for example `supports_function_calling`."""
    tools: Globs = ()
    """The tools of the house that are offered to it, as names or globs; none unless named."""
    fallbacks: tuple[str, ...] = ()
    """Models to ask instead when this one fails before it has said anything, in order."""
    tool_calling: ToolCalling = "auto"
    """How it calls tools: natively, or asked in the prompt and read back from its text in the format named."""
    constrain_calls: Switch = False
    """Have the server enforce the form of a demanded call; for bare JSON formats and servers that know `json_schema`."""
    lane: Lane = "auto"
    """Who speaks to it: Callgate itself, Callgate with litellm's translation (anthropic/ models), or litellm alone."""
    concurrency: Count | None = None
    """How many requests may be under way with it; further ones get a 503. Entries with one name add up."""
    response_format_with_tools: Switch = True
    """Whether its provider takes a `response_format` beside tools. If not, the format is kept back until the model has
    no more calls to make, and the answer is then asked for once more, without tools."""
    schema_dialect: SchemaDialect = "auto"
    """What its provider takes of JSON Schema, for the schemas of the house's tools; `auto` goes by the provider."""
    timeout: Seconds | None = None
    """Seconds for a whole answer; `upstream.total_seconds` where it is not set."""
    stream_timeout: Seconds | None = None
    """Seconds a stream may be silent; `upstream.idle_seconds` where it is not set."""

    @model_validator(mode="after")
    def _can_be_constrained(self) -> "ModelEntry":
        if self.constrain_calls and self.tool_calling not in CONSTRAINED:
            raise PydanticCustomError(
                "constrain_calls",
                "`constrain_calls` works only with `tool_calling: {formats}`",
                {"formats": "`, `".join(CONSTRAINED)},
            )
        return self


class ApprovalLists(Section):
    """Which tools wait for a person's word. Of the patterns that name a tool, the one that spells out most counts."""

    always: Globs = ()
    """Tools whose calls wait, as names or globs; `safety:destructive` names all tools of that class."""
    never: Globs = ()
    """Tools whose calls do not wait, in the same way."""


class _OrOneWord:
    """Lets `never` and `always` stand for the lists that say it of all tools."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._lists, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"enum": ["never", "always"]}, handler(schema)]}

    def _lists(self, value: Any) -> Any:
        if value in ("never", "always"):
            return {value: ["*"]}
        if not isinstance(value, (Mapping, ApprovalLists)):
            message = "should be `never`, `always`, or a mapping with lists of names under `never` and `always`"
            raise PydanticCustomError("approval", message)
        return value


RequireApproval: TypeAlias = Annotated[ApprovalLists, _OrOneWord()]


class ToolSection(Section):
    """What every kind of tool may say. Where a policy is not set, the tool's own applies, or the house's."""

    timeout: Seconds | None = None
    """Seconds for one call, retries included; 30 where nobody says otherwise."""
    concurrency: Count | None = None
    """How many calls may run at once; unlimited where nobody says otherwise."""
    max_result_bytes: Annotated[int, Field(ge=256), _NO_BOOLEAN] | None = None
    """How much of a result the model gets; `limits.tool_result_bytes` where nobody says otherwise."""
    safety: Literal["read_only", "write", "destructive"] | None = None
    """What it may do to the world. Only read-only tools are ever tried again."""
    retries: Retries | None = None
    """Further tries after a failure, for read-only tools; 0 where nobody says otherwise."""
    require_approval: RequireApproval | None = None
    """Whether its calls wait for a person's word: `never`, `always`, or lists of names; else the top-level one counts."""


class PythonTool(ToolSection):
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
    """What the model is told about the function; its docstring where it is not set."""

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


class HttpTool(ToolSection):
    """One HTTP request as a tool."""

    kind: Literal["http"]
    """`http`"""
    name: ToolName
    """What the model calls it."""
    description: Annotated[str, Field(min_length=1)]
    """What the model is told about it."""
    method: Annotated[Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"], BeforeValidator(_upper)] = "GET"
    """The HTTP method."""
    url: Annotated[WebAddress, Field(repr=False)]
    """Where to send it. `{name}` stands for an argument, quoted as part of a path or a query."""
    headers: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Headers to send. Arguments are not filled in here."""
    query: Annotated[Mapping[str, Any], AfterValidator(_scalars)] = Field(default_factory=dict, repr=False)
    """Query parameters; `{name}` stands for an argument."""
    body: Any = Field(None, repr=False)
    """What to send as JSON; a text that is nothing but `{name}` becomes the argument itself."""
    parameters: Mapping[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """The JSON Schema of the arguments."""
    allow_private: Switch = False
    """Allow private and loopback addresses, which are refused otherwise."""
    allow_hosts: Globs = ()
    """Hosts, as names or globs, whose private addresses may be reached all the same; networks are allowed whole."""


class CommandLimits(Section):
    """What a command may use. All but `processes` hold for each process of it."""

    cpu_seconds: Count = 30
    """Seconds of processor time."""
    memory_bytes: Annotated[int, Field(ge=1_048_576), _NO_BOOLEAN] = 1_073_741_824
    """Memory of its own; libraries it shares do not count."""
    file_bytes: Annotated[int, Field(ge=0), _NO_BOOLEAN] = 104_857_600
    """The largest file it may write."""
    open_files: Annotated[int, Field(ge=8), _NO_BOOLEAN] = 256
    """Files open at once."""
    processes: Count = 64
    """Processes at once, itself included."""


class CommandPaths(Section):
    """The only places a command may open, beside the system's own programs and libraries."""

    read: tuple[BesideFile, ...] = ()
    """Files and folders it may read, and run."""
    write: tuple[BesideFile, ...] = ()
    """Files and folders it may also write."""


class CommandTool(ToolSection):
    """A command line as a tool. No shell reads it."""

    kind: Literal["command"]
    """`command`"""
    name: ToolName
    """What the model calls it."""
    description: Annotated[str, Field(min_length=1)]
    """What the model is told about it."""
    argv: Annotated[tuple[str | tuple[str, ...], ...], Field(min_length=1)]
    """The program and its arguments; `{name}` stands for an argument of the call. A list in it is left out as a whole
    when one of its arguments is not given."""
    stdin: str | None = None
    """What it reads: `json` for all arguments as one object, or a text with places like `{name}`; nothing if not set."""
    parameters: Mapping[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """The JSON Schema of the arguments."""
    cwd: Annotated[BesideFile, Field(validate_default=True)] = "."
    """The folder it runs in; the one this file is in where it is not set."""
    env: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Its environment. Of Callgate's own it has only PATH and TZ."""
    allow_options: Switch = False
    """Let an argument's value begin with a dash where it begins an element of `argv`, and so be an option."""
    ok_codes: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    """Exit codes that are no failure."""
    limits: CommandLimits = CommandLimits()
    """What it may use."""
    paths: CommandPaths | None = None
    """The only places it may open; where not set, all that the user Callgate runs as may. Needs Landlock (Linux)."""


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
    headers: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Headers to send with every call."""
    include: Annotated[Globs, Field(min_length=1)] = ("*",)
    """Operations to offer, by their names, `METHOD /path` or tags; globs."""
    exclude: Globs = ()
    """Of these, the ones not to offer."""
    allow_private: Switch = False
    """Allow private and loopback addresses, which are refused otherwise."""
    allow_hosts: Globs = ()
    """Hosts, as names or globs, whose private addresses may be reached all the same; networks are allowed whole."""


ToolEntry: TypeAlias = Annotated[PythonTool | HttpTool | OpenApiTool | CommandTool, Field(discriminator="kind")]
"""One entry of `tools`. A further kind is one more class here, with a `kind` of its own."""


def _plain_text(value: Any) -> Any:
    """Numbers and booleans stand unquoted in other programs' files, and mean their text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


_OF_OTHER_CLIENTS = frozenset({"alwaysAllow", "autoApprove", "description", "gallery", "icon", "version"})
"""What other programs keep in a server's entry for themselves: about their own screens, or of no effect here."""
ServerKind: TypeAlias = Literal["stdio", "http", "streamable-http", "streamableHttp", "sse"]
ServerName: TypeAlias = Annotated[
    str,
    _shape(
        r"^[^\s*?\[\]][^*?\[\]\x00-\x1f]{0,127}$", "should be a name of at most 128 characters without `*`, `?`, `[`"
    ),
]


class McpServer(ToolSection):
    """An MCP server, as other programs write it, and what Callgate adds to it."""

    type: ServerKind | None = Field(None, validation_alias=AliasChoices("type", "transport"))
    """How it is spoken to; found out where it is not set."""
    command: Annotated[str, Field(min_length=1)] | None = None
    """The program that is the server. It is started with a clean environment and ended with all it started."""
    args: tuple[Annotated[str, BeforeValidator(_plain_text)], ...] = ()
    """The program's arguments."""
    env: Mapping[str, Annotated[SecretStr, BeforeValidator(_plain_text)]] = Field(default_factory=dict)
    """Variables for the program, beside `PATH`, `HOME` and the like."""
    cwd: BesideFile | None = None
    """The folder it runs in, from the config file's folder; Callgate's own where it is not set."""
    url: WebAddress | None = Field(None, repr=False)
    """The address of a server that runs elsewhere."""
    headers: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Headers to send to it. A caller's credentials never are."""
    allow_private: Switch | None = None
    """Allow its host to have a private address. Not set: if the address is plainly your own, as localhost is."""
    disabled: Switch = False
    """Leave it out."""
    allowed_tools: Globs | None = None
    """The tools of it that are taken, by its own names for them or globs; all where it is not set."""
    prefix: (
        Annotated[str, _shape(r"^[A-Za-z0-9_-]{0,40}$", "should be at most 40 letters, digits, `_` or `-`")] | None
    ) = None
    """What goes before its tools' names, with `_` between; its name where it is not set, nothing where it is empty."""

    @model_validator(mode="before")
    @classmethod
    def _without_others_words(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if name not in _OF_OTHER_CLIENTS}

    @model_validator(mode="after")
    def _one_way_to_it(self) -> "McpServer":
        if (self.command is None) == (self.url is None):
            raise PydanticCustomError("one_of", "needs either `command` or `url`")
        if self.type is not None and (self.type == "stdio") != (self.command is not None):
            needed = "command" if self.type == "stdio" else "url"
            raise PydanticCustomError(
                "one_of", "`type: {type}` goes with `{needed}`", {"type": self.type, "needed": needed}
            )
        if self.command is not None and self.headers:
            raise PydanticCustomError("one_of", "`headers` go with `url`")
        if self.url is not None and (self.args or self.env or self.cwd):
            raise PydanticCustomError("one_of", "`args`, `env` and `cwd` go with `command`")
        return self


class Loop(Section):
    """How long a chat may go on."""

    max_iterations: Annotated[int, Field(ge=1, le=100), _NO_BOOLEAN] = 10
    """Turns that run tools; after that the model is asked once more, without tools."""
    max_failed_turns: Count = 3
    """Turns running whose every call was broken or failed, until the loop ends as at its limit."""
    max_repeats: Count = 3
    """Turns running with the same call and the same result, until the loop ends as at its limit. More for tools that are
    asked again until something is ready."""
    max_parallel_calls: Annotated[int, Field(ge=1, le=256), _NO_BOOLEAN] = 8
    """Calls of one turn that run at the same time."""
    diagnostics: Switch = True
    """Say in `x_callgate` what happened in each turn."""


class Limits(Section):
    """What one request may cost. What goes beyond is refused, cut or ended, with a clear word."""

    body_bytes: Annotated[int, Field(ge=1024), _NO_BOOLEAN] = 10_000_000
    """The size of a request's body."""
    json_depth: Annotated[int, Field(ge=8, le=500), _NO_BOOLEAN] = 100
    """How deep a request's JSON may be nested."""
    messages: Count = 2000
    """Messages in a request."""
    argument_bytes: Annotated[int, Field(ge=1024), _NO_BOOLEAN] = 10_000_000
    """The size of one call's arguments."""
    calls_per_turn: Count = 64
    """Calls in one turn."""
    answer_bytes: Annotated[int, Field(ge=1024), _NO_BOOLEAN] = 67_108_864
    """The size of one answer of a model as it comes over the wire. Answers that litellm reads are not counted."""
    tool_threads: Count = 32
    """Threads of all tools that are Python functions; further calls wait."""
    child_processes: Count = 16
    """Commands that run at a time, of all tools of the kind `command`; further ones wait."""
    request_seconds: Seconds = 600.0
    """Wall-clock time of a whole request, all turns and tools included."""
    request_tokens: Count = 2_000_000
    """Tokens of all turns of a request, as providers report them; then the model answers without tools."""
    tool_result_bytes: Annotated[int, Field(ge=256), _NO_BOOLEAN] = 65_536
    """How much of a tool's result the model gets, unless the tool says otherwise."""
    concurrent_requests: Count = 1000
    """How many requests may be under way at once; further ones get a 503."""
    queue_seconds: Annotated[float, Field(ge=0), _NO_BOOLEAN] = 0.1
    """How long a request waits for a place before it is turned away."""
    redis_down: Literal["open", "closed"] = "open"
    """What becomes of keys with limits while `store.redis_url` does not answer: `open` counts in each process alone,
    `closed` refuses them."""


class Approvals(Section):
    """How calls wait for a person's word."""

    timeout_seconds: Seconds = 300.0
    """How long a call waits; then it is not run and the model is told. `limits.request_seconds` goes on meanwhile."""
    max_waiting: Count = 100
    """Calls that may wait at the same time; further ones are refused at once."""
    demand_hash: Switch = False
    """Take a decision only together with the hash of the arguments it is about."""


class Upstream(Section):
    """How patient Callgate is with models."""

    connect_seconds: Seconds = 10.0
    """Until a connection stands."""
    first_byte_seconds: Seconds = 120.0
    """Until an answer begins."""
    idle_seconds: Seconds = 120.0
    """How long a stream may be silent."""
    total_seconds: Seconds = 600.0
    """For one whole answer."""
    retries: Retries = 2
    """Further tries of a turn of which nothing was passed on yet."""
    client: Literal["lean", "aiohttp"] = "lean"
    """What carries the requests: `lean` is our own and fast; `aiohttp` takes `HTTP_PROXY` and `HTTPS_PROXY` from the environment."""


def _redis_address(url: SecretStr) -> SecretStr:
    if not re.match(r"(rediss?://[^/\s]|unix:///?\S)", url.get_secret_value()):
        raise PydanticCustomError("shape", "should be an address like `redis://host:6379/0`")
    return url


class Store(Section):
    """Where what outlives a request is kept: turns that clients see a part of, and answers to be given again."""

    redis_url: Annotated[SecretStr, AfterValidator(_redis_address)] | None = None
    """A Redis server (`redis://host:6379/0`) for several processes that serve the same clients. Without it everything
    is kept in memory, and forgotten when the process ends."""
    prefix: str = "callgate:"
    """What all keys in Redis begin with."""
    conversation_seconds: Seconds = 86_400.0
    """How long a chat is remembered whose client was given calls of its own to answer; each return begins it anew."""
    answer_seconds: Seconds = 86_400.0
    """How long an answer is kept for a request that comes again with the same `Idempotency-Key`."""
    entries: Count = 20_000
    """How many things memory holds; beyond that the oldest is forgotten."""
    bytes: Annotated[int, Field(ge=1024), _NO_BOOLEAN] = 268_435_456
    """How many bytes memory holds."""


class Reload(Section):
    """Reading this file again while Callgate runs. SIGHUP and `POST /admin/reload` always do."""

    watch: Switch = True
    """Read it again when it changes."""


class Logging(Section):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important kind of line that is written."""
    format: Literal["auto", "json", "console"] = "auto"
    """`auto` is for people on a terminal and JSON lines elsewhere."""
    content: Switch = False
    """Write arguments and results of tools too. They may hold anything; secrets known to Callgate are masked."""


def _at_least_one(models: tuple[ModelEntry, ...]) -> tuple[ModelEntry, ...]:
    """Not a minimal length: pydantic would also count entries that have mistakes of their own as not there."""
    if not models:
        raise PydanticCustomError("no_models", "should name at least one model")
    return models


class Config(Section):
    """All of `config.yaml`."""

    version: Literal[1] = 1
    """The version of this file's format."""
    server: Server = Server()
    """Where Callgate listens, and how it treats connections."""
    auth: Annotated[Literal["keys", "off"], BeforeValidator(_off)] = "keys"
    """`keys`: clients need one of `keys`; without any, only loopback is served. `off`: everyone is let in."""
    keys: tuple[Key, ...] = ()
    """The clients' keys."""
    model_list: Annotated[
        tuple[ModelEntry, ...], AfterValidator(_at_least_one), Field(json_schema_extra={"minItems": 1})
    ]
    """The models, as litellm has them."""
    data_dir: BesideFile | None = None
    """A folder for what has to survive the process: the ledger of tool runs, what keys have spent, and keys made by
    `callgate keys create`; from the folder this file is in. Without one nothing is written."""
    tools: tuple[ToolEntry, ...] = ()
    """The tools of the house."""
    mcp_servers: Mapping[ServerName, McpServer] = Field(
        default_factory=dict, validation_alias=AliasChoices("mcp_servers", "mcpServers", "servers")
    )
    """MCP servers by name, as other programs write them; the block may also be called `mcpServers` or `servers`."""
    mcp_config: str | None = None
    """A file with such a block, for example `./mcp.json`; JSON, comments allowed."""
    require_approval: RequireApproval = ApprovalLists()
    """Which tools' calls wait for a person's word, where a tool's own entry does not say."""
    approvals: Approvals = Approvals()
    """How calls wait for a person's word."""
    loop: Loop = Loop()
    """How long a chat may go on."""
    limits: Limits = Limits()
    """What one request may cost."""
    upstream: Upstream = Upstream()
    """How patient Callgate is with models."""
    store: Store = Store()
    """Where what outlives a request is kept."""
    reload: Reload = Reload()
    """Reading this file again while Callgate runs."""
    logging: Logging = Logging()
    """What is written to standard error."""

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "Config":
        mistakes = [*_repeated_keys(self), *_models_at_odds(self), *_lost_fallbacks(self), *_repeated_tools(self)]
        if mistakes:
            raise ValidationError.from_exception_data("Config", [_line_error(*mistake) for mistake in mistakes])
        return self


Mistake: TypeAlias = tuple[tuple[str | int, ...], str]


def _line_error(loc: tuple[str | int, ...], message: str) -> InitErrorDetails:
    # Braces are placeholders to pydantic's templates, and names the operator chose may hold them.
    return InitErrorDetails(type=PydanticCustomError("config", "{message}", {"message": message}), loc=loc, input=None)


def _repeated_keys(config: Config) -> Iterator[Mistake]:
    names: set[str] = set()
    hashes: set[str] = set()
    for index, key in enumerate(config.keys):
        if key.name in names:
            yield ("keys", index, "name"), f"another key is called `{key.name}`"
        if key.hash in hashes:
            yield ("keys", index, "hash"), "another entry has the same hash: two names for one key"
        names.add(key.name)
        hashes.add(key.hash)


def _models_at_odds(config: Config) -> Iterator[Mistake]:
    """Which deployment of a name answers is chance; which tools a client meets must not be."""
    tools: dict[str, Globs] = {}
    for index, entry in enumerate(config.model_list):
        if tools.setdefault(entry.model_name, entry.tools) != entry.tools:
            yield (
                ("model_list", index, "tools"),
                f"the entries of `{entry.model_name}` share its load and must name the same tools",
            )


def _lost_fallbacks(config: Config) -> Iterator[Mistake]:
    names = [entry.model_name for entry in config.model_list]
    patterns = [re.compile(re.escape(name).replace(r"\*", ".*") + r"\Z", re.DOTALL) for name in names]
    for index, entry in enumerate(config.model_list):
        for at, fallback in enumerate(entry.fallbacks):
            loc = ("model_list", index, "fallbacks", at)
            if fallback == entry.model_name:
                yield loc, "a model cannot be its own fallback"
            elif not any(pattern.match(fallback) for pattern in patterns):
                yield loc, f"no model of `model_list` is called that{near(fallback, names)}"


def _repeated_tools(config: Config) -> Iterator[Mistake]:
    names: set[str] = set()
    for index, tool in enumerate(config.tools):
        if tool.name is None:
            continue
        if tool.name in names:
            yield ("tools", index, "name"), f"another tool is called `{tool.name}`"
        if isinstance(tool, OpenApiTool) and tool.name in config.mcp_servers:
            yield ("tools", index, "name"), f"an MCP server is called `{tool.name}`"
        names.add(tool.name)


REFERENCE = {
    "type": "string",
    "pattern": r"^(os\.environ/|file:/|file:\./|.*\$\{)",
    "description": "A reference that is resolved at start: os.environ/NAME, ${NAME}, ${NAME:-default} or file:/path.",
}
"""Where a number or a choice is due, its text may also come from a variable or a file."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `config.yaml`, for editors."""
    schema = Config.model_json_schema()
    _explain(schema)
    for definition in [schema, *schema["$defs"].values()]:
        properties = definition.get("properties", {})
        for name, found in properties.items():
            properties[name] = _or_reference(found)
    schema["$defs"]["Reference"] = REFERENCE
    for name in schema["properties"].keys() - set(schema["required"]):
        schema["properties"][name] = _or_empty(schema["properties"][name])
    for alias in ("mcpServers", "servers"):
        schema["properties"][alias] = schema["properties"]["mcp_servers"]
    server = schema["$defs"]["McpServer"]["properties"]
    server["transport"] = server["type"]
    server |= {name: {} for name in sorted(_OF_OTHER_CLIENTS)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Callgate's config.yaml"}


def _explain(schema: dict[str, Any]) -> None:
    """Put the text below each setting to it. Only here: pydantic would read this file's source at every start."""
    texts = dict(_texts())
    for name, definition in [(Config.__name__, schema), *schema["$defs"].items()]:
        properties = definition.get("properties", {})
        for base in globals()[name].__mro__:
            for field, text in texts.get(base.__name__, {}).items():
                alias = base.model_fields[field].alias or field
                properties[alias] = dict(sorted({"description": text, **properties[alias]}.items()))


def _texts() -> Iterator[tuple[str, dict[str, str]]]:
    """For each class of this file the texts that stand below its fields."""
    for block in ast.parse(Path(__file__).read_text()).body:
        if isinstance(block, ast.ClassDef):
            texts = {}
            for field, below in itertools.pairwise(block.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        texts[name] = inspect.cleandoc(text)
            yield block.name, texts


def _or_empty(block: dict[str, Any]) -> dict[str, Any]:
    """`load` takes a block whose lines are all commented out for its defaults."""
    may_be_empty = block.get("type") in {"array", "object"} or "$ref" in block
    return {"anyOf": [block, {"type": "null"}]} if may_be_empty else block


def _or_reference(found: dict[str, Any]) -> dict[str, Any]:
    choices: list[dict[str, Any]] = found.get("anyOf", [found])
    if not any(map(_refuses_references, choices)):
        return found
    aside: dict[str, Any] = {name: found[name] for name in ("title", "description", "default") if name in found}
    bare = [{name: value for name, value in choice.items() if name not in aside} for choice in choices]
    return {**aside, "anyOf": [*bare, {"$ref": "#/$defs/Reference"}]}


def _refuses_references(choice: dict[str, Any]) -> bool:
    return choice.get("type") in {"integer", "number", "boolean"} or not choice.keys().isdisjoint({"enum", "pattern"})


def json_schema_text() -> str:
    """The JSON Schema as it is written to `config.schema.json`."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(json_schema_text())
