"""Looks for shapes in a text that comes in pieces: what goes on is the same wherever the text is cut.

A place of the text is decided once as many characters behind it are there as any shape needs, or the text has ended.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from callgate.guardrails.shapes import LONGEST, TextShape


class Reaction(Protocol):
    """What becomes of what is found."""

    def passed(self, text: str) -> None:
        """Hear of text in which nothing is."""
        ...

    def replaced(self, shape: str) -> str:
        """Return what stands for a match of a shape; it may raise."""
        ...


class PlacedShape(msgspec.Struct, frozen=True):
    """A shape that matches at a place of a text."""

    start: int
    end: int
    shape: TextShape


class Scanner:
    """Feed it pieces, then finish."""

    def __init__(self, shapes: Sequence[TextShape], reaction: Reaction) -> None:
        self._shapes = shapes
        self._window = max((shape.width for shape in shapes), default=0) + 1
        self._reaction = reaction
        self._text = ""
        self._at = 0
        """The place from which nothing is decided."""
        self._inside: TextShape | None = None
        """The shape whose match goes on behind what it is known by."""
        self._length = 0
        """How long that match is."""
        self.looks = 0
        """How many places were looked at closely."""

    @property
    def window(self) -> int:
        """The most characters that are held back."""
        return self._window

    def feed(self, text: str) -> str:
        self._text += text
        return "".join(self._decided(is_last=False))

    def finish(self) -> str:
        out = "".join(self._decided(is_last=True))
        self._text = ""
        self._at = 0
        self._inside = None
        return out

    def _decided(self, *, is_last: bool) -> Iterator[str]:
        """Yield what may go on. What is decided is dropped, but for the two characters before what is not."""
        while True:
            if self._inside is not None and not self._swallow(self._inside, is_last=is_last):
                break
            limit = len(self._text)
            if not is_last:
                limit = max(limit - self._window + 1, self._at)
            match = self._first(limit)
            if match is None:
                yield self._let_pass(limit)
                break
            yield self._let_pass(match.start)
            yield self._reaction.replaced(match.shape.name)
            self._at = match.end
            if match.shape.tail is not None:
                self._inside = match.shape
                self._length = match.end - match.start
        keep = max(self._at - 2, 0)
        self._text = self._text[keep:]
        self._at -= keep

    def _let_pass(self, end: int) -> str:
        text = self._text[self._at : end]
        self._at = end
        self._reaction.passed(text)
        return text

    def _first(self, limit: int) -> PlacedShape | None:
        """Return the first match that begins before `limit`."""
        best: PlacedShape | None = None
        for shape in self._shapes:
            if shape.needs and self._text.find(shape.needs, self._at) < 0:
                continue
            end = limit if best is None else best.start
            match = self._match_of(shape, end)
            if match is not None:
                best = match
        return best

    def _match_of(self, shape: TextShape, limit: int) -> PlacedShape | None:
        """Return the first match of a shape that begins before `limit`."""
        at = self._at
        while at < limit:
            self.looks += 1
            head = shape.head.search(self._text, at)
            if head is None or head.start() >= limit:
                return None
            length = shape.accept(head.group())
            if length:
                return PlacedShape(head.start(), head.start() + length, shape)
            at = head.start() + 1
        return None

    def _swallow(self, shape: TextShape, *, is_last: bool) -> bool:
        """Step over what belongs to a match. Returns whether it has ended."""
        tail = shape.tail
        assert tail is not None, "nothing else is stepped over"
        stop = tail.stop.search(self._text, self._at)
        if stop is not None:
            end = stop.end() if tail.is_included else stop.start()
        elif is_last:
            end = len(self._text)
        else:
            end = max(len(self._text) - tail.overlap, self._at)
        longest = self._at + LONGEST - self._length
        has_ended = stop is not None or is_last or end >= longest
        end = min(end, longest)
        self._length += end - self._at
        self._at = end
        if has_ended:
            self._inside = None
        return has_ended
