"""Commands of the command line that run to their end, each in a process of its own that begins with the program imported.

Importing it takes half a second of the processor, and the tests run hundreds of commands: one process imports it, and is
forked for each. Where it matters what is imported and from where, a command is run by a fresh interpreter.
"""

import multiprocessing
import multiprocessing.forkserver
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.harness.process import ROOT, child_environment

PATIENCE = 150.0
IMPORTED = (
    "callgate.__main__",
    "callgate.commands",
    "callgate.application",
    "callgate.cli.making",
    "callgate.cli.own_tools",
)

Ran = subprocess.CompletedProcess[str]


def start_forking() -> None:
    """Starts the process that is forked, which ends with ours. It counts as a child of whichever test it is started in."""
    multiprocessing.set_forkserver_preload(list(IMPORTED))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", child_environment()["PYTHONPATH"])  # it imports before it is told any path
        multiprocessing.forkserver.ensure_running()


def run_command(
    *arguments: str, folder: Path = ROOT, environment: Mapping[str, str] | None = None, fresh: bool = False
) -> Ran:
    """`python -m callgate` with these arguments, in this folder, with more or other variables than ours."""
    variables = child_environment(environment)
    if fresh:
        return subprocess.run(
            [sys.executable, "-m", "callgate", *arguments],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    with tempfile.TemporaryDirectory() as written:
        out, err = Path(written) / "out", Path(written) / "err"
        process = multiprocessing.get_context("forkserver").Process(
            target=_run, args=(arguments, folder, variables, out, err)
        )
        process.start()
        process.join(PATIENCE)
        try:
            if process.exitcode is None:
                raise subprocess.TimeoutExpired(["callgate", *arguments], PATIENCE)
            return Ran(["callgate", *arguments], process.exitcode, out.read_text("utf-8"), err.read_text("utf-8"))
        finally:
            process.kill()
            process.join()
            process.close()


def _run(arguments: tuple[str, ...], folder: Path, variables: dict[str, str], out: Path, err: Path) -> None:
    """What an interpreter does before the program begins."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    installed = [each for each in sys.path if each.startswith((sys.prefix, sys.base_prefix))]
    sys.path[:] = [str(folder), *variables["PYTHONPATH"].split(os.pathsep), *installed]
    sys.argv = ["callgate", *arguments]
    from callgate.__main__ import main

    main()
