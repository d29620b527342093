"""Removes quotations of the request from a provider's error message, so that logs and recorded runs do not repeat what users wrote."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from callgate.conversation.ports import ModelRequest, Passthrough
from callgate.untrusted.readers import read_value

SHORTEST: Final = 12
"""The fewest letters and digits of a quotation. Fewer may be equal by chance."""
_STEP: Final = 6
"""Pieces of this length are searched for, at multiples of it: a quotation twice as long always holds one of them."""
_COMPARED: Final = 64 * 1024
"""Characters of a request that are compared, from its last messages: this takes a few milliseconds."""
_TEXT_FIELDS: Final = ("messages", "input", "system", "instructions", "prompt")
_SKIPPED_KEYS: Final = frozenset({"role", "type", "id", "tool_call_id", "name"})


def without_quotes(message: str, request: ModelRequest | Passthrough) -> str:
    """Return the message with `…` in place of text that the request has too. Only letters and digits are compared."""
    indexes = [place for place, letter in enumerate(message) if letter.isalnum()]
    letters = "".join(message[place] for place in indexes)
    quoted = bytearray(len(message))
    for text in _texts(request):
        plain = "".join(filter(str.isalnum, text))
        if _STEP < len(plain) < SHORTEST:
            at = letters.find(plain)
            spans = [(at, at + len(plain))] if at >= 0 else []
        else:
            spans = list(_common(letters, plain))
        for start, end in spans:
            quoted[indexes[start] : indexes[end - 1] + 1] = b"\1" * (indexes[end - 1] + 1 - indexes[start])
    if not any(quoted):
        return message
    pieces: list[str] = []
    for place, letter in enumerate(message):
        if not quoted[place]:
            pieces.append(letter)
        elif not place or not quoted[place - 1]:
            pieces.append("…")
    return "".join(pieces)


def _common(letters: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end in `letters` of each part that is in `text` too."""
    places = {text[at : at + _STEP]: at for at in range(0, len(text) - _STEP + 1, _STEP)}
    start = 0
    while start <= len(letters) - _STEP:
        place = places.get(letters[start : start + _STEP])
        if place is None:
            start += 1
            continue
        before = after = 0
        while before < min(start, place) and letters[start - before - 1] == text[place - before - 1]:
            before += 1
        most = min(len(letters) - start, len(text) - place)
        while after < most and letters[start + after] == text[place + after]:
            after += 1
        if before + after >= SHORTEST:
            yield start - before, start + after
        start += max(after - _STEP + 1, 1)


def _texts(request: ModelRequest | Passthrough) -> Iterator[str]:
    if isinstance(request, ModelRequest):
        parts: list[Any] = [*request.messages]
    else:
        parts = [request.fields[name] for name in _TEXT_FIELDS if name in request.fields]
    remaining = _COMPARED
    for part in reversed(parts):
        for text in _strings(part):
            yield text[:remaining]
            remaining -= len(text)
            if remaining <= 0:
                return


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, msgspec.Raw):
        try:
            value = read_value(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for inner in reversed(value):
            yield from _strings(inner)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name not in _SKIPPED_KEYS:
                yield from _strings(inner)
