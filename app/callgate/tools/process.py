"""Commands as child processes: started without a shell, read no further than allowed, and never left behind.

Each command has a launcher for a parent (`launch.py`), which sets its limits and ends it with all its descendants.
We hold a line to the launcher: closing it ends the command, and so does our own death, whatever it is.
"""

import asyncio
import contextlib
import errno
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import structlog

from callgate.tools import launch
from callgate.tools.concurrency import ConcurrencyLimiter

log = structlog.get_logger("callgate.tools")

DEFAULT_SIZE = 16
"""Commands at the same time, of all tools together: each is a process or more, and memory that is not ours to bound."""
STDERR_TAIL = 4_000
"""Bytes of standard error that are kept. What went wrong stands at its end."""
MAX_STDERR = 16 * 1024 * 1024
"""What a command may write there at all. More is a flood, and reading it costs processor time."""
CLOSE_SECONDS = 2.0
END_SECONDS = launch.GRACE_SECONDS + launch.SWEEP_SECONDS + 1.0
"""For a launcher to end. One that takes longer was stopped by its own command."""
TRY_SECONDS = 10.0
"""For trying whether a namespace can be had, which takes some twenty milliseconds."""
_READ_AT_ONCE = 262_144
_LAUNCHER = str(Path(launch.__file__).resolve())
_IMPORT = f"import sys; sys.path.append({str(Path(_LAUNCHER).parent)!r}); import launch"
BOOT = f"{_IMPORT}; launch.main(sys.argv[1:])"
"""Imported rather than run by path, so that its compiled form is used. Our folder comes last and hides nothing."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits of one command. All but `processes` hold for each process of it."""

    cpu_seconds: int = 30
    memory_bytes: int = 1_073_741_824
    file_bytes: int = 104_857_600
    open_files: int = 256
    processes: int = 64


@dataclass(frozen=True, slots=True)
class Paths:
    """The only places a command can open, beside the system's own programs and libraries."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """One command to run, whole."""

    program: str
    """Its absolute path."""
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes = b""
    limits: ProcessLimits = ProcessLimits()
    paths: Paths | None = None
    """None for no restriction."""
    own_pids: bool = False
    """Run it in a PID namespace: it sees no process but those it started, and none of them outlives it."""


@functools.cache
def has_pid_namespaces() -> bool:
    """True if commands can have PID namespaces here. Tried once, and where they cannot it is logged."""
    try:
        tried = subprocess.run(  # noqa: S603 - an argv, and no shell
            [sys.executable, "-I", "-S", "-c", f"{_IMPORT}; launch.try_pid_namespace()"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            cwd="/",
            env={},
            timeout=TRY_SECONDS,
        )
        reason = tried.stderr.decode(errors="replace").strip()[-200:] if tried.returncode else None
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    if reason is not None:
        effect = "a command can see and signal processes of our user, and what it leaves running may outlive it"
        log.warning("commands_share_processes", reason=reason, effect=effect)
    return reason is None


class EndReason(StrEnum):
    """EndReason a command ended."""

    ITSELF = "itself"
    GIVEN_UP = "given_up"
    PROCESSES = "processes"
    """It started more of them than it may."""
    STDOUT = "stdout"
    STDERR = "stderr"
    """It wrote more than is read there."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command that is over, with everything it started."""

    why: EndReason
    code: int | None
    signal: int | None
    stdout: bytes
    missing: int
    """How much more was seen, where reading stopped."""
    stderr: bytes
    """The end of it."""


class NotStarted(Exception):
    """The command was not started, and why."""


class TooLong(NotStarted):
    """The arguments are more than the system passes on."""


class Closed(NotStarted):
    """The runtime that the tool belongs to is closed."""


class LauncherDied(Exception):
    """The launcher is gone without a word, and the command with it. How far it came is not known."""


class CommandProcesses:
    """The commands of one runtime, ended with it."""

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self.queue = ConcurrencyLimiter(size)
        """The places. To be entered before `run`, for waiting must not use up a command's time."""
        self._running: set[_Child] = set()
        self._closed = False

    @property
    def running(self) -> int:
        return len(self._running)

    async def run(self, command: Command, max_bytes: int) -> CommandResult:
        """Run a command to its end. Cancelling ends it, with everything it started, before this returns."""
        if self._closed:
            raise Closed("the runtime that this tool belongs to is closed")
        child = _Child(command, max_bytes)
        self._running.add(child)
        child.over.add_done_callback(lambda _: self._running.discard(child))
        try:
            return await asyncio.shield(child.over)
        except asyncio.CancelledError:
            child.end()
            await asyncio.wait([child.over])
            raise

    async def close(self) -> None:
        """End what runs. Commands still waiting for a place are turned away when it is their turn."""
        self._closed = True
        running = list(self._running)
        for child in running:
            child.end()
        if running:
            await asyncio.wait([child.over for child in running], timeout=CLOSE_SECONDS)


class _Child:
    """One launcher and the command under it. Everything happens in callbacks, so that it is over even if nobody waits."""

    def __init__(self, command: Command, max_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_bytes = max_bytes
        self._stdout, self._stdout_seen = bytearray(), 0
        self._stderr, self._stderr_seen = bytearray(), 0
        self._said = bytearray()
        self._flood: EndReason | None = None
        self._patience: asyncio.TimerHandle | None = None
        self.over: asyncio.Future[CommandResult] = self._loop.create_future()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            try:
                self._line, other = socket.socketpair()
                ours.enter_context(self._line)
                theirs.enter_context(other)
                self._line.setblocking(False)
                line = other.fileno()
                self._out, out = _pipe(ours, theirs)
                self._err, err = _pipe(ours, theirs)
                arguments = [sys.executable, "-I", "-S", "-c", BOOT, str(line), *_settings(command)]
                argv = ["--", command.program, *command.argv]
                with _file_of(command.stdin) as stdin:
                    self._launcher = subprocess.Popen(  # noqa: S603 - an argv, and no shell
                        [*arguments, *argv],
                        stdin=stdin,
                        stdout=out,
                        stderr=err,
                        env=command.env,
                        cwd="/",
                        pass_fds=(line,),
                        start_new_session=True,  # what a terminal sends to us is not for the tools
                    )
            except OSError as error:
                if error.errno == errno.E2BIG:
                    raise TooLong("the arguments are longer than the system allows") from None
                raise NotStarted(f"no process could be started: {os.strerror(error.errno or 0)}") from None
            self._files = ours.pop_all()
        self._loop.add_reader(self._line.fileno(), self._receive)
        self._loop.add_reader(self._out, self._read_stdout)
        self._loop.add_reader(self._err, self._read_stderr)

    def end(self) -> None:
        """Have the command ended. It is over a moment later."""
        with contextlib.suppress(OSError):  # it has just ended by itself, and its end is on the way to us
            self._line.shutdown(socket.SHUT_WR)
        if self._patience is None and not self.over.done():
            self._patience = self._loop.call_later(END_SECONDS, self._launcher.kill)

    def _read_stdout(self) -> bool:
        piece = self._read(self._out)
        self._stdout_seen += len(piece)
        self._stdout += piece[: self._max_bytes - len(self._stdout)]
        if self._stdout_seen > self._max_bytes:
            self._stop_reading(EndReason.STDOUT)
        return bool(piece)

    def _read_stderr(self) -> bool:
        piece = self._read(self._err)
        self._stderr_seen += len(piece)
        self._stderr += piece
        del self._stderr[:-STDERR_TAIL]
        if self._stderr_seen > MAX_STDERR:
            self._stop_reading(EndReason.STDERR)
        return bool(piece)

    def _read(self, file: int) -> bytes:
        try:
            piece = os.read(file, _READ_AT_ONCE)
        except BlockingIOError:
            return b""
        if not piece:
            self._loop.remove_reader(file)
        return piece

    def _stop_reading(self, why: EndReason) -> None:
        """A flood: nothing more is read, and the command is ended."""
        self._flood = self._flood or why
        self._loop.remove_reader(self._out)
        self._loop.remove_reader(self._err)
        self.end()

    def _receive(self) -> None:
        try:
            said = self._line.recv(4096)
        except BlockingIOError:
            return
        except ConnectionError:
            said = b""  # the launcher was killed
        self._said += said
        if not said:
            # The launcher is gone, and with it whatever could still write: what is in the pipes is all there will be.
            for read in (self._read_stdout, self._read_stderr):
                while not self._flood and read():
                    pass
            for file in (self._line.fileno(), self._out, self._err):
                self._loop.remove_reader(file)
            if self._patience is not None:
                self._patience.cancel()
            self._files.close()
            self._launcher.kill()
            self._launcher.wait()
            try:
                self.over.set_result(self._ended())
            except (NotStarted, LauncherDied) as error:
                self.over.set_exception(error)
                self.over.exception()  # seen: whoever ran it may have been cancelled

    def _ended(self) -> CommandResult:
        words: dict[str, str] = {}
        for line in self._said.decode(errors="replace").splitlines():
            name, _, rest = line.partition(" ")
            words[name] = rest
        if "failed" in words:
            raise NotStarted(words["failed"])
        if "ended" not in words:
            self._kill_group(words.get("started", ""))
            raise LauncherDied("the process that ran the command is gone")
        how, number, *after = words["ended"].split()
        why = EndReason(after[1]) if after else EndReason.ITSELF
        return CommandResult(
            why=self._flood or why,
            code=int(number) if how == "code" else None,
            signal=int(number) if how == "signal" else None,
            stdout=bytes(self._stdout),
            missing=self._stdout_seen - len(self._stdout),
            stderr=bytes(self._stderr),
        )

    @staticmethod
    def _kill_group(pid: str) -> None:
        """Kill a process group whose launcher is gone. The command itself died with it; this is for its children.

        In a namespace they died too, and there is no number.
        """
        if pid not in ("", "0"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(int(pid), signal.SIGKILL)


def _settings(command: Command) -> Iterator[str]:
    limits = command.limits
    yield f"cwd={command.cwd}"
    for name in ("cpu_seconds", "memory_bytes", "file_bytes", "open_files", "processes"):
        yield f"{name}={getattr(limits, name)}"
    if "LC_CTYPE" in command.env:
        yield "lc_ctype=given"
    if command.own_pids:
        yield "pids=own"
    if command.paths is not None:
        yield "landlock=on"
        yield from (f"read={path}" for path in command.paths.read)
        yield from (f"write={path}" for path in command.paths.write)


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    os.set_blocking(read, False)
    return read, write


@contextlib.contextmanager
def _file_of(content: bytes) -> Iterator[int]:
    """A file to read `content` from. A file and no pipe: it need not be fed, and a command may leave it unread."""
    if not content:
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor is what is wanted
            yield nothing.fileno()
    elif hasattr(os, "memfd_create"):
        file = os.memfd_create("stdin")
        try:
            with os.fdopen(os.dup(file), "wb") as writing:
                writing.write(content)
            os.lseek(file, 0, os.SEEK_SET)
            yield file
        finally:
            os.close(file)
    else:
        with tempfile.TemporaryFile() as spooled:
            spooled.write(content)
            spooled.seek(0)
            yield spooled.fileno()
