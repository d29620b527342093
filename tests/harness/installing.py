"""Installing what some tests play against, once, where the package registries can be reached."""

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BRIEF_NETWORK = {"UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "1", "NPM_CONFIG_FETCH_RETRIES": "1"}
"""A registry that is out of reach should be found so in seconds."""


class NotMade(Exception):
    """What was to be installed could not be; the message is the last that the installer said."""


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Waits for another run of the tests that makes the same at this moment."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def run_installer(command: list[str], folder: Path, patience: float) -> str:
    """What it wrote to its standard output."""
    environment = {**os.environ, **BRIEF_NETWORK, "UV_CUSTOM_COMPILE_COMMAND": "make lock"}
    try:
        done = subprocess.run(  # noqa: PLW1510 - the failure is looked at below, with what was said
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=patience
        )
    except subprocess.TimeoutExpired:
        raise NotMade(f"`{command[0]}` did not end in {patience:g} s") from None
    except OSError as error:
        raise NotMade(f"{command[0]}: {error}") from error
    if done.returncode:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NotMade(" / ".join(said[-3:]) or f"`{command[0]}` ended with {done.returncode}")
    return done.stdout
