"""Tools that leave a mark in a file, so that another process can say afterwards what really ran, and how often."""

import asyncio
import os
import threading
import time
from pathlib import Path

MARKS = "COUNTING_FILE"
MEETING = 16
_meeting = threading.Barrier(MEETING)


async def count(label: str) -> str:
    """Leaves a mark."""
    _leave(label)
    return f"counted {label}"


def count_in_thread(label: str) -> str:
    """Leaves a mark, from a thread."""
    _leave(label)
    return f"counted {label}"


def meet(label: str) -> str:
    """Waits in its thread until so many others have come that there is a thread for each."""
    _meeting.wait(60)
    return f"met {label}"


async def count_slowly(label: str) -> str:
    """Leaves a mark, and takes its time to say so."""
    _leave(label)
    await asyncio.sleep(0.2)
    return f"counted {label}"


async def block() -> str:
    """Leaves a mark and keeps the event loop to itself."""
    _leave("blocking")
    time.sleep(60)  # noqa: ASYNC251 - that is the point
    return "never"


def _leave(label: str) -> None:
    descriptor = os.open(Path(os.environ[MARKS]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{label}\n".encode())
    finally:
        os.close(descriptor)


async def hang(label: str) -> str:
    """Leaves a mark, and another when it is let go; goes on once there is a file `<marks>.go`."""
    _leave(label)
    while not Path(os.environ[MARKS] + ".go").exists():  # noqa: ASYNC110, ASYNC240 - what lets it go is another process
        await asyncio.sleep(0.02)
    return f"let go {label}"


async def nap(seconds: float) -> str:
    """Leaves a mark when it begins and when it ends."""
    _leave(f"nap 1 {time.monotonic()!r}")
    try:
        await asyncio.sleep(seconds)
    finally:
        _leave(f"nap -1 {time.monotonic()!r}")
    return "rested"


def naps(marks: Path) -> list[tuple[float, int]]:
    """How many there were at once, from each moment on that changed it."""
    running, changes = 0, []
    for at, by in sorted((float(at), int(by)) for _, by, at in map(str.split, marks.read_text().splitlines())):
        running += by
        changes.append((at, running))
    return changes
