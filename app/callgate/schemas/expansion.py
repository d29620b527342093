"""Computes the size of a schema with its references expanded, without expanding them."""

from collections.abc import Mapping
from typing import Any

MAX_EXPANDED = 20_000
"""Of one schema, in nodes. The largest tools in use have some hundreds; libraries that expand references have no bound."""
TEXT_OF_A_NODE = 64
"""Characters of text that count as one node: a long description that is referred to often is as large as many nodes."""
_DEFINITIONS = ("$defs", "definitions")


class SchemaTooLarge(Exception):
    """A schema that is too large once its references are written out, with the place where that was seen."""

    def __init__(self, place: str) -> None:
        super().__init__(f"more than {MAX_EXPANDED} nodes at {place or '/'}")
        self.place = place


def check_expansion(schema: Any, most: int = MAX_EXPANDED) -> None:
    """Walk a schema as one that writes its references out would, and raise `TooLarge` where it goes over `most` nodes.

    A reference inside itself ends there. Definitions count where they are referred to, in any scope, by the last step of the
    reference: libraries look them up in that way.
    """
    definitions: dict[str, list[Any]] = {}
    _collect(schema, definitions, most)
    count = 0
    waiting: list[tuple[Any, str, frozenset[str]]] = [(schema, "", frozenset())]
    while waiting:
        node, place, within = waiting.pop()
        count += 1 + (len(node) // TEXT_OF_A_NODE if isinstance(node, str) else 0)
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
    if found := definitions.get(steps[-1]):
        return found
    node = schema
    for step in steps[1:]:
        node = node.get(step) if isinstance(node, Mapping) else None
    return [] if node is None else [node]


def _collect(node: Any, definitions: dict[str, list[Any]], most: int) -> None:
    waiting, seen = [(node, "")], 0
    while waiting:
        each, place = waiting.pop()
        seen += 1
        if seen > most:
            raise SchemaTooLarge(place)
        if isinstance(each, list):
            waiting += [(inner, place) for inner in each]
        elif isinstance(each, Mapping):
            for name, inner in each.items():
                waiting.append((inner, f"{place}/{name}"[:200]))
                if name in _DEFINITIONS and isinstance(inner, Mapping):
                    for own, definition in inner.items():
                        definitions.setdefault(own, []).append(definition)
