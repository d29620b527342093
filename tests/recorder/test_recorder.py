"""The recorder: runs under way, ended and written; usage; and the feeds."""

import asyncio
import contextlib
import sqlite3
import threading
import time

import pytest
from structlog.testing import capture_logs

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
from callgate.conversation.listeners import emit_to_listeners
from callgate.conversation.ports import approved_by
from callgate.conversation.prices import Price
from callgate.conversation.usage import MOST_TOKENS, Usage
from callgate.recorder import backlog
from callgate.recorder.backlog import FellBehind
from callgate.recorder.ended_run import EndedRun
from callgate.recorder.events import Mask
from callgate.recorder.newest_runs import IN_MEMORY, IN_MEMORY_BYTES
from callgate.recorder.recorder import Recorder
from callgate.recorder.recording import ENCODED_AT_ONCE, KEPT_AS_IT_CAME, EventsListener, RunRecording
from callgate.recorder.run_filter import RunFilter
from callgate.recorder.store import FILE, RunStore, StoreDamaged, StoreUnusable
from callgate.recorder.usage import day_of
from callgate.recorder.writer import BACKLOG_BYTES, ENCODED_TOGETHER
from callgate.records.policy import RecordPolicy
from callgate.records.row import Kept, RecordedRun, RunRow

pytestmark = pytest.mark.anyio

CALL = ReadyCall("call_1", "clock", {"zone": "planted-secret"}, '{"zone": "planted-secret"}')
BROKEN = BrokenCall("call_2", "send", Flaw.TRUNCATED, '{"to": "bo')
SMALL = Usage({"prompt_tokens": 7, "completion_tokens": 3})
USAGE = Usage({"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}})
EVENTS = (
    TurnStarted(0),
    TurnEnded(0, TurnAccount(("stop",), (), (CALL,), (), (BROKEN,), SMALL, 0.25, counts=SMALL.counts())),
    CallStarted(0, CALL, writes=False),
    CallEnded(0, CALL, Returned("it is noon, planted-secret"), 0.125),
    ChatEnded(Ending(EndingKind.ANSWERED, "stop"), Usage({"prompt_tokens": 7, "completion_tokens": 3})),
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
    recording.note(0, event)


def recorded_plain(recorder: Recorder, id: str) -> RunRecording:
    recording = recorder.begin(RunRow(id, time.time(), "gpt"), EVERYTHING)
    for event in PLAIN:
        note(recording, event)
    return recording


async def run_in_file(recorder: Recorder, id: str = "run_1") -> RecordedRun:
    """The run as the file has it."""
    await recorder.close()
    found = recorder.get(id)
    assert found is not None
    return found


async def test_a_run_is_seen_while_it_is_under_way_and_after_it_was_written(recorder):
    recording = recorded(recorder, key="alice")
    assert [row.state for row in recorder.page(RunFilter(), 10)] == ["answered"]

    recorder.end(recording)
    found = await run_in_file(recorder)

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
        TurnEnded(
            0,
            TurnAccount(
                ("tool_calls",), (Finding.TOOL_CALLS_WITH_STOP,), (CALL,), (), (), USAGE, 0.5, counts=USAGE.counts()
            ),
        ),
    ),
    *(CallStarted(0, CALL, writes=False), CallEnded(0, CALL, Returned("it is noon"), 0.125)),
    *(TurnStarted(1), TurnEnded(1, TurnAccount(("stop",), (), (), (), (), USAGE, 0.25, counts=USAGE.counts()))),
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

    emit = emit_to_listeners([EventsListener(_recording=recording, _choice=0)], write)
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
    note(recording, TurnEnded(0, TurnAccount(("stop",), (), (), (), (), Usage(counted), 0.25)))
    recorder.end(recording)
    [event] = (await run_in_file(recorder)).events

    assert event.facts["usage"] == kept


async def test_without_content_no_text_is_in_the_file(recorder, tmp_path):
    recorder.end(recorded(recorder))
    found = await run_in_file(recorder)

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
    note(recording, TurnEnded(0, TurnAccount(("stop",), (), (), (), calls, Usage({}), 0.25)))
    recorder.end(recording)
    [event] = (await run_in_file(recorder)).events

    assert [call["problem"] for call in event.facts["calls"]] == [
        {"rule": "/additionalProperties/type"},
        {"expected": "a tool"},
    ]
    assert b"planted" not in (tmp_path / FILE).read_bytes()


async def test_with_content_every_text_is_kept_masked(recorder, tmp_path):
    recording = recorded(recorder, policy=RecordPolicy(content_bytes=1000))
    recording.keep_text("request", "hello planted-secret")
    recorder.end(recording)
    found = await run_in_file(recorder)

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
    found = await run_in_file(recorder)

    assert found.content == {
        "call.call_3.arguments": "{zone: ***}",
        "call.call_3.read": '{"zone":"***"}',
    }


async def test_it_is_kept_without_content_when_a_person_was_waited_for(recorder):
    recording = recorder.begin(RunRow("run_1", time.time(), "gpt"), EVERYTHING)
    for event in (
        CallProgress(0, CALL, "waiting for approval apr_1", waits_for="apr_1"),
        CallProgress(0, CALL, approved_by("boss", "").message, approved=True, decided_by="boss"),
        CallProgress(0, CALL, approved_by("boss", "").message),  # in the words of a tool
    ):
        note(recording, event)
    recorder.end(recording)
    found = await run_in_file(recorder)

    assert [{name: event.facts[name] for name in event.facts.keys() - {"id"}} for event in found.events] == [
        {"fraction": None, "approval": "apr_1"},
        {"fraction": None, "approved": True, "by": "boss"},
        {"fraction": None},
    ]


async def test_a_long_text_is_cut_and_the_run_is_marked(recorder):
    recording = recorded(recorder, policy=RecordPolicy(content_bytes=300))
    recording.keep_text("request", "é" * 300)
    recorder.end(recording)
    found = await run_in_file(recorder)

    assert found.row.kept is Kept.CUT
    assert found.content["request"] == "é" * 150


@pytest.mark.parametrize("before", [0, 290, 295, 299])
async def test_of_a_secret_that_is_cut_not_its_beginning_stays(recorder, before):
    recording = recorded(recorder, policy=RecordPolicy(content_bytes=300))
    recording.keep_text("request", "x" * before + "planted-secret" + "y" * 500)
    recorder.end(recording)
    found = await run_in_file(recorder)

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
    recorder.writer.encode_waiting()
    assert await asyncio.to_thread(is_masking.wait, 5)
    closing = asyncio.create_task(recorder.close())
    await asyncio.sleep(0)
    recorder.end(recorded_plain(recorder, "run_2"))
    recorder.writer.encode_waiting()
    may_go_on.set()
    await closing

    assert not recorder.writer.has_waiting
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
    async with asyncio.timeout(30):
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
        await written_until(recorder, lambda: not recorder.writer.has_waiting)
        await recorder.close()
    assert [row.id for row in recorder.page(RunFilter(), 10)] == ["run_3", "run_2", "run_1"]
    assert (dropped, recorder.writer._bytes) == ([], 0)
    assert [each["event"] for each in log] == ["runs_not_recorded", "runs_recorded_again"]


@pytest.mark.parametrize("when", ["at the start", "while it runs"])
async def test_a_damaged_file_is_set_aside_in_one_line_and_runs_go_into_a_new_one(tmp_path, monkeypatch, when):
    before = Recorder(mask, tmp_path)
    for number in range(5):
        before.end(recorded(before, f"run_of_before_{number}"))
    await before.close()
    recorder = Recorder(mask, tmp_path)
    with capture_logs() as log:
        if when == "while it runs":
            recorder.end(recorded(recorder, "run_0"))
            await written_until(recorder, lambda: not recorder.writer.has_waiting)
            damaged, add = (tmp_path / FILE).stat().st_ino, RunStore.add

            def add_unless_damaged(store: RunStore, runs: list[EndedRun]) -> None:
                if store.inode == damaged:
                    raise StoreDamaged("database disk image is malformed")
                add(store, runs)

            monkeypatch.setattr(RunStore, "add", add_unless_damaged)
        else:
            (tmp_path / FILE).write_bytes(b"\xa5" * 9000)
            recorder.open()
            await written_until(recorder, lambda: bool(log))
        recorder.end(recorded(recorder, "run_1"))
        await written_until(recorder, lambda: not recorder.writer.has_waiting)
        recorder.end(recorded(recorder, "run_2"))
        await recorder.close()
    assert [(each["event"], each["reason"]) for each in log] == [("runs_file_set_aside", "it is damaged")]
    with contextlib.closing(RunStore(tmp_path, read_only=True)) as store:
        assert {"run_1", "run_2"} <= {row.id for row in store.page(RunFilter(), 10)}
    assert (tmp_path / "runs-damaged.sqlite3").is_file()


async def test_runs_that_were_written_are_not_written_again_because_usage_was_not(tmp_path, monkeypatch):
    used, failing = Used(), [True]
    count = RunStore.count

    def count_at_last(store: RunStore, *counted: object) -> None:
        if failing:
            raise StoreUnusable("the disk is full")
        count(store, *counted)  # type: ignore[arg-type]

    monkeypatch.setattr(RunStore, "count", count_at_last)
    recorder = Recorder(mask, tmp_path, counted=lambda: [used])
    recorder.end(recorded_plain(recorder, "run_1"))
    await written_until(recorder, lambda: not recorder.writer.has_waiting)
    failing.clear()
    recorder.end(recorded_plain(recorder, "run_2"))
    await recorder.close()
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (2,)
        assert database.execute("SELECT count FROM hours WHERE subject = 'run'").fetchone() == (2,)
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

    for number in range(ENCODED_TOGETHER):
        recording = recorder.begin(RunRow(f"run_{number:02}", time.time(), "gpt"), EVERYTHING, slow_price)
        for event in PLAIN:
            note(recording, event)
        turns.append(0)
        recorder.end(recording)
    while recorder.writer._unencoded:
        turns.append(0)
        await asyncio.sleep(0)
    await recorder.close()
    assert max(turns) < ENCODED_TOGETHER
    assert len(recorder.page(RunFilter(), 100)) == ENCODED_TOGETHER
    assert [row.id for row in recorder.page(RunFilter(), 2)] == [
        f"run_{ENCODED_TOGETHER - 1}",
        f"run_{ENCODED_TOGETHER - 2}",
    ]


async def test_a_run_that_counts_very_much_is_weighed(tmp_path):
    usage = {"n" * 60 + str(number): {"m" * 60 + str(part): 1 for part in range(32)} for number in range(32)}
    recorder = Recorder(mask, tmp_path)
    recording = recorder.begin(RunRow("run_1", time.time(), "gpt"), EVERYTHING)
    for turn in range(3):
        note(recording, TurnEnded(turn, TurnAccount(("stop",), (), (), (), (), Usage(usage), 0.25)))
    note(recording, PLAIN[-1])
    recorder.end(recording)
    recorder.writer.encode_waiting()
    [waiting] = recorder.writer.waiting()
    assert waiting.weight() > 100_000
    await recorder.close()


async def test_texts_that_are_gathered_before_the_thread_packs_them_are_weighed_once(recorder):
    recording = recorder.begin(
        RunRow("run_1", time.time(), "gpt"), RecordPolicy(content_bytes=1000, private_to="alice")
    )
    note(recording, CallEnded(0, CALL, Returned("x" * KEPT_AS_IT_CAME), 0.1))
    assert not recording.is_encoded_quickly()
    assert KEPT_AS_IT_CAME < recording.weight() < 1.5 * KEPT_AS_IT_CAME
    recorder.end(recording)


async def test_results_that_wait_to_be_packed_by_the_thread_are_weighed(recorder):
    recording = recorder.begin(RunRow("run_1", time.time(), "gpt"), EVERYTHING)
    for _ in range(ENCODED_AT_ONCE + 1):
        note(recording, CallEnded(0, CALL, Returned("x" * 10_000), 0.1))
    assert not recording.is_encoded_quickly()
    assert recording.weight() > ENCODED_AT_ONCE * 10_000
    recorder.end(recording)


async def test_nobody_who_looks_waits_for_a_file_that_is_being_written(tmp_path, monkeypatch):
    is_writing, may_go_on = threading.Event(), threading.Event()
    add = RunStore.add

    def slow_add(store: RunStore, runs: list[EndedRun]) -> None:
        is_writing.set()
        assert may_go_on.wait(10)
        add(store, runs)

    recorder = Recorder(mask, tmp_path)
    recorder.end(recorded(recorder, "run_1"))
    await written_until(recorder, lambda: not recorder.writer.has_waiting)
    monkeypatch.setattr(RunStore, "add", slow_add)
    recorder.end(recorded(recorder, "run_2"))
    assert await asyncio.to_thread(is_writing.wait, 5)
    try:
        async with asyncio.timeout(30):
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
    await written_until(recorder, lambda: not recorder.writer.has_waiting)
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
    async with asyncio.timeout(30):
        seen = [await anext(following) for _ in range(len(EVENTS) + 1)]
    await following.aclose()
    recorder.end(recording)

    assert seen[-1] is None
    assert None not in seen[:-1]


async def test_who_watches_gets_what_begins_and_what_ends(recorder):
    feed = recorder.watchers.watch("anonymous")
    recorder.end(recorded(recorder))
    async with asyncio.timeout(30):
        first, second = await feed.get(), await feed.get()
    recorder.watchers.end()
    async with asyncio.timeout(30):
        last = await feed.get()

    assert (first[0], second[0], last[0]) == ("run", "run", "end")
    assert (first[1].state, second[1].state) == ("under_way", "answered")
    recorder.watchers.unwatch(feed)


@pytest.mark.parametrize("bound", ["messages", "bytes", "bytes of its key"])
async def test_a_watcher_that_is_far_behind_is_ended_and_no_other(recorder, monkeypatch, bound):
    monkeypatch.setattr(backlog, "WAITING", 10 if bound == "messages" else 10_000)
    monkeypatch.setattr(backlog, "WAITING_BYTES", 1000 if bound == "bytes" else 1_000_000)
    monkeypatch.setattr(backlog, "WAITING_BYTES_OF_KEY", 1000 if bound == "bytes of its key" else 1_000_000)
    slow = recorder.watchers.watch("key eve")
    also_eves = recorder.watchers.watch("key eve")
    quick = recorder.watchers.watch("key boss")
    async with asyncio.timeout(30):
        for number in range(11):
            recorder.watchers.publish("server", {"number": number, "text": "x" * 100})
            assert (await quick.get())[1]["number"] == number
            assert (await also_eves.get())[1]["number"] == number
        with pytest.raises(FellBehind):
            await slow.get()
        recorder.watchers.publish("server", {})
        recorder.watchers.end()
        assert [(await also_eves.get())[0] for _ in range(2)] == ["server", "end"]
    for feed in (slow, also_eves, quick):
        recorder.watchers.unwatch(feed)


async def test_who_follows_a_run_too_slowly_is_ended_while_it_goes_on_for_others(recorder, monkeypatch):
    monkeypatch.setattr(backlog, "WAITING", 3)
    recording = recorder.begin(RunRow("run_1", time.time(), "gpt"), EVERYTHING)
    recording.note(0, EVENTS[0])
    slow = recorder.follow(recorder.get("run_1"), owner="key eve")
    quick = recorder.follow(recorder.get("run_1"), owner="key boss")
    async with asyncio.timeout(30):
        await anext(slow)
        await anext(quick)
        for event in EVENTS[1:5]:
            recording.note(0, event)
            await anext(quick)
        with pytest.raises(FellBehind):
            await anext(slow)
        await quick.aclose()
    recorder.end(recording)


async def test_what_a_run_had_before_it_was_followed_counts_once_it_has_ended(recorder, monkeypatch):
    monkeypatch.setattr(backlog, "WAITING_BYTES", 1)
    recording = recorded(recorder)
    following = recorder.follow(recorder.get("run_1"))
    async with asyncio.timeout(30):
        await anext(following)
        await anext(following)
        recorder.end(recording)
        with pytest.raises(FellBehind):
            await anext(following)


async def test_who_comes_when_the_feeds_have_ended_is_sent_away(recorder):
    recording = recorded(recorder)
    snapshot = recorder.get("run_1")
    recorder.watchers.end()
    feed = recorder.watchers.watch("anonymous")
    async with asyncio.timeout(30):
        assert (await feed.get())[0] == "end"
        events = [event.kind async for event in recorder.follow(snapshot)]

    assert events[-1] == "ended"
    recorder.end(recording)


async def test_there_is_an_end_to_how_many_may_watch(recorder):
    assert [recorder.watchers.reserve() for _ in range(21)] == [True] * 20 + [False]
    recorder.watchers.release()
    assert recorder.watchers.reserve()


async def test_a_key_that_sees_its_own_runs_leaves_places_to_others(recorder):
    assert [recorder.watchers.reserve("bob") for _ in range(7)] == [True] * 5 + [False] * 2
    assert recorder.watchers.reserve("eve")
    assert recorder.watchers.reserve()
    recorder.watchers.release("bob")
    assert recorder.watchers.reserve("bob")


async def test_keys_that_see_their_own_runs_leave_places_to_watch(recorder):
    taken = [recorder.watchers.reserve(key) for key in ("a", "b", "c", "d") for _ in range(5)]
    assert taken == [True] * 15 + [False] * 5
    assert [recorder.watchers.reserve() for _ in range(6)] == [True] * 5 + [False]


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
    async with asyncio.timeout(30):
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
        TurnAccount(("stop",), (), (), (), (), Usage({"prompt_tokens": 10**30, "words": "x" * 10**6}), 0.25),
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
    tokens_cached, tokens_cache_written = 6, 2
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
    assert (found.tokens_cached, found.tokens_cache_written) == (6, 2)


async def test_a_run_is_found_by_the_end_of_its_id_in_memory_and_in_the_file(recorder, tmp_path):
    id = "run_1a1f713e2f89803f8819dfae"
    under_way = recorded(recorder, id)
    in_memory = recorder.get("8819dfae")
    recorder.end(under_way)
    await recorder.close()
    of_file = Recorder(mask, tmp_path)
    found = of_file.get("8819dfae")

    assert in_memory is not None
    assert in_memory.row.id == id
    assert found is not None
    assert found.row.id == id
    assert of_file.get("00000000") is None


async def test_usage_is_not_written_with_each_batch_of_runs_but_when_it_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr("callgate.recorder.writer.USAGE_SECONDS", 1000.0)
    counted: list[int] = []
    count = RunStore.count

    def noted_count(store: RunStore, used, used_in_hours, totals) -> None:
        counted.append(sum(total.count for of_hour in totals.values() for total in of_hour.values()))
        count(store, used, used_in_hours, totals)

    monkeypatch.setattr(RunStore, "count", noted_count)
    recorder = Recorder(mask, tmp_path)
    for number in range(3):
        recorder.end(recorded_plain(recorder, f"run_{number}"))
        await written_until(recorder, lambda: not recorder.writer.has_waiting)
    assert len(counted) == 1
    await recorder.close()
    assert (len(counted), counted[1]) == (2, 2 * counted[0])


async def test_where_there_is_no_file_a_run_is_kept_without_a_thread():
    recorder = Recorder(mask)
    recorder.end(recorded_plain(recorder, "run_1"))
    recorder.writer.encode_waiting()

    assert not recorder.writer.has_waiting
    assert [row.id for row in recorder.page(RunFilter(), 10)] == ["run_1"]
    assert not [thread for thread in threading.enumerate() if thread.name == "recorder"]
