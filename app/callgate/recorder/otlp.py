"""Encodes spans as the protobuf body of a POST to `/v1/traces` of a collector."""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any, Final

from callgate.recorder.spans import Attributes, Span

VARINT = 0
FIXED_64 = 1
BYTES = 2
FIXED_32 = 5
"""Protobuf's wire types."""
IN_64_BITS: Final = range(-(1 << 63), 1 << 63)
ERROR: Final = b"\x18\x02"
"""The field `code` of a status, with the value for an error."""

_fixed_64 = Struct("<Q").pack
_double = Struct("<d").pack
_fixed_32 = Struct("<I").pack


def encoded_span(span: Span, trace_id: str, state: str = "") -> bytes:
    parts = [
        _field(1, bytes.fromhex(trace_id)),
        _field(2, bytes.fromhex(span.id)),
        _text(3, state),
        _field(4, bytes.fromhex(span.parent)),
        _text(5, span.name),
        b"\x30" + _varint(span.kind),
        b"\x39" + _fixed_64(span.start),
        b"\x41" + _fixed_64(max(span.start, span.end)),
        _attributes(9, span.attributes),
        *(
            _field(11, b"\x09" + _fixed_64(event.at) + _text(2, event.name) + _attributes(3, event.attributes))
            for event in span.events
        ),
    ]
    if span.error:
        parts.append(_field(15, _text(2, span.error) + ERROR))
    flags = 0x101 | (0x200 if span.parent_is_remote else 0)
    parts.append(b"\x85\x01" + _fixed_32(flags))
    return b"".join(parts)


def request_of(spans: Iterable[bytes], resource: Mapping[str, Any], version: str) -> bytes:
    """Return the body of one request with all these encoded spans."""
    scope = _field(1, _text(1, "callgate") + _text(2, version))
    scope_spans = scope + b"".join([_field(2, span) for span in spans])
    return _field(1, _field(1, _attributes(1, resource)) + _field(2, scope_spans))


def refused_in(answer: bytes) -> tuple[int, str]:
    """Return how many spans a collector rejected, and why, from the field `partial_success` of its response."""
    count = 0
    why = ""
    for _, partial in _fields(answer):
        if isinstance(partial, bytes):
            for number, value in _fields(partial):
                if number == 1 and isinstance(value, int):
                    count = value
                elif number == 2 and isinstance(value, bytes):
                    why = value.decode(errors="replace")
    return count, why


def _attributes(number: int, attributes: Attributes) -> bytes:
    return b"".join(
        [
            _field(number, _text(1, name) + _field(2, _value(value)))
            for name, value in attributes.items()
            if value is not None
        ]
    )


def _value(value: Any) -> bytes:
    match value:
        case bool():
            if value:
                return b"\x10\x01"
            return b"\x10\x00"
        case int() if value in IN_64_BITS:
            return b"\x18" + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
        case float():
            return b"\x21" + _double(value)
        case list() | tuple():
            return _field(5, b"".join([_field(1, _value(item)) for item in value]))
        case _:
            return _field(1, str(value).encode(errors="replace"))


def _text(number: int, text: str) -> bytes:
    if text:
        return _field(number, text.encode(errors="replace"))
    return b""


def _field(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | BYTES,)) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _fields(message: bytes) -> Iterable[tuple[int, int | bytes]]:
    """Read the fields of a message, up to the first that cannot be read."""
    at = 0
    try:
        while at < len(message):
            key, at = _read_varint(message, at)
            if key & 7 == VARINT:
                value, at = _read_varint(message, at)
                yield key >> 3, value
            elif key & 7 == BYTES:
                size, at = _read_varint(message, at)
                yield key >> 3, message[at : at + size]
                at += size
            else:
                at += {FIXED_64: 8, FIXED_32: 4}[key & 7]
    except (IndexError, KeyError):
        return


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        shift = shift + 7
        at = at + 1
    return value | message[at] << shift, at + 1
