"""The answer of one run so far, and the clients that follow it.

Each of them gets it from its beginning, and it is cancelled only when all of them have disconnected.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

from starlette.types import Message, Receive, Send

from callgate.api.answers import run_unless_disconnected, send_whole, start_message
from callgate.api.errors import NO_HEADERS, ErrorBody, error_headers, in_openais_shape, openai_stream_end
from callgate.api.run_ports import StreamEnd, TakenOver
from callgate.conversation.errors import ChatError
from callgate.state.runs import StoredRun

_KEY_LENGTH = 255
INTERRUPTED = "idempotency_key_interrupted"


class FollowedRun:
    """One run: its answer so far, and the clients that follow it."""

    def __init__(
        self,
        digest: bytes,
        error_body: ErrorBody = in_openais_shape,
        stream_end: StreamEnd = openai_stream_end,
        *,
        outlives_server: bool = False,
    ) -> None:
        """`outlives_server`: another process resumes it when the server ends, which is no disconnect of its clients."""
        self.digest = digest
        self._error_body = error_body
        self._stream_end = stream_end
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: list[bytes] = []
        self.task: asyncio.Task[None] | None = None
        self.is_closed = False
        """New clients do not follow it: all have left it, or its key may be used again."""
        self.needs_no_clients = False
        """It continues when all clients have left it."""
        self.is_abandoned = asyncio.Event()
        """It has no followers any more, and is to be cancelled."""
        self.row: StoredRun | None = None
        """Its row in the ledger, once it has one."""
        self.has_ended = False
        self._outlives_server = outlives_server
        self._is_held = False
        self._followers = 0
        self._news = asyncio.Event()

    # -- from the side of the run

    async def record(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = list(message["headers"])
            # The stored answer has to be the one that clients get, so that it is sent after it was stored.
            streamed = any(value.startswith(b"text/event-stream") for _, value in self.headers)
            self._is_held = self._outlives_server and not streamed
        elif message.get("body"):
            self.parts.append(message["body"])
        self._notify()

    def replay(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.parts = [body]
        self.headers = [*((name, value) for name, value in headers), (b"idempotent-replayed", b"true")]

    def fail(self, error: ChatError) -> None:
        """Answer with an error where nothing was sent yet; a stream that has begun just ends."""
        if not self.status:
            fields = {"content-type": "application/json", **error_headers(error)}
            start: dict[str, Any] = start_message(error.status, fields)
            self.status = error.status
            self.headers = start["headers"]
            self.parts = [self._error_body(error)]

    def replace(self, error: ChatError) -> None:
        """Replace what there is of its answer by an error."""
        self.status = 0
        self.fail(error)

    def withdraw(self, error: ChatError) -> None:
        """Drop this answer, because another one is stored: nothing was sent yet, or the stream just ends."""
        if self._is_held:
            self.status = 0
        self.fail(error)

    def cut(self, error: ChatError) -> None:
        """End an answer from another process that will not be completed."""
        if self._is_held:
            self.status = 0
        if self.status:
            self.parts.append(self._end_of_stream(error))
        self.fail(error)

    def _end_of_stream(self, error: ChatError) -> bytes:
        return self._stream_end(error, b"".join(self.parts))

    def end(self) -> None:
        self.has_ended = True
        self._notify()

    def set_row(self, row: StoredRun) -> None:
        self.row = row
        self._notify()

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # -- from the side of a client

    async def wait_for_row(self) -> "StoredRun | None":
        """Wait for its row in the ledger; None where it was refused."""
        while self.row is None and not self.has_ended:
            await self._news.wait()
        return self.row

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until there is more of its answer, or for some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    async def bodies(self) -> AsyncIterator[bytes]:
        """Yield the pieces of its answer from the beginning."""
        place = 0
        while True:
            news = self._news
            while place < len(self.parts):
                place += 1
                yield self.parts[place - 1]
            if self.has_ended:
                return
            await news.wait()

    async def follow(self, receive: Receive, send: Send) -> None:
        self._followers += 1
        is_begun = is_whole = False

        def send_noted(message: Message) -> Awaitable[None]:
            nonlocal is_begun, is_whole
            is_begun = True
            is_whole = message["type"] == "http.response.body" and not message["more_body"]
            return send(message)

        try:
            await run_unless_disconnected(self.send_all(send_noted), receive)
        except asyncio.CancelledError:
            # Only the server cancels a whole request, at the end of the drain.
            self.needs_no_clients = self.needs_no_clients or self._outlives_server
            if self._outlives_server and not is_whole:
                await self._send_handed_over(send, is_begun=is_begun)
            raise
        finally:
            self._followers -= 1
            if not self._followers and not self.has_ended and not self.needs_no_clients:
                self.is_closed = True
                self.is_abandoned.set()
                assert self.task is not None
                # Its tools are stopped before this request ends, as without a key.
                await asyncio.wait({self.task})

    async def _send_handed_over(self, send: Send, *, is_begun: bool) -> None:
        """Tell a client that its run is carried on by another process."""
        error = TakenOver()
        if is_begun:
            await send({"type": "http.response.body", "body": self._end_of_stream(error), "more_body": False})
        else:
            await send_whole(send, error.status, self._error_body(error), NO_HEADERS, error)

    async def send_all(self, send: Send) -> None:
        started = False
        sent_parts = 0
        while True:
            news = self._news
            if self._is_held and not self.has_ended:
                await news.wait()
                continue
            if self.status and not started:
                started = True
                await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
            while sent_parts < len(self.parts):
                sent_parts += 1
                await send({"type": "http.response.body", "body": self.parts[sent_parts - 1], "more_body": True})
            if self.has_ended and sent_parts >= len(self.parts):  # there are fewer parts after it was withdrawn
                break
            await news.wait()
        assert started, "a run with followers ends with an answer"
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def other_request() -> ChatError:
    return ChatError(
        400,
        "Keys for idempotent requests can only be used with the same parameters they were first used with. "
        "Try using a key other than the one you sent if you meant to make a different request.",
        type="idempotency_error",
        code="idempotency_key_reused",
    )


def interrupted() -> ChatError:
    return ChatError(
        409,
        "The first request with this Idempotency-Key was cut off after a tool had been started. It is not run again.",
        code=INTERRUPTED,
    )


def check_key(key: str) -> None:
    """Raise for an invalid key."""
    if not (0 < len(key) <= _KEY_LENGTH and key.isprintable()):
        raise ChatError(
            400,
            f"Invalid 'Idempotency-Key': expected 1 to {_KEY_LENGTH} printable characters.",
            code="invalid_value",
        )
