"""Tool descriptions from MCP servers: cleaned of invisible characters, and pinned to notice changes.

A description is text that a model may obey. A description that changes later is logged, and so is one with invisible
characters, which are removed.
"""

import fnmatch
import hashlib
import json
import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from callgate.tools.executor import Safety

if TYPE_CHECKING:
    import mcp_types as types

log = structlog.get_logger("callgate.tools")

MAX_PINS = 20_000
"""The limit of pinned tools, against a server that lists ever new ones."""
_HEADER_KEY = "x-mcp-header"
_SAYS = frozenset({"description", "title", "$comment"})
"""Keywords of a schema with text for readers. All others are data, and not cleaned."""
_UNSEEN_CATEGORIES = frozenset({"Cf", "Cc", "Co", "Cn", "Cs"})
_SELECTORS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
"""Variation selectors, in which data can be hidden."""
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and symbols that are rendered as blanks."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tool as its server describes it, cleaned."""

    name: str
    """The server's own name for it."""
    description: str
    parameters: Mapping[str, Any]
    safety: Safety | None
    """The class that its annotations suggest; None where there are none."""
    direct: bool
    """Whether its calls can bypass the SDK."""
    digest: str
    """The digest of name, title, description, schema and annotations as received."""
    plain_digest: str
    """The digest of name, description and schema only."""


class Pin(msgspec.Struct, frozen=True):
    """The last known description of a tool."""

    digest: str
    safety: Safety | None = None
    """The strictest class that its annotations ever suggested."""


class Pins:
    """The last known descriptions of tools, for the life of the process, or in a file."""

    def __init__(self, changed: Callable[[str, str], None] | None = None, file: Path | None = None) -> None:
        """Raises `DamagedPins` where the file cannot be read; it is not changed."""
        self._changed = changed
        self._file = file
        self._seen: dict[str, Pin | str] = {} if file is None else _read(file)
        self._keep: Callable[[str, Pin], None] | None = None
        self._unwritten = False
        self._failure = ""

    def keep_in(self, seen: Mapping[str, Pin], keep: Callable[[str, Pin], None]) -> None:
        """Use the pins of another store from now on, and write changes there."""
        self._seen = {**seen}
        self._file, self._keep = None, keep

    def look(self, server: str, descriptors: Iterable[Descriptor]) -> list[Descriptor]:
        """Pin new tools, report changes, and keep for each tool the strictest class that it ever had.

        A server could otherwise remove the approval of a tool, and have it retried, by declaring it read-only. Only the
        operator may do so: by `safety` in the config, or by removing the pin.
        """
        held: list[Descriptor] = []
        for each in descriptors:
            key = f"{server}\n{each.name}"
            known = self._seen.get(key)
            if known is None and len(self._seen) >= MAX_PINS:
                held.append(each if each.safety is not Safety.READ_ONLY else replace(each, safety=None))
                continue
            safety = (
                each.safety if not isinstance(known, Pin) else max(known.safety, each.safety, key=_STRICTNESS.index)
            )
            if safety is not each.safety:
                log.warning(
                    "tool_safety_not_relaxed", server=server, tool=each.name, held=safety, suggested=each.safety
                )
            held.append(replace(each, safety=safety))
            pin = Pin(each.digest, safety)
            if pin != known:
                self._seen[key] = pin
                if self._keep is not None:
                    self._keep(key, pin)
                self._unwritten = True
                if known is not None and not _is_same(known, each) and self._changed is not None:
                    self._changed(server, each.name)
        if self._unwritten and self._file is not None:
            self._write(self._file)
        return held

    def _write(self, file: Path) -> None:
        """Write the file atomically. A failure is logged, and writing is tried again later."""
        fresh = file.with_suffix(".new")
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as writing:
                writing.write(msgspec.json.encode(self._seen))
            fresh.replace(file)
        except OSError as error:
            if self._failure != str(error):
                log.error("tool_pins_unwritable", file=str(file), error=error.strerror, effect="forgotten at the end")  # noqa: TRY400 - the reason is all there is to say
            self._failure = str(error)
        else:
            self._unwritten, self._failure = False, ""


class DamagedPins(ValueError):
    """Raised where the file of pins cannot be read. Starting without it would miss changes."""


def _read(file: Path) -> dict[str, Pin | str]:
    try:
        seen = msgspec.json.decode(file.read_bytes(), type=dict[str, Pin | str])
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
    except (FileNotFoundError, NotADirectoryError):  # an invalid folder is reported elsewhere
        return {}
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DamagedPins(
            f"{file} cannot be read as what tools looked like ({why}): put back a copy of it, or move it away to start anew"
        ) from error
    return seen


_STRICTNESS = (Safety.READ_ONLY, None, Safety.WRITE, Safety.DESTRUCTIVE)
"""A tool without annotations counts as one that writes."""


def _is_same(known: Pin | str, tool: Descriptor) -> bool:
    """True if a tool has not changed. Files of older versions have digests without the annotations."""
    return known.digest == tool.digest if isinstance(known, Pin) else known == tool.plain_digest


def described(tool: "types.Tool") -> Descriptor:
    annotations = tool.annotations
    words = tool.description or tool.title or (annotations.title if annotations else None) or ""
    # The protocol's default is destructive, which would make the class meaningless.
    if annotations is None:
        safety = None
    elif annotations.read_only_hint:
        safety = Safety.READ_ONLY
    elif annotations.destructive_hint:
        safety = Safety.DESTRUCTIVE
    elif (
        annotations.read_only_hint is False
        or annotations.destructive_hint is False
        or annotations.idempotent_hint is not None
    ):
        safety = Safety.WRITE
    else:
        safety = None
    return Descriptor(
        name=tool.name,
        description=visible(words),
        parameters=_visible_schema(tool.input_schema),
        safety=safety,
        direct=not _mentions(tool.input_schema, _HEADER_KEY),
        digest=_digest(
            tool.name,
            tool.description,
            tool.input_schema,
            tool.title,
            annotations and annotations.model_dump(mode="json"),
        ),
        plain_digest=_digest(tool.name, tool.description, tool.input_schema),
    )


def is_callable(tool: "types.Tool") -> bool:
    """True unless the tool runs only as an MCP task, which is not supported."""
    return tool.execution is None or tool.execution.task_support != "required"


def is_allowed(name: str, patterns: tuple[str, ...] | None) -> bool:
    return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def visible(text: str) -> str:
    """Remove invisible characters from a text."""
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


def _mentions(value: Any, key: str) -> bool:
    match value:
        case dict():
            return key in value or any(_mentions(each, key) for each in value.values())
        case list():
            return any(_mentions(each, key) for each in value)
        case _:
            return False


def _digest(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
