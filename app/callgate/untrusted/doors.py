"""The doors: what each kind of foreign bytes may hold, and the types before and behind them.

A decoder holds the interpreter until it is through, in whichever thread, and recurses as deep as its text. So a text is
counted before it is decoded. Up to `SMALL` bytes cannot hold anybody, and cost one comparison.
"""

from collections.abc import Iterator
from typing import Final, NewType

import msgspec

from callgate.untrusted.marks import Bounds, Marks, extreme_numbers
from callgate.untrusted.work import WORK

Opened = NewType("Opened", bytes)
"""Bytes that went through a door. Only this module makes them; elsewhere only a part of some is named so, which holds no more than they."""
OpenedText = NewType("OpenedText", str)
"""The same for a text: a string inside JSON, or what is decoded already."""

SMALL: Final = 64 * 1024
"""Bytes that are decoded uncounted, unless a door says more."""
SLICE: Final = 256 * 1024
"""Bytes that are counted at once."""
COARSE_SLICE: Final = 1024 * 1024
"""Bytes of which the marks are counted at once wherever they stand: in 5 ms, if there is nothing else."""
MOST_VALUES: Final = 200_000
"""The values that any door lets through in one text: a decoder takes 25 ms for them."""
MOST_EXTREME: Final = 5_000
"""The numbers of three digits in the exponent that any door lets through: a decoder takes 40 ms for them."""
OWN_BYTES: Final = 1024 * 1024 * 1024
"""More than anything that Callgate encodes."""


class TooMuch(ValueError):
    """Raised for bytes that hold more than their door lets through."""

    def __init__(self, name: str, what: str, limit: int) -> None:
        super().__init__(f"{name}: more than {limit:,} {what}")
        self.what = what
        """`bytes`, `values`, `keys`, `levels`, `escapes` or `extreme numbers`."""
        self.limit = limit


class Door(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one kind of foreign text. All of them are in `DOORS`."""

    name: str
    bytes: int
    values: int = MOST_VALUES
    """Its `,`, `{` and `[` outside strings."""
    uncounted: int = SMALL
    """Bytes of a text that is let through by its length alone; never more than `bytes`."""
    is_skimmed: bool = False
    """Its reader steps over what it has no field for, so that there may be more of it."""
    keys: int = MOST_VALUES
    """Its `:` outside strings."""
    depth: int = 512
    """Objects and arrays inside one another. Only texts of more than `uncounted` bytes are measured: below, a reader's own
    recursion limit does."""
    escapes: int = 64 * 1024 * 1024
    """Its backslashes."""

    def __post_init__(self) -> None:
        if max(self.keys, self.values) > MOST_VALUES and not self.is_skimmed:
            raise AssertionError(f"the door {self.name} lets through what holds the event loop")
        msgspec.structs.force_setattr(self, "uncounted", min(self.uncounted, self.bytes))
        if DOORS.setdefault(self.name, self) is not self:
            raise AssertionError(f"there are two doors {self.name}")

    def check(self, marks: Marks) -> None:
        """Compare what was counted so far. Raises `TooMuch`."""
        if marks.values > self.values:
            raise TooMuch(self.name, "values", self.values)
        if marks.keys > self.keys:
            raise TooMuch(self.name, "keys", self.keys)
        if marks.depth > self.depth:
            raise TooMuch(self.name, "levels", self.depth)
        if marks.escapes > self.escapes:
            raise TooMuch(self.name, "escapes", self.escapes)


DOORS: Final[dict[str, Door]] = {}
"""By name."""


class Untrusted(msgspec.Struct, frozen=True, gc=False):
    """Bytes that somebody else wrote, and the door that they have to pass."""

    data: bytes
    source: Door

    def open(self) -> Opened:
        """Return the bytes, counted. Raises `TooMuch`. For threads, for child processes, and where a text is small."""
        data = self.data
        if len(data) > self.source.uncounted:
            for _ in self.slices():
                pass
        WORK.texts += 1
        WORK.bytes += len(data)
        return Opened(data)

    def slices(self) -> Iterator[None]:
        """Count the bytes, and yield after each slice of them. Raises `TooMuch`."""
        data = self.data
        source = self.source
        if len(data) > source.bytes:
            raise TooMuch(source.name, "bytes", source.bytes)
        bounds = Bounds()
        for start in range(0, len(data), COARSE_SLICE):
            bounds.feed(data, start, start + COARSE_SLICE)
            yield
        if not source.is_skimmed and bounds.commas > MOST_EXTREME:
            extreme = 0
            for start in range(0, len(data), SLICE):
                extreme += extreme_numbers(data[start : start + SLICE])
                if extreme > MOST_EXTREME:
                    raise TooMuch(source.name, "extreme numbers", MOST_EXTREME)
                yield
        if _has_surely_few(bounds, source):
            return
        marks = Marks()
        for start in range(0, len(data), SLICE):
            marks.feed(data[start : start + SLICE])
            source.check(marks)
            yield


def open_fast(data: bytes, source: Door) -> Opened | None:
    """Return bytes that are let through by their length alone: equals `Untrusted.open` for all bytes, or returns None. For what
    is read once in a request: what was read is not counted. The plain one costs a request 0.5 % more instructions."""
    if len(data) > source.uncounted:
        return None
    return data  # type: ignore[return-value]  # a call of the type is a call in Python


def open_text(text: str, source: Door) -> OpenedText:
    """Return a text that stood inside another, counted as a text of its own. Raises `TooMuch`."""
    if len(text) > source.uncounted:
        Untrusted(text.encode("utf-8", "surrogatepass"), source).open()
    return OpenedText(text)


def written_here(data: bytes) -> Opened:
    """Return bytes that Callgate encoded itself, a moment ago or into a file or a store of its own, to be decoded again. Their
    values were counted when they came in; their length has to be below `OWN_BYTES`."""
    if len(data) > OWN_BYTES:
        raise TooMuch("our own data", "bytes", OWN_BYTES)
    return Opened(data)


def text_written_here(text: str) -> OpenedText:
    """The same for a text."""
    if len(text) > OWN_BYTES:
        raise TooMuch("our own data", "bytes", OWN_BYTES)
    return OpenedText(text)


def _has_surely_few(bounds: Bounds, source: Door) -> bool:
    """True if a text has little enough even if all its marks stood outside strings."""
    return (
        bounds.values <= source.values
        and bounds.colons <= source.keys
        and bounds.backslashes <= source.escapes
        and bounds.brackets <= source.depth
    )
