"""Runs commands as child processes: without a shell, with bounded output, and never left behind.

The parent of each command is a launcher (`launch.py`), which sets its limits and kills it with all its descendants. We have a
socket to the launcher: when it is closed, also by our own death, the command is killed.
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
from enum import StrEnum
from pathlib import Path

import msgspec
import structlog

from callgate.parsers import landlock
from callgate.tools.concurrency import ConcurrencyLimiter
from callgate.tools.kinds.command import launch

log = structlog.get_logger("callgate.tools")

DEFAULT_SIZE = 16
"""Concurrent commands of all tools together."""
STDERR_TAIL = 4_000
"""Bytes at the end of standard error that are kept."""
MAX_STDERR = 16 * 1024 * 1024
"""The limit of standard error, beyond which the command is killed."""
CLOSE_SECONDS = 2.0
END_SECONDS = launch.GRACE_SECONDS + launch.SWEEP_SECONDS + 1.0
"""The timeout for a launcher to end. One that takes longer was stopped by its own command."""
TRY_SECONDS = 10.0
"""The timeout for testing whether there are namespaces, which takes about twenty milliseconds."""
_READ_AT_ONCE = 262_144
_FOLDERS = [str(Path(file).resolve().parent) for file in (launch.__file__, landlock.__file__)]
_IMPORT = f"import sys; sys.path += {_FOLDERS!r}; import launch"
BOOT = f"{_IMPORT}; launch.main(sys.argv[1:])"
"""Imported rather than run by path, so that its cached bytecode is used. Our folders are last on the path."""


class ProcessLimits(msgspec.Struct, frozen=True):
    """The limits of one command. All but `processes` hold for each process of it."""

    cpu_seconds: int = 30
    memory_bytes: int = 1_073_741_824
    file_bytes: int = 104_857_600
    open_files: int = 256
    processes: int = 64


class Paths(msgspec.Struct, frozen=True):
    """The only paths that a command can open, beside the system's programs and libraries."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()


class Command(msgspec.Struct, frozen=True):
    """One command to run."""

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
    """Run it in a PID namespace: it sees only processes that it started, and none of them outlives it."""


@functools.cache
def has_pid_namespaces() -> bool:
    """True if commands can have PID namespaces here. Tested once, and logged if not."""
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
        if tried.returncode:
            reason = tried.stderr.decode(errors="replace").strip()[-200:]
        else:
            reason = None
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    if reason is not None:
        effect = "a command can see and signal processes of our user, and what it leaves running may outlive it"
        log.warning("commands_share_processes", reason=reason, effect=effect)
    return reason is None


class EndReason(StrEnum):
    """How a command ended."""

    ITSELF = "itself"
    GIVEN_UP = "given_up"
    PROCESSES = "processes"
    """It started too many processes."""
    STDOUT = "stdout"
    STDERR = "stderr"
    """It wrote too much to standard error."""


class CommandResult(msgspec.Struct, frozen=True):
    """The result of a command that has ended with all its descendants."""

    why: EndReason
    code: int | None
    signal: int | None
    stdout: bytes
    missing: int
    """Bytes that were received beyond the limit."""
    stderr: bytes
    """The end of it."""


class NotStarted(Exception):
    """Raised where the command was not started."""


class TooLong(NotStarted):
    """Raised where the arguments are longer than the system allows."""


class Closed(NotStarted):
    """Raised where the runtime of the tool is closed."""


class LauncherDied(Exception):
    """Raised where the launcher died, and the command with it, at an unknown point."""


class CommandProcesses:
    """The running commands, killed at the end."""

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self.queue = ConcurrencyLimiter(size)
        """The limiter, entered before `run`, because a command's timeout does not include the wait."""
        self._running: set[_Child] = set()
        self._closed = False

    @property
    def running(self) -> int:
        return len(self._running)

    async def run(self, command: Command, max_bytes: int) -> CommandResult:
        """Run a command to its end. Cancelling kills it with all its descendants before this returns."""
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
        """Kill the running commands. Waiting ones are refused when it is their turn."""
        self._closed = True
        running = list(self._running)
        for child in running:
            child.end()
        if running:
            await asyncio.wait([child.over for child in running], timeout=CLOSE_SECONDS)


class _Child:
    """One launcher with its command. Runs in callbacks, so that it ends also if its caller was cancelled."""

    def __init__(self, command: Command, max_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_bytes = max_bytes
        self._stdout = bytearray()
        self._stdout_seen = 0
        self._stderr = bytearray()
        self._stderr_seen = 0
        self._report = bytearray()
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
                        start_new_session=True,  # signals of a terminal are not for tools
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
        """Ask the launcher to kill the command."""
        with contextlib.suppress(OSError):  # it has just ended by itself
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
        """Stop reading, and kill the command."""
        self._flood = self._flood or why
        self._loop.remove_reader(self._out)
        self._loop.remove_reader(self._err)
        self.end()

    def _receive(self) -> None:
        try:
            data = self._line.recv(4096)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""  # the launcher was killed
        self._report += data
        if not data:
            # The launcher and all writers have ended: the rest of the output is in the pipes.
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
                self.over.exception()  # marks it as retrieved: the caller may have been cancelled

    def _ended(self) -> CommandResult:
        messages: dict[str, str] = {}
        for line in self._report.decode(errors="replace").splitlines():
            name, _, text = line.partition(" ")
            messages[name] = text
        if "failed" in messages:
            raise NotStarted(messages["failed"])
        if "ended" not in messages:
            self._kill_group(messages.get("started", ""))
            raise LauncherDied("the process that ran the command is gone")
        how, number, *after = messages["ended"].split()
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
        """Kill a process group whose launcher has died. The command itself died with it, but not its children.

        In a namespace they died too, and there is no process id.
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
    """Yield the descriptor of a file with `content`. Unlike a pipe it needs no writer, and may be left unread."""
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
