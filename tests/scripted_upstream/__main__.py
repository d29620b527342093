"""Runs the upstream by hand: `python -m tests.scripted_upstream --port 9100 [--key K] [--case tests/corpus/stream/x.json …]`."""

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from tests.scripted_upstream.server import Upstream


async def serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    upstream = Upstream(key=options.key, host=options.host, port=options.port)
    await upstream.open()
    for path in options.case:
        upstream.replay(json.loads(path.read_text(encoding="utf-8")))
    say(f"READY {upstream.url}")
    await stop.wait()
    await upstream.close()
    for problem in upstream.problems:
        say(problem)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.scripted_upstream", description=__doc__)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=9100, help="0 takes any free one; the READY line names it")
    options.add_argument("--key", help="the bearer key to demand")
    options.add_argument("--case", type=Path, action="append", default=[], help="a corpus file, served under its id")
    asyncio.run(serve(options.parse_args()))


if __name__ == "__main__":
    main()
