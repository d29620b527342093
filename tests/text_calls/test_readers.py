"""All readers: the corpus however it is cut, and what must hold for any text."""

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.calls.states import ReadyCall
from callgate.conversation.events import CallWritten, ReasoningDelta, TextDelta
from callgate.conversation.turn import TurnBuilder
from callgate.text_calls.formats import GRAMMARS
from callgate.text_calls.reader import FORMATS, reader_for
from tests.chaos.scale import dealt, examples
from tests.corpus.judge import Case, cases, offer_of, turn_of_case, verdict
from tests.text_calls.reading import (
    CASES,
    SCRAPS,
    TOOLS,
    batched,
    corpus_texts,
    cut_everywhere,
    cuts,
    events_of_text,
    flood,
    merged,
    mutated,
    text_of_events,
)

TEXTS = list(corpus_texts())
PROSE = 'If a < b, then [see 1] {or not} the `code` is fine; 3 > 2, isn\'t it? Yes: "quite".\n\nA second paragraph.\n'


@batched("case", list(cases(CASES)))
def test_a_case_of_the_corpus_is_read_as_expected(case):
    assert verdict(case) == []


@batched(("format", "text"), [text[1:] for text in TEXTS])
def test_no_cut_of_a_corpus_text_changes_what_is_read(format, text):
    whole = events_of_text(format, [text])
    assert events_of_text(format, text) == whole
    for pieces in cut_everywhere(text):
        assert events_of_text(format, pieces) == whole


SHOWN_BEHIND = re.compile("trailing-brace|lone-end|prose-behind")
"""What makes their calls broken, or a part of the thinking, comes behind the whole of them."""


@batched(("at", "case"), list(enumerate(cases(CASES))))
def test_no_beginning_of_a_corpus_text_runs_anything_but_whole_calls_of_it(at, case):
    """What stands behind a call decides whether it runs, but not what it is."""
    text = case.data.get("text") or "".join(case.data["text_chunks"])
    data = {key: value for key, value in case.data.items() if key != "text"}
    whole = [*would_run(case), *all_calls_in(case.data, text)]
    for end in dealt(range(len(text)), 4, at):
        beginning = would_run(Case(case.path, {**data, "text_chunks": [text[:end]]}))
        assert SHOWN_BEHIND.search(case.id) or all(call in whole for call in beginning), text[:end]


def would_run(case):
    return [(call.name, call.arguments) for call in turn_of_case(case).calls if isinstance(call, ReadyCall)]


def all_calls_in(case, text):
    """All calls that a text has, quoted or not."""
    offer = offer_of(case["tools"])
    reader = reader_for(
        case["format"], {name: tool.parameters.get("properties", ()) for name, tool in offer.items()}, is_judging=False
    )
    building = TurnBuilder(offer=offer, ids=map("made_{}".format, itertools.count()).__next__)
    building.feed([*reader.feed(text), *reader.finish()])
    return [(call.name, call.arguments) for call in building.finish().calls if isinstance(call, ReadyCall)]


@settings(max_examples=examples(300), deadline=None)
@given(
    format=st.sampled_from(sorted(FORMATS)),
    scraps=st.lists(st.sampled_from(SCRAPS), max_size=25),
    seed=st.integers(0, 2**32),
    whole=st.booleans(),
)
def test_no_cut_of_a_mixture_of_marks_changes_what_is_read(format, scraps, seed, whole):
    chance = random.Random(seed)
    text = "".join(scraps)
    expected = events_of_text(format, [text], whole=whole)
    assert events_of_text(format, text, whole=whole) == expected
    places = [chance.randrange(len(text) + 1) for _ in range(chance.randint(0, 6))]
    assert events_of_text(format, cuts(text, places), whole=whole) == expected


@settings(max_examples=examples(300), deadline=None)
@given(source=st.sampled_from(TEXTS), seed=st.integers(0, 2**32), whole=st.booleans())
def test_no_cut_of_a_damaged_call_changes_what_is_read(source, seed, whole):
    chance = random.Random(seed)
    _, format, original = source
    text = mutated(original, chance)
    expected = events_of_text(format, [text], whole=whole)
    assert events_of_text(format, text, whole=whole) == expected
    places = [chance.randrange(len(text) + 1) for _ in range(3)]
    assert events_of_text(format, cuts(text, places), whole=whole) == expected


MARKED = {
    "xml": ("<invoke", "<function_calls>"),
    "hermes": ("<tool_call>",),
    "glm45": ("<tool_call>",),
    "deepseek_v3": ("<｜tool▁call▁begin｜>", "<｜tool▁calls▁begin｜>"),
    "kimi_k2": ("<|tool_call_begin|>", "<|tool_calls_section_begin|>"),
    "functionary_v31": ("<function=",),
    "gemma4": ("<|tool_call>",),
    "react": ("Action:",),
}


@settings(max_examples=examples(200), deadline=None)
@given(format=st.sampled_from(sorted(MARKED)), scraps=st.lists(st.sampled_from(SCRAPS), max_size=25))
def test_there_are_never_more_calls_than_openings(format, scraps):
    text = "".join(scraps)
    # A list in one hermes block holds as many calls as it has elements, so its braces count as openings too.
    openings = sum(text.count(mark) for mark in MARKED[format]) + (text.count("{") if format == "hermes" else 0)
    commas = text.count(",") if format == "hermes" else 0
    calls = [event for event in events_of_text(format, [text]) if isinstance(event, CallWritten)]
    assert len(calls) <= openings + commas


@settings(max_examples=examples(200), deadline=None)
@given(source=st.sampled_from(TEXTS), seed=st.integers(0, 2**32))
def test_prose_and_reasoning_keep_their_order_in_the_text(source, seed):
    _, format, original = source
    text = mutated(original, random.Random(seed))
    rest = iter(text)
    for event in events_of_text(format, [text]):
        if isinstance(event, TextDelta | ReasoningDelta):
            assert all(char in rest for char in event.text), event


@batched(
    ("format", "text"),
    [(text[1], text[2]) for text in TEXTS if "truncated" in text[0] or "basic" in text[0]],
)
def test_every_prefix_of_a_call_is_read_and_none_yields_more_than_the_text(format, text):
    calls_of_all = sum(isinstance(event, CallWritten) for event in events_of_text(format, [text]))
    for end in range(len(text)):
        events = events_of_text(format, [text[:end]])
        assert sum(isinstance(event, CallWritten) for event in events) <= calls_of_all


@batched("format", sorted(FORMATS))
def test_plain_prose_goes_out_as_it_comes(format):
    reader = reader_for(format, TOOLS)
    fed = came = ""
    for word in PROSE.split(" "):
        piece = f" {word}" if fed else word
        fed += piece
        came += text_of_events(reader.feed(piece))
        # A word at the start of a text may be a header, and a bracket on it a mark: never more than the word is held.
        assert len(fed) - len(came) <= len(piece)
    assert came + text_of_events(reader.finish()) == PROSE


@batched("format", sorted(FORMATS))
def test_a_format_leaves_other_peoples_marks_alone(format):
    text = "Write <b>this</b>, <tool_box>, <functions>, <|other|>, [TOOLS] and >> that."
    assert text_of_events(events_of_text(format, [text])) == text


@batched("format", sorted(FORMATS))
@batched("tag", ["think", "thinking"])
def test_a_think_block_is_reasoning_and_never_searched_for_calls(format, tag):
    inside = 'maybe <tool_call>{"name": "get_time"} <invoke name="get_time"></invoke> [TOOL_CALLS]'
    assert events_of_text(format, f"<{tag}>{inside}</{tag}>So.") == [
        ReasoningDelta(inside, source="text"),
        TextDelta("So."),
    ]


@batched("format", sorted(FORMATS))
def test_an_open_think_block_takes_the_rest(format):
    assert events_of_text(format, "<think>never <think> closed") == [
        ReasoningDelta("never <think> closed", source="text")
    ]


@batched("format", sorted(FORMATS))
def test_a_lone_end_of_thinking_makes_what_precedes_it_reasoning_where_text_is_held_back(format):
    text = "They greet me.\n</think>\nHello there."
    assert events_of_text(format, text, whole=True) == [
        ReasoningDelta("They greet me.\n", source="text"),
        TextDelta("\nHello there."),
    ]
    assert text_of_events(events_of_text(format, text)) == "They greet me.\n\nHello there."


@batched("format", sorted(FORMATS))
def test_only_the_first_think_tag_can_be_a_lone_end(format):
    text = "<think>a</think>b</think>c"
    assert events_of_text(format, text, whole=True) == [ReasoningDelta("a", source="text"), TextDelta("b</think>c")]


@batched("format", sorted(FORMATS))
def test_nothing_comes_of_nothing(format):
    assert events_of_text(format, []) == []
    assert events_of_text(format, ["", ""]) == []


@batched("format", sorted(FORMATS))
def test_a_finished_reader_emits_nothing_more(format):
    reader = reader_for(format, TOOLS)
    reader.feed("hello there ")
    reader.finish()
    assert reader.finish() == []


@pytest.mark.parametrize("format", sorted(FORMATS))
@batched("kind", ["brackets", "objects in objects", "brackets in arguments", "a python list", "a Gemma call"])
def test_deep_nesting_is_read_to_its_end(format, kind):
    reader = reader_for(format, TOOLS)
    events = reader.feed(flood(kind, 100_000)) + reader.finish()
    assert merged(events)


def test_a_deep_value_that_closes_is_left_to_the_gate():
    text = '<tool_call>{"name": "get_time", "arguments": ' + "[" * 50_000 + "]" * 50_000 + "}</tool_call>"
    (call,) = events_of_text("hermes", [text])
    assert isinstance(call, CallWritten)
    assert call.flaw is None


def test_a_deep_literal_is_no_literal():
    text = "[get_time(a=" + "[" * 50_000 + "]" * 50_000 + ")]"
    (call,) = events_of_text("pythonic", [text])
    assert isinstance(call, CallWritten)
    assert call.flaw == "invalid_markup"


def test_a_format_without_a_reader_is_an_error():
    with pytest.raises(KeyError):
        reader_for("morse", TOOLS)


def test_no_mark_of_a_format_begins_another_one():
    """The cursor takes the first mark that fits; which one that is must not hang on where the text is cut."""
    for grammar in GRAMMARS.values():
        marks = [*grammar.dropped, *grammar.channels]
        assert not any(one != other and other.startswith(one) for one in marks for other in marks)


def test_no_text_of_a_tag_without_a_name_is_lost():
    text = 'See <invoke kind="x"> there.'
    assert text_of_events(events_of_text("xml", [text])) == text


def test_no_text_behind_an_end_mark_is_lost_where_the_call_was_thinking():
    call = '<minimax:tool_call>\n<invoke name="get_time">\n</invoke>\n'
    events = events_of_text("minimax", [f"Like this:\n{call}</think>\n\n</minimax:tool_call>\nSo it is."], whole=True)
    assert text_of_events(events) == "\n\n</minimax:tool_call>\nSo it is."


def test_an_end_mark_alone_ends_no_thinking():
    text = "Hm.\n<longcat_tool_call>x</longcat_tool_call>\nbut\n</longcat_tool_call>"
    reader = reader_for("longcat", TOOLS, thinking="prefilled")
    assert merged([*reader.feed(text), *reader.finish()]) == [ReasoningDelta(text, source="text")]
