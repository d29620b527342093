"""What running a command costs: the whole of it, what the event loop waits meanwhile, and what a launcher weighs."""

import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "app"), str(Path(__file__).parents[1])]

from callgate.tools.kinds.command.launch import landlock_abi
from callgate.tools.kinds.command.process import Command, CommandProcesses, Paths

RUNS = 100
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def report(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    print(
        f"  {what:44} median {statistics.median(ordered) * 1e3:6.2f} ms   p95 {ordered[int(RUNS * 0.95)] * 1e3:6.2f} ms"
    )


async def timed(processes: CommandProcesses, paths: Paths | None) -> tuple[list[float], list[float]]:
    whole, blocked = [], []
    for _ in range(RUNS):
        began = time.perf_counter()
        running = asyncio.create_task(
            processes.run(Command("/bin/true", ("true",), "/", ENVIRONMENT, paths=paths), 1000)
        )
        await asyncio.sleep(0)  # the start happens in this one step
        blocked.append(time.perf_counter() - began)
        await running
        whole.append(time.perf_counter() - began)
    return whole, blocked


async def weight(processes: CommandProcesses) -> int:
    """KiB that a launcher has to itself: its command looks."""
    look = ("sh", "-c", "cat /proc/$PPID/smaps_rollup")
    ended = await processes.run(Command("/bin/sh", look, "/", ENVIRONMENT), 10_000)
    return sum(int(line.split()[1]) for line in ended.stdout.decode().splitlines() if line.startswith("Private_"))


def bare() -> list[float]:
    found = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run(["/bin/true"], check=True)
        found.append(time.perf_counter() - began)
    return found


async def main() -> None:
    processes = CommandProcesses()
    whole, blocked = await timed(processes, None)
    report("with a launcher", whole)
    report("  of which the event loop is held", blocked)
    if landlock_abi():
        report("with a launcher and Landlock", (await timed(processes, Paths()))[0])
    print(f"  {'memory of one launcher':44} {await weight(processes)} KiB")
    await processes.close()


report("without, and without a word to the loop", bare())
asyncio.run(main())
