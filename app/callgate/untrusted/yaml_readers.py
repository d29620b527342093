"""Counts what a YAML or JSON text is when it is written out, before anything builds it, and builds it then.

Loaders build recursively, libyaml's in C, where too much depth ends the process. An alias is one node to them and may stand for
a million. Here the parser's events are counted one after the other, with an alias as large as what it stands for.
"""

import re
from typing import Any, Final, NewType

import msgspec
import yaml

from callgate.untrusted.doors import OpenedText

OpenedYaml = NewType("OpenedYaml", str)
"""A YAML text whose nodes were counted. Only this module makes them."""

MAX_DEPTH: Final = 100
"""Mappings and lists inside one another; the deepest public documents have about 40."""

MAX_NUMBER: Final = 300
"""Characters of a number. YAML counts `1:30` in sixties, which takes the square of its length, and no float holds a longer one."""

_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STRINGS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STEPS: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
_MARKS = re.compile(r"[\[\]{}]")
_NUMBER = re.compile(r"[-+0-9.:_]+")
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class OversizedText(ValueError):
    """Raised for a text that is too much to be built. Its place is from line 1; None where it is not known."""

    def __init__(self, why: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(why)
        self.line = line
        self.column = column


class SizeLimit(msgspec.Struct, frozen=True):
    """What a text may be when all aliases are written out."""

    nodes: int
    """Texts, mappings and lists; keys count too."""
    chars: int
    """Characters of all texts together."""

    def open_yaml(self, text: str) -> OpenedYaml:
        """Return a text, counted. Raises `OversizedText` for too much, and PyYAML's errors where the text is no YAML."""
        count = _SizeCount(self)
        parser = _Parser(text)
        try:
            while parser.check_event():
                count.feed(parser.get_event())
        finally:
            parser.dispose()
        return OpenedYaml(text)

    def open_json(self, text: str) -> OpenedText:
        """Return a text, counted. Raises `OversizedText` for too much. Whether the text is JSON is for a parser to say."""
        if text.count(",") + text.count("[") + text.count("{") <= MAX_DEPTH:
            return OpenedText(text)
        bare = _STRINGS.sub('""', text)
        if bare.count(",") + bare.count("[") + bare.count("{") > self.nodes:
            raise _too_many(self.nodes)
        depth = 0
        for mark in _MARKS.finditer(bare):
            depth += _STEPS[mark[0]]
            if depth > MAX_DEPTH:
                raise OversizedText(f"it is nested deeper than {MAX_DEPTH} levels")
        return OpenedText(text)


def read_yaml(text: OpenedYaml, loader: type[yaml.SafeLoader] | None = None) -> Any:
    """Decode YAML. `loader`: a safe one, if not PyYAML's own."""
    return yaml.load(text, loader or yaml.SafeLoader)  # noqa: S506 - a safe loader


def explain(text: str) -> None:
    """Raise the error of the parser in Python, which explains better than libyaml's why a text is no YAML. Nothing is built."""
    for _ in yaml.parse(text, Loader=yaml.SafeLoader):
        pass


class _OpenNode(msgspec.Struct):
    """A mapping or list whose end has not come."""

    anchor: str | None
    nodes: int
    chars: int


class _SizeCount:
    """Counts events, with the size of each anchor."""

    def __init__(self, limit: SizeLimit) -> None:
        self._limit = limit
        self._total = _OpenNode(None, 0, 0)
        self._open: list[_OpenNode] = []
        self._anchors: dict[str, tuple[int, int]] = {}
        self._begun: set[str] = set()

    def feed(self, event: yaml.Event) -> None:
        match event:
            case yaml.ScalarEvent():
                if len(event.value) > MAX_NUMBER and _is_number(event):
                    raise _placed(f"a number has more than {MAX_NUMBER} characters", event)
                self._anchor(event.anchor, 1, len(event.value))
                self._add(1, len(event.value), event)
            case yaml.AliasEvent():
                if event.anchor in self._begun:
                    raise _placed("an alias stands for what it is in, which has no end", event)
                self._add(*self._anchors.get(event.anchor or "", (1, 0)), event)
            case yaml.CollectionStartEvent():
                if len(self._open) >= MAX_DEPTH:
                    raise _placed(f"it is nested deeper than {MAX_DEPTH} levels", event)
                if event.anchor is not None:
                    self._begun.add(event.anchor)
                self._open.append(_OpenNode(event.anchor, self._total.nodes, self._total.chars))
                self._add(1, 0, event)
            case yaml.CollectionEndEvent():
                begun = self._open.pop()
                if begun.anchor is not None:
                    self._begun.discard(begun.anchor)
                self._anchor(begun.anchor, self._total.nodes - begun.nodes, self._total.chars - begun.chars)

    def _anchor(self, name: str | None, nodes: int, chars: int) -> None:
        if name is not None:
            self._anchors[name] = nodes, chars

    def _add(self, nodes: int, chars: int, event: yaml.Event) -> None:
        self._total.nodes += nodes
        self._total.chars += chars
        if self._total.nodes > self._limit.nodes:
            raise _placed(str(_too_many(self._limit.nodes)), event)
        if self._total.chars > self._limit.chars:
            raise _placed(f"written out it has more than {self._limit.chars} characters", event)


def _is_number(event: yaml.ScalarEvent) -> bool:
    return event.tag in _NUMBERS or (not event.style and _NUMBER.fullmatch(event.value) is not None)


def _too_many(nodes: int) -> OversizedText:
    return OversizedText(f"written out it has more than {nodes} values")


def _placed(why: str, event: yaml.Event) -> OversizedText:
    mark: Any = event.start_mark
    return OversizedText(why, mark.line + 1, mark.column + 1)
