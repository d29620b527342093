"""Masks what a provider sends back of the secrets that litellm sent it, where the bytes come in, as our own HTTP client does.

All that reads an answer then reads it masked: litellm, our readers, and whoever writes it down.
"""

from collections.abc import AsyncIterator, Sequence

import httpx

from callgate.config.secret_mask import Needles, SecretMask, needles_for
from callgate.http.credentials import credentials_in, secrets_in


class MaskedBytes(httpx.AsyncByteStream):
    """The body of a response without the secrets of its request. An iterator, because an unfinished async generator would stay
    open."""

    def __init__(self, received: httpx.AsyncByteStream, needles: Needles, *, is_stream: bool) -> None:
        self._received = received
        self._reads: AsyncIterator[bytes] | None = None
        self._mask = SecretMask(needles, is_foreign=True)
        self._mask.is_stream = is_stream
        self._fault: Exception | None = None
        self._is_over = False

    def __aiter__(self) -> "MaskedBytes":
        return self

    async def __anext__(self) -> bytes:
        if self._reads is None:
            self._reads = aiter(self._received)
        while not self._is_over:
            try:
                piece = self._mask.feed(await anext(self._reads))
            except StopAsyncIteration:
                self._is_over = True
            except Exception as error:  # noqa: BLE001 - raised below, after what was held back
                self._fault = error
                self._is_over = True
            else:
                if piece:
                    return piece
        if rest := self._mask.finish():
            return rest
        if self._fault is not None:
            raise self._fault
        raise StopAsyncIteration

    async def aclose(self) -> None:
        await self._received.aclose()


def mask_echoes(response: httpx.Response, request: httpx.Request, in_bodies: Sequence[bytes]) -> None:
    """Have the body of a response masked. `in_bodies`: secrets that bodies of requests may have."""
    received = response.stream
    if not isinstance(received, httpx.AsyncByteStream):
        return
    lines = (f"{name}: {value}" for name, value in request.headers.items())
    head = "\n".join((str(request.url), *lines)).encode("utf-8", "replace")
    secrets = {*credentials_in(request.headers.items()), *secrets_in(head), *in_bodies}
    needles = needles_for(tuple(sorted(secrets)))
    if needles is not None:
        is_stream = "text/event-stream" in response.headers.get("content-type", "")
        response.stream = MaskedBytes(received, needles, is_stream=is_stream)
