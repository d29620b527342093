"""Draws where the CPU time of a request goes, as flame graphs: `python bench/flame.py` writes docs/assets/flame-*.svg.

Callgate is served in a process of its own, in which a timer of CPU time looks every few milliseconds what the main thread is doing. What C
code takes counts for the function that called it, and what the event loop itself takes for none. Each row of a picture is a function,
above the one that called it; its width is its share of all samples. The order from left to right means nothing. A small request that
is passed on, and a turn with a tool of this process, are drawn.

    python bench/flame.py                 both pictures
    python bench/flame.py --print         the functions that take most, without a picture
"""

import argparse
import asyncio
import atexit
import json
import runpy
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "app"), str(HERE.parent)]

from bench import wire
from bench.served import KEY, ROOT, configured, folder, free_port, started
from bench.works import WORKS

EVERY = 0.001
"""Seconds of CPU between two samples; Linux may make four milliseconds of it."""
SECONDS = 10.0
"""Of CPU, for each picture."""
PICTURES = {"small, passed on": "flame-small-request.svg", "tool turn": "flame-tool-turn.svg"}
APP = str(ROOT / "app" / "callgate")
SERVE = "--serve"

WIDTH = 1200
ROW = 17
LEAST = 0.003
"""Share of all samples below which a function is left out."""
CHARACTER = 6.6
"""Pixels that one takes, about."""


# In the server ----------------------------------------------------------------------------------------------------------


def serve(folded: Path, arguments: list[str]) -> None:
    """Serve, and write at the end how often each stack was seen."""
    stacks: Counter[str] = Counter()

    def sample(number: int, frame: FrameType | None) -> None:
        stacks[";".join(reversed([*names_of(frame)]))] += 1

    atexit.register(lambda: folded.write_text(json.dumps(stacks)))
    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
    sys.argv = ["callgate", *arguments]
    runpy.run_module("callgate", run_name="__main__", alter_sys=True)


def names_of(frame: FrameType | None) -> Iterator[str]:
    """Yield the functions of a stack, the innermost first, as far as they are Callgate's or called by it."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(APP):
            yield f"{code.co_filename.removeprefix(APP + '/')} {code.co_qualname}"
        else:
            yield f"{Path(code.co_filename).name} {code.co_qualname}"
        frame = frame.f_back


# Sampling ---------------------------------------------------------------------------------------------------------------


async def sampled(name: str) -> Counter[str]:
    """Return how often each stack was seen while requests of one kind were answered."""
    wire.Model.pace = wire.Pace()
    work = next(work for work in WORKS if work.name == name)
    async with wire.listening(wire.Model) as model:
        with folder() as directory:
            port = free_port()
            folded = directory / "stacks.json"
            config = configured(directory, port, model)
            command = [sys.executable, __file__, SERVE, str(folded), "serve", "--config", str(config)]
            with started(command, port, directory, source_root=ROOT / "app", bytecode=directory / "bytecode") as server:
                clients = await wire.connected(port, KEY, work, work.at_once)
                began = server.cpu_clock()
                while server.cpu_clock() < began + SECONDS:
                    await clients.ask(20)
                clients.leave()
            stacks = Counter[str](json.loads(folded.read_text()))
    return Counter({stack: count for stack, count in stacks.items() if is_of_request(stack)})


def is_of_request(stack: str) -> bool:
    """True for what the event loop called while it served. Starting and stopping are left out."""
    return "Runner.run;" in stack and "DrainingServer" not in stack


# Drawing ----------------------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """A function in one place of the stacks."""

    name: str = ""
    count: int = 0
    callees: dict[str, "Node"] = field(default_factory=dict)

    def add(self, names: list[str], count: int) -> None:
        self.count += count
        if names:
            name, *others = names
            self.callees.setdefault(name, Node(name)).add(others, count)


def tree_of(stacks: Counter[str]) -> Node:
    """Join stacks. What all of them begin with is left out."""
    root = Node("all of it")
    for stack, count in stacks.items():
        _, _, inside = stack.rpartition("Runner.run;")
        root.add(inside.split(";"), count)
    return root


def svg_of(root: Node, title: str) -> str:
    """Draw the tree, with its root at the bottom."""
    rows: list[str] = []
    depth = draw(root, rows, left=0.0, level=0, scale=WIDTH / root.count, whole=root.count)
    height = (depth + 2) * ROW + 24
    body = "\n".join(rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" font-size="11">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n'
        f'<text x="6" y="15" font-size="13">{escape(title)}</text>\n'
        f'<g transform="translate(0 {height - ROW})">\n{body}\n</g>\n</svg>\n'
    )


def draw(node: Node, rows: list[str], *, left: float, level: int, scale: float, whole: int) -> int:
    """Draw a function and what it called; return the highest level of them."""
    width = node.count * scale
    share = 100 * node.count / whole
    label = escape(node.name[: max(0, int((width - 4) / CHARACTER))]) if width > 3 * CHARACTER else ""
    rows.append(
        f'<g><title>{escape(node.name)}: {share:.1f} %</title><rect x="{left:.1f}" y="{-level * ROW}" width="{max(width - 0.5, 0.5):.1f}"'
        f' height="{ROW - 1}" fill="{color_of(node.name)}"/><text x="{left + 2:.1f}" y="{-level * ROW + 12}">{label}</text></g>'
    )
    highest = level
    for callee in sorted(node.callees.values(), key=lambda callee: callee.name):
        if callee.count >= LEAST * whole:
            highest = max(highest, draw(callee, rows, left=left, level=level + 1, scale=scale, whole=whole))
            left += callee.count * scale
    return highest


def color_of(name: str) -> str:
    """Return the color of a package; grey for what is not Callgate's."""
    package, slash, _ = name.partition("/")
    if not slash:
        return "#ddd"
    return f"hsl({sum(package.encode()) * 37 % 360} 65% 78%)"


def print_most(stacks: Counter[str], title: str) -> None:
    own: Counter[str] = Counter()
    for stack, count in stacks.items():
        own[stack.rpartition(";")[2]] += count
    whole = own.total()
    print(f"{title}: {whole} samples")
    for name, count in own.most_common(25):
        print(f"{100 * count / whole:5.1f} %  {name}")


async def main(*, is_printed: bool) -> None:
    for name, picture in PICTURES.items():
        stacks = await sampled(name)
        if is_printed:
            print_most(stacks, name)
            continue
        title = f"{name}: {stacks.total():,} samples of CPU time"
        (ROOT / "docs" / "assets" / picture).write_text(svg_of(tree_of(stacks), title))
        print(f"docs/assets/{picture}: {stacks.total():,} samples")


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        serve(Path(sys.argv[2]), sys.argv[3:])
        sys.exit()
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--print", action="store_true", help="print the functions that take most, and draw nothing")
    asyncio.run(main(is_printed=reader.parse_args().print))
