"""Translates pydantic's errors into messages for the operator, with the place in the file."""

import functools
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType, UnionType
from typing import Any, Final, get_args, get_origin

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from callgate.config.document import Document, Path, dotted
from callgate.config.mcp_file import BLOCKS
from callgate.config.problems import Problem, Spot, near
from callgate.config.schema.values import SHAPES
from callgate.config.schema.whole import Config
from callgate.models.settings import LitellmParams, ModelEntry


def problems_of(document: Document, error: ValidationError) -> Iterator[Problem]:
    unresolved = {problem.path for problem in document.problems}
    for details in error.errors(include_url=False, include_input=False):
        path, value = _in_document(document, details["loc"])
        if dotted(path) in unresolved:
            continue
        yield Problem(_spot(document, path, details["type"]), dotted(path), _message(document, path, value, details))


def _in_document(document: Document, loc: Path) -> tuple[Path, Any]:
    """Return the place of an error in the file, without the chosen kind and union members that pydantic includes."""
    path: list[str | int] = []
    value = document.value
    kinds_passed: set[int] = set()
    for at, part in enumerate(loc):
        last = at == len(loc) - 1
        if isinstance(value, dict) and part == value.get("kind") and id(value) not in kinds_passed:
            kinds_passed.add(id(value))  # the next part of that name is a key
            continue
        if isinstance(value, dict) and (part in value or last):
            value = value.get(str(part))
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            continue
        path.append(part)
    return tuple(path), value


def _spot(document: Document, path: Path, kind: str) -> Spot:
    if kind == "extra_forbidden":
        places = [document.keys, document.values]
    else:
        places = [document.values, document.keys]
    for end in range(len(path), -1, -1):
        for place in places:
            if spot := place.get(path[:end]):
                return spot
    return Spot(document.source)


_PLAIN_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "missing": "is required",
        "number": "should be a number",
        "string_type": "should be a text: put it into quotes",
        "int_type": "should be a whole number",
        "int_parsing": "should be a whole number",
        "int_from_float": "should be a whole number",
        "float_type": "should be a number",
        "float_parsing": "should be a number",
        "finite_number": "should be a number",
        "bool_type": "should be `on` or `off`",
        "bool_parsing": "should be `on` or `off`",
        "tuple_type": "should be a list",
        "list_type": "should be a list",
        "dict_type": "should be a mapping of keys to values",
        "mapping_type": "should be a mapping of keys to values",
        "model_type": "should be a mapping of keys to values",
        "model_attributes_type": "should be a mapping of keys to values",
        "string_too_short": "should not be empty",
    }
)


def _message(document: Document, path: Path, value: Any, details: ErrorDetails) -> str:
    kind = details["type"]
    context = details.get("ctx", {})
    if advice := _advice(document, path, value, kind):
        return advice
    match kind:
        case "extra_forbidden":
            return _unknown_key(path, details)
        case "literal_error" | "union_tag_invalid":
            choices = str(context.get("expected", context.get("expected_tags"))).replace(" or ", ", ").split(", ")
            return _not_a_choice(document, path, value, [choice.strip("'") for choice in choices], kind)
        case "string_pattern_mismatch":
            return SHAPES.get(context["pattern"], "is not of the right form")
        case "union_tag_not_found":
            chosen: Any = functools.reduce(_step, details["loc"], Config)
            fields = [member.model_fields["kind"] for member in _members(chosen)]
            return f"needs a `kind`: {_alternatives([tag for field in fields for tag in get_args(field.annotation)])}"
        case "missing" if path == ("model_list",):
            return "is required; the built-in model is `{model_name: demo, litellm_params: {model: demo/demo}}`"
        case _:
            return _PLAIN_WORDS.get(kind) or details["msg"].removeprefix("Input ")


def _unknown_key(path: Path, details: ErrorDetails) -> str:
    key = str(path[-1])
    if path in _REMOVED:
        return f"`{key}` is no setting any more: {_REMOVED[path]}"
    if len(path) == 1 and key in _OF_LITELLM_PROXY:
        instead = _OF_LITELLM_PROXY[key]
        return f"unknown key `{key}`; of a litellm proxy's file only `model_list` is read: {instead}"
    if len(path) == 1 and key in ModelEntry.model_fields:
        return f"unknown key `{key}`; it belongs into an entry of `model_list`"
    # Find the keys of a block by following the error's place in the schema.
    section = Config
    for part in details["loc"][:-1]:
        section = _step(section, part)
    if _is_section(section):
        allowed = [field.alias or name for name, field in section.model_fields.items()]
    else:
        allowed = []
    if (other := _OTHER_WORDS.get(key)) in allowed:
        return f"unknown key `{key}`; what it means elsewhere is `{other}` here"
    if len(path) == 3 and path[0] == "model_list" and key in LitellmParams.model_fields:
        return f"unknown key `{key}`; it belongs under `litellm_params`: indent it below that line"
    hint = near(key, allowed)
    if not hint and len(path) == 3 and path[0] == "model_list":
        return f"unknown key `{key}`; parameters of the model belong under `litellm_params`"
    all_known = f"; known here: {', '.join(allowed)}" if allowed else ""
    return f"unknown key `{key}`{hint or all_known}"


def _advice(document: Document, path: Path, value: Any, kind: str) -> str | None:
    """Return what to write instead, for mistakes whose value says what was meant."""
    match kind:
        case "string_type" if isinstance(value, dict) and len(path) > 2 and path[2] == "tools":
            return "should be the name of a tool; tools themselves are defined under `tools` at the top of the file"
        case "tuple_type" if path and path[-1] in _LIST_EXAMPLES and len(path) > 1:
            return f"should be a list, such as `{_LIST_EXAMPLES[path[-1]]}`"
        case "tuple_type" if path == ("tools",):
            return "should be a list: write each tool below it, beginning with `- kind: ...`"
        case "tuple_type" if isinstance(value, str) and _WORD.fullmatch(value) and path not in document.referred:
            return f"should be a list: write `[{value}]`"
        case "float_parsing" if isinstance(value, str) and (seconds := _DURATION.fullmatch(value)):
            number = float(seconds[1]) * _UNITS[seconds[2]]
            return f"should be a number of seconds: write `{number:g}`"
        case "model_type" | "model_attributes_type" if value is None and path[-1:] == ("litellm_params",):
            return "is empty: indent `model: provider/name` below it"
        case "string_pattern_mismatch" if isinstance(value, str) and path[-1:] in (("module",), ("function",)):
            plain = value.removeprefix("./").replace(".py", "").replace("/", ".")
            is_path = ".py" in value or "/" in value
            if is_path:
                return f"{_PATHS[path[-1]]}: write `{plain}`, without `./` and `.py`"
            return None
        case "missing" if path == ("model_list",) and _is_file_of_servers(document.value):
            return (
                "is required; a file of MCP servers alone is no config: name it with `mcp_config` in one, "
                "or write a `model_list` into it too"
            )
        case _:
            return None


_WORD: Final = re.compile(r"[\w.-]{1,40}")
"""What may stand in a list of YAML without quotes."""
_PATHS: Final[Mapping[str | int, str]] = MappingProxyType(
    {"module": "should be like `package.module`", "function": "should be like `package.module:function`"}
)


_MAX_CHOICES_SHOWN = 8


def _not_a_choice(document: Document, path: Path, value: Any, choices: list[str], kind: str) -> str:
    """List the possible values, with a suggestion only if the given one was written in the file."""
    where = (*path, "kind") if kind == "union_tag_invalid" else path
    if kind == "union_tag_invalid" and isinstance(value, dict):
        choice = value.get("kind")
    else:
        choice = value
    if isinstance(choice, str) and where not in document.referred:
        hint = near(choice, choices)
    else:
        hint = ""
    subject = "`kind` " if kind == "union_tag_invalid" else ""
    if len(choices) > _MAX_CHOICES_SHOWN and hint:
        return f"{subject}is not one of the {len(choices)} choices{hint}"
    return f"{subject}should be {_alternatives(choices)}{hint}"


def _alternatives(choices: list[str]) -> str:
    quoted = [f"`{choice}`" for choice in choices]
    return " or ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))


_OTHER_WORDS = {"command": "argv", "cmd": "argv", "args": "argv", "spec": "document", "schema": "parameters"}
"""Keys of other programs, and ours."""
_OF_LITELLM_PROXY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "general_settings": "`master_key` is one of `keys` here (`callgate keys create NAME --admin`), `database_url` is "
        "`ledger.url` or `data_dir`",
        "litellm_settings": "`num_retries` is `upstream.retries` here, `request_timeout` is `upstream.total_seconds`, `fallbacks` "
        "belong into entries of `model_list`, `callbacks` are `traces`",
        "router_settings": "`num_retries` is `upstream.retries` here, `cooldown_time` is `upstream.cooldown_seconds`, `fallbacks` "
        "belong into entries of `model_list`, `redis_host` is `store.redis_url`",
        "environment_variables": "set them in the environment, and refer to them as `os.environ/NAME`",
    }
)
"""Sections of such a file, and what has replaced them."""
_LIST_EXAMPLES: Final[Mapping[str | int, str]] = MappingProxyType(
    {
        "argv": "[git, log, -n, '5']",
        "tools": '["*"]',
        "models": '["*"]',
        "args": "[-y, some-server]",
        "fallbacks": "[other]",
    }
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|sec|seconds?|m|min|minutes?|h|hours?)")
_UNITS: Final[Mapping[str, float]] = MappingProxyType(
    {"ms": 0.001, "m": 60, "min": 60, "minute": 60, "minutes": 60, "h": 3600, "hour": 3600, "hours": 3600}
    | dict.fromkeys(("s", "sec", "second", "seconds"), 1)
)


def _is_file_of_servers(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and set(value) <= {*BLOCKS, "inputs"}


_REMOVED: Final[Mapping[Path, str]] = MappingProxyType(
    {
        (
            "upstream",
            "client",
        ): "there is one client for models by now, and it takes HTTP_PROXY, HTTPS_PROXY, ALL_PROXY "
        "and NO_PROXY from the environment; take this line out",
        (
            "runs",
            "durable",
        ): "requests with an `Idempotency-Key` are always kept where there is a `data_dir` or a `ledger.url`; take this line out",
        (
            "text_calls",
        ): "`text_calls.fenced` was replaced by one rule for all formats: a fence that holds nothing but calls goes "
        "with them, and with prose behind the last call the model is asked; take this block out",
    }
)
"""Settings of earlier versions, and what to do about them."""


def _step(kind: Any, part: str | int) -> Any:
    if _is_section(kind):
        return next(
            (_set(field.annotation) for name, field in kind.model_fields.items() if part in _names(name, field)), None
        )
    if get_origin(kind) is tuple:
        return get_args(kind)[0]
    if get_origin(kind) is Mapping:
        return get_args(kind)[1]
    for member in _members(kind):
        if _is_section(member) and part in get_args(member.model_fields["kind"].annotation):
            return member
    return kind


def _names(name: str, field: FieldInfo) -> tuple[Any, ...]:
    others = field.validation_alias.choices if isinstance(field.validation_alias, AliasChoices) else ()
    return (name, field.alias, *others)


def _set(kind: Any) -> Any:
    """Return the type of an optional block."""
    members = [member for member in get_args(kind) if member is not type(None)]
    optional = type(None) in get_args(kind) and len(members) == 1
    bare = members[0] if optional else kind
    inner = get_args(bare)[0] if hasattr(bare, "__metadata__") else bare
    if optional and _is_section(inner):
        return inner
    return kind


def _members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, without `Annotated`."""
    if hasattr(kind, "__metadata__"):
        return _members(get_args(kind)[0])
    if get_origin(kind) is UnionType:
        return get_args(kind)
    return ()


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not LitellmParams
