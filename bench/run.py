"""What a request costs, and whether that has grown: `make bench`. `make bench-check` is the quick half of it, for CI.

Every kind of request in `bench/works.py` is measured by `bench/inside.py`, in a process of its own: its CPU time, as a
ratio to a fixed piece of work done in the same moments, and its bytecode instructions, which are exact to half a percent. Beside them stand
what a start costs, and what memory is held when idle and after twenty thousand requests. Each is held against
`bench/baseline.json`, and fails when it is more than 15 % above it. A ratio that is too high is measured again, in another
process, until it was low twice: a neighbour on the machine goes away, what the code has become dearer by does not.

    python bench/run.py                 measure and compare
    python bench/run.py --check         the same from one round instead of three
    python bench/run.py --only turn     some of it, by a part of the name
    python bench/run.py --write         write the baseline anew, from five rounds

Ratios depend on the processor and instructions on the version of Python. The baseline says what it was measured with, and
what cannot be compared here is shown, said aloud, and not compared.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "app"), str(HERE.parent)]

from bench import reference, wire
from bench.served import KEY, folder, served
from bench.works import WORKS

BASELINE = HERE / "baseline.json"
ALLOWED = 1.15
ALLOWED_BESIDE_CHAT = 1.4
"""How much dearer, in instructions, another API may be than chat completions with the same work. A response is also kept."""
CHECK_ROUNDS, ROUNDS, WRITE_ROUNDS = 1, 3, 5
AGAIN = 6
"""How often what is too dear is measured again, until it was not so twice."""
PATIENCE = 75.0
"""Seconds after which nothing is measured again that has been measured three times."""
LOAD = 20_000
"""Requests after which memory is looked at."""
QUIET = 1.0
"""The load average up to which a machine is fit for writing a baseline."""
UNSTEADY = 1.1
"""The dearest round over the cheapest, from which on a baseline says more about the machine."""

STEADY = {"PYTHONHASHSEED": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 28), "MALLOC_MMAP_THRESHOLD_": str(1 << 28)}
"""The same hashes, and so the same dicts, each time; and large buffers that glibc keeps when they are freed. Otherwise it is
chance, by what the process did before, whether it gives them back and fetches them again at each request of 100 KB."""
START, MODULES = "start", "modules at the start"
IDLE, LOADED = "MB when idle", f"MB after {LOAD:,} requests"
OF_A_PROCESS = (MODULES, IDLE, LOADED)


@dataclass(frozen=True)
class Machine:
    """What figures depend on beside the code."""

    python: str
    processor: str

    @staticmethod
    def this() -> "Machine":
        version = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
        return Machine(version, f"{platform.machine()}, {_processor()}")


def _processor() -> str:
    """Virtual machines often keep the processor's name to themselves, but not its family and model."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return f"{said.get('model name', '')} (family {said.get('cpu family')}, model {said.get('model')})"


@dataclass
class Figures:
    """What was found, by the names of the works."""

    ratios: dict[str, float] = field(default_factory=dict)
    """CPU time, in thousandths of the reference; of the start, in whole ones."""
    instructions: dict[str, float] = field(default_factory=dict)
    process: dict[str, float] = field(default_factory=dict)
    """Modules and megabytes of a process."""

    def comparable(self, other: "Figures") -> Iterator[tuple[str, str, float, float]]:
        """Kind, name, and the figure here and there."""
        for kind, found in asdict(self).items():
            there = getattr(other, kind)
            for name, figure in found.items():
                if name in there:
                    yield kind, name, figure, there[name]


@dataclass
class Baseline:
    machine: Machine
    figures: Figures

    @staticmethod
    def read(file: Path) -> "Baseline | None":
        if not file.exists():
            return None
        kept = json.loads(file.read_text())
        return Baseline(Machine(**kept.pop("machine")), Figures(**kept))

    def write(self, file: Path) -> None:
        kept = {"machine": asdict(self.machine), **asdict(self.figures)}
        file.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")

    def fit_for(self, here: Machine) -> Figures:
        """What of it holds on this machine."""
        if self.machine.python != here.python:
            return Figures()
        if self.machine.processor != here.processor:
            return Figures(instructions=self.figures.instructions, process=self.figures.process)
        return self.figures


def dearer(found: Figures, baseline: Figures) -> set[tuple[str, str]]:
    """Kind and name of what is further above the baseline than is allowed."""
    return {(kind, name) for kind, name, here, there in found.comparable(baseline) if here > there * ALLOWED}


def dearer_than_chat(found: Figures) -> dict[str, float]:
    """The requests of other APIs that cost too much more than the chats that do the same."""
    counted = found.instructions
    ratios = {
        work.name: counted[work.name] / counted[work.like]
        for work in WORKS
        if work.like in counted and work.name in counted
    }
    return {name: ratio for name, ratio in ratios.items() if ratio > ALLOWED_BESIDE_CHAT}


def second_best(figures: list[float]) -> float:
    """Of what was measured several times: one low figure may be luck as well."""
    return sorted(figures)[:2][-1]


# Measuring ------------------------------------------------------------------------------------------------------------


@dataclass
class Measurements:
    """All rounds of one run."""

    rounds: list[Figures] = field(default_factory=list)
    shown: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """Microseconds and the floor's, for people."""

    def round(self, names: list[str], *, counted: bool) -> None:
        figures = Figures()
        works = [work.name for work in WORKS if work.name in names]
        if works:
            for name, found in _inside(works, counted=counted).items():
                self.shown.setdefault(name, []).append(found)
                figures.ratios[name] = found["ratio"]
                if counted:
                    figures.instructions[name] = found["instructions"]
        if not {START, *OF_A_PROCESS}.isdisjoint(names) and sys.platform == "linux":  # it is read from /proc
            found = asyncio.run(_process())
            self.shown.setdefault(START, []).append({"microseconds": found[START] * 1e6})
            figures.ratios[START] = found["ratio"]
            figures.process = {name: found[name] for name in OF_A_PROCESS}
        self.rounds.append(figures)

    def over_rounds(self, of: Callable[[list[float]], float]) -> Figures:
        kinds: dict[str, dict[str, list[float]]] = {}
        for figures in self.rounds:
            for kind, by in asdict(figures).items():
                for name, figure in by.items():
                    kinds.setdefault(kind, {}).setdefault(name, []).append(figure)
        return Figures(**{kind: {name: of(all_) for name, all_ in by.items()} for kind, by in kinds.items()})

    def unsteady(self) -> list[str]:
        """Works whose rounds differ, the outermost two of five left aside."""
        found: dict[str, list[float]] = {}
        for figures in self.rounds:
            for name, ratio in figures.ratios.items():
                found.setdefault(name, []).append(ratio)
        return [name for name, ratios in found.items() if sorted(ratios)[-2] > sorted(ratios)[1] * UNSTEADY]


def _inside(works: list[str], *, counted: bool) -> dict[str, dict[str, float]]:
    """One process, in which chance plays no part that can be kept out of it."""
    command = [sys.executable, str(HERE / "inside.py"), *works, *(["--counted"] if counted else [])]
    environment = {**os.environ, **STEADY}
    with tempfile.TemporaryFile() as log:
        ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=log, check=False)
        if ended.returncode:
            log.seek(0)
            sys.stderr.write(log.read().decode()[-4000:])
            raise SystemExit(f"bench/inside.py ended with {ended.returncode}")
    found: dict[str, dict[str, float]] = json.loads(ended.stdout)
    return found


async def _process() -> dict[str, float]:
    """The start of a process of its own, and its memory."""
    wire.Model.pace = wire.Pace()
    model = await wire.listening(wire.Model)
    with folder() as directory:
        with served(directory, model, "-X", "importtime") as process:  # which also warms the file cache
            modules = process.modules()
        before = _reference()
        with served(directory, model) as process:
            start, idle = process.cpu(), process.megabytes()
            unit = (before + _reference()) / 2
            clients = await wire.connected(process.port, KEY, WORKS[0], 16)
            await clients.ask(LOAD // 16)
            clients.leave()
            return {
                START: start,
                "ratio": start / unit,
                MODULES: modules,
                IDLE: idle,
                LOADED: process.megabytes(),
            }


def _reference() -> float:
    return statistics.median(reference.cost() for _ in range(60))


# Telling --------------------------------------------------------------------------------------------------------------


def table(found: Measurements, figures: Figures, baseline: Figures) -> None:
    bad = dearer(figures, baseline)
    print(f"{'':26} {'CPU':>11} {'floor':>10} {'ratio':>10} {'baseline':>10} {'instructions':>13} {'baseline':>10}")
    for name, shown in found.shown.items():
        cost = statistics.median(one["microseconds"] for one in shown)
        floor = statistics.median(one.get("floor", 0.0) for one in shown)
        row = f"{name:26} {cost:8.1f} µs {f'{floor:7.1f} µs' if floor else '':>10}"
        row += f" {figures.ratios[name]:10.1f} {_or_none(baseline.ratios.get(name)):>10}"
        if name in figures.instructions:
            row += f" {figures.instructions[name]:13,.0f} {_or_none(baseline.instructions.get(name), 0):>10}"
        print(row + ("  dearer" if {("ratios", name), ("instructions", name)} & bad else ""))
    for name, figure in figures.process.items():
        row = f"{name:49} {figure:10.1f} {_or_none(baseline.process.get(name)):>10}"
        print(row + ("  dearer" if ("process", name) in bad else ""))


def _or_none(figure: float | None, digits: int = 1) -> str:
    return "–" if figure is None else f"{figure:,.{digits}f}"


def warn_of_strangeness(baseline: Baseline | None, here: Machine) -> None:
    if baseline is None:
        print("WARNING: there is no baseline. Nothing is compared.")
    elif baseline.machine.python != here.python:
        print(f"WARNING: the baseline is of {baseline.machine.python}, this is {here.python}. Nothing is compared.")
    elif baseline.machine.processor != here.processor:
        print(
            f"WARNING: the baseline is of another processor ({baseline.machine.processor}; here {here.processor}).\n"
            "Ratios of CPU time are shown and not compared. Instructions and memory are."
        )


def main(only: str, *, check: bool, write: bool) -> int:
    """Zero when nothing has become dearer than is allowed, or the baseline was written."""
    began = time.monotonic()
    here, kept = Machine.this(), Baseline.read(BASELINE)
    baseline = kept.fit_for(here) if kept and not write else Figures()
    names = [name for name in [*(work.name for work in WORKS), START, *OF_A_PROCESS] if re.search(only, name)]
    if write and (load := os.getloadavg()[0]) > QUIET:
        print(f"WARNING: the machine is busy (load average {load:.1f}). Some ratios come out up to a tenth too low.")
    found = Measurements()
    for number in range(WRITE_ROUNDS if write else CHECK_ROUNDS if check else ROUNDS):
        found.round(names, counted=number == 0)
    if write:
        return _written(found, kept, here)
    figures = found.over_rounds(statistics.median)
    for number in range(AGAIN):
        bad = {name for kind, name in dearer(figures, baseline) if kind != "instructions"}
        if not bad or (number >= 2 and time.monotonic() - began > PATIENCE):
            break
        print(f"Measuring again: {', '.join(sorted(bad))}", flush=True)
        found.round([name for name in names if name in bad], counted=False)
        figures = found.over_rounds(second_best)
    table(found, figures, baseline)
    warn_of_strangeness(kept, here)
    beside = dearer_than_chat(figures)
    for name, ratio in beside.items():
        print(f"{name} takes {ratio:.2f} times what the same takes as a chat; {ALLOWED_BESIDE_CHAT} is allowed")
    return 1 if beside or dearer(figures, baseline) else 0


def _written(found: Measurements, kept: Baseline | None, here: Machine) -> int:
    figures = found.over_rounds(statistics.median)
    table(found, figures, Figures())
    if unsteady := found.unsteady():
        print(f"NOT WRITTEN: rounds differed by more than 10 %: {', '.join(unsteady)}. Is the machine busy?")
        return 1
    before = asdict(kept.figures) if kept and kept.machine == here else {}
    merged = {kind: {**before.get(kind, {}), **_rounded(by)} for kind, by in asdict(figures).items()}
    Baseline(here, Figures(**merged)).write(BASELINE)
    return 0


def _rounded(by: dict[str, float]) -> dict[str, float]:
    return {name: round(figure, 1) for name, figure in by.items()}


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--only", default="", help="works whose name matches")
    reader.add_argument("--check", action="store_true", help="one round, and more only of what is too dear")
    reader.add_argument("--write", action="store_true", help="write the baseline anew")
    given = reader.parse_args()
    sys.exit(main(given.only, check=given.check, write=given.write))
