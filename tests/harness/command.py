"""Commands of the command line that run to their end.

Where it matters what is imported and from where, a command is run by a fresh interpreter.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.harness.forking import become, forked
from tests.harness.process import ROOT, child_environment

PATIENCE = 150.0

Ran = subprocess.CompletedProcess[str]


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
        process = forked(_run, arguments, folder, variables, out, err)
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
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    become(arguments, folder, variables)
