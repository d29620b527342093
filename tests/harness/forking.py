"""Processes of the command line that begin with the program imported.

Importing it takes half a second of the processor, and the tests start hundreds of processes: one imports it, and is forked for
each. What a process draws for itself alone it draws after that (`os.register_at_fork`), as workers of one server do.
"""

import asyncio
import atexit
import io
import multiprocessing
import multiprocessing.forkserver
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.resource_tracker import _resource_tracker
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON_PATH = f"{ROOT / 'app'}{os.pathsep}{ROOT}"
IMPORTED = (
    "callgate.__main__",
    "callgate.commands",
    "callgate.application",
    "callgate.cli.making",
    "callgate.cli.own_tools",
    "callgate.server.serve",
)
READ_AT_THE_START = ("PYTHON", "LD_", "MALLOC_", "LITELLM_")
"""Variables, by how they begin, that are read when an interpreter starts or a library is imported."""


def can_be_forked(variables: Mapping[str, str]) -> bool:
    """Whether a process with these variables beside ours is the same when it is forked."""
    return not any(name.startswith(READ_AT_THE_START) for name in variables)


class Forked:
    """A command in a process that is forked: what is used here of `asyncio.subprocess.Process`."""

    def __init__(self, process: ForkServerProcess, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader) -> None:
        assert process.pid is not None
        self.pid, self.stdout, self.stderr = process.pid, stdout, stderr
        self.returncode: int | None = None
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._loop.add_reader(process.sentinel, self._end)

    @classmethod
    async def start(
        cls, arguments: Sequence[str], folder: Path, variables: Mapping[str, str], line_limit: int
    ) -> "Forked":
        """`python -m callgate` with these arguments, in this folder, with these variables and a session of its own."""
        out, out_written = multiprocessing.Pipe(duplex=False)
        err, err_written = multiprocessing.Pipe(duplex=False)
        process = forked(run_to_pipes, tuple(arguments), folder, dict(variables), out_written, err_written)
        out_written.close()
        err_written.close()
        return cls(process, await _reader(out, line_limit), await _reader(err, line_limit))

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        self._loop.remove_reader(self._process.sentinel)
        self._process.join()
        self.returncode = self._process.exitcode
        self._process.close()
        self._ended.set()


async def _reader(connection: "Connection[object, object]", limit: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=limit)
    file = os.fdopen(os.dup(connection.fileno()), "rb", buffering=0)
    connection.close()
    await asyncio.get_running_loop().connect_read_pipe(lambda: _Read(reader), file)
    return reader


class _Read(asyncio.StreamReaderProtocol):
    """What is read to its end, and closed there: uvloop would leave it open."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


_starting = threading.Lock()


def forked(target: Callable[..., None], *arguments: object) -> ForkServerProcess:
    """A process that calls this, forked from the one that has imported the program."""
    with _starting, pytest.MonkeyPatch.context() as patched:
        multiprocessing.set_forkserver_preload(list(IMPORTED))
        patched.setenv("PYTHONPATH", PYTHON_PATH)  # it imports before it is told any path
        patched.setitem(sys.modules, "__main__", ModuleType("__main__"))  # or each would import pytest
        process = multiprocessing.get_context("forkserver").Process(target=target, args=arguments)
        process.start()
    return process


def helpers() -> tuple[int | None, ...]:
    """The process that is forked, and the one that Python starts beside it: they end with ours."""
    return multiprocessing.forkserver._forkserver._forkserver_pid, _resource_tracker._pid  # type: ignore[attr-defined]


def run_to_pipes(
    arguments: tuple[str, ...],
    folder: Path,
    variables: dict[str, str],
    out: "Connection[object, object]",
    err: "Connection[object, object]",
) -> None:
    """A command in a session of its own, whose output comes as it is written."""
    os.setsid()
    for number, connection in ((1, out), (2, err)):
        os.dup2(connection.fileno(), number)
        connection.close()
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8", errors, write_through=True)
        for number, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    become(arguments, folder, variables)


def become(arguments: tuple[str, ...], folder: Path, variables: dict[str, str]) -> None:
    """What an interpreter does before the program begins and after it has ended."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    installed = [each for each in sys.path if each.startswith((sys.prefix, sys.base_prefix))]
    sys.path[:] = [str(folder), *variables["PYTHONPATH"].split(os.pathsep), *installed]
    sys.argv = ["callgate", *arguments]
    from callgate.__main__ import main
    from callgate.state import sealing

    sealing._OF_PROCESS = secrets.token_hex()  # type: ignore[misc]  # workers of one server share it, and servers do not
    try:
        main()
    finally:
        atexit._run_exitfuncs()
