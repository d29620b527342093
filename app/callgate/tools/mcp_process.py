"""A tool server as a child process: started clean, read as it writes, and ended whole.

It leads a process group of its own, so that what it forked goes with it: when it is told to end, and also when
it ends by itself. What leaves the group on purpose is out of reach.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from callgate.tools.source_supervisor import CannotOpen

INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""What a child gets of our environment: enough to find programs and its home, and nothing that may be a secret."""
EXIT_SECONDS = 1.0
"""For a server whose input was closed, which is how the protocol asks it to end."""
TERMINATE_SECONDS = 1.0
KILL_SECONDS = 0.5
HASTY_SECONDS = 0.3
"""For a server that is ended before it was in service: nothing is under way in it."""
LOOK_SECONDS = 0.01
"""Between two looks at a process group: the system reports only our own child, not what it forked."""
LAST_WORDS_SECONDS = 0.2
"""For output that is still in the pipe when its writer has ended."""
SAID_BYTES = 4096
MAX_UNREAD_BYTES = 16 * 1024 * 1024
"""Of input that the server does not take. Beyond it the server is stuck, and holds our memory."""


@dataclass(frozen=True, slots=True)
class StdioSpec:
    """How to start a server that speaks over its standard streams."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None


class NotReading(Exception):
    """The server has not taken its input for megabytes."""


class Child(asyncio.SubprocessProtocol):
    """A running server. `received` is called with its output, `ended` once, when no more can come."""

    def __init__(self, received: Callable[[bytes], None], ended: Callable[[str], None]) -> None:
        self._received = received
        self._ended = ended
        self._said = b""
        self._exited = asyncio.Event()
        self._over = False
        self._late: asyncio.TimerHandle | None = None
        self._process: asyncio.SubprocessTransport | None = None
        self.pid = 0

    @classmethod
    async def start(cls, spec: StdioSpec, received: Callable[[bytes], None], ended: Callable[[str], None]) -> "Child":
        loop = asyncio.get_running_loop()
        child = cls(received, ended)
        try:
            await loop.subprocess_exec(
                lambda: child,
                spec.command,
                *spec.args,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment(spec.env),
                cwd=spec.cwd,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise CannotOpen(_missing(spec)) from None
        except OSError as error:
            raise CannotOpen(f"{spec.command} cannot be run: {error.strerror}") from None
        except asyncio.CancelledError:
            child.kill()  # it may run already, and then nobody else knows of it
            raise
        return child

    def write(self, data: bytes) -> None:
        """Hand `data` to the server's input. One that has ended gets nothing; `ended` reports it."""
        pipe = self._pipe(0)
        if pipe is None or pipe.is_closing():
            return
        if pipe.get_write_buffer_size() > MAX_UNREAD_BYTES:
            raise NotReading
        pipe.write(data)

    def pause(self) -> None:
        """Let its output wait in the pipe."""
        if (pipe := self._pipe(1)) is not None and not pipe.is_closing():
            cast("asyncio.ReadTransport", pipe).pause_reading()

    def resume(self) -> None:
        if (pipe := self._pipe(1)) is not None and not pipe.is_closing():
            cast("asyncio.ReadTransport", pipe).resume_reading()

    def note(self, words: bytes) -> None:
        """Keep what it said besides the protocol: when it fails, this is why."""
        self._said = (self._said + words)[-SAID_BYTES:]

    async def stop(self, *, in_haste: bool = False) -> None:
        """End it and all that it forked. Takes no longer than the three waits together, and in haste half a second."""
        try:
            if (pipe := self._pipe(0)) is not None:
                pipe.close()
            if not in_haste:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(EXIT_SECONDS):
                        await self._exited.wait()
            patience = HASTY_SECONDS if in_haste else TERMINATE_SECONDS
            if not self._signalled(signal.SIGTERM) or await self._group_gone(patience):
                self.pid = 0  # from now on the number may be somebody else's
            elif self._signalled(signal.SIGKILL):
                await self._group_gone(KILL_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """The same at once, without asking. Safe at any time."""
        self._signalled(signal.SIGKILL)
        self.pid = 0
        if self._late is not None:
            self._late.cancel()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                self._process.close()

    # Called by the loop --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast("asyncio.SubprocessTransport", transport)
        self.pid = self._process.get_pid()

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
            # It usually exits at the same moment, and its exit code says more.
            self._late = asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._finish)

    def process_exited(self) -> None:
        self._exited.set()
        if self._late is not None:
            self._late.cancel()
            self._finish()
        else:
            # A fork may hold the pipe open for ever, so its end is not waited for.
            self._late = asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._finish)

    def _finish(self) -> None:
        if not self._over:
            self._over = True
            self._ended(self._reason())

    def _reason(self) -> str:
        code = self._process.get_returncode() if self._process is not None else None
        how = "it closed its output" if code is None else _how(code)
        words = self._said.decode("utf-8", "replace").strip().splitlines()
        return f"{how}: {words[-1].strip()[:300]}" if words else how

    def _pipe(self, fd: int) -> asyncio.WriteTransport | None:
        if self._process is None:
            return None
        return cast("asyncio.WriteTransport | None", self._process.get_pipe_transport(fd))

    def _signalled(self, number: signal.Signals) -> bool:
        """Whether there was a process to signal."""
        if not self.pid:
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True  # some systems say so of members that have ended and were not collected yet
        return True

    async def _group_gone(self, seconds: float) -> bool:
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while clock() < deadline:
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                return True
            except PermissionError:
                pass
            await asyncio.sleep(LOOK_SECONDS)
        return False


def environment(configured: Mapping[str, str]) -> dict[str, str]:
    """What a child sees: a few plain variables of ours, and what the operator wrote down."""
    ours = {name: os.environ[name] for name in INHERITED if name in os.environ}
    # a value that starts like this was a shell function once, and some shells still run it
    return {name: value for name, value in ours.items() if not value.startswith("()")} | dict(configured)


def _missing(spec: StdioSpec) -> str:
    if spec.cwd is not None and not Path(spec.cwd).is_dir():
        return f"there is no folder {spec.cwd}"
    return f"there is no program {spec.command}"


def _how(code: int) -> str:
    if code >= 0:
        return f"it ended with code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"
