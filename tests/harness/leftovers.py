"""What a test leaves behind: threads, child processes and a set-up of logging that were not there before. Tasks are `conftest`'s,
which has the event loop."""

import logging
import os
import threading
import time
from collections.abc import Iterable

from tests.harness import forking

PATIENCE = 10.0
"""Seconds that what is ending gets to end: closing a server or a child takes a moment on a busy machine."""
OWN_THREADS = "/proc/self/task"
"""Each with a list of the children it has: to go through all processes of the machine takes milliseconds, twice a test."""


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
    """Process ids of our children that run, and of those that were forked for us; those that ended and wait to be reaped do not count."""
    listed = [_read(f"{OWN_THREADS}/{thread}/children") for thread in os.listdir(OWN_THREADS)]  # noqa: PTH208 - see `_read`
    helping = [pid for pid in forking.helpers() if pid is not None]
    listed += [_read(f"/proc/{pid}/task/{pid}/children") for pid in helping]
    return {pid for pids in listed for pid in map(int, pids.split()) if pid not in helping and _runs(pid)}


def new_children(before: set[int]) -> list[str]:
    """The command lines of children that came and stayed."""
    deadline = time.monotonic() + PATIENCE
    while (stayed := children() - before) and time.monotonic() < deadline:
        # nothing can be waited on here: whose children they are is what we are about to find out
        time.sleep(0.02)
    return sorted(_command(pid) for pid in stayed)


def logging_setup() -> tuple[int, bool]:
    """The level of the standard library's root logger, and whether records of it go to our log."""
    root = logging.getLogger()
    return root.level, any(type(handler).__module__ == "callgate.telemetry.logs" for handler in root.handlers)


def _runs(pid: int) -> bool:
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] not in ([], ["Z"])


def _read(path: str) -> str:
    """Empty where the process, or the thread, ended between the listing and the reading. Without `pathlib`: it happens twice a test."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""


def _command(pid: int) -> str:
    return f"{pid} {_read(f'/proc/{pid}/cmdline').replace(chr(0), ' ') or '(gone)'}".strip()
