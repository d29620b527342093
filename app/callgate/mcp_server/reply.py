"""The answer to one request: one JSON body, or a stream from the first notification or the first long silence on."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from starlette.types import Send

from callgate.api.answers import STREAM_HEADERS, send_whole, start_message
from callgate.conversation.errors import ChatError
from callgate.conversation.events import CallProgress
from callgate.mcp_server.protocol import Id, as_event, notification

SILENCE: Final = 5.0
"""The longest silence of an answer that is waited for: then a stream says that it goes on."""
PING: Final = b": it goes on\n\n"
PROGRESS: Final = "notifications/progress"
WHOLE: Final = 100.0
STEP: Final = 0.001
"""What a report without a number adds, since each has to say more than the one before."""


class Reply:
    """Sends the answer. `begin` before the work, `stop` in the end."""

    def __init__(self, send: Send, *, streams: bool, token: Id | None, headers: Mapping[str, str]) -> None:
        """`streams`: whether the client takes event streams. `token`: under which it wants to hear of progress."""
        self._send = send
        self._streams = streams
        self._token = token
        self._headers = headers
        self._progress = -STEP
        self._words = ""
        """The last words of progress, while it waits for somebody."""
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self.has_begun = False
        """The head of a stream is sent."""

    def begin(self) -> None:
        if self._streams:
            self._timer = asyncio.get_running_loop().call_later(SILENCE, self._break_silence)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._beat is not None and not self._beat.done():
            self._beat.cancel()
            await asyncio.wait({self._beat})

    async def progress(self, event: CallProgress) -> None:
        """Tell the client how far its call is."""
        self._words = event.message if event.waits_for or event.asks else ""
        if self._token is not None and self._streams:
            await self._notify(event.message, event.fraction)

    async def event(self, message: bytes) -> None:
        """Send a message in the stream."""
        async with self._lock:
            await self._part(as_event(message))

    async def end(self, message: bytes, status: int = 200, error: ChatError | None = None) -> None:
        """Send the last message. In a stream the status was sent before."""
        await self.stop()
        if self.has_begun:
            await self._part(as_event(message), last=True)
        else:
            await send_whole(self._send, status, message, self._headers, error)

    async def _notify(self, message: str, fraction: float | None) -> None:
        params: dict[str, Any] = {"progressToken": self._token}
        least = self._progress + STEP
        if fraction is None:
            self._progress = least
        else:
            self._progress = max(least, min(fraction, 1.0) * WHOLE)
            params["total"] = WHOLE
        params["progress"] = round(self._progress, 3)
        if message:
            params["message"] = message
        await self.event(notification(PROGRESS, params))

    def _break_silence(self) -> None:
        loop = asyncio.get_running_loop()
        if self._beat is None or self._beat.done():
            self._beat = loop.create_task(self._say_something(), name="an answer goes on")
        self._timer = loop.call_later(SILENCE, self._break_silence)

    async def _say_something(self) -> None:
        if self._words and self._token is not None:
            await self._notify(self._words, None)
            return
        async with self._lock:
            await self._part(PING)

    async def _part(self, data: bytes, *, last: bool = False) -> None:
        if not self.has_begun:
            self.has_begun = True
            await self._send(start_message(200, {**STREAM_HEADERS, **self._headers}))
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})


async def accept(send: Send) -> None:
    """Take a notification, which has no answer."""
    await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
