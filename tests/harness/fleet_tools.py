"""Tools that run on workers of the tests."""

import asyncio
import os
import re
import signal
import time
from pathlib import Path

from callgate import Context, ToolError


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def add_later(a: int, b: int) -> int:
    """Add two numbers, in the event loop."""
    await asyncio.sleep(0)
    return a + b


def nap(seconds: float, marks: str = "", label: str = "") -> str:
    """Sleep, as a plain function does, with a mark before and behind it."""
    _mark(marks, f"begin {label} {os.getpid()}")
    time.sleep(seconds)
    _mark(marks, f"end {label} {os.getpid()}")
    return "rested"


def hold(marks: str, until: str) -> str:
    """Wait until a file exists, with a mark before and behind it."""
    _mark(marks, f"begin hold {os.getpid()}")
    while not Path(until).exists():
        time.sleep(0.01)
    _mark(marks, f"end hold {os.getpid()}")
    return "held"


def spin(marks: str) -> str:
    """Stay in C for ever, and let no other thread run."""
    _mark(marks, f"begin spin {os.getpid()}")
    re.match(r"(a+)+$", "a" * 64 + "b")
    return "dizzy"


def climb(context: Context, steps: int) -> str:
    """Report each step."""
    for step in range(steps):
        context.progress(f"step {step}", step / steps)
        time.sleep(0.02)
    return f"{steps} steps, {context.idempotency_key}"


def die() -> None:
    """End the process."""
    os.kill(os.getpid(), signal.SIGKILL)


def long_text(size: int) -> str:
    return "x" * size


def refuse() -> None:
    raise ToolError("not today")


def _mark(marks: str, line: str) -> None:
    if marks:
        with Path(marks).open("a") as file:
            file.write(f"{line}\n")
