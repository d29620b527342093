"""A Redis server of a test's own, on a port of loopback that was free, keeping nothing on disk."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.harness.ports import free_port

START_PATIENCE = 40.0


@contextlib.asynccontextmanager
async def redis_server(folder: Path, port: int | None = None) -> AsyncIterator[str]:
    """Runs redis-server and gives its URL; ready when it says so."""
    port = port or free_port()
    process = await asyncio.create_subprocess_exec(
        "redis-server",
        *("--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_PATIENCE):
            while line := await process.stdout.readline():
                if b"Ready to accept connections" in line:
                    break
            else:
                raise AssertionError("redis-server ended before it was ready")
        yield f"redis://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()
