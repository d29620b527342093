"""Remembers what tools of MCP servers said of themselves, and notices what is different later.

A description is text that a model may obey. One that changes, or a tool that is new, is logged; where its server's pins hold, it is not on
offer until a person has seen the difference and accepted it. The first list of a server that is seen is accepted.
"""

import base64
import binascii
import contextlib
import difflib
import json
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
import structlog
from msgspec.structs import replace

from callgate.calls.unseen import escaped
from callgate.tools.executor import Safety
from callgate.tools.kinds.mcp.descriptors import Descriptor
from callgate.tools.source_supervisor import CannotOpen
from callgate.untrusted.doors import Door, Untrusted, text_written_here
from callgate.untrusted.readers import READ_ERRORS, json_reader, read_leniently

PinMode: TypeAlias = Literal["hold", "warn", "off"]
Holds: TypeAlias = Callable[[Descriptor], bool]
"""Whether a tool that is new or different is held, by its class."""

MAX_PINS: Final = 20_000
"""The limit of pinned tools, against a server that lists ever new ones."""
SAID_BYTES: Final = 256 * 1024
"""The longest text of a tool that is kept, to show what it was before; of a longer one the digest alone."""
PACKED_BYTES: Final = 64 * 1024
"""The same, compressed."""
DIFFERENCE_LINES: Final = 400
COMPARED_PAIRS: Final = 500_000
"""Pairs of equal lines of two descriptions. Beyond, lines are compared without their places: to find these takes the square."""
PINS: Final = Door(name="file of pins", bytes=64 * 1024 * 1024)
_STRICTNESS: Final = (Safety.READ_ONLY, None, Safety.WRITE, Safety.DESTRUCTIVE)
"""A tool without annotations counts as one that writes."""

log = structlog.get_logger("callgate.tools")
audit = structlog.get_logger("callgate.audit")


class Pin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last known description of a tool."""

    digest: str
    safety: Safety | None = None
    """The strictest class that its annotations ever suggested."""
    text: str = ""
    """What it said of itself, compressed; empty where that is too long or was not kept yet."""


class HeldTool(msgspec.Struct, frozen=True):
    """A tool that is not on offer, because it is new or other than it was."""

    server: str
    name: str
    """The server's own name for it."""
    pin: Pin
    """What is pinned when it is accepted."""
    before: str
    """What it said before; empty for a new tool, and where that is not known."""
    after: str
    is_new: bool
    since: float = msgspec.field(default_factory=time.time)

    @property
    def reason(self) -> str:
        what = "it is new" if self.is_new else "it is not what it was when it was accepted"
        return f"held back, because {what}: `callgate tools accept {self.server}/{self.name}` shows and takes it"

    def facts(self) -> dict[str, Any]:
        """Describe it for whoever may accept it, with the difference."""
        return {
            "object": "held_tool",
            "server": self.server,
            "tool": self.name,
            "why": "new" if self.is_new else "changed",
            "digest": self.pin.digest,
            "since": int(self.since),
            "difference": self.difference(),
        }

    def difference(self) -> list[str]:
        """Return what is different, line by line, with `-` and `+`; unseen characters are written out."""
        if not (self.is_new or self.before):
            return ["(what it said before was not kept)", *_lines(self.after)[:DIFFERENCE_LINES]]
        before, after = _lines(self.before), _lines(self.after)
        counts_before, counts_after = Counter(before), Counter(after)
        if sum(count * counts_after[line] for line, count in counts_before.items()) > COMPARED_PAIRS:
            lines = _only_there(before, counts_after, "-") + _only_there(after, counts_before, "+")
            lines = lines or ["(the same lines in another order)"]
        else:
            compared = difflib.unified_diff(before, after, lineterm="", n=2)
            lines = [line for line in compared if not line.startswith(("---", "+++", "@@"))]
        if len(lines) > DIFFERENCE_LINES:
            return [*lines[:DIFFERENCE_LINES], f"({len(lines) - DIFFERENCE_LINES} lines more)"]
        return lines


class NotHeld(Exception):
    """Raised where no such tool is held, or another description of it than the one that was seen."""


class Pins:
    """The last known descriptions of tools, for the life of the process, or in a file."""

    def __init__(
        self,
        changed: Callable[[str, str], None] | None = None,
        file: Path | None = None,
        on_held: Callable[[str, int], None] | None = None,
        *,
        only_read: bool = False,
    ) -> None:
        """`on_held` is told how many tools of a server are held. `only_read`: nothing is written, for a command."""
        self._changed = changed
        self._on_held = on_held
        self._file = file
        self._only_read = only_read
        self._seen: dict[str, Pin | str] = {}
        self._unread: DamagedPins | None = None
        """Raised while what was pinned before is not known."""
        self.are_kept = file is not None
        """Whether they outlive the process."""
        self.generation = 0
        """Grows whenever a tool is held no more."""
        self._held: dict[tuple[str, str], HeldTool] = {}
        self._dirty: set[str] = set()
        """What is to be written."""
        self._stamp: tuple[int, int] | None = None
        """Of the file, when it was read or written last."""
        self._keep: Callable[[str, Pin], None] | None = None
        self._failure = ""
        try:
            self._read_file()
        except DamagedPins as error:
            self._unread = error

    def keep_in(self, pins: Mapping[str, Pin], keep: Callable[[str, Pin], None]) -> None:
        """Use the pins of another store from now on, and write changes there."""
        self._unread = None
        self._seen = {**pins}
        self._file = None
        self._keep = keep
        self.are_kept = True

    def withhold(self, why: str) -> None:
        """Accept no tool until another store gives its pins."""
        self._file = None
        self.are_kept = True
        self._unread = DamagedPins(f"what its tools looked like before is not known: {why}")

    def _read_file(self) -> None:
        if self._file is not None:
            self._stamp = _stamp(self._file)
            self._seen = read_pins(self._file)
            self._unread = None

    def knows(self, server: str) -> bool:
        """True if a list of this server has been seen. Raises `DamagedPins` while that is not known."""
        self._check()
        return f"{server}\n" in self._seen or any(key.startswith(f"{server}\n") for key in self._seen)

    def _check(self) -> None:
        if self._unread is not None:
            self._read_file()
        if self._unread is not None:
            raise self._unread

    def look(
        self, server: str, descriptors: Iterable[Descriptor], holds: Holds | None = None, *, told: bool = True
    ) -> list[Descriptor]:
        """Pin new tools, report changes, and keep for each tool the strictest class that it ever had: a part of a list at a time.

        A server could otherwise remove the approval of a tool, and have it retried, by declaring it read-only. Only the
        operator may do so: by `safety` in the config, or by removing the pin. A tool that is held keeps its pin. Raises `DamagedPins`
        while the pins cannot be read: a change would be missed. `told`: whether changes are logged and counted.
        """
        self._check()
        return [self._look(server, descriptor, holds, told) for descriptor in descriptors]

    def _look(self, server: str, descriptor: Descriptor, holds: Holds | None, told: bool) -> Descriptor:
        key = f"{server}\n{descriptor.name}"
        earlier = self._seen.get(key)
        is_full = earlier is None and len(self._seen) >= MAX_PINS
        if is_full and holds is None:
            is_too_good = descriptor.safety is Safety.READ_ONLY
            return replace(descriptor, safety=None) if is_too_good else descriptor
        safety = descriptor.safety
        if isinstance(earlier, Pin):
            safety = max(earlier.safety, safety, key=_STRICTNESS.index)
        if safety is not descriptor.safety:
            log.warning(
                "tool_safety_not_relaxed", server=server, tool=descriptor.name, held=safety, suggested=descriptor.safety
            )
        as_pinned = replace(descriptor, safety=safety)
        is_same = earlier is not None and _is_same(earlier, descriptor)
        if not is_same and holds is not None and holds(as_pinned):
            self._hold(server, as_pinned, earlier)
            return as_pinned
        self._release(server, descriptor.name)
        if not (is_same and isinstance(earlier, Pin) and earlier.text and earlier.safety is safety):
            pin = _pin_of(as_pinned)
            if pin != earlier:
                self._pin(key, pin)
            if told and earlier is not None and not is_same and self._changed is not None:
                self._changed(server, descriptor.name)
        return as_pinned

    def _pin(self, key: str, pin: Pin) -> None:
        self._seen[key] = pin
        if self._keep is not None:
            self._keep(key, pin)
        self._dirty.add(key)

    def listed(self, server: str, names: Collection[str]) -> None:
        """Take note of the end of a list, which had these tools: others are held no more, and a later new tool is none of the first."""
        if f"{server}\n" not in self._seen and len(self._seen) < MAX_PINS:
            self._pin(f"{server}\n", Pin(""))
        for _, name in [key for key in self._held if key[0] == server and key[1] not in names]:
            self._release(server, name)
        self.save()

    # -- what is held

    def held(self, server: str | None = None) -> list[HeldTool]:
        """Return what is held, of one server or of all."""
        return [tool for key, tool in sorted(self._held.items()) if server is None or key[0] == server]

    def is_held(self, server: str, name: str) -> bool:
        return (server, name) in self._held

    def accept(self, server: str, name: str, digest: str, by: str) -> HeldTool:
        """Take a tool as it is now. Raises `NotHeld`, also where it is another by now than the one that was seen."""
        tool = self._held.get((server, name))
        if tool is None or tool.pin.digest != digest:
            raise NotHeld
        self._pin(f"{server}\n{name}", tool.pin)
        self._release(server, name)
        self.save()
        audit.info("tool_accepted", server=server, tool=name, digest=digest, by=by)
        return tool

    def take_over(self, pins: Mapping[str, Pin | str]) -> None:
        """Take what other processes have pinned: what they accepted is held here no more."""
        for (server, name), tool in list(self._held.items()):
            pin = pins.get(f"{server}\n{name}")
            if isinstance(pin, Pin) and pin.digest == tool.pin.digest:
                self._seen[f"{server}\n{name}"] = pin
                self._release(server, name)

    async def read_again(self) -> None:
        """Take what other processes have written into the file since."""
        if self._file is not None and self._held and _stamp(self._file) != self._stamp:
            self._stamp = _stamp(self._file)
            with contextlib.suppress(DamagedPins):  # what is held stays so
                self.take_over(read_pins(self._file))

    def _hold(self, server: str, descriptor: Descriptor, earlier: Pin | str | None) -> None:
        key = (server, descriptor.name)
        tool = self._held.get(key)
        if tool is not None and tool.pin.digest == descriptor.digest:
            return
        pin = _pin_of(descriptor)
        before = _unpacked(earlier.text) if isinstance(earlier, Pin) else ""
        is_new = earlier is None
        self._held[key] = HeldTool(server, descriptor.name, pin, before, descriptor.text[:SAID_BYTES], is_new)
        log.warning("tool_held", server=server, tool=descriptor.name, why="new" if is_new else "changed")
        if not is_new and self._changed is not None:
            self._changed(server, descriptor.name)
        self._tell(server)

    def _release(self, server: str, name: str) -> None:
        if self._held.pop((server, name), None) is not None:
            self.generation += 1
            self._tell(server)

    def _tell(self, server: str) -> None:
        if self._on_held is not None:
            self._on_held(server, len(self.held(server)))

    # -- the file

    def save(self) -> None:
        """Write the file, if there is one and what it says is not true any more."""
        if self._dirty and self._file is not None and not self._only_read:
            self._write(self._file)

    def _write(self, file: Path) -> None:
        """Write the file atomically, with what other processes have pinned since. A failure is logged, and writing is tried again
        later."""
        fresh = file.with_suffix(".new")
        try:
            pins = dict(self._seen)
            if _stamp(file) != self._stamp:
                with contextlib.suppress(DamagedPins):
                    pins = {**pins, **read_pins(file), **{key: self._seen[key] for key in self._dirty}}
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as writing:
                writing.write(msgspec.json.encode(pins))
            fresh.replace(file)
        except OSError as error:
            if self._failure != str(error):
                log.error("tool_pins_unwritable", file=str(file), error=error.strerror, effect="forgotten at the end")  # noqa: TRY400 - the reason is all there is to say
            self._failure = str(error)
        else:
            self._dirty.clear()
            self._stamp = _stamp(file)
            self._failure = ""


class DamagedPins(CannotOpen):
    """Raised where the pins cannot be read. Tools that are used without them may have changed unseen."""


_read_pins = json_reader(dict[str, Pin | str])


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


def what_is_held(mode: PinMode | None, *, are_kept: bool) -> Literal["all", "writing", "none"]:
    """Return which tools of a server are held where they are new or different. Not set, those that may write are, where it is
    remembered what they were."""
    if mode == "hold":
        return "all"
    if mode is None and are_kept:
        return "writing"
    return "none"


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _is_same(pin: Pin | str, tool: Descriptor) -> bool:
    """True if a tool has not changed. Files of older versions have digests without the annotations."""
    if isinstance(pin, Pin):
        return pin.digest == tool.digest
    return pin == tool.plain_digest


def _pin_of(descriptor: Descriptor) -> Pin:
    return Pin(descriptor.digest, descriptor.safety, _packed(descriptor.text))


def _packed(text: str) -> str:
    if len(text) > SAID_BYTES:
        return ""
    packed = base64.b64encode(zlib.compress(text.encode(errors="surrogatepass"))).decode()
    return packed if len(packed) <= PACKED_BYTES else ""


def _unpacked(packed: str) -> str:
    """Return what was packed; empty for what is not ours."""
    try:
        return zlib.decompressobj().decompress(base64.b64decode(packed), 4 * SAID_BYTES).decode(errors="replace")
    except (binascii.Error, ValueError, zlib.error):
        return ""


def _only_there(lines: Iterable[str], others: Mapping[str, int], mark: str) -> list[str]:
    """Return the lines that others have less often, marked."""
    left = Counter(others)
    only: list[str] = []
    for line in lines:
        if left[line]:
            left[line] -= 1
        else:
            only.append(mark + line)
    return only


def _lines(text: str) -> list[str]:
    """Return what a tool says of itself, for people."""
    return list(_written_out(text))


def _written_out(text: str) -> Iterator[str]:
    if not text:
        return
    try:
        name, description, schema, title, annotations = read_leniently(text_written_here(text))
    except (*READ_ERRORS, TypeError):
        yield escaped(text)
        return
    for label, words in (("name", name), ("title", title), ("description", description)):
        for line in str(words or "").splitlines() or [""]:
            yield escaped(f"{label}: {line}")
    for label, value in (("annotations", annotations), ("arguments", schema)):
        text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
        yield from (escaped(f"{label}: {line}") for line in text.splitlines())
