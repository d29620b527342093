"""Stores a streamed answer part by part, each before followers are sent it, so that a process that takes its run over can
continue the stream."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.types import Message

from callgate.api.run_ports import TakenOver
from callgate.runs.durable_run import DurableRun

BATCH_SECONDS: Final = 0.2
"""The interval of writes."""


class AnswerParts:
    """The stream of one run in the background."""

    def __init__(self, durable: DurableRun, record: Callable[[Message], Awaitable[None]]) -> None:
        """`record` takes the messages for followers."""
        self._durable = durable
        self._record = record
        self._next = durable.next_part()
        self._unstored: list[bytes] = []
        self._storing: asyncio.Task[None] | None = None
        self._is_ending = asyncio.Event()

    async def send(self, message: Message) -> None:
        """Take a message of the answer. Nothing is sent any more where another process has the run."""
        if self._durable.is_lost:
            return
        if message["type"] == "http.response.start":
            await self._record(message)
            if message["status"] == 200:
                await self._record_body(self._durable.earlier_answer())
        elif body := message.get("body"):
            self._unstored.append(body)
            if self._storing is None or self._storing.done():
                self._storing = asyncio.create_task(self._store(), name="stores an answer in parts")

    async def close(self) -> None:
        """Return when all of it is stored, or another process has taken the run over."""
        self._is_ending.set()
        if self._storing is not None:
            await asyncio.wait({self._storing})

    async def _store(self) -> None:
        with contextlib.suppress(TakenOver):  # then another process stores them
            while self._unstored:
                body = b"".join(self._unstored)
                self._unstored.clear()
                await self._durable.store_part(self._next, body)
                self._next += 1
                await self._record_body(body)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BATCH_SECONDS):
                        await self._is_ending.wait()

    async def _record_body(self, body: bytes) -> None:
        await self._record({"type": "http.response.body", "body": body, "more_body": True})
