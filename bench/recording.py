"""What recording runs costs, all threads counted: `make bench ARGS=bench/recording.py`.

`bench/run.py` takes slices of some milliseconds and their median, and is blind to a thread that works four times a second.
Here slices take some tenths of a second, go off, on, on, off, and end only when everything is written; the CPU time is that of
all threads of the process. What clients and model take by themselves is taken off. The first row compares off with off,
and says how far the others are to be trusted.

    python bench/recording.py              twelve rounds
    python bench/recording.py --rounds 1   a quick look
    python bench/recording.py "tool turn, runs: all"    one row
    python bench/recording.py --count      instructions alone, some seconds on any machine
    python bench/recording.py --check      fails beyond what is allowed
    python bench/recording.py --keyless    as one person serves it: no keys, no file, texts in memory
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
from bench.inside import Measured, instructions
from bench.instructions import change
from bench.served import KEY, configured, folder, free_port
from bench.works import CHUNKS, DONE, WORKS, Work, question
from callgate.api import endpoint, recording
from callgate.config.load import load
from callgate.recorder.writer import BATCH_SECONDS
from callgate.records.policy import RecordPolicy
from callgate.runtime.manager import RuntimeManager
from callgate.server import serve as server

SLICE = 0.4
"""Seconds of CPU that a slice takes, about: longer than a run may wait to be written."""
ROUNDS = 12
CHUNK_ALLOWED = 1.02
"""Recording does nothing at a chunk; but timers may fall into what is counted."""
AT_ONCE = 16


@dataclass(frozen=True)
class Compared:
    """Two ways of recording, and by how much the second may be dearer."""

    name: str
    work: str
    off: RecordPolicy | None
    """None: requests know of no recorder."""
    on: RecordPolicy
    allowed: float | None = None


OFF, ALL = RecordPolicy(runs="off"), RecordPolicy()
WITH_CONTENT = RecordPolicy(content_bytes=65_536)
COMPARED = (
    Compared("off, and off again", "tool turn", OFF, OFF),
    Compared("off, against no recorder", "tool turn", None, OFF, 1.01),
    Compared("tool turn, runs: all", "tool turn", OFF, ALL, 1.10),
    Compared("tool turn, streamed", "tool turn, streamed", OFF, ALL, 1.10),
    Compared("tool turn, content: on", "tool turn", OFF, WITH_CONTENT),
    Compared("small, read", "small, read", OFF, ALL),
    Compared("small, passed on, as it is set", "small, passed on", OFF, ALL, 1.01),
    Compared("small, passed on, all recorded", "small, passed on", OFF, RecordPolicy(passed="all")),
    Compared("50 chunks, their run recorded", "paced chunk, read", OFF, ALL),
)
AGAIN = Work("100 chunks", question("tools", "paced, and again", stream=True), expect=DONE)
COUNTED = (
    *(work for work in WORKS if work.name in {"tool turn", "small, read", "small, passed on", "paced chunk, read"}),
    AGAIN,
)


class NoRecorder:
    """In the place of `callgate.api.recording`, for requests that know of none."""

    @staticmethod
    def nothing(*given: object) -> None: ...

    begin = keep_unusual = end = nothing


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


def inside(rounds: int, chosen: list[Compared], *, keyless: bool) -> int:
    """Serve, and measure from inside."""
    found: dict[str, tuple[float, list[float]]] = {}
    counted: dict[str, list[int]] = {}
    managers: list[RuntimeManager] = []
    made = RuntimeManager.__init__

    def noted(self: RuntimeManager, *given: object, **named: object) -> None:
        managers.append(self)
        made(self, *given, **named)  # type: ignore[arg-type]

    RuntimeManager.__init__ = noted  # type: ignore[method-assign]
    model_socket = socket.create_server(("127.0.0.1", 0))
    Measured.beside = {wire.Model: model_socket}
    model = model_socket.getsockname()[1]
    wire.Model.pace = wire.Pace()
    with folder() as directory:
        sys.path.insert(0, str(directory))
        config = configured(directory, free_port(), model)
        if keyless:
            change(config, [{"keys": None, "data_dir": None}])
        loaded = load(config)

        async def look() -> None:
            for compared in chosen:
                work = next(work for work in WORKS if work.name == compared.work)
                found[compared.name] = await measured(
                    managers[0], work, compared, loaded.config.server.port, model, rounds
                )
            for policy in (None, OFF, ALL):
                record_as(managers[0], policy)
                for work in COUNTED:
                    count = await instructions(work, loaded.config.server.port)
                    counted.setdefault(work.name, []).append(count)

        Measured.look = staticmethod(look)
        server.DrainingServer = Measured  # type: ignore[misc]
        status = server.serve(loaded)
    print(json.dumps({"found": found, "counted": counted}))
    return status if len(found) == len(chosen) else 1


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


def record_as(manager: RuntimeManager, policy: RecordPolicy | None) -> None:
    setattr(endpoint, "recording", NoRecorder if policy is None else recording)  # noqa: B010 - mypy takes it for a module
    manager.current.record_as(policy or OFF)


async def slice_of(manager: RuntimeManager, clients: wire.Clients, times: int, policy: RecordPolicy | None) -> float:
    """CPU seconds of all threads, until all is written."""
    record_as(manager, policy)
    began = time.process_time()
    await clients.ask(times)
    # A slice that records nothing waits as long: a process that does nothing takes some time of the processor too.
    ends = time.monotonic() + BATCH_SECONDS
    while manager.shared.recorder.writer.has_waiting or time.monotonic() < ends:  # noqa: ASYNC110 - a thread empties it, and emits no event
        await asyncio.sleep(0.02)
    return time.process_time() - began


def main(rounds: int, chosen: list[Compared], *, check: bool, keyless: bool) -> int:
    ran = subprocess.run(
        [
            *(sys.executable, __file__, "--inside", "--rounds", str(rounds)),
            *(compared.name for compared in chosen),
            *(() if chosen else ("--count",)),
            *(("--keyless",) if keyless else ()),
        ],
        capture_output=True,
        check=False,
    )
    if ran.returncode:
        sys.stderr.write(ran.stderr.decode()[-4000:])
        return ran.returncode
    told = json.loads(ran.stdout)
    found = {name: Found(*figures) for name, figures in told["found"].items()}
    if chosen:
        print(f"{'':34} {'nothing recorded':>16} {'recorded':>18} {'allowed':>9}")
    failed = False
    for compared in chosen:
        one = found[compared.name]
        mean = statistics.mean(one.more)
        # What cannot be distinguished from noise is no failure: the least that it may be counts.
        bad = compared.allowed is not None and 1 + mean - one.spread > compared.allowed
        failed = failed or bad
        allowed = "" if compared.allowed is None else f"{(compared.allowed - 1):+.0%}"
        spread = "" if one.spread == float("inf") else f" ± {one.spread:.1%}"
        print(
            f"{compared.name:34} {one.microseconds:13.1f} µs {f'{mean:+.1%}{spread}':>18} {allowed:>9}{'  dearer' * bad}"
        )
    print("\n" * bool(chosen) + "Bytecode instructions of a request, on the event loop")
    counted = told["counted"]
    counted["a chunk"] = [
        (more - less) // CHUNKS for more, less in zip(counted["100 chunks"], counted["paced chunk, read"], strict=True)
    ]
    for name, (without, off, on) in counted.items():
        print(f"{name:34} without a recorder {without:6}, off {off - without:+}, recorded {on - off:+}")
    failed = failed or counted["a chunk"][2] > counted["a chunk"][1] * CHUNK_ALLOWED
    return int(check and failed)


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--rounds", type=int, default=ROUNDS)
    reader.add_argument("--count", action="store_true")
    reader.add_argument("--check", action="store_true")
    reader.add_argument("--keyless", action="store_true")
    reader.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    reader.add_argument("names", nargs="*", help="of the rows; all where none is named")
    given = reader.parse_args()
    named = [compared for compared in COMPARED if compared.name in given.names]
    rows = [] if given.count else named or list(COMPARED)
    if given.inside:
        sys.exit(inside(given.rounds, rows, keyless=given.keyless))
    sys.exit(main(given.rounds, rows, check=given.check, keyless=given.keyless))
