"""Masks the registered secrets in bytes, whole or as a stream: in what servers answer, and in all that is sent."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec

_SURE: Final = 4
"""Bytes of a secret that are looked for wherever they stand. A shorter beginning counts only at the end of what came, and at the
end of a piece of text where no letter or digit is in front of it: else each `is` would wait for a secret that begins with `s`."""

_HELD_BYTES: Final = 64 * 1024
"""The most bytes that wait for the rest of a secret, all of which are read again with what comes; beyond them its beginning is
masked."""

_ODD_ESCAPE: Final = re.compile(rb"\\u00(?!2[67]|3[cCeE]|7[fF])[2-7]")
"""An escape that stands for a letter, which no usual encoder writes: all but those for `&'<>`, which have a form of their own."""

_TEXT: Final = re.compile(
    rb'"(content|reasoning_content|reasoning|refusal|text|thinking|partial_json|arguments|delta|input)"'
    rb'\s{0,4}:\s{0,4}"((?:[^"\\]|\\.)*)"',
    re.DOTALL,
)
"""A piece of text in an event of a stream, in the words of all APIs."""
_PLACE: Final = re.compile(rb'"(?:index|output_index|content_index|summary_index)"\s{0,4}:\s{0,4}(\d{1,9})')
"""What tells the texts of a stream apart."""
_CUT_TEXT: Final = re.compile(
    rb'(?:\A(?:"?\s{0,4}:)?\s{0,4}"|\A|"\s{0,4}:\s{0,4}")((?:[^"\\]|\\.)*)"(?!\s{0,4}:)', re.DOTALL
)
"""A text in what is left of an event."""
_FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:")
"""What events begin with."""
_EVENT_END: Final = re.compile(rb"\r?\n\r?\n")
_PING: Final = re.compile(rb'"type"\s{0,4}:\s{0,4}"ping"')
_TOKEN: Final = re.compile(
    rb'"token"\s{0,4}:\s{0,4}"((?:[^"\\]|\\.)*)"|"bytes"\s{0,4}:\s{0,4}\[([\d,\s]*)\]', re.DOTALL
)
"""What a token is in `logprobs`: its text, or its bytes as numbers."""
_TOKEN_BYTES: Final = 1024
"""The most bytes that wait for the rest of a token."""


class Needles:
    """What is searched for the secrets of one kind: of an answer's request, or of the process."""

    __slots__ = ("_escaped", "secrets", "suspicion")

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self.secrets = tuple(sorted(secrets, key=len, reverse=True))
        """The longest first, so that one which begins with another is masked whole."""
        self.suspicion = re.compile(b"|".join(dict.fromkeys(map(_beginnings, self.secrets)))).search
        """Finds nothing where there is neither a secret nor what may be the beginning of one: all that most bytes cost."""
        self._escaped: re.Pattern[bytes] | None = None

    def starred(self, data: bytes) -> bytes:
        """Return data with stars in place of secrets, of the same length."""
        for secret in self.secrets:
            data = data.replace(secret, b"*" * len(secret))
        return data

    def starred_with_escapes(self, data: bytes) -> bytes:
        """The same for JSON that others wrote, who may write any letter as an escape. It takes a fifth of a millisecond for a thousand
        such escapes, so that it is only for what is read piece by piece."""
        data = self.starred(data)
        if _ODD_ESCAPE.search(data) is not None:
            data = self._escapes().sub(_stars, data)
        return data

    def _escapes(self) -> re.Pattern[bytes]:
        """Return the pattern of the secrets, each of their letters as it is or as an escape of JSON. It is seldom needed."""
        if self._escaped is None:
            self._escaped = re.compile(b"|".join(b"".join(map(_letter, secret)) for secret in self.secrets))
        return self._escaped

    def begun(self, data: bytes) -> int:
        """Return how much of a secret the data ends with."""
        return max(_begun(secret, data) for secret in self.secrets)


@lru_cache(maxsize=256)
def needles_for(secrets: tuple[bytes, ...]) -> Needles | None:
    """Return what is searched for these secrets, which is costly to make; None where there are none."""
    if not secrets:
        return None
    return Needles(secrets)


class SecretMask:
    """Replaces the letters of secrets by stars, also where they are split between reads, or between the pieces of text in a stream
    of events. The length stays the same, and only what may be the beginning of a secret waits.

    Tokens in `logprobs` spell a text once more, cut in other places: after a secret in an answer none is shown."""

    __slots__ = ("_has_starred", "_held", "_is_foreign", "_needles", "_suspicion", "is_stream")

    def __init__(self, needles: Needles, *, is_foreign: bool = False) -> None:
        """`is_foreign`: others wrote the data, in pieces of some kilobytes."""
        self._is_foreign = is_foreign
        self._needles = needles
        self._suspicion = needles.suspicion
        self._held = b""
        self._has_starred = False
        self.is_stream = False
        """The data is known to be a stream of events, so that what begins in the middle of one is read as the rest of it."""

    def feed(self, data: bytes) -> bytes:
        """Return the data that can be passed on."""
        if self._held:
            data = self._held + data
        elif self._suspicion(data) is None and not (self._is_foreign and data.find(b"\\u00") >= 0):
            if self._has_starred:
                return self._without_tokens(data, len(data))
            return data
        needles = self._needles
        unmasked = data
        if self._is_foreign:
            data = needles.starred_with_escapes(data)
        else:
            data = needles.starred(data)
        place = len(data)
        if self.is_stream or _has_data(data):
            data, place = _over_events(data, needles)
        place = min(place, len(data) - needles.begun(data))
        self._has_starred = self._has_starred or data != unmasked
        if self._has_starred:
            return self._without_tokens(data, place)
        self._held = data[place:]
        return data[:place]

    def _without_tokens(self, data: bytes, place: int) -> bytes:
        """Return the data up to a place, with tokens blanked. One that is cut waits for its rest."""
        if b"logprob" in data:
            data = _TOKEN.sub(_blank_token, data)
        place = min(place, _cut_token(data))
        self._held = data[place:]
        return data[:place]

    def finish(self) -> bytes:
        """Return what is held back, after the last of the data."""
        held_back = self._held
        self._held = b""
        return held_back


class _Piece(msgspec.Struct, frozen=True, gc=False):
    """A piece of text in an event."""

    start: int
    end: int
    event: int
    """Where its event begins."""


class _StreamedText(msgspec.Struct, gc=False):
    """The pieces of one text."""

    pieces: list[_Piece]
    has_ended: bool = False

    def joined(self, data: bytes) -> bytes:
        return b"".join(data[piece.start : piece.end] for piece in self.pieces)

    def star(self, data: bytearray, start: int, end: int) -> None:
        """Replace a part of the joined pieces by stars where they stand."""
        offset = 0
        for piece in self.pieces:
            length = piece.end - piece.start
            first = max(start - offset, 0)
            last = min(end - offset, length)
            if first < last:
                data[piece.start + first : piece.start + last] = b"*" * (last - first)
            offset += length

    def event_at(self, place: int) -> int:
        """Return where the event begins that has a place of the joined pieces."""
        offset = 0
        for piece in self.pieces:
            offset += piece.end - piece.start
            if place < offset:
                return piece.event
        raise IndexError(place)


def _over_events(data: bytes, needles: Needles) -> tuple[bytes, int]:
    """Mask secrets that are split between the texts of events. Return the data, and up to where it can be passed on."""
    masked = bytearray(data)
    place = len(data)
    for text in _texts_in(data, needles):
        joined = text.joined(data)
        for secret in needles.secrets:
            at = joined.find(secret)
            while at >= 0:
                text.star(masked, at, at + len(secret))
                at = joined.find(secret, at + len(secret))
        begun = len(joined) - needles.begun(joined)
        is_in_word = len(joined) - begun < _SURE and joined[:begun][-1:].isalnum()
        if begun == len(joined) or is_in_word or text.has_ended:
            continue
        held_from = text.event_at(begun)
        if len(data) - held_from > _HELD_BYTES:
            text.star(masked, begun, len(joined))
        else:
            place = min(place, held_from)
    return bytes(masked), place


def _texts_in(data: bytes, needles: Needles) -> Iterable[_StreamedText]:
    """Return the texts in events."""
    texts: dict[tuple[bytes, ...], _StreamedText] = {}
    cut_text = None
    if not data.startswith(_FIELDS):
        cut_text = _cut_text(data, needles)
    for start, end in _events_in(data):
        event = data[start:end]
        pieces = list(_pieces_in(event, start))
        for name, piece in pieces:
            text = texts.setdefault(name, _StreamedText([]))
            if cut_text is not None and start:
                text.pieces.append(cut_text)
                cut_text = None
            text.pieces.append(piece)
            text.has_ended = False
        if not pieces and start and _ends_texts(event):
            for text in texts.values():
                text.has_ended = True
    if cut_text is not None:
        texts[()] = _StreamedText([cut_text])
    return texts.values()


def _pieces_in(event: bytes, start: int) -> Iterator[tuple[tuple[bytes, ...], _Piece]]:
    """Find the pieces of text in an event, and what they are pieces of."""
    places = tuple(_PLACE.findall(event))
    for text in _TEXT.finditer(event):
        if text[2]:
            yield (text[1], *places), _Piece(start + text.start(2), start + text.end(2), start)


def _ends_texts(event: bytes) -> bool:
    """Return whether an event without text shows that none goes on: a whole one that is more than a sign of life."""
    return event.endswith((b"\n\n", b"\n\r\n")) and _has_data(event) and _PING.search(event) is None


def _cut_text(data: bytes, needles: Needles) -> _Piece | None:
    """Return the text in an event that was cut before it, if it ends with a beginning. Whose it is, is not known: it is taken for that
    of the next piece."""
    event_end = _EVENT_END.search(data)
    event = data if event_end is None else data[: event_end.start()]
    cut_texts = [text for text in _CUT_TEXT.finditer(event) if needles.begun(text[1])]
    if not cut_texts:
        return None
    start, end = cut_texts[-1].span(1)
    return _Piece(start, end, start)


def _events_in(data: bytes) -> Iterator[tuple[int, int]]:
    """Find where events begin and end, with the last one, which may be cut."""
    start = 0
    for end in _EVENT_END.finditer(data):
        yield start, end.end()
        start = end.end()
    if start < len(data):
        yield start, len(data)


def _has_data(event: bytes) -> bool:
    return event.startswith(b"data:") or b"\ndata:" in event


def _begun(secret: bytes, data: bytes) -> int:
    """Return how much of a secret the data ends with."""
    end = data[-(len(secret) - 1) :]
    at = end.find(secret[:1])
    while at >= 0:
        if secret.startswith(end[at:]):
            return len(end) - at
        at = end.find(secret[:1], at + 1)
    return 0


def _beginnings(secret: bytes) -> bytes:
    """Return the pattern of what may be a secret: its beginning, or a shorter one at an end."""
    letters = [re.escape(secret[place : place + 1]) for place in range(_SURE)]
    first = letters[0]
    at_end = b"|".join([rb"\Z", letters[1] + rb"\Z", letters[1] + letters[2] + rb"\Z"])
    of_text = rb"(?<![A-Za-z0-9]%b)(?:%b%b?)?\"(?!:)" % (first, letters[1], letters[2])
    return first + b"(?:" + b"".join(letters[1:]) + b"|" + at_end + b"|" + of_text + b")"


def _letter(byte: int) -> bytes:
    """Return the pattern of one letter of a secret in JSON."""
    plain = re.escape(bytes([byte]))
    if byte > 0x7E:
        return plain
    return rb"(?:\\?%b|\\u00(?i:%02x))" % (plain, byte)


def _stars(match: re.Match[bytes]) -> bytes:
    return b"*" * len(match[0])


def _blank_token(match: re.Match[bytes]) -> bytes:
    """Return a token with stars for its text, or without its bytes, of the same length."""
    group = 2 if match[1] is None else 1
    start = match.start(group) - match.start()
    end = match.end(group) - match.start()
    filling = b" " if group == 2 else b"*"
    return match[0][:start] + filling * (end - start) + match[0][end:]


def _cut_token(data: bytes) -> int:
    """Return where an object begins that the data cuts, if it is as short as that of a token."""
    start = data.rfind(b"{")
    if start < 0 or len(data) - start > _TOKEN_BYTES or b"}" in data[start:]:
        return len(data)
    return start
