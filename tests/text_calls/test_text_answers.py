"""What becomes of answers in many languages: `python -m tests.text_answers` prints the same as a table."""

from collections import defaultdict

import pytest

from tests.text_answers.__main__ import shares
from tests.text_answers.answers import ASKED, GENUINE, RAN, RARE, TALK, TEXT, WRITERS, answers, outcome
from tests.text_answers.phrases import PHRASES

MOST_LOST = 0.05
MOST_TALK_THAT_RUNS = 0.225


@pytest.fixture(scope="module")
def judged():
    return [(answer, outcome(answer)) for answer in answers()]


def test_few_meant_calls_are_lost(judged):
    assert shares([each for each in judged if each[0].is_meant])[TEXT] <= MOST_LOST


def test_where_the_end_is_looked_at_little_talk_runs(judged):
    assert (
        shares([each for each in judged if not each[0].is_meant and each[0].looks_behind])[RAN] <= MOST_TALK_THAT_RUNS
    )


def test_no_language_is_read_otherwise_than_another(judged):
    outcomes: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for answer, result in judged:
        if answer.kind not in RARE:
            outcomes[answer.writer, answer.kind][answer.language] = result
    assert len(outcomes) == len(WRITERS) * (len(GENUINE) + len(TALK) - len(RARE))
    for where, by_language in outcomes.items():
        assert by_language.keys() == PHRASES.keys()
        assert len(set(by_language.values())) == 1, where


def test_what_is_quoted_is_never_asked_about(judged):
    quoted = {"inline code", "block quote", "quotation marks", "element", "table", "thinking", "shown with a remark"}
    assert {result for answer, result in judged if answer.kind in quoted} == {TEXT}


def test_every_call_with_prose_behind_it_is_asked_about_where_the_end_is_looked_at(judged):
    behind = {
        "closing sentence",
        "lead, fence and closing sentence",
        "refused behind",
        "asked behind",
        "shown and explained",
    }
    assert {result for answer, result in judged if answer.kind in behind and answer.looks_behind} == {ASKED}


@pytest.mark.parametrize("piece", [1, 7])
def test_the_same_becomes_of_an_answer_in_pieces(judged, piece):
    for answer, result in judged:
        if answer.language in {"English", "Chinese"}:
            assert outcome(answer, piece=piece) == result, (answer.writer, answer.kind)
