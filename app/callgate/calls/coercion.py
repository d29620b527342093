"""Converts strings where the schema wants another type: `"5"` for an integer, `"[1]"` for an array.

Weak models and tag formats send them. Only top-level properties are converted (except in a format whose lists and objects
hold nothing but text), only where the declared type does not allow a string, and only text that is canonical for the
type, so that it can mean one value only.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from callgate.calls.json_text import JsonFault, read_json

_UNREAD: Final = object()

MAX_NESTING = 8
"""Unions and references followed to find a declared type; a schema that refers to itself has to end somewhere."""


def coerce(
    arguments: dict[str, Any], parameters: Mapping[str, Any], *, only_text: bool = False, undeclared_json: bool = False
) -> dict[str, Any]:
    """Return the arguments with such strings converted; the same object if there is nothing to convert.

    With `only_text`, strings inside lists and objects are converted as well, and `null` for a string that may be null is
    null. With `undeclared_json`, a string that is JSON is parsed where the schema declares no type.
    """
    properties = parameters.get("properties")
    if type(properties) is not dict and not isinstance(properties, Mapping):
        properties = {}
    changed: dict[str, Any] = {}
    for name, value in arguments.items():
        converted = value
        if name in properties:
            converted = _as_declared(value, properties[name], parameters, MAX_NESTING if only_text else 0)
        elif undeclared_json and isinstance(value, str) and (parsed := _json(value)) is not _UNREAD:
            converted = parsed
        if converted is not value:
            changed[name] = converted
    if changed:
        return arguments | changed
    return arguments


def _as_declared(value: Any, schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    """Return the value with its strings converted, `depth` levels down; the same one if there is nothing to convert."""
    if isinstance(value, str):
        if type(schema) is dict and schema.get("type") == "string":  # as nearly all of them
            return value
        types = _types(schema, root, MAX_NESTING)
        if types is None:
            return value
        text = value.strip()
        if "string" in types:
            if (depth > 0) and text == "null" and "null" in types:
                return None
            return value
        for name in types:
            converted = _reading(name, text)
            if converted is not _UNREAD:
                return converted
        return value
    if not depth or not isinstance(value, dict | list):
        return value
    place = _branch_of(value, schema, root, MAX_NESTING)
    if not isinstance(place, Mapping):
        return value
    if isinstance(value, list):
        return [_as_declared(item, place.get("items"), root, depth - 1) for item in value]
    properties = place.get("properties")
    if not isinstance(properties, Mapping):
        return value
    return {key: _as_declared(inner, properties.get(key), root, depth - 1) for key, inner in value.items()}


def _branch_of(value: Any, schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    """Return the schema of the contents of a list or an object; of a union, its only branch of that type."""
    if not isinstance(schema, Mapping) or not depth:
        return None
    if isinstance(reference := schema.get("$ref"), str):
        return _branch_of(value, _referred(reference, root), root, depth - 1)
    branches = schema.get("anyOf") or schema.get("oneOf")
    if not isinstance(branches, list):
        return schema
    kind = "object"
    if isinstance(value, list):
        kind = "array"
    fitting = [branch for branch in branches if kind in (_types(branch, root, depth - 1) or ())]
    if len(fitting) == 1:
        return _branch_of(value, fitting[0], root, depth - 1)
    return None


# What type is declared -------------------------------------------------------------------------------------------


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> list[str] | None:
    """Return the declared types, in order; None where no type is declared, so that a string is allowed."""
    if not isinstance(schema, Mapping) or not depth:
        return None
    declared = schema.get("type")
    if isinstance(declared, str):
        return [declared]
    if isinstance(declared, list):
        return [name for name in declared if isinstance(name, str)]
    for word in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(word), list):
            union: list[str] = []
            for types in [_types(branch, root, depth - 1) for branch in branches]:
                if types is None:
                    return None
                union += types
            return union
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_referred(reference, root), root, depth - 1)
    return None


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """Resolve a `$ref` into the schema itself, where generated schemas have their types."""
    head, *steps = reference.split("/")
    place: Any = root if head == "#" else None
    for step in steps:
        if isinstance(place, Mapping):
            place = place.get(step.replace("~1", "/").replace("~0", "~"))
        else:
            place = None
    return place


# What a text stands for ------------------------------------------------------------------------------------------

_BOOLEANS = {"true": True, "false": False}


def _reading(type_name: str, text: str) -> Any:
    """Read the text as a value of this JSON type; `_UNREAD` if it is not canonical for it."""
    if type_name == "boolean":
        return _BOOLEANS.get(text.lower(), _UNREAD)
    if type_name == "null":
        if text == "null":
            return None
        return _UNREAD
    pattern, kind = _WRITTEN.get(type_name, (None, object))
    if pattern is None or not pattern.match(text):
        return _UNREAD
    value = _json(text)
    if isinstance(value, kind):
        return value
    return _UNREAD


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except JsonFault:
        return _UNREAD


_WRITTEN: Final[dict[str, tuple[re.Pattern[str], type]]] = {
    "integer": (re.compile(r"-?(?:0|[1-9][0-9]*)\Z"), object),
    "number": (re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z"), object),
    "array": (re.compile(r"\["), list),
    "object": (re.compile(r"\{"), dict),
}
