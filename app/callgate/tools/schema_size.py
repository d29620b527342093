"""Counts the schemas in a JSON Schema with its references written out.

A schema of a kilobyte may refer twice to one that refers twice to another, and so on: a validator goes every way of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote


class Unfolded(NamedTuple):
    """A schema with its references written out."""

    size: int
    """Its objects and lists, those that it refers to as often as they are reached. What refers to itself is not counted again."""
    is_recursive: bool
    """It refers to itself, so that it is as deep as what is held against it."""


def unfolded(schema: Mapping[str, Any]) -> Unfolded:
    """Measure a schema with its references written out."""
    unfolding = _Unfolding(schema)
    size = unfolding.size()
    return Unfolded(size, unfolding.is_recursive)


class _Unfolding:
    """Goes through a schema without recursion: a chain of references may have thousands of links."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.is_recursive = False
        self._root = root
        self._anchors: dict[str, Any] | None = None

    def size(self) -> int:
        """Return the size of the root, after that of all that it refers to."""
        parts: dict[int, tuple[int, Sequence[Any]]] = {}
        sizes: dict[int, int] = {}
        being_counted: set[int] = set()
        waiting: list[Any] = [self._root]
        while waiting:
            value = waiting[-1]
            place = id(value)
            if place in sizes:
                waiting.pop()
                continue
            if place not in being_counted:
                being_counted.add(place)
                parts[place] = self._parts_of(value)
                _, targets = parts[place]
                if not being_counted.isdisjoint(map(id, targets)):
                    self.is_recursive = True
                uncounted = [
                    target for target in targets if id(target) not in sizes and id(target) not in being_counted
                ]
                if uncounted:
                    waiting += uncounted
                    continue
            own_size, targets = parts[place]
            sizes[place] = own_size + sum(sizes.get(id(target), 1) for target in targets)
            being_counted.remove(place)
            waiting.pop()
        return sizes[id(self._root)]

    def _parts_of(self, whole: Any) -> tuple[int, Sequence[Any]]:
        """Return the objects and lists in a schema, and what it refers to, as often as it does."""
        size = 0
        targets: list[Any] = []
        waiting: list[Any] = [whole]
        while waiting:
            value = waiting.pop()
            if isinstance(value, list):
                size += 1
                waiting += value
            elif isinstance(value, Mapping):
                size += 1
                for key, item in value.items():
                    if not isinstance(item, str):
                        waiting.append(item)
                    elif key in ("$ref", "$dynamicRef", "$recursiveRef"):
                        target = self._target(item)
                        if isinstance(target, list | Mapping):
                            targets.append(target)
                        else:
                            size += 1
        return size, targets

    def _target(self, reference: str) -> Any:
        """Return what a reference leads to; None where that is nothing in this schema."""
        address, _, fragment = reference.partition("#")
        if fragment and not fragment.startswith("/"):
            return self._named().get(f"#{fragment}")
        start = self._named().get(address) if address else self._root
        return _at(start, fragment)

    def _named(self) -> Mapping[str, Any]:
        """Return the schemas that have a name of their own, by what refers to them."""
        if self._anchors is None:
            self._anchors = {}
            waiting: list[Any] = [self._root]
            while waiting:
                value = waiting.pop()
                if isinstance(value, list):
                    waiting += value
                elif isinstance(value, Mapping):
                    waiting += value.values()
                    for key, prefix in (("$anchor", "#"), ("$dynamicAnchor", "#"), ("$id", ""), ("id", "")):
                        if isinstance(name := value.get(key), str):
                            self._anchors[prefix + name] = value
        return self._anchors


def _at(value: Any, pointer: str) -> Any:
    for escaped in unquote(pointer).split("/")[1:]:
        step = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value
