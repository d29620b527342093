"""Ranks tools by the words of a query: BM25F over a tool's name, server, title, description and parameters.

The weights, and what comes of them, are in `bench/tool_search.py`. A tool's text counts up to a bound and by its density, so that a
description full of words does not win every search.
"""

import heapq
import math
import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

MAX_QUERY: Final = 1000
"""Characters of a query that are read."""
MAX_TERMS: Final = 32
"""Words of a query that count."""
MAX_TOOLS: Final = 10_000
"""Tools of one index. Those beyond are found by their names only."""
MAX_NAME: Final = 128
MAX_DESCRIPTION: Final = 400
MAX_SENTENCE: Final = 300
MAX_PARAMETERS: Final = 1000
"""Characters of each field that are indexed."""
K1: Final = 1.2
B: Final = 0.75
WEIGHTS: Final = {"name": 3.0, "server": 2.0, "title": 1.0, "sentence": 2.0, "description": 0.5, "parameters": 0.5}
COVERAGE: Final = 0.5
"""What it is worth that a query has all words of a tool's name and server, in shares of the score."""

_WORD: Final = re.compile(r"[^\W_]+")
_PART: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s|\n")
_STOP: Final = frozenset(
    "a an and are as at be but by can did do does for from how i if in into is it its me my not of on or please that the this to what"
    " which who why will with would you your".split()
)
_SUFFIXES: Final = (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("e", ""))
_SHORTEST_STEM: Final = 3
_NEVER_STEMMED: Final = 3
"""Letters of the longest word that is left as it is."""


class ToolText(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is indexed of a tool."""

    address: str
    name: str
    server: str
    title: str = ""
    description: str = ""
    parameters: str = ""
    """The names of its parameters."""

    def fields(self) -> dict[str, str]:
        return {
            "name": self.name[:MAX_NAME],
            "server": self.server[:MAX_NAME],
            "title": self.title[:MAX_NAME],
            "sentence": first_sentence(self.description),
            "description": self.description[:MAX_DESCRIPTION],
            "parameters": self.parameters[:MAX_PARAMETERS],
        }


class SearchIndex:
    """The words of some tools, with what each is worth for each tool. Built once, then only read."""

    def __init__(self, tools: Iterable[ToolText] = ()) -> None:
        """Takes some tenths of a second for a thousand tools."""
        texts = list(tools)[:MAX_TOOLS]
        self.addresses: Sequence[str] = [text.address for text in texts]
        words = [{field: words_of(text) for field, text in tool.fields().items()} for tool in texts]
        means = {field: sum(len(tool[field]) for tool in words) / max(len(words), 1) or 1.0 for field in WEIGHTS}
        rows: dict[str, list[tuple[int, float]]] = {}
        for at, tool in enumerate(words):
            for word, weight in _weights(tool, means).items():
                rows.setdefault(word, []).append((at, weight))
        self._places: dict[str, tuple[int, int]] = {}
        """Where the part of each word begins in the arrays below, and where it ends."""
        self._tools = array("I")
        self._scores = array("f")
        self._covered = array("f")
        """The share of the name and server of that tool that the word is."""
        names = [frozenset((*tool["name"], *tool["server"])) for tool in words]
        for word, weights in rows.items():
            rarity = math.log(1 + (len(texts) - len(weights) + 0.5) / (len(weights) + 0.5))
            start = len(self._tools)
            for at, weight in weights:
                self._tools.append(at)
                self._scores.append(rarity * weight * (K1 + 1) / (weight + K1))
                self._covered.append(1 / len(names[at]) if word in names[at] else 0.0)
            self._places[word] = (start, len(self._tools))

    def nearest(self, query: str, among: Collection[str], limit: int) -> list[str]:
        """Return the addresses of the tools that fit a query best, of some, the best first. Tools without any of its words are none
        of them."""
        scores: dict[int, float] = {}
        covered: dict[int, float] = {}
        for word in dict.fromkeys(words_of(query[:MAX_QUERY])[:MAX_TERMS]):
            start, end = self._places.get(word, (0, 0))
            tools = self._tools[start:end]
            for at, score, share in zip(tools, self._scores[start:end], self._covered[start:end], strict=True):
                scores[at] = scores.get(at, 0.0) + score
                if share:
                    covered[at] = covered.get(at, 0.0) + share
        for at, share in covered.items():
            scores[at] *= 1 + COVERAGE * share
        addresses = self.addresses
        allowed = ((-score, at) for at, score in scores.items() if addresses[at] in among)
        return [addresses[at] for _, at in heapq.nsmallest(limit, allowed)]

    def size(self) -> int:
        return len(self.addresses)


def words_of(text: str) -> list[str]:
    """Return the words that count, in their order, without endings. A name in camel case is its parts and itself."""
    words: list[str] = []
    for word in _WORD.findall(text):
        parts = _PART.findall(word) or [word]
        words += map(str.lower, parts)
        if len(parts) > 1:
            words.append(word.lower())
    return [_stem(word) for word in words if word not in _STOP]


def first_sentence(text: str) -> str:
    return _SENTENCE_END.split(text.strip(), maxsplit=1)[0][:MAX_SENTENCE]


def parameter_names(schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return ""
    return " ".join(map(str, properties))


def _stem(word: str) -> str:
    if len(word) <= _NEVER_STEMMED or word.endswith("ss"):
        return word
    if len(word) == _NEVER_STEMMED + 1:
        return word.removesuffix("s")
    for ending, instead in _SUFFIXES:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            return word.removesuffix(ending) + instead
    return word


def _weights(tool: Mapping[str, Sequence[str]], means: Mapping[str, float]) -> dict[str, float]:
    """Return what each word of a tool weighs: by its fields, and by how long these are beside those of other tools."""
    weights: dict[str, float] = {}
    for field, weight in WEIGHTS.items():
        words = tool[field]
        share = weight / (1 - B + B * len(words) / means[field])
        for word, count in Counter(words).items():
            weights[word] = weights.get(word, 0.0) + share * count
    return weights
