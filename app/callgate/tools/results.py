"""Turns the return value of a tool into text and images of bounded size.

Bytes and base64 are replaced by descriptions, and where something was left out a note says how much. Executors read up to
`CallContext.max_bytes`; here the text is cut to the limit of the tool's policy.
"""

import codecs
import dataclasses
import json
import math
from collections.abc import Mapping
from datetime import date, time
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import replace
from pydantic import BaseModel

from callgate.calls.outcome import Failed, Image, Outcome, Returned
from callgate.conversation.readable_content import IMAGE_TYPES

MAX_IMAGES = 8
MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""The limit of the decoded image, that of the strictest large provider."""

PLAIN_LETTERS = 511
"""Characters of the longest base64 text that is not replaced."""
_HEAD_SHARE = 3
"""Of four kept parts three are from the beginning, and one from the end."""
_COUNTED_AT_ONCE = 1 << 20


class Unwritable(TypeError):
    """Raised for a value that cannot be encoded as JSON."""


def returned(value: Any, max_bytes: int) -> Returned:
    """Convert the result of a Python function for a model."""
    match value:
        case Returned():
            return value
        case Image():
            return Returned(text="", images=(value,))
        case list() | tuple() if any(isinstance(part, Image) for part in value):
            images = tuple(part for part in value if isinstance(part, Image))
            words = [as_text(part, max_bytes) for part in value if not isinstance(part, Image)]
            return Returned(text="\n".join(words), images=images)
        case _:
            return Returned(text=as_text(value, max_bytes))


def as_text(value: Any, max_bytes: int) -> str:
    """Convert a value to text: strings as they are, bytes by a description, anything else as compact JSON."""
    match value:
        case str():
            return value
        case bytes() | bytearray() | memoryview():
            return described("application/octet-stream", len(value))
        case _:
            return as_json(value)


def as_json(value: Any) -> str:
    # msgspec would encode bytes as base64 and the fields of an `Image`; the standard library calls `default` for both.
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError):
        pass  # keys that are no strings, or numbers that JSON does not have
    try:
        return _encoder.encode(_encodable(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise Unwritable(f"a {type(value).__name__} that cannot be written as JSON: {error}") from error


def _encodable(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, dict):
        return {_key(key): _encodable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(inner) for inner in value]
    return _encodable(_plain(value))


def _key(key: Any) -> str:
    written = _encodable(key)
    if isinstance(written, str):
        return written
    return _encoder.encode(written)


def described(mime_type: str, size: int | None, note: str = "") -> str:
    """Return the description of bytes that a model cannot read."""
    length = f"{size} bytes" if size is not None else "of unknown size"
    return f"[{mime_type or 'binary data'}, {length}, not shown{': ' + note if note else ''}]"


def decoded(data: bytes, charset: str | None) -> str | None:
    """Decode `data`, or return None if it is no text. A cut character at the end is dropped."""
    is_wide = (charset or "").lower().replace("_", "-").startswith(("utf-16", "utf-32"))
    if b"\0" in data and not is_wide:
        return None
    if charset and _known(charset):
        return data.decode(charset, "replace")
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        return decoder.decode(data, final=False).removeprefix("\ufeff")
    except UnicodeDecodeError:
        return None


def is_plainly_fit(outcome: Outcome, max_bytes: int) -> bool:
    """True if an outcome certainly needs no changes: a short plain text."""
    return (
        isinstance(outcome, Returned)
        and len(outcome.text) <= min(max_bytes, PLAIN_LETTERS)
        and not outcome.images
        and not outcome.cut_bytes
        and not outcome.files
        and outcome.text.isascii()
    )


def bounded(outcome: Outcome, max_bytes: int) -> Outcome:
    """Return the outcome with at most `max_bytes` of text, and without images that a provider would refuse."""
    if isinstance(outcome, Failed):
        return replace(outcome, text=_clean(cut(outcome.text, max_bytes)[0]))
    images, notes = _sifted(outcome.images)
    text = "\n".join(part for part in (outcome.text, *notes) if part)
    short, missing = cut(text, max_bytes, already_missing=outcome.cut_bytes)
    return replace(outcome, text=_clean(short), images=images, cut_bytes=missing)


def with_fitting_files(result: Returned, max_bytes: int) -> Returned:
    """Return a result whose resources, with its text, are at most `max_bytes` of text; else they are a part of the text, to be cut."""
    texts = [file for file in result.files if file.text]
    if size_of(result.text) + sum(size_of(file.text or "") for file in texts) <= max_bytes:
        return result
    written = (f"[{file.uri}]\n{file.text}" for file in texts)
    rest = tuple(file for file in result.files if not file.text)
    return replace(result, text="\n".join(part for part in (result.text, *written) if part), files=rest)


def cut(text: str, max_bytes: int, already_missing: int = 0) -> tuple[str, int]:
    """Cut a text to `max_bytes` of UTF-8; return also the number of missing bytes.

    `already_missing`: bytes that were not read. Then the end of `text` is not the end of the answer, so that only the
    beginning is kept.
    """
    size = size_of(text)
    if size <= max_bytes and not already_missing:
        return text, 0
    if already_missing:
        room = max_bytes - len(_note(size + already_missing, "at least ").encode())
        head = _front(text, max(room, 0))
        missing = size - size_of(head) + already_missing
        noted = head + _note(missing, "at least ")
        return noted if size_of(noted) <= max_bytes else _front(noted, max_bytes), missing
    room = max_bytes - len(_note(size, "").encode())
    if room <= 0:
        head = _front(text, max_bytes)
        return head, size - size_of(head)
    head = _front(text, room * _HEAD_SHARE // (_HEAD_SHARE + 1))
    size_of_tail = room - size_of(head)
    if size_of_tail > 0:
        end = text[-size_of_tail:].encode("utf-8", "replace")
    else:
        end = b""
    tail = end[-size_of_tail:].decode("utf-8", "ignore")
    missing = size - size_of(head) - size_of(tail)
    return head + _note(missing, "") + tail, missing


def size_of(text: str) -> int:
    """Return the bytes of a text in UTF-8, without encoding all of it at once."""
    if text.isascii():
        return len(text)
    pieces = range(0, len(text), _COUNTED_AT_ONCE)
    return sum(len(text[at : at + _COUNTED_AT_ONCE].encode("utf-8", "replace")) for at in pieces)


def _note(missing: int, hedge: str) -> str:
    return f"\n[... {hedge}{missing} bytes left out ...]\n"


def _front(text: str, size: int) -> str:
    return text[:size].encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


def _clean(text: str) -> str:
    """Lone surrogates cannot be sent on; they become question marks."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def _sifted(images: tuple[Image, ...]) -> tuple[tuple[Image, ...], list[str]]:
    shown: list[Image] = []
    notes: list[str] = []
    for image in images:
        size = len(image.data) * 3 // 4
        if image.mime_type not in IMAGE_TYPES:
            notes.append(described(image.mime_type, size))
        elif size > MAX_IMAGE_BYTES:
            notes.append(described(image.mime_type, size, f"larger than {MAX_IMAGE_BYTES} bytes"))
        elif len(shown) == MAX_IMAGES:
            notes.append(described(image.mime_type, size, f"only {MAX_IMAGES} images are shown"))
        else:
            shown.append(image)
    return tuple(shown), notes


def _plain(value: Any) -> Any:
    """Convert a value that a JSON writer does not support into one that it does."""
    match value:
        case Enum():
            return value.value
        case date() | time():
            return value.isoformat()
        case BaseModel():
            return value.model_dump()
        case msgspec.Struct():
            return msgspec.structs.asdict(value)
        case bytes() | bytearray() | memoryview():
            return described("application/octet-stream", len(value))
        case Image():
            return described(value.mime_type, len(value.data) * 3 // 4)
        case Mapping():
            return dict(value)
        case set() | frozenset():
            return sorted(value, key=repr)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "__iter__") and hasattr(value, "__len__"):
        return list(value)
    return str(value)


_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def _known(charset: str) -> bool:
    try:
        return codecs.lookup(charset).name in _TEXT_CODECS or codecs.lookup(charset).name.startswith(_TEXT_FAMILIES)
    except (LookupError, ValueError):
        return False


_TEXT_CODECS = frozenset({"ascii", "utf-8", "utf-8-sig", "gbk", "gb2312", "gb18030", "big5", "shift_jis", "johab"})
_TEXT_FAMILIES = ("utf-", "iso8859", "cp", "euc_", "koi8", "mac", "iso2022", "shift_jis", "big5", "tis", "hz")
"""The allowed charsets, because Python's codecs include others (zip, rot13, idna) that a server must not choose."""
