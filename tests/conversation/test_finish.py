from typing import Any

import pytest

from callgate.calls.states import Finding, Flaw
from callgate.conversation.events import StreamEnd
from callgate.conversation.finish import Finish, FinishClass, classify, finish_findings, judge_finish


def finish(*reasons: str, end: StreamEnd = StreamEnd.DONE, error: bool = False) -> Finish:
    return judge_finish(reasons, end, error=error)


def findings(*reasons: str, calls: bool = True, from_text: bool = False, **rest: Any) -> set[Finding]:
    return set(finish_findings(finish(*reasons, **rest), calls_found=calls, from_text=from_text))


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("stop", FinishClass.STOP),
        ("END-TURN", FinishClass.STOP),
        ("eos", FinishClass.STOP),
        ("MAX_TOKENS", FinishClass.LENGTH),
        ("model-context-window-exceeded", FinishClass.LENGTH),
        ("tool_use", FinishClass.TOOL_CALLS),
        ("Function_Call", FinishClass.TOOL_CALLS),
        ("SAFETY", FinishClass.CONTENT_FILTER),
        ("guardrail_intervened", FinishClass.CONTENT_FILTER),
        ("MALFORMED_FUNCTION_CALL", FinishClass.ERROR),
        ("network-error", FinishClass.ERROR),
        ("done_ok", FinishClass.STOP),
        ("plenty", FinishClass.STOP),
    ],
)
def test_reasons_are_put_into_classes_whatever_their_spelling(reason, kind):
    assert classify(reason) is kind


def test_of_several_reasons_the_gravest_counts():
    assert finish("stop", "tool_calls").winner is FinishClass.TOOL_CALLS
    assert finish("tool_calls", "length", "stop").winner is FinishClass.LENGTH
    assert finish("content_filter", "length").winner is FinishClass.CONTENT_FILTER
    assert finish("content_filter", "error").winner is FinishClass.ERROR
    assert finish().winner is None


@pytest.mark.parametrize(
    ("reasons", "end", "error", "failure"),
    [
        ((), StreamEnd.DONE, False, None),
        ((), StreamEnd.EOF, False, Flaw.STREAM_ENDED),
        ((), StreamEnd.ERROR, False, Flaw.UPSTREAM_ERROR),
        ((), StreamEnd.EOF, True, Flaw.UPSTREAM_ERROR),
        (("stop",), StreamEnd.EOF, False, None),
        (("stop",), StreamEnd.ERROR, False, None),
        (("stop",), StreamEnd.DONE, True, Flaw.UPSTREAM_ERROR),
        (("tool_calls", "aborted"), StreamEnd.DONE, False, Flaw.UPSTREAM_ERROR),
        (("content_filter", "tool_calls"), StreamEnd.DONE, False, Flaw.CONTENT_FILTER),
        (("content_filter",), StreamEnd.DONE, True, Flaw.UPSTREAM_ERROR),
        (("length",), StreamEnd.DONE, False, None),
    ],
)
def test_only_a_turn_that_was_not_finished_fails(reasons, end, error, failure):
    assert judge_finish(reasons, end, error=error).failure is failure


def test_a_reason_held_against_the_calls_that_came():
    assert findings("stop") == {Finding.TOOL_CALLS_WITH_STOP}
    assert findings("length") == {Finding.TOOL_CALLS_WITH_LENGTH}
    assert findings("tool_calls") == set()
    assert findings("content_filter") == set()
    assert findings("tool_calls", calls=False) == {Finding.FINISH_WITHOUT_TOOL_CALLS}
    assert findings("stop", calls=False) == findings("length", calls=False) == set()


def test_a_missing_reason_is_a_finding_unless_an_error_explains_it():
    assert findings() == {Finding.MISSING_FINISH_REASON}
    assert findings(calls=False, end=StreamEnd.EOF) == {Finding.MISSING_FINISH_REASON}
    assert findings(error=True) == {Finding.UPSTREAM_ERROR}
    assert findings(end=StreamEnd.ERROR) == {Finding.UPSTREAM_ERROR}


def test_reasons_contradict_each_other_by_class_and_not_by_spelling():
    assert Finding.CONFLICTING_FINISH_REASONS not in findings("tool_calls", "tool_use")
    assert findings("tool_calls", "stop") == {Finding.CONFLICTING_FINISH_REASONS}


@pytest.mark.parametrize("reason", ["Stop", "end_turn", "max_tokens", "tool_use", "whatever", "tool-calls"])
def test_a_nonstandard_reason_is_a_finding(reason):
    assert Finding.NONSTANDARD_FINISH_REASON in findings(reason)


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter", "function_call"])
def test_a_reason_of_the_five_is_not(reason):
    assert Finding.NONSTANDARD_FINISH_REASON not in findings(reason)


def test_where_calls_are_text_a_reason_says_little_about_them():
    assert findings("stop", from_text=True) == findings(from_text=True) == set()
    assert findings("tool_calls", calls=False, from_text=True) == set()
    assert findings("stop", "tool_calls", from_text=True) == set()
    assert findings("max_tokens", from_text=True) == {
        Finding.TOOL_CALLS_WITH_LENGTH,
        Finding.NONSTANDARD_FINISH_REASON,
    }
    assert findings("error", from_text=True) == {Finding.UPSTREAM_ERROR, Finding.NONSTANDARD_FINISH_REASON}
