"""How long a list of recorded runs takes in a file with a million of them: `make bench ARGS=bench/run_list.py`.

Makes the rows (some minutes), serves the file, and asks `GET /v1/runs` in each of the ways a page does. Fails when the slowest
hundredth of the answers takes longer than is allowed.

    python bench/run_list.py --rows 20000    a quick look
    python bench/run_list.py --together 1    as with little traffic: no two runs share a row of the file
"""

import argparse
import http.client
import itertools
import json
import random
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "app"), str(ROOT)]

from bench.served import KEY, folder, served
from callgate.conversation.prices import Price
from callgate.recorder.packed import (
    PackedCall,
    PackedCallEnd,
    PackedCallStart,
    PackedEnd,
    PackedRun,
    PackedTurn,
    PackedTurnStart,
)
from callgate.recorder.row import RunRow
from callgate.recorder.store import RunStore

ROWS = 1_000_000
TOGETHER = 5000
"""Runs that are written at once: by the minute, they fill chunks."""
ASKED = 200
"""Times for each way of asking."""
WARM = 3
"""Times before that: what is loaded at the first request is no part of a list."""
ALLOWED = 0.020
MODELS = [f"model-{number}" for number in range(20)]
KEYS = [f"key-{number}" for number in range(50)]
CALLED = (PackedCall("call_1", "clock", "server"),)
COUNTS = {"prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21}
FIRST = PackedTurn(
    *(0.1, 0, 0, 0.1, 0.1, 1, "direct", "m", "d", "h", ("tool_calls",)),
    CALLED,
    COUNTS,
    Price(1e-6, 2e-6),
    (),
    None,
    True,
)
LAST = PackedTurn(
    *(0.3, 0, 1, 0.1, 0.1, 1, "direct", "m", "d", "h", ("stop",)), (), COUNTS, Price(1e-6, 2e-6), (), None, True
)
EVENTS = (
    *(PackedTurnStart(0.0, 0, 0), FIRST, PackedCallStart(0.1, 0, 0, "call_1", "clock", False)),
    *(PackedCallEnd(0.2, 0, 0, "call_1", "clock", 0.1, "returned", 6, 0), PackedTurnStart(0.2, 0, 1), LAST),
    PackedEnd(0.3, 0, "answered", "stop", ""),
)


def main(rows: int, asked: int, together: int) -> int:
    with folder() as directory:
        data = directory / "data"
        data.mkdir()
        began = time.monotonic()
        fill(data, rows, together)
        size = (data / "runs.sqlite3").stat().st_size
        print(f"{rows:,} runs in {size / 1e6:,.0f} MB, written in {time.monotonic() - began:.0f} s")
        with served(directory, 9) as process:
            slowest = max(ask(process.port, name, query, asked) for name, query in questions(rows).items())
    print(f"p99 of the slowest way {slowest * 1000:.1f} ms, allowed {ALLOWED * 1000:.0f} ms")
    return int(slowest > ALLOWED)


def fill(data: Path, rows: int, together: int) -> None:
    store = RunStore(data)
    chance = random.Random(7)
    start = time.time() - rows
    numbers = iter(range(rows))
    while batch := list(itertools.islice(numbers, together)):
        store.add([packed(row(number, start + number, chance)) for number in batch])
    store.close()


def packed(row: RunRow) -> PackedRun:
    return (PackedRun.of if row.is_odd else PackedRun.plain)(row, EVENTS)


def row(number: int, began: float, chance: random.Random) -> RunRow:
    state = "failed" if chance.random() < 0.01 else "answered"
    # The last of the models is rare, and so is the last of the keys.
    model = MODELS[-1] if number % 10_007 == 0 else chance.choice(MODELS[:-1])
    key = KEYS[-1] if number % 20_011 == 0 else chance.choice(KEYS[:-1])
    return RunRow(
        f"run_{int(began * 1000):011x}{number:013x}",
        began,
        model,
        f"req_{number:024x}",
        "bench:1",
        key=key,
        state=state,
        status=200,
    )


def questions(rows: int) -> dict[str, str]:
    middle = time.time() - rows / 2
    return {
        "newest": "limit=50",
        "newest 200": "limit=200",
        "odd ones": "odd=1",
        "a model": f"model={MODELS[0]}",
        "a rare model": f"model={MODELS[-1]}",
        "a rare key": f"key={KEYS[-1]}",
        "failed": "state=failed",
        "answered of a rare key": f"state=answered&key={KEYS[-1]}",
        "failed of a model": f"state=failed&model={MODELS[0]}",
        "failed of a rare key": f"state=failed&key={KEYS[-1]}",
        "odd ones of a rare model": f"odd=1&model={MODELS[-1]}",
        "from the middle": f"until={middle:.0f}",
    }


def ask(port: int, name: str, query: str, times: int) -> float:
    """The slowest hundredth, in seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    took = []
    for number in range(-WARM, times):
        began = time.perf_counter()
        connection.request("GET", f"/v1/runs?{query}", headers={"authorization": f"Bearer {KEY}"})
        answer = connection.getresponse()
        body = answer.read()
        if number >= 0:
            took.append(time.perf_counter() - began)
        if answer.status != 200:
            raise SystemExit(f"{query}: {answer.status} {body[:300]!r}")
    connection.close()
    took.sort()
    worst = took[min(len(took) - 1, int(len(took) * 0.99))]
    found = len(json.loads(body)["data"])
    print(f"{name:26} {found:4} rows   p50 {statistics.median(took) * 1000:6.2f} ms   p99 {worst * 1000:6.2f} ms")
    return worst


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--rows", type=int, default=ROWS)
    reader.add_argument("--asked", type=int, default=ASKED)
    reader.add_argument("--together", type=int, default=TOGETHER)
    given = reader.parse_args()
    sys.exit(main(given.rows, given.asked, given.together))
