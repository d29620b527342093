"""What a request costs in counts, and whether that has grown: one half of `make bench-check`; `bench/compare.py` is the other.

Counted are the bytecode instructions of each kind of request in `bench/works.py` (`bench/inside.py`, in a process of its
own), the modules that a start loads, and the memory held when idle and after twenty thousand requests. No neighbour on the
machine changes them. Each is held against `bench/baseline.json`, and fails when it is more than 15 % above it.

    python bench/run.py                 count and compare
    python bench/run.py --only turn     some of it, by a part of the name
    python bench/run.py --write         write the baseline anew

Instructions depend on the version of Python: on another than the baseline's nothing is compared, which is said aloud.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "app"), str(HERE.parent)]

from bench import wire
from bench.served import KEY, folder, served, steady_environment
from bench.works import WORKS

BASELINE = HERE / "baseline.json"
ALLOWED = 1.15
ALLOWED_BESIDE_CHAT = 1.4
"""How much dearer, in instructions, another API may be than chat completions with the same work. A response is also kept, which takes four
thousand: much beside the smallest chat, and little beside a tool turn."""
LOAD = 20_000
"""Requests after which memory is looked at."""
MODULES, IDLE, LOADED = "modules at the start", "MB when idle", f"MB after {LOAD:,} requests"
OF_A_PROCESS = (MODULES, IDLE, LOADED)


@dataclass
class Figures:
    """Counts by the names of what was counted."""

    instructions: dict[str, float] = field(default_factory=dict)
    process: dict[str, float] = field(default_factory=dict)
    """Modules and megabytes of a process."""

    def rows(self) -> list[tuple[str, float]]:
        return [*self.instructions.items(), *self.process.items()]


@dataclass
class Baseline:
    python: str
    figures: Figures

    @staticmethod
    def read(file: Path) -> "Baseline | None":
        if not file.exists():
            return None
        text = json.loads(file.read_text())
        return Baseline(text.pop("python"), Figures(**text))

    def write(self, file: Path) -> None:
        text = json.dumps({"python": self.python, **asdict(self.figures)}, indent=2, ensure_ascii=False)
        file.write_text(text + "\n")


def this_python() -> str:
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


def dearer(figures: Figures, baseline: Figures) -> set[str]:
    """The names of what is further above the baseline than is allowed."""
    before = dict(baseline.rows())
    return {name for name, figure in figures.rows() if figure > before.get(name, figure) * ALLOWED}


def dearer_than_chat(figures: Figures) -> dict[str, float]:
    """The requests of other APIs that cost too much more than the chats that do the same."""
    instructions = figures.instructions
    ratios = {
        work.name: instructions[work.name] / instructions[work.like]
        for work in WORKS
        if work.like in instructions and work.name in instructions
    }
    return {name: ratio for name, ratio in ratios.items() if ratio > ALLOWED_BESIDE_CHAT}


# Counting -------------------------------------------------------------------------------------------------------------


def count(names: list[str]) -> Figures:
    figures = Figures()
    works = [work.name for work in WORKS if work.name in names]
    if works:
        figures.instructions = instructions_of(works)
    if not set(OF_A_PROCESS).isdisjoint(names) and sys.platform == "linux":  # it is read from /proc
        figures.process = asyncio.run(process_figures())
    return figures


def instructions_of(works: list[str]) -> dict[str, float]:
    """Counted in one process, in which chance plays no part that can be kept out of it."""
    command = [sys.executable, str(HERE / "inside.py"), *works]
    with tempfile.TemporaryFile() as log:
        process = subprocess.run(command, env=steady_environment(), stdout=subprocess.PIPE, stderr=log, check=False)
        if process.returncode:
            log.seek(0)
            sys.stderr.write(log.read().decode()[-4000:])
            raise SystemExit(f"bench/inside.py ended with {process.returncode}")
    return {name: counts["instructions"] for name, counts in json.loads(process.stdout).items()}


async def process_figures() -> dict[str, float]:
    """The modules of a start, and the memory of a process."""
    wire.Model.pace = wire.Pace()
    async with wire.listening(wire.Model) as model:
        with folder() as directory:
            with served(directory, model, "-X", "importtime") as process:  # which also warms the file cache
                modules = process.modules()
            with served(directory, model) as process:
                idle = process.megabytes()
                clients = await wire.connected(process.port, KEY, WORKS[0], 16)
                await clients.ask(LOAD // 16)
                clients.leave()
                return {MODULES: modules, IDLE: idle, LOADED: process.megabytes()}


# Telling --------------------------------------------------------------------------------------------------------------


def print_table(figures: Figures, baseline: Figures) -> None:
    before = dict(baseline.rows())
    too_dear = dearer(figures, baseline)
    print(f"{'':26} {'counted':>13} {'baseline':>13}")
    for name, figure in figures.rows():
        digits = 0 if name in figures.instructions else 1
        there = f"{before[name]:,.{digits}f}" if name in before else "–"
        print(f"{name:26} {figure:13,.{digits}f} {there:>13}" + ("  dearer" if name in too_dear else ""))


def main(only: str, *, write: bool) -> int:
    """Zero when nothing has become dearer than is allowed, or the baseline was written."""
    baseline = Baseline.read(BASELINE)
    names = [name for name in [*(work.name for work in WORKS), *OF_A_PROCESS] if re.search(only, name)]
    figures = count(names)
    if write:
        print_table(figures, Figures())
        write_baseline(figures, baseline)
        return 0
    comparable = Figures()
    if baseline is None:
        print("WARNING: there is no baseline. Nothing is compared.")
    elif baseline.python != this_python():
        print(f"WARNING: the baseline is of {baseline.python}, this is {this_python()}. Nothing is compared.")
    else:
        comparable = baseline.figures
    print_table(figures, comparable)
    beside_chat = dearer_than_chat(figures)
    for name, ratio in beside_chat.items():
        print(f"{name} takes {ratio:.2f} times what the same takes as a chat; {ALLOWED_BESIDE_CHAT} is allowed")
    return 1 if beside_chat or dearer(figures, comparable) else 0


def write_baseline(figures: Figures, baseline: Baseline | None) -> None:
    """What was not counted now stays as it was, where it is of this Python."""
    before = Figures()
    if baseline is not None and baseline.python == this_python():
        before = baseline.figures
    merged = Figures(
        instructions={**before.instructions, **figures.instructions},
        process={**before.process, **{name: round(figure, 1) for name, figure in figures.process.items()}},
    )
    Baseline(this_python(), merged).write(BASELINE)


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--only", default="", help="what is counted, by a part of its name")
    reader.add_argument("--write", action="store_true", help="write the baseline anew")
    options = reader.parse_args()
    sys.exit(main(options.only, write=options.write))
