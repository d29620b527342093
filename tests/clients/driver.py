"""A driver: the small program that plays one client, in a process of its own. A line in, a line out, both JSON.

    {"do": "streamed", "base_url": ..., "key": ..., "model": ..., "prompt": ...}   ->   {"text": ..., "finish": ...}

What a driver answers is the same whichever client it plays, see `Said`. It goes on with the next client that it plays too:
starting one means importing the client, which takes up to four seconds.
"""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.clients.clients import Client
from tests.harness.environment import NODE, Environment

DRIVERS = Path(__file__).parent / "drivers"
PATIENCE = 50.0
"""Seconds for one scenario, the driver's start included when it is the first."""
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "AI_SDK_LOG_WARNINGS": "false",
    "NO_PROXY": "127.0.0.1",
    "PYTHONUNBUFFERED": "1",
}
"""Keeps clients from sending anything to others than the product."""


class DriverFailed(AssertionError):
    """The driver ended, or answered nothing; the message carries what it wrote on its stderr."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An exception of the client's: its own type, and what it says of the answer."""

    type: str
    message: str
    status: int | None = None
    code: str | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """What a client made of a scenario. What a scenario has nothing to say of keeps its default."""

    text: str = ""
    finish: str | None = None
    usage: list[int] | None = None
    """Prompt, completion and total tokens, as the client counts them."""
    pieces: int = 0
    """In how many pieces the text came."""
    seen: list[str] = field(default_factory=list)
    """Names of all tool calls that the client was shown."""
    ran: list[list[Any]] = field(default_factory=list)
    """Its own tools that the client ran: name and arguments."""
    models: list[str] = field(default_factory=list)
    parsed: dict[str, Any] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    error: Fault | None = None

    @classmethod
    def read(cls, answer: dict[str, Any]) -> Self:
        error = answer.pop("error", None)
        return cls(**answer, error=Fault(**error) if error else None)


class Driver:
    """The running driver of a client, or of one after another."""

    def __init__(self, client: Client) -> None:
        self.client = client
        home = Environment(client.environment)
        path = (beside_its_packages(home.folder) if client.environment == NODE else DRIVERS) / client.script
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._process = subprocess.Popen(
            [str(home.interpreter), str(path)],
            cwd=home.folder,
            env={name: os.environ[name] for name in KEPT if name in os.environ} | QUIET,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            encoding="utf-8",
        )

    def plays(self, client: Client) -> bool:
        """Whether it runs and is the program of this client too, which is then a flavour of the other."""
        same = (client.environment, client.script) == (self.client.environment, self.client.script)
        return same and self._process.poll() is None

    async def ask(self, do: str, **what: Any) -> Said:
        """Has a scenario played, and gives what the client made of it."""
        try:
            async with asyncio.timeout(PATIENCE):
                line = await asyncio.to_thread(self._exchange, json.dumps({"do": do, **what}))
        except TimeoutError:
            # the thread waits for a line: its end is the end of the process
            self._process.kill()
            raise DriverFailed(f"no answer to {do!r} in {PATIENCE:g} s\n{self._log()}") from None
        if not line:
            raise DriverFailed(f"the driver ended while it played {do!r}\n{self._log()}")
        return Said.read(json.loads(line))

    def close(self) -> None:
        """Ends it, by the end of its input first."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(5)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._stderr.close()

    def _exchange(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return ""
        return self._process.stdout.readline()

    def _log(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")[-4000:]


def beside_its_packages(folder: Path) -> Path:
    """The Node drivers, copied to where Node looks for what they import: upwards from the script."""
    place = folder / "drivers"
    place.mkdir(exist_ok=True)
    for script in DRIVERS.glob("*.mjs"):
        copy = place / script.name
        if not copy.exists() or copy.read_bytes() != script.read_bytes():
            # whole at once: another run may be about to read it
            shutil.copy(script, copy.with_suffix(f".{os.getpid()}"))
            copy.with_suffix(f".{os.getpid()}").replace(copy)
    return place
