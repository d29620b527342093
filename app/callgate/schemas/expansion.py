"""Computes the size of a schema with its references expanded, without expanding them."""

from collections.abc import Mapping
from typing import Any

MAX_EXPANDED = 20_000
"""The limit of an expanded schema in nodes, because libraries that expand references have none."""
TEXT_OF_A_NODE = 64
"""Characters of text that count as one node: a long description that is referred to often is as large as many nodes."""
_DEFINITIONS = ("$defs", "definitions")


class SchemaTooLarge(Exception):
    """Raised for a schema that is too large after its references are expanded, with the place where it exceeds the limit."""

    def __init__(self, place: str) -> None:
        super().__init__(f"more than {MAX_EXPANDED} nodes at {place or '/'}")
        self.place = place


def check_expansion(schema: Any, most: int = MAX_EXPANDED) -> None:
    """Count the nodes of a schema with expanded references, and raise `SchemaTooLarge` above `most`.

    Recursive references end the expansion. Definitions are found in any scope by the last step of the reference, as libraries
    look them up.
    """
    definitions: dict[str, list[Any]] = {}
    _collect(schema, definitions, most)
    count = 0
    waiting: list[tuple[Any, str, frozenset[str]]] = [(schema, "", frozenset())]
    while waiting:
        node, place, within = waiting.pop()
        count += 1
        if isinstance(node, str):
            count += len(node) // TEXT_OF_A_NODE
        if count > most:
            raise SchemaTooLarge(place)
        if isinstance(node, list):
            waiting += [(inner, f"{place}/{at}"[:200], within) for at, inner in enumerate(node)]
        elif isinstance(node, Mapping):
            reference = node.get("$ref")
            if isinstance(reference, str) and reference not in within:
                for target in _targets(schema, reference, definitions):
                    waiting.append((target, place, within | {reference}))
            waiting += [
                (inner, f"{place}/{name}"[:200], within) for name, inner in node.items() if name not in _DEFINITIONS
            ]


def _targets(schema: Any, reference: str, definitions: Mapping[str, list[Any]]) -> list[Any]:
    steps = reference.partition("#")[2].split("/")
    if target := definitions.get(steps[-1]):
        return target
    node = schema
    for step in steps[1:]:
        node = node.get(step) if isinstance(node, Mapping) else None
    if node is None:
        return []
    return [node]


def _collect(node: Any, definitions: dict[str, list[Any]], most: int) -> None:
    waiting = [(node, "")]
    nodes = 0
    while waiting:
        value, place = waiting.pop()
        nodes += 1
        if nodes > most:
            raise SchemaTooLarge(place)
        if isinstance(value, list):
            waiting += [(inner, place) for inner in value]
        elif isinstance(value, Mapping):
            for name, inner in value.items():
                waiting.append((inner, f"{place}/{name}"[:200]))
                if name in _DEFINITIONS and isinstance(inner, Mapping):
                    for own, definition in inner.items():
                        definitions.setdefault(own, []).append(definition)
