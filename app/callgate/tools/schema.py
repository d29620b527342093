"""Compiles a tool's JSON Schema into a check of arguments.

Schemas are not trusted: a `$ref` to another document is refused and never fetched. Errors are returned as a `FlawDetail` that
a model can act on. The compiler takes five megabytes, and is imported with the first schema that needs it.
"""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from callgate.calls.offer import Check
from callgate.calls.states import FlawDetail
from callgate.tools.schema_size import Unfolded, unfolded
from callgate.untrusted.doors import written_here
from callgate.untrusted.readers import json_reader

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

MAX_UNFOLDED = 1_000_000
"""The objects and lists of a schema with its references written out. A validator goes every way of them, in one step of the event
loop."""
MAX_EXPLAINED = 50_000
"""The same for a schema whose errors are looked for one by one, which takes a thousand times as long. Of those of real tools the
largest has 32,000."""
MAX_LEVELS_EXPLAINED = 10
"""The levels of arguments whose errors are looked for by a schema that refers to itself: each level may take twice as long as the one
above."""
MAX_LOOKED_AT = 512
"""The longest value that is matched with a pattern with look-around or back references, which may take superlinear time. A
longer value does not satisfy it."""
_BACKTRACKS = 100_000
_PATTERN_BYTES = 512 * 1024
"""For schemas of results. A pattern of twenty characters may take ten megabytes."""
_OF_DATA = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords whose values are data and no schemas."""
_OF_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords whose values are schemas by name."""
MAX_ERRORS = 32
"""How many errors are compared to find the most useful one; a list may have a million."""
MAX_QUOTE = 120
"""Characters of the model's value that are quoted to it."""
MAX_EXPECTED = 400
"""Characters of a schema in an error."""


class SchemaError(ValueError):
    """Raised for a schema that cannot be used."""


_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_PLAIN_BYTES: Final = 65_536
_PLAIN_LEVELS: Final = 12
_PLAIN_INTEGERS: Final = range(-(2**53), 2**53)
_DRAFTS: Final = frozenset({"http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"})
_encode = msgspec.json.Encoder().encode
_decode = json_reader(dict[str, Any])


def _about_type(value: Any) -> str:
    if isinstance(value, str):
        near = difflib.get_close_matches(value, _TYPES, n=1)
    else:
        near = []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{str(value)[:60]!r} is no type of JSON Schema, which are {', '.join(_TYPES)}{hint}"


def compile_schema(parameters: Mapping[str, Any]) -> Check:
    """Compile a schema into a check. Raises `SchemaError` for an invalid schema, or one that refers to others."""
    return _compile_late_fast(parameters) or _compile(parameters)


def _compile_late_fast(parameters: Mapping[str, Any]) -> Check | None:
    """Return a check that compiles its schema when it is first used. Equals `_compile` for every schema, or returns None."""
    if not _is_surely_valid(parameters, _PLAIN_LEVELS):
        return None
    try:
        text = _encode(parameters)
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    if len(text) > _PLAIN_BYTES:
        return None
    compiled: Check | None = None

    def check(arguments: dict[str, Any]) -> FlawDetail | None:
        nonlocal compiled
        if compiled is None:
            compiled = _compile(_decode(written_here(text)))
        return compiled(arguments)

    return check


def _is_surely_valid(schema: Any, levels: int) -> bool:
    """Return True only for a schema that no validator refuses: one of a few keywords, without references and patterns."""
    if type(schema) is not dict or not levels:
        return False
    return all(key in _SURE and _SURE[key](value, levels - 1) for key, value in schema.items())


def _is_text(value: Any, _: int) -> bool:
    return type(value) is str


def _is_bound(value: Any, _: int) -> bool:
    return type(value) is int and 0 <= value < _PLAIN_INTEGERS.stop


def _are_different_texts(values: Any, _: int) -> bool:
    return type(values) is list and all(type(value) is str for value in values) and len({*values}) == len(values)


def _are_named_schemas(value: Any, levels: int) -> bool:
    if type(value) is not dict:
        return False
    return all(type(name) is str and _is_surely_valid(inner, levels) for name, inner in value.items())


def _are_schemas(value: Any, levels: int) -> bool:
    return type(value) is list and bool(value) and all(_is_surely_valid(inner, levels) for inner in value)


def _is_plain_value(value: Any, _: int) -> bool:
    return value is None or type(value) in (str, bool) or (type(value) is int and value in _PLAIN_INTEGERS)


_SURE: Final[Mapping[str, Callable[[Any, int], bool]]] = {
    "$schema": lambda value, _: type(value) is str and value in _DRAFTS,
    "type": lambda value, _: type(value) is str and value in _TYPES,
    "description": _is_text,
    "title": _is_text,
    "properties": _are_named_schemas,
    "required": _are_different_texts,
    "additionalProperties": lambda value, levels: type(value) is bool or _is_surely_valid(value, levels),
    "items": _is_surely_valid,
    "anyOf": _are_schemas,
    "enum": lambda value, levels: _are_different_texts(value, levels) and bool(value),
    "default": _is_plain_value,
    "minimum": _is_bound,
    "maximum": _is_bound,
    "minLength": _is_bound,
    "maxLength": _is_bound,
    "minItems": _is_bound,
    "maxItems": _is_bound,
}
"""The keywords of schemas that are surely valid, and which of their values are."""


def _compile(parameters: Mapping[str, Any]) -> Check:
    validator, schema, measured = _compiled(parameters)
    is_valid = validator.is_valid

    def check(arguments: dict[str, Any]) -> FlawDetail | None:
        if is_valid(arguments):
            return None
        if measured.size > MAX_EXPLAINED:
            return FlawDetail(expected="what its schema says", note="the schema is too large to say what does not fit")
        if measured.is_recursive and _is_deeper(arguments, MAX_LEVELS_EXPLAINED):
            return FlawDetail(expected="what its schema says", note="it is nested too deep to say what does not fit")
        error = _most_telling(islice(validator.iter_errors(arguments), MAX_ERRORS))
        return msgspec.structs.replace(_problem(error, schema), rule=_pointer(error.schema_path))

    return check


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether objects and lists stand in one another deeper than so many levels."""
    if isinstance(value, dict):
        inside: Iterable[Any] = value.values()
    elif isinstance(value, list):
        inside = value
    else:
        return False
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in inside)


def compile_validity(schema: Mapping[str, Any]) -> Callable[[Any], bool]:
    """Compile a schema where nobody wants to know what is wrong: looking for that takes much longer. Raises like `compile_schema`."""
    is_valid: Callable[[Any], bool] = _compiled(schema, pattern_bytes=_PATTERN_BYTES)[0].is_valid
    return is_valid


def _compiled(
    parameters: Mapping[str, Any], *, pattern_bytes: int | None = None
) -> tuple[Any, Mapping[str, Any], Unfolded]:
    """Return the validator of a schema, the schema as it has it, and what it is with its references written out. `pattern_bytes`: the
    most memory that a pattern may take, compiled."""
    import jsonschema_rs
    from jsonschema_rs import FancyRegexOptions, RegexOptions, ValidationError, ValidationErrorKind

    size = {} if pattern_bytes is None else {"size_limit": pattern_bytes}
    linear = RegexOptions(**size)
    backtracking = FancyRegexOptions(backtrack_limit=_BACKTRACKS, **size)
    schema = dict(parameters)
    measured = _bounded(schema)
    outside: list[str] = []

    def deny(uri: str) -> NoReturn:
        outside.append(uri)
        raise LookupError(uri)

    # `format` is an annotation in current drafts and an assertion in old ones; here it is always an annotation.
    compiled = partial(jsonschema_rs.validator_for, retriever=deny, validate_formats=False)
    try:
        try:
            validator = compiled(schema, pattern_options=linear)
        except ValidationError as error:
            # The schema may have been refused for a pattern that the linear engine does not support.
            if not isinstance(error.kind, ValidationErrorKind.Format):
                raise
            compiled(schema, pattern_options=backtracking)  # raises for any other error
            schema = _with_bounded_patterns(schema)
            validator = compiled(schema, pattern_options=backtracking)
    except ValidationError as error:
        if outside:
            raise SchemaError(
                f"$ref to {outside[0]!r} leads out of the schema, and schemas are never fetched"
            ) from None
        place = _pointer(error.instance_path)
        if place.endswith("/type"):
            message = _about_type(error.instance)
        else:
            message = error.message
        raise SchemaError(f"{message} (at {place})" if place else message) from None
    except (ValueError, TypeError) as error:  # nested too deep; a key or value that JSON does not have
        raise SchemaError(str(error)) from None

    return validator, schema, measured


def _bounded(schema: Mapping[str, Any]) -> Unfolded:
    """Measure a schema with its references written out. Raises `SchemaError` where that is too large."""
    measured = unfolded(schema)
    if measured.size > MAX_UNFOLDED:
        raise SchemaError(f"with its references written out it is larger than {MAX_UNFOLDED:,} objects and lists")
    return measured


def _with_bounded_patterns(schema: Any) -> Any:
    """Bound the length of values for every pattern that needs a backtracking engine.

    Names of properties cannot be bounded, and a schema with such a pattern for them is refused.
    """
    if isinstance(schema, list):
        return [_with_bounded_patterns(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    bounded: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _OF_DATA:
            bounded[key] = value
        elif key in _OF_NAMED_SCHEMAS and isinstance(value, Mapping):
            bounded[key] = {name: _with_bounded_patterns(item) for name, item in value.items()}
        else:
            bounded[key] = _with_bounded_patterns(value)
    for name in bounded.get("patternProperties") or ():
        if not _is_linear(name):
            raise SchemaError(f"the pattern {name[:MAX_QUOTE]!r} for names of properties looks around or back")
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and not _is_linear(pattern):
        del bounded["pattern"]
        short = {"maxLength": MAX_LOOKED_AT}
        condition = {"if": short, "then": {"pattern": pattern}, "else": short}
        bounded["allOf"] = [*(bounded.get("allOf") or ()), condition]
    return bounded


def _is_linear(pattern: str) -> bool:
    import jsonschema_rs
    from jsonschema_rs import RegexOptions, ValidationError

    try:
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=RegexOptions())
    except ValidationError:
        return False
    return True


def _most_telling(errors: Iterable["ValidationError"]) -> "ValidationError":
    """Return the most useful error: an unknown property comes before a missing one, and that before a wrong value."""
    from jsonschema_rs import ValidationErrorKind

    most_telling = min(errors, key=_rank)
    match most_telling.kind:
        case ValidationErrorKind.AnyOf(context=branches) | ValidationErrorKind.OneOfNotValid(context=branches):
            return _inside(branches) or most_telling
    return most_telling


def _rank(error: "ValidationError") -> int:
    from jsonschema_rs import ValidationErrorKind

    match error.kind:
        case ValidationErrorKind.AdditionalProperties() | ValidationErrorKind.UnevaluatedProperties():
            return 0
        case ValidationErrorKind.Required():
            return 1
    return 2


def _inside(branches: Sequence[Sequence["ValidationError"]]) -> "ValidationError | None":
    """Return the error of the alternative that was meant: the only one of the value's type."""
    from jsonschema_rs import ValidationErrorKind

    near = [branch for branch in branches if not any(isinstance(e.kind, ValidationErrorKind.Type) for e in branch)]
    if len(near) == 1 and near[0]:
        return _most_telling(near[0])
    return None


def _problem(error: "ValidationError", schema: Mapping[str, Any]) -> FlawDetail:
    from jsonschema_rs import ValidationErrorKind

    pointer = _pointer(error.instance_path)
    got = _short(error.instance)
    match error.kind:
        case ValidationErrorKind.Type(types=types):
            return FlawDetail(pointer, " or ".join(types), got)
        case ValidationErrorKind.Enum(options=options):
            options_text = _list(_json(option) for option in options)
            return FlawDetail(pointer, f"one of {options_text}", got, _meant(error.instance, options))
        case ValidationErrorKind.Constant(expected_value=value):
            return FlawDetail(pointer, _short(value, MAX_EXPECTED), got)
        case ValidationErrorKind.Required(property=name):
            return FlawDetail(pointer, f"the property {_json(name)}", got, f"{_json(name)} is required and missing")
        case (
            ValidationErrorKind.AdditionalProperties(unexpected=names)
            | ValidationErrorKind.UnevaluatedProperties(unexpected=names)
        ):
            place = _at(schema, error.schema_path[:-1])
            if isinstance(place, Mapping):
                property_names = list(place.get("properties", ()))
            else:
                property_names = []
            if property_names:
                expected = f"only the properties {_list(map(_json, property_names))}"
            else:
                expected = "no properties"
            return FlawDetail(pointer, expected, _short(names[0]), _meant(names[0], property_names))
        case _:
            # The violated keyword with its value: `{"minimum": 1}`.
            if error.schema_path:
                keyword = str(error.schema_path[-1])
            else:
                keyword = error.kind.name
            schema_there = _at(schema, error.schema_path)
            return FlawDetail(
                pointer,
                error.message[:MAX_EXPECTED] if schema_there is None else _short({keyword: schema_there}, MAX_EXPECTED),
                got,
                error.message[:MAX_EXPECTED],
            )


def _at(schema: Any, path: Iterable[str | int]) -> Any:
    for step in path:
        if isinstance(schema, Mapping) and step in schema:
            schema = schema[str(step)]
        elif isinstance(schema, list) and isinstance(step, int) and step < len(schema):
            schema = schema[step]
        else:
            return None
    return schema


def _meant(word: Any, candidates: Iterable[Any]) -> str:
    if not isinstance(word, str):
        return ""
    names = [name for name in candidates if isinstance(name, str)]
    near = difflib.get_close_matches(word[:MAX_QUOTE], names, n=1)
    if near:
        return f"did you mean {_json(near[0])}?"
    return ""


def _pointer(path: Iterable[str | int]) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _list(words: Iterable[str]) -> str:
    return _cut(", ".join(words), MAX_EXPECTED)


def _short(value: Any, limit: int = MAX_QUOTE) -> str:
    return _cut(_json(value), limit)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[: limit - 1]}…"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
