"""Shares state between the worker processes of one server: which of them live, and the metrics of each.

Which live stands in memory that they share; what was counted is asked for over a socket in a folder of theirs, so that
`/metrics` says the same whichever of them answers.
"""

import asyncio
import contextlib
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import structlog

from callgate.telemetry.metrics import added_up

log = structlog.get_logger("callgate.server")

ASKED_SECONDS = 1.0
"""For what a sibling has counted. One that does not answer is left out, and said to be."""
KEPT = ".counted"
LARGEST_ANSWER = 64 * 1024 * 1024
LIVES, ENDED = 1, 2
"""What stands in the shared memory of one that serves, and of one that did; nothing of one that never has."""


class Counted(NamedTuple):
    """The counts of a server's workers, each as a page of metrics."""

    living: list[bytes]
    ended: list[bytes]
    """When each of them was last asked."""


class Siblings:
    """The workers of one server. Made by their parent; each of them knows its place."""

    def __init__(self, count: int, folder: Path) -> None:
        self.count, self.place = count, 0
        self._folder = folder
        self._living = mmap.mmap(-1, count)
        self._server: asyncio.Server | None = None

    @property
    def are_enough(self) -> bool:
        """True if at least half of them serve."""
        return 2 * self._living[:].count(LIVES) >= self.count

    @property
    def are_all(self) -> bool:
        """True if every one of them serves."""
        return self._living[:].count(LIVES) == self.count

    @property
    def have_served(self) -> bool:
        """True if any of them ever has."""
        return any(self._living[:])

    def serves(self, place: int) -> bool:
        return self._living[place] == LIVES

    def note(self, place: int, *, lives: bool) -> None:
        """One has begun to serve, or has ended."""
        self._living[place] = LIVES if lives else (self._living[place] and ENDED)

    async def open(self, exposition: Callable[[], bytes]) -> None:
        """Begin to serve, and to publish the counts of this process."""

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                page = exposition()
                self._keep(page)
                writer.write(b"%d\n" % os.getpid() + page)
                await writer.drain()
            writer.close()

        self._add_up_ended()
        place = self._socket(self.place)
        place.unlink(missing_ok=True)  # of the one that had this place before
        self._server = await asyncio.start_unix_server(answer, place)
        self.note(self.place, lives=True)

    async def close(self) -> None:
        self.note(self.place, lives=False)
        if self._server is not None:
            self._server.close()

    async def counted(self, own: bytes) -> Counted:
        """Return the metrics of all workers, of which `own` were counted here."""
        self._keep(own)
        others = [place for place in range(self.count) if place != self.place and self.serves(place)]
        answers = await asyncio.gather(*map(self._asked, others), return_exceptions=True)
        living = {f"{self.place}.{os.getpid()}": own}
        for place, answer in zip(others, answers, strict=True):
            if isinstance(answer, BaseException):
                log.warning("worker_not_counted", worker=place, error=f"{type(answer).__name__}: {answer}")
            else:
                process, _, page = answer.partition(b"\n")
                living[f"{place}.{process.decode()}"] = page
        with self._locked():
            ended = [file.read_bytes() for file in self._kept() if file.stem not in living]
        return Counted(list(living.values()), ended)

    def _keep(self, page: bytes) -> None:
        """Whoever asks after our end must not find that less was counted."""
        file = self._folder / f"{self.place}.{os.getpid()}{KEPT}"
        fresh = file.with_suffix(".new")
        fresh.write_bytes(page)
        fresh.replace(file)

    def _kept(self, place: int | str = "*") -> list[Path]:
        return sorted(self._folder.glob(f"{place}.*{KEPT}"))

    def _add_up_ended(self) -> None:
        """Make one page of those of all who had this place before."""
        with self._locked():
            if files := self._kept(self.place):
                page, _ = added_up([], ended=[file.read_bytes() for file in files])
                sum_of_all = self._folder / f"{self.place}.0{KEPT}"
                sum_of_all.write_bytes(page)
                for file in files:
                    if file != sum_of_all:
                        file.unlink()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    async def _asked(self, place: int) -> bytes:
        async with asyncio.timeout(ASKED_SECONDS):
            reader, writer = await asyncio.open_unix_connection(self._socket(place), limit=LARGEST_ANSWER)
            try:
                return await reader.read(-1)
            finally:
                writer.close()

    def _socket(self, place: int) -> Path:
        return self._folder / f"{place}.sock"
