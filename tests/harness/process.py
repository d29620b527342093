"""The command itself, as a child process with a config file of its own."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.scale import LONG
from tests.harness.forking import PYTHON_PATH, Forked, can_be_forked

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"http://127\.0\.0\.1:(\d+)")
START_PATIENCE = 40.0
"""Seconds until the child listens; it imports everything, on a machine that may be busy."""
STOP_PATIENCE = 30.0
LINE_LIMIT = 4 * 1024 * 1024


class ChildFailed(AssertionError):
    """The child did not do what it was started for; the message carries its log."""


@dataclass(slots=True)
class Child:
    """A running command: its log as it comes, and its end."""

    process: asyncio.subprocess.Process | Forked
    lines: list[str] = field(default_factory=list)
    url: str = ""
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: bool = False

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    async def line(self, pattern: str | re.Pattern[str], within: float = START_PATIENCE) -> re.Match[str]:
        """Waits for a line of the log that has the pattern in it."""
        wanted, seen = re.compile(pattern), 0
        try:
            async with asyncio.timeout(within):
                while True:
                    for line in self.lines[seen:]:
                        if match := wanted.search(line):
                            return match
                    seen = len(self.lines)
                    if self._ended:
                        raise ChildFailed(f"it ended without a line like {wanted.pattern!r}:\n{self.log}")
                    await self._news.wait()
        except TimeoutError:
            raise ChildFailed(f"no line like {wanted.pattern!r} in {within} s:\n{self.log}") from None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self, within: float = STOP_PATIENCE) -> int:
        """Waits for the end of the process and gives its exit code."""
        try:
            async with asyncio.timeout(within):
                return await self.process.wait()
        except TimeoutError:
            raise ChildFailed(f"still running after {within} s:\n{self.log}") from None

    async def listen(self, *streams: asyncio.StreamReader | None) -> None:
        """Takes the log down until the child closes its end."""
        async with asyncio.TaskGroup() as group:
            for stream in filter(None, streams):
                group.create_task(self._listen(stream))
        self._ended = True
        self._signal()

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self.lines.append(line.decode(errors="replace").rstrip())
            self._signal()

    def _signal(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


@contextlib.asynccontextmanager
async def child(
    arguments: Sequence[str],
    *,
    module: str = "callgate",
    command: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    fresh: bool = LONG,
) -> AsyncIterator[Child]:
    """Runs `python -m callgate`, or another command, with these arguments in a process group of its own, which is ended
    on leaving. Callgate is forked with what it imports, and started by a fresh interpreter where memory and starting matter."""
    variables = child_environment(environment)
    process: asyncio.subprocess.Process | Forked
    if module == "callgate" and not command and not fresh and can_be_forked(environment or {}):
        process = await Forked.start(arguments, folder or ROOT, variables, LINE_LIMIT)
    else:
        process = await asyncio.create_subprocess_exec(
            *(command or (sys.executable, "-m", module)),
            *arguments,
            cwd=folder or ROOT,
            env=variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=LINE_LIMIT,
        )
    started = Child(process)
    listening = asyncio.create_task(started.listen(process.stdout, process.stderr), name="log of the child")
    try:
        yield started
    finally:
        await _end(process)
        await listening


@contextlib.asynccontextmanager
async def serving_command(
    config: Path,
    *options: str,
    command: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    fresh: bool = LONG,
) -> AsyncIterator[Child]:
    """`callgate serve` with a config file, on a free port; ready when it names its address in its log."""
    arguments = ["serve", "--config", str(config), "--host", "127.0.0.1", "--port", "0", *options]
    async with child(arguments, command=command, environment=environment, folder=folder, fresh=fresh) as started:
        started.url = (await started.line(READY)).group(0)
        yield started


async def output_of(
    *command: str | Path, seconds: float, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> tuple[bytes, str]:
    """What a program writes to its standard output, and its log, when it has ended; killed beyond that time."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(seconds):
            output, log = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output, log.decode(errors="replace")


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours without what would change how the product is configured; importable from any folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CALLGATE_")}
    return {**kept, "PYTHONPATH": PYTHON_PATH, "PYTHONUNBUFFERED": "1", **(more or {})}


async def _end(process: asyncio.subprocess.Process | Forked) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(STOP_PATIENCE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        # children of the child that outlived it hold its pipes open
        os.killpg(process.pid, signal.SIGKILL)
