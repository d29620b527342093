"""What a docstring says of a function and of each parameter, in Google, numpy or Sphinx style."""

import inspect
import re
from dataclasses import dataclass, field

_GOOGLE_PARAMETERS = frozenset({"args", "arguments", "parameters", "params", "keyword args", "keyword arguments"})
_SECTIONS = _GOOGLE_PARAMETERS | {
    "returns", "return", "yields", "yield", "raises", "raise", "examples", "example", "notes", "note",
    "warnings", "warning", "warns", "see also", "references", "attributes", "other parameters", "todo",
}  # fmt: skip
_ITEM = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_SPHINX = re.compile(r"^:(\w+)(?:\s+([^:]*))?:\s*(.*)$")
_SPHINX_PARAMETERS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})
_UNDERLINE = re.compile(r"^-{3,}\s*$")


@dataclass(slots=True)
class Doc:
    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read(docstring: str | None) -> Doc:
    """The text before the first section, and what is said of each parameter."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    doc = Doc()
    start = next((at for at in range(len(lines)) if _opens_section(lines, at)), len(lines))
    doc.description = "\n".join(lines[:start]).strip()
    at = start
    while at < len(lines):
        if _SPHINX.match(lines[at]):
            at = _sphinx(lines, at, doc)
        elif _is_numpy(lines, at):
            at = _numpy(lines, at, doc)
        elif _is_google(lines, at):
            at = _google(lines, at, doc)
        else:
            at += 1
    return doc


def _opens_section(lines: list[str], at: int) -> bool:
    return bool(_SPHINX.match(lines[at])) or _is_numpy(lines, at) or _is_google(lines, at)


def _is_numpy(lines: list[str], at: int) -> bool:
    underlined = at + 1 < len(lines) and _UNDERLINE.match(lines[at + 1]) is not None
    return underlined and lines[at].strip().lower() in _SECTIONS


def _is_google(lines: list[str], at: int) -> bool:
    line = lines[at]
    if not line.endswith(":") or line[:-1].lower() not in _SECTIONS:
        return False
    below = next((each for each in lines[at + 1 :] if each.strip()), "")
    return below.startswith((" ", "\t"))


def _sphinx(lines: list[str], at: int, doc: Doc) -> int:
    found = _SPHINX.match(lines[at])
    assert found is not None
    word, what, said = found.group(1), (found.group(2) or "").split(), [found.group(3)]
    at += 1
    while at < len(lines) and lines[at].startswith((" ", "\t")):
        said.append(lines[at])
        at += 1
    if word in _SPHINX_PARAMETERS and what:
        doc.parameters[what[-1].lstrip("*")] = _joined(said)  # `:param int count:` names it last
    return at


def _numpy(lines: list[str], at: int, doc: Doc) -> int:
    is_parameters = lines[at].strip().lower() in {"parameters", "other parameters"}
    at += 2
    names: list[str] = []
    said: list[str] = []
    while at < len(lines) and not _opens_section(lines, at):
        line = lines[at]
        if line and not line[0].isspace():
            _keep(doc, names, said)
            names = [each.strip().lstrip("*") for each in line.partition(":")[0].split(",")] if is_parameters else []
            said = []
        else:
            said.append(line)
        at += 1
    _keep(doc, names, said)
    return at


def _google(lines: list[str], at: int, doc: Doc) -> int:
    is_parameters = lines[at][:-1].lower() in _GOOGLE_PARAMETERS
    at += 1
    first: int | None = None
    names: list[str] = []
    said: list[str] = []
    while at < len(lines) and (not lines[at].strip() or lines[at][0].isspace()):
        line = lines[at]
        indent = len(line) - len(line.lstrip())
        first = indent if first is None and line.strip() else first
        found = _ITEM.match(line.strip()) if line.strip() and indent == first else None
        if found is not None:
            _keep(doc, names, said)
            names, said = ([found.group(1)] if is_parameters else []), [found.group(2)]
        else:
            said.append(line)
        at += 1
    _keep(doc, names, said)
    return at


def _keep(doc: Doc, names: list[str], said: list[str]) -> None:
    for name in names:
        doc.parameters[name] = _joined(said)


def _joined(said: list[str]) -> str:
    return " ".join(each.strip() for each in said if each.strip())
