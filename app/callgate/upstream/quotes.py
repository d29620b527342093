"""Removes from a provider's error message what it quotes of the request: logs and recorded runs keep the message, and not what
people said."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from callgate.conversation.ports import ModelRequest, Passthrough

SHORTEST: Final = 12
"""Letters and digits that make a quotation. Fewer are the same by chance."""
_STEP: Final = 6
"""Every piece of this length at a multiple of it is looked for: of a quotation twice as long one is always found."""
_LOOKED_AT: Final = 64 * 1024
"""Characters of a request that are looked at, its last messages first: a few milliseconds."""
_SAID_IN: Final = ("messages", "input", "system", "instructions", "prompt")
_NOT_SAID: Final = frozenset({"role", "type", "id", "tool_call_id", "name"})


def without_quotes(message: str, asked: ModelRequest | Passthrough) -> str:
    """Return the message with `…` for what stands in the request too, however either writes spaces and escapes."""
    letters = [place for place, letter in enumerate(message) if letter.isalnum()]
    said = "".join(message[place] for place in letters)
    quoted = bytearray(len(message))
    for text in _texts(asked):
        plain = "".join(filter(str.isalnum, text))
        if _STEP < len(plain) < SHORTEST:
            at = said.find(plain)
            found = [(at, at + len(plain))] if at >= 0 else []
        else:
            found = list(_common(said, plain))
        for start, end in found:
            quoted[letters[start] : letters[end - 1] + 1] = b"\1" * (letters[end - 1] + 1 - letters[start])
    if not any(quoted):
        return message
    kept = (
        letter if not quoted[place] else "…" if not (place and quoted[place - 1]) else ""
        for place, letter in enumerate(message)
    )
    return "".join(kept)


def _common(said: str, text: str) -> Iterator[tuple[int, int]]:
    """Where in `said` something of `text` stands."""
    places = {text[at : at + _STEP]: at for at in range(0, len(text) - _STEP + 1, _STEP)}
    start = 0
    while start <= len(said) - _STEP:
        there = places.get(said[start : start + _STEP])
        if there is None:
            start += 1
            continue
        before = after = 0
        while before < min(start, there) and said[start - before - 1] == text[there - before - 1]:
            before += 1
        most = min(len(said) - start, len(text) - there)
        while after < most and said[start + after] == text[there + after]:
            after += 1
        if before + after >= SHORTEST:
            yield start - before, start + after
        start += max(after - _STEP + 1, 1)


def _texts(asked: ModelRequest | Passthrough) -> Iterator[str]:
    if isinstance(asked, ModelRequest):
        parts: list[Any] = [*asked.messages]
    else:
        parts = [asked.fields[name] for name in _SAID_IN if name in asked.fields]
    left = _LOOKED_AT
    for part in reversed(parts):
        for text in _strings(part):
            yield text[:left]
            left -= len(text)
            if left <= 0:
                return


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, msgspec.Raw):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in reversed(value):
            yield from _strings(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in _NOT_SAID:
                yield from _strings(each)
