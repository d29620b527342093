"""A pool of child processes that read what others wrote.

Libraries that parse recurse in C, hold the interpreter, or end the process, and threads do not help against that. A child that
dies, stalls or answers garbage is one failed job: it is killed, and the next job gets a new one. None is started before the
first job of its kind, and one that has had nothing to do for a minute is ended.
"""

import asyncio
import contextlib
import functools
import os
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, cast, overload

import msgspec
import structlog

import callgate
from callgate.parsers.jobs import (
    HEAD,
    MAX_ANSWER,
    Job,
    JobAnswer,
    JobQuestion,
    ParserFailed,
    Payload,
    Reason,
    answer_in,
    frame,
    result_of,
)
from callgate.untrusted.doors import Door, Untrusted
from callgate.untrusted.messagepack import PackDoor, UntrustedPack, untrusted

log = structlog.get_logger("callgate.parsers")

WAITING: Final = 16
"""Jobs that wait for one process. They hold what they read in memory; further ones are refused."""
CLOSE_SECONDS: Final = 2.0
INHERITED: Final = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ")
"""The variables of our environment that a child gets, none of which is secret."""
_BOOT: Final = (
    "import sys; sys.path[:] = sys.argv[5:]; from callgate.parsers.child import main; "
    "main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))"
)
_SOURCE: Final = str(Path(callgate.__file__).resolve().parents[1])


class ParserLimits(msgspec.Struct, frozen=True):
    """What a child may use."""

    processes: int = 2
    """The number of children of each kind."""
    seconds: float = 30.0
    """For one job, of the clock and of the processor, from when its child has loaded what it runs."""
    start_seconds: float = 120.0
    """For a child to load what it runs, which takes a machine without time ten times as long as another. Nothing foreign is read
    in it."""
    memory_bytes: int = 1_073_741_824
    idle_seconds: float = 60.0
    """After this time without a job a child is ended."""


class ParserPool:
    """The children of all kinds, and the jobs that wait for them."""

    def __init__(
        self, limits: ParserLimits | None = None, on_failure: Callable[[str, str], None] = lambda kind, reason: None
    ) -> None:
        """`on_failure` counts: it gets the kind of the job and the reason."""
        self.limits = limits or ParserLimits()
        self._on_failure = on_failure
        self._kinds: dict[str, _Parsers] = {}
        self.jobs: Counter[str] = Counter()
        """Jobs so far, by kind."""

    def process_ids(self) -> tuple[int, ...]:
        """Return the process ids of the running children."""
        return tuple(child.pid for kind in self._kinds.values() for child in kind.running)

    @overload
    async def run(self, job: Job[Door], payload: Payload, source: str) -> Untrusted: ...
    @overload
    async def run(self, job: Job[PackDoor], payload: Payload, source: str) -> UntrustedPack: ...
    async def run(self, job: Job[Any], payload: Payload, source: str) -> Untrusted | UntrustedPack:
        """Run a job, and return its result behind the job's door. `source` says what is read, for the log.

        Raises `Refused` with the child's words, and `ParserFailed` where it has no result. Cancelling kills the child.
        """
        self.jobs[job.kind] += 1
        kind = self._kinds.get(job.kind)
        if kind is None:
            kind = self._kinds[job.kind] = _Parsers(self.limits)
        try:
            result = result_of(await kind.ask(_framed(job, payload)))
        except ParserFailed as failure:
            self._failed(job, source, failure)
            raise
        answer: Untrusted | UntrustedPack = untrusted(result, job.answer)
        return answer

    @overload
    def run_at_once(self, job: Job[Door], payload: Payload, source: str) -> Untrusted: ...
    @overload
    def run_at_once(self, job: Job[PackDoor], payload: Payload, source: str) -> UntrustedPack: ...
    def run_at_once(self, job: Job[Any], payload: Payload, source: str) -> Untrusted | UntrustedPack:
        """Run a job in a child of its own, and wait for it: for code that is not on the event loop."""
        self.jobs[job.kind] += 1
        try:
            result = result_of(_asked_alone(self.limits, _framed(job, payload)))
        except ParserFailed as failure:
            self._failed(job, source, failure)
            raise
        answer: Untrusted | UntrustedPack = untrusted(result, job.answer)
        return answer

    async def close(self) -> None:
        """Kill all children. What waits for them fails."""
        kinds = tuple(self._kinds.values())
        self._kinds.clear()
        for kind in kinds:
            await kind.close()

    def _failed(self, job: Job[Any], source: str, failure: ParserFailed) -> None:
        self._on_failure(job.kind, failure.reason)
        log.warning("parser_failed", kind=job.kind, source=source, reason=str(failure.reason), detail=failure.detail)


def _framed(job: Job[Any], payload: Payload) -> bytes:
    return frame(JobQuestion(job.function, job.loading, payload.data))


class _Parsers:
    """The children of one kind."""

    def __init__(self, limits: ParserLimits) -> None:
        self._limits = limits
        self._idle: list[_Parser] = []
        self.running: set[_Parser] = set()
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def ask(self, question: bytes) -> JobAnswer:
        """Send a frame to a child, and return what it answers."""
        await self._take_place()
        child: _Parser | None = None
        try:
            try:
                async with asyncio.timeout(self._limits.start_seconds) as deadline:
                    child = self._idle.pop() if self._idle else await self._started()
                    child.be_used()
                    answer = answer_in(await child.ask(question))
                    if is_begun(answer):
                        deadline.reschedule(asyncio.get_running_loop().time() + self._limits.seconds)
                        answer = answer_in(await child.end_of_job())
            except TimeoutError:
                raise ParserFailed(Reason.STALLED) from None
            if answer.status != "failed":  # else it ends: what the job left behind in it is not known
                self._give_back(child)
                child = None
            return answer
        finally:
            if child is not None:
                child.kill()
            self._leave_place()

    async def close(self) -> None:
        for waiter in self._waiting:
            waiter.cancel()
        children = list(self.running)
        for child in children:
            child.kill()
        if children:
            await asyncio.wait([child.over for child in children], timeout=CLOSE_SECONDS)

    async def _take_place(self) -> None:
        if self._busy < self._limits.processes:
            self._busy += 1
            return
        if len(self._waiting) >= WAITING * self._limits.processes:
            raise ParserFailed(Reason.BUSY)
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._limits.seconds):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self._leave_place()  # it had just been given
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)
            if isinstance(error, TimeoutError):
                raise ParserFailed(Reason.BUSY) from None
            raise

    def _leave_place(self) -> None:
        """Give the place to the next that waits."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._busy -= 1

    async def _started(self) -> "_Parser":
        loop = asyncio.get_running_loop()
        child = _Parser(self._forget)
        try:
            await loop.subprocess_exec(
                lambda: child,
                *_command(self._limits),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(),
                cwd="/",
                start_new_session=True,  # signals of a terminal are not for it
            )
        except OSError as error:
            raise ParserFailed(Reason.NOT_STARTED, os.strerror(error.errno or 0)) from None
        except BaseException:
            child.kill()
            raise
        self.running.add(child)
        return child

    def _give_back(self, child: "_Parser") -> None:
        if child.over.done():
            return
        self._idle.append(child)
        child.rest(self._limits.idle_seconds)

    def _forget(self, child: "_Parser") -> None:
        """Forget a child that has ended, or is being ended."""
        self.running.discard(child)
        if child in self._idle:
            self._idle.remove(child)


class _Parser(asyncio.SubprocessProtocol):
    """One child, which has one job at a time."""

    def __init__(self, on_end: "Callable[[_Parser], None]") -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._on_end = on_end
        self._process: asyncio.SubprocessTransport | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._failure: ParserFailed | None = None
        self._due = 0
        """Answers that are still to come."""
        self._received = bytearray()
        self._is_killed = False
        self._rest: asyncio.TimerHandle | None = None
        self.pid = 0
        self.over: asyncio.Future[None] = loop.create_future()
        """Done when the process has ended."""

    async def ask(self, question: bytes) -> bytes:
        """Send a question, and return the first answer, which says that the job begins."""
        if self._process is None or self.over.done():
            raise ParserFailed(Reason.DIED)
        self._due = 2
        pipe = cast("asyncio.WriteTransport", self._process.get_pipe_transport(0))
        pipe.write(question)
        return await self._next_answer()

    async def end_of_job(self) -> bytes:
        """Return the second answer."""
        return await self._next_answer()

    async def _next_answer(self) -> bytes:
        self._answer = self._loop.create_future()
        try:
            self._take_answer()
            if self._failure is not None and not self._answer.done():
                raise self._failure
            return await self._answer
        finally:
            self._answer = None

    def rest(self, seconds: float) -> None:
        """End the child after some time without a job."""
        self._rest = self._loop.call_later(seconds, self.kill)

    def be_used(self) -> None:
        if self._rest is not None:
            self._rest.cancel()

    def kill(self) -> None:
        """Kill it. Safe at any time."""
        self._is_killed = True
        self.be_used()
        self._on_end(self)
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.close()

    # Called by the loop --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast("asyncio.SubprocessTransport", transport)
        self.pid = self._process.get_pid() or 0
        if self._is_killed:
            self.kill()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        if self._due == 0:
            self.kill()  # nothing was asked
            return
        self._received += data
        self._take_answer()

    def _take_answer(self) -> None:
        """Give an answer that is whole to who waits for it."""
        if self._answer is None or self._answer.done() or len(self._received) < HEAD.size:
            return
        (length,) = HEAD.unpack_from(self._received)
        end = HEAD.size + length
        if length > MAX_ANSWER or (self._due == 1 and len(self._received) > end):
            self._fail(ParserFailed(Reason.GARBAGE, "its answer is too long"))
        elif len(self._received) >= end:
            with memoryview(self._received) as received:
                answer = bytes(received[HEAD.size : end])
            del self._received[:end]
            self._due -= 1
            self._answer.set_result(answer)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._end_of_output()

    def process_exited(self) -> None:
        self._end_of_output()
        if self._process is not None:
            self._process.close()
        self._on_end(self)
        self.be_used()
        if not self.over.done():
            self.over.set_result(None)

    def _end_of_output(self) -> None:
        code = None if self._process is None else self._process.get_returncode()
        if code is None and self._process is not None and not self._is_killed:
            # Its output is closed and its end not reaped yet; the code of that says more.
            self._loop.call_later(LAST_SECONDS, self._fail, ParserFailed(Reason.DIED))
            return
        self._fail(ParserFailed(Reason.DIED, "" if code is None else _how(code)))

    def _fail(self, failure: ParserFailed) -> None:
        self._failure = self._failure or failure
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(failure)
        self.kill()


LAST_SECONDS: Final = 0.5
"""Between the end of a child's output and that of the child."""


def environment() -> dict[str, str]:
    """Return the environment of a child: a few plain variables of ours."""
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


def _command(limits: ParserLimits) -> list[str]:
    paths = [*(path for path in sys.path if os.path.isabs(path)), _SOURCE]  # noqa: PTH117 - texts all along
    numbers = [str(os.getpid()), str(limits.start_seconds), str(limits.seconds), str(limits.memory_bytes)]
    return [sys.executable, "-I", "-c", _BOOT, *numbers, *dict.fromkeys(paths)]


def _how(code: int) -> str:
    if code < 0:
        return f"signal {-code}"
    return f"code {code}"


def is_begun(answer: JobAnswer) -> bool:
    """True for the answer that a job begins, False where it could not. Logs once what its child could not give up."""
    if answer.status == "failed":
        return False
    if answer.status != "begun":
        raise ParserFailed(Reason.GARBAGE, "it did not begin")
    missing = answer.payload.decode(errors="replace")[:100]
    if missing:
        _log_unconfined(missing)
    return True


@functools.cache
def _log_unconfined(missing: str) -> None:
    log.warning("parsers_unconfined", missing=missing, effect=UNCONFINED)


UNCONFINED: Final = "a library that what it reads has taken over can do what our user may: open files and sockets, and see other processes"


def _asked_alone(limits: ParserLimits, question: bytes) -> JobAnswer:
    """Start a child, send it one frame, and return what it answers."""
    try:
        process = subprocess.Popen(  # noqa: S603 - an argv, and no shell
            _command(limits),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise ParserFailed(Reason.NOT_STARTED, os.strerror(error.errno or 0)) from None
    stalled = threading.Event()

    def stop() -> None:
        stalled.set()
        process.kill()

    def send() -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError), process.stdin:  # it ended before it had read all
            process.stdin.write(question)

    writer = threading.Thread(target=send, name="to a parser", daemon=True)
    writer.start()
    try:
        assert process.stdout is not None
        with process.stdout:
            answer = _read_answer(process.stdout, limits.start_seconds, stop)
            if is_begun(answer):
                answer = _read_answer(process.stdout, limits.seconds, stop)
    except EOFError:
        code = process.wait()
        if stalled.is_set():
            raise ParserFailed(Reason.STALLED) from None
        raise ParserFailed(Reason.DIED, _how(code)) from None
    finally:
        process.kill()
        process.wait()
        writer.join()
    return answer


def _read_answer(pipe: IO[bytes], seconds: float, stop: Callable[[], None]) -> JobAnswer:
    """Read an answer from a child. Raises `EOFError` where it ended before, by itself or by `stop`."""
    timer = threading.Timer(seconds, stop)
    timer.start()
    try:
        head = pipe.read(HEAD.size)
        if len(head) < HEAD.size:
            raise EOFError
        (length,) = HEAD.unpack(head)
        if length > MAX_ANSWER:
            raise ParserFailed(Reason.GARBAGE)
        data = pipe.read(length)
        if len(data) < length:
            raise EOFError
        return answer_in(data)
    finally:
        timer.cancel()
