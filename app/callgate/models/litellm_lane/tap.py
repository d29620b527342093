"""Copies what litellm's HTTP client receives into the exchange of the request that it was received for.

litellm maps what a provider sent, its finish reasons included. All of its asynchronous requests go through transports that
one public static method makes, `AsyncHTTPHandler.create_async_transport`; `install` has that method return transports which
copy the bodies. `tests/models/test_tap.py` has a test for each fact about litellm that this depends on. Where one fails,
nothing is seen, and so nothing is run.

The exchange is found by a context variable, because litellm has no argument that would reach its transports. A request that
is made outside of an exchange is not touched.
"""

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any, Final

import httpx
import structlog

from callgate.http.interface import Broken, TooLarge, TransportError
from callgate.models import litellm_seam as seam
from callgate.models.direct.model import LITELLMS_PIECE
from callgate.models.litellm_lane.echoes import mask_echoes
from callgate.models.litellm_lane.stream_bounds import FrameBounds, LineBounds
from callgate.untrusted.doors import TooMuch

log = structlog.get_logger("callgate.models")

FRAMES: Final = "application/vnd.amazon.eventstream"
EVENTS: Final = "text/event-stream"
MOST_RESPONSES: Final = 32
"""Responses of one exchange: a sign-in, redirects, the answer. A provider that is polled may need more, and is then not seen."""


class BodyState(Enum):
    OPEN = "open"
    ENDED = "ended"
    """The whole body was received."""
    BROKEN = "broken"


class Exchange:
    """What was received for one request to a model, in the order in which the responses began."""

    def __init__(self, most: int, most_for_litellm: int | None = None, in_bodies: Sequence[bytes] = ()) -> None:
        """`most`: the limit of all bodies together, in bytes; `most_for_litellm`: that of one body which litellm reads;
        `in_bodies`: secrets that bodies of its requests may have."""
        self.in_bodies = in_bodies
        self.responses: list[TappedBody] = []
        self.is_complete = True
        """False if there were more responses than are kept."""
        self.is_too_large = False
        self.too_much = ""
        """What an event of a stream has too much of for litellm to parse it, in words."""
        self.is_held_back = False
        """True if litellm was not given the whole of a body."""
        self.most_for_litellm = most_for_litellm
        self._left = most
        self.most = most
        self._is_open = True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within this context, what litellm receives belongs to this exchange."""
        token = _EXCHANGE.set(self)
        try:
            yield
        finally:
            _EXCHANGE.reset(token)

    async def close(self) -> None:
        """Close all responses, and forget them: a task that litellm leaves behind keeps its context, and with it this object."""
        self._is_open = False
        responses = self.responses
        self.responses = []
        for body in responses:
            await body.end()

    def take(self, response: httpx.Response, address: str) -> None:
        """Have a response copied into this exchange."""
        if not self._is_open:
            return
        if len(self.responses) == MOST_RESPONSES:
            self.is_complete = False
            return
        assert isinstance(response.stream, httpx.AsyncByteStream)
        body = TappedBody(response, response.stream, address, self)
        self.responses.append(body)
        response.stream = body

    def count(self, size: int) -> None:
        """Count received bytes. Raises `TooLarge` beyond the limit."""
        self._left -= size
        if self._left < 0:
            self.is_too_large = True
            raise TooLarge(self.most)


_EXCHANGE: Final[ContextVar[Exchange | None]] = ContextVar("litellm_exchange", default=None)


class TappedBody(httpx.AsyncByteStream):
    """The body of one response, for litellm and for us.

    Both read the same bytes, each once and in their order: what one of them reads from the connection is kept for the other.
    They never read at the same time.
    """

    def __init__(
        self, response: httpx.Response, received: httpx.AsyncByteStream, address: str, exchange: Exchange
    ) -> None:
        self.status: int = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self.address = address
        self.state = BodyState.OPEN
        self.why_broken = ""
        self._received = received
        self._reads: AsyncIterator[bytes] | None = None
        self._is_closed = False
        self._exchange = exchange
        self._for_us: deque[bytes] = deque()
        self._for_litellm: deque[bytes] = deque()
        self._given_bytes = 0
        kind = self.headers.get("content-type", "")
        self._bounds = FrameBounds() if FRAMES in kind else LineBounds(is_events=EVENTS in kind)
        self.is_held_back = False
        """True if litellm was not given the rest: it parses a whole body at once, for as long as that takes."""

    def is_encoded(self) -> bool:
        """True if the body is compressed, although that was not asked for."""
        return self.headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the body as litellm reads it."""
        return _LitellmsReads(self)

    async def read_for_litellm(self) -> bytes | None:
        piece = await self._next_for_litellm()
        if piece is None:
            return None
        self._given_bytes += len(piece)
        most = self._exchange.most_for_litellm
        if most is None:
            return await self._share_of_stream(piece)
        if self._given_bytes > most:
            self.is_held_back = self._exchange.is_held_back = True
            raise httpx.ReadError("the rest is read elsewhere")
        return piece

    async def _share_of_stream(self, piece: bytes) -> bytes:
        """Return as much of a stream as litellm may parse before the event loop goes on."""
        share = piece[:LITELLMS_PIECE]
        if len(piece) > len(share):
            self._for_litellm.appendleft(piece[len(share) :])
        try:
            self._bounds.feed(share)
        except TooMuch as error:
            self._exchange.too_much = f"{error.limit} {error.what} in one event"
            raise httpx.ReadError("an event is too large") from None
        await asyncio.sleep(0)
        return share

    async def _next_for_litellm(self) -> bytes | None:
        if self._for_litellm:
            return self._for_litellm.popleft()
        if self.state is BodyState.BROKEN:
            raise httpx.ReadError(self.why_broken)
        try:
            piece = await self._next()
        except TransportError as error:
            raise httpx.ReadError(str(error)) from error
        if piece is not None:
            self._for_us.append(piece)
        return piece

    async def read(self) -> bytes | None:
        """Return the next piece of the body; None at its end. Raises `TransportError` where it broke off."""
        if self._for_us:
            return self._for_us.popleft()
        if self.state is BodyState.BROKEN:
            raise Broken(self.why_broken)
        piece = await self._next()
        if piece is not None:
            self._for_litellm.append(piece)
        return piece

    async def whole(self) -> bytes:
        """Return the body, which can be read once more. Raises `TransportError` where it broke off."""
        pieces: list[bytes] = []
        while (piece := await self.read()) is not None:
            pieces.append(piece)
        body = b"".join(pieces)
        self.unread(body)
        return body

    def leave_to_us(self) -> None:
        """Keep nothing for litellm any more: it is not going to read on."""
        self._for_litellm = deque(maxlen=0)

    def unread(self, piece: bytes) -> None:
        """Put back what `read` returned."""
        if piece:
            self._for_us.appendleft(piece)

    async def _next(self) -> bytes | None:
        if self.state is not BodyState.OPEN:
            return None
        if self._reads is None:
            self._reads = aiter(self._received)
        try:
            piece = await anext(self._reads)
            self._exchange.count(len(piece))
        except StopAsyncIteration:
            self.state = BodyState.ENDED
            return None
        except TooLarge as error:
            self._break(str(error))
            raise
        except Exception as error:  # httpx's errors, and aiohttp's where litellm does not map them
            self._break(f"{type(error).__name__}: {error}"[:300])
            raise Broken(self.why_broken) from error
        return piece

    def _break(self, why: str) -> None:
        self.state = BodyState.BROKEN
        self.why_broken = why

    async def aclose(self) -> None:
        """Close the body, for litellm. One that it was not given whole is read on by us."""
        if not self.is_held_back:
            await self.end()

    async def end(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self.state is BodyState.OPEN:
            self._break("the body was closed before its end")
        await self._received.aclose()


class _LitellmsReads:
    """An iterator, because an unfinished async generator would stay open."""

    def __init__(self, body: TappedBody) -> None:
        self._body = body

    def __aiter__(self) -> "_LitellmsReads":
        return self

    async def __anext__(self) -> bytes:
        piece = await self._body.read_for_litellm()
        if piece is None:
            raise StopAsyncIteration
        return piece


class _TappedTransport:
    """Mixed into the class of a transport: litellm looks at what its transports are instances of."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _EXCHANGE.get()
        if exchange is None:
            return await super().handle_async_request(request)  # type: ignore[misc,no-any-return]
        # The copy is of the bytes as they come: they have to be readable.
        request.headers["Accept-Encoding"] = "identity"
        response: httpx.Response = await super().handle_async_request(request)  # type: ignore[misc]
        mask_echoes(response, request, exchange.in_bodies)
        exchange.take(response, str(request.url))
        return response


_CLASSES: dict[type, type] = {}
"""The class with the mixin, for each class of transports."""


def _tapped_class(kind: type) -> type:
    if kind not in _CLASSES:
        _CLASSES[kind] = type(f"Tapped{kind.__name__}", (_TappedTransport, kind), {})
    return _CLASSES[kind]


def tapped(transport: Any) -> Any:
    """Return the transport, which copies from now on. None, with which httpx makes its own transport, stays None."""
    if isinstance(transport, httpx.AsyncBaseTransport) and not isinstance(transport, _TappedTransport):
        transport.__class__ = _tapped_class(type(transport))
    return transport


def install() -> bool:
    """Have litellm's transports copy what they receive; return whether that was possible."""
    handler = seam.HTTP_HANDLER.get()
    original: Callable[..., Any] | None = getattr(handler, METHOD, None)
    if original is None:
        log.error("tap_not_installed", method=f"AsyncHTTPHandler.{METHOD}")
        return False
    if getattr(original, "__wrapped__", None) is None:

        @functools.wraps(original)
        def create_async_transport(*arguments: Any, **named: Any) -> Any:
            return tapped(original(*arguments, **named))

        setattr(handler, METHOD, staticmethod(create_async_transport))
    return True


METHOD: Final = "create_async_transport"
