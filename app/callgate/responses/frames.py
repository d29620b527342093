"""Reads and writes WebSocket frames (RFC 6455): the server's side, without extensions."""

import base64
import hashlib
from collections.abc import Iterator
from typing import Final

TEXT = 0x1
CLOSE = 0x8
PING = 0x9
PONG = 0xA
CONTINUED = 0x0
BINARY = 0x2
_FINAL = 0x80
_RESERVED = 0x70
_MASKED = 0x80
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
CONTROL_BYTES: Final = 125

PROTOCOL_ERROR = 1002
UNSUPPORTED = 1003
NOT_TEXT = 1007
TOO_MANY = 1008
TOO_LARGE = 1009
TRY_LATER = 1013


class FrameError(Exception):
    """Raised for a frame that a client may not send here."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def accept_key(key: str) -> bytes:
    """Return the value of `Sec-WebSocket-Accept` for a client's key."""
    return base64.b64encode(hashlib.sha1(key.encode("latin-1") + _GUID).digest())  # noqa: S324 - the protocol's own


def frame(kind: int, data: bytes) -> bytes:
    """Return one whole frame, unmasked as a server's."""
    size = len(data)
    if size < 126:
        head = bytes((_FINAL | kind, size))
    elif size < 1 << 16:
        head = bytes((_FINAL | kind, 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((_FINAL | kind, 127)) + size.to_bytes(8, "big")
    return head + data


def close_frame(code: int, why: str = "") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + why.encode()[: CONTROL_BYTES - 2])


class FrameReader:
    """Assembles messages from bytes; returns the kind and content of whole messages."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._read = bytearray()
        self._message = bytearray()
        self._open = False

    @property
    def held(self) -> int:
        """The bytes of the incomplete message."""
        return len(self._read) + len(self._message)

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        self._read += data
        while (frame := self._next()) is not None:
            kind, is_final, payload = frame
            if kind >= CLOSE:
                yield kind, payload
            elif (kind == CONTINUED) != self._open:
                raise FrameError(PROTOCOL_ERROR, "a message begins in another")
            else:
                if len(self._message) + len(payload) > self._max_bytes:
                    raise FrameError(TOO_LARGE, f"a message has at most {self._max_bytes} bytes")
                self._open = not is_final
                if not is_final:
                    self._message += payload
                elif self._message:
                    whole = bytes(self._message + payload)
                    self._message.clear()
                    yield TEXT, whole
                else:
                    yield TEXT, payload

    def _next(self) -> tuple[int, bool, bytes] | None:
        """Return the next frame, if it is complete: its kind, whether it ends its message, and its payload."""
        received = self._read
        if len(received) < 2:
            return None
        kind = received[0] & 0x0F
        is_final = bool(received[0] & _FINAL)
        size = received[1] & 0x7F
        start = 2
        if received[0] & _RESERVED or kind not in (CONTINUED, TEXT, BINARY, CLOSE, PING, PONG):
            raise FrameError(PROTOCOL_ERROR, "no such frame was agreed on")
        if not received[1] & _MASKED:
            raise FrameError(PROTOCOL_ERROR, "a client's frames are masked")
        if kind == BINARY:
            raise FrameError(UNSUPPORTED, "messages are texts")
        if kind >= CLOSE and (size > CONTROL_BYTES or not is_final):
            raise FrameError(PROTOCOL_ERROR, "a control frame is small and whole")
        if size >= 126:
            start = 4 if size == 126 else 10
            if len(received) < start:
                return None
            size = int.from_bytes(received[2:start], "big")
        if size > self._max_bytes:
            raise FrameError(TOO_LARGE, f"a message has at most {self._max_bytes} bytes")
        end = start + 4 + size
        if len(received) < end:
            return None
        payload = _unmasked(bytes(received[start + 4 : end]), bytes(received[start : start + 4]))
        del received[:end]
        return kind, is_final, payload


def _unmasked(data: bytes, mask: bytes) -> bytes:
    """Unmask by one operation on large integers, because a loop over the bytes takes a hundred times as long."""
    size = len(data)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
