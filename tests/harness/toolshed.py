"""The tools that tests offer: real functions with type hints, deterministic, and without state between calls.

Recordings name them; `make_config` offers them by import path. `held` lets a test hold the one that waits.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from typing import Literal

from callgate.calls.outcome import Image
from callgate.tools.kinds.python.authoring import ToolError

WEATHER = {"Lisbon": 21, "Oslo": 4, "São Paulo": 27, "東京": 18}
HANDBOOK = ["Holidays are booked in the portal.", "The office opens at eight.", "Keys are lent by the front desk."]


class Running:
    """What the waiting tool is doing, for tests that share its event loop."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.gate = asyncio.Event()


_running: Running | None = None


@contextlib.asynccontextmanager
async def held() -> AsyncIterator[Running]:
    """Puts `wait_for_gate` in the hands of a test that shares its event loop."""
    global _running  # noqa: PLW0603 - the tool is found by import path and can be given nothing
    _running = Running()
    try:
        yield _running
    finally:
        _running = None


async def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """Current weather for a city."""
    degrees = WEATHER.get(city)
    if degrees is None:
        raise ToolError(f"No weather station in {city}.")
    return f"{degrees} C in {city}" if unit == "celsius" else f"{degrees * 9 / 5 + 32:.0f} F in {city}"


async def search_docs(query: str, limit: int = 1) -> str:
    """Full text search over the handbook."""
    found = [line for line in HANDBOOK if query.lower() in line.lower()][:limit]
    return "\n".join(found) or "nothing found"


async def get_time() -> str:
    """Current server time."""
    return "12:00"


def add(a: int, b: int) -> int:
    """Adds two whole numbers. Not async, so that it runs in a thread."""
    return a + b


async def send_mail(to: str, text: str) -> str:
    """Sends a mail. The post office is always closed."""
    message = f"Mail to {to} was refused: the mailbox is full."
    raise ToolError(message)


async def echo(text: str) -> str:
    """Gives the text back."""
    return text


REPORT_BYTES = 60_000


async def report(number: int) -> str:
    """One of the reports: sixty kilobytes, with one fact in the middle."""
    line = f"Report {number} has nothing to say here. "
    filling = line * (REPORT_BYTES // len(line) // 2)
    return f"{filling}The secret of report {number} is {number * 7919}. {filling}"


PHOTO_BYTES = 30_000


async def photo(number: int) -> Image:
    """One of the photos; the first and the fourth are the same."""
    return photo_of(number)


def photo_of(number: int) -> Image:
    seed = b"photo %d" % (1 if number == 4 else number)
    return Image(b"\x89PNG\r\n\x1a\n" + hashlib.shake_256(seed).digest(PHOTO_BYTES), "image/png")


async def wait_for_gate(label: str = "") -> str:
    """Waits until the test opens the gate."""
    running = _running
    assert running is not None, "no test holds this tool: use `toolshed.held`"
    running.started.set()
    try:
        await running.gate.wait()
    except asyncio.CancelledError:
        running.cancelled.set()
        raise
    return f"waited {label}".strip()


steps: list[str] = []
"""When calls of `step` and `look` began and ended: `+label`, `-label`. Tests that look clear it first."""
STEP_TURNS = 30
"""Turns of the event loop in which a call that waits for no other has begun."""


async def step(label: str) -> str:
    """Notes its beginning and its end, and gives other calls the time to begin in between."""
    steps.append(f"+{label}")
    for _ in range(STEP_TURNS):
        await asyncio.sleep(0)
    steps.append(f"-{label}")
    return label


async def look(label: str) -> str:
    """The same, of a tool that only reads."""
    return await step(label)


SAFETY: dict[str, Literal["read_only", "write"]] = {
    "get_weather": "read_only",
    "search_docs": "read_only",
    "get_time": "read_only",
    "add": "read_only",
    "send_mail": "write",
    "echo": "read_only",
    "report": "read_only",
    "photo": "read_only",
    "wait_for_gate": "write",
    "step": "write",
    "look": "read_only",
}
"""Every tool of this module, and what it may do."""
