"""`python -m tests.snapshots write`, or `print NAME [WAY]`; see the package."""

import asyncio
import sys

import structlog

from tests.recordings import FOLDER as RECORDINGS
from tests.recordings import load, load_all
from tests.snapshots import operating, served, wire


def main(arguments: list[str]) -> int:
    # What requests log is no part of what is printed.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    match arguments:
        case ["write"]:
            asyncio.run(write())
        case ["print", name, *ways] if name in served.SNAPSHOTS or (RECORDINGS / f"{name}.json").exists():
            asyncio.run(print_exchanges(name, ways))
        case ["print", name] if name in operating.SNAPSHOTS:
            sys.stdout.write(operating.SNAPSHOTS[name]())
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    return 0


async def write() -> None:
    for name, make in operating.SNAPSHOTS.items():
        (operating.FOLDER / name).write_text(make(), encoding="utf-8")
    for name, exchanges in served.SNAPSHOTS.items():
        (served.FOLDER / f"{name}.txt").write_text(wire.snapshot(await exchanges()), encoding="utf-8")
    for recording in load_all():
        text = wire.snapshot(await wire.exchanges_of(recording))
        (wire.FOLDER / f"{recording.name}.txt").write_text(text, encoding="utf-8")


async def print_exchanges(name: str, ways: list[str]) -> None:
    if name in served.SNAPSHOTS:
        exchanges = await served.SNAPSHOTS[name]()
    else:
        exchanges = await wire.exchanges_of(load(RECORDINGS / f"{name}.json"))
    for way in ways or exchanges:
        sys.stdout.write(f"## {way}\n{wire.whole(exchanges[way])}\n\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
