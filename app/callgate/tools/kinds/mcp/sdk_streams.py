"""The streams between a transport over HTTP and the SDK, which answers each request of a server in a task of its own and one
after the other: of a server that asks faster than it is answered, requests are dropped.
"""

import contextvars
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import anyio
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from callgate.tools.kinds.mcp.elicitation import declare
from callgate.tools.kinds.mcp.sdk import SessionMessage

MAX_REQUESTS = 32
"""Requests of a server that the SDK has at a time."""
CANCELLED = "notifications/cancelled"


def with_few_requests(
    streams: tuple[Any, Any], tell: Callable[[], None], capabilities: Mapping[str, Any]
) -> "tuple[FromServer, ToServer]":
    """Return the streams of a transport, for the SDK. `tell` is called for each request that is dropped; `capabilities` is what the
    server is told that we can do."""
    incoming, outgoing = streams
    unanswered: set[str] = set()
    return FromServer(incoming, unanswered, tell), ToServer(outgoing, unanswered, capabilities)


class FromServer:
    """What a server sends, without the requests that are too many."""

    def __init__(self, stream: Any, unanswered: set[str], tell: Callable[[], None]) -> None:
        self._stream = stream
        self._unanswered = unanswered
        self._tell = tell
        self.last_context: contextvars.Context | None = None
        """The context of the last message, in which the SDK runs its handlers."""

    async def receive(self) -> SessionMessage | Exception:
        while True:
            item: SessionMessage | Exception = await self._stream.receive()
            self.last_context = getattr(self._stream, "last_context", None)
            if isinstance(item, Exception) or self._may_pass(item):
                return item
            self._tell()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    def _may_pass(self, item: SessionMessage) -> bool:
        message = item.message
        if isinstance(message, JSONRPCNotification) and message.method == CANCELLED:
            self._unanswered.discard(str((message.params or {}).get("requestId")))
        if not isinstance(message, JSONRPCRequest):
            return True
        id = str(message.id)
        if id in self._unanswered or len(self._unanswered) >= MAX_REQUESTS:
            return False
        self._unanswered.add(id)
        return True

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        done: bool | None = await self._stream.__aexit__(kind, error, trace)
        return done


class ToServer:
    """What the SDK sends, where its answers make room for further requests."""

    def __init__(self, stream: Any, unanswered: set[str], capabilities: Mapping[str, Any]) -> None:
        self._stream = stream
        self._unanswered = unanswered
        self._capabilities = capabilities

    async def send(self, item: SessionMessage) -> None:
        declare(item.message, self._capabilities)
        try:
            await self._stream.send(item)
        finally:
            if isinstance(item.message, JSONRPCResponse | JSONRPCError):
                self._unanswered.discard(str(item.message.id))

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        done: bool | None = await self._stream.__aexit__(kind, error, trace)
        return done
