"""A run as spans: what lies in what, how long it took, and what went wrong."""

from typing import Any

from callgate.recorder.spans import NANO, as_otlp, spans_of, trace_id_of
from callgate.records.row import RecordedRun, RunEvent, RunRow

TURN: dict[str, Any] = {
    "seconds": 0.9,
    "finish_reasons": ["tool_calls"],
    "findings": [],
    "calls": [
        {"id": "call_1", "name": "clock", "owner": "server", "verdict": "ready"},
        {"id": "call_2", "name": "send", "owner": None, "verdict": "broken", "flaw": "truncated"},
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    "lane": "direct",
    "first_seconds": 0.25,
    "model": "gpt-5-mini",
    "deployment": "gpt-5-mini at api.example.com",
    "host": "api.example.com",
}
FAILED = {
    "number": 1,
    "model": "gpt-5",
    "deployment": "d",
    "host": "h",
    "seconds": 0.2,
    "status": 503,
    "reason": "overloaded",
}
RUN = RecordedRun(
    RunRow(
        "run_1", 1000.0, "gpt", key="alice", state="answered", seconds=2.0, tokens_in=7, cost=0.5, finish_reason="stop"
    ),
    [
        RunEvent(0.0, "turn_started", 0, 0),
        RunEvent(0.25, "attempt", 0, 0, FAILED),
        RunEvent(0.3, "turn_started", 0, 0),
        RunEvent(1.0, "turn_ended", 0, 0, TURN),
        RunEvent(1.0, "call_started", 0, 0, {"id": "call_1", "name": "clock", "writes": False}),
        RunEvent(
            1.5, "call_ended", 0, 0, {"id": "call_1", "name": "clock", "seconds": 0.5, "outcome": "timeout", "bytes": 3}
        ),
        RunEvent(2.0, "ended"),
    ],
    {
        "call.call_1.arguments": "planted-arguments",
        "call.call_1.result": "planted-result",
        "turn.0.text": "planted-text",
    },
)


def test_turns_and_calls_lie_in_the_run_and_attempts_in_their_turn() -> None:
    spans = {span.name: span for span in spans_of(RUN)}
    run, attempt, turn, call = (
        spans[name] for name in ("invoke_agent callgate", "POST", "chat gpt", "execute_tool clock")
    )

    assert run.parent == ""
    assert (turn.parent, call.parent, attempt.parent) == (run.id, run.id, turn.id)
    assert len({span.id for span in spans.values()}) == 4
    seconds = {
        span.name: ((span.start - 1000 * NANO) / NANO, (span.end - span.start) / NANO) for span in spans.values()
    }
    assert {name: (round(start, 3), round(took, 3)) for name, (start, took) in seconds.items()} == {
        "invoke_agent callgate": (0.0, 2.0),
        "POST": (0.05, 0.2),
        "chat gpt": (0.0, 1.0),
        "execute_tool clock": (1.0, 0.5),
    }


def test_what_went_wrong_is_an_error_of_its_span_and_a_broken_call_is_an_event_and_no_span() -> None:
    spans = {span.name: span for span in spans_of(RUN)}

    assert (spans["POST"].error, spans["execute_tool clock"].error) == ("overloaded", "timeout")
    assert spans["execute_tool clock"].attributes["error.type"] == "timeout"
    assert (spans["chat gpt"].error, spans["invoke_agent callgate"].error) == ("", "")
    retry, event = spans["chat gpt"].events
    assert (retry.name, retry.attributes["error.type"]) == ("callgate.attempt.failed", "overloaded")
    assert (event.name, event.attributes["callgate.call.flaw"]) == ("callgate.call.broken", "truncated")
    assert "execute_tool send" not in spans


def test_a_wait_for_a_person_and_what_was_repaired_stand_at_the_call() -> None:
    calls = [{"id": "call_1", "name": "wipe", "owner": "server", "verdict": "ready", "repairs": ["fence_removed"]}]
    events = [
        RunEvent(0.0, "turn_started", 0, 0),
        RunEvent(1.0, "turn_ended", 0, 0, {**TURN, "calls": calls}),
        RunEvent(1.0, "call_started", 0, 0, {"id": "call_1", "name": "wipe", "writes": True}),
        RunEvent(1.1, "call_progress", 0, 0, {"id": "call_1", "approval": "appr_1"}),
        RunEvent(1.6, "call_progress", 0, 0, {"id": "call_1", "approved": True}),
        RunEvent(1.7, "call_progress", 0, 0, {"id": "call_1", "fraction": 0.5}),
    ]
    ended = RunEvent(2.0, "call_ended", 0, 0, {"id": "call_1", "name": "wipe", "seconds": 1.0, "outcome": "returned"})
    for last in ([ended], []):  # without an end it was left while it waited
        spans = spans_of(RecordedRun(RUN.row, [*events, *last]))
        [call] = (span for span in spans if span.name == "execute_tool wipe")
        assert [(each.name, round((each.at - 1000 * NANO) / NANO, 3)) for each in call.events] == [
            ("callgate.call.waiting_for_approval", 1.1),
            ("callgate.call.approved", 1.6),
        ]
        assert call.attributes.get("callgate.call.repairs") == (["fence_removed"] if last else None)


def test_a_read_only_call_has_its_safety_in_its_span() -> None:
    [call] = (span for span in spans_of(RUN) if span.name == "execute_tool clock")

    assert call.attributes["callgate.call.safety"] == "read_only"
    assert "callgate.call.writes" not in call.attributes


def test_no_content_is_in_the_spans() -> None:
    assert "planted" not in str(as_otlp(RUN))


def test_the_trace_is_the_requests_own_or_follows_from_the_run() -> None:
    given = RecordedRun(RunRow("run_1", 1000.0, trace_id="4bf92f3577b34da6a3ce929d0e0e4736"))

    assert trace_id_of(given) == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert trace_id_of(RUN) == trace_id_of(RUN)
    assert len(trace_id_of(RUN)) == 32


def test_they_are_written_as_a_collector_reads_json() -> None:
    [resource] = as_otlp(RUN)["resourceSpans"]
    [scope] = resource["scopeSpans"]
    run, _, turn, call = scope["spans"]
    turn_attributes = {each["key"]: each["value"] for each in turn["attributes"]}

    assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "callgate"}}]
    assert (run["startTimeUnixNano"], run["endTimeUnixNano"]) == (str(1000 * NANO), str(1002 * NANO))
    assert "parentSpanId" not in run
    assert (call["kind"], turn["kind"], call["status"]["code"]) == (1, 3, 2)
    assert turn_attributes["gen_ai.usage.input_tokens"] == {"intValue": "7"}
    assert turn_attributes["gen_ai.response.finish_reasons"] == {
        "arrayValue": {"values": [{"stringValue": "tool_calls"}]}
    }
    assert turn_attributes["gen_ai.response.time_to_first_chunk"] == {"doubleValue": 0.25}
    assert turn_attributes["gen_ai.request.stream"] == {"boolValue": False}
