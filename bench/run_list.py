"""How long a list of recorded runs takes in a file with a million of them, and the Overview of these:
`make bench ARGS=bench/run_list.py`.

Makes the rows (some minutes), serves the file, and asks `GET /v1/runs` and `GET /v1/stats` in each of the ways a page does. Fails
when the slowest hundredth of the answers takes longer than is allowed.

    python bench/run_list.py --rows 20000    a quick look
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
from callgate.calls.outcome import Returned
from callgate.calls.states import ReadyCall
from callgate.conversation.events import (
    CallEnded,
    CallStarted,
    ChatEnded,
    ChatEvent,
    Ending,
    EndingKind,
    Responder,
    TurnAccount,
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.prices import Price
from callgate.conversation.usage import Usage
from callgate.recorder.ended_run import EndedRun
from callgate.recorder.hours import HourTotals, by_hour
from callgate.recorder.recording import RunRecording
from callgate.recorder.store import RunStore
from callgate.recorder.usage import KeyUsage, day_of
from callgate.recorder.usage_tables import HourUsage
from callgate.records.policy import RecordPolicy
from callgate.records.row import RunRow

ROWS = 1_000_000
TOGETHER = 5000
"""Runs that are written in one transaction."""
ASKED = 200
"""Times for each way of asking."""
WARM = 3
"""Times before that: what is loaded at the first request is no part of a list."""
ALLOWED = 0.020
ALLOWED_SUM = 0.300
SUMS = {
    "24 hours": "stats?days=1",
    "7 days": "stats?days=7",
    "30 days": "stats?days=30",
    "tools of 30 days": "usage?days=30&by=tool",
    "flaws by day": "usage?days=30&by=model,flaw&interval=day",
}
"""What the Overview asks for. By key and tool, say, it is a second: of each hour there are as many rows as keys and models."""
MODELS = [f"model-{number}" for number in range(20)]
KEYS = [f"key-{number}" for number in range(50)]
CALL = ReadyCall("call_1", "clock", {}, "{}")
USAGE = Usage({"prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21})
BY = Responder("m", "d", "h")


def turn(reason: str, *calls: ReadyCall) -> TurnAccount:
    return TurnAccount((reason,), (), calls, (), (), USAGE, 0.1, lane="direct", by=BY, counts=USAGE.counts())


EVENTS: tuple[tuple[float, ChatEvent], ...] = (
    (0.0, TurnStarted(0)),
    (0.1, TurnEnded(0, turn("tool_calls", CALL))),
    (0.1, CallStarted(0, CALL, writes=False)),
    (0.2, CallEnded(0, CALL, Returned("a text"), 0.1)),
    (0.2, TurnStarted(1)),
    (0.3, TurnEnded(1, turn("stop"))),
    (0.3, ChatEnded(Ending(EndingKind.ANSWERED, "stop"), None)),
)


def main(rows: int, asked: int) -> int:
    with folder() as directory:
        data = directory / "data"
        data.mkdir()
        began = time.monotonic()
        fill(data, rows)
        size = (data / "runs.sqlite3").stat().st_size
        print(f"{rows:,} runs in {size / 1e6:,.0f} MB, written in {time.monotonic() - began:.0f} s")
        with served(directory, 9) as process:
            slowest = max(ask(process.port, name, f"runs?{query}", asked) for name, query in questions(rows).items())
            summed = max(ask(process.port, name, query, min(asked, 20)) for name, query in SUMS.items())
    print(f"p99 of the slowest list {slowest * 1000:.1f} ms, allowed {ALLOWED * 1000:.0f} ms")
    print(f"p99 of the slowest sum {summed * 1000:.1f} ms, allowed {ALLOWED_SUM * 1000:.0f} ms")
    return int(slowest > ALLOWED or summed > ALLOWED_SUM)


def fill(data: Path, rows: int) -> None:
    store = RunStore(data)
    chance = random.Random(7)
    start = time.time() - rows
    numbers = iter(range(rows))
    hours = HourTotals()
    while batch := list(itertools.islice(numbers, TOGETHER)):
        runs = [encoded(row(number, start + number, chance), hours) for number in batch]
        store.add(runs)
        days: dict[tuple[str, str, str], KeyUsage] = {}
        used: dict[HourUsage, KeyUsage] = {}
        for run in runs:
            failed = int(run.begun.state == "failed")
            of_run = KeyUsage(
                day_of(run.begun.began), run.begun.key, run.begun.model, requests=1, failed=failed, calls=1
            )
            of_run.tokens_in = of_run.priced_in = 24
            of_run.tokens_out = of_run.priced_out = 18
            of_run.nano = 60_000
            days.setdefault(of_run.place(), KeyUsage(*of_run.place())).add(of_run)
            place = (int(run.begun.began // 3600), run.begun.key, run.begun.model)
            used.setdefault(place, KeyUsage(*of_run.place())).add(of_run)
        store.count(days.values(), used, by_hour(hours.take()))
    store.close()


def encoded(row: RunRow, hours: HourTotals) -> EndedRun:
    recording = RunRecording(row, RecordPolicy(), str, lambda by: Price(1e-6, 2e-6))
    for seconds, event in EVENTS:
        if row.state == "answered" or not isinstance(event, ChatEnded):
            recording.note_earlier(seconds, 0, event)
    row.seconds = 0.3
    ended, notes = recording.encode()
    hours.add_runs([(ended.begun, notes)])
    return ended


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
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    took = []
    for number in range(-WARM, times):
        began = time.perf_counter()
        connection.request("GET", f"/v1/{query}", headers={"authorization": f"Bearer {KEY}"})
        answer = connection.getresponse()
        body = answer.read()
        if number >= 0:
            took.append(time.perf_counter() - began)
        if answer.status != 200:
            raise SystemExit(f"{query}: {answer.status} {body[:300]!r}")
    connection.close()
    took.sort()
    worst = took[min(len(took) - 1, int(len(took) * 0.99))]
    found = len(json.loads(body).get("data", ()))
    print(f"{name:26} {found:4} rows   p50 {statistics.median(took) * 1000:6.2f} ms   p99 {worst * 1000:6.2f} ms")
    return worst


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--rows", type=int, default=ROWS)
    reader.add_argument("--asked", type=int, default=ASKED)
    given = reader.parse_args()
    sys.exit(main(given.rows, given.asked))
