"""The doors for MessagePack: what stores, queues and child processes hand inward.

Values say how long they are, so that they are counted by their first bytes: in time that depends on their number alone, and in
shares. What a list or an object claims to hold counts at once, whether it is there or not.
"""

from collections.abc import Iterator
from typing import Final, NewType, overload

import msgspec

from callgate.untrusted.doors import MOST_VALUES, OWN_BYTES, SMALL, Door, TooMuch, Untrusted
from callgate.untrusted.work import WORK

OpenedPack = NewType("OpenedPack", bytes)
"""MessagePack that went through a door. Only this package makes it."""

SHARE: Final = 10_000
"""Values that are counted at once."""
MOST_DEPTH: Final = 512
"""Lists and objects inside one another that any door lets through; a decoder recurses."""


class PackDoor(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one kind of foreign MessagePack. All of them are in `PACK_DOORS`."""

    name: str
    bytes: int
    values: int = MOST_VALUES
    """Its values, the keys of objects among them."""
    depth: int = 16
    """Lists and objects inside one another."""

    def __post_init__(self) -> None:
        if self.values > MOST_VALUES or self.depth > MOST_DEPTH or self.bytes > OWN_BYTES:
            raise AssertionError(f"the door {self.name} lets through what holds the event loop")
        if PACK_DOORS.setdefault(self.name, self) is not self:
            raise AssertionError(f"there are two doors {self.name}")


PACK_DOORS: Final[dict[str, PackDoor]] = {}
"""By name."""


class UntrustedPack(msgspec.Struct, frozen=True, gc=False):
    """MessagePack that somebody else wrote, and the door that it has to pass."""

    data: bytes
    source: PackDoor

    def open(self) -> OpenedPack:
        """Return the bytes, counted. Raises `TooMuch`. For threads, for child processes, and where there are few values."""
        for _ in self.slices():
            pass
        WORK.texts += 1
        WORK.bytes += len(self.data)
        return OpenedPack(self.data)

    def slices(self) -> Iterator[None]:
        """Count the values, and yield after each share of them. Raises `TooMuch`."""
        data = self.data
        source = self.source
        if len(data) > source.bytes:
            raise TooMuch(source.name, "bytes", source.bytes)
        if _has_surely_few(data, source):
            return
        marks = PackMarks(data)
        while not marks.is_over:
            marks.count(SHARE)
            if marks.values > source.values:
                raise TooMuch(source.name, "values", source.values)
            if marks.depth > source.depth:
                raise TooMuch(source.name, "levels", source.depth)
            yield


@overload
def untrusted(data: bytes, source: Door) -> Untrusted: ...
@overload
def untrusted(data: bytes, source: PackDoor) -> UntrustedPack: ...
def untrusted(data: bytes, source: Door | PackDoor) -> Untrusted | UntrustedPack:
    """Return bytes that have to pass a door of either kind."""
    if isinstance(source, PackDoor):
        return UntrustedPack(data, source)
    return Untrusted(data, source)


def open_pack(data: bytes, source: PackDoor) -> OpenedPack:
    """Return MessagePack, counted. Raises `TooMuch`."""
    return UntrustedPack(data, source).open()


def pack_written_here(data: bytes) -> OpenedPack:
    """Return MessagePack that Callgate encoded itself, a moment ago or into a file of its own, to be decoded again. Its values
    were counted when they came in; its length has to be below `OWN_BYTES`."""
    if len(data) > OWN_BYTES:
        raise TooMuch("our own data", "bytes", OWN_BYTES)
    return OpenedPack(data)


class PackMarks:
    """The values of a MessagePack text, as far as it is one: further no decoder gets."""

    def __init__(self, data: bytes) -> None:
        self.values = 1
        """Those that were there or claimed so far."""
        self.depth = 0
        """The deepest level so far."""
        self.is_over = False
        self._data = data
        self._at = 0
        self._due = [1]
        """For each open list or object the values that are still to come."""

    def count(self, most: int) -> None:
        """Count so many further values at most."""
        data = self._data
        at = self._at
        due = self._due
        for _ in range(most):
            if at >= len(data):
                self.is_over = True
                break
            kind = data[at]
            items = _ITEMS[kind]
            if _LENGTHS[kind]:
                end = at + 1 + _LENGTHS[kind]
                length = int.from_bytes(data[at + 1 : end], "big")
                if kind >= _ARRAY_16:
                    items *= length
                    at = end
                else:
                    at = end + length + _EXTRA[kind]
            else:
                at += 1 + _EXTRA[kind]
            if items:
                self.values += items
                due.append(items)
                self.depth = max(self.depth, len(due) - 1)
                continue
            due[-1] -= 1
            while not due[-1]:
                due.pop()
                if not due:
                    self.is_over = True
                    return
                due[-1] -= 1
        self._at = at


def _has_surely_few(data: bytes, source: PackDoor) -> bool:
    """True if a short text has little enough even if all its bytes were values, and all that could be lists were."""
    size = len(data)
    return size <= min(source.values, SMALL) and size - len(data.translate(None, _CONTAINERS)) <= source.depth


# https://github.com/msgpack/msgpack/blob/master/spec.md#formats
_ARRAY_16: Final = 0xDC
_CONTAINERS: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
_ITEMS: Final = [
    *([0] * 0x80),
    *range(0, 32, 2),  # objects of so many pairs
    *range(16),  # lists
    *([0] * (0xDC - 0xA0)),
    *(1, 1, 2, 2),  # lists, objects: for each item of their length
    *([0] * 0x20),
]
"""By the first byte of a value: the values in it."""
_LENGTHS: Final = [
    *([0] * 0xC4),
    *(1, 2, 4),  # bytes
    *(1, 2, 4),  # extensions
    *([0] * (0xD9 - 0xCA)),
    *(1, 2, 4),  # texts
    *(2, 4),  # lists
    *(2, 4),  # objects
    *([0] * 0x20),
]
"""The bytes that say its length."""
_EXTRA: Final = [
    *([0] * 0xA0),
    *range(32),  # texts
    *([0] * 4),
    *(0, 0, 0),  # bytes
    *(1, 1, 1),  # the kind of an extension
    *(4, 8, 1, 2, 4, 8, 1, 2, 4, 8),  # numbers
    *(2, 3, 5, 9, 17),  # extensions of one size
    *([0] * (0x100 - 0xD9)),
]
"""Its further bytes, beside its length."""
