"""What a test leaves behind: threads and child processes that were not there before. Tasks are `conftest`'s, which
has the event loop."""

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

PATIENCE = 2.0
"""Seconds that what is ending gets to end: closing a server or a child takes a moment on a busy machine."""


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.is_alive()}


def new_threads(before: set[threading.Thread], allowed: Iterable[str] = ()) -> list[str]:
    """The names of threads that came and stayed, but for those whose names start with an allowed word."""
    deadline = time.monotonic() + PATIENCE
    names = tuple(allowed)
    stayed = []
    for thread in threads() - before:
        if thread.name.startswith(names):
            continue
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            stayed.append(thread.name)
    return sorted(stayed)


def children() -> set[int]:
    """Process ids of our children that run; those that ended and wait to be reaped do not count."""
    own = str(os.getpid())
    return {pid for pid, (parent, state) in _processes() if parent == own and state != "Z"}


def new_children(before: set[int]) -> list[str]:
    """The command lines of children that came and stayed."""
    deadline = time.monotonic() + PATIENCE
    while (stayed := children() - before) and time.monotonic() < deadline:
        # nothing can be waited on here: whose children they are is what we are about to find out
        time.sleep(0.02)
    return sorted(_command(pid) for pid in stayed)


def _processes() -> Iterable[tuple[int, tuple[str, str]]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            # it ended between the listing and the reading
            continue
        state, parent, *_ = status.rpartition(")")[2].split()
        yield int(folder.name), (parent, state)


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return f"{pid} (gone)"
    return f"{pid} " + b" ".join(words).decode(errors="replace").strip()
