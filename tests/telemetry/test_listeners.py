import pytest
import structlog
from structlog.testing import capture_logs

from callgate.calls.outcome import Failed, FailureKind, Returned
from callgate.calls.states import BrokenCall, Finding, Flaw, ReadyCall
from callgate.conversation.events import (
    Attempt,
    CallEnded,
    CallsHandedBack,
    CallStarted,
    ChatEnded,
    ChatEvent,
    Ending,
    EndingKind,
    ModelOutput,
    PromptedCalling,
    Responder,
    TextDelta,
    TurnAccount,
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.usage import Usage
from callgate.telemetry import logs
from callgate.telemetry.listeners import LoggedWords, LogListener, MetricsListener
from callgate.telemetry.metrics import Metrics

CLOCK = ReadyCall("c1", "clock", {"zone": "private words"}, '{"zone": "private words"}', (Finding.ARGUMENTS_REPAIRED,))
THEIRS = ReadyCall("c2", "a name a client chose", {}, "{}")
BROKEN = BrokenCall("c3", "clock", Flaw.TRUNCATED, '{"zone": "private wo')
INVENTED = BrokenCall("c4", "a name a model wrote", Flaw.UNKNOWN_TOOL, "{}")


@pytest.fixture(autouse=True)
def _everything_is_logged():
    """Commands that keep quiet set the level for the whole process."""
    structlog.reset_defaults()
    logs._fast = None


def account(**given):
    empty = {
        "reasons": ("stop",),
        "findings": (),
        "run": (),
        "handed_back": (),
        "broken": (),
        "usage": None,
        "seconds": 0.5,
    }
    return TurnAccount(**{**empty, **given})


A_WHOLE_CHAT: list[ChatEvent] = [
    TurnStarted(0),
    ModelOutput(0, [TextDelta("private words")]),
    TurnEnded(
        0,
        account(
            findings=(Finding.TOOL_CALLS_WITH_STOP,),
            run=(CLOCK,),
            handed_back=(THEIRS,),
            broken=(BROKEN, INVENTED),
            lane="litellm",
        ),
    ),
    CallStarted(0, CLOCK),
    CallEnded(0, CLOCK, Returned("private words", cut_bytes=7), 0.25),
    Attempt(
        1,
        1,
        Responder("gpt", "openai/gpt-5", "api.example.com", "gpt", "openai/gpt-5"),
        0.2,
        0.0,
        429,
        "rate_limit_exceeded",
        "slow down",
    ),
    TurnEnded(1, account(usage={"prompt_tokens": 3, "completion_tokens": 2})),
    CallStarted(1, CLOCK),
    CallEnded(1, CLOCK, Failed("private words", FailureKind.TIMEOUT), 30.0),
    CallsHandedBack((THEIRS,)),
    ChatEnded(Ending(EndingKind.HANDED_BACK, "tool_calls"), Usage({"prompt_tokens": 3, "completion_tokens": 2})),
]


def logged(*, content=False):
    with capture_logs() as lines:
        listener = LogListener(_run_id="run_1", content=content)
        for event in A_WHOLE_CHAT:
            listener.handle(event)
    return lines


def test_findings_are_logged_once_a_turn_with_the_run_and_what_the_model_claimed():
    [line] = [line for line in logged() if line["event"] == "turn_findings"]

    assert line == {
        "event": "turn_findings",
        "log_level": "warning",
        "run_id": "run_1",
        "turn": 0,
        "lane": "litellm",
        "findings": ["tool_calls_with_stop", "arguments_repaired"],
        "finish_reasons": ["stop"],
        "broken": [
            {"call_id": "c3", "tool": "clock", "flaw": "truncated"},
            {"call_id": "c4", "tool": "a name a model wrote", "flaw": "unknown_tool"},
        ],
    }


def test_a_word_of_another_vendor_is_logged_only_beside_other_findings():
    with capture_logs() as lines:
        listener = LogListener(_run_id="run_1", content=False)
        listener.handle(TurnEnded(0, account(findings=[Finding.NONSTANDARD_FINISH_REASON])))
        listener.handle(
            TurnEnded(1, account(findings=[Finding.NONSTANDARD_FINISH_REASON, Finding.FINISH_WITHOUT_TOOL_CALLS]))
        )

    assert [(line["turn"], line["findings"]) for line in lines] == [
        (1, ["nonstandard_finish_reason", "finish_without_tool_calls"])
    ]


def test_a_call_is_logged_when_it_starts_and_when_it_ends():
    lines = [line for line in logged() if line["event"].startswith("call_")]

    assert [(line["event"], line["log_level"], line.get("outcome"), line.get("cut_bytes")) for line in lines] == [
        ("call_started", "debug", None, None),
        ("call_ended", "info", "returned", 7),
        ("call_started", "debug", None, None),
        ("call_ended", "warning", "timeout", None),
    ]
    assert {line["tool"] for line in lines} == {"clock"}
    assert {line["run_id"] for line in logged()} == {"run_1"}


def test_content_is_logged_only_when_asked_for():
    assert "private" not in repr(logged())

    logged_lines = logged(content=True)

    assert [line["arguments"] for line in logged_lines if "arguments" in line] == [CLOCK.arguments] * 2
    assert [line["result"] for line in logged_lines if "result" in line] == ["private words"] * 2
    assert "private wo" in repr([line for line in logged_lines if line["event"] == "turn_findings"])


def test_an_attempt_that_failed_is_a_warning():
    lines = {line["event"]: line for line in logged()}

    said = lines["upstream_attempt_failed"]
    assert said["log_level"] == "warning"
    assert {
        "reason": "rate_limit_exceeded",
        "status": 429,
        "host": "api.example.com",
        "attempt": 1,
    }.items() <= said.items()


@pytest.fixture
def counted():
    metrics = Metrics()
    listener = MetricsListener(_metrics=metrics, _of_model=metrics.model("openai/*"), _tools={"clock"})
    for event in A_WHOLE_CHAT:
        listener.handle(event)

    def of(name):
        return {
            tuple(sample.labels.values()): sample.value
            for family in metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"callgate_{name}"
        }

    return of


def test_calls_are_counted_by_what_became_of_them(counted):
    assert counted("calls_total") == {
        ("clock", "truncated"): 1,
        ("other", "unknown_tool"): 1,
        ("clock", "returned"): 1,
        ("clock", "timeout"): 1,
        ("client", "handed_back"): 1,
    }
    assert counted("call_seconds_count") == {("clock",): 2}


def test_turns_findings_attempts_tokens_and_endings_are_counted_by_the_configured_model(counted):
    assert counted("turns_total") == {("openai/*",): 2}
    assert counted("findings_total") == {
        ("openai/*", "tool_calls_with_stop"): 1,
        ("openai/*", "arguments_repaired"): 1,
    }
    assert counted("upstream_attempts_total") == {
        ("openai/*", "openai/gpt-5", "api.example.com", "rate_limit_exceeded"): 1
    }
    assert counted("tokens_total") == {("openai/*", "prompt"): 3, ("openai/*", "completion"): 2}
    assert counted("chats_total") == {("openai/*", "handed_back", "tool_calls"): 1}


def test_no_name_that_a_client_or_a_model_wrote_becomes_a_label(counted):
    labels = repr([counted(name) for name in ("calls_total", "call_seconds_count", "findings_total")])

    assert "a name" not in labels


def test_what_asking_in_a_prompt_added_is_logged_once_and_counted():
    metrics = Metrics()
    turn = TurnEnded(0, account(prompted=PromptedCalling("xml", 120)))
    with capture_logs() as lines:
        for listener in (LogListener(_run_id="run_1"), MetricsListener(_metrics=metrics, _of_model=metrics.model("m"))):
            listener.handle(turn)
            listener.handle(TurnEnded(1, account()))
    [line] = lines
    assert (line["event"], line["format"], line["extra_tokens"]) == ("tools_in_prompt", "xml", 120)
    exposed = metrics.exposition()[0].decode()
    assert 'callgate_prompt_tokens_added_total{format="xml",model="m"} 120.0' in exposed


def test_what_was_noticed_about_a_call_is_counted_once_for_each_call():
    metrics = Metrics()
    both = (Finding.TOOL_CALLS_WITH_STOP, Finding.ARGUMENTS_REPAIRED)
    MetricsListener(_metrics=metrics, _of_model=metrics.model("m")).handle(
        TurnEnded(0, account(findings=both, run=(CLOCK, CLOCK)))
    )
    exposed = metrics.exposition()[0].decode()
    assert 'callgate_findings_total{finding="tool_calls_with_stop",model="m"} 1.0' in exposed
    assert 'callgate_findings_total{finding="arguments_repaired",model="m"} 2.0' in exposed


def ended_with(word: str, entry: str) -> TurnEnded:
    by = Responder(entry, "openai/m", counted_model=entry)
    answer = TurnAccount((word,), (), (), (), (), None, 0.1, by=by, unknown_reasons=(word,))
    return TurnEnded(0, answer)


def test_an_unknown_finish_reason_is_logged_once_for_each_entry_and_word_with_the_setting():
    words = LoggedWords()
    with capture_logs() as lines:
        for word, entry in (("LANGUAGE", "a"), ("LANGUAGE", "a"), ("LANGUAGE", "b"), ("OTHER", "a"), ("x" * 300, "a")):
            LogListener(_run_id="run_1", content=False, _logged_words=words).handle(ended_with(word, entry))
    assert [line["event"] for line in lines] == ["unknown_finish_reason"] * 4
    assert {line["log_level"] for line in lines} == {"warning"}
    assert [(line["model"], line["finish_reason"]) for line in lines] == [
        ("a", "LANGUAGE"),
        ("b", "LANGUAGE"),
        ("a", "OTHER"),
        ("a", "x" * 100),
    ]
    assert "finish_reasons: {stop: [...]}" in lines[0]["todo"]


def test_each_unknown_finish_reason_is_counted():
    metrics = Metrics()
    for _ in range(2):
        MetricsListener(_metrics=metrics, _of_model=metrics.model("a"), _tools=()).handle(ended_with("LANGUAGE", "a"))
    assert 'callgate_findings_total{finding="unknown_finish_reason",model="a"} 2.0' in metrics.exposition()[0].decode()
