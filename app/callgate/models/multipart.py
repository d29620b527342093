"""Parses `multipart/form-data` strictly and writes it again, so that a provider reads what was checked here.

Parsers differ over the rare features of forms (preambles, folded headers, several names, escapes), so those are refused.
"""

import re
import secrets
from collections.abc import Sequence

import msgspec

from callgate.conversation.errors import ChatError

PART_HEADER_BYTES = 4096
PARTS = 1000
"""Parts of one form."""
_CONTENT_TYPE = re.compile(
    r"\s*multipart/form-data\s*;\s*boundary=(?:\"([A-Za-z0-9'()+_,./:=? -]{0,69}[A-Za-z0-9'()+_,./:=?-])\"|([A-Za-z0-9'+_.-]{1,70}))\s*",
    re.IGNORECASE,
)
_DISPOSITION = re.compile(
    rb'form-data\s*;\s*name="([^"\\\r\n\x00]{0,256})"(?:\s*;\s*filename="([^"\\\r\n\x00]{0,1024})")?\s*', re.IGNORECASE
)
_TYPE = re.compile(rb"[\x20-\x7e]{1,256}")


class Part(msgspec.Struct, frozen=True):
    name: str
    filename: bytes | None
    content_type: bytes | None
    value: bytes


def read_form(body: bytes, content_type: str) -> list[Part]:
    """Return the parts of a form. Raises `ChatError`."""
    match = _CONTENT_TYPE.fullmatch(content_type)
    if match is None:
        raise _refused("its content type is not multipart/form-data with one boundary")
    boundary = b"--" + (match[1] or match[2]).encode("latin-1")
    if not body.startswith(boundary):
        raise _refused("it does not begin with its boundary")
    between = b"\r\n" + boundary
    parts: list[Part] = []
    place = len(boundary)
    while body[place : place + 2] == b"\r\n":
        head = body.find(b"\r\n\r\n", place, place + PART_HEADER_BYTES)
        end = body.find(between, head + 2) if head >= 0 else -1
        if end < 0:
            raise _refused("a part has no end")
        if len(parts) == PARTS:
            raise _refused(f"it has more than {PARTS} parts")
        parts.append(_part(body[place + 2 : head], body[head + 4 : end] if end > head + 2 else b""))
        place = end + len(between)
    if body[place:] not in (b"--", b"--\r\n"):
        raise _refused("something stands behind a boundary")
    return parts


def write_form(parts: Sequence[Part]) -> tuple[str, bytes]:
    """Return the content type and the body of a form."""
    boundary = f"callgate-{secrets.token_hex(16)}"
    written: list[bytes] = []
    for part in parts:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{part.name}"'.encode()
        if part.filename is not None:
            head += b'; filename="' + part.filename + b'"'
        if part.content_type is not None:
            head += b"\r\nContent-Type: " + part.content_type
        written += (head, b"\r\n\r\n", part.value, b"\r\n")
    return f"multipart/form-data; boundary={boundary}", b"".join((*written, f"--{boundary}--\r\n".encode()))


def _part(head: bytes, value: bytes) -> Part:
    fields: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        name, colon, content = line.partition(b":")
        name = name.lower()
        if not colon or name in fields or name not in (b"content-disposition", b"content-type", b"content-length"):
            raise _refused("a part has a header that is not taken here, or one twice")
        fields[name] = content.strip(b" \t")
    match = _DISPOSITION.fullmatch(fields.get(b"content-disposition", b""))
    if match is None:
        raise _refused("a part has no plain name")
    kind = fields.get(b"content-type")
    if kind is not None and _TYPE.fullmatch(kind) is None:
        raise _refused("a part has a content type that is none")
    try:
        return Part(match[1].decode(), match[2], kind, value)
    except UnicodeDecodeError:
        raise _refused("a part's name is not UTF-8") from None


def _refused(why: str) -> ChatError:
    return ChatError(400, f"The form of your request cannot be read: {why}.", code="invalid_form")
