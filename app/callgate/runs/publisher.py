"""Publishes the answer of a run in Redis for clients that follow it at other processes."""

import asyncio
from typing import Final

import msgspec
import structlog
from starlette.types import Message

from callgate.state.cancelling import cancel_until_ended
from callgate.state.cluster.run_streams import MOST_BYTES, RunStreams
from callgate.state.store import StoreError
from callgate.untrusted.messagepack import PackDoor, open_pack
from callgate.untrusted.readers import msgpack_reader

BATCH_SECONDS: Final = 0.1

log = structlog.get_logger("callgate.runs")


class AnswerPiece(msgspec.Struct, frozen=True):
    """A piece of an answer that is published at once, the first one with the head."""

    body: bytes
    status: int = 0
    headers: list[tuple[bytes, bytes]] = []


class RunPublisher:
    """Gathers the pieces of a streamed answer for a moment, and publishes them. Whole answers are read from the ledger."""

    def __init__(self, streams: RunStreams, id: str, epoch: int) -> None:
        self._streams = streams
        self._id = id
        self._epoch = epoch
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._is_streamed = False
        self._parts: list[bytes] = []
        self._sent = 0
        self._task: asyncio.Task[None] | None = None

    def feed(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message["status"], list(message["headers"])
            self._is_streamed = any(value.startswith(b"text/event-stream") for _, value in self._head[1])
        elif self._is_streamed and (body := message.get("body")) and self._sent < MOST_BYTES:
            self._parts.append(body)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._send(), name="stream of a run")

    async def close(self) -> None:
        """Publish the rest, and the end."""
        if self._task is not None:
            await cancel_until_ended(self._task)

    async def _send(self) -> None:
        while self._parts and self._sent < MOST_BYTES:
            parts = self._parts
            self._parts = []
            piece = AnswerPiece(b"".join(parts), *(self._head or ()))
            self._head = None
            try:
                await self._streams.add(self._id, self._epoch, _encode(piece))
            except StoreError as error:
                log.warning("run_not_streamed", run_id=self._id, error=str(error))
                self._sent = MOST_BYTES
                return
            self._sent += len(piece.body)
            await asyncio.sleep(BATCH_SECONDS)


_encode = msgspec.msgpack.Encoder().encode
_read_piece = msgpack_reader(AnswerPiece)
PIECE: Final = PackDoor(name="piece of a run's answer", bytes=64 * 1024 * 1024, values=2_000)


def decode_piece(data: bytes) -> AnswerPiece:
    """Decode a piece that another process published. Raises the errors of `READ_ERRORS`."""
    return _read_piece(open_pack(data, PIECE))
