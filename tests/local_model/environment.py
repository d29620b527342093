"""Makes the environment of the local model, once, and starts its server. Where the packages cannot be had, says why."""

import asyncio
import contextlib
import hashlib
import platform
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.harness.installing import alone, run_installer

ROOT = Path(__file__).resolve().parents[2]
LOCK = Path(__file__).parent / "requirements.txt"
SERVER = Path(__file__).parent / "server.py"
CACHE = ROOT / ".cache" / "local-model"
MAKING_PATIENCE = 120.0
"""Seconds for 130 MB of packages."""
START_PATIENCE = 30.0
"""Seconds until the model is loaded; one, on an idle machine."""
STOP_PATIENCE = 10.0


def made() -> Path:
    """The environment's interpreter. A run that makes the same environment at this moment is waited for."""
    seed = f"{sys.version_info[:2]} {platform.machine()} {sys.platform}".encode() + LOCK.read_bytes()
    folder = CACHE / hashlib.sha256(seed).hexdigest()[:12]
    interpreter = folder / "bin" / "python"
    with alone(CACHE / "lock"):
        if not (folder / ".made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            uv = [sys.executable, "-m", "uv", "--quiet"]
            run_installer([*uv, "venv", "--python", sys.executable, str(folder)], ROOT, MAKING_PATIENCE)
            wanted = ["--python", str(interpreter), "--no-deps", "--require-hashes", "-r", str(LOCK)]
            run_installer([*uv, "pip", "install", *wanted], ROOT, MAKING_PATIENCE)
            (folder / ".made").touch()
    return interpreter


@contextlib.asynccontextmanager
async def model_server(interpreter: Path) -> AsyncIterator[str]:
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
