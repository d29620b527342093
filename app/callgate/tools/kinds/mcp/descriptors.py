"""Tool descriptions from MCP servers: cleaned of invisible characters, and pinned to notice changes.

A description is text that a model may obey. A description that changes later is logged, and so is one with invisible
characters, which are removed.
"""

import contextlib
import fnmatch
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from callgate.calls.unseen import visible
from callgate.tools.executor import Safety
from callgate.tools.source_supervisor import CannotOpen
from callgate.untrusted.doors import Door, Untrusted
from callgate.untrusted.readers import READ_ERRORS, json_reader

if TYPE_CHECKING:
    import mcp_types as types

log = structlog.get_logger("callgate.tools")

MAX_PINS = 20_000
"""The limit of pinned tools, against a server that lists ever new ones."""
_HEADER_KEY = "x-mcp-header"
_SAYS = frozenset({"description", "title", "$comment"})
"""Keywords of a schema with text for readers. All others are data, and not cleaned."""


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
    output_schema: Mapping[str, Any] | None = None
    """What it says of its results for programs."""


class Pin(msgspec.Struct, frozen=True):
    """The last known description of a tool."""

    digest: str
    safety: Safety | None = None
    """The strictest class that its annotations ever suggested."""


class Pins:
    """The last known descriptions of tools, for the life of the process, or in a file."""

    def __init__(self, changed: Callable[[str, str], None] | None = None, file: Path | None = None) -> None:
        self._changed = changed
        self._file = file
        self._seen: dict[str, Pin | str] = {}
        self._unread: DamagedPins | None = None
        """Raised while what was pinned before is not known."""
        try:
            self._read_file()
        except DamagedPins as error:
            self._unread = error
        self._keep: Callable[[str, Pin], None] | None = None
        self._unwritten = False
        self._failure = ""

    def keep_in(self, pins: Mapping[str, Pin], keep: Callable[[str, Pin], None]) -> None:
        """Use the pins of another store from now on, and write changes there."""
        self._unread = None
        self._seen = {**pins}
        self._file = None
        self._keep = keep

    def withhold(self, why: str) -> None:
        """Accept no tool until another store gives its pins."""
        self._file = None
        self._unread = DamagedPins(f"what its tools looked like before is not known: {why}")

    def _read_file(self) -> None:
        if self._file is not None:
            self._seen = read_pins(self._file)
            self._unread = None

    def look(self, server: str, descriptors: Iterable[Descriptor]) -> list[Descriptor]:
        """Pin new tools, report changes, and keep for each tool the strictest class that it ever had: a part of a list at a time.

        A server could otherwise remove the approval of a tool, and have it retried, by declaring it read-only. Only the
        operator may do so: by `safety` in the config, or by removing the pin. Raises `DamagedPins` while the pins cannot be read: a
        change would be missed.
        """
        if self._unread is not None:
            self._read_file()
        if self._unread is not None:
            raise self._unread
        descriptors_to_use: list[Descriptor] = []
        for descriptor in descriptors:
            key = f"{server}\n{descriptor.name}"
            earlier = self._seen.get(key)
            if earlier is None and len(self._seen) >= MAX_PINS:
                is_too_good = descriptor.safety is Safety.READ_ONLY
                descriptors_to_use.append(replace(descriptor, safety=None) if is_too_good else descriptor)
                continue
            safety = descriptor.safety
            if isinstance(earlier, Pin):
                safety = max(earlier.safety, safety, key=_STRICTNESS.index)
            if safety is not descriptor.safety:
                log.warning(
                    "tool_safety_not_relaxed",
                    server=server,
                    tool=descriptor.name,
                    held=safety,
                    suggested=descriptor.safety,
                )
            descriptors_to_use.append(replace(descriptor, safety=safety))
            pin = Pin(descriptor.digest, safety)
            if pin != earlier:
                self._seen[key] = pin
                if self._keep is not None:
                    self._keep(key, pin)
                self._unwritten = True
                if earlier is not None and not _is_same(earlier, descriptor) and self._changed is not None:
                    self._changed(server, descriptor.name)
        return descriptors_to_use

    def save(self) -> None:
        """Write the file, if there is one and what it says is not true any more."""
        if self._unwritten and self._file is not None:
            self._write(self._file)

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
            self._unwritten = False
            self._failure = ""


class DamagedPins(CannotOpen):
    """Raised where the pins cannot be read. Tools that are used without them may have changed unseen."""


_read_pins = json_reader(dict[str, Pin | str])
PINS = Door(name="file of pins", bytes=64 * 1024 * 1024)


def read_pins(file: Path) -> dict[str, Pin | str]:
    """Read a file of pins; an empty mapping where there is none. Raises `DamagedPins`."""
    try:
        if file.exists() and not file.is_file():
            raise OSError(0, "it is no file")
        pins = _read_pins(Untrusted(file.read_bytes(), PINS).open())
        if file.stat().st_mode & 0o077:
            with contextlib.suppress(OSError):  # nothing may be written there
                file.chmod(0o600)
    except (FileNotFoundError, NotADirectoryError):  # an invalid folder is reported elsewhere
        return {}
    except (OSError, *READ_ERRORS) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DamagedPins(
            f"{file} cannot be read as what tools looked like ({why}): put back a copy of it, or move it away to start anew"
        ) from error
    return pins


_STRICTNESS = (Safety.READ_ONLY, None, Safety.WRITE, Safety.DESTRUCTIVE)
"""A tool without annotations counts as one that writes."""


def _is_same(pin: Pin | str, tool: Descriptor) -> bool:
    """True if a tool has not changed. Files of older versions have digests without the annotations."""
    if isinstance(pin, Pin):
        return pin.digest == tool.digest
    return pin == tool.plain_digest


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
        output_schema=tool.output_schema,
    )


def is_callable(tool: "types.Tool") -> bool:
    """True unless the tool runs only as an MCP task, which is not supported."""
    return tool.execution is None or tool.execution.task_support != "required"


def is_allowed(name: str, patterns: tuple[str, ...] | None) -> bool:
    return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _visible_schema(value: Any, *, says: bool = False) -> Any:
    match value:
        case str():
            if says:
                return visible(value)
            return value
        case dict():
            return {key: _visible_schema(item, says=key in _SAYS) for key, item in value.items()}
        case list():
            return [_visible_schema(item) for item in value]
        case _:
            return value


def _mentions(value: Any, key: str) -> bool:
    match value:
        case dict():
            return key in value or any(_mentions(item, key) for item in value.values())
        case list():
            return any(_mentions(item, key) for item in value)
        case _:
            return False


def _digest(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
