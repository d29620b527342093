"""Rewrites tool schemas for providers: unsupported keywords are expressed in another way, or left out and reported.

The gate still checks arguments against the whole schema, and tells the model which bound a call violates.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

Dialect: TypeAlias = Literal["full", "openai", "gemini", "anthropic", "llama_cpp"]

MAX_NODES = 5000
"""The limit of an expanded schema, beyond which nodes become any object."""
MAX_DEPTH = 48
"""The limit of nesting in a schema."""
MAX_REPEATS = 500
"""The limit of bounded repetitions, which llama.cpp expands in its grammar."""
_COMBINED = ("oneOf", "anyOf", "allOf", "enum", "const", "not")
_ANTHROPIC_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")
_GEMINI_TAKES = frozenset(
    """
    type format title description nullable enum items maxItems minItems properties required minProperties maxProperties
    minLength maxLength pattern minimum maximum anyOf propertyOrdering
    """.split()
)
_GEMINI_FORMATS = {
    "string": frozenset({"enum", "date-time"}),
    "number": frozenset({"float", "double"}),
    "integer": frozenset({"int32", "int64"}),
}
_NOT_IN_GRAMMARS = re.compile(r"\(\?|\\[bBpPkAzZ1-9]|[*+?}][+?]")
"""Features of regular expressions that llama.cpp's grammars do not support: look-around, classes, back references, laziness."""


class Portable(msgspec.Struct, frozen=True):
    """A schema for a provider, and what it lacks of the original."""

    schema: dict[str, Any]
    losses: tuple[str, ...] = ()
    """Each with its place: `/properties/a: pattern left out`."""


def portable(schema: Mapping[str, Any], dialect: Dialect) -> Portable:
    """Rewrite a schema for a dialect."""
    match dialect:
        case "full":
            return Portable(dict(schema))
        case "openai":
            return _with_a_plain_top(schema)
        case "anthropic":
            return _for_anthropic(schema)
        case "llama_cpp":
            return _for_llama_cpp(schema)
        case "gemini":
            return _Gemini(schema).converted()


# OpenAI and Anthropic: no combinations at the root -------------------------------------------------------------------


def _with_a_plain_top(schema: Mapping[str, Any]) -> Portable:
    """Rewrite the root to an object with properties, without combinations."""
    if not any(keyword in schema for keyword in _COMBINED):
        return Portable(dict(schema))
    whole = dict(schema)
    losses: list[str] = []
    parts = [part for part in whole.pop("allOf", ()) if isinstance(part, Mapping)]
    if parts:
        whole = _merged([whole, *(_resolved(part, schema) for part in parts)])
    for keyword in ("anyOf", "oneOf"):
        choices = [_resolved(part, schema) for part in whole.pop(keyword, ()) if isinstance(part, Mapping)]
        if choices:
            losses.append(f"/: {keyword} of {len(choices)} became one object with all their properties")
            whole = _merged([whole, _either(choices)])
    for keyword in _COMBINED:  # also those that came with the parts
        if whole.pop(keyword, None) is not None:
            losses.append(f"/: {keyword} left out")
    return Portable({"properties": {}, **whole, "type": "object"}, tuple(losses))


def _merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the parts of an `allOf`."""
    whole: dict[str, Any] = {}
    for part in parts:
        properties = {**whole.get("properties", {}), **part.get("properties", {})}
        required = list(dict.fromkeys([*whole.get("required", ()), *part.get("required", ())]))
        whole = {**whole, **part, "properties": properties, "required": required}
    if not whole.get("required"):
        whole.pop("required", None)
    return whole


def _either(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge alternatives: all properties, of which those are required that all alternatives require."""
    properties: dict[str, Any] = {}
    for choice in choices:
        for name, schema in choice.get("properties", {}).items():
            existing = properties.get(name)
            if existing is None or existing == schema:
                properties[name] = schema
            else:
                if isinstance(existing, Mapping) and set(existing) == {"anyOf"}:
                    ways = existing["anyOf"]
                else:
                    ways = [existing]
                properties[name] = {"anyOf": [*ways, *([] if schema in ways else [schema])]}
    required = set.intersection(*(set(choice.get("required", ())) for choice in choices))
    merged: dict[str, Any] = {"properties": properties}
    if required:
        merged["required"] = sorted(required)
    return merged


def _for_anthropic(schema: Mapping[str, Any]) -> Portable:
    plain = _with_a_plain_top(schema)
    required = set(plain.schema.get("required", ()))
    properties: dict[str, Any] = {}
    losses = list(plain.losses)
    for name, inner in plain.schema.get("properties", {}).items():
        if _ANTHROPIC_KEY.match(name):
            properties[name] = inner
        elif name in required:
            properties[name] = inner
            losses.append(f"/properties/{_step(name)}: this provider refuses the name, and it is required")
        else:
            losses.append(f"/properties/{_step(name)}: left out for its name")
    return Portable({**plain.schema, "properties": properties}, tuple(losses))


# llama.cpp: the schema becomes a grammar -----------------------------------------------------------------------------


def _for_llama_cpp(schema: Mapping[str, Any]) -> Portable:
    losses: list[str] = []

    def plain(node: Any, place: str) -> Any:
        if isinstance(node, list):
            return [plain(inner, f"{place}/{at}") for at, inner in enumerate(node)]
        if not isinstance(node, Mapping):
            return node
        keywords_left: dict[str, Any] = {}
        for keyword, value in node.items():
            if reason := _no_grammar_for(keyword, value, node):
                losses.append(f"{place or '/'}: {keyword} left out, {reason}")
            elif keyword in {"properties", "$defs", "definitions"} and isinstance(value, Mapping):
                keywords_left[keyword] = {
                    name: plain(inner, f"{place}/{keyword}/{_step(name)}") for name, inner in value.items()
                }
            elif keyword in {"enum", "const", "default", "examples", "required"}:
                keywords_left[keyword] = value
            else:
                keywords_left[keyword] = plain(value, f"{place}/{keyword}")
        return keywords_left

    return Portable(plain(schema, ""), tuple(losses))


def _no_grammar_for(keyword: str, value: Any, node: Mapping[str, Any]) -> str:
    if keyword == "pattern" and isinstance(value, str):
        if not (value.startswith("^") and value.endswith("$")):
            return "it is not anchored at both ends"
        if _NOT_IN_GRAMMARS.search(value):
            return "its grammar cannot be written"
        return ""
    if keyword in {"minLength", "maxLength", "minItems", "maxItems"} and isinstance(value, int) and value > MAX_REPEATS:
        return "the repetition is too long for a grammar"
    if keyword in {"not", "if", "then", "else", "patternProperties", "dependentSchemas", "dependentRequired"}:
        if isinstance(value, (Mapping, bool)):
            return "grammars have no such thing"
        return ""
    return ""


# Gemini: a small schema language of its own --------------------------------------------------------------------------


class _Gemini(msgspec.Struct):
    """Converts to Gemini's dialect: no references, no `null`, enums of strings only, and a short list of keywords."""

    root: Mapping[str, Any]
    losses: list[str] = msgspec.field(default_factory=list)
    nodes: int = 0

    def converted(self) -> Portable:
        plain = _with_a_plain_top(_resolved(self.root, self.root))
        self.losses += plain.losses
        schema = self._node(plain.schema, "", ())
        top = {
            keyword: value for keyword, value in schema.items() if keyword not in {"anyOf", "enum", "nullable", "items"}
        }
        return Portable({"properties": {}, **top, "type": "object"}, tuple(self.losses))

    def _node(self, node: Any, place: str, trail: tuple[str, ...]) -> dict[str, Any]:
        self.nodes += 1
        if self.nodes > MAX_NODES or place.count("/") > MAX_DEPTH:
            self._lose(place, "too large once its references are written out")
            return {"type": "object"}
        if not isinstance(node, Mapping):
            if node is not True:
                self._lose(place, "became any text")
            return {"type": "string"}
        if "$ref" in node:
            reference = str(node["$ref"])
            if reference in trail:
                self._lose(place, f"{reference} refers to itself; from here on it is any object")
                return {"type": "object", **({"description": node["description"]} if "description" in node else {})}
            beside = {keyword: value for keyword, value in node.items() if keyword != "$ref"}
            target = _at(self.root, reference)
            if not isinstance(target, Mapping):
                return self._node({"type": "object", **beside} if target is None else target, place, trail)
            return self._node({**target, **beside}, place, (*trail, reference))
        keywords, trail = self._with_all(dict(node), place, trail)
        nullable = self._without_null(keywords)
        if "$ref" in keywords:  # of the only remaining alternative
            converted = self._node(keywords, place, trail)
            if nullable:
                return {**converted, "nullable": True}
            return converted
        converted = self._keywords(keywords, place, trail)
        if nullable:
            return {**converted, "nullable": True}
        return converted

    def _with_all(
        self, keywords: dict[str, Any], place: str, trail: tuple[str, ...]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Merge the parts of a node's `allOf`; return also the references that were followed."""
        parts = [part for part in keywords.pop("allOf", ()) if isinstance(part, Mapping)]
        if not parts:
            return keywords, trail
        flattened = [keywords]
        for part in parts:
            reference = str(part.get("$ref", ""))
            if reference in trail:
                self._lose(place, f"{reference} refers to itself; left out")
                continue
            if reference:
                trail = (*trail, reference)
            flattened.append(_resolved(part, self.root))
        whole = _merged(flattened)
        for keyword in ("allOf", "$ref"):  # of the parts; parts of parts are more than this is for
            if whole.pop(keyword, None) is not None:
                self._lose(place, f"{keyword} inside of allOf left out")
        if not whole["properties"]:
            del whole["properties"]
        return whole, trail

    def _without_null(self, keywords: dict[str, Any]) -> bool:
        """Remove `null` from a node's types and alternatives; return whether it was there."""
        nullable = bool(keywords.pop("nullable", False))
        if "oneOf" in keywords:
            keywords["anyOf"] = [*keywords.get("anyOf", ()), *keywords.pop("oneOf")]
        types = keywords.get("type")
        if isinstance(types, list):
            some = [kind for kind in types if kind != "null"]
            nullable = nullable or len(some) < len(types)
            if len(some) == 1:
                keywords["type"] = some[0]
            else:
                del keywords["type"]
                keywords["anyOf"] = [*keywords.get("anyOf", ()), *({"type": kind} for kind in some)]
        if isinstance(choices := keywords.get("anyOf"), list):
            some = [choice for choice in choices if not (isinstance(choice, Mapping) and choice.get("type") == "null")]
            nullable = nullable or len(some) < len(choices)
            del keywords["anyOf"]
            if len(some) == 1 and isinstance(some[0], Mapping):
                keywords.update({**some[0], **keywords})
            elif some:
                keywords["anyOf"] = some
        if "const" in keywords:
            keywords["enum"] = [keywords.pop("const")]
        if isinstance(values := keywords.get("enum"), list) and None in values:
            keywords["enum"] = [value for value in values if value is not None]
            nullable = True
        return nullable

    def _keywords(self, keywords: dict[str, Any], place: str, trail: tuple[str, ...]) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        self._settle_enum(keywords, place)
        self._settle_bounds(keywords, place)
        for keyword, value in keywords.items():
            if keyword == "properties" and isinstance(value, Mapping):
                inside = {
                    name: self._node(inner, f"{place}/properties/{_step(name)}", trail) for name, inner in value.items()
                }
                if inside or not place:
                    converted[keyword] = inside
            elif keyword == "items":
                converted[keyword] = self._node(value, f"{place}/items", trail)
            elif keyword == "anyOf":
                converted[keyword] = [self._node(inner, f"{place}/anyOf/{at}", trail) for at, inner in enumerate(value)]
            elif keyword == "format" and value not in _GEMINI_FORMATS.get(str(keywords.get("type")), ()):
                self._lose(place, f"format {value} left out")
            elif keyword in _GEMINI_TAKES:
                converted[keyword] = value
            elif keyword not in {"$defs", "definitions", "$schema", "$id", "$comment", "additionalProperties"}:
                self._lose(place, f"{keyword} left out")
            elif keyword == "additionalProperties" and isinstance(value, Mapping) and value:
                self._lose(place, "additionalProperties left out")
        self._settle_type(converted, place)
        if "required" in converted:
            converted["required"] = [name for name in converted["required"] if name in converted.get("properties", {})]
            if not converted["required"]:
                del converted["required"]
        return converted

    def _settle_enum(self, keywords: dict[str, Any], place: str) -> None:
        values = keywords.get("enum")
        if not isinstance(values, list):
            return
        if values and all(isinstance(value, str) for value in values):
            keywords.setdefault("type", "string")
            return
        del keywords["enum"]
        if values:
            keywords.setdefault("type", _type_of(values[0]))
            self._say(keywords, f"One of: {', '.join(json.dumps(value, ensure_ascii=False) for value in values)}.")
            self._lose(place, "enum of values that are no texts, now in its description")

    def _settle_bounds(self, keywords: dict[str, Any], place: str) -> None:
        for keyword, other, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
            bound = keywords.pop(keyword, None)
            if isinstance(bound, bool) or not isinstance(bound, (int, float)):
                continue
            if keywords.get("type") == "integer" and isinstance(bound, int):
                keywords.setdefault(other, bound + step)
            else:
                self._say(keywords, f"{'More' if step > 0 else 'Less'} than {bound}.")
                self._lose(place, f"{keyword}, now in its description")

    def _settle_type(self, converted: dict[str, Any], place: str) -> None:
        if "type" not in converted and "anyOf" not in converted:
            if "properties" in converted:
                converted["type"] = "object"
            elif "items" in converted:
                converted["type"] = "array"
            else:
                converted["type"] = "string"
                self._lose(place, "any value became text")
        if converted.get("type") == "array" and "items" not in converted:
            converted["items"] = {"type": "string"}
            self._lose(place, "items of any kind became texts")

    def _say(self, keywords: dict[str, Any], text: str) -> None:
        keywords["description"] = " ".join(filter(None, [str(keywords.get("description", "")), text]))

    def _lose(self, place: str, what: str) -> None:
        self.losses.append(f"{place or '/'}: {what}")


# References ----------------------------------------------------------------------------------------------------------


def _resolved(node: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node with its own reference resolved, repeatedly."""
    resolved = dict(node)
    for _ in range(16):
        reference = resolved.get("$ref")
        if reference is not None:
            target = _at(root, str(reference))
        else:
            target = None
        if not isinstance(target, Mapping):
            break
        del resolved["$ref"]
        resolved = {**target, **resolved}
    return resolved


def _at(root: Any, reference: str) -> Any:
    """Resolve a reference inside the document; None where there is nothing."""
    if not reference.startswith("#"):
        return None
    for escaped in reference.lstrip("#").split("/")[1:]:
        step = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(root, Mapping) and step in root:
            root = root[step]
        elif isinstance(root, list) and step.isdigit() and int(step) < len(root):
            root = root[int(step)]
        else:
            return None
    return root


def _step(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _type_of(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
