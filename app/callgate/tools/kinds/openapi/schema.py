"""Converts schemas of an OpenAPI document to JSON Schema 2020-12.

Referenced schemas are included under `$defs`, keywords of OpenAPI 3.0 are translated, and read-only properties are left out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from callgate.tools.kinds.openapi.document import MAX_REFERENCES, BadDocument, LeftOut, OpenApiDocument

MAX_NODES = 20_000
"""The limit for one operation's schemas. References and aliases can make a small document enormous."""
MAX_ALL_NODES = 1_000_000
"""The limit for a whole document: some seconds of reading."""
MAX_DEPTH = 100

_PLAIN = frozenset({
    "type", "enum", "const", "format", "pattern", "title", "description", "default", "deprecated", "writeOnly",
    "multipleOf", "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "maxLength", "minLength",
    "maxItems", "minItems", "uniqueItems", "maxContains", "minContains", "maxProperties", "minProperties",
    "required", "dependentRequired", "contentEncoding", "contentMediaType",
})  # fmt: skip
_ONE = frozenset({
    "items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else",
    "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})
_ELSEWHERE = frozenset({"$id", "$dynamicRef", "$recursiveRef"})
"""Keywords that change the meaning of references."""
_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})


@dataclass(frozen=True, slots=True)
class _Definition:
    name: str
    schema: dict[str, Any] | bool
    nodes: int
    uses: tuple[str, ...]
    """The definitions that it refers to."""


class Dictionary:
    """The referenced schemas of a document, each read once, with unique names."""

    def __init__(self, document: OpenApiDocument) -> None:
        self.document = document
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._read: dict[str, _Definition] = {}
        self.nodes = 0

    def name(self, reference: str) -> str:
        if reference not in self._names:
            stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", reference.rpartition("/")[2]) or "schema"
            name = stem
            number = 2
            while name in self._taken:
                name = f"{stem}_{number}"
                number = number + 1
            self._taken.add(name)
            self._names[reference] = name
        return self._names[reference]

    def definition(self, reference: str) -> _Definition:
        if reference not in self._read:
            reading = _SchemaReader(self)
            schema = reading.read(self.document.at(reference))
            self._read[reference] = _Definition(self.name(reference), schema, reading.nodes, tuple(reading.uses))
        return self._read[reference]


class Schemas:
    """Converts the schemas of one operation, and collects referenced ones in `definitions`."""

    def __init__(self, dictionary: Dictionary) -> None:
        self._dictionary = dictionary
        self._nodes = 0
        self._seen: set[str] = set()
        self.definitions: dict[str, Any] = {}

    def read(self, schema: Any) -> dict[str, Any]:
        """Convert a schema. References in it become `#/$defs/…`."""
        reading = _SchemaReader(self._dictionary)
        converted = reading.read(schema)
        self._count(reading.nodes)
        unread = list(reading.uses)
        while unread:  # iterative, because chains of references may be long
            if (reference := unread.pop()) not in self._seen:
                self._seen.add(reference)
                definition = self._dictionary.definition(reference)
                self._count(definition.nodes)
                self.definitions[definition.name] = definition.schema
                unread += definition.uses
        if converted is True:
            return {}
        if converted is False:
            return {"not": {}}
        return converted

    def followed(self, schema: Any) -> Mapping[str, Any]:
        """Return a schema with its references resolved."""
        if isinstance(schema, Mapping):
            return self._dictionary.document.followed(schema)
        return {}

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise LeftOut("its schemas are too large")


class _SchemaReader:
    """Converts one schema."""

    def __init__(self, dictionary: Dictionary) -> None:
        self._dictionary = dictionary
        self._document = dictionary.document
        self._depth = 0
        self.nodes = 0
        self.uses: dict[str, None] = {}

    def read(self, schema: Any) -> dict[str, Any] | bool:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise LeftOut("a schema in it is no mapping")
        self._count()
        if not _ELSEWHERE.isdisjoint(schema):
            raise LeftOut("its schemas use `$id` or dynamic references, which are not followed")
        self._depth += 1
        if isinstance(schema.get("$ref"), str):
            converted = self._reference(schema)
        else:
            converted = self._keywords(schema)
        self._depth -= 1
        return converted

    def _count(self) -> None:
        self.nodes += 1
        self._dictionary.nodes += 1
        if self.nodes > MAX_NODES or self._depth > MAX_DEPTH:
            raise LeftOut("its schemas are too large")
        if self._dictionary.nodes > MAX_ALL_NODES:
            raise BadDocument("its schemas are too large")

    def _reference(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        beside = {} if self._document.is_3_0 else self._keywords(schema)
        reference = schema["$ref"]
        self.uses[reference] = None
        pointed = {"$ref": f"#/$defs/{self._dictionary.name(reference)}", **beside}
        if isinstance(description := schema.get("description"), str):
            pointed["description"] = description
        if self._document.is_3_0 and schema.get("nullable") is True:
            return _or_null(pointed)
        return pointed

    def _keywords(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _PLAIN:
                converted[key] = value
            elif key in _ONE:
                converted[key] = self.read(value)
            elif key in _SEVERAL and isinstance(value, list):
                converted[key] = [self.read(item) for item in value]
            elif key in _NAMED and isinstance(value, Mapping):
                converted[key] = {str(name): self.read(item) for name, item in value.items()}
        # Common harmless mistakes are dropped, and the operation is kept.
        if not isinstance(converted.get("required", []), list):
            del converted["required"]  # Swagger 2 had it on the property itself
        if isinstance(kind := converted.get("type"), str) and kind not in _TYPES:
            del converted["type"]
        if "enum" in converted and not (isinstance(converted["enum"], list) and converted["enum"]):
            del converted["enum"]
        self._drop_read_only(converted, schema.get("properties"))
        if self._document.is_3_0:
            return _as_in_2020(converted, schema)
        return converted

    def _drop_read_only(self, converted: dict[str, Any], properties: Any) -> None:
        """Drop read-only properties."""
        if not isinstance(properties, Mapping):
            return
        for name in [str(name) for name, schema in properties.items() if self._is_read_only(schema)]:
            del converted["properties"][name]
            if name in converted.get("required", ()):
                converted["required"] = [
                    required_name for required_name in converted["required"] if required_name != name
                ]

    def _is_read_only(self, schema: Any) -> bool:
        for _ in range(MAX_REFERENCES):
            if not isinstance(schema, Mapping):
                return False
            if schema.get("readOnly") is True:
                return True
            if not isinstance(reference := schema.get("$ref"), str):
                return False
            schema = self._document.at(reference)
        return False


def _as_in_2020(converted: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(converted.get(exclusive), bool) and converted.pop(exclusive) and bound in converted:
            converted[exclusive] = converted.pop(bound)
    if schema.get("nullable") is not True:
        return converted
    if "type" not in converted:
        if converted.keys() & (_SEVERAL | {"enum", "not"}):
            return _or_null(converted)
        return converted
    converted["type"] = [converted["type"], "null"]
    if "enum" in converted and None not in converted["enum"]:
        converted["enum"] = [*converted["enum"], None]
    return converted


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    aside: dict[str, Any] = {key: schema.pop(key) for key in ("description", "title", "default") if key in schema}
    return {**aside, "anyOf": [schema, {"type": "null"}]}
