"""Makes the environment of the local model, once, and starts its server. Where the packages cannot be had, says why."""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = Path(__file__).parent / "requirements.txt"
SERVER = Path(__file__).parent / "server.py"
CACHE = ROOT / ".cache" / "local-model"
MAKING_PATIENCE = 120.0
"""Seconds for 130 MB of packages."""
START_PATIENCE = 30.0
"""Seconds until the model is loaded; one, on an idle machine."""
STOP_PATIENCE = 10.0
BRIEF_NETWORK = {"UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "1"}


class NotMade(Exception):
    """The environment could not be made; the message is the last that the installer said."""


def made() -> Path:
    """The environment's interpreter. A run that makes the same environment at this moment is waited for."""
    seed = f"{sys.version_info[:2]} {platform.machine()} {sys.platform}".encode() + LOCK.read_bytes()
    folder = CACHE / hashlib.sha256(seed).hexdigest()[:12]
    interpreter = folder / "bin" / "python"
    with _alone():
        if not (folder / ".made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            uv = [sys.executable, "-m", "uv", "--quiet"]
            _run([*uv, "venv", "--python", sys.executable, str(folder)])
            wanted = ["--python", str(interpreter), "--no-deps", "--require-hashes", "-r", str(LOCK)]
            _run([*uv, "pip", "install", *wanted])
            (folder / ".made").touch()
    return interpreter


@contextlib.asynccontextmanager
async def serving(interpreter: Path) -> AsyncIterator[str]:
    """The server as a child on a loopback port of its own; gives the base URL of its API."""
    process = await asyncio.create_subprocess_exec(
        str(interpreter),
        str(SERVER),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_PATIENCE):
            url = (await process.stdout.readline()).decode().strip()
        assert url.startswith("http://127.0.0.1:"), f"the model's server said {url!r} and ended"
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        async with asyncio.timeout(STOP_PATIENCE):
            await process.communicate()


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(  # noqa: PLW1510 - the failure is looked at below, with what was said
            command, env={**os.environ, **BRIEF_NETWORK}, capture_output=True, text=True, timeout=MAKING_PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise NotMade(f"`{command[0]}` did not end in {MAKING_PATIENCE:g} s") from None
    if done.returncode:
        raise NotMade(" / ".join(done.stderr.split("\n")[-4:]).strip() or f"it ended with {done.returncode}")


@contextmanager
def _alone() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
