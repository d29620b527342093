"""Most chunks of a stream are the same bytes around another piece of text. Once the frame is known, the text is taken out
of it without reading the JSON again.

A chunk whose frame is the known one, and whose middle is the inside of one JSON string, can only differ from the chunk
that the frame was learned from in that string. Everything else is not for here, and is read.
"""

import re
from collections.abc import Callable, Sequence

import msgspec

from app.chat.events import ModelEvent, TextDelta

MOST_LESSONS = 3
"""Some providers write something else into every chunk. Learning their frames again and again would cost more than reading."""
MARK = "\u00a7 the place of a text \u00a7"

_CONTENT = re.compile(rb'"content"\s*:\s*"((?:[^"\\]|\\.)*)"')
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]+')
_ESCAPED = re.compile(rb'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])+')
"""Without numbers of characters: half a pair of surrogates may hide behind one."""

_string = msgspec.json.Decoder(str)


class TextFrame:
    def __init__(self) -> None:
        self._before = b""
        self._after = b""
        self._around = 0
        self._lessons = 0

    def text_in(self, payload: bytes) -> str | None:
        """The text of a chunk in the known frame; None where the chunk has to be read."""
        before, after = self._before, self._after
        if not before or len(payload) <= self._around:
            return None
        if not payload.startswith(before) or not payload.endswith(after):
            return None
        middle = payload[len(before) : -len(after)]
        try:
            if _PLAIN.fullmatch(middle):
                return middle.decode()
            if _ESCAPED.fullmatch(middle):
                return _string.decode(b'"' + middle + b'"')
        except (UnicodeDecodeError, msgspec.DecodeError):
            pass
        return None

    def learn(
        self, payload: bytes, events: Sequence[ModelEvent], read: Callable[[bytes], Sequence[ModelEvent]]
    ) -> None:
        """Take the frame of a chunk that was read and brought one text and nothing else. `read` reads another chunk."""
        if self._lessons >= MOST_LESSONS or len(events) != 1 or type(events[0]) is not TextDelta:
            return
        self._lessons += 1
        found = _CONTENT.search(payload)
        if found is None:
            return
        before, after = payload[: found.start(1)], payload[found.end(1) :]
        # That this is the string which was the text is tried, not guessed.
        if list(read(before + MARK.encode() + after)) == [TextDelta(MARK)]:
            self._before, self._after, self._around = before, after, len(before) + len(after)
