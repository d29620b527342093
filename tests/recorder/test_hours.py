"""The totals of hours: what was asked, what ran, what broke and how long it took, by key and model."""

import random
import sqlite3
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from callgate.recorder.hours import (
    ADDED_TOGETHER,
    BOUNDS,
    MINUTES_KEPT,
    SORTED_DURATIONS,
    TOTALS_PER_HOUR,
    HourPlace,
    HourTotal,
    HourTotals,
    Totals,
    percentile,
)
from callgate.recorder.recorder import Recorder
from callgate.recorder.recording import RunRecording
from callgate.recorder.store import FILE
from callgate.records.policy import RecordPolicy
from callgate.records.row import RunRow

pytestmark = pytest.mark.anyio

NINE = 1_795_078_800.0
"""2026-11-19T09:00Z"""
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
    hours.add_runs([(row, reader_of(row).hour_notes)])
    [(minute, totals)] = hours.take().items()

    assert minute == NINE // 60 + 1
    run = totals.pop(HourPlace("run", "alice", "gpt"))
    tool = totals.pop(HourPlace("call", "alice", "gpt", "openai", "add"))
    provider = totals.pop(HourPlace("answer", "alice", "gpt", "openai"))
    retried = totals.pop(HourPlace("answer", "alice", "gpt", "azure"))
    broken = totals.pop(HourPlace("broken", "alice", "gpt", "openai", "add", "truncated"))
    assert totals == {}
    assert (run.count, run.failed, run.broken, run.seconds) == (1, 1, 0, bucket(2.0))
    assert run.first_seconds == bucket(0.4)
    assert (tool.count, tool.failed, tool.seconds) == (
        2,
        1,
        [a + b for a, b in zip(bucket(0.1), bucket(1000.0), strict=True)],
    )
    assert (provider.count, provider.failed, provider.seconds) == (1, 0, bucket(0.3))
    assert (retried.count, retried.failed) == (0, 1)
    assert broken.count == 1
    assert hours.take() == {}


def test_a_run_with_a_broken_call_is_counted_once_as_failed_or_as_one_with_a_broken_call():
    hours = HourTotals()
    for state in ("answered", "failed"):
        hours.add_runs([(RunRow("run", NINE, "gpt", state=state, broken_calls=2), ())])
    [totals] = hours.take().values()
    [total] = totals.values()
    assert (total.count, total.failed, total.broken) == (2, 1, 1)


def test_a_call_without_a_model_is_counted_for_its_tool_alone():
    hours = HourTotals()
    hours.add_runs([(RunRow("run", NINE, route="tool"), [("call", "", "add", "", 0.1, 0.0)])])
    [totals] = hours.take().values()
    assert [place.subject for place in totals] == ["call"]


def test_each_tool_has_the_outcomes_of_its_calls():
    assert reader_of(RunRow("run_1", NINE)).outcomes == {
        "add": {"truncated": 1, "raised": 1, "returned": 1},
        "mine": {"handed_back": 1},
        "late": {"not_run": 1},
    }


def test_totals_that_could_not_be_written_are_added_to_those_that_came_meanwhile():
    hours = HourTotals()
    row = RunRow("run_1", NINE, "gpt", key="alice")
    hours.add_runs([(row, ())])
    taken = hours.take()
    hours.add_runs([(row, ())])
    hours.put_back(taken)
    assert hours.unwritten_hours()[int(NINE // 3600)][HourPlace("run", "alice", "gpt")].count == 2
    [totals] = hours.take().values()
    assert totals[HourPlace("run", "alice", "gpt")].count == 2


def test_many_names_take_no_more_than_so_much_and_nothing_is_lost():
    hours = HourTotals()
    for number in range(TOTALS_PER_HOUR + 7):
        hours.add_runs([(RunRow(f"run_{number}", NINE, f"m{number}"), ())])
    [totals] = hours.take().values()
    assert len(totals) == TOTALS_PER_HOUR + 1
    assert totals[HourPlace("run", "", "")].count == 7
    hours.add_runs([(RunRow("run", NINE + 60, "one more"), ())])  # what is written does not make room in its hour
    [later] = hours.take().values()
    assert list(later) == [HourPlace("run", "", "")]


def test_many_runs_come_to_the_same_whether_they_are_added_up_together_or_by_themselves():
    hours = HourTotals()
    alone: dict[int, Totals] = {}
    for number in range(ADDED_TOGETHER + 7):
        state = ("answered", "failed")[number % 2]
        began = NINE + 3600 * (number % 3)
        row = RunRow(f"run_{number}", began, f"m{number % 5}", key="alice", state=state, seconds=0.01 * number)
        notes = reader_of(row).hour_notes
        hours.add_runs([(row, notes)])
        by_itself = HourTotals()
        by_itself.add_runs([(row, notes)])
        for minute, totals in by_itself.take().items():
            for place, total in totals.items():
                alone.setdefault(minute, {}).setdefault(place, HourTotal()).add(total)
    assert hours.take() == alone


def test_the_last_minutes_stay_in_memory_and_older_ones_go(monkeypatch: pytest.MonkeyPatch):
    hours = HourTotals()
    now = int(time.time() // 60)
    for minute in (now, now - MINUTES_KEPT - 1):
        hours.add_runs([(RunRow("run", minute * 60.0, "gpt"), ())])
    hours.note_written(hours.take())
    hours.add_runs([(RunRow("run", now * 60.0, "gpt"), ())])
    minutes = hours.minutes()
    assert {minute: total.count for minute, of in minutes.items() for total in of.values()} == {now: 2}
    monkeypatch.setattr("callgate.recorder.hours.TOTALS_OF_MINUTES", 0)
    hours.note_written({})
    assert [total.count for of in hours.minutes().values() for total in of.values()] == [1]


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_percentile_is_in_the_bucket_of_the_exact_one(share: float):
    chance = random.Random(3)
    durations = [chance.lognormvariate(-1, 1.5) for _ in range(500)]
    hours = HourTotals()
    for seconds in durations:
        hours.add_runs([(RunRow("run", NINE, "gpt", seconds=seconds), ())])
    [totals] = hours.take().values()
    found = percentile(totals[HourPlace("run", "", "gpt")].seconds, share)
    exact = sorted(durations)[int(len(durations) * share) - 1]
    assert found is not None
    assert bucket(found) == bucket(exact)


def test_there_is_no_percentile_of_nothing_and_the_last_bound_stands_for_what_took_longer():
    assert percentile(HourTotal().seconds, 0.5) is None
    assert percentile(bucket(1000.0), 0.5) == BOUNDS[-1]


class Used:
    name = "gpt"
    key = "alice"
    requests = 3
    failed = calls = tokens_out = tokens_cached = tokens_cache_written = unpriced = unpriced_elsewhere = priced_in = (
        priced_out
    ) = 0
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
        "SELECT subject, key, model, provider, tool, flaw, count, failed, broken, seconds_9 FROM hours ORDER BY 1, 5"
    ).fetchall()
    shown = database.execute("SELECT shown, model, name, count, failed FROM shown_hours ORDER BY 1, 3").fetchall()
    used = database.execute("SELECT key, model, requests, tokens_in, nano FROM usage_hours").fetchall()
    models = database.execute("SELECT model, requests, tokens_in, nano FROM model_hours").fetchall()
    outcomes = database.execute("SELECT outcomes FROM runs").fetchone()
    [hour] = database.execute("SELECT DISTINCT hour FROM hours").fetchone()
    database.close()
    assert rows == [
        ("answer", "alice", "gpt", "openai", "", "", 2, 0, 0, 0),
        ("broken", "alice", "gpt", "openai", "send", "truncated", 2, 0, 0, 0),
        ("call", "alice", "gpt", "openai", "add", "", 4, 2, 0, 4),
        ("run", "alice", "gpt", "", "", "", 2, 0, 2, 0),
    ]
    assert shown == [
        ("broken_tool", "", "send", 2, 0),
        ("flaw", "gpt", "truncated", 2, 0),
        ("model", "gpt", "", 2, 0),
        ("provider", "", "openai", 2, 0),
        ("tool", "", "add", 4, 2),
    ]
    assert used == [("alice", "gpt", 3, 10, 5)]
    assert models == [("gpt", 3, 10, 5)]
    assert hour in {int(time.time() // 3600), int(time.time() // 3600) - 1}
    assert outcomes == ('{"add":{"returned":1,"raised":1},"send":{"truncated":1}}',) or "truncated" in outcomes[0]


@given(st.lists(st.sampled_from(BOUNDS) | st.floats(0, 200), min_size=SORTED_DURATIONS, max_size=3 * SORTED_DURATIONS))
def test_many_durations_come_to_the_same_as_each_by_itself(durations: list[float]):
    together, by_itself = HourTotals(), HourTotals()
    together.add_runs([(RunRow("run", NINE, "gpt", seconds=seconds), ()) for seconds in durations])
    for seconds in durations:
        by_itself.add_runs([(RunRow("run", NINE, "gpt", seconds=seconds), ())])
        by_itself.unwritten_hours()
    assert together.take() == by_itself.take()
