"""The places that the SDKs declare, as they were last read: `declared/*.json`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.parameters.bodies import corrected

DECLARED = Path(__file__).parent / "declared"
SDKS = {"openai": "openai-3", "anthropic": "anthropic"}
"""The environment of each SDK."""


@dataclass(frozen=True, slots=True)
class Place:
    """A field, an item, a part or a type of tool that a request may have, with a sample of it."""

    api: str
    path: str
    parent: str
    body: dict[str, Any]
    parent_body: dict[str, Any]

    @property
    def field(self) -> str:
        """The field of the body that it is in."""
        return self.path.partition(".")[0].partition("[")[0].removesuffix("{}")

    @property
    def leaf(self) -> str:
        last = self.path.rpartition(".")[2]
        return last.partition("[")[0].removesuffix("{}")

    @property
    def kind(self) -> str:
        """The kind of an entry or an object, if it is one."""
        last = self.path.rpartition(".")[2]
        return last.partition("[")[2].rstrip("]").rstrip("'")

    @property
    def names(self) -> Sequence[str]:
        """The words that tell a client which place is meant."""
        if self.kind and self.is_listed:
            return [self.kind]
        return [self.leaf, self.kind]

    @property
    def is_listed(self) -> bool:
        """Whether it is an entry of a list, which its own type names."""
        return isinstance(self._holder(), list)

    @property
    def value(self) -> Any:
        """The value of its sample."""
        value = self._holder()
        if isinstance(value, list) and self.path.endswith("]"):
            return value[0]
        return value

    def _holder(self) -> Any:
        """Return its value, or the list that it is an entry of."""
        value: Any = [self.body]
        for step in self.path.split("."):
            if isinstance(value, list):
                value = value[0]
            value = value[step.partition("[")[0].removesuffix("{}")]
        return value

    @property
    def is_required(self) -> bool:
        return self.body == self.parent_body


@cache
def places_of() -> Sequence[Place]:
    """Return all places, each behind the one that it is a part of."""
    places: list[Place] = []
    for sdk in SDKS:
        known: dict[tuple[str, str], dict[str, Any]] = {}
        for declared in json.loads((DECLARED / f"{sdk}.json").read_text())["places"]:
            api = declared["api"]
            path = declared["place"]
            parent = declared["parent"]
            sample = corrected(declared["body"])
            known[api, path] = sample
            places.append(Place(api, path, parent, sample, known[api, parent] if parent else {}))
    return places


@cache
def versions() -> dict[str, str]:
    """Return the SDK and its version by API."""
    named: dict[str, str] = {}
    for sdk in SDKS:
        read = json.loads((DECLARED / f"{sdk}.json").read_text())
        named |= dict.fromkeys((declared["api"] for declared in read["places"]), f"{sdk} {read['version']}")
    return named
