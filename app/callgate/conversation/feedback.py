"""Writes the result of a call that did not run, for the model: what was wrong, and what to do next.

The results are short JSON with fixed keys, which models read reliably. They are bounded: a schema is reduced to the part
that matters, and quotes of the model's text are short.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, assert_never

from callgate.calls.names import close_names
from callgate.calls.offer import Offer
from callgate.calls.states import BrokenCall, Flaw, FlawDetail

MAX_QUOTE = 120
"""Characters of the model's own text that are quoted to it."""
MAX_SCHEMA = 900
"""Characters of schema in an explanation; a larger one is reduced to its outline first."""
MAX_HIDDEN_SCHEMA = 6000
"""The same for a tool whose schema the model was not sent."""
MAX_NAMES = 20
"""Tool and parameter names listed; beyond that a model reads its own list of tools again."""


def explain(call: BrokenCall, offer: Offer) -> str:
    """Write the result of a broken call: its flaw, what was expected, and what to send instead."""
    error: dict[str, Any] = {"code": call.flaw.value, "message": _message(call.flaw)}
    if call.problem is not None:
        error |= {
            "pointer": _quote(call.problem.pointer),
            "expected": _quote(call.problem.expected, MAX_SCHEMA),
            "got": _quote(call.problem.got),
            "note": _quote(call.problem.note, MAX_SCHEMA),
        }
    if call.flaw in _ABOUT_THE_NAME:
        if call.wrapping is None:
            error |= _suggested(call.name or "", offer)
        error["tools"] = _few(name for name, tool in offer.items() if not tool.is_hidden)
    tool = offer.get(call.name or "")
    if tool is not None and call.flaw in _ABOUT_THE_ARGUMENTS:
        problem = call.problem or FlawDetail()
        schema = _part_at(tool.parameters, problem.pointer)
        if call.flaw is Flaw.SCHEMA_MISMATCH:
            # Checks write all values as JSON: only a string has suggestions.
            error |= _suggested(problem.got.strip('"') if problem.got.startswith('"') else "", _candidates(schema))
        if tool.is_hidden:
            error["schema"] = _excerpt(tool.parameters, MAX_HIDDEN_SCHEMA)
        else:
            error["schema"] = _excerpt(schema)
    return _text(error)


def _message(flaw: Flaw) -> str:
    match flaw:
        case Flaw.TRUNCATED:
            return (
                "Not run: the arguments were cut off. Send the call again, whole. "
                "If they are too long for one answer, split the work into several smaller calls."
            )
        case Flaw.INVALID_JSON:
            return (
                "Not run: the arguments are not valid JSON. Send the call again with exactly one JSON object: double "
                "quotes, no comments, no trailing commas, each key once, nothing before or after it."
            )
        case Flaw.INVALID_MARKUP:
            return (
                "Not run: the call is not written as it has to be. Send it again: every parameter named, "
                "given once, opened and closed, and no other text inside the call."
            )
        case Flaw.NOT_AN_OBJECT:
            return (
                "Not run: the arguments are not a JSON object. Send the call again with an object that names each "
                'argument: {"name": value}, or {} if there are none.'
            )
        case Flaw.ARGUMENTS_TOO_LARGE:
            return (
                "Not run: the arguments are larger than this tool can be sent. "
                "Send less, or split the work into several smaller calls."
            )
        case Flaw.MISSING_NAME:
            return "Not run: the call does not say which tool. Send it again with the name of one of the tools listed."
        case Flaw.UNKNOWN_TOOL:
            return (
                "Not run: there is no tool of that name. Use one of the tools listed, "
                "with its exact name, or answer without it."
            )
        case Flaw.SCHEMA_MISMATCH:
            return (
                "Not run: the arguments do not satisfy the tool's schema. "
                "Correct what is named here and send the call again, whole."
            )
        case Flaw.CONTENT_FILTER:
            return (
                "Not run: the provider's content filter stopped the answer this call was part of. "
                "Do not repeat it as it was; go on without this call or ask the user."
            )
        case Flaw.STREAM_ENDED:
            return "Not run: the answer broke off before it was finished. Send the call again, whole, if it is still needed."
        case Flaw.UPSTREAM_ERROR:
            return (
                "Not run: the provider reported an error in the middle of the answer. "
                "Send the call again, whole, if it is still needed."
            )
        case Flaw.NOT_ALONE:
            return (
                "Not run: your answer goes on behind the call. If you want it to run, write it again, "
                "with nothing behind it. If you only show it, answer without writing it."
            )
    assert_never(flaw)


_ABOUT_THE_NAME = frozenset({Flaw.MISSING_NAME, Flaw.UNKNOWN_TOOL})
_ABOUT_THE_ARGUMENTS = frozenset(
    {Flaw.TRUNCATED, Flaw.INVALID_JSON, Flaw.INVALID_MARKUP, Flaw.NOT_AN_OBJECT, Flaw.SCHEMA_MISMATCH}
)


# Where and how --------------------------------------------------------------------------------------------------------


def _quote(text: str, limit: int = MAX_QUOTE) -> str:
    if len(text) <= limit:
        return text
    return f"{text[: limit - 1]}…"


# Suggestions ----------------------------------------------------------------------------------------------------------


def _suggested(word: str, names: Iterable[str]) -> dict[str, Any]:
    """Return a suggestion of what was meant. It includes the check's own note, which is then left out."""
    near = close_names(word, names) if word else []
    if near:
        return {"did_you_mean": near, "note": ""}
    return {}


def _few(names: Iterable[str]) -> list[str]:
    listed = list(names)
    shown = [_quote(name) for name in listed[:MAX_NAMES]]
    if len(listed) > MAX_NAMES:
        return [*shown, f"… and {len(listed) - MAX_NAMES} more"]
    return shown


def _candidates(schema: Any) -> Iterator[str]:
    """Yield the values that are valid at this place: those of an enum, or the property names of an object."""
    if isinstance(schema, Mapping):
        for place in (schema, *_branches(schema)):
            yield from (value for value in _list(place.get("enum")) if isinstance(value, str))
            yield from _mapping(place.get("properties"))


# The part of a schema that matters ------------------------------------------------------------------------------------


def _part_at(schema: Mapping[str, Any], pointer: str) -> Any:
    """Return the schema for a JSON pointer into the arguments, or the nearest one above it."""
    part: Any = schema
    for token in pointer.split("/")[1:]:
        below = _below(part, token.replace("~1", "/").replace("~0", "~"))
        if below is None:
            return part
        # Follow a `$ref` into the schema's own definitions. One step is what generated schemas need.
        if isinstance(below, Mapping) and isinstance(below.get("$ref"), str):
            _, word, name = (*below["$ref"].split("/"), "", "")[:3]
            part = _mapping(schema.get(word)).get(name, below)
        else:
            part = below
    return part


def _below(schema: Any, token: str) -> Any:
    if not isinstance(schema, Mapping):
        return None
    for place in (schema, *_branches(schema)):
        named = _mapping(place.get("properties")).get(token)
        if named is not None:
            return named
        if token.isdigit() and isinstance(place.get("items"), Mapping):
            return place["items"]
    return None


def _branches(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for word in ("anyOf", "oneOf", "allOf"):
        yield from (branch for branch in _list(schema.get(word)) if isinstance(branch, Mapping))


def _excerpt(schema: Any, limit: int = MAX_SCHEMA) -> Any:
    """Return the schema, or its outline, or only the names in it: the first that is short enough."""
    names_only: dict[str, Any] = {}
    if isinstance(schema, Mapping):
        outline = {
            "required": _few(map(str, _list(schema.get("required")))),
            "properties": _few(_mapping(schema.get("properties"))),
        }
        names_only = {key: names for key, names in outline.items() if names}
    for form in (schema, _outline(schema), names_only):
        if len(_json(form)) <= limit:
            return form
    return {"note": "too large to repeat; see the tool's own description"}


def _outline(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    outline = {key: schema[key] for key in ("type", "required", "enum") if key in schema}
    properties = _mapping(schema.get("properties"))
    if properties:
        outline["properties"] = {
            name: (
                {key: schema[key] for key in ("type", "enum", "format") if key in schema}
                if isinstance(schema, Mapping)
                else {}
            )
            for name, schema in properties.items()
        }
    return outline


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return {}


def _list(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    return ()


# Whole calls that did not run -----------------------------------------------------------------------------------------


def _text(error: Mapping[str, Any]) -> str:
    text = _json({"error": {key: value for key, value in error.items() if value not in ("", [], {}, None)}})
    # A model can write half a surrogate pair, and a quote of it has to be encodable.
    return text.encode("utf-8", "replace").decode()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


LIMIT_REACHED = _text(
    {
        "code": "limit_reached",
        "message": "Not run: limit reached. No tool runs any more in this chat. "
        "Answer the user now with what is already known, and say what could not be done.",
    }
)
"""For a whole call that came after the last turn that may run tools."""

ONE_AT_A_TIME = _text(
    {
        "code": "one_at_a_time",
        "message": "Not run: one at a time. Only the first call of your answer was done; "
        "send this one again, alone, if it is still needed.",
    }
)
"""For all calls of a turn but the first, where the request allows no parallel calls."""
ENOUGH_CALLS = _text(
    {
        "code": "max_tool_calls",
        "message": "Not run: the request allows no more calls of such tools. Answer with what is already known.",
    }
)
TOO_MANY_CALLS = _text(
    {
        "code": "too_many_calls",
        "message": "Not run: too many calls in one answer. The earlier ones were run; "
        "send this one again in the next answer if it is still needed.",
    }
)
"""For a whole call beyond the number that one turn may hold."""
