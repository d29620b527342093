"""Instructions of the processor that a request takes, C and allocation counted: `make bench ARGS=bench/instructions.py`.

valgrind (callgrind) counts them, of all threads of a server that is asked at its socket. The figures hold on any processor, within
2 to 4 % however busy the machine is, and cannot see what caches and the kernel take. `bench/run.py` counts instructions of Python
instead; `bench/compare.py` takes the CPU time.

    python bench/instructions.py                        this tree, the kinds of request that CI compares
    python bench/instructions.py --to 1649832           beside a commit, with the ratio
    python bench/instructions.py --of f84a301           a commit instead of this tree
    python bench/instructions.py --only turn            some kinds of request, by a part of their name
    python bench/instructions.py --without              what logs, the ledger, the recorder and diagnostics each take
    python bench/instructions.py --to main --functions 30    the functions in C that differ most

A minute for each server and kind of request, most of it the start.
"""

import argparse
import asyncio
import contextlib
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from bench import compare, served, wire
from bench.compare import COMPARED, Tree, tree_of, working_tree
from bench.served import KEY, configured, folder, free_port, started
from bench.works import WORKS, Work

WARM = 10
"""How often each client asks before it is counted: what is made at the first requests is made."""
COUNTED = 20
SETTLED = 2.0
"""Seconds until threads have written what the first requests left to them."""
PACE = 0.05
"""Seconds between two chunks of a stream: a server that is counted is fifty times slower, and each chunk shall come by itself."""
FEATURES: dict[str, dict[str, object]] = {
    "logs": {"logging": {"level": "error"}},
    "ledger": {"data_dir": None},
    "recorder": {"record": {"runs": "off"}},
    "diagnostics": {"loop": {"diagnostics": False}},
}
"""What each of them is turned off by. Without a folder of data, runs are kept in memory."""
FUNCTION = re.compile(r"\s*([\d,]+) \(\s*[\d.]+%\)\s+[^ :]+:(\S+)")


async def counted(tree: Tree, work: Work, changes: Sequence[dict[str, object]] = ()) -> Counter[str]:
    """The instructions of one request, by the function in C that they are in."""
    wire.Model.pace = compare.TimedPace()
    async with contextlib.AsyncExitStack() as stack:
        model = await stack.enter_async_context(wire.listening(wire.Model))
        mcp = await stack.enter_async_context(wire.listening(wire.McpSource))
        directory = stack.enter_context(folder())
        port = free_port()
        config = configured(directory, port, model, mcp, rights="")  # what every commit knows
        change(config, changes)
        dumped = directory / "callgrind"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={dumped}", "--instr-atstart=no", tree.python]
        command += ["-m", tree.package, "serve", "--config", str(config)]
        serving = started(command, port, directory, source_root=tree.source_root, bytecode=directory / "bytecode")
        server = await asyncio.to_thread(stack.enter_context, serving)
        clients = await wire.connected(port, KEY, work, work.at_once)
        await clients.ask(WARM)
        await control("-i", "on", server.process.pid)
        await clients.ask(1)
        await asyncio.sleep(SETTLED)
        await control("-z", "", server.process.pid)
        await clients.ask(COUNTED)
        await control("-d", "", server.process.pid)
        clients.leave()
        return functions_of(Path(f"{dumped}.1"), COUNTED * work.at_once * work.per)


async def control(option: str, value: str, pid: int) -> None:
    command = ["callgrind_control", option, *filter(None, [value]), str(pid)]
    await asyncio.to_thread(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)


def change(config: Path, changes: Sequence[dict[str, object]]) -> None:
    """Set what the changes say; None takes a setting out."""
    settings = yaml.safe_load(config.read_text())
    for name, value in (each for one in changes for each in one.items()):
        if value is None:
            settings.pop(name)
        elif isinstance(value, dict):
            settings[name] = {**settings.get(name, {}), **value}
    config.write_text(yaml.safe_dump(settings))


def functions_of(dumped: Path, requests: int) -> Counter[str]:
    command = ["callgrind_annotate", "--threshold=100", "--auto=no", str(dumped)]
    return read_functions(subprocess.run(command, capture_output=True, check=True, text=True).stdout, requests)


def read_functions(annotated: str, requests: int) -> Counter[str]:
    """A function that calls itself stands there more than once, as `name` and `name'2`."""
    found: Counter[str] = Counter()
    for count, function in FUNCTION.findall(annotated):
        found[function.partition("'")[0]] += int(count.replace(",", "")) / requests  # type: ignore[assignment]
    return found


# Telling --------------------------------------------------------------------------------------------------------------


def print_comparison(tree: Tree, reference: Tree | None, works: Sequence[Work], functions: int) -> None:
    print(
        f"{'instructions of a request':30} {tree.name:>14}"
        + (f" {reference.name:>14} {'ratio':>7}" if reference else "")
    )
    for work in works:
        here = asyncio.run(counted(tree, work))
        row = f"{work.name:30} {here.total():14,.0f}"
        if reference is not None:
            there = asyncio.run(counted(reference, work))
            row += f" {there.total():14,.0f} {here.total() / there.total():7.3f}"
            here.subtract(there)
        print(row, flush=True)
        for function, count in sorted(here.items(), key=lambda item: -abs(item[1]))[:functions]:
            print(f"    {function:60} {count:+10,.0f}")


def print_features(tree: Tree, works: Sequence[Work]) -> None:
    print(
        f"{'instructions of a request':30} {'with all':>12}"
        + "".join(f" {name:>19}" for name in [*FEATURES, "all of them"])
    )
    for work in works:
        whole = asyncio.run(counted(tree, work)).total()
        row = f"{work.name:30} {whole:12,.0f}"
        for changes in [*([one] for one in FEATURES.values()), [*FEATURES.values()]]:
            takes = whole - asyncio.run(counted(tree, work, changes)).total()
            row += f" {takes:11,.0f} {takes / whole:6.1%}"
        print(row, flush=True)


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--only", help="kinds of request whose name matches")
    reader.add_argument("--to", help="a commit to stand beside")
    reader.add_argument("--of", help="a commit to count instead of this tree")
    reader.add_argument("--functions", type=int, default=0, metavar="N", help="name so many functions in C")
    reader.add_argument("--without", action="store_true", help="turn features off, each by itself and all of them")
    options = reader.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("valgrind counts, and is not installed")
    compare.PACE = PACE
    served.START_SECONDS *= 10
    compare.share_one_core()
    chosen = [work for work in WORKS if (re.search(options.only, work.name) if options.only else work.name in COMPARED)]
    measured = tree_of(options.of) if options.of else working_tree()
    if options.without:
        print_features(measured, chosen)
    else:
        print_comparison(measured, tree_of(options.to) if options.to else None, chosen, options.functions)
