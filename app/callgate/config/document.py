"""Reads a YAML file into plain values with their places, so that errors can name line and column.

Stricter than YAML: a duplicate key is an error, keys are always strings, and nothing becomes a date
(`api_version: 2024-10-21` is a string).
"""

import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from callgate.config.files import MAX_BYTES
from callgate.config.problems import ConfigError, Problem, Spot
from callgate.config.references import BadReference, References
from callgate.config.secret_names import PUBLISHED, VARIABLE_NAME, is_ordinary, means_secret, secrets_in_url
from callgate.untrusted.yaml_readers import OpenedYaml, OversizedText, SizeLimit, explain

Path: TypeAlias = tuple[str | int, ...]

LIMIT = SizeLimit(nodes=100_000, chars=MAX_BYTES)
"""Aliases of aliases can make a small file enormous."""
_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
_PLAIN = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


@dataclass(slots=True)
class Document:
    """A parsed file: its values with references resolved, and the place of each."""

    source: str
    value: Any = None
    keys: dict[Path, Spot] = field(default_factory=dict)
    values: dict[Path, Spot] = field(default_factory=dict)
    referred: set[Path] = field(default_factory=set)
    """Values from a variable or a file, which errors must not quote."""
    secrets: set[str] = field(default_factory=set, repr=False)
    problems: list[Problem] = field(default_factory=list)

    def without_lines(self) -> None:
        """Remove lines and columns, for a text that the user does not see."""
        whole = Spot(self.source)
        self.keys = dict.fromkeys(self.keys, whole)
        self.values = dict.fromkeys(self.values, whole)
        self.problems = [Problem(whole, problem.path, problem.message) for problem in self.problems]

    def put(self, path: Path, value: Any, spot: Spot) -> None:
        """Set one value, unless its parent is no mapping, which is reported anyway."""
        if self.value is None:
            self.value = {}
        above = self.value
        for part in path[:-1]:
            if not isinstance(above, dict):
                return
            if above.get(part) is None:
                above[part] = {}
            above = above[part]
        if isinstance(above, dict):
            above[path[-1]] = value
            replaced = self.values.get(path)
            self.problems = [problem for problem in self.problems if problem.spot != replaced]
            self.keys[path] = self.values[path] = spot


def read_document(text: str, source: str, references: References) -> Document:
    """Parse a file's text. Invalid YAML raises `ConfigError`; smaller mistakes are collected in `problems`."""
    try:
        loader = _Loader(_opened(text))
        root = loader.get_single_node()
        reading = _Reading(Document(source), loader, references)
        if root is None:
            reading.document.value = None
        else:
            reading.document.value = reading.read(root, ())
    except OversizedText as large:
        raise ConfigError([Problem(Spot(source, large.line, large.column), "", str(large))]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark is None:
            spot = Spot(source)
        else:
            spot = Spot(source, mark.line + 1, mark.column + 1)
        reason = ", ".join(part for part in (error.problem, error.context) if part)
        if conflict := _CONFLICT.search(text):
            line = text.count("\n", 0, conflict.start()) + 1
            raise ConfigError([Problem(Spot(source, line, 1), "", _UNMERGED)]) from None
        language = "JSON" if source.endswith(".json") else "YAML"
        advice = next((f" ({advice})" for words, advice in _ADVICE.items() if words in reason), "")
        raise ConfigError([Problem(spot, "", f"not readable as {language}: {reason}{advice}")]) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line = before.count("\n") + 1
        column = error.position - (before.rfind("\n") + 1) + 1
        raise ConfigError(
            [Problem(Spot(source, line, column), "", "not readable as YAML: a character that may not stand in a text")]
        ) from None
    except RecursionError:
        raise ConfigError([Problem(Spot(source), "", "nested too deeply")]) from None
    return reading.document


def _opened(text: str) -> OpenedYaml:
    """Return a text whose size was checked. Raises `OversizedText` for too much, and for a text that is no YAML the error of the parser in Python, which explains it better."""
    try:
        return LIMIT.open_yaml(text)
    except yaml.MarkedYAMLError:
        explain(text)
        raise


_CONFLICT = re.compile(r"^<{7} ", re.MULTILINE)
_UNMERGED = (
    "git could not merge this file: take one of the two sides between `<<<<<<<` and `>>>>>>>`, and the marks out"
)
_ADVICE = {
    "'\\t'": "a tab cannot indent: use spaces",
    "expected <block end>": "this line does not begin below those it belongs to: look at its spaces",
    "unknown escape character": "in double quotes `\\` begins an escape: use single quotes",
    "mapping values are not allowed": "look at the spaces of this line, and put a text that has `: ` in it into quotes",
    "expected ',' or": "a comma or a bracket is missing before this",
    "found character '@'": "put a text that begins with it into quotes",
    "found character '%'": "put a text that begins with it into quotes",
    "found character '`'": "put a text that begins with it into quotes",
    "found undefined alias": "put a text that begins with `*` into quotes",
    "while scanning an alias": "put a text that begins with `*` into quotes",
    "unexpected end of stream": "a quote is opened and never closed",
}
"""Advice for messages of the YAML parser."""


class _Loader(yaml.SafeLoader):
    """YAML's safe types without dates."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Reading:
    def __init__(self, document: Document, loader: _Loader, references: References) -> None:
        self.document = document
        self._loader = loader
        self._references = references
        self._flat: set[int] = set()
        """Mappings whose keys were merged, in which overridden keys are duplicates."""

    def read(self, node: yaml.Node, path: Path) -> Any:
        self.document.values[path] = self._spot(node)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN:
            raise yaml.MarkedYAMLError(problem=f"the tag {node.tag} means nothing", problem_mark=node.start_mark)
        if isinstance(node, yaml.MappingNode):
            if id(node) not in self._flat:
                self._complain_of_repeated_keys(node, path)
                self._loader.flatten_mapping(node)
                self._flat.add(id(node))
            mapping: dict[str, Any] = {}
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError(problem="a key should be a text", problem_mark=key.start_mark)
                self.document.keys[(*path, key.value)] = self._spot(key)
                mapping[key.value] = self.read(value, (*path, key.value))
            return mapping
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _complain_of_repeated_keys(self, node: yaml.MappingNode, path: Path) -> None:
        first: dict[str, Spot] = {}
        for key, _ in node.value:
            if key.tag == _MERGE or not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in first:
                line = first[key.value].line
                self._complain(key, (*path, key.value), f"this key is given twice; the first is on line {line}")
            first.setdefault(key.value, self._spot(key))

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        try:
            value = self._loader.construct_object(node)
        except (ValueError, AttributeError, LookupError):  # from PyYAML for an invalid tagged value such as `!!int abc`
            self._complain(node, path, "not a value of the type that its tag or its looks promise")
            return None
        if node.tag != _TEXT or not isinstance(value, str):
            return value
        try:
            resolved = self._references.resolve(value)
        except BadReference as error:
            self._complain(node, path, str(error))
            return value
        if resolved.referred:
            self.document.referred.add(path)
        # The nearest key above a value, because `api_keys` may be a list.
        setting = next((part for part in reversed(path) if isinstance(part, str)), "")
        if setting not in PUBLISHED:
            self.document.secrets.update(secret for secret in resolved.secrets if not is_ordinary(secret))
            self.document.secrets.update(secrets_in_url(resolved.text, is_foreign=resolved.referred))
        if means_secret(setting) and not (VARIABLE_NAME.fullmatch(resolved.text) and not resolved.referred):
            # Both `Bearer abc` and `abc` are secrets.
            words = resolved.text.split()
            self.document.secrets.update((resolved.text, words[1]) if len(words) == 2 else (resolved.text,))
        return resolved.text

    def _complain(self, node: yaml.Node, path: Path, message: str) -> None:
        self.document.problems.append(Problem(self._spot(node), dotted(path), message))

    def _spot(self, node: yaml.Node) -> Spot:
        return Spot(self.document.source, node.start_mark.line + 1, node.start_mark.column + 1)


def dotted(path: Path) -> str:
    return ".".join(str(part) for part in path)
