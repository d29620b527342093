"""The base class of sections, and the types of single values."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    StringConstraints,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from callgate.untrusted.pydantic_readers import check_as


class Section(BaseModel):
    """A block of the file. Unknown keys are errors, and values are immutable."""

    model_config = ConfigDict(
        extra="forbid",
        defer_build=True,  # only the whole config is validated, so that sections need no validators
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        hide_input_in_errors=True,
    )

    @classmethod
    def by_default(cls, **values: Any) -> Self:
        """Return the section as it is where the file does not have it, with these values where they differ from those of its fields.
        It is not validated: the validator of one section takes half a millisecond of each start."""
        return cls.model_construct(**values)


class _Late:
    """Reads a value by a validator that is built for the first one."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._adapter: TypeAdapter[Any] | None = None

    def __call__(self, value: Any, info: ValidationInfo) -> Any:
        return check_as(self.adapter(), value, info.context)

    def adapter(self) -> TypeAdapter[Any]:
        if self._adapter is None:
            self._adapter = TypeAdapter(self._kind)
        return self._adapter

    def schema(self) -> CoreSchema:
        """Return the schema of what is read; of a model with its reference, which pydantic leaves out where nothing refers to it."""
        schema = self.adapter().core_schema
        if schema["type"] == "model":
            kind = schema["cls"]
            schema = {**schema, "ref": f"{kind.__module__}.{kind.__qualname__}:{id(kind)}"}
        return core_schema.definitions_schema(schema, [])


class _ReadLate:
    """Has the validator of a setting built when a file has it: those of all settings together take a tenth of a start, and a file
    has few of them. Stands directly behind the type in `Annotated`; what is validated is the same, and so are the errors."""

    def __get_pydantic_core_schema__(self, kind: Any, _: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(_Late(kind))

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema["function"]["function"].schema())


READ_LATE: Final = _ReadLate()


def _no_boolean(value: Any) -> Any:
    """Refuse booleans for numbers: `timeout: yes` would be one second."""
    if isinstance(value, bool):
        raise PydanticCustomError("number", "should be a number")
    return value


def off_or_on(value: Any) -> Any:
    """Convert booleans to `off` and `on`, which YAML reads as booleans."""
    if isinstance(value, bool):
        return {False: "off", True: "on"}.get(value, value)
    return value


NO_BOOLEAN = BeforeValidator(_no_boolean)
SHAPES: dict[str, str] = {}
"""Descriptions of the patterns below, for errors."""


def shape(pattern: str, words: str) -> StringConstraints:
    SHAPES[pattern] = words
    return StringConstraints(pattern=pattern)


FOLDER = "folder"
"""The key of the base folder for relative paths in the validation context."""


def _beside_the_file(path: str, info: ValidationInfo) -> str:
    return str(Path(info.context[FOLDER] if info.context else "").resolve() / path)


BesideFile: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_beside_the_file)]
"""A path, from the folder that the config file is in."""


def _beside_the_file_or_an_address(place: str, info: ValidationInfo) -> str:
    if place.startswith(("http://", "https://")):
        return place
    return _beside_the_file(place, info)


DocumentPlace: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_beside_the_file_or_an_address)]
"""A path like that, or a URL."""
Seconds: TypeAlias = Annotated[float, Field(gt=0), NO_BOOLEAN]
Count: TypeAlias = Annotated[int, Field(ge=1), NO_BOOLEAN]
Money: TypeAlias = Annotated[float, Field(ge=0), NO_BOOLEAN]
Retries: TypeAlias = Annotated[int, Field(ge=0, le=10), NO_BOOLEAN]
Switch: TypeAlias = Annotated[
    bool,
    PlainSerializer(lambda on: "on" if on else "off", when_used="json"),
    WithJsonSchema({"enum": ["on", "off", True, False]}),
]
Glob: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
Globs: TypeAlias = tuple[Glob, ...]
ToolEvents: TypeAlias = Annotated[Literal["off", "x", "reasoning", "openwebui"], BeforeValidator(off_or_on)]
"""How responses show that tools run."""
OfferSetting: TypeAlias = Literal["any", "with_client_tools"]
"""Which requests our tools are offered to."""
UsageSetting: TypeAlias = Literal["auto", "sum", "last_turn"]
"""Which token counts an answer reports."""
WebAddress: TypeAlias = Annotated[str, shape(r"^https?://[^/\s]+", "should be an address like `https://example.com`")]
Origin: TypeAlias = Annotated[
    str, shape(r"^(\*|https?://[^/\s]+)$", "should be an origin like `https://chat.example.com` (no path), or `*`")
]
HostName: TypeAlias = Annotated[
    str, shape(r"^(\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)$", "should be a name like `llm.example.com` (no port), or `*`")
]
RESERVED_NAME = "anonymous"
"""The name of whoever comes without a key, in recorded runs and metrics."""


def _not_reserved(name: str) -> str:
    if name == RESERVED_NAME:
        raise PydanticCustomError("reserved", "is the name of whoever comes without a key")
    return name


KeyName: TypeAlias = Annotated[
    str,
    shape(r"^[A-Za-z0-9._-]{1,64}$", "should be 1 to 64 letters, digits, `.`, `_` or `-`"),
    AfterValidator(_not_reserved),
]
KeyHash: TypeAlias = Annotated[
    str,
    shape(
        r"^sha256:[0-9a-f]{64}$",
        "should be `sha256:` and the 64 hex digits of the key's SHA-256; the key itself does not belong here",
    ),
]


def _a_moment(text: str) -> str:
    try:
        moment_of(text)
    except ValueError:
        raise PydanticCustomError(
            "moment", "should be a date like `2027-01-31`, or one with a time, `2027-01-31T12:00Z`"
        ) from None
    return text


def moment_of(text: str) -> float:
    """Return the seconds since the epoch, by default in UTC; a date is its midnight."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


Moment: TypeAlias = Annotated[str, AfterValidator(_a_moment)]
ToolName: TypeAlias = Annotated[str, shape(r"^[A-Za-z0-9_-]{1,64}$", "should be 1 to 64 letters, digits, `_` or `-`")]
FunctionPath: TypeAlias = Annotated[
    str, shape(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_][\w.]*$", "should be like `package.module:function`")
]
ModulePath: TypeAlias = Annotated[str, shape(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", "should be like `package.module`")]
