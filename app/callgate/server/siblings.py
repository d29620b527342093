"""Shares state between the worker processes of one server: which of them serve, and the metrics of each.

Which of them serve is in shared memory; metrics are requested over a socket in a shared folder, so that `/metrics` is the
same from every worker.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from callgate.runtime.workers import Counted
from callgate.telemetry.metrics import added_up

log = structlog.get_logger("callgate.server")

ASKED_SECONDS = 1.0
"""The timeout for a sibling's metrics. One that does not answer is left out, and logged."""
KEPT = ".counted"
TAKEN = "taken"
"""The file with the digest of the config that was taken last although it widens what is allowed."""
LARGEST_ANSWER = 64 * 1024 * 1024
BEAT_SECONDS = 1.0
"""How often the loop of a worker shows its parent that it runs."""
LIVES = 1
ENDED = 2
"""The states of a worker in shared memory: it serves, or it has ended; 0 if it has never served."""

_PR_SET_PDEATHSIG = 1


class Siblings:
    """The workers of one server. Made by their parent; `place` is the number of this one."""

    def __init__(self, count: int, folder: Path) -> None:
        self.count = count
        self.place = 0
        self._folder = folder
        self._living = mmap.mmap(-1, count)
        self._beats = mmap.mmap(-1, count)
        """A number for each worker, which its loop changes every `BEAT_SECONDS`."""
        self._beating: asyncio.TimerHandle | None = None
        self._parent = os.getpid()
        self._server: asyncio.Server | None = None

    def are_enough(self) -> bool:
        """True if at least half of them serve."""
        return 2 * self._living[:].count(LIVES) >= self.count

    def are_all(self) -> bool:
        """True if every one of them serves."""
        return self._living[:].count(LIVES) == self.count

    def have_served(self) -> bool:
        """True if any of them ever has."""
        return any(self._living[:])

    def take(self, digest: str) -> None:
        """Note that a config file with this digest was taken although it widens what is allowed."""
        fresh = self._folder / f"{TAKEN}.{self.place}"
        fresh.write_text(digest)
        fresh.replace(self._folder / TAKEN)

    def have_taken(self, digest: str) -> bool:
        """True if one of them has taken this very file, as a worker that replaces it has to know."""
        try:
            return (self._folder / TAKEN).read_text() == digest
        except OSError:
            return False

    def end_with_parent(self) -> None:
        """Have this worker get SIGTERM when its parent dies."""
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if self.have_no_parent():  # it died before
            signal.raise_signal(signal.SIGTERM)

    def have_no_parent(self) -> bool:
        """True if the parent of the workers has died. For a worker."""
        return os.getppid() != self._parent

    def beats(self) -> bytes:
        """Return the number of each worker that changes while its loop runs."""
        return self._beats[:]

    def serves(self, place: int) -> bool:
        return self._living[place] == LIVES

    def note(self, place: int, *, lives: bool) -> None:
        """Note that a worker has begun to serve, or has ended."""
        self._living[place] = LIVES if lives else (self._living[place] and ENDED)

    async def open(self, exposition: Callable[[], bytes]) -> None:
        """Note that this worker serves, and publish its metrics."""

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                page = exposition()
                self._keep(page)
                writer.write(b"%d\n" % os.getpid() + page)
                await writer.drain()
            writer.close()

        self._add_up_ended()
        place = self._socket(self.place)
        place.unlink(missing_ok=True)  # the socket of the worker before it
        self._server = await asyncio.start_unix_server(answer, place)
        self._beat()
        self.note(self.place, lives=True)

    async def close(self) -> None:
        self.note(self.place, lives=False)
        if self._beating is not None:
            self._beating.cancel()
        if self._server is not None:
            self._server.close()

    async def counted(self, own: bytes) -> Counted:
        """Return the metrics of all workers; `own` are those of this process."""
        self._keep(own)
        others = [place for place in range(self.count) if place != self.place and self.serves(place)]
        answers = await asyncio.gather(*map(self._fetch_page, others), return_exceptions=True)
        living = {f"{self.place}.{os.getpid()}": own}
        for place, answer in zip(others, answers, strict=True):
            if isinstance(answer, BaseException):
                log.warning("worker_not_counted", worker=place, error=f"{type(answer).__name__}: {answer}")
            else:
                process, _, page = answer.partition(b"\n")
                living[f"{place}.{process.decode()}"] = page
        with self._locked():
            ended = [file.read_bytes() for file in self._kept_pages() if file.stem not in living]
        return Counted(list(living.values()), ended)

    def _beat(self) -> None:
        self._beats[self.place] = (self._beats[self.place] + 1) % 256
        self._beating = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _keep(self, page: bytes) -> None:
        """Store the metrics of this process, so that sums do not decrease after its end."""
        file = self._folder / f"{self.place}.{os.getpid()}{KEPT}"
        fresh = file.with_suffix(".new")
        fresh.write_bytes(page)
        fresh.replace(file)

    def _kept_pages(self, place: int | str = "*") -> list[Path]:
        return sorted(self._folder.glob(f"{place}.*{KEPT}"))

    def _add_up_ended(self) -> None:
        """Join the pages of all earlier workers of this place into one."""
        with self._locked():
            if files := self._kept_pages(self.place):
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

    async def _fetch_page(self, place: int) -> bytes:
        async with asyncio.timeout(ASKED_SECONDS):
            reader, writer = await asyncio.open_unix_connection(self._socket(place), limit=LARGEST_ANSWER)
            try:
                return await reader.read(-1)
            finally:
                writer.close()

    def _socket(self, place: int) -> Path:
        return self._folder / f"{place}.sock"
