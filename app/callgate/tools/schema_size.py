"""Counts the schemas in a JSON Schema with its references written out.

A schema of a kilobyte may refer twice to one that refers twice to another, and so on: a validator goes every way of them.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def unfolded_size(schema: Mapping[str, Any]) -> int:
    """Return the objects and lists in a schema, those that it refers to as often as they are reached. What refers to itself is
    counted once more. Raises `RecursionError` for one that is nested too deep to be counted."""
    return _Unfolding(schema).size_of(schema)


def refers_to_itself(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema is as deep as what is held against it. Raises `RecursionError` as `unfolded_size` does."""
    unfolding = _Unfolding(schema)
    unfolding.size_of(schema)
    return unfolding.is_recursive


class _Unfolding:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self.is_recursive = False
        self._root = root
        self._being_counted: set[int] = set()
        self._anchors: dict[str, Any] | None = None
        self._sizes: dict[int, int] = {}
        """By the identity of what is referred to; 1 while it is being counted."""

    def size_of(self, value: Any) -> int:
        if isinstance(value, list):
            return 1 + sum(map(self.size_of, value))
        if not isinstance(value, Mapping):
            return 0
        size = 1
        for key, item in value.items():
            if isinstance(item, str) and key in ("$ref", "$dynamicRef", "$recursiveRef"):
                size += self._referred(item)
            else:
                size += self.size_of(item)
        return size

    def _referred(self, reference: str) -> int:
        target = self._target(reference)
        if target is None:
            return 1
        known = self._sizes.get(id(target))
        if known is None:
            self._being_counted.add(id(target))
            self._sizes[id(target)] = 1
            known = self._sizes[id(target)] = self.size_of(target)
            self._being_counted.remove(id(target))
        elif id(target) in self._being_counted:
            self.is_recursive = True
        return known

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
