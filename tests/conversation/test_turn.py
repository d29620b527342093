import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from callgate.calls.arguments import ArgumentsError, read_arguments
from callgate.calls.json_text import LARGE, canonical
from callgate.calls.offer import Offer, OfferedTool
from callgate.calls.states import BrokenCall, Finding, Flaw, ReadyCall
from callgate.conversation.call_assembly import MAX_CALLS
from callgate.conversation.errors import AnswerTooLarge
from callgate.conversation.events import (
    CallDelta,
    CallWritten,
    CharactersLost,
    ChoiceIgnored,
    ExtraField,
    Finished,
    Logprobs,
    ModelEvent,
    Passed,
    PromptedCalling,
    ProviderError,
    ProviderHead,
    ReasoningDelta,
    StreamEnd,
    TextDelta,
    ThinkingBlock,
)
from callgate.conversation.finish import classify
from callgate.conversation.finish_words import FinishClass
from callgate.conversation.turn import PassedTurn, Turn, TurnBuilder
from callgate.conversation.usage import Usage
from tests.chaos.scale import examples

NO_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"x": {}}}
OFFER: Offer = {name: OfferedTool(name, NO_SCHEMA) for name in ("get_weather", "get_time", "get", "search_docs")}
DONE = Finished("tool_calls")


def turn_of(*events: ModelEvent, end: StreamEnd = StreamEnd.DONE) -> Turn:
    building = TurnBuilder(offer=OFFER, ids=map("made_{}".format, itertools.count()).__next__)
    for event in events:
        building.feed([event])
    return building.finish(end)


def ready(turn: Turn) -> list[tuple[str, str, dict[str, Any]]]:
    return [(call.id, call.name, call.arguments) for call in turn.calls if isinstance(call, ReadyCall)]


def broken(turn: Turn) -> list[tuple[str | None, Flaw]]:
    return [(call.name, call.flaw) for call in turn.calls if isinstance(call, BrokenCall)]


def delta(
    *, index: int | None = 0, id: Any = None, name: str | None = None, args: Any = None, **extras: Any
) -> CallDelta:
    return CallDelta(index, id, name, args, extras)


# Text and what else is no call


def test_a_plain_answer():
    turn = turn_of(
        ProviderHead("r1", "m"), TextDelta("Hel"), TextDelta("lo"), Finished("stop"), Usage({"total_tokens": 3})
    )
    assert turn == Turn(
        text="Hello",
        reasons=("stop",),
        winner=FinishClass.STOP,
        usage=Usage({"total_tokens": 3}),
        head=ProviderHead("r1", "m"),
    )


def test_an_empty_builder_gives_an_empty_turn():
    assert turn_of() == Turn(findings=(Finding.MISSING_FINISH_REASON,))


def test_the_first_head_and_the_last_usage_count():
    turn = turn_of(ProviderHead("a"), Usage({"n": 1}), ProviderHead("b"), Usage({"n": 2}))
    assert (turn.head, turn.usage) == (ProviderHead("a"), Usage({"n": 2}))


def test_a_character_cut_in_two_is_joined_and_a_lone_half_replaced():
    turn = turn_of(TextDelta("go \ud83d"), TextDelta("\ude80 on \udc00"), ReasoningDelta("\ud83d"))
    assert turn.text == "go \U0001f680 on \ufffd"
    assert turn.reasoning == "\ufffd"


def test_reasoning_under_two_names_is_kept_once():
    both = (
        ReasoningDelta("a", "reasoning"),
        ReasoningDelta("A"),
        ReasoningDelta("b", "reasoning"),
        ReasoningDelta("B"),
    )
    assert turn_of(*both).reasoning == "AB"
    assert turn_of(ReasoningDelta("a", "reasoning"), ReasoningDelta("", "reasoning_content")).reasoning == "a"
    assert turn_of(ReasoningDelta("part", "thinking")).reasoning == "part"
    assert turn_of(ReasoningDelta("written", "text")).reasoning == "written"


def test_reasoning_written_among_text_is_kept_beside_the_native_kind():
    assert turn_of(ReasoningDelta("native "), ReasoningDelta("written", "text")).reasoning == "native written"


def test_unread_fields_are_joined_by_their_kind():
    turn = turn_of(
        ExtraField("refusal", "I can"),
        ExtraField("refusal", "not"),
        ExtraField("annotations", [1]),
        ExtraField("annotations", [2, 3]),
        ExtraField("odd", {"a": 1}),
        ExtraField("odd", {"b": 2}),
        ExtraField("number", 1),
        ExtraField("number", 2),
    )
    assert turn.extra_fields == {"refusal": "I cannot", "annotations": [1, 2, 3], "odd": {"a": 1, "b": 2}, "number": 2}


def test_no_half_of_a_surrogate_pair_is_left_in_unread_fields():
    turn = turn_of(ExtraField("odd\ud83d", {"name": "get_\ud83dweather", "parts": ["\ud83d\ude00"]}))
    assert turn.extra_fields == {"odd\ufffd": {"name": "get_\ufffdweather", "parts": ["\U0001f600"]}}
    json.dumps(turn.assistant_message(), ensure_ascii=False).encode()


def test_the_values_of_events_are_left_alone():
    first: list[int] = [1]
    turn_of(ExtraField("annotations", first), ExtraField("annotations", [2]))
    assert first == [1]


def test_logprobs_are_kept_in_order():
    assert turn_of(Logprobs({"content": [1]}), Logprobs({"content": [2]})).logprobs == (
        {"content": [1]},
        {"content": [2]},
    )


def test_thinking_blocks_are_joined_until_their_signature():
    turn = turn_of(
        ThinkingBlock({"type": "thinking", "thinking": "one ", "signature": ""}),
        ThinkingBlock({"type": "thinking", "thinking": "block", "signature": ""}),
        ThinkingBlock({"type": "thinking", "thinking": "", "signature": "s1"}),
        ThinkingBlock({"type": "redacted_thinking", "data": "Zm9v"}),
        ThinkingBlock({"type": "thinking", "thinking": "two", "signature": "s2"}),
        ThinkingBlock({"type": "thinking", "signature": "alone"}),
        ThinkingBlock({"type": "thinking", "thinking": "open"}),
    )
    assert turn.extra_fields["thinking_blocks"] == [
        {"type": "thinking", "thinking": "one block", "signature": "s1"},
        {"type": "redacted_thinking", "data": "Zm9v"},
        {"type": "thinking", "thinking": "two", "signature": "s2"},
        {"type": "thinking", "thinking": "", "signature": "alone"},
        {"type": "thinking", "thinking": "open"},
    ]


def test_a_thinking_block_without_signature_ends_where_another_kind_begins():
    turn = turn_of(
        ThinkingBlock({"type": "redacted_thinking", "data": "a"}),
        ThinkingBlock({"thinking": "one ", "signature": "", "kind": "x"}),
        ThinkingBlock({"thinking": "piece", "kind": ""}),
        ThinkingBlock({"type": "redacted_thinking", "data": "b"}),
        ThinkingBlock({"thinking": "two"}),
        ThinkingBlock({"type": "thinking", "thinking": 5}),
        ThinkingBlock({"thinking": "three"}),
    )
    assert turn.extra_fields["thinking_blocks"] == [
        {"type": "redacted_thinking", "data": "a"},
        {"type": "thinking", "thinking": "one piece", "signature": "", "kind": "x"},
        {"type": "redacted_thinking", "data": "b"},
        {"type": "thinking", "thinking": "two"},
        {"type": "thinking", "thinking": 5},
        {"type": "thinking", "thinking": "three"},
    ]


def test_a_field_that_is_nested_too_deep_to_be_looked_at_stays_as_it_is():
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert turn_of(ExtraField("deep", 1), ExtraField("deep", deep)).extra_fields["deep"] is deep


def test_the_first_error_is_the_one_of_the_turn():
    assert turn_of(ProviderError("one"), ProviderError("two")).error == ProviderError("one")


# Answers in their provider's own bytes


def passed(*batches: list[ModelEvent], end: StreamEnd = StreamEnd.DONE) -> Turn:
    building = PassedTurn()
    for batch in batches:
        first = batch[0]
        assert isinstance(first, Passed)
        building.feed(first, batch)
    return building.finish(end)


@pytest.mark.parametrize("end", list(StreamEnd))
def test_bytes_with_any_finish_reason_are_a_whole_turn(end: StreamEnd):
    for reason in ("tool_calls", "content_filter"):
        turn = passed([Passed(b"a", usage=Usage({"n": 1}))], [Passed(b"b", (Finished(reason),))], end=end)
        assert turn == Turn(reasons=(reason,), winner=classify(reason), usage=Usage({"n": 1}), passed=True)
    assert passed([Passed(b"a", (Finished("stop"), Finished("length")))]).winner is FinishClass.LENGTH


def test_bytes_without_a_reason_are_whole_where_their_body_is():
    assert passed([Passed(b"a")]) == Turn(passed=True)
    assert passed([Passed(b"a")], end=StreamEnd.EOF) == Turn(failure=Flaw.STREAM_ENDED, broke_off=True, passed=True)


def test_an_error_behind_bytes_fails_their_turn():
    error = ProviderError("overloaded")
    turn = passed([Passed(b"a", (Finished("tool_calls"),), Usage({"n": 1}))], [Passed(b"b"), error])
    assert turn == Turn(
        findings=turn.findings,
        reasons=("tool_calls",),
        winner=FinishClass.TOOL_CALLS,
        failure=Flaw.UPSTREAM_ERROR,
        broke_off=True,
        usage=Usage({"n": 1}),
        error=error,
        passed=True,
    )
    assert Finding.UPSTREAM_ERROR in turn.findings


# Which fragment belongs to which call


def test_empty_fragments_are_ignored():
    empty = delta(index=3, args=""), delta(index=None), CallDelta(0, "  ", "", ""), CallDelta(0, None, None, None, {})
    assert turn_of(*empty, Finished("stop")).calls == ()


def test_fragments_are_distinguished_by_index():
    turn = turn_of(
        delta(index=0, id="a", name="get_weather", args=""),
        delta(index=1, id="b", name="get_time"),
        delta(index=1, args='{"x":'),
        delta(index=0, args='{"x":"A'),
        delta(index=1, args="2}"),
        delta(index=0, args='"}'),
        DONE,
    )
    assert ready(turn) == [("a", "get_weather", {"x": "A"}), ("b", "get_time", {"x": 2})]
    assert turn.findings == ()


def test_an_id_counts_for_more_than_an_index():
    turn = turn_of(
        delta(index=0, id="a", name="get", args='{"x":'),
        delta(index=1, id="b", name="get", args='{"x":'),
        delta(index=0, id="b", args="2}"),
        delta(index=7, id="a", args="1}"),
        DONE,
    )
    assert ready(turn) == [("a", "get", {"x": 1}), ("b", "get", {"x": 2})]


def test_of_calls_with_one_id_the_one_with_the_index_is_meant():
    turn = turn_of(
        delta(index=0, id="same", name="get", args='{"x":'),
        delta(index=1, id="same", name="get", args='{"x":'),
        delta(index=0, id="same", args="1}"),
        delta(index=1, id="same", args="2}"),
        DONE,
    )
    assert ready(turn) == [("same", "get", {"x": 1}), ("made_0", "get", {"x": 2})]
    assert turn.findings == (Finding.ID_REPAIRED,)


def test_without_index_a_fragment_goes_to_the_latest_call():
    turn = turn_of(
        delta(index=None, id="a", name="get", args='{"x":1}'),
        delta(index=None, id="b", name="get"),
        delta(index=None, args='{"x":2}'),
        DONE,
    )
    assert ready(turn) == [("a", "get", {"x": 1}), ("b", "get", {"x": 2})]


def test_a_fragment_that_fits_nowhere_opens_a_call():
    turn = turn_of(delta(index=0, id="a", name="get", args="{}"), delta(index=5, args='{"x":1}'), DONE)
    assert ready(turn) == [("a", "get", {})]
    assert broken(turn) == [(None, Flaw.MISSING_NAME)]


def test_an_id_that_changes_within_a_call_keeps_the_first():
    turn = turn_of(delta(id="1", name="get"), delta(id="2", args='{"x":'), delta(id="3", args="1}"), DONE)
    assert ready(turn) == [("1", "get", {"x": 1})]
    assert turn.findings == (Finding.ID_REPAIRED,)


def test_an_id_may_come_after_the_first_fragment():
    turn = turn_of(delta(name="get"), delta(id="late", args="{}"), DONE)
    assert ready(turn) == [("late", "get", {})]
    assert turn.findings == ()


def test_another_id_with_a_name_is_another_call():
    turn = turn_of(delta(id="a", name="get", args="{}"), delta(id="b", name="get", args="{}"), DONE)
    assert [id_ for id_, _, _ in ready(turn)] == ["a", "b"]


@pytest.mark.parametrize(
    ("pieces", "name"),
    [
        (["get_", "weather"], "get_weather"),
        (["search", "search_docs"], "search_docs"),
        (["g", "et", "_ti", "me"], "get_time"),
        (["get_weather", "get_weather"], "get_weather"),
    ],
)
def test_a_name_may_come_in_pieces_or_grow(pieces, name):
    turn = turn_of(*(delta(id="a", name=piece) for piece in pieces), delta(args="{}"), DONE)
    assert ready(turn) == [("a", name, {})]


def test_of_two_offered_names_that_may_be_one_growing_name_at_most_one_is_run():
    turn = turn_of(delta(name="get"), delta(name="get_time"), DONE)
    assert ready(turn) == [("made_1", "get_time", {})]
    assert broken(turn) == [("get", Flaw.TRUNCATED)]


def test_a_name_that_makes_no_tool_of_the_current_one_is_another_call():
    turn = turn_of(delta(name="get_"), delta(name="nothing"), DONE)
    assert broken(turn) == [("get_", Flaw.UNKNOWN_TOOL), ("nothing", Flaw.UNKNOWN_TOOL)]


def test_another_name_after_arguments_is_another_call():
    turn = turn_of(delta(id="t", name="get", args='{"x":1}'), delta(id="t", name="get_time", args="{}"), DONE)
    assert ready(turn) == [("t", "get", {"x": 1}), ("made_0", "get_time", {})]


def test_a_name_may_come_after_the_arguments():
    assert ready(turn_of(delta(id="a", args="{}"), delta(name="get"), DONE)) == [("a", "get", {})]


def test_a_name_does_not_grow_after_an_object_came_as_arguments():
    turn = turn_of(delta(name="get_w", args={"x": 1}), delta(name="get_weather"), DONE)
    assert ready(turn) == []
    assert broken(turn)[0] == ("get_w", Flaw.UNKNOWN_TOOL)


def test_a_call_that_was_opened_without_its_name_does_not_run_beside_a_piece_of_no_call():
    turn = turn_of(delta(args='{"x":1}'), delta(name="get"), delta(index=1, args="2}"), DONE)
    assert broken(turn) == [("get", Flaw.TRUNCATED), (None, Flaw.MISSING_NAME)]


def test_a_name_on_every_fragment_is_a_repetition():
    turn = turn_of(*(delta(name="get", args=piece) for piece in ('{"', "x", '":', "[1,{}]", "}")), DONE)
    assert ready(turn) == [("made_0", "get", {"x": [1, {}]})]


@pytest.mark.parametrize("again", ['{"x":1}', '{ "x": 1 }', {"x": 1}])
def test_a_whole_call_sent_again_is_dropped(again):
    turn = turn_of(delta(id="a", name="get", args='{"x":1}'), delta(id="a", name="get", args=again), DONE)
    assert ready(turn) == [("a", "get", {"x": 1})]
    assert turn.findings == (Finding.DUPLICATE_CALL_DROPPED,)


def test_other_arguments_without_an_id_are_another_call():
    turn = turn_of(delta(name="get", args='{"x":1}'), delta(name="get", args='{"x":true}'), DONE)
    assert [(name, arguments) for _, name, arguments in ready(turn)] == [("get", {"x": 1}), ("get", {"x": True})]


def test_whole_objects_in_the_place_of_text_are_distinguished_as_well():
    turn = turn_of(delta(name="get", args={"x": 1}), delta(name="get", args={"x": 2}), DONE)
    assert [arguments for _, _, arguments in ready(turn)] == [{"x": 1}, {"x": 2}]


def test_calls_that_come_as_snapshots_under_one_name_are_distinguished():
    pieces = ('{"x"', '{"x":{"y":1}', '{"x":{"y":1}}', '{"x"', '{"x":2}', '{"x":2}')
    turn = turn_of(*(delta(name="get", args=piece) for piece in pieces), DONE)
    assert [arguments for _, _, arguments in ready(turn)] == [{"x": {"y": 1}}, {"x": 2}]
    assert Finding.DUPLICATE_CALL_DROPPED in turn.findings


def test_other_arguments_under_the_same_id_belong_to_the_same_call():
    turn = turn_of(delta(id="a", name="get", args="{}"), delta(id="a", name="get", args='{"x":1}'), DONE)
    assert ready(turn) == [("a", "get", {"x": 1})]
    turn = turn_of(delta(id="a", name="get", args='{"x":1}'), delta(id="a", name="get", args='{"x":2}'), DONE)
    assert broken(turn) == [("get", Flaw.INVALID_JSON)]


def test_white_space_after_a_whole_call_opens_no_second_one():
    turn = turn_of(delta(name="get", args='{"x":1}'), delta(name="get", args="\n"), DONE)
    assert [arguments for _, _, arguments in ready(turn)] == [{"x": 1}]


def test_extras_come_together_on_their_call():
    turn = turn_of(
        delta(id="a", name="get", args="{}", extra_content={"google": {"one": 1}}),
        CallDelta(extras={"extra_content": {"google": {"two": 2}}}),
        DONE,
    )
    assert turn.calls[0].extras == {"extra_content": {"google": {"one": 1, "two": 2}}}


# Ids


@pytest.mark.parametrize("id_", ["a", " odd id ", "x" * 5000, "functions.get:0", "call__thought__CiQ/+=="])
def test_usable_ids_are_never_altered(id_):
    turn = turn_of(delta(id=id_, name="get", args="{}"), DONE)
    assert turn.calls[0].id == id_
    assert turn.findings == ()


@pytest.mark.parametrize("id_", [None, "", "  ", 7, 7.5, "\ud83d", 10**40, True])
def test_any_other_id_is_repaired(id_):
    turn = turn_of(delta(id=id_, name="get", args="{}"), DONE)
    assert turn.findings == (Finding.ID_REPAIRED,)
    turn.calls[0].id.encode()
    assert turn.calls[0].id


def test_made_ids_never_meet_given_ones():
    turn = turn_of(delta(index=0, name="get", args="{}"), delta(index=1, id="made_0", name="get", args="{}"), DONE)
    assert [call.id for call in turn.calls] == ["made_1", "made_0"]


def test_broken_calls_have_ids_too_but_no_findings():
    turn = turn_of(delta(name="nobody", args="{}"), delta(index=1, name="nobody", args="{}"), DONE)
    assert len({call.id for call in turn.calls}) == 2
    assert turn.findings == ()


# Calls in one piece


def test_every_written_entry_is_a_call():
    turn = turn_of(
        CallWritten("get", "{}", "a"), CallWritten("get", "{}", "b"), CallWritten("get", '{"x":1}', "b"), DONE
    )
    assert ready(turn) == [("a", "get", {}), ("b", "get", {}), ("made_0", "get", {"x": 1})]


def test_an_equal_entry_is_dropped():
    turn = turn_of(CallWritten("get", '{"x":1}', "a"), CallWritten("get", '{"x": 1}', "a"), DONE)
    assert ready(turn) == [("a", "get", {"x": 1})]
    assert turn.findings == (Finding.DUPLICATE_CALL_DROPPED,)


def test_equal_entries_without_ids_are_several_calls():
    assert len(turn_of(CallWritten("get", "{}"), CallWritten("get", "{}"), DONE).calls) == 2


def test_broken_entries_that_are_equal_are_dropped_too():
    turn = turn_of(CallWritten("get", '{"x"', "a"), CallWritten("get", '{"x"', "a"), DONE)
    assert broken(turn) == [("get", Flaw.TRUNCATED)]


def test_calls_out_of_text_have_no_ids_and_need_no_repair():
    turn = turn_of(CallWritten("get", {"x": "1"}, from_text=True, only_text=True), Finished("stop"))
    assert ready(turn) == [("made_0", "get", {"x": "1"})]
    assert turn.findings == ()


def test_equal_calls_out_of_text_are_two_calls():
    twice = [CallWritten("get", "{}", from_text=True)] * 2
    assert len(ready(turn_of(*twice))) == 2


def test_the_finish_reason_of_a_prompted_turn_is_not_held_against_its_calls():
    turn = turn_of(PromptedCalling("xml", 40), TextDelta("hi"), Finished("tool_calls"))
    assert turn.findings == ()
    assert turn.prompted == PromptedCalling("xml", 40)
    assert turn_of(PromptedCalling("xml"), TextDelta("hi")).findings == ()
    assert turn_of(TextDelta("hi"), Finished("tool_calls")).findings == (Finding.FINISH_WITHOUT_TOOL_CALLS,)


def test_a_legacy_call_counts_if_there_is_no_other():
    legacy = CallDelta(name="get_", legacy=True), CallDelta(name="time", arguments='{"x"', legacy=True)
    turn = turn_of(*legacy, CallDelta(arguments=":1}", legacy=True), Finished("function_call"))
    assert ready(turn) == [("made_0", "get_time", {"x": 1})]
    assert turn.findings == (Finding.LEGACY_FUNCTION_CALL,)
    assert ready(turn_of(*legacy, delta(id="a", name="get", args="{}"), DONE)) == [("a", "get", {})]
    assert turn_of(CallDelta(arguments="", legacy=True), CallWritten(None, legacy=True)).calls == ()


# What the end of the turn decides


def test_a_call_that_looks_finished_is_not_settled_before_the_end():
    turn = turn_of(delta(id="a", name="get", args="{}"), DONE, delta(args="}"))
    assert broken(turn) == [("get", Flaw.INVALID_JSON)]


@pytest.mark.parametrize(
    ("events", "end", "flaw"),
    [
        ((Finished("content_filter"),), StreamEnd.DONE, Flaw.CONTENT_FILTER),
        ((), StreamEnd.EOF, Flaw.STREAM_ENDED),
        ((), StreamEnd.ERROR, Flaw.UPSTREAM_ERROR),
        ((ProviderError("no"), DONE), StreamEnd.DONE, Flaw.UPSTREAM_ERROR),
        ((DONE, Finished("error")), StreamEnd.DONE, Flaw.UPSTREAM_ERROR),
    ],
)
def test_nothing_of_an_unfinished_turn_is_ready(events, end, flaw):
    turn = turn_of(delta(id="a", name="get", args="{}"), *events, end=end)
    assert broken(turn) == [("get", flaw)]
    assert turn.failure is flaw


def test_after_a_finish_reason_the_end_of_the_body_means_nothing():
    for end in StreamEnd:
        assert len(ready(turn_of(delta(id="a", name="get", args="{}"), DONE, end=end))) == 1


def test_under_length_the_last_call_is_the_doubtful_one():
    turn = turn_of(
        delta(index=0, id="a", name="get", args="{}"), delta(index=1, id="b", name="get", args="{}"), Finished("length")
    )
    assert ready(turn) == [("a", "get", {})]
    assert broken(turn) == [("get", Flaw.TRUNCATED)]
    assert turn.winner is FinishClass.LENGTH


def test_ignored_choices_and_repeated_reasons_are_noted_once():
    turn = turn_of(ChoiceIgnored(1), ChoiceIgnored(2), Finished("stop"), Finished("stop"), Finished(""))
    assert (turn.findings, turn.reasons) == ((Finding.EXTRA_CHOICES_IGNORED,), ("stop",))


# Going back to the model


def test_a_whole_call_goes_back_with_the_models_own_text():
    message = turn_of(TextDelta("ok"), delta(id="a", name="get", args=' {"x" : 1}\n'), DONE).assistant_message()
    assert message == {
        "role": "assistant",
        "content": "ok",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "get", "arguments": ' {"x" : 1}\n'}}],
    }


@pytest.mark.parametrize("written", [None, " ", "null", '{}{"x":"é"}', '"{\\"x\\":\\"é\\"}"', {"x": "é"}, '{"x":"\n"}'])
def test_what_is_not_one_json_object_goes_back_as_one(written):
    turn = turn_of(delta(id="a", name="get", args=written), DONE)
    text = turn.assistant_message()["tool_calls"][0]["function"]["arguments"]
    assert [json.loads(text)] == [arguments for _, _, arguments in ready(turn)]


@pytest.mark.parametrize("name", [None, "no such tool", "x" * 200, "functions.nobody", "名前"])
def test_a_broken_call_goes_back_empty_under_a_legal_name(name):
    message = turn_of(CallWritten(name, '{"x": "cut', "a"), DONE).assistant_message()
    function = message["tool_calls"][0]["function"]
    legal = {None: "unnamed", "no such tool": "no_such_tool", "functions.nobody": "functions_nobody"}
    assert function["name"] == legal.get(name, function["name"])
    assert function["arguments"] == "{}"
    assert function["name"].isascii()
    assert 0 < len(function["name"].replace("_", "x")) <= 64
    assert message["content"] is None


def test_all_that_was_part_of_the_message_goes_back():
    turn = turn_of(
        ReasoningDelta("why", "reasoning"),
        ThinkingBlock({"type": "thinking", "thinking": "why", "signature": "s"}),
        ExtraField("reasoning_details", [{"type": "reasoning.text"}]),
        ExtraField("audio", {"id": "audio_1", "data": "UklGRg=="}),
        delta(id="a", name="get", args="{}", provider_specific_fields={"thought_signature": "t"}),
        DONE,
    )
    assert turn.assistant_message() == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "why",
        "thinking_blocks": [{"type": "thinking", "thinking": "why", "signature": "s"}],
        "reasoning_details": [{"type": "reasoning.text"}],
        "audio": {"id": "audio_1"},
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "get", "arguments": "{}"},
                "provider_specific_fields": {"thought_signature": "t"},
            }
        ],
    }


def test_a_field_of_a_message_is_never_one_of_those_that_are_made_here():
    turn = turn_of(ExtraField("role", "user"), ExtraField("content", "theirs"), TextDelta("ours"))
    assert turn.assistant_message() == {"role": "assistant", "content": "ours"}
    assert turn_of().assistant_message() == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("field", "value"), [("odd", {"id": 1, "b": 2}), ("audio", {"data": "UklGRg=="}), ("audio", "words with an id")]
)
def test_only_audio_goes_back_by_its_id(field: str, value: Any):
    assert turn_of(ExtraField(field, value)).assistant_message()[field] == value


def test_a_free_text_call_goes_back_as_one():
    turn = turn_of(CallWritten("get", "SELECT", "c", custom=True, extras={"s": 1}), DONE)
    assert turn.assistant_message()["tool_calls"] == [
        {"s": 1, "id": "c", "type": "custom", "custom": {"name": "get", "input": "SELECT"}}
    ]


def test_a_whole_call_goes_back_under_the_name_that_was_offered():
    building = TurnBuilder(offer={"my.tool": OfferedTool("my.tool", NO_SCHEMA)}, ids=str)
    building.feed([delta(id="a", name="my.tool", args="{}"), DONE])
    assert building.finish().assistant_message()["tool_calls"][0]["function"]["name"] == "my.tool"


# However it is cut

TEXTS = st.text(max_size=8)
ARGUMENTS = st.dictionaries(TEXTS, st.integers() | TEXTS | st.lists(st.booleans(), max_size=2), max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(sorted(OFFER)), ARGUMENTS), min_size=1, max_size=4)


def fragments(calls: list[tuple[str, dict[str, Any]]], cuts: Iterable[int]) -> list[list[CallDelta]]:
    """Each call as a list of fragments: one that opens it, then pieces of its text."""
    places = itertools.cycle([*cuts] or [1])
    streamed = []
    for index, (name, arguments) in enumerate(calls):
        text, pieces = json.dumps(arguments), [CallDelta(index, f"call_{index}", name, "")]
        while text:
            size = next(places)
            pieces.append(CallDelta(index, None, None, text[:size]))
            text = text[size:]
        streamed.append(pieces)
    return streamed


@settings(deadline=None)
@given(CALLS, st.lists(st.integers(1, 9), max_size=6), st.randoms(use_true_random=False))
def test_however_calls_are_cut_and_interleaved_the_same_calls_come_out(calls, cuts, random):
    streamed = fragments(calls, cuts)
    turn = turn_of(
        *(opener for opener, *_ in streamed), *interleaved([pieces for _, *pieces in streamed], random), DONE
    )
    assert [(name, arguments) for _, name, arguments in ready(turn)] == calls
    assert turn.findings == ()


def interleaved(queues: list[list[CallDelta]], random: Any) -> list[CallDelta]:
    order = [place for place, queue in enumerate(queues) for _ in queue]
    random.shuffle(order)
    readers = [iter(queue) for queue in queues]
    return [next(readers[place]) for place in order]


@settings(deadline=None)
@given(CALLS, st.lists(st.integers(1, 9), max_size=6), st.integers(0, 200))
def test_a_stream_that_stops_anywhere_runs_only_what_was_whole(calls, cuts, stop):
    events = [event for pieces in fragments(calls, cuts) for event in pieces][:stop]
    turn = turn_of(*events, Finished("length"))
    assert all(call in calls for call in [(name, arguments) for _, name, arguments in ready(turn)])
    assert len(ready(turn)) <= len(calls)
    assert ready(turn_of(*events, end=StreamEnd.EOF)) == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
DELTAS = st.builds(
    CallDelta,
    st.none() | st.integers(-1, 2),
    st.none() | st.sampled_from(["", " ", "a", "b"]) | st.integers(0, 2),
    st.none() | st.sampled_from(["", " ", "get", "get_", "time", "nobody", "multi_tool_use.parallel"]),
    st.sampled_from(["", "{", "}", "{}", '"x":1', '"']) | VALUES,
    st.just({}) | st.just({"extra_content": {"s": 1}}),
    st.booleans(),
)


@settings(deadline=None)
@given(st.lists(DELTAS, max_size=8), st.sampled_from(StreamEnd), st.sampled_from(["stop", "length", "error", ""]))
def test_any_fragments_make_a_turn_with_no_more_calls_than_came(deltas, end, reason):
    turn = turn_of(*deltas, Finished(reason), end=end)
    assert len(turn.calls) <= len(deltas)
    assert len({call.id for call in turn.calls}) == len(turn.calls)
    for call in turn.assistant_message().get("tool_calls", []):
        assert isinstance(json.loads(call["function"]["arguments"]), dict)


def test_a_number_without_end_for_an_id_is_no_id():
    turn = turn_of(CallDelta(0, 10**5000, "get", "{}"), DONE)
    assert (turn.calls[0].id, turn.findings) == ("made_0", (Finding.ID_REPAIRED,))


# The rules of section I read once more, plainly and slowly, to hold the quick way against


def plainly(deltas: list[CallDelta]) -> list[tuple[str | None, list[Any]]]:
    """Name and argument fragments of each call, by scanning all calls for each fragment."""
    calls: list[dict[str, Any]] = []
    for one in deltas:
        id_ = one.id if isinstance(one.id, str) and one.id.strip() else None
        has_args = one.arguments not in (None, "")
        if id_ is None and not one.name and not has_args and not one.extras:
            continue
        call = candidate_of(calls, id_, one.index)
        if call is None or (one.name and is_new(call, one, id_)):
            again = call is not None and id_ is not None and call["id"] == id_
            calls.append({"id": id_, "index": one.index, "name": one.name or None, "args": [], "again": again})
            call = calls[-1]
        call["id"] = call["id"] or id_
        if has_args and not call.pop("resent", False):
            call["args"].append(one.arguments)
    kept: list[dict[str, Any]] = []
    for call in calls:
        same = [one for one in kept if call["again"] and one["id"] == call["id"] and one["name"] == call["name"]]
        spelling = spelling_of(call["args"])
        if any(spelling_of(one["args"]) == spelling for one in same) or (same and spelling == "{}"):
            continue
        blank = [one for one in same if spelling_of(one["args"]) == "{}"]
        if blank:
            blank[0]["args"] = call["args"]
        else:
            kept.append(call)
    return [(call["name"], call["args"]) for call in kept]


def spelling_of(fragments: list[str]) -> str:
    try:
        return canonical(read_arguments(fragments).value)
    except ArgumentsError:
        return "".join(fragments)


def candidate_of(calls: list[dict[str, Any]], id_: str | None, index: int | None) -> dict[str, Any] | None:
    by_both = [
        call for call in calls if id_ is not None and index is not None and (call["id"], call["index"]) == (id_, index)
    ]
    by_id = [call for call in calls if id_ is not None and call["id"] == id_]
    by_index = [call for call in calls if index is not None and call["index"] == index]
    latest = calls if index is None else []
    return next((found[-1] for found in (by_both, by_id, by_index, latest) if found), None)


def is_new(call: dict[str, Any], one: CallDelta, id_: str | None) -> bool:
    assert one.name
    if id_ and call["id"] and id_ != call["id"]:
        return True
    if call["name"] is None:
        call["name"] = one.name
        return False
    same_id = id_ is not None and id_ == call["id"]
    if same_id and one.index is not None and call["index"] is not None and one.index != call["index"]:
        return True
    if one.name == call["name"]:
        whole = object_of(call["args"])
        if whole is None or one.arguments in (None, "") or one.arguments.isspace():
            return False
        call["resent"] = whole == object_of([one.arguments])
        is_written_now = whole == "{}" and id_ is None and one.index is not None and one.index == call["index"]
        return not call["resent"] and not same_id and not is_written_now
    if call["args"] or (one.name in OFFER and call["name"] in OFFER):
        return True
    if one.name.startswith(call["name"]):
        call["name"] = one.name
    elif any(tool.startswith(call["name"] + one.name) for tool in OFFER):
        call["name"] += one.name
    else:
        return True
    return False


def object_of(fragments: list[str]) -> str | None:
    if not "".join(fragments).strip():
        return None
    try:
        return canonical(read_arguments(fragments).value)
    except ArgumentsError:
        return None


PLAIN_DELTAS = st.builds(
    CallDelta,
    st.none() | st.integers(0, 2),
    st.none() | st.sampled_from(["", "a", "b"]),
    st.none() | st.sampled_from(["", "get", "get_", "time", "get_time", "nobody"]),
    st.none() | st.sampled_from(["", "{", "}", "{}", '{"x":1}', '{"x": 1}', '{"x":2}', '{"x":', "1}", " "]),
    st.just({}) | st.just({"extra_content": {"s": 1}}),
)


@settings(deadline=None, max_examples=examples(600))
@given(st.lists(PLAIN_DELTAS, max_size=8))
def test_the_quick_way_finds_the_same_calls_as_the_plain_reading_of_the_rules(deltas):
    turn = turn_of(*deltas, DONE)
    expected = [(name, "".join(fragments)) for name, fragments in plainly(deltas)]
    assert [(call.name, call.text) for call in turn.calls] == expected


# More than anybody can use --------------------------------------------------------------------------------------------


def limited(*events: ModelEvent) -> Turn:
    building = TurnBuilder(offer=OFFER, ids=map("made_{}".format, itertools.count()).__next__, argument_bytes=1024)
    building.feed(events)
    return building.finish()


LONG = "x" * 2000


@pytest.mark.parametrize(
    "events",
    [
        [
            CallDelta(0, "c1", "get", '{"a": "'),
            *[CallDelta(0, arguments=LONG[:10])] * 200,
            CallDelta(0, arguments='"}'),
        ],
        [CallWritten("get", json.dumps({"a": LONG}), "c1")],
        [CallWritten("get", {"a": LONG}, "c1")],
        [CallWritten("get", {"a": LONG}, from_text=True)],
        [CallDelta(name="get", arguments=json.dumps({"a": LONG}), legacy=True)],
    ],
    ids=["streamed", "whole", "whole object", "out of text", "legacy"],
)
def test_a_call_with_too_large_arguments_is_broken_and_its_neighbour_runs(events):
    first = events[0]
    beside = [] if first.legacy else [CallWritten("get", "{}", "c2", from_text=getattr(first, "from_text", False))]
    turn = limited(*events, *beside, Finished("tool_calls"))
    large, *others = turn.calls
    assert isinstance(large, BrokenCall)
    assert large.flaw is Flaw.ARGUMENTS_TOO_LARGE
    assert len(large.text) < 1100
    assert len(ready(turn)) == len(others) == len(beside)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
def test_free_text_for_a_custom_tool_has_the_same_limit(whole):
    written = CallWritten("get", LONG, "c1", custom=True)
    pieces = [CallDelta(0, "c1", "get", "", custom=True), *[CallDelta(0, arguments=LONG[:10])] * 200]
    [call] = limited(*([written] if whole else pieces), DONE).calls
    assert isinstance(call, BrokenCall)
    assert call.flaw is Flaw.ARGUMENTS_TOO_LARGE
    assert call.problem is not None
    assert "1024 bytes" in call.problem.expected


# Text that could not be read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{"a": "x\ufffd"}, '{"a": "x\ufffd"}'], ids=["object", "text"])
def test_a_call_read_out_of_text_that_was_damaged_is_broken_where_the_damage_is(arguments):
    hurt = CallWritten("get", arguments, from_text=True)
    sound = CallWritten("get", {"a": "x"}, from_text=True)
    turn = turn_of(PromptedCalling("hermes"), CharactersLost(), hurt, sound, DONE)
    assert broken(turn) == [("get", Flaw.INVALID_JSON)]
    assert [arguments for _, _, arguments in ready(turn)] == [{"a": "x"}]
    assert len(ready(turn_of(PromptedCalling("hermes"), hurt, sound, DONE))) == 2, "a model may write the sign itself"
    native = CallWritten("get", {"a": "x\ufffd"}, "n")
    assert len(ready(turn_of(CharactersLost(), native, DONE))) == 1, "it came beside the text"
    cut = replace(hurt, flaw=Flaw.TRUNCATED)
    assert broken(turn_of(PromptedCalling("hermes"), CharactersLost(), cut, DONE)) == [("get", Flaw.TRUNCATED)]


def test_a_server_that_sends_a_call_as_text_and_natively_has_it_run_once():
    written = CallWritten("get", {"a": 1}, from_text=True)
    turn = turn_of(PromptedCalling("hermes"), written, delta(id="n", name="get", args='{"a":1}'), DONE)
    assert ready(turn) == [("n", "get", {"a": 1})]
    assert Finding.DUPLICATE_CALL_DROPPED in turn.findings
    whole = turn_of(PromptedCalling("hermes"), written, CallWritten("get", '{"a":1}', "n"), DONE)
    assert ready(whole) == [("n", "get", {"a": 1})]


def test_a_free_text_call_is_whole_only_where_the_body_ended_in_order():
    given: list[ModelEvent] = [CallDelta(0, "c", "get", "SELECT", custom=True), Finished("stop")]
    assert not broken(turn_of(*given))
    assert broken(turn_of(*given, end=StreamEnd.EOF)) == [("get", Flaw.TRUNCATED)]


# Arguments that may belong to another call ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stray", "is_from_middle"),
    [('"y":2}', True), ('"Os', True), ("{a}", True), (' {"y":', False), ('{"y":2}', False)],
)
def test_beside_the_middle_of_some_arguments_no_call_is_known_to_be_whole(stray: str, is_from_middle: bool):
    turn = turn_of(delta(id="a", name="get", args='{"x":1}'), delta(index=1, args=stray), DONE)
    assert ready(turn) == ([] if is_from_middle else [("a", "get", {"x": 1})])


def test_what_is_sent_again_and_makes_no_object_is_no_resend():
    for again in ('{"x":', "{x}"):
        assert not ready(
            turn_of(delta(id="a", name="get", args='{"x":1}'), delta(id="a", name="get", args=again), DONE)
        )


def test_two_broken_calls_that_differ_are_two():
    turn = turn_of(CallWritten("get", '{"x"', "a"), CallWritten("get", '{"y"', "a"), DONE)
    assert [call.text for call in turn.calls] == ['{"x"', '{"y"']


def test_true_is_no_id_to_know_a_call_by():
    calls = [delta(index=index, id=True, name="get", args='{"x":1}') for index in range(2)]
    assert len(ready(turn_of(*calls, DONE))) == 2


def test_a_later_value_of_another_kind_replaces_an_extra_of_a_call():
    turn = turn_of(delta(id="a", name="get", args="{}", extra={"s": 1}), delta(id="a", extra=5), DONE)
    assert turn.calls[0].extras == {"extra": 5}


@pytest.mark.parametrize(
    ("deltas", "runs"),
    [
        # A call got its arguments behind one that may continue it, of which there is only a part.
        ([delta(id="a", name="get"), delta(index=None, id="b", name="get", args='{"x":'), delta(args="{}")], False),
        (
            [delta(id="a", name="get"), delta(index=None, id="b", name="get", args='{"x":'), delta(id="a", args="{}")],
            False,
        ),
        ([delta(id="a", name="get"), delta(index=None, id="b", name="get"), delta(args='{"x":')], False),
        # It had them before, and nothing but its id came behind.
        ([delta(id="a", name="get"), delta(args="{}"), delta(id="b", name="get", args='{"x":')], True),
        ([delta(id="a", name="get"), delta(id="a", args="{}"), delta(id="b", name="get", args='{"x":')], True),
        (
            [delta(id="a", name="get", args="{}"), delta(index=None, id="b", name="get", args='{"x":'), delta(id="a")],
            True,
        ),
        # An object begins while the arguments of a call that it may belong to have not ended.
        ([delta(id="a", name="get", args='{"x":1'), delta(index=None, id="b", name="get", args='{"x":2}')], False),
        ([delta(index=None, id="a", name="get", args='{"x":1'), delta(id="a", name="get_time", args='{"x":2}')], False),
        ([delta(id="a", args='{"x":1'), delta(id="b", name="get", args='{"x":2}')], False),
        ([delta(id=id, name="get", args=args) for id, args in zip("abc", ('{"x":1', "{}", "{}"), strict=True)], False),
        ([delta(id="a", name="nobody", args='{"x":'), delta(id="b", name="nobody", args="1}")], False),
        # The rest of its name came under another id.
        ([delta(id="a", name="get"), delta(id="b", name="_time", args='{"x":1}')], False),
    ],
)
def test_of_calls_that_may_be_pieces_of_one_only_what_is_surely_whole_runs(deltas: list[CallDelta], runs: bool):
    assert ready(turn_of(*deltas, DONE)) == ([("a", "get", {})] if runs else [])


def test_a_fragment_may_bring_nothing_but_an_id_or_a_name():
    assert ready(turn_of(delta(name="get", args='{"x":1}'), delta(id="late"), DONE)) == [("late", "get", {"x": 1})]
    late_name = turn_of(delta(id="a", name="", args='{"x":'), delta(id="a", name="get", args="1}"), DONE)
    assert ready(late_name) == [("a", "get", {"x": 1})]


def test_an_equal_call_behind_another_one_is_a_call():
    names = ("get", "get_time", "get")
    turn = turn_of(*(delta(index=None, name=name, args='{"x":1}') for name in names), DONE)
    assert [name for _, name, _ in ready(turn)] == list(names)


def test_equal_calls_without_ids_are_several_beside_calls_that_may_be_one():
    equal = [delta(index=index, name="get", args="{}") for index in range(2)]
    related = [delta(index=2, id=id, name="get", args='{"x":1}') for id in ("a", "b")]
    turn = turn_of(*equal, *related, DONE)
    assert len(ready(turn)) == 4
    assert Finding.DUPLICATE_CALL_DROPPED not in turn.findings


def test_a_call_of_which_nothing_but_an_id_came_makes_no_other_doubtful():
    empty = delta(index=1, id="z")
    for deltas, arguments in (
        ([delta(args='{"x":'), delta(name="get", args="1}")], {"x": 1}),
        ([delta(name="get")], {}),
    ):
        turn = turn_of(empty, *deltas, DONE)
        assert [given for _, _, given in ready(turn)] == [arguments]
        assert broken(turn) == [(None, Flaw.MISSING_NAME)]


def test_a_call_that_was_named_behind_the_middle_of_some_arguments_is_broken_alone():
    turn = turn_of(delta(args='"y":2}'), delta(name="get"), delta(index=1, id="a", name="get", args='{"x":1}'), DONE)
    assert ready(turn) == [("a", "get", {"x": 1})]
    assert broken(turn) == [("get", Flaw.INVALID_JSON)]


def test_an_unknown_tool_without_arguments_may_lack_those_that_have_no_name():
    turn = turn_of(delta(index=1, args='{"x":1}'), delta(id="a", name="nobody"), DONE)
    assert broken(turn) == [(None, Flaw.MISSING_NAME), ("nobody", Flaw.UNKNOWN_TOOL)]


@pytest.mark.parametrize(
    "call",
    [CallWritten("get", "", "c"), delta(id="c", name="get"), CallDelta(name="get", arguments="", legacy=True)],
    ids=["whole", "streamed", "legacy"],
)
def test_a_call_that_came_behind_the_reason_has_not_been_ended_by_it(call: ModelEvent):
    assert len(ready(turn_of(call, Finished("stop")))) == 1
    assert broken(turn_of(Finished("stop"), call)) == [("get", Flaw.TRUNCATED)]
    assert len(ready(turn_of(Finished("stop"), call, Finished("stop")))) == 1


def test_of_entries_with_one_id_each_that_differs_is_a_call_once():
    one, other = (CallWritten("get", json.dumps({"x": number}), "a") for number in range(2))
    for entries in ((one, other, one), (one, other, other), (one, one, other)):
        assert [arguments for _, _, arguments in ready(turn_of(*entries, DONE))] == [{"x": 0}, {"x": 1}]


def test_a_free_text_call_in_one_piece_is_one():
    [call] = turn_of(CallWritten("get", "SELECT", "c", custom=True), DONE).calls
    assert isinstance(call, ReadyCall)
    assert (call.text, call.custom) == ("SELECT", True)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_turn_is_large_by_the_arguments_of_all_its_calls(legacy: bool):
    building = TurnBuilder(offer=OFFER, ids=str)
    building.feed([CallDelta(0, "a", "get", "x" * (LARGE // 2), legacy=legacy)])
    building.feed([CallDelta(1, "b", "get", "x" * (LARGE - LARGE // 2), legacy=legacy)])
    before = building.is_large()
    building.feed([CallDelta(1, arguments="x", legacy=legacy)])
    assert (before, building.is_large()) == (False, True)
    fields = TurnBuilder(offer=OFFER, ids=str)
    fields.feed([ExtraField("odd", 1)])
    assert fields.is_large(), "what is in them is not known"


def test_an_answer_with_too_many_calls_is_too_large():
    building = TurnBuilder(offer=OFFER, ids=map("made_{}".format, itertools.count()).__next__)
    building.feed(CallWritten("get", "{}", f"a{number}") for number in range(MAX_CALLS))
    assert len(building.finish().calls) == MAX_CALLS
    with pytest.raises(AnswerTooLarge, match=f"{MAX_CALLS} calls"):
        building.feed([delta(id="more", name="get")])


@pytest.mark.parametrize("nothing", [None, "", " \n"])
@pytest.mark.parametrize("whole", ["{}", '{"x":1}'])
def test_a_name_that_comes_again_with_nothing_opens_no_call(whole: str, nothing: str | None):
    turn = turn_of(delta(id="a", name="get", args=whole), delta(name="get", args=nothing), DONE)
    assert (ready(turn), turn.findings) == ([("a", "get", json.loads(whole))], ())


@pytest.mark.parametrize("indexes", [(None, 0), (0, None)])
def test_one_id_and_name_is_one_call_where_an_index_is_left_out(indexes: tuple[int | None, int | None]):
    pieces = [
        delta(index=index, id="a", name="get", args=args) for index, args in zip(indexes, ('{"x":', "1}"), strict=True)
    ]
    assert ready(turn_of(*pieces, DONE)) == [("a", "get", {"x": 1})]


def test_a_name_that_goes_on_behind_arguments_is_another_call():
    turn = turn_of(delta(name="get", args='{"x":1}'), delta(name="getx", args="{}"), DONE)
    assert [arguments for _, _, arguments in ready(turn)] == [{"x": 1}]
    assert broken(turn) == [("getx", Flaw.UNKNOWN_TOOL)]


def test_calls_that_may_be_one_both_run_where_both_are_whole():
    deltas = [delta(id="a", name="get"), delta(index=None, id="b", name="get", args='{"x":1}'), delta(args="{}")]
    assert ready(turn_of(*deltas, DONE)) == [("a", "get", {}), ("b", "get", {"x": 1})]


def test_what_a_reader_of_text_says_of_a_call_goes_with_it():
    given = CallWritten("get", {"x": "1", "z": "[1]"}, 7, repaired=True, only_text=True, from_text=True)
    turn = turn_of(PromptedCalling("hermes"), given)
    assert ready(turn) == [("7", "get", {"x": "1", "z": "[1]"})]
    assert turn.findings == (Finding.ID_REPAIRED, Finding.ARGUMENTS_REPAIRED)
    turn = turn_of(PromptedCalling("hermes"), replace(given, undeclared_json=True))
    assert ready(turn) == [("7", "get", {"x": "1", "z": [1]})]


def test_a_call_out_of_text_is_ended_by_its_own_marks():
    assert len(ready(turn_of(CallWritten("get", "", from_text=True)))) == 1
    assert broken(turn_of(CallWritten("get", "", "a"))) == [("get", Flaw.TRUNCATED)]


def test_an_empty_object_before_the_reason_is_whole_though_the_end_mark_is_missing():
    given = delta(id="a", name="get", args="{}")
    assert len(ready(turn_of(given, Finished("stop"), end=StreamEnd.EOF))) == 1
    assert broken(turn_of(Finished("stop"), given, end=StreamEnd.EOF)) == [("get", Flaw.TRUNCATED)]


def test_no_made_id_is_given_twice():
    building = TurnBuilder(offer=OFFER, ids=iter(["m", "m", "n"]).__next__)
    building.feed([delta(index=index, name="get", args="{}") for index in range(2)])
    assert [call.id for call in building.finish().calls] == ["m", "n"]


# The last call of a whole answer that was cut at its length ------------------------------------------------------------


def calls_written(*names: str, **fields: Any) -> list[ModelEvent]:
    return [CallWritten(name, '{"x":1}', f"call_{at}", **fields) for at, name in enumerate(names)]


def names_ready(turn: Turn) -> list[str | None]:
    return [call.name for call in turn.calls if isinstance(call, ReadyCall)]


@pytest.mark.parametrize("reason", ["length", "max_tokens"])
def test_the_last_call_of_a_whole_answer_at_its_length_never_runs(reason: str):
    turn = turn_of(*calls_written("nobody_asks", "get_time", "get_time"), Finished(reason))
    assert names_ready(turn) == ["get_time"]
    assert turn.calls[-1].flaw is Flaw.TRUNCATED  # type: ignore[union-attr]


def test_a_call_that_something_came_behind_was_not_cut():
    assert names_ready(turn_of(*calls_written("get_time", at_once=False), Finished("length"))) == ["get_time"]


def test_a_call_that_is_repeated_at_the_end_was_not_the_one_being_written():
    once = CallWritten("get_time", '{"x":1}', "call_0")
    turn = turn_of(once, once, Finished("length"))
    assert names_ready(turn) == ["get_time"]
    assert Finding.DUPLICATE_CALL_DROPPED in turn.findings


def test_arguments_that_came_as_an_object_in_a_stream_do_not_show_a_cut():
    opened = CallDelta(0, "a", "get_time")
    at_once = CallDelta(0, arguments={"x": 1}, at_once=True)
    assert names_ready(turn_of(opened, at_once, Finished("stop"))) == ["get_time"]
    assert names_ready(turn_of(opened, at_once, Finished("length"))) == []
    assert names_ready(turn_of(opened, CallDelta(0, arguments='{"x":1}'), Finished("length"))) == ["get_time"]


def test_a_call_that_comes_again_with_its_arguments_is_one_call_in_the_place_of_the_first():
    turn = turn_of(
        CallDelta(0, "a", "get_time", "{}", {"extra_content": {"s": 1}}),
        CallDelta(1, "b", "get_time", "{}"),
        CallDelta(2, "a", "get_time", '{"x":'),
        CallDelta(2, arguments="1}"),
        DONE,
    )
    assert [(call.id, call.text) for call in turn.calls] == [("a", '{"x":1}'), ("b", "{}")]
    assert turn.calls[0].extras == {"extra_content": {"s": 1}}
    again = turn_of(CallDelta(0, "a", "get_time", "{}"), CallDelta(1, "a", "get_time", '{"x":'), DONE)
    assert [call.text for call in again.calls] == ['{"x":'], "one call or none, never two"
    other = turn_of(CallDelta(0, "a", "get_time", "{}"), CallDelta(1, "a", "get_weather", "{}"), DONE)
    assert len(other.calls) == 2
