"""Reads the bodies of requests, and limits their size, each and all large ones together.

A body is held until the end of its request, which a client can delay by sending it slowly, or by choosing a slow model.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from starlette.types import Receive

from callgate.api.strict_json import LARGE_BODY, open_body
from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import Opened

LARGE: Final = 262_144
"""Smaller bodies are not counted."""
SMALL: Final = min(LARGE, LARGE_BODY)
"""Bodies up to this are neither counted nor opened in a thread."""
OF_ALL: Final = 48
"""The limit, in bodies of the largest size."""
OF_ONE: Final = 24
"""The limit of one key, which leaves room for others."""
MAX_DIGITS: Final = 15
"""Digits of a Content-Length."""
Hold: TypeAlias = Callable[[int, int], None]


class LargeBodies:
    """Counts the bytes of one process."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()

    def grow(self, owner: str, size: int, largest: int) -> bool:
        """Count further bytes; return false, without counting them, where there is no room. `largest`: the limit of a body."""
        if self._of[owner] + size > OF_ONE * largest or self._of.total() + size > OF_ALL * largest:
            return False
        self._of[owner] += size
        return True

    def shrink(self, owner: str, less: int) -> None:
        self._of[owner] -= less
        if not self._of[owner]:
            del self._of[owner]


def check_body(headers: Mapping[str, str], limit: int) -> None:
    """Refuse a body by its headers: too large, or compressed, because a compressed body may unpack to a thousand times its
    size."""
    length = headers.get("content-length")
    if length is not None and length.isdecimal() and (len(length) > MAX_DIGITS or int(length) > limit):
        raise _too_large(limit)
    if (encoding := headers.get("content-encoding")) is None:
        return
    encoding = encoding.strip().lower()
    if encoding not in ("", "identity"):
        raise ChatError(
            415,
            f"Request bodies in '{encoding[:40]}' are not taken; send the JSON as it is.",
            code="unsupported_encoding",
        )


def read_body(receive: Receive, limit: int, hold: Hold | None = None) -> Awaitable[bytes]:
    """Return the whole body; raises as soon as it is larger than the limit. `hold` is called with the bytes so far of a large
    one, and the limit; it raises where there is no room."""
    return _read(receive, limit, hold, None)


class RequestOfOurs(Protocol):
    """A request of our own server, whose body may have come already."""

    def whole_body_fast(self, most: int) -> bytes | None: ...


def counted_fast(receive: Receive, limit: int) -> Opened | None:
    """Return a small body that has come with its head. Equals what `read_counted` returns or raises, or returns None."""
    request: RequestOfOurs | None = getattr(receive, "__self__", None)
    if request is None or not hasattr(request, "whole_body_fast"):
        return None
    body = request.whole_body_fast(min(limit, SMALL))
    if body is None:
        return None
    return open_body(body)


def read_counted(receive: Receive, limit: int, hold: Hold | None = None) -> Awaitable[Opened]:
    """Return the whole body as `read_body` does, and its values counted."""
    return _read(receive, limit, hold, open_body)


async def _read(receive: Receive, limit: int, hold: Hold | None, opens: Callable[[bytes], Opened] | None) -> Any:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ChatError(400, "The request was not sent to its end.")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        if size > LARGE and hold is not None:
            hold(size, limit)
        if not message.get("more_body"):
            break
        parts.append(part)
    body = b"".join((*parts, part)) if parts else part
    if opens is None:
        return body
    if size > LARGE_BODY:
        return await asyncio.to_thread(opens, body)
    return opens(body)


async def opened(body: bytes) -> Opened:
    """Return a body whose values are counted, in a thread if it is large."""
    if len(body) > LARGE_BODY:
        return await asyncio.to_thread(open_body, body)
    return open_body(body)


def _too_large(limit: int) -> ChatError:
    return ChatError(413, f"The request body is larger than {limit} bytes.", code="request_too_large")
