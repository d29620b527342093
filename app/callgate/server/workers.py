"""Runs several workers: forked from a parent that has loaded all modules, each with a socket of its own.

The system distributes new connections among the sockets of one port (`SO_REUSEPORT`); with one shared socket a single worker
would get nearly all of them. The parent serves no requests: it restarts workers that have died, kills
those whose loop does not run, forwards signals, and ends after them. If the parent dies its workers close their sockets at once and
drain, so that another can be started on their port.
"""

import contextlib
import gc
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from math import inf
from pathlib import Path

import structlog

from callgate.config.schema.whole import Config
from callgate.server.siblings import BEAT_SECONDS, Siblings
from callgate.telemetry import logs

log = structlog.get_logger("callgate.server")

BACKLOG = 2048
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds before a dead worker is restarted: doubled each time, until one has lived for `SETTLED`."""
SETTLED = 60.0
LOOK_SECONDS = 0.02
"""How often the parent checks whether all workers serve, until they do."""
CANNOT_START = frozenset({1, 2})
"""Exit codes of a worker that could not start, and is not restarted."""
ENDING = frozenset({signal.SIGTERM, signal.SIGINT})
SIGNALS = ENDING | {signal.SIGCHLD, signal.SIGHUP}
STUCK_BEATS = 20
"""Looks of the parent, `BEAT_SECONDS` apart, at which the loop of a worker had not run since the look before, until it is killed.
Looks are counted, not seconds: a machine that sleeps stops the parent as well."""


def share_of(config: Config, place: int, count: int) -> Config:
    """Return the config with one worker's share of the limits that protect the machine. Others are counted in Redis."""

    def part(whole: int) -> int:
        return max(1, whole // count + (place < whole % count))

    limits = config.limits.model_copy(
        update={
            name: part(getattr(config.limits, name))
            for name in ("concurrent_requests", "tool_threads", "child_processes")
        }
    )
    server = config.server.model_copy(update={"connections": part(config.server.connections)})
    parsers = config.parsers.model_copy(update={"processes": part(config.parsers.processes)})
    return config.model_copy(update={"limits": limits, "server": server, "parsers": parsers})


class WorkerBeats:
    """Tells which workers are stuck, by the numbers that their loops change."""

    def __init__(self, count: int) -> None:
        self._beats = bytes(count)
        self._missed = [0] * count

    def look(self, beats: bytes) -> list[int]:
        """Take the numbers of one more look; return the places that have missed `STUCK_BEATS` of them."""
        for place, (before, now) in enumerate(zip(self._beats, beats, strict=True)):
            if before == now:
                self._missed[place] += 1
            else:
                self._missed[place] = 0
        self._beats = beats
        return [place for place, missed in enumerate(self._missed) if missed >= STUCK_BEATS]

    def forget(self, place: int) -> None:
        """Begin to count anew for a place."""
        self._missed[place] = 0


class Workers:
    """The parent of the workers."""

    def __init__(
        self,
        work: Callable[[Siblings, socket.socket], int],
        count: int,
        address: socket.socket,
        on_serving: Callable[[], None],
    ) -> None:
        """`work` runs a worker and returns its exit code; `address` is bound, and does not listen; `on_serving` is called once
        all of them serve."""
        self._work = work
        self._address = address
        self._on_serving: Callable[[], None] | None = on_serving
        self._folder = Path(tempfile.mkdtemp(prefix="callgate-"))
        self._siblings = Siblings(count, self._folder)
        self._places: dict[int, int] = {}
        """The places of running workers, by process id."""
        self._began = [-inf] * count
        self._pauses = [FIRST_PAUSE] * count
        self._due = [-inf] * count
        """When the worker of each place is to be started; `inf` while it runs."""
        self._worker_beats = WorkerBeats(count)
        self._look_at = -inf
        """When the next look at the workers' loops is due."""
        self._ending = False
        self._worst = 0

    def run(self) -> int:
        """Run until all workers have ended; return their worst exit code."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            gc.freeze()  # so that the collector does not copy memory that is shared with the workers
            while self._places or not self._ending:
                now = time.monotonic()
                for place, due in enumerate(self._due):
                    if not self._ending and due <= now:
                        self._due[place] = inf
                        self._began[place] = now
                        self._places[self._fork(place)] = place
                if self._on_serving is not None:
                    longest = LOOK_SECONDS
                else:
                    longest = BEAT_SECONDS
                self._take(signal.sigtimedwait(SIGNALS, max(0.0, min(longest, min(self._due) - time.monotonic()))))
                self._remove_dead()
                self._kill_stuck()
                if self._on_serving is not None and self._siblings.are_all():
                    self._on_serving()
                    self._on_serving = None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._worst

    def _fork(self, place: int) -> int:
        logs.write_all()
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            os.setpgid(0, 0)  # Ctrl-C is for the parent, which forwards it
            self._siblings.end_with_parent()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            self._siblings.place = place
            host, port = self._address.getsockname()[:2]
            self._address.close()
            with bound_to(host, port, self._address.family) as listening:
                listening.listen(BACKLOG)
                code = self._work(self._siblings, listening)
        except BaseException:
            log.exception("worker_failed", worker=place)
        finally:
            logs.write_all()
            os._exit(code)

    def _take(self, info: "signal.struct_siginfo | None") -> None:
        if info is None or info.si_signo == signal.SIGCHLD:
            return
        if info.si_signo != signal.SIGHUP:
            self._ending = True
        self._signal(info.si_signo)

    def _signal(self, number: int) -> None:
        for process in self._places:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def _kill_stuck(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + BEAT_SECONDS
        stuck = self._worker_beats.look(self._siblings.beats())
        for process, place in self._places.items():
            if place in stuck and self._siblings.serves(place):  # until then it may load what it needs
                log.error("worker_stuck", worker=place, process=process, beats_missed=STUCK_BEATS)
                self._worker_beats.forget(place)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def _remove_dead(self) -> None:
        while self._places:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            place = self._places.pop(process, None)
            if place is None:
                continue
            served = self._siblings.serves(place)
            self._siblings.note(place, lives=False)
            code = os.waitstatus_to_exitcode(status)
            if not self._ending:
                lived = time.monotonic() - self._began[place]
                if code in CANNOT_START and not self._siblings.have_served():
                    # it has logged why, and the others would fail as well
                    self._ending = True
                    self._worst = code
                    self._signal(signal.SIGTERM)
                else:
                    if lived >= SETTLED:
                        self._pauses[place] = FIRST_PAUSE
                    log.error("worker_died", worker=place, process=process, exit_code=code, lived_seconds=round(lived, 1), again_in=self._pauses[place])  # fmt: skip
                    self._due[place] = time.monotonic() + self._pauses[place]
                    self._pauses[place] = min(LONGEST_PAUSE, 2 * self._pauses[place])
            elif served or -code not in ENDING:  # a worker that had not served may end by the signal
                if code < 0:  # it was ended by a signal
                    code = 128 - code
                self._worst = max(self._worst, code)


def bound_to(host: str, port: int, family: int) -> socket.socket:
    """Return a socket that shares its port with those of other workers, and does not listen yet."""
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    bound.setblocking(False)
    return bound
