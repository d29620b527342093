"""What recording runs costs, all threads counted: `make bench ARGS=bench/recording.py`.

`bench/run.py` takes slices of some milliseconds and their median, and is blind to a thread that works four times a second.
Here slices take some tenths of a second, go off, on, on, off, and end only when everything is written; the CPU time is that of
all threads of the process. What clients and model take by themselves is taken off. The first row compares off with off,
and says how far the others are to be trusted.

    python bench/recording.py              twelve rounds
    python bench/recording.py --rounds 1   a quick look
    python bench/recording.py --check      fails beyond what is allowed
"""

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "app"), str(ROOT)]

from bench import wire
from bench.inside import Measured
from bench.served import KEY, configured, folder, free_port
from bench.works import WORKS, Work
from callgate.config.load import load
from callgate.recorder.recorder import BATCH_SECONDS, RecordPolicy
from callgate.runtime.manager import RuntimeManager
from callgate.server import serve as server

SLICE = 0.4
"""Seconds of CPU that a slice takes, about: longer than a run may wait to be written."""
ROUNDS = 12
AT_ONCE = 16


@dataclass(frozen=True)
class Compared:
    """Two ways of recording, and by how much the second may be dearer."""

    name: str
    work: str
    off: RecordPolicy
    on: RecordPolicy
    allowed: float | None = None


OFF, ALL = RecordPolicy(runs="off"), RecordPolicy()
WITH_CONTENT = RecordPolicy(content_bytes=65_536)
COMPARED = (
    Compared("off, and off again", "tool turn", OFF, OFF),
    Compared("tool turn, runs: all", "tool turn", OFF, ALL, 1.05),
    Compared("tool turn, streamed", "tool turn, streamed", OFF, ALL, 1.05),
    Compared("tool turn, content: on", "tool turn", OFF, WITH_CONTENT),
    Compared("small, passed on, as it is set", "small, passed on", OFF, ALL, 1.01),
    Compared("small, passed on, all recorded", "small, passed on", OFF, RecordPolicy(passed="all")),
    Compared("paced chunk, its run recorded", "paced chunk, read", OFF, ALL),
)


@dataclass
class Found:
    microseconds: float
    """Of one request where nothing is recorded."""
    more: list[float]
    """How much of that recording takes, a figure for each round."""

    @property
    def spread(self) -> float:
        """Of the mean: twice its standard error."""
        return 2 * statistics.stdev(self.more) / len(self.more) ** 0.5 if len(self.more) > 1 else float("inf")


def inside(rounds: int) -> int:
    """Serve, and measure from inside."""
    found: dict[str, tuple[float, list[float]]] = {}
    managers: list[RuntimeManager] = []
    made = RuntimeManager.__init__

    def noted(self: RuntimeManager, *given: object, **named: object) -> None:
        managers.append(self)
        made(self, *given, **named)  # type: ignore[arg-type]

    RuntimeManager.__init__ = noted  # type: ignore[assignment,method-assign]
    model_socket = socket.create_server(("127.0.0.1", 0))
    Measured.beside = {wire.Model: model_socket}
    model = model_socket.getsockname()[1]
    wire.Model.pace = wire.Pace()
    with folder() as directory:
        sys.path.insert(0, str(directory))
        loaded = load(configured(directory, free_port(), model))

        async def look() -> None:
            for compared in COMPARED:
                work = next(work for work in WORKS if work.name == compared.work)
                found[compared.name] = await measured(
                    managers[0], work, compared, loaded.config.server.port, model, rounds
                )

        Measured.look = staticmethod(look)
        server.DrainingServer = Measured  # type: ignore[misc]
        status = server.serve(loaded)
    print(json.dumps(found))
    return status if len(found) == len(COMPARED) else 1


async def measured(
    manager: RuntimeManager, work: Work, compared: Compared, port: int, model: int, rounds: int
) -> tuple[float, list[float]]:
    ours = await wire.connected(port, KEY, work, AT_ONCE)
    direct = await wire.connected(model, KEY, replace(work, expect=b""), AT_ONCE)
    await slice_of(manager, ours, 3, compared.on)
    each = await slice_of(manager, ours, 10, compared.off) / 10
    times = max(1, round(SLICE / each))
    least = min([await slice_of(manager, direct, times, compared.off) for _ in range(2)])
    off, more = [], []
    for _ in range(rounds):
        took = [
            await slice_of(manager, ours, times, policy) - least
            for policy in (compared.off, compared.on, compared.on, compared.off)
        ]
        off.append((took[0] + took[3]) / 2)
        more.append((took[1] + took[2]) / (took[0] + took[3]) - 1)
    ours.leave()
    direct.leave()
    return statistics.median(off) / times / AT_ONCE / work.per * 1e6, more


async def slice_of(manager: RuntimeManager, clients: wire.Clients, times: int, policy: RecordPolicy) -> float:
    """CPU seconds of all threads, until all is written."""
    runtime = manager.current
    runtime.record_as(policy)
    began = time.process_time()
    await clients.ask(times)
    # A slice that records nothing waits as long: a process that does nothing takes some time of the processor too.
    ends = time.monotonic() + BATCH_SECONDS
    while manager.shared.recorder.has_waiting or time.monotonic() < ends:  # noqa: ASYNC110 - a thread empties it, and tells nobody
        await asyncio.sleep(0.02)
    return time.process_time() - began


def main(rounds: int, *, check: bool) -> int:
    ran = subprocess.run(
        [sys.executable, __file__, "--inside", "--rounds", str(rounds)],
        capture_output=True,
        check=False,
    )
    if ran.returncode:
        sys.stderr.write(ran.stderr.decode()[-4000:])
        return ran.returncode
    found = {name: Found(*figures) for name, figures in json.loads(ran.stdout).items()}
    print(f"{'':34} {'nothing recorded':>16} {'recorded':>18} {'allowed':>9}")
    failed = False
    for compared in COMPARED:
        one = found[compared.name]
        mean = statistics.mean(one.more)
        # What cannot be told from noise is no failure: the least that it may be counts.
        bad = compared.allowed is not None and 1 + mean - one.spread > compared.allowed
        failed = failed or bad
        allowed = "" if compared.allowed is None else f"{(compared.allowed - 1):+.0%}"
        spread = "" if one.spread == float("inf") else f" ± {one.spread:.1%}"
        print(
            f"{compared.name:34} {one.microseconds:13.1f} µs {f'{mean:+.1%}{spread}':>18} {allowed:>9}{'  dearer' * bad}"
        )
    return int(check and failed)


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--rounds", type=int, default=ROUNDS)
    reader.add_argument("--check", action="store_true")
    reader.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = reader.parse_args()
    sys.exit(inside(given.rounds) if given.inside else main(given.rounds, check=given.check))
