"""The `parameters` of tools that an operator writes by hand: closed, unless they say otherwise."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

_COMPOSED = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas")
"""Keywords by which a schema has properties that it does not name itself."""


def closed(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema so that it takes no arguments but those that it names, unless it says what else it takes."""
    if "additionalProperties" in parameters or "unevaluatedProperties" in parameters:
        return parameters
    keyword = "additionalProperties"
    if any(name in parameters for name in _COMPOSED):
        keyword = "unevaluatedProperties"
    return {**parameters, keyword: False}


def named_in(parameters: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of all properties of a schema, those of its alternatives and references included."""
    names: set[str] = set()
    seen_ids: set[int] = set()
    waiting: list[Any] = [parameters]
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen_ids:
            continue
        seen_ids.add(id(schema))
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            names.update(map(str, properties))
        for keyword in ("allOf", "anyOf", "oneOf"):
            alternatives = schema.get(keyword)
            if isinstance(alternatives, list):
                waiting += alternatives
        waiting += [schema[keyword] for keyword in ("if", "then", "else") if keyword in schema]
        dependent = schema.get("dependentSchemas")
        if isinstance(dependent, Mapping):
            waiting += dependent.values()
        waiting.append(_referred(parameters, schema.get("$ref")))
    return frozenset(names)


def _referred(whole: Mapping[str, Any], reference: Any) -> Any:
    """Return the part of a schema that a `$ref` names; None where there is none."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    part: Any = whole
    for step in reference.removeprefix("#/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        part = part.get(name) if isinstance(part, Mapping) else None
    return part


def unknown_place(places: Iterable[str], parameter_names: Iterable[str]) -> str | None:
    """Return what is wrong with the first placeholder that is no parameter; None where all are."""
    names = sorted(parameter_names)
    for name in sorted(set(places) - set(names)):
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean `{{{near[0]}}}`?" if near else ""
        return f"`{{{name}}}` is no property of `parameters`{hint}"
    return None
