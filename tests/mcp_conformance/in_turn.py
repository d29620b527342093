"""Starts the driver, a few at a time: the suite starts all scenarios at once, and they have time limits of their own."""

import asyncio
import contextlib
import fcntl
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

AT_ONCE = 2
LOOK_SECONDS = 0.1


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Wait for one of the places."""
    places = [Path(tempfile.gettempdir()) / f"callgate-conformance-{os.getuid()}-{number}" for number in range(AT_ONCE)]
    files = [place.open("w") for place in places]
    try:
        while not any(map(_is_ours, files)):
            time.sleep(LOOK_SECONDS)
        yield
    finally:
        for file in files:
            file.close()


def _is_ours(file: "object") -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[arg-type]
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    with turn():
        from tests.mcp_conformance.driver import main

        asyncio.run(
            main(
                sys.argv[-1],
                os.environ.get("MCP_CONFORMANCE_SCENARIO", ""),
                json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}"),
            )
        )
