"""Rewrites tool schemas for providers: unsupported keywords are expressed in another way, or left out and reported.

The gate still checks arguments against the whole schema, and tells the model which bound a call violates.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

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


@dataclass(frozen=True, slots=True)
class Portable:
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


def dialect_of(model: str, api_base: str | None = None) -> Dialect:
    """Return the dialect of a model by its litellm name, where the config does not set it."""
    provider, _, rest = model.lower().partition("/")
    name = rest or provider
    if provider == "gemini" or "gemini" in name.rpartition("/")[2]:
        return "gemini"
    if provider == "anthropic" or "claude" in name:
        return "anthropic"
    if provider in {"ollama", "ollama_chat", "llamafile", "lm_studio", "llamacpp"}:
        return "llama_cpp"
    if provider in {"azure", "azure_ai"} or (provider == "openai" and not api_base) or name.startswith("gpt-"):
        return "openai"
    return "full"


# OpenAI and Anthropic: no combinations at the root -------------------------------------------------------------------


def _with_a_plain_top(schema: Mapping[str, Any]) -> Portable:
    """Rewrite the root to an object with properties, without combinations."""
    if not any(word in schema for word in _COMBINED):
        return Portable(dict(schema))
    whole = dict(schema)
    losses: list[str] = []
    parts = [part for part in whole.pop("allOf", ()) if isinstance(part, Mapping)]
    if parts:
        whole = _merged([whole, *(_resolved(part, schema) for part in parts)])
    for word in ("anyOf", "oneOf"):
        choices = [_resolved(part, schema) for part in whole.pop(word, ()) if isinstance(part, Mapping)]
        if choices:
            losses.append(f"/: {word} of {len(choices)} became one object with all their properties")
            whole = _merged([whole, _either(choices)])
    for word in _COMBINED:  # also those that came with the parts
        if whole.pop(word, None) is not None:
            losses.append(f"/: {word} left out")
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
            known = properties.get(name)
            if known is None or known == schema:
                properties[name] = schema
            else:
                ways = known["anyOf"] if isinstance(known, Mapping) and set(known) == {"anyOf"} else [known]
                properties[name] = {"anyOf": [*ways, *([] if schema in ways else [schema])]}
    required = set.intersection(*(set(choice.get("required", ())) for choice in choices))
    return {"properties": properties, **({"required": sorted(required)} if required else {})}


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
        kept: dict[str, Any] = {}
        for word, value in node.items():
            if reason := _no_grammar_for(word, value, node):
                losses.append(f"{place or '/'}: {word} left out, {reason}")
            elif word in {"properties", "$defs", "definitions"} and isinstance(value, Mapping):
                kept[word] = {name: plain(inner, f"{place}/{word}/{_step(name)}") for name, inner in value.items()}
            elif word in {"enum", "const", "default", "examples", "required"}:
                kept[word] = value
            else:
                kept[word] = plain(value, f"{place}/{word}")
        return kept

    return Portable(plain(schema, ""), tuple(losses))


def _no_grammar_for(word: str, value: Any, node: Mapping[str, Any]) -> str:
    if word == "pattern" and isinstance(value, str):
        if not (value.startswith("^") and value.endswith("$")):
            return "it is not anchored at both ends"
        return "its grammar cannot be written" if _NOT_IN_GRAMMARS.search(value) else ""
    if word in {"minLength", "maxLength", "minItems", "maxItems"} and isinstance(value, int) and value > MAX_REPEATS:
        return "the repetition is too long for a grammar"
    if word in {"not", "if", "then", "else", "patternProperties", "dependentSchemas", "dependentRequired"}:
        return "grammars have no such thing" if isinstance(value, (Mapping, bool)) else ""
    return ""


# Gemini: a small schema language of its own --------------------------------------------------------------------------


@dataclass(slots=True)
class _Gemini:
    """Converts to Gemini's dialect: no references, no `null`, enums of strings only, and a short list of keywords."""

    root: Mapping[str, Any]
    losses: list[str] = field(default_factory=list)
    nodes: int = 0

    def converted(self) -> Portable:
        plain = _with_a_plain_top(_resolved(self.root, self.root))
        self.losses += plain.losses
        schema = self._node(plain.schema, "", ())
        top = {word: value for word, value in schema.items() if word not in {"anyOf", "enum", "nullable", "items"}}
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
            beside = {word: value for word, value in node.items() if word != "$ref"}
            target = _at(self.root, reference)
            if not isinstance(target, Mapping):
                return self._node({"type": "object", **beside} if target is None else target, place, trail)
            return self._node({**target, **beside}, place, (*trail, reference))
        words, trail = self._with_all(dict(node), place, trail)
        nullable = self._without_null(words)
        if "$ref" in words:  # of the only remaining alternative
            kept = self._node(words, place, trail)
            return {**kept, "nullable": True} if nullable else kept
        kept = self._words(words, place, trail)
        return {**kept, "nullable": True} if nullable else kept

    def _with_all(
        self, words: dict[str, Any], place: str, trail: tuple[str, ...]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Merge the parts of a node's `allOf`; return also the references that were followed."""
        parts = [part for part in words.pop("allOf", ()) if isinstance(part, Mapping)]
        if not parts:
            return words, trail
        found = [words]
        for part in parts:
            reference = str(part.get("$ref", ""))
            if reference in trail:
                self._lose(place, f"{reference} refers to itself; left out")
                continue
            trail = (*trail, reference) if reference else trail
            found.append(_resolved(part, self.root))
        whole = _merged(found)
        for word in ("allOf", "$ref"):  # of the parts; parts of parts are more than this is for
            if whole.pop(word, None) is not None:
                self._lose(place, f"{word} inside of allOf left out")
        if not whole["properties"]:
            del whole["properties"]
        return whole, trail

    def _without_null(self, words: dict[str, Any]) -> bool:
        """Remove `null` from a node's types and alternatives; return whether it was there."""
        nullable = bool(words.pop("nullable", False))
        if "oneOf" in words:
            words["anyOf"] = [*words.get("anyOf", ()), *words.pop("oneOf")]
        types = words.get("type")
        if isinstance(types, list):
            some = [each for each in types if each != "null"]
            nullable = nullable or len(some) < len(types)
            if len(some) == 1:
                words["type"] = some[0]
            else:
                del words["type"]
                words["anyOf"] = [*words.get("anyOf", ()), *({"type": each} for each in some)]
        if isinstance(choices := words.get("anyOf"), list):
            some = [it for it in choices if not (isinstance(it, Mapping) and it.get("type") == "null")]
            nullable = nullable or len(some) < len(choices)
            del words["anyOf"]
            if len(some) == 1 and isinstance(some[0], Mapping):
                words.update({**some[0], **words})
            elif some:
                words["anyOf"] = some
        if "const" in words:
            words["enum"] = [words.pop("const")]
        if isinstance(values := words.get("enum"), list) and None in values:
            words["enum"] = [value for value in values if value is not None]
            nullable = True
        return nullable

    def _words(self, words: dict[str, Any], place: str, trail: tuple[str, ...]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        self._settle_enum(words, place)
        self._settle_bounds(words, place)
        for word, value in words.items():
            if word == "properties" and isinstance(value, Mapping):
                inside = {
                    name: self._node(inner, f"{place}/properties/{_step(name)}", trail) for name, inner in value.items()
                }
                if inside or not place:
                    kept[word] = inside
            elif word == "items":
                kept[word] = self._node(value, f"{place}/items", trail)
            elif word == "anyOf":
                kept[word] = [self._node(inner, f"{place}/anyOf/{at}", trail) for at, inner in enumerate(value)]
            elif word == "format" and value not in _GEMINI_FORMATS.get(str(words.get("type")), ()):
                self._lose(place, f"format {value} left out")
            elif word in _GEMINI_TAKES:
                kept[word] = value
            elif word not in {"$defs", "definitions", "$schema", "$id", "$comment", "additionalProperties"}:
                self._lose(place, f"{word} left out")
            elif word == "additionalProperties" and isinstance(value, Mapping) and value:
                self._lose(place, "additionalProperties left out")
        self._settle_type(kept, place)
        if "required" in kept:
            kept["required"] = [name for name in kept["required"] if name in kept.get("properties", {})]
            if not kept["required"]:
                del kept["required"]
        return kept

    def _settle_enum(self, words: dict[str, Any], place: str) -> None:
        values = words.get("enum")
        if not isinstance(values, list):
            return
        if values and all(isinstance(value, str) for value in values):
            words.setdefault("type", "string")
            return
        del words["enum"]
        if values:
            words.setdefault("type", _type_of(values[0]))
            self._say(words, f"One of: {', '.join(json.dumps(value, ensure_ascii=False) for value in values)}.")
            self._lose(place, "enum of values that are no texts, now in its description")

    def _settle_bounds(self, words: dict[str, Any], place: str) -> None:
        for word, other, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
            bound = words.pop(word, None)
            if isinstance(bound, bool) or not isinstance(bound, (int, float)):
                continue
            if words.get("type") == "integer" and isinstance(bound, int):
                words.setdefault(other, bound + step)
            else:
                self._say(words, f"{'More' if step > 0 else 'Less'} than {bound}.")
                self._lose(place, f"{word}, now in its description")

    def _settle_type(self, kept: dict[str, Any], place: str) -> None:
        if "type" not in kept and "anyOf" not in kept:
            kept["type"] = "object" if "properties" in kept else "array" if "items" in kept else "string"
            if kept["type"] == "string":
                self._lose(place, "any value became text")
        if kept.get("type") == "array" and "items" not in kept:
            kept["items"] = {"type": "string"}
            self._lose(place, "items of any kind became texts")

    def _say(self, words: dict[str, Any], text: str) -> None:
        words["description"] = " ".join(filter(None, [str(words.get("description", "")), text]))

    def _lose(self, place: str, what: str) -> None:
        self.losses.append(f"{place or '/'}: {what}")


# References ----------------------------------------------------------------------------------------------------------


def _resolved(node: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node with its own reference resolved, repeatedly."""
    found = dict(node)
    for _ in range(16):
        reference = found.get("$ref")
        target = _at(root, str(reference)) if reference is not None else None
        if not isinstance(target, Mapping):
            break
        del found["$ref"]
        found = {**target, **found}
    return found


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
