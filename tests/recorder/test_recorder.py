"""The recorder: runs under way, ended and written; usage; and the feeds."""

import asyncio
import contextlib
import sqlite3
import threading
import time

import pytest
from structlog.testing import capture_logs

from callgate.api.conversation import emit_to_listeners
from callgate.calls.outcome import Returned
from callgate.calls.states import BrokenCall, Finding, Flaw, FlawDetail, ReadyCall
from callgate.conversation.events import (
    CallEnded,
    CallProgress,
    CallStarted,
    ChatEnded,
    ChatEvent,
    Ending,
    EndingKind,
    ModelOutput,
    TextDelta,
    TurnAccount,
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.ports import APPROVAL_GIVEN, APPROVAL_WANTED
from callgate.conversation.prices import MOST_TOKENS, Price
from callgate.recorder.packed import PackedRun
from callgate.recorder.packing import Mask
from callgate.recorder.recorder import (
    BACKLOG_BYTES,
    FEED_BACKLOG,
    IN_MEMORY,
    IN_MEMORY_BYTES,
    PACKED_TOGETHER,
    Recorder,
)
from callgate.recorder.recording import PACKED_AT_ONCE, RecordPolicy, RunRecording, TextsListener
from callgate.recorder.row import Kept, Recording, RunRow
from callgate.recorder.store import FILE, RunFilter, RunStore, StoreUnusable, day_of

pytestmark = pytest.mark.anyio

CALL = ReadyCall("call_1", "clock", {"zone": "planted-secret"}, '{"zone": "planted-secret"}')
BROKEN = BrokenCall("call_2", "send", Flaw.TRUNCATED, '{"to": "bo')
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
EVENTS = (
    TurnStarted(0),
    TurnEnded(
        0, TurnAccount(("stop",), (), (CALL,), (), (BROKEN,), {"prompt_tokens": 7, "completion_tokens": 3}, 0.25)
    ),
    CallStarted(0, CALL, writes=False),
    CallEnded(0, CALL, Returned("it is noon, planted-secret"), 0.125),
    ChatEnded(Ending(EndingKind.ANSWERED, "stop"), {"prompt_tokens": 7, "completion_tokens": 3}),
)


EVERYTHING = RecordPolicy()


def mask(text: str) -> str:
    return text.replace("planted-secret", "***")


@pytest.fixture
async def recorder(tmp_path):
    made = Recorder(mask, tmp_path)
    yield made
    await made.close()


def recorded(recorder: Recorder, id: str = "run_1", policy: RecordPolicy = EVERYTHING, **row: object) -> RunRecording:
    recording = recorder.begin(RunRow(id, time.time(), "gpt", **row), policy)  # type: ignore[arg-type]
    for event in EVENTS:
        note(recording, event)
    return recording


def note(recording: RunRecording, event: ChatEvent) -> None:
    """As `emit_to_listeners` does."""
    if recording.has_texts:
        TextsListener(recording, 0).handle(event)
    recording.note(0, event)


def recorded_plain(recorder: Recorder, id: str) -> RunRecording:
    recording = recorder.begin(RunRow(id, time.time(), "gpt"), EVERYTHING)
    for event in PLAIN:
        note(recording, event)
    return recording


async def written(recorder: Recorder, id: str = "run_1") -> Recording:
    """The run as the file has it."""
    await recorder.close()
    found = recorder.get(id)
    assert found is not None
    return found


async def test_a_run_is_seen_while_it_is_under_way_and_after_it_was_written(recorder):
    recording = recorded(recorder, key="alice")
    assert [row.state for row in recorder.page(RunFilter(), 10)] == ["answered"]

    recorder.end(recording)
    found = await written(recorder)

    assert (found.row.state, found.row.turns, found.row.calls, found.row.broken_calls) == ("answered", 1, 1, 1)
    assert (found.row.tokens_in, found.row.tokens_out, found.row.finish_reason) == (7, 3, "stop")
    assert [event.kind for event in found.events] == [
        "turn_started",
        "turn_ended",
        "call_started",
        "call_ended",
        "ended",
    ]
    assert [row.id for row in recorder.page(RunFilter(key="alice"), 10)] == ["run_1"]
    assert recorder.page(RunFilter(key="bob"), 10) == []


PLAIN = (
    *(
        TurnStarted(0),
        TurnEnded(0, TurnAccount(("tool_calls",), (Finding.TOOL_CALLS_WITH_STOP,), (CALL,), (), (), USAGE, 0.5)),
    ),
    *(CallStarted(0, CALL, writes=False), CallEnded(0, CALL, Returned("it is noon"), 0.125)),
    *(TurnStarted(1), TurnEnded(1, TurnAccount(("stop",), (), (), (), (), USAGE, 0.25))),
    ChatEnded(Ending(EndingKind.ANSWERED, "stop"), None),
)


@pytest.mark.parametrize("policy", [EVERYTHING, RecordPolicy(content_bytes=1000), RecordPolicy(runs="eventful")])
async def test_a_row_is_the_same_before_and_after_it_is_written(recorder, tmp_path, policy):
    recording = recorder.begin(RunRow("run_1", time.time(), "gpt"), policy, lambda by: Price(1e-6, 2e-6))
    for event in PLAIN:
        note(recording, event)
    [under_way] = recorder.page(RunFilter(), 10)
    recorder.end(recording)
    [waiting] = recorder.page(RunFilter(), 10)
    await recorder.close()
    with contextlib.closing(RunStore(tmp_path)) as store:
        [listed], kept = store.page(RunFilter(), 10), store.get("run_1")
    found = recorder.get("run_1")

    assert found is not None
    assert (listed, kept) == (found.row, found)
    for row in (under_way, waiting, listed):
        assert (row.state, row.finish_reason, row.turns, row.calls, row.attempts) == ("answered", "stop", 2, 1, 2)
        assert (row.tokens_in, row.tokens_out, row.tokens_cached, row.cost) == (14, 6, 8, pytest.approx(26e-6))
        assert (row.findings, row.tools, row.is_odd) == (["tool_calls_with_stop"], ["clock"], False)
        assert row.first_seconds is not None


async def test_streamed_deltas_are_not_recorded():
    recording = RunRecording(RunRow("run_1", 1.0), EVERYTHING, mask)
    words = ModelOutput(0, (TextDelta("hello"),))
    written: list[ChatEvent] = []

    async def write(event: ChatEvent) -> None:
        written.append(event)

    emit = emit_to_listeners([], write, recording=recording)
    for event in (words, *EVENTS):
        await emit(event)
    assert [event for _, _, event in recording.happened] == list(EVENTS)
    assert written == [words, *EVENTS[2:]]


@pytest.mark.parametrize(
    ("counted", "kept"),
    [
        ({"prompt_tokens": 3, "details": {"cached_tokens": 2}}, {"prompt_tokens": 3, "details": {"cached_tokens": 2}}),
        ({"prompt_tokens": 10**30, "more": -5, "note": "planted"}, {"prompt_tokens": MOST_TOKENS, "more": -5}),
        ({"cost": 0.5, "deep": {"deeper": {"deepest": 1}}}, {"cost": 0.5, "deep": {}}),
        ({"n" * 100_000: 1}, {"n" * 64: 1}),
        ({str(number): number for number in range(99)}, {str(number): number for number in range(32)}),
    ],
    ids=["usual", "too much", "too deep", "a long name", "many"],
)
async def test_of_what_a_provider_counts_numbers_are_kept(recorder, counted, kept):
    recording = recorder.begin(RunRow("run_1", time.time(), "gpt"), EVERYTHING)
    note(recording, TurnEnded(0, TurnAccount(("stop",), (), (), (), (), counted, 0.25)))
    recorder.end(recording)
    [event] = (await written(recorder)).events

    assert event.facts["usage"] == kept


async def test_without_content_no_text_is_in_the_file(recorder, tmp_path):
    recorder.end(recorded(recorder))
    found = await written(recorder)

    assert (found.content, found.row.kept) == ({}, Kept.NOTHING)
    for file in tmp_path.glob(f"{FILE}*"):
        assert b"noon" not in file.read_bytes()
        assert b"zone" not in file.read_bytes()


async def test_without_content_only_the_rule_of_a_broken_call_is_kept(recorder, tmp_path):
    problem = FlawDetail("/planted-key", "integer", '"planted"', "planted-note", "/additionalProperties/type")
    calls = (
        BrokenCall("call_1", "send", Flaw.SCHEMA_MISMATCH, '{"planted-key": "planted"}', problem),
        BrokenCall(
            "call_2", "x" * 64 + "planted", Flaw.UNKNOWN_TOOL, "{}", FlawDetail(expected="a tool", got="planted")
        ),
    )
    recording = recorder.begin(RunRow("run_1", time.time(), "gpt"), EVERYTHING)
    note(recording, TurnEnded(0, TurnAccount(("stop",), (), (), (), calls, {}, 0.25)))
    recorder.end(recording)
    [event] = (await written(recorder)).events

    assert [call["problem"] for call in event.facts["calls"]] == [
        {"rule": "/additionalProperties/type"},
        {"expected": "a tool"},
    ]
    assert b"planted" not in (tmp_path / FILE).read_bytes()


async def test_with_content_every_text_is_kept_masked(recorder, tmp_path):
    recording = recorded(recorder, policy=RecordPolicy(content_bytes=1000))
    recording.keep_text("request", "hello planted-secret")
    recorder.end(recording)
    found = await written(recorder)

    assert found.row.kept is Kept.CONTENT
    assert found.content == {
        "request": "hello ***",
        "call.call_1.arguments": '{"zone": "***"}',
        "call.call_2.arguments": '{"to": "bo',
        "call.call_1.result": "it is noon, ***",
    }
    assert all(b"planted-secret" not in file.read_bytes() for file in tmp_path.glob(f"{FILE}*"))


async def test_of_a_call_that_was_repaired_both_what_was_written_and_what_was_read_is_kept(recorder):
    call = ReadyCall(
        "call_3", "clock", {"zone": "planted-secret"}, "{zone: planted-secret}", (Finding.ARGUMENTS_REPAIRED,)
    )
    recording = recorder.begin(RunRow("run_1", time.time(), "gpt"), RecordPolicy(content_bytes=1000))
    note(recording, TurnEnded(0, TurnAccount(("stop",), (), (call,), (), (), None, 0.25)))
    recorder.end(recording)
    found = await written(recorder)

    assert found.content == {
        "call.call_3.arguments": "{zone: ***}",
        "call.call_3.read": '{"zone":"***"}',
    }


async def test_it_is_kept_without_content_when_a_person_was_waited_for(recorder):
    recording = recorder.begin(RunRow("run_1", time.time(), "gpt"), EVERYTHING)
    for event in (
        CallProgress(0, CALL, APPROVAL_WANTED + "apr_1", waits_for="apr_1"),
        CallProgress(0, CALL, APPROVAL_GIVEN, approved=True),
        CallProgress(0, CALL, str(APPROVAL_GIVEN)),  # in the words of a tool
    ):
        note(recording, event)
    recorder.end(recording)
    found = await written(recorder)

    assert [{name: event.facts[name] for name in event.facts.keys() - {"id"}} for event in found.events] == [
        {"fraction": None, "approval": "apr_1"},
        {"fraction": None, "approved": True},
        {"fraction": None},
    ]


async def test_a_long_text_is_cut_and_the_run_is_marked(recorder):
    recording = recorded(recorder, policy=RecordPolicy(content_bytes=300))
    recording.keep_text("request", "é" * 300)
    recorder.end(recording)
    found = await written(recorder)

    assert found.row.kept is Kept.CUT
    assert found.content["request"] == "é" * 150


@pytest.mark.parametrize("before", [0, 290, 295, 299])
async def test_of_a_secret_that_is_cut_not_its_beginning_stays(recorder, before):
    recording = recorded(recorder, policy=RecordPolicy(content_bytes=300))
    recording.keep_text("request", "x" * before + "planted-secret" + "y" * 500)
    recorder.end(recording)
    found = await written(recorder)

    assert found.row.kept is Kept.CUT
    assert found.content["request"].strip("xy") in {"***", "**", "*"}


@pytest.mark.parametrize(("runs", "error", "kept"), [("all", "", True), ("off", "x", False), ("eventful", "", True)])
async def test_the_policy_decides_what_is_kept(recorder, runs, error, kept):
    recorder.end(recorded(recorder, policy=RecordPolicy(runs=runs)), error=error)
    await recorder.close()

    assert (recorder.get("run_1") is not None) is kept


async def test_an_eventless_run_is_not_kept_where_only_eventful_ones_are(recorder):
    recording = recorder.begin(RunRow("run_1", time.time(), "gpt"), RecordPolicy(runs="eventful"))
    note(recording, EVENTS[-1])
    recorder.end(recording)
    await recorder.close()

    assert recorder.get("run_1") is None


async def test_each_run_is_kept_by_the_policy_it_began_with(recorder):
    off, on = recorded(recorder, "run_off", RecordPolicy(runs="off")), recorded(recorder, "run_on")
    recorder.end(off)
    recorder.end(on)
    await recorder.close()

    assert (recorder.get("run_off"), recorder.get("run_on") is not None) == (None, True)


def held_mask() -> tuple[threading.Event, threading.Event, Mask]:
    """A mask that says when it is called, and waits until it may go on."""
    is_masking, may_go_on = threading.Event(), threading.Event()

    def slow_mask(text: str) -> str:
        is_masking.set()
        assert may_go_on.wait(5)
        return text

    return is_masking, may_go_on, slow_mask


async def test_a_run_that_is_removed_while_it_is_written_is_not_there_afterwards(tmp_path):
    is_masking, may_go_on, slow_mask = held_mask()
    recorder = Recorder(slow_mask, tmp_path)
    recorder.end(recorded(recorder, policy=RecordPolicy(content_bytes=100)))
    assert await asyncio.to_thread(is_masking.wait, 5)
    assert recorder.delete("run_1")
    may_go_on.set()
    await recorder.close()

    assert recorder.get("run_1") is None
    assert recorder.page(RunFilter(), 10) == []


async def test_a_run_that_ends_while_the_recorder_is_closed_is_written(tmp_path):
    is_masking, may_go_on, slow_mask = held_mask()
    recorder = Recorder(slow_mask, tmp_path)
    recorder.end(recorded(recorder, policy=RecordPolicy(content_bytes=100)))
    recorder._pack()
    assert await asyncio.to_thread(is_masking.wait, 5)
    closing = asyncio.create_task(recorder.close())
    await asyncio.sleep(0)
    recorder.end(recorded_plain(recorder, "run_2"))
    recorder._pack()
    may_go_on.set()
    await closing

    assert not recorder.has_waiting
    with contextlib.closing(RunStore(tmp_path)) as store:
        assert store.get("run_2") is not None


async def test_a_list_of_runs_reads_none_of_their_texts():
    masked: list[str] = []

    def noting_mask(text: str) -> str:
        masked.append(text)
        return text

    recorder = Recorder(noting_mask)
    recording = recorded(recorder, policy=RecordPolicy(content_bytes=100))
    [row] = recorder.page(RunFilter(), 10)

    assert (row.kept, masked) == (Kept.CONTENT, [])
    recorder.end(recording)
    await recorder.close()


async def test_long_texts_are_not_kept_in_memory_for_all_of_the_newest_runs():
    recorder = Recorder(mask)
    for number in range(20):
        recording = recorded(recorder, f"run_{number:02}", RecordPolicy(content_bytes=IN_MEMORY_BYTES // 8))
        recording.keep_text("request", "x" * (IN_MEMORY_BYTES // 8))
        recorder.end(recording)
        if number % 4 == 3:
            await recorder.close()  # as much as may wait to be written
    await recorder.close()

    rows = recorder.page(RunFilter(), 1000)
    assert [row.id for row in rows] == [f"run_{number:02}" for number in range(19, 12, -1)]


async def test_what_waits_to_be_written_is_bounded_by_the_texts_of_its_calls():
    dropped: list[None] = []
    may_go_on = threading.Event()

    def slow_mask(text: str) -> str:
        assert may_go_on.wait(5)
        return text

    recorder = Recorder(slow_mask, on_dropped=lambda: dropped.append(None))
    result = CallEnded(0, CALL, Returned("x" * (BACKLOG_BYTES // 4)), 0.1)
    for number in range(6):
        recording = recorded(recorder, f"run_{number}", RecordPolicy(content_bytes=100))
        note(recording, result)
        recorder.end(recording)
    may_go_on.set()
    await recorder.close()

    assert len(dropped) == 2


async def written_until(recorder: Recorder, is_done) -> None:
    async with asyncio.timeout(10):
        while not is_done():  # noqa: ASYNC110 - a thread writes, and emits no event
            await asyncio.sleep(0.01)


async def test_runs_wait_for_a_file_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("callgate.recorder.store.BUSY_SECONDS", 0.01)
    dropped: list[None] = []
    recorder = Recorder(mask, tmp_path, on_dropped=lambda: dropped.append(None))
    RunStore(tmp_path).close()
    with contextlib.closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other, capture_logs() as log:
        other.execute("BEGIN EXCLUSIVE")
        recorder.end(recorded(recorder, "run_1"))
        await written_until(recorder, lambda: any(each["event"] == "runs_not_recorded" for each in log))
        recorder.end(recorded(recorder, "run_2", RecordPolicy(content_bytes=100)))
        assert {row.id for row in recorder.page(RunFilter(), 10)} == {"run_1", "run_2"}
        other.execute("ROLLBACK")
        recorder.end(recorded(recorder, "run_3"))
        await written_until(recorder, lambda: not recorder.has_waiting)
        await recorder.close()
    assert [row.id for row in recorder.page(RunFilter(), 10)] == ["run_3", "run_2", "run_1"]
    assert (dropped, recorder._bytes_in - recorder._bytes_out) == ([], 0)
    assert [each["event"] for each in log] == ["runs_not_recorded", "runs_recorded_again"]


async def test_runs_that_were_written_are_not_written_again_because_usage_was_not(tmp_path, monkeypatch):
    used, failing = Used(), [True]
    count = RunStore.count

    def count_at_last(store: RunStore, used: object) -> None:
        if failing:
            raise StoreUnusable("the disk is full")
        count(store, used)  # type: ignore[arg-type]

    monkeypatch.setattr(RunStore, "count", count_at_last)
    recorder = Recorder(mask, tmp_path, counted=lambda: [used])
    recorder.end(recorded_plain(recorder, "run_1"))
    await written_until(recorder, lambda: not recorder.has_waiting)
    failing.clear()
    recorder.end(recorded_plain(recorder, "run_2"))
    await recorder.close()
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        assert database.execute("SELECT (SELECT sum(runs) FROM chunks), count(*) FROM runs").fetchone() in [
            (2, 0),
            (None, 2),
        ]
    assert [each.requests for each in recorder.usage(day_of(time.time()))] == [2]


async def test_a_run_that_is_removed_while_it_waits_for_the_file_is_in_no_list(tmp_path):
    recorder = Recorder(mask, tmp_path / "later")
    with capture_logs() as log:
        recorder.end(recorded(recorder, "run_1"))
        await written_until(recorder, lambda: any(each["event"] == "runs_not_recorded" for each in log))
        assert recorder.delete("run_1")
        assert (recorder.page(RunFilter(), 10), recorder.get("run_1")) == ([], None)
        (tmp_path / "later").mkdir()
        await recorder.close()
    assert (recorder.page(RunFilter(), 10), recorder.get("run_1")) == ([], None)


async def test_a_run_that_is_removed_while_it_is_packed_is_not_written(tmp_path):
    recorder = Recorder(mask, tmp_path)
    recording = recorder.begin(
        RunRow("run_1", time.time(), "gpt"), EVERYTHING, removing(lambda: recorder.delete("run_1"))
    )
    for event in PLAIN:
        note(recording, event)
    recorder.end(recording)
    await recorder.close()
    assert (recorder.get("run_1"), recorder.page(RunFilter(), 10)) == (None, [])


def removing(remove):
    """A price list; who asks it removes a run, as a thread may meanwhile."""

    def price(by: object) -> None:
        remove()

    return price


async def test_runs_that_take_long_to_pack_do_not_hold_the_event_loop_together(tmp_path):
    recorder = Recorder(mask, tmp_path)
    turns: list[int] = []

    def slow_price(by: object) -> None:
        turns[-1] += 1
        time.sleep(0.001)

    for number in range(PACKED_TOGETHER):
        recording = recorder.begin(RunRow(f"run_{number:02}", time.time(), "gpt"), EVERYTHING, slow_price)
        for event in PLAIN:
            note(recording, event)
        turns.append(0)
        recorder.end(recording)
    while recorder._unpacked:
        turns.append(0)
        await asyncio.sleep(0)
    await recorder.close()
    assert max(turns) < PACKED_TOGETHER
    assert len(recorder.page(RunFilter(), 100)) == PACKED_TOGETHER
    assert [row.id for row in recorder.page(RunFilter(), 2)] == [
        f"run_{PACKED_TOGETHER - 1}",
        f"run_{PACKED_TOGETHER - 2}",
    ]


async def test_a_run_that_counts_very_much_is_weighed_and_shares_no_row(tmp_path):
    usage = {"n" * 60 + str(number): {"m" * 60 + str(part): 1 for part in range(32)} for number in range(32)}
    recorder = Recorder(mask)
    recording = recorder.begin(RunRow("run_1", time.time(), "gpt"), EVERYTHING)
    for turn in range(3):
        note(recording, TurnEnded(turn, TurnAccount(("stop",), (), (), (), (), usage, 0.25)))
    note(recording, PLAIN[-1])
    recorder.end(recording)
    recorder._pack()
    [waiting] = recorder._waiting.values()
    assert waiting.weight > 100_000
    assert waiting.row
    await recorder.close()


async def test_results_that_wait_to_be_packed_by_the_thread_are_weighed(recorder):
    recording = recorder.begin(RunRow("run_1", time.time(), "gpt"), EVERYTHING)
    for _ in range(PACKED_AT_ONCE + 1):
        note(recording, CallEnded(0, CALL, Returned("x" * 10_000), 0.1))
    waiting = recording.to_write()
    assert waiting is recording
    assert waiting.weight > PACKED_AT_ONCE * 10_000
    recorder.end(recording)


async def test_nobody_who_looks_waits_for_a_file_that_is_being_written(tmp_path, monkeypatch):
    is_writing, may_go_on = threading.Event(), threading.Event()
    add = RunStore.add

    def slow_add(store: RunStore, runs: list[PackedRun]) -> None:
        is_writing.set()
        assert may_go_on.wait(10)
        add(store, runs)

    recorder = Recorder(mask, tmp_path)
    recorder.end(recorded(recorder, "run_1"))
    await written_until(recorder, lambda: not recorder.has_waiting)
    monkeypatch.setattr(RunStore, "add", slow_add)
    recorder.end(recorded(recorder, "run_2"))
    assert await asyncio.to_thread(is_writing.wait, 5)
    try:
        async with asyncio.timeout(5):
            for id in ("run_1", "run_2"):
                assert await asyncio.to_thread(recorder.get, id) is not None
            assert await asyncio.to_thread(recorder.replays_of, "run_1") == []
            assert len(await asyncio.to_thread(recorder.page, RunFilter(), 5)) == 2
    finally:
        may_go_on.set()
        await recorder.close()


async def test_where_no_file_can_be_made_the_newest_runs_are_listed_from_memory(tmp_path):
    dropped: list[None] = []
    recorder = Recorder(mask, tmp_path / "no such folder", on_dropped=lambda: dropped.append(None))
    with capture_logs() as log:
        recorder.end(recorded(recorder))
        await recorder.close()
    assert [row.id for row in recorder.page(RunFilter(), 10)] == ["run_1"]
    assert ([each["event"] for each in log], len(dropped)) == (["runs_not_recorded"], 1)


async def test_a_file_that_is_removed_meanwhile_is_begun_anew(tmp_path):
    recorder = Recorder(mask, tmp_path)
    recorder.end(recorded(recorder, "run_1"))
    await written_until(recorder, lambda: not recorder.has_waiting)
    for file in tmp_path.glob(f"{FILE}*"):
        file.unlink()
    with capture_logs() as log:
        recorder.end(recorded(recorder, "run_2"))
        await recorder.close()
    assert [row.id for row in recorder.page(RunFilter(), 10)] == ["run_2"]
    assert [each["event"] for each in log] == ["runs_file_gone"]


async def test_in_memory_the_newest_runs_stay(tmp_path):
    recorder = Recorder(mask)
    for number in range(IN_MEMORY + 50):
        recorder.end(recorded(recorder, f"run_{number:04}"))
    await recorder.close()

    rows = recorder.page(RunFilter(), 1000)
    assert len(rows) == IN_MEMORY
    assert rows[0].id == f"run_{IN_MEMORY + 49:04}"
    assert recorder.delete(rows[0].id)
    assert recorder.get(rows[0].id) is None


async def test_who_follows_a_run_in_which_nothing_happens_is_given_a_sign_of_life(recorder):
    recording = recorded(recorder)
    following = recorder.follow(recorder.get("run_1"), idle_seconds=0.01)
    async with asyncio.timeout(5):
        seen = [await anext(following) for _ in range(len(EVENTS) + 1)]
    await following.aclose()
    recorder.end(recording)

    assert seen[-1] is None
    assert None not in seen[:-1]


async def test_who_watches_gets_what_begins_and_what_ends(recorder):
    feed = recorder.watch()
    recorder.end(recorded(recorder))
    async with asyncio.timeout(5):
        first, second = await feed.get(), await feed.get()
    recorder.end_feeds()
    async with asyncio.timeout(5):
        last = await feed.get()

    assert (first[0], second[0], last[0]) == ("run", "run", "end")
    assert (first[1].state, second[1].state) == ("under_way", "answered")
    recorder.unwatch(feed)


async def test_a_watcher_that_is_far_behind_is_still_sent_away(recorder):
    feed = recorder.watch()
    for _ in range(FEED_BACKLOG + 10):
        recorder.publish("server")
    recorder.end_feeds()
    async with asyncio.timeout(5):
        kinds = [(await feed.get())[0] for _ in range(FEED_BACKLOG + 1)]

    assert kinds == ["server"] * FEED_BACKLOG + ["end"]


async def test_who_comes_when_the_feeds_have_ended_is_sent_away(recorder):
    recording = recorded(recorder)
    snapshot = recorder.get("run_1")
    recorder.end_feeds()
    feed = recorder.watch()
    async with asyncio.timeout(5):
        assert (await feed.get())[0] == "end"
        events = [event.kind async for event in recorder.follow(snapshot)]

    assert events[-1] == "ended"
    recorder.end(recording)


async def test_there_is_an_end_to_how_many_may_watch(recorder):
    assert [recorder.reserve_watcher() for _ in range(21)] == [True] * 20 + [False]
    recorder.release_watcher()
    assert recorder.reserve_watcher()


async def test_a_key_that_sees_its_own_runs_leaves_places_to_others(recorder):
    assert [recorder.reserve_watcher("bob") for _ in range(7)] == [True] * 5 + [False] * 2
    assert recorder.reserve_watcher("eve")
    assert recorder.reserve_watcher()
    recorder.release_watcher("bob")
    assert recorder.reserve_watcher("bob")


async def test_keys_that_see_their_own_runs_leave_places_to_watch(recorder):
    taken = [recorder.reserve_watcher(key) for key in ("a", "b", "c", "d") for _ in range(5)]
    assert taken == [True] * 15 + [False] * 5
    assert [recorder.reserve_watcher() for _ in range(6)] == [True] * 5 + [False]


async def test_a_run_that_ends_between_reading_and_following_it_is_followed_to_its_end(recorder):
    recording = recorder.begin(RunRow("run_1", time.time(), "gpt"), EVERYTHING)
    note(recording, PLAIN[0])
    read = recorder.get("run_1")
    for event in PLAIN[1:]:
        note(recording, event)
    recorder.end(recording)
    events = [event.kind async for event in recorder.follow(read)]
    assert (len(events), events[-1]) == (len(PLAIN), "ended")


async def test_a_run_can_be_followed_to_its_end(recorder):
    recording = recorder.begin(RunRow("run_1", time.time(), "gpt"), RecordPolicy())
    note(recording, EVENTS[0])
    snapshot = recorder.get("run_1")
    seen: list[str] = []
    has_begun = asyncio.Event()

    async def follow() -> None:
        async for event in recorder.follow(snapshot):
            seen.append(event.kind)
            has_begun.set()

    following = asyncio.create_task(follow())
    async with asyncio.timeout(5):
        await has_begun.wait()
        note(recording, EVENTS[1])
        recorder.end(recording)
        await following

    assert seen == ["turn_started", "turn_ended"]


async def test_a_disk_that_cannot_be_written_is_counted_and_the_request_goes_on(tmp_path):
    dropped: list[None] = []
    (tmp_path / FILE).mkdir()
    recorder = Recorder(mask, tmp_path, lambda: dropped.append(None))
    recorder.end(recorded(recorder))
    await recorder.close()

    assert len(dropped) == 1


@pytest.mark.parametrize(
    "answer",
    [
        TurnAccount(("stop",), (), (), (), (), {"prompt_tokens": 10**30, "words": "x" * 10**6}, 0.25),
        TurnAccount(("\ud800",), (), (), (), (), None, 0.25),
        TurnAccount(("stop",), (), (), (), (BrokenCall("\ud800", "send", Flaw.TRUNCATED, ""),), None, 0.25),
    ],
    ids=["huge number", "half a character", "half a character in a call"],
)
async def test_a_run_that_cannot_be_written_takes_no_other_with_it(tmp_path, answer):
    dropped: list[None] = []
    recorder = Recorder(mask, tmp_path, lambda: dropped.append(None))
    odd = recorder.begin(RunRow("run_odd", time.time(), "gpt"), EVERYTHING)
    note(odd, TurnEnded(0, answer))
    recorder.end(odd)
    recorder.end(recorded(recorder, "run_beside"))
    await recorder.close()
    recorder.end(recorded(recorder, "run_after"))
    await recorder.close()

    with contextlib.closing(RunStore(tmp_path)) as store:
        ids = {row.id for row in store.page(RunFilter(), 10)}
        assert {"run_beside", "run_after"} <= ids
        assert len(ids) + len(dropped) == 3
        if (odd_one := store.get("run_odd")) is not None:
            assert len(str(odd_one.events)) < 1000


class Used:
    name, key = "gpt", "alice"
    requests, failed, calls, tokens_in, tokens_out = 2, 0, 0, 10, 0
    nano, unpriced, unpriced_elsewhere, priced_in, priced_out = 5, 0, 1, 10, 0


async def test_what_was_used_is_counted_whatever_is_recorded(tmp_path):
    used, today = Used(), day_of(time.time())
    recorder = Recorder(mask, tmp_path, counted=lambda: [used])
    assert [(each.key, each.model, each.requests) for each in recorder.usage(today)] == [("alice", "gpt", 2)]

    recorder.open()
    await recorder.close()
    used.requests += 1
    [found] = recorder.usage(today)
    assert (found.requests, found.tokens_in) == (3, 10)
