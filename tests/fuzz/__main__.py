"""`python -m tests.fuzz NAME [--seconds 60]`: one harness under atheris, guided by what the inputs reach.

Starts from the committed corpus and from what earlier runs found, which is kept in `build/fuzz`. An input that fails is
written there and named; put into `corpus/NAME` it is a test from then on. Without NAME all harnesses run, each in a
process of its own: the fuzzer ends its process when it is done. `edge` compares two servers and needs no atheris: it
tries `--inputs 100000` and prints how many of them differed.
"""

import argparse
import random
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from tests.fuzz.harness import CORPUS, NAMES, SCRAPS, load, timed

BUILD = Path("build/fuzz")
MAX_BYTES = 4096
HANG_SECONDS = 30
MEMORY_MB = 2048
LONGEST_WORD = 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("name", nargs="?", choices=NAMES)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--inputs", type=int, default=100_000, help="for `edge`, which counts inputs and not seconds")
    asked = parser.parse_args()
    if asked.name == "edge":
        search_edge(asked.inputs)
    if asked.name is not None:
        fuzz(asked.name, asked.seconds)
    each = [[sys.executable, "-m", "tests.fuzz", name, "--seconds", str(asked.seconds)] for name in NAMES]
    ended = [subprocess.call(command) for command in each]  # all of them, whatever the first ones find
    return 1 if any(ended) else 0


def search_edge(count: int) -> NoReturn:
    """The differential one: h11 is no code of ours that could guide a fuzzer, so its inputs are made at random."""
    from tests.fuzz.fuzz_edge import search

    sys.exit(1 if search(count, random.randrange(2**32)) else 0)


def fuzz(name: str, seconds: int) -> NoReturn:
    try:
        atheris = import_module("atheris")  # by name: it is wanted here only, and has no types
    except ModuleNotFoundError:
        sys.exit("atheris is not installed, and does not build everywhere; `make test` plays the harnesses without it.")
    found = BUILD / name
    found.mkdir(parents=True, exist_ok=True)
    with atheris.instrument_imports(include=["callgate"]):
        run = load(name)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_BYTES}",
        f"-timeout={HANG_SECONDS}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={BUILD}/{name}-",
        f"-dict={_words()}",
        "-print_final_stats=1",
    ]
    sys.stderr.write(f"-- {name}, {seconds} s\n")
    atheris.Setup([sys.argv[0], *options, str(found), str(CORPUS / name)], lambda data: timed(run, data))
    atheris.Fuzz()  # ends the process
    raise AssertionError


def _words() -> Path:
    """What the fuzzer may put in, in the form that it reads."""
    words = BUILD / "words"
    lines = ("".join(f"\\x{byte:02x}" for byte in scrap) for scrap in SCRAPS if len(scrap) <= LONGEST_WORD)
    words.write_text("".join(f'"{line}"\n' for line in lines))
    return words


if __name__ == "__main__":
    sys.exit(main())
