"""Reads the arguments of calls in a history, which are JSON inside a string, before any library does.

What counts a request's values and depth does not see into strings, and libraries parse these recursively, and all at once.
"""

from callgate.calls.arguments import ArgumentsError, read_arguments
from callgate.calls.json_text import MAX_VALUES, JsonFault, read_json
from callgate.conversation.errors import ChatError
from callgate.untrusted.marks import Bounds, Marks


class PastArguments:
    """The arguments of all calls of one history."""

    def __init__(self, *, as_objects: bool = False) -> None:
        """`as_objects`: they are sent on as objects, so that a text that is none cannot be sent."""
        self._as_objects = as_objects
        self._bounds = Bounds()
        self._values = 0
        self._uncounted: list[bytes] = []
        """Texts of which only the bounds were taken."""

    def check(self, text: str, where: str) -> None:
        """Raise `ChatError` where a text is too deep, too much or ambiguous; `where` is its place in the request."""
        if not text or text.isspace():
            return
        self._count(text, where)
        try:
            read_json(text)
        except JsonFault as fault:
            if fault.grammatical:
                raise _wrong(where, fault.expected) from None
            if self._as_objects:
                try:
                    read_arguments([text])
                except ArgumentsError:
                    raise _wrong(where, f"JSON, with {fault.expected} at character {fault.position}") from None

    def _count(self, text: str, where: str) -> None:
        """Count values. Exactly only where there may be too many, because texts of files are full of commas."""
        data = text.encode("utf-8", "surrogatepass")
        self._bounds.feed(data)
        self._uncounted.append(data)
        if self._bounds.values > MAX_VALUES:
            for uncounted in self._uncounted:
                marks = Marks()
                marks.feed(uncounted)
                self._values += marks.values
            self._uncounted.clear()
            if self._values > MAX_VALUES:
                raise _wrong(where, f"at most {MAX_VALUES:,} values in the arguments of all calls together")


def _wrong(where: str, expected: str) -> ChatError:
    return ChatError(400, f"Invalid '{where}': expected {expected}.", param=where, code="invalid_arguments")
