"""The decoders, which take nothing that did not go through a door.

Each is the library's own function behind another type: mypy refuses bytes that are not `Opened`, and a call costs nothing more.
A `msgspec.Raw` is a part of what a reader has read, or was encoded here.
"""

import json
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar, overload

import msgspec

from callgate.untrusted.doors import SMALL, Opened, OpenedText
from callgate.untrusted.messagepack import OpenedPack

T = TypeVar("T")
Text: TypeAlias = Opened | OpenedText | msgspec.Raw

READ_ERRORS: Final = (ValueError, RecursionError)
"""What a door and a reader raise for what cannot be read: `TooMuch` and the errors of msgspec and of UTF-8 are among them."""

read_value: Callable[[Text], Any] = msgspec.json.decode
"""Decode JSON strictly."""

NULL: Final = msgspec.Raw(b"null")
"""What a reader takes where a field is absent."""
EMPTY_LIST: Final = msgspec.Raw(b"[]")


def read_shape(text: Text, shape: type[T]) -> T:
    """Decode JSON of one shape. For what is read again and again, `json_reader` is quicker."""
    return msgspec.json.decode(text, type=shape)


@overload
def json_reader(shape: type[T]) -> Callable[[Text], T]: ...
@overload
def json_reader(shape: Any = Any) -> Callable[[Text], Any]: ...
def json_reader(shape: Any = Any) -> Callable[[Text], Any]:
    """Return the decoder of JSON of one shape."""
    return msgspec.json.Decoder(shape).decode


@overload
def msgpack_reader(shape: type[T]) -> Callable[[OpenedPack], T]: ...
@overload
def msgpack_reader(shape: Any = Any) -> Callable[[OpenedPack], Any]: ...
def msgpack_reader(shape: Any = Any) -> Callable[[OpenedPack], Any]:
    """Return the decoder of MessagePack of one shape."""
    return msgspec.msgpack.Decoder(shape).decode


def read_leniently(text: Text, **options: Any) -> Any:
    """Decode JSON with Python's own decoder, which takes NaN, halves of surrogate pairs and numbers of any size."""
    return json.loads(text, **options)


def pairs_reader(make: Callable[[list[tuple[str, Any]]], Any]) -> Callable[[OpenedText], Any]:
    """Return a decoder that has each object made of its pairs, of which some may have the same key."""
    return json.JSONDecoder(object_pairs_hook=make).decode


def read_strings_fast(data: bytes, between: bytes, make: Callable[[str], T]) -> list[T] | None:
    """Make something of each text that stands, as the inside of a JSON string, between equal bytes. Equals opening and reading each
    with its quotes, or returns None: for much of it, and where one is empty or no string. To open each costs a stream 15 % more
    instructions."""
    insides = data.split(between)
    if len(data) > SMALL or b"" in insides:
        return None
    try:
        return [make(_read_string(b'"' + inside + b'"')) for inside in insides]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def read_string_fast(inside: bytes) -> str | None:
    """The same of one string."""
    if len(inside) > SMALL or not inside:
        return None
    try:
        return _read_string(b'"' + inside + b'"')
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


_read_string = msgspec.json.Decoder(str).decode


def value_at(text: OpenedText, start: int, decoder: json.JSONDecoder | None = None) -> tuple[Any, int]:
    """Decode the value that begins at a place, and return the place after it. Raises `ValueError`."""
    return (decoder or _DECODER).raw_decode(text, start)


_DECODER = json.JSONDecoder()
