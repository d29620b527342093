"""What all harnesses share: one input into pieces, the corpus, mutations that come out the same every time, the clock."""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

Run: TypeAlias = Callable[[bytes], None]

NAMES = (
    "arguments",
    "challenges",
    "config",
    "edge",
    "faces",
    "filters",
    "forms",
    "frames",
    "openapi",
    "quotations",
    "requests",
    "responses",
    "schemas",
    "stream",
    "text",
    "tokens",
)
"""The harnesses: each a module `fuzz_NAME` with a function `run`, and a folder `corpus/NAME`."""
CORPUS = Path(__file__).parent / "corpus"
SECONDS = 1.0
"""Of processor time for one input. All of them are small, and what takes this long grows faster than it should."""
SEED_BYTES = 2
MAX_CUTS = 6

# What parsers stumble over, whatever they parse.
SCRAPS = [
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"\\",
        b",",
        b":",
        b"\n",
        b"\r\n",
        b"\r",
        b"\n\n",
        b"\t",
        b" ",
        b"\0",
        b"<",
        b"</",
        b">",
    ),
    *(
        b"null",
        b"true",
        b"{}",
        b"[]",
        b'""',
        b"-",
        b"-0",
        b"1e999",
        b"NaN",
        b"0.1",
        b"9" * 40,
        b"9" * 5000,
        b"Infinity",
    ),
    *(b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\xed\xa0\xbd", b"\xe2\x80\xa8", b"\xf0\x9f\x98\x80", b"\xc2\x85"),
    *(b"\\ud83d", b"\\ude00", b"\\u0000", b"\\x", b"\\/"),
    *(b"data: ", b"data:", b"data: [DONE]\n\n", b"event: x\n", b": ping\n\n", b'"tool_calls":[{"index":0}]', b'"id":1'),
    *(b"```", b"<tool_call>", b"</tool_call>", b"<think>", b"</think>", b"<|", b"|>", b"Action:", b"functions."),
    *(
        b"&a ",
        b"*a",
        b"<<: *a\n",
        b"!!int ",
        b"!!python/name:os.system ",
        b"? ",
        b"- ",
        b"| \n",
        b"---\n",
        b"%YAML 9\n",
    ),
    *(b"$ref: '#/'", b"'$ref': '#/paths'", b"~1", b"%", b"{x}", b"${", b"${X:-}", b"os.environ/", b"os.environ/X"),
    *(b"[" * 600, b'{"a":' * 600, b"{" * 600, b"- " * 600),
]


def load(name: str) -> Run:
    run: Run = import_module(f"tests.fuzz.fuzz_{name}").run
    return run


def corpus(name: str) -> list[tuple[str, bytes]]:
    """The committed inputs of a harness, by name."""
    return [(path.name, path.read_bytes()) for path in sorted((CORPUS / name).iterdir())]


def timed(run: Run, data: bytes, most: float = SECONDS) -> None:
    """Run one input; taking too long is a failure like any other."""
    start = time.thread_time()
    run(data)
    took = time.thread_time() - start
    assert took < most, f"{took:.2f} s for {len(data)} bytes"


def cut(data: bytes, decode: Callable[[bytes], Any] = bytes) -> list[Any]:
    """The input as it comes in pieces. Its first two bytes say where it is cut; the rest is what is said."""
    body = decode(data[SEED_BYTES:])
    chance = random.Random(data[:SEED_BYTES])
    places = sorted(chance.randrange(len(body) + 1) for _ in range(chance.randrange(MAX_CUTS + 1)))
    return [body[start:end] for start, end in itertools.pairwise([0, *places, len(body)])]


def as_text(data: bytes) -> str:
    """Text as a JSON reader may give it: with halves of surrogate pairs, which some providers send."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def mutations(seeds: list[bytes], count: int, seed: int) -> Iterator[bytes]:
    """So many inputs that come of these; the same ones for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        data = chance.choice(seeds)
        for _ in range(chance.randint(1, 4)):
            data = _mutated(data, chance, seeds)
        yield data


def _mutated(data: bytes, chance: random.Random, seeds: list[bytes]) -> bytes:
    start, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    end = min(end, start + 64)
    match chance.randrange(6):
        case 0:
            return data[:start] + data[end:]
        case 1:
            return data[:end] + data[start:]
        case 2:
            return data[:start] + chance.choice(SCRAPS) + data[start:]
        case 3:
            return data[:start] + chance.choice(SCRAPS) + data[end:]
        case 4:
            return data[:start] + bytes([chance.randrange(256)]) + data[start + 1 :]
        case _:
            other = chance.choice(seeds)
            return data[:start] + other[chance.randrange(len(other) + 1) :]
