"""Small models repeat a result with its tags: the tags do not reach the reader."""

import random

import pytest

from callgate.conversation.events import CallWritten, TextDelta
from callgate.text_calls.prompts import FORMATS, style_for
from callgate.text_calls.result_tags import ResultTags, WithoutResultTags, without_result_tags
from callgate.text_calls.writers import PastResult
from tests.text_calls.reading import cut_everywhere

RESULTS = [
    PastResult("get_weather", "18 degrees", "functions.get_weather:0"),
    PastResult("get_time", "noon", "functions.get_time:1"),
]
MARKS = (
    "tool_result",
    "tool_response",
    "function_results",
    "TOOL_RESULT",
    "<result",
    "tool▁output",
    "function_response",
)


def in_pieces(pieces: list[str], format: str) -> str:
    tags = ResultTags(format)
    return "".join(map(tags.feed, pieces)) + tags.finish()


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_result_that_is_repeated_has_no_tags(format):
    for results in (RESULTS[:1], RESULTS):
        text = style_for(format).write_results(results) + "\nIt is 18 degrees at noon."
        left = without_result_tags(text, format)
        if format not in ("harmony", "gemma4"):  # whose other tokens the reader drops
            assert not [mark for mark in MARKS if mark in left], left
        assert "18 degrees" in left
        assert left.endswith("\nIt is 18 degrees at noon.")
        for pieces in [[*text], *cut_everywhere(text)]:
            assert in_pieces(pieces, format) == left


def test_a_tag_on_a_line_of_its_own_leaves_no_line():
    text = '<tool_result name="get_weather">\n18\n</tool_result>\n\nIt is 18.'
    assert without_result_tags(text, "litellm_json") == "18\n\nIt is 18."


def test_words_that_only_a_tag_stood_between_stay_apart():
    assert without_result_tags("<tool_response>18</tool_response>It is.", "hermes") == "18\nIt is."


def test_a_tag_that_is_quoted_or_in_a_fence_is_meant():
    for text in (
        "The `<tool_response>` tag.",
        'The "<tool_response>" tag.',
        "```xml\n<tool_response>\n18\n</tool_response>\n```\nDone.",
    ):
        assert without_result_tags(text, "hermes") == text
    assert without_result_tags("```\n18\n```\n<tool_response>\n19", "hermes") == "```\n18\n```\n19"


def test_what_only_begins_like_a_tag_is_text():
    for text in ("a < b", "<tool_", '<tool_result name="x', "<tool_results>", "1 <tool_box> 2", "Observation: none"):
        assert without_result_tags(text, "hermes") == text
        assert in_pieces([*text], "hermes") == text


def test_text_that_cannot_become_a_tag_is_passed_on_at_once():
    tags = ResultTags("hermes")
    assert tags.feed("It is 18 ") == "It is 18 "
    assert tags.feed("a <b> c") == "a <b> c"
    assert tags.feed("a <tool") == "a "
    assert tags.feed("box>") == "<toolbox>"


def test_any_mixture_is_the_same_however_it_is_cut():
    chance = random.Random(3)
    scraps = [
        *'<>\n`"/ a',
        "<tool_response>",
        "</tool_response>",
        '<tool_result name="',
        '">',
        "```",
        "tool_",
        "name",
        "18",
    ]
    for format in ("hermes", "xml", "kimi_k2", "gemma4", "react"):
        for _ in range(300):
            text = "".join(chance.choices([*scraps, "## Return of ", "response:", "Observation: "], k=12))
            assert in_pieces([*text], format) == without_result_tags(text, format), text


def test_what_is_held_comes_before_the_call_behind_it():
    tags = WithoutResultTags("hermes")
    call = CallWritten("get_time", "{}")
    assert tags.filtered([TextDelta("a <tool"), call, TextDelta("<tool_response>b")]) == [
        TextDelta("a "),
        TextDelta("<tool"),
        call,
        TextDelta("b"),
    ]
    assert tags.rest() == []
