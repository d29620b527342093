"""The totals of hours: what was asked, what ran, what broke and how long it took, by key and model."""

import sqlite3
import time
from collections.abc import Sequence

import pytest

from callgate.calls.outcome import Failed, FailureKind, Returned
from callgate.calls.states import BrokenCall, Flaw, ReadyCall
from callgate.conversation.events import (
    Attempt,
    CallEnded,
    ChatEnded,
    ChatEvent,
    Ending,
    EndingKind,
    Responder,
    TurnAccount,
    TurnEnded,
)
from callgate.conversation.prices import Price
from callgate.conversation.usage import Usage
from callgate.recorder.events import EventReader, read_events
from callgate.recorder.hours import ADDED_TOGETHER, BOUNDS, TOTALS_PER_HOUR, HourTotal, HourTotals, Place, hour_of
from callgate.recorder.recorder import Recorder
from callgate.recorder.recording import RunRecording
from callgate.recorder.store import FILE
from callgate.recorder.usage import KeyUsage
from callgate.records.policy import RecordPolicy
from callgate.records.row import RunRow

pytestmark = pytest.mark.anyio

NINE = 1_795_078_800.0
"""2026-11-19T09:00Z"""
HOUR = "2026-11-19T09"
ADD = ReadyCall("a", "add", {}, "{}")
TURN = TurnAccount(
    ("stop",),
    (),
    (ADD,),
    (ReadyCall("c", "mine", {}, "{}"),),
    (BrokenCall("b", "add", Flaw.TRUNCATED, "{"),),
    None,
    0.3,
    by=Responder("gpt", "openai/gpt-5", "host"),
    first_seconds=0.03,
    postponed=(ReadyCall("d", "late", {}, "{}"),),
)
EVENTS: Sequence[ChatEvent] = (
    Attempt(0, 1, Responder("gpt", "azure/gpt-5", "host"), 0.1, reason="upstream_error"),
    TurnEnded(0, TURN),
    CallEnded(0, ADD, Failed("no", FailureKind.RAISED), 0.1),
    CallEnded(0, ADD, Returned("5"), 1000.0),
)


def reader_of(row: RunRow) -> EventReader:
    recording = RunRecording(row, RecordPolicy(), str)
    return read_events(recording, row, [(recording.began + 0.5, 0, event) for event in EVENTS])


def bucket(seconds: float) -> list[int]:
    return [int(low < seconds <= high) for low, high in zip((0, *BOUNDS), (*BOUNDS, float("inf")), strict=True)]


def test_a_run_is_counted_by_itself_and_by_its_tools_providers_and_flaws():
    hours = HourTotals()
    row = RunRow("run_1", NINE + 60, "gpt", key="alice", state="failed", seconds=2.0, first_seconds=0.4, broken_calls=1)
    hours.add_run(row, reader_of(row).hour_notes)
    totals = hours.take()

    assert {place[1:] for place in totals} == {
        ("run", "alice", "gpt", ""),
        ("tool", "alice", "gpt", "add"),
        ("provider", "alice", "gpt", "openai"),
        ("provider", "alice", "gpt", "azure"),
        ("flaw", "alice", "gpt", "truncated"),
    }
    of = {(place[1], place[4]): total for place, total in totals.items()}
    run, tool, provider = of["run", ""], of["tool", "add"], of["provider", "openai"]
    assert (run.count, run.failed, run.broken, run.seconds) == (1, 1, 1, bucket(2.0))
    assert run.first_seconds == bucket(0.4)
    assert (tool.count, tool.failed, tool.broken) == (2, 1, 1)
    assert (tool.seconds[2], tool.seconds[-1], sum(tool.seconds)) == (1, 1, 2)
    assert (provider.count, provider.failed, provider.seconds) == (1, 0, bucket(0.3))
    assert (of["provider", "azure"].count, of["provider", "azure"].failed) == (0, 1)
    assert of["flaw", "truncated"].count == 1
    assert hours.take() == {}


def test_each_tool_has_the_outcomes_of_its_calls():
    assert reader_of(RunRow("run_1", NINE)).outcomes == {
        "add": {"truncated": 1, "raised": 1, "returned": 1},
        "mine": {"handed_back": 1},
        "late": {"not_run": 1},
    }


def test_totals_that_could_not_be_written_are_added_to_those_that_came_meanwhile():
    hours = HourTotals()
    used = [KeyUsage("2026-11-19", "alice", "gpt", requests=2, failed=1, tokens_in=5, nano=7)]
    hours.add_requests(used, NINE)
    taken = hours.take()
    hours.add_requests(used, NINE)
    hours.put_back(taken)
    [(place, total)] = hours.take().items()
    assert place == (HOUR, "request", "alice", "gpt", "")
    assert (total.count, total.failed, total.tokens_in, total.nano) == (4, 2, 10, 14)


def test_many_names_take_no_more_than_so_much_and_nothing_is_lost():
    hours = HourTotals()
    for number in range(2 * TOTALS_PER_HOUR):
        hours.add_requests([KeyUsage("2026-11-19", "alice", f"m{number}", requests=1)], NINE)
    totals = hours.take()
    assert len(totals) == TOTALS_PER_HOUR + 1
    assert totals[HOUR, "request", "", "", ""].count == TOTALS_PER_HOUR


def test_many_runs_come_to_the_same_whether_they_are_added_up_together_or_by_themselves():
    hours = HourTotals()
    alone: dict[Place, HourTotal] = {}
    for number in range(ADDED_TOGETHER + 7):
        state = ("answered", "failed")[number % 2]
        began = NINE + 3600 * (number % 3)
        row = RunRow(f"run_{number}", began, f"m{number % 5}", key="alice", state=state, seconds=0.01 * number)
        notes = reader_of(row).hour_notes
        hours.add_run(row, notes)
        by_itself = HourTotals()
        by_itself.add_run(row, notes)
        for place, total in by_itself.take().items():
            alone.setdefault(place, HourTotal()).add(total)
    assert hours.take() == alone


class Used:
    name = "gpt"
    key = "alice"
    requests = 3
    failed = calls = tokens_out = unpriced = unpriced_elsewhere = priced_in = priced_out = 0
    tokens_in = 10
    nano = 5


async def test_the_recorder_writes_them_beside_its_runs(tmp_path):
    recorder = Recorder(str, tmp_path, counted=lambda: [Used()])
    call = ReadyCall("call_1", "add", {}, "{}")
    broken = BrokenCall("call_2", "send", Flaw.TRUNCATED, "{")
    by = Responder("gpt", "openai/gpt-5", "host")
    account = TurnAccount(("stop",), (), (call,), (), (broken,), Usage({"prompt_tokens": 10}), 0.25, by=by)
    for number in range(2):
        row = RunRow(f"run_{number}", time.time(), "gpt", key="alice")
        recording = recorder.begin(row, RecordPolicy(), lambda by: Price(1e-6, 2e-6))
        recording.note(0, TurnEnded(0, account))
        recording.note(0, CallEnded(0, call, Returned("5"), 0.125))
        recording.note(0, CallEnded(0, call, Failed("no", FailureKind.RAISED), 0.125))
        recording.note(0, ChatEnded(Ending(EndingKind.ANSWERED, "stop"), None))
        recorder.end(recording)
    await recorder.close()

    database = sqlite3.connect(tmp_path / FILE)
    rows = database.execute(
        "SELECT subject, key, model, name, count, failed, broken, tokens_in, nano, seconds_3 FROM hours ORDER BY 1, 4"
    ).fetchall()
    outcomes = database.execute("SELECT outcomes FROM runs").fetchone()
    [hour] = database.execute("SELECT DISTINCT hour FROM hours").fetchone()
    database.close()
    assert rows == [
        ("flaw", "alice", "gpt", "truncated", 2, 0, 0, 0, 0, 0),
        ("provider", "alice", "gpt", "openai", 2, 0, 0, 0, 0, 0),
        ("request", "alice", "gpt", "", 3, 0, 0, 10, 5, 0),
        ("run", "alice", "gpt", "", 2, 0, 2, 0, 0, 0),
        ("tool", "alice", "gpt", "add", 4, 2, 0, 0, 0, 4),
        ("tool", "alice", "gpt", "send", 0, 0, 2, 0, 0, 0),
    ]
    assert hour in {hour_of(time.time()), hour_of(time.time() - 60)}
    assert outcomes == ('{"add":{"returned":1,"raised":1},"send":{"truncated":1}}',) or "truncated" in outcomes[0]
