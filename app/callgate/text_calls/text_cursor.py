"""A buffer of text that is fed at one end and read at the other, each character once.

A grammar is a generator that pauses where it needs more text (`Steps`), so that it is written like a recursive-descent parser
and works with text that is cut anywhere. It searches only the text that is not read yet, so that reading takes linear time; all
that was fed is kept, to be cut out by its place.
"""

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from io import StringIO
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""A part of a grammar: pauses for more text, and returns what it read."""

Sink: TypeAlias = Callable[[str], None]
"""Takes the text before a mark."""

_SPACE = re.compile(r"[ \t\r\n]*")
_BLANKS = re.compile(r"[ \t\r]*")


def drop(_: str) -> None:
    """Discard text."""


class Finder:
    """Finds the first of several fixed marks, and whether the end of a text may become one.

    No mark may be a prefix of another: which one is found would depend on the cut.
    """

    def __init__(self, marks: tuple[str, ...]) -> None:
        self.search = re.compile("|".join(map(re.escape, marks))).search
        self._openings = re.compile("|".join(map(re.escape, sorted({mark[0] for mark in marks})))).search
        self._beginnings = frozenset(mark[:size] for mark in marks for size in range(1, len(mark)))
        self._reach = max(map(len, marks)) - 1

    def held_from(self, text: str, start: int) -> int:
        """Return the place from which the end of `text` may become a mark; its length if it may not."""
        at = max(start, len(text) - self._reach)
        while opening := self._openings(text, at):
            at = opening.start()
            if text[at:] in self._beginnings:
                return at
            at += 1
        return len(text)


@lru_cache(maxsize=512)
def finder(marks: tuple[str, ...]) -> Finder:
    return Finder(marks)


class TextCursor:
    """Text with a position. `text[at:]` was fed and is not read yet."""

    __slots__ = ("_all", "at", "base", "ended", "logged", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.logged = 0
        """The place in the whole text up to which the log of its items has it, or leaves it out."""
        self._all = StringIO(newline="\n")
        self.base = 0
        """The place of `text` in the whole text."""

    @property
    def offset(self) -> int:
        """The number of characters read of the whole text."""
        return self.base + self.at

    def push(self, text: str) -> None:
        self._all.write(text)
        self.base += self.at
        self.text = self.text[self.at :] + text
        self.at = 0

    def between(self, start: int, end: int) -> str:
        """Return the text from one place to another."""
        if start >= self.base:
            return self.text[start - self.base : end - self.base]
        self._all.seek(start)
        text = self._all.read(end - start)
        self._all.seek(0, 2)
        return text

    def rewind(self, place: int) -> None:
        """Go back to a place, to read the text behind it once more."""
        if place < self.base:
            self.text = self.between(place, self.base) + self.text
            self.base = place
        self.at = place - self.base
        self.logged = min(self.logged, place)

    def more(self) -> Steps[bool]:
        """Wait for more text. False: the text has ended."""
        if self.ended:
            return False
        yield
        return not self.ended

    def peek(self, offset: int = 0) -> Steps[str]:
        """Return the character at `offset` without reading it; empty at the end of the text."""
        while self.at + offset >= len(self.text):
            if not (yield from self.more()):
                return ""
        return self.text[self.at + offset]

    def space(self, sink: Sink = drop, *, same_line: bool = False) -> Steps[None]:
        """Read blanks, and line breaks unless `same_line`."""
        pattern = _BLANKS if same_line else _SPACE
        while True:
            start = self.at
            end = self._past(pattern)
            if end > start:
                self.at = end
                sink(self.text[start:end])
            if end < len(self.text) or not (yield from self.more()):
                return

    def one_of(self, marks: tuple[str, ...]) -> Steps[str | None]:
        """Read the next mark, if it is one of these."""
        while True:
            for mark in marks:
                if self.text.startswith(mark, self.at):
                    self.at += len(mark)
                    return mark
            unread_size = len(self.text) - self.at
            if not any(unread_size < len(mark) and mark.startswith(self.text[self.at :]) for mark in marks):
                return None
            if not (yield from self.more()):
                return None

    def until(self, marks: Finder, sink: Sink = drop) -> Steps[str | None]:
        """Send the text before the next mark to `sink`, read the mark and return it; None at the end."""
        while True:
            start = self.at
            match = marks.search(self.text, start)
            if match:
                if match.start() > start:
                    self.at = match.start()
                    sink(self.text[start : match.start()])
                self.at = match.end()
                return match.group()
            if self.ended:
                end = len(self.text)
            else:
                end = marks.held_from(self.text, start)
            if end > start:
                self.at = end
                sink(self.text[start:end])
            if self.ended:
                return None
            yield

    def run(self, pattern: "re.Pattern[str]", limit: int) -> Steps[str | None]:
        """Read the longest run of the characters of `pattern` (a starred class); None, with nothing read, if
        it is longer than `limit`. The run is over only when another character, or the end, is seen."""
        while True:
            end = self._past(pattern)
            if end - self.at > limit:
                return None
            if end < len(self.text) or not (yield from self.more()):
                run = self.text[self.at : end]
                self.at = end
                return run

    def back(self, text: str) -> None:
        """Put back what was read last."""
        self.at -= len(text)
        self.logged = min(self.logged, self.base + self.at)

    @property
    def dry(self) -> bool:
        """True if the text has ended and all of it is read."""
        return self.ended and self.at >= len(self.text)

    def ends_within(self, *marks: str) -> bool:
        """True if the text ends here, or in the middle of one of these marks, which is then read."""
        unread = self.text[self.at :] if self.ended else None
        if unread is None or (unread and not any(mark.startswith(unread) for mark in marks)):
            return False
        self.at = len(self.text)
        return True

    def _past(self, pattern: "re.Pattern[str]") -> int:
        match = pattern.match(self.text, self.at)
        assert match is not None, "a starred class matches anywhere"
        return match.end()


class Tail:
    """A sink that keeps only the last piece: at the end of a text the incomplete mark."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(self, text: str) -> None:
        self.text = text
