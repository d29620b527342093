"""What the workers of one server know of each other: which of them live, and what each has counted.

Which live stands in memory that they share; what was counted is asked for over a socket in a folder of theirs, so that
`/metrics` says the same whichever of them answers.
"""

import asyncio
import contextlib
import mmap
from collections.abc import Callable
from pathlib import Path

import structlog

log = structlog.get_logger("callgate.server")

ASKED_SECONDS = 1.0
"""For what a sibling has counted. One that does not answer is left out, and said to be."""
LARGEST_ANSWER = 64 * 1024 * 1024
LIVES, ENDED = 1, 2
"""What stands in the shared memory of one that serves, and of one that did; nothing of one that never has."""


class Siblings:
    """The workers of one server. Made by their parent; each of them knows its place."""

    def __init__(self, count: int, folder: Path) -> None:
        self.count, self.place = count, 0
        self._folder = folder
        self._living = mmap.mmap(-1, count)
        self._server: asyncio.Server | None = None

    @property
    def are_enough(self) -> bool:
        """Whether at least half of them serve."""
        return 2 * self._living[:].count(LIVES) >= self.count

    @property
    def are_all(self) -> bool:
        """Whether every one of them serves."""
        return self._living[:].count(LIVES) == self.count

    @property
    def have_served(self) -> bool:
        """Whether any of them ever has."""
        return any(self._living[:])

    def serves(self, place: int) -> bool:
        return self._living[place] == LIVES

    def note(self, place: int, *, lives: bool) -> None:
        """One has begun to serve, or has ended."""
        self._living[place] = LIVES if lives else (self._living[place] and ENDED)

    async def open(self, exposition: Callable[[], bytes]) -> None:
        """Begin to serve, and to tell the others what was counted here."""

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                writer.write(exposition())
                await writer.drain()
            writer.close()

        place = self._socket(self.place)
        place.unlink(missing_ok=True)  # of the one that had this place before
        self._server = await asyncio.start_unix_server(answer, place)
        self.note(self.place, lives=True)

    async def close(self) -> None:
        self.note(self.place, lives=False)
        if self._server is not None:
            self._server.close()

    async def expositions(self) -> list[bytes]:
        """What the others have counted."""
        others = [place for place in range(self.count) if place != self.place and self.serves(place)]
        answers = await asyncio.gather(*map(self._asked, others), return_exceptions=True)
        for place, answer in zip(others, answers, strict=True):
            if isinstance(answer, BaseException):
                log.warning("worker_not_counted", worker=place, error=f"{type(answer).__name__}: {answer}")
        return [answer for answer in answers if isinstance(answer, bytes)]

    async def _asked(self, place: int) -> bytes:
        async with asyncio.timeout(ASKED_SECONDS):
            reader, writer = await asyncio.open_unix_connection(self._socket(place), limit=LARGEST_ANSWER)
            try:
                return await reader.read(-1)
            finally:
                writer.close()

    def _socket(self, place: int) -> Path:
        return self._folder / f"{place}.sock"
