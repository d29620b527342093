"""Whether a request costs more CPU than at an earlier commit, measured at the socket: the other half of `make bench-check`.

Three servers are started: this tree, and the reference commit twice. They get the same requests in turn, in slices of some
milliseconds, and the CPU clock of each process says what they took, with C, allocation and caches. The figure is the ratio
of this tree to the reference in the same moments, so it holds on any processor. What the two servers of the reference
differ by is noise. A kind of request fails that costs more than 5 % beyond that noise. What seems to is measured
again with new processes.

    python bench/compare.py                      this tree against the reference commit
    python bench/compare.py --to 1649832         against another one
    python bench/compare.py --of f84a301         a commit instead of this tree
    python bench/compare.py --python PATH        this tree with another Python, against this one
    python bench/compare.py --only turn          some kinds of request, by a part of their name
    python bench/compare.py --all                all kinds of request

All processes share one core and do not interrupt each other: each finds at its waking all that the others have sent, however
busy the rest of the machine is. The trees of commits, and environments for those with other locks, stay in .cache/bench.
"""

import argparse
import asyncio
import contextlib
import io
import math
import os
import re
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from bench import wire
from bench.served import KEY, ROOT, Served, configured, folder, free_port, started
from bench.works import WORKS, Work

REFERENCE = "05c69c24"
"""The commit that this tree is compared with. A change that makes requests cheaper moves it; one that is meant to make them
dearer moves it too, and says why."""
ALLOWED = 1.05
COMPARED = frozenset({"small, passed on", "small, read", "100 KB, passed on", "paced chunk, passed on", "tool turn"})
SLICE = 0.03
"""Seconds of a server's CPU in one slice, about."""
CYCLES = 24
"""Slices of each server and kind of request."""
ROUNDS = 3
"""How often what is too dear is measured, each time with new processes."""
STARTS = 3
START = "start"
PACE = 0.002
"""Seconds between two chunks of a stream: more than all servers need for one of each stream."""
CACHE = ROOT / ".cache" / "bench"


# Trees ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """One state of the project, and the Python that has the packages it needs."""

    name: str
    folder: Path
    python: str

    @property
    def package(self) -> str:
        """The first commits were called otherwise."""
        return "callgate" if (self.folder / "app" / "callgate").exists() else "app"

    @property
    def source_root(self) -> Path:
        return self.folder / "app" if self.package == "callgate" else self.folder


def working_tree() -> Tree:
    return Tree("this tree", ROOT, sys.executable)


def with_python(python: str) -> Tree:
    """This tree, with the Python of another environment that has the same packages."""
    return Tree(python, ROOT, python)


def tree_of(commit: str) -> Tree:
    """The files of a commit, with this environment if it asks for the same packages, else with one of its own."""
    name = git("rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()[:12]
    place = CACHE / name
    if not (place / "Makefile").exists():
        with tarfile.open(fileobj=io.BytesIO(git("archive", name))) as archive:
            archive.extractall(place, filter="data")
    if (place / "requirements.lock").read_bytes() == (ROOT / "requirements.lock").read_bytes():
        return Tree(name, place, sys.executable)
    if not (place / ".venv" / ".runtime").exists():
        print(f"{name} asks for other packages: making its environment (a minute, once)", flush=True)
        subprocess.run(["make", ".venv/.runtime"], cwd=place, check=True, stdout=subprocess.DEVNULL)
    return Tree(name, place, str(place / ".venv" / "bin" / "python"))


def git(*arguments: str) -> bytes:
    process = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if process.returncode:
        raise SystemExit(
            f"git {' '.join(arguments)}: {process.stderr.decode().strip()}\n"
            "A commit is compared with, so this has to be a clone with its history (git fetch --unshallow)."
        )
    return process.stdout


# Servers --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Upstreams:
    """The ports of what the servers ask."""

    model: int
    mcp: int


class TimedPace(wire.Pace):
    """The servers are other processes, in which a chunk gets through while this one sleeps."""

    def later(self, turns: int) -> None:
        asyncio.get_running_loop().call_later(PACE if turns else 0.0, super().later, 0)


@contextlib.contextmanager
def serving(tree: Tree, upstreams: Upstreams, bytecode: Path) -> Iterator[Served]:
    with folder() as directory:
        port = free_port()
        config = configured(directory, port, upstreams.model, upstreams.mcp, rights="")  # what every commit knows
        command = [tree.python, "-m", tree.package, "serve", "--config", str(config)]
        with started(command, port, directory, source_root=tree.source_root, bytecode=bytecode / tree.name) as server:
            yield server


def share_one_core() -> None:
    """This process and those it starts from now on: on one core, where nobody is interrupted by who is woken."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


# Measuring ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """What one kind of request costs here and there, in one round."""

    microseconds: float
    ratio: float
    """This tree's CPU time by that of the reference."""
    noise: float
    """The reference's by its own in another process: at least 1."""

    @staticmethod
    def of(slices: Sequence[Sequence[float]], requests: int) -> "Comparison":
        """`slices`: the seconds that this tree and the two servers of the reference took in each cycle. A cycle in which a clock
        did not move, for its steps are coarse, says nothing."""
        slices = [cycle for cycle in slices if all(cycle)]
        if not slices:
            return Comparison(microseconds=0.0, ratio=1.0, noise=math.inf)
        noise = statistics.median(first / second for _, first, second in slices)
        return Comparison(
            microseconds=statistics.median(here for here, _, _ in slices) / requests * 1e6,
            ratio=statistics.median(2 * here / (first + second) for here, first, second in slices),
            noise=max(noise, 1 / noise),
        )

    @staticmethod
    def median(rounds: Sequence["Comparison"]) -> "Comparison":
        return Comparison(
            microseconds=statistics.median(one.microseconds for one in rounds),
            ratio=statistics.median(one.ratio for one in rounds),
            noise=statistics.median(one.noise for one in rounds),
        )

    @property
    def is_dearer(self) -> bool:
        return self.ratio > ALLOWED * self.noise


async def compare(trees: Sequence[Tree], names: Sequence[str]) -> dict[str, Comparison]:
    """One round: starts a server of each of the three trees, and asks them in turn."""
    wire.Model.pace = TimedPace()
    comparisons: dict[str, Comparison] = {}
    async with contextlib.AsyncExitStack() as stack:
        upstreams = Upstreams(
            model=await stack.enter_async_context(wire.listening(wire.Model)),
            mcp=await stack.enter_async_context(wire.listening(wire.McpSource)),
        )
        bytecode = stack.enter_context(folder())
        servers = [await asyncio.to_thread(stack.enter_context, serving(tree, upstreams, bytecode)) for tree in trees]
        for work in WORKS:
            if work.name in names:
                comparisons[work.name] = await compare_requests(servers, work)
        if START in names:
            comparisons[START] = await compare_starts(trees, upstreams, bytecode)
    return comparisons


async def compare_requests(servers: Sequence[Served], work: Work) -> Comparison:
    clients = [await wire.connected(server.port, KEY, work, work.at_once) for server in servers]
    for client in clients:
        await client.ask(4)
    times = await times_to_fill(SLICE, servers[0], clients[0])
    slices = []
    for cycle in range(CYCLES):
        taken = [0.0] * len(servers)
        for step in range(len(servers)):
            place = (cycle + step) % len(servers)
            taken[place] = await cpu_seconds(servers[place], clients[place], times)
        slices.append(taken)
    for client in clients:
        client.leave()
    return Comparison.of(slices, times * work.at_once * work.per)


async def times_to_fill(seconds: float, server: Served, clients: wire.Clients) -> int:
    """How often the clients ask until the server has worked for so many seconds: a clock may count in steps of 10 ms."""
    times = 4
    while (taken := await cpu_seconds(server, clients, times)) < seconds / 2:
        times *= 2
    return max(1, round(times * seconds / taken))


async def cpu_seconds(server: Served, clients: wire.Clients, times: int) -> float:
    before = server.cpu_clock()
    await clients.ask(times)
    return server.cpu_clock() - before


async def compare_starts(trees: Sequence[Tree], upstreams: Upstreams, bytecode: Path) -> Comparison:
    """In a thread: the model and the MCP server answer meanwhile."""

    def seconds(tree: Tree) -> float:
        with serving(tree, upstreams, bytecode) as server:
            return server.cpu_clock()

    return Comparison.of([[await asyncio.to_thread(seconds, tree) for tree in trees] for _ in range(STARTS)], 1)


# Telling --------------------------------------------------------------------------------------------------------------


def print_table(comparisons: dict[str, Comparison], reference: Tree) -> None:
    print(f"{'':26} {'CPU':>14} {'ratio to ' + reference.name:>22} {'noise':>7}")
    for name, comparison in comparisons.items():
        row = f"{name:26} {comparison.microseconds:11,.1f} µs {comparison.ratio:22.3f} {comparison.noise:7.3f}"
        print(row + ("  dearer" if comparison.is_dearer else ""))


def main(names: Sequence[str], tree: Tree, reference: Tree) -> int:
    """Zero when nothing has become dearer than is allowed."""
    began = time.monotonic()
    rounds: dict[str, list[Comparison]] = {name: [] for name in names}
    unsure = list(names)
    for number in range(ROUNDS):
        if number:
            print(f"Measuring again: {', '.join(unsure)}", flush=True)
        for name, comparison in asyncio.run(compare([tree, reference, reference], unsure)).items():
            rounds[name].append(comparison)
        unsure = [name for name in unsure if Comparison.median(rounds[name]).is_dearer]
        if not unsure:
            break
    comparisons = {name: Comparison.median(rounds[name]) for name in names}
    print_table(comparisons, reference)
    print(f"{tree.name} against {reference.name}, in {time.monotonic() - began:.0f} s")
    return 1 if any(comparison.is_dearer for comparison in comparisons.values()) else 0


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--only", default="", help="kinds of request whose name matches")
    reader.add_argument("--all", action="store_true", help="all kinds of request, not only those that CI compares")
    reader.add_argument("--to", default=REFERENCE, help="the commit to compare with")
    reader.add_argument("--of", help="a commit to compare instead of this tree")
    reader.add_argument("--python", help="a Python that has the same packages, to compare with this one")
    options = reader.parse_args()
    if sys.platform != "linux":
        print("NOT COMPARED: the CPU clocks of other processes are read as Linux has them.")
        sys.exit(0)
    share_one_core()
    chosen = [
        name
        for name in [*(work.name for work in WORKS), START]
        if (options.all or name in COMPARED or name == START) and re.search(options.only, name)
    ]
    if options.python:
        sys.exit(main(chosen, with_python(options.python), working_tree()))
    measured_tree = tree_of(options.of) if options.of else working_tree()
    sys.exit(main(chosen, measured_tree, tree_of(options.to)))
