from typing import Any

import pytest
from msgspec.structs import replace

from callgate.calls.states import Finding, Flaw
from callgate.conversation.events import Finished, StreamEnd
from callgate.conversation.finish import (
    Finish,
    classify,
    finish_findings,
    finished,
    judge_finish,
    meaning_if_said,
    meaning_of,
)
from callgate.conversation.finish_words import (
    LONGEST,
    OPEN,
    FinishClass,
    FinishWords,
    Meaning,
    further_words,
    is_value,
    judge_by_words,
)
from tests.conversation.finish_table import ALL_WORDS, OPEN_WORDS, UNHEARD_OF, WITHOUT_WORDS, Expected, expected_on

CLOSED = FinishWords({FinishClass.STOP: "STOP End-Turn", FinishClass.ERROR: "ERROR"}, is_closed=True)


def finish(*reasons: str, end: StreamEnd = StreamEnd.DONE, error: bool = False) -> Finish:
    return judge_finish({reason: OPEN.judge(reason) for reason in reasons}, end, error=error)


def findings(*reasons: str, calls: bool = True, from_text: bool = False, **rest: Any) -> set[Finding]:
    return set(finish_findings(finish(*reasons, **rest), calls_found=calls, from_text=from_text))


@pytest.mark.parametrize(("reason", "expected"), OPEN_WORDS.items())
def test_reasons_are_judged_by_the_lists_and_then_by_their_words(reason: str, expected: Expected):
    assert OPEN.judge(reason) == expected.meaning
    assert classify(reason) is expected.meaning.kind


@pytest.mark.parametrize("reason", UNHEARD_OF)
def test_a_word_that_nobody_knows_is_no_good_end(reason: str):
    assert OPEN.judge(reason) == Meaning(FinishClass.ERROR, is_known=False)
    assert CLOSED.judge(reason) == Meaning(FinishClass.ERROR, is_known=False)


def test_a_closed_list_knows_its_own_words_and_no_parts_of_others():
    assert CLOSED.judge("stop") == CLOSED.judge("END_TURN") == Meaning(FinishClass.STOP)
    assert CLOSED.judge("error") == Meaning(FinishClass.ERROR)
    for other in ("length", "tool_calls", "done", "errors", "max_tokens", "safety"):
        assert CLOSED.judge(other) == Meaning(FinishClass.ERROR, is_known=False)


def test_a_very_long_reason_is_no_word():
    assert OPEN.judge("stop " + "x" * LONGEST) == Meaning(FinishClass.ERROR, is_known=False)
    assert OPEN.judge("stop " + "x" * (LONGEST - 5)) == Meaning(FinishClass.STOP)


@pytest.mark.parametrize("reason", WITHOUT_WORDS)
def test_a_reason_without_a_word_is_none(reason: str):
    assert not is_value(reason)
    assert judge_by_words(reason) == Meaning(FinishClass.ERROR, is_known=False)


@pytest.mark.parametrize("reason", ["stop", "1", "ok", "[stop]", "_x_"])
def test_a_reason_with_a_word_is_one(reason: str):
    assert is_value(reason)


def test_an_event_has_its_meaning_only_where_its_list_gives_another():
    assert finished("STOP", CLOSED) == Finished("STOP")
    assert finished("length", CLOSED) == Finished("length", Meaning(FinishClass.ERROR, is_known=False))
    assert meaning_of(Finished("length")) == Meaning(FinishClass.LENGTH)
    assert meaning_of(finished("length", CLOSED)) == Meaning(FinishClass.ERROR, is_known=False)


def test_only_a_known_end_of_the_right_class_is_orderly():
    orderly = [kind for kind in FinishClass if Meaning(kind).is_orderly]
    assert orderly == [FinishClass.STOP, FinishClass.TOOL_CALLS]
    assert not any(Meaning(kind, is_known=False).is_orderly for kind in FinishClass)


def test_of_several_reasons_the_gravest_counts():
    assert finish("stop", "tool_calls").winner is FinishClass.TOOL_CALLS
    assert finish("tool_calls", "length", "stop").winner is FinishClass.LENGTH
    assert finish("content_filter", "length").winner is FinishClass.CONTENT_FILTER
    assert finish("content_filter", "error").winner is FinishClass.ERROR
    assert finish("tool_calls", "plenty").winner is FinishClass.ERROR
    assert finish("tool_calls", "max_output").winner is FinishClass.LENGTH
    assert finish().winner is None


@pytest.mark.parametrize(
    ("reasons", "end", "error", "failure", "broke_off"),
    [
        ((), StreamEnd.DONE, False, None, False),
        ((), StreamEnd.EOF, False, Flaw.STREAM_ENDED, True),
        ((), StreamEnd.ERROR, False, Flaw.UPSTREAM_ERROR, True),
        ((), StreamEnd.EOF, True, Flaw.UPSTREAM_ERROR, True),
        (("stop",), StreamEnd.EOF, False, None, False),
        (("stop",), StreamEnd.ERROR, False, None, False),
        (("stop",), StreamEnd.DONE, True, Flaw.UPSTREAM_ERROR, True),
        (("tool_calls", "aborted"), StreamEnd.DONE, False, Flaw.UPSTREAM_ERROR, True),
        (("plenty", "aborted"), StreamEnd.DONE, False, Flaw.UPSTREAM_ERROR, True),
        (("content_filter", "tool_calls"), StreamEnd.DONE, False, Flaw.CONTENT_FILTER, False),
        (("content_filter", "max_output"), StreamEnd.DONE, False, Flaw.CONTENT_FILTER, False),
        (("content_filter",), StreamEnd.DONE, True, Flaw.UPSTREAM_ERROR, True),
        (("length",), StreamEnd.DONE, False, None, False),
        (("plenty",), StreamEnd.DONE, False, Flaw.UPSTREAM_ERROR, False),
        (("plenty",), StreamEnd.EOF, False, Flaw.UPSTREAM_ERROR, False),
        (("plenty",), StreamEnd.ERROR, False, Flaw.UPSTREAM_ERROR, False),
        (("length", "max_output"), StreamEnd.DONE, False, Flaw.UPSTREAM_ERROR, False),
    ],
)
def test_only_a_turn_that_was_not_finished_fails(reasons, end, error, failure, broke_off):
    found = finish(*reasons, end=end, error=error)
    assert (found.failure, found.broke_off) == (failure, broke_off)
    assert found.reasons == reasons


def test_the_unknown_reasons_are_named_where_none_of_the_others_decides():
    assert finish("stop", "plenty", "max_output").unknown == ("plenty", "max_output")
    assert finish("stop").unknown == ()
    assert finish("plenty", "error").unknown == ()
    assert finish("plenty", error=True).unknown == ()
    assert finish("max_output", "content_filter").unknown == ()


def test_a_reason_held_against_the_calls_that_came():
    assert findings("stop") == {Finding.TOOL_CALLS_WITH_STOP}
    assert findings("length") == {Finding.TOOL_CALLS_WITH_LENGTH}
    assert findings("tool_calls") == set()
    assert findings("content_filter") == set()
    assert findings("tool_calls", calls=False) == {Finding.FINISH_WITHOUT_TOOL_CALLS}
    assert findings("stop", calls=False) == findings("length", calls=False) == set()


def test_an_unknown_reason_is_an_error_of_the_provider_unless_it_is_about_length():
    assert findings("plenty") == {Finding.NONSTANDARD_FINISH_REASON, Finding.UPSTREAM_ERROR}
    assert findings("plenty", calls=False) == {Finding.NONSTANDARD_FINISH_REASON, Finding.UPSTREAM_ERROR}
    assert findings("max_output") == {Finding.NONSTANDARD_FINISH_REASON, Finding.TOOL_CALLS_WITH_LENGTH}
    assert findings("max_output", calls=False) == {Finding.NONSTANDARD_FINISH_REASON}


def test_a_missing_reason_is_a_finding_unless_an_error_explains_it():
    assert findings() == {Finding.MISSING_FINISH_REASON}
    assert findings(calls=False, end=StreamEnd.EOF) == {Finding.MISSING_FINISH_REASON}
    assert findings(error=True) == {Finding.UPSTREAM_ERROR}
    assert findings(end=StreamEnd.ERROR) == {Finding.UPSTREAM_ERROR}


def test_reasons_contradict_each_other_by_class_and_not_by_spelling():
    assert Finding.CONFLICTING_FINISH_REASONS not in findings("tool_calls", "tool_use")
    assert Finding.CONFLICTING_FINISH_REASONS not in findings("error", "plenty")
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


def test_the_table_has_every_word_that_calls_ran_beside() -> None:
    assert len(ALL_WORDS) > 150
    assert {expected_on("openai", word) for word in ALL_WORDS} == set(Expected)
    assert expected_on("gemini", "LANGUAGE").meaning == Meaning(FinishClass.ERROR, is_known=False)


def test_an_operator_names_further_words_and_no_known_ones():
    named = further_words({FinishClass.STOP: ("Fin-Now", "stop"), FinishClass.LENGTH: ("spent",)})
    assert named == {
        "fin_now": Meaning(FinishClass.STOP),
        "stop": Meaning(FinishClass.STOP),
        "spent": Meaning(FinishClass.LENGTH),
    }
    with pytest.raises(ValueError, match="`error` cannot mean stop: it means error"):
        further_words({FinishClass.STOP: ("ERROR",)})
    with pytest.raises(ValueError, match="`fin` cannot mean length: it means stop"):
        further_words({FinishClass.STOP: ("fin",), FinishClass.LENGTH: ("FIN",)})


@pytest.mark.parametrize("reason", [*OPEN.listed, *OPEN_WORDS, *WITHOUT_WORDS, *UNHEARD_OF])
@pytest.mark.parametrize("end", StreamEnd)
def test_a_usual_reason_is_judged_fast_as_one_in_another_spelling_is(reason: str, end: StreamEnd):
    """`_usual_finish` knows the spelling of the list alone; another one is judged the long way."""
    for error in (False, True):
        for meaning in (OPEN.judge(reason), CLOSED.judge(reason), Meaning(FinishClass.LENGTH, is_known=False)):
            slow = judge_finish({f"{reason} ": meaning}, end, error=error)
            fast = judge_finish({reason: meaning}, end, error=error)
            as_written = (reason,) if slow.unknown else ()
            assert fast == replace(slow, reasons=(reason,), unknown=as_written)


@pytest.mark.parametrize("reason", [*OPEN.listed, *OPEN_WORDS, *WITHOUT_WORDS, *UNHEARD_OF])
def test_a_reason_has_a_meaning_if_it_has_a_word(reason: str):
    for event in (Finished(reason), finished(reason, CLOSED)):
        assert meaning_if_said(event) == (meaning_of(event) if is_value(reason) else None)
