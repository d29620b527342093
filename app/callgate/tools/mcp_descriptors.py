"""What a server says about its tools: cleaned of what no reader can see, and watched for changes.

A description is text that a model obeys. One that changes after somebody approved of the tool is worth a warning,
and so is one that holds characters nobody can see; those are taken out.
"""

import fnmatch
import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.tools.executor import Safety

if TYPE_CHECKING:
    import mcp_types as types

MAX_PINS = 20_000
"""Tools that are remembered. A server that invents new ones for ever is not."""
_HEADER_KEY = "x-mcp-header"
_SAYS = frozenset({"description", "title", "$comment"})
"""Where a schema speaks to readers. What stands elsewhere is data, and the server means every character of it."""
_UNSEEN_CATEGORIES = frozenset({"Cf", "Cc", "Co", "Cn", "Cs"})
_SELECTORS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
"""Variation selectors: marks to Unicode, and a place to hide any bytes in."""
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and symbols that have no shape."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tool as its server describes it, made fit to be offered."""

    name: str
    """The server's own."""
    description: str
    parameters: Mapping[str, Any]
    safety: Safety | None
    """What its annotations suggest; None where they say nothing."""
    direct: bool
    """Whether a call is an ordinary one, which can go past the SDK."""
    digest: str
    """Of name, description and schema as they came."""


class Pins:
    """What tools looked like when they were last seen. Lives as long as the process, and longer if it has a file."""

    def __init__(self, changed: Callable[[str, str], None] | None = None, file: Path | None = None) -> None:
        self._changed = changed or _nobody
        self._file = file
        self._seen = {} if file is None else _read(file)

    def look(self, server: str, descriptors: Iterable[Descriptor]) -> None:
        """Remember what is new, and tell of what is not what it was."""
        news = False
        for each in descriptors:
            key = f"{server}\n{each.name}"
            known = self._seen.get(key)
            if known == each.digest or (known is None and len(self._seen) >= MAX_PINS):
                continue
            self._seen[key] = each.digest
            news = True
            if known is not None:
                self._changed(server, each.name)
        if news and self._file is not None:
            _write(self._file, self._seen)


def _read(file: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{file} cannot be read as what tools looked like: {error}") from error


def _write(file: Path, seen: Mapping[str, str]) -> None:
    """In one step, so that a crash leaves the old file or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(seen))
    fresh.replace(file)


def _nobody(server: str, tool: str) -> None:
    """Where nobody listens."""


def described(tool: "types.Tool") -> Descriptor:
    words = tool.description or tool.title or (tool.annotations.title if tool.annotations else None) or ""
    return Descriptor(
        name=tool.name,
        description=visible(words),
        parameters=_visible_schema(tool.input_schema),
        safety=_suggested(tool.annotations),
        direct=not _mentions(tool.input_schema, _HEADER_KEY),
        digest=_digest(tool),
    )


def is_callable(tool: "types.Tool") -> bool:
    """Not one that runs only as a task of its own: nobody here would come back for the result."""
    return tool.execution is None or tool.execution.task_support != "required"


def is_allowed(name: str, patterns: tuple[str, ...] | None) -> bool:
    return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def visible(text: str) -> str:
    """`text` without the characters that show nothing and are read all the same."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(character for character in text if _is_seen(character))


def _is_seen(character: str) -> bool:
    if character in "\n\t":
        return True
    if unicodedata.category(character) in _UNSEEN_CATEGORIES or character in _BLANKS:
        return False
    return not any(ord(character) in selectors for selectors in _SELECTORS)


def _visible_schema(value: Any, *, says: bool = False) -> Any:
    match value:
        case str():
            return visible(value) if says else value
        case dict():
            return {key: _visible_schema(each, says=key in _SAYS) for key, each in value.items()}
        case list():
            return [_visible_schema(each) for each in value]
        case _:
            return value


def _suggested(hints: "types.ToolAnnotations | None") -> Safety | None:
    """The protocol takes a tool for destructive unless it says otherwise; that much suspicion would mean nothing."""
    if hints is None:
        return None
    if hints.read_only_hint:
        return Safety.READ_ONLY
    if hints.destructive_hint:
        return Safety.DESTRUCTIVE
    if hints.read_only_hint is False or hints.destructive_hint is False or hints.idempotent_hint is not None:
        return Safety.WRITE
    return None


def _mentions(value: Any, key: str) -> bool:
    match value:
        case dict():
            return key in value or any(_mentions(each, key) for each in value.values())
        case list():
            return any(_mentions(each, key) for each in value)
        case _:
            return False


def _digest(tool: "types.Tool") -> str:
    text = json.dumps([tool.name, tool.description, tool.input_schema], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
