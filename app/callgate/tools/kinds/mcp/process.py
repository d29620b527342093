"""Runs an MCP server as a child process, with a clean environment.

Its parent is the launcher, as for commands. It kills the server with all its descendants: on request, when the server ends
by itself, and when Callgate ends, also by `kill -9`.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from callgate.tools.kinds.command.process import BOOT
from callgate.tools.source_supervisor import CannotOpen

INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""The variables of our environment that a child gets, none of which is secret."""
EXIT_SECONDS = 1.0
"""The time for a server to end after its input was closed, as the protocol requires."""
TERMINATE_SECONDS = 1.0
KILL_SECONDS = 0.5
HASTY_SECONDS = 0.3
"""The same for a server that has not been used yet."""
LAST_WORDS_SECONDS = 0.2
"""The time for output that is still in the pipe after the server has ended."""
SAID_BYTES = 4096
MAX_UNREAD_BYTES = 16 * 1024 * 1024
"""Bytes of input that the server has not read, beyond which it is taken for stuck."""


@dataclass(frozen=True, slots=True)
class StdioSpec:
    """The command of a server on standard streams, with its settings."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None


class NotReading(Exception):
    """Raised where the server does not read its input."""


class ServerProcess(asyncio.SubprocessProtocol):
    """A running server. `received` is called with its output, `ended` once, when no more can come."""

    def __init__(
        self, on_data: Callable[[bytes], None], on_end: Callable[[str], None], spec: StdioSpec | None = None
    ) -> None:
        self._spec = spec
        self._received = on_data
        self._ended = on_end
        self._said = b""
        self._exited = asyncio.Event()
        self._over = False
        self._late: asyncio.TimerHandle | None = None
        self._process: asyncio.SubprocessTransport | None = None
        self._line: socket.socket | None = None
        self._reported = b""
        """The launcher's messages so far."""
        self._pid = 0
        """The process id of the server, which leads a process group."""

    @classmethod
    async def start(
        cls, spec: StdioSpec, on_data: Callable[[bytes], None], on_end: Callable[[str], None]
    ) -> "ServerProcess":
        loop = asyncio.get_running_loop()
        child = cls(on_data, on_end, spec)
        env = environment(spec.env)
        program = _program(spec, env)
        if program is None:
            raise CannotOpen(_missing(spec))
        child._line, other = socket.socketpair()
        child._line.setblocking(False)
        settings = ["streams=given", "privileges=kept", f"grace={TERMINATE_SECONDS}"]
        settings += [f"cwd={spec.cwd}"] if spec.cwd is not None else []
        settings += ["lc_ctype=given"] if "LC_CTYPE" in env else []
        try:
            with other:
                await loop.subprocess_exec(
                    lambda: child,
                    *(sys.executable, "-I", "-S", "-c", BOOT, str(other.fileno()), *settings),
                    *("--", program, spec.command, *spec.args),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=env,
                    pass_fds=(other.fileno(),),
                    start_new_session=True,
                )
            await child._begun(loop, spec)
        except OSError as error:
            child.kill()
            raise CannotOpen(f"{spec.command} cannot be run: {error.strerror}") from None
        except BaseException:
            child.kill()  # it may be running already
            raise
        return child

    async def _begun(self, loop: asyncio.AbstractEventLoop, spec: StdioSpec) -> None:
        """Wait until the launcher has started the server."""
        assert self._line is not None
        while b"\n" not in self._reported:
            line_data = await loop.sock_recv(self._line, 4096)
            if not line_data and b"\n" not in self._reported:  # `_how` may have read it, if the process ended meanwhile
                raise CannotOpen(f"{spec.command} cannot be run: {self._reason()}")
            self._reported += line_data
        word, _, argument = self._reported.partition(b"\n")[0].decode(errors="replace").partition(" ")
        if word == "started":
            self._pid = 0 if self._exited.is_set() else int(argument)
            return
        raise CannotOpen(_not_started(spec, argument))

    def write(self, data: bytes) -> None:
        """Write to the server's input. Ignored after its end, which `ended` reports."""
        pipe = self._pipe(0)
        if pipe is None or pipe.is_closing():
            return
        if pipe.get_write_buffer_size() > MAX_UNREAD_BYTES:
            raise NotReading
        pipe.write(data)

    def pause(self) -> None:
        """Pause reading its output."""
        if (pipe := self._pipe(1)) is not None and not pipe.is_closing():
            cast("asyncio.ReadTransport", pipe).pause_reading()

    def resume(self) -> None:
        if (pipe := self._pipe(1)) is not None and not pipe.is_closing():
            cast("asyncio.ReadTransport", pipe).resume_reading()

    def note(self, text: bytes) -> None:
        """Keep output that is not of the protocol, for the reason of a failure."""
        self._said = (self._said + text)[-SAID_BYTES:]

    async def stop(self, *, in_haste: bool = False) -> None:
        """End it with all its descendants, within the three timeouts together, or within half a second if `in_haste`."""
        try:
            if (pipe := self._pipe(0)) is not None:
                pipe.close()
            if not in_haste:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(EXIT_SECONDS):
                        await self._exited.wait()
            if not self._exited.is_set() and self._line is not None:
                self._line.shutdown(socket.SHUT_WR)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HASTY_SECONDS if in_haste else TERMINATE_SECONDS + KILL_SECONDS):
                        await self._exited.wait()
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill it with all its descendants at once. Safe at any time."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        self._pid = 0
        if self._late is not None:
            self._late.cancel()
        if self._process is not None:
            # The launcher too, and so the server, even if its process id is not known yet.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                self._process.close()
        if self._line is not None:
            self._line.close()

    # Called by the loop --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        if fd == 1:
            self._received(data)
        else:
            self.note(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 and self._exited.is_set():
            self._finish()
        elif fd == 1:
            # It usually exits at the same moment, and its exit code is more precise.
            self._late = asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._finish)

    def process_exited(self) -> None:
        self._exited.set()
        self._pid = 0  # from now on the id may be another process's
        if self._late is not None:
            self._late.cancel()
            self._finish()
        else:
            # A forked process may keep the pipe open, so its end is not awaited.
            self._late = asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._finish)

    def _finish(self) -> None:
        if not self._over:
            self._over = True
            self._ended(self._reason())

    def _reason(self) -> str:
        if self._exited.is_set():
            how = self._how()
        else:
            how = "it closed its output"
        text = self._said.decode("utf-8", "replace").strip().splitlines()
        if text:
            return f"{how}: {text[-1].strip()[:300]}"
        return how

    def _how(self) -> str:
        """Return how the server ended, as the launcher reported it."""
        with contextlib.suppress(OSError):
            while self._line is not None and (line_data := self._line.recv(4096)):
                self._reported += line_data
        for line in self._reported.decode(errors="replace").splitlines():
            match line.split():
                case ["failed", *_] if self._spec is not None:  # it may be seen to end before `_begun` reads why
                    return _not_started(self._spec, line)
                case ["ended", "code", code, *_]:
                    return f"it ended with code {code}"
                case ["ended", "signal", number, *_]:
                    names = {known_signal.value: known_signal.name for known_signal in signal.Signals}
                    return f"it was ended by {names.get(int(number), f'signal {number}')}"
        return "what ran it was ended"

    def _pipe(self, fd: int) -> asyncio.WriteTransport | None:
        if self._process is None:
            return None
        return cast("asyncio.WriteTransport | None", self._process.get_pipe_transport(fd))


def environment(configured: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child: a few plain variables of ours, and those that the operator configured."""
    ours = {name: os.environ[name] for name in INHERITED if name in os.environ}
    # An exported shell function, which some shells still run.
    return {name: value for name, value in ours.items() if not value.startswith("()")} | dict(configured)


def why_not_there(spec: StdioSpec) -> str:
    """Return why a server cannot be started, as far as it is known without starting it; else empty."""
    program = Path(spec.cwd or ".", spec.command)
    if _program(spec, environment(spec.env)) is None or ("/" in spec.command and not program.is_file()):
        return _missing(spec)
    return ""


def _program(spec: StdioSpec, env: Mapping[str, str]) -> str | None:
    """Return the path of the program; None if it, or its folder, is not there."""
    if spec.cwd is not None and not Path(spec.cwd).is_dir():
        return None
    if "/" in spec.command:  # relative to the server's own folder, in the launcher
        return spec.command
    return shutil.which(spec.command, path=env.get("PATH", os.defpath))


def _not_started(spec: StdioSpec, failure: str) -> str:
    """Return why the launcher could not start a server, of what it said."""
    why = failure.rpartition(": ")[2]
    if why == os.strerror(errno.ENOENT):
        return _missing(spec)
    return f"{spec.command} cannot be run: {why}"


def _missing(spec: StdioSpec) -> str:
    if spec.cwd is not None and not Path(spec.cwd).is_dir():
        return f"there is no folder {spec.cwd}"
    if " " in spec.command.strip():
        apart = f": is it `command: {spec.command.split()[0]}`, and the rest `args`?"
    else:
        apart = ""
    return f"there is no program {spec.command}{apart}"
