"""One run of a request with an `Idempotency-Key`: buffers its answer for all clients that follow it.

Each of them gets it from its beginning, and it is cancelled only when all of them have disconnected.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec
from starlette.types import Message, Receive, Send

from callgate.api.answers import run_unless_disconnected, send_whole, start_message
from callgate.api.errors import NO_HEADERS, ErrorBody, error_headers, in_openais_shape
from callgate.api.openai_writers import stream_end
from callgate.conversation.errors import ChatError
from callgate.ledger.runs import StoredRun
from callgate.runtime.durable_run import TakenOver

_KEY_LENGTH = 255
INTERRUPTED = "idempotency_key_interrupted"
PASSING = frozenset({408, 409, 429})
"""Errors that a retry may not meet. Like errors of the server they are not stored, because clients retry with the same
key."""


StreamEnd: TypeAlias = Callable[[ChatError, bytes], bytes]
"""Makes the end of a stream that is not carried on here, given what was sent of it."""


def chat_stream_end(error: ChatError, _: bytes) -> bytes:
    """Return the end of a stream of Chat Completions."""
    return stream_end(error)


class Ended(msgspec.Struct, frozen=True):
    """How a run ended: with an error if any, and whether a tool with side effects was started."""

    error: ChatError | None = None
    wrote: bool = False
    left: bool = False
    """All clients disconnected before its end."""

    @property
    def may_run_again(self) -> bool:
        failed = self.error is not None and (self.error.status >= 500 or self.error.status in PASSING)
        return not self.wrote and (self.left or failed)


WELL = Ended()


class FollowedRun:
    """One run: its answer so far, and the clients that follow it."""

    def __init__(
        self,
        digest: bytes,
        error_body: ErrorBody = in_openais_shape,
        stream_end: StreamEnd = chat_stream_end,
        *,
        outlives_server: bool = False,
    ) -> None:
        """`outlives_server`: another process resumes it when the server ends, which is no disconnect of its clients."""
        self.digest, self._error_body, self._stream_end = digest, error_body, stream_end
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: list[bytes] = []
        self.task: asyncio.Task[None] | None = None
        self.is_over = False
        """New clients do not follow it: all have left it, or its key may be used again."""
        self.goes_on = False
        """It does not need any followers."""
        self.left = asyncio.Event()
        """It has no followers any more, and is to be cancelled."""
        self.stored: StoredRun | None = None
        """Its row in the ledger, if there is one."""
        self._outlives_server = outlives_server
        self._is_held = False
        self._ended = False
        self._followers = 0
        self._news = asyncio.Event()

    # -- from the side of the run

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def record(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
            # The stored answer has to be the one that clients get, so that it is sent after it was stored.
            streamed = any(value.startswith(b"text/event-stream") for _, value in self.headers)
            self._is_held = self._outlives_server and not streamed
        elif message.get("body"):
            self.parts.append(message["body"])
        self._notify()

    def replay(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        self.status, self.parts = status, [body]
        self.headers = [*((name, value) for name, value in headers), (b"idempotent-replayed", b"true")]

    def fail(self, error: ChatError) -> None:
        """Answer with an error where nothing was sent yet; a stream that has begun just ends."""
        if not self.status:
            fields = {"content-type": "application/json", **error_headers(error)}
            start: dict[str, Any] = start_message(error.status, fields)
            self.status, self.headers = error.status, start["headers"]
            self.parts = [self._error_body(error)]

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
        self._ended = True
        self._notify()

    def stands(self, stored: StoredRun) -> None:
        self.stored = stored
        self._notify()

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # -- from the side of a client

    async def begun(self) -> "StoredRun | None":
        """Wait for its row in the ledger; None where it was refused."""
        while self.stored is None and not self._ended:
            await self._news.wait()
        return self.stored

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
            self.goes_on = self.goes_on or self._outlives_server
            if self._outlives_server and not is_whole:
                await self._send_handed_over(send, is_begun=is_begun)
            raise
        finally:
            self._followers -= 1
            if not self._followers and not self._ended and not self.goes_on:
                self.is_over = True
                self.left.set()
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
        started, sent = False, 0
        while True:
            news = self._news
            if self._is_held and not self._ended:
                await news.wait()
                continue
            if self.status and not started:
                started = True
                await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
            while sent < len(self.parts):
                sent += 1
                await send({"type": "http.response.body", "body": self.parts[sent - 1], "more_body": True})
            if self._ended and sent >= len(self.parts):  # there are fewer parts after it was withdrawn
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
