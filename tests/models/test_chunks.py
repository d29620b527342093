from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.calls.states import ReadyCall
from callgate.conversation.events import (
    CallDelta,
    CallWritten,
    CharactersLost,
    ChoiceIgnored,
    ExtraField,
    Finished,
    Logprobs,
    ModelEvent,
    ProviderError,
    ProviderHead,
    ReasoningDelta,
    TextDelta,
    ThinkingBlock,
)
from callgate.conversation.turn import TurnBuilder
from callgate.conversation.usage import Usage
from callgate.models.direct.chunks import USUAL, ChunkReader, error_in, read_completion
from tests.corpus.judge import offer_of


def chunk(delta: object = None, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, **choice}]}


def events_of_chunks(*chunks: object) -> list[ModelEvent]:
    reader = ChunkReader()
    return [event for one in chunks for event in reader.read(one)] + reader.finish()


def completion(message: object, **choice: Any) -> list[ModelEvent]:
    return read_completion({"choices": [{"index": 0, "message": message, **choice}]})


# Streams


def test_text_comes_through():
    assert events_of_chunks(chunk({"role": "assistant", "content": "He"}), chunk({"content": "y"})) == [
        TextDelta("He"),
        TextDelta("y"),
    ]


@pytest.mark.parametrize(
    "odd",
    [
        None,
        "text",
        [],
        {},
        {"choices": None},
        {"choices": {}},
        {"choices": []},
        {"choices": [None, "x"]},
        chunk(None),
        chunk({}),
        chunk("text"),
        chunk({"role": "assistant", "content": "", "tool_calls": None, "function_call": None, "refusal": None}),
        chunk({"tool_calls": []}),
        chunk({"tool_calls": [None, "x", 3]}),
        chunk({"tool_calls": "x"}),
        chunk({"function_call": "x"}),
        chunk({"content": 7}, finish_reason=None, logprobs=None),
        chunk({}, finish_reason=""),
        {"choices": [], "usage": None, "error": None},
        {"error": {}, "usage": 7},
    ],
)
def test_an_odd_chunk_without_content_has_no_events(odd):
    assert events_of_chunks(odd) == []


@pytest.mark.parametrize(
    "odd", [{"choices": {"index": 0}}, {"choices": "0"}, {"choices": 7}, {"choices": True}, [chunk({"content": "0"})]]
)
def test_a_chunk_in_an_unknown_shape_breaks_the_call_whose_piece_it_may_hold(odd):
    tools = [{"type": "function", "function": {"name": "pay", "parameters": {"type": "object"}}}]
    opened = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "pay", "arguments": '{"amount": 5'}}]})
    closed = chunk({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}, finish_reason="tool_calls")
    for chunks, runs in (((opened, closed), True), ((opened, odd, closed), False)):
        building = TurnBuilder(offer=offer_of(tools), ids="made".__str__)
        building.feed(events_of_chunks(*chunks))
        turn = building.finish()
        assert [isinstance(call, ReadyCall) for call in turn.calls] == [runs]
    assert events_of_chunks(odd) == []


def test_the_head_is_emitted_once_when_there_is_one():
    whole_chunk: dict[str, Any] = {
        "id": "c1",
        "model": "m",
        "system_fingerprint": "fp",
        "service_tier": None,
        "choices": [],
    }
    assert events_of_chunks({"id": "", "model": "", "choices": []}, whole_chunk, whole_chunk) == [
        ProviderHead("c1", "m", "fp", None)
    ]


def test_a_fragment_of_a_call_is_passed_on_as_it_was_sent():
    entry = {"index": 2, "id": "a", "type": "function", "function": {"name": "f", "arguments": '{"'}}
    assert events_of_chunks(chunk({"tool_calls": [entry]})) == [CallDelta(2, "a", "f", '{"')]


@pytest.mark.parametrize(
    ("entry", "event"),
    [
        ({"index": 0}, CallDelta(0)),
        ({"index": "zero", "function": None}, CallDelta()),
        ({"index": True, "id": 7, "function": {"name": "", "arguments": {"a": 1}}}, CallDelta(None, 7, None, {"a": 1})),
        ({"index": -1, "id": True, "function": {"name": 3, "arguments": [1]}}, CallDelta(-1, None, None, [1])),
        ({"id": {}, "function": "f"}, CallDelta()),
        ({"extra_content": {"s": 1}, "provider_specific_fields": None}, CallDelta(extras={"extra_content": {"s": 1}})),
    ],
)
def test_a_fragment_of_a_call_may_lack_or_misuse_anything(entry, event):
    assert events_of_chunks(chunk({"tool_calls": [entry]})) == [event]


def test_one_call_where_a_list_was_due_is_a_list_of_one():
    assert events_of_chunks(chunk({"tool_calls": {"index": 0, "id": "a"}})) == [CallDelta(0, "a")]


def test_a_legacy_call_is_marked_as_such():
    assert events_of_chunks(chunk({"function_call": {"name": "f", "arguments": "{"}})) == [
        CallDelta(name="f", arguments="{", legacy=True)
    ]


def test_a_message_in_the_place_of_a_delta_is_read_as_one():
    message = {"content": "hi", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}
    events = [TextDelta("hi"), CallDelta(None, "a", "f"), Finished("stop")]
    assert events_of_chunks({"choices": [{"message": message, "finish_reason": "stop"}]}) == events
    assert events_of_chunks({"choices": [{"delta": None, "message": message, "finish_reason": "stop"}]}) == events
    assert events_of_chunks({"choices": [{"delta": {}, "message": message, "finish_reason": "stop"}]}) == [
        Finished("stop")
    ]


def test_what_a_delta_brings_comes_before_the_reason_it_finished_for():
    events = events_of_chunks(
        chunk({"tool_calls": [{"index": 0, "id": "a"}]}, finish_reason="stop", logprobs={"content": [1]})
    )
    assert events == [CallDelta(0, "a"), Logprobs({"content": [1]}), Finished("stop")]


def test_only_one_choice_is_read():
    two = {"choices": [{"index": 1, "delta": {"content": "B"}}, {"index": 0, "delta": {"content": "A"}}]}
    assert events_of_chunks(two) == [ChoiceIgnored(1), TextDelta("A")]
    assert ChunkReader(choice=1).read(two) == [TextDelta("B"), ChoiceIgnored(0)]


def test_a_choice_without_index_is_known_by_its_place():
    assert events_of_chunks({"choices": [{"delta": {"content": "A"}}, {"delta": {"content": "B"}}]}) == [
        TextDelta("A"),
        ChoiceIgnored(1),
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "Overloaded"}, "choices": []}, "Overloaded"),
        ({"error": "no"}, "no"),
        ({"error": {"code": 500}}, "the provider reported an error"),
        ({"choices": [{"index": 0, "error": {"message": "cut"}}]}, "cut"),
    ],
)
def test_an_error_inside_an_answer_is_raised(body, message):
    [event] = events_of_chunks(body)
    assert isinstance(event, ProviderError)
    assert event.message == message


def test_usage_is_found_on_the_chunk_and_on_the_choice():
    assert events_of_chunks({"choices": [], "usage": {"total_tokens": 3}}) == [Usage({"total_tokens": 3})]
    assert events_of_chunks(chunk({}, usage={"total_tokens": 3})) == [Usage({"total_tokens": 3})]


def test_reasoning_is_emitted_once_and_under_its_own_name():
    assert events_of_chunks(chunk({"reasoning_content": "a", "reasoning": "a"})) == [ReasoningDelta("a")]
    assert events_of_chunks(chunk({"reasoning_content": "", "reasoning": "b"})) == [ReasoningDelta("b", "reasoning")]
    assert events_of_chunks(chunk({"reasoning": {"odd": 1}})) == [ExtraField("reasoning", {"odd": 1})]


def test_content_in_parts_is_text_and_thinking():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "thinking", "thinking": "so"},
        {"type": "text", "text": "A"},
        {"type": "image_url", "image_url": {}},
        None,
        {"type": "text", "text": None},
    ]
    assert events_of_chunks(chunk({"content": parts})) == [
        ReasoningDelta("hm", "thinking"),
        ReasoningDelta("so", "thinking"),
        TextDelta("A"),
    ]


def test_thinking_blocks_and_unread_fields_are_kept():
    block = {"type": "redacted_thinking", "data": "x"}
    delta = {"thinking_blocks": [block], "refusal": "no", "annotations": [], "reasoning_details": [{"a": 1}], "odd": 1}
    assert events_of_chunks(chunk(delta)) == [
        ThinkingBlock(block),
        ExtraField("refusal", "no"),
        ExtraField("reasoning_details", [{"a": 1}]),
        ExtraField("odd", 1),
    ]


def test_the_models_own_reason_is_taken_where_a_library_kept_it_aside():
    native = {"native_finish_reason": "MALFORMED_FUNCTION_CALL"}
    assert events_of_chunks(chunk({}, finish_reason="tool_calls", provider_specific_fields=native)) == [
        Finished("MALFORMED_FUNCTION_CALL")
    ]


# Characters cut in two


def test_half_a_character_waits_for_its_other_half():
    reader = ChunkReader()
    assert reader.read(chunk({"content": "go \ud83d"})) == [TextDelta("go ")]
    assert reader.read(chunk({"content": "\ude80!"})) == [TextDelta("\U0001f680!")]
    assert reader.finish() == []


def test_half_a_character_alone_is_replaced():
    assert events_of_chunks(chunk({"content": "a\ud83d"}), chunk({"content": "b\udc00c"})) == [
        TextDelta("a"),
        TextDelta("\ufffdb\ufffdc"),
        CharactersLost(),
    ]
    assert events_of_chunks(chunk({"content": "\ud83d"})) == [TextDelta("\ufffd"), CharactersLost()]


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from("ab\u00e9\ud83d\ude80\U0001f680")), max_size=5))
def test_text_can_always_be_sent_on(pieces):
    events = events_of_chunks(*(chunk({"content": piece}) for piece in pieces))
    texts = [event.text for event in events if isinstance(event, TextDelta)]
    for text in texts:
        text.encode()
    whole = "".join(pieces).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert "".join(texts) == whole


# Whole answers


def test_a_whole_answer_is_read_in_one_go():
    body = {
        "id": "c1",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "hi",
                    "reasoning": "why",
                    "tool_calls": [
                        {"id": "a", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"s": 1}}
                    ],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"total_tokens": 3},
    }
    assert read_completion(body) == [
        ProviderHead("c1", "m"),
        TextDelta("hi"),
        ReasoningDelta("why", "reasoning"),
        CallWritten("f", "{}", "a", extras={"extra_content": {"s": 1}}),
        Finished("tool_calls"),
        Usage({"total_tokens": 3}),
    ]


def test_a_choice_alone_is_an_answer():
    assert read_completion({"message": {"content": "hi"}, "finish_reason": "stop"}) == [
        TextDelta("hi"),
        Finished("stop"),
    ]


def test_entries_of_a_whole_message_may_lack_anything():
    entries = [None, {}, {"id": "a", "function": None}, {"id": 3, "function": {"name": "", "arguments": None}}]
    assert completion({"tool_calls": entries, "function_call": {"name": "f"}}) == [
        CallWritten(None),
        CallWritten(None, id="a"),
        CallWritten(None, id=3),
        CallWritten("f", legacy=True),
    ]


@pytest.mark.parametrize("odd", [None, [], "x", {}, {"choices": None}, {"choices": [None]}, {"message": None}])
def test_an_odd_answer_without_content_has_no_events(odd):
    assert read_completion(odd) == []


def test_another_choice_of_a_whole_answer_is_reported_and_not_read():
    choices = [{"index": index, "message": {"content": text}} for index, text in enumerate("AB")]
    assert read_completion({"choices": choices}) == [TextDelta("A"), ChoiceIgnored(1)]
    assert read_completion({"choices": choices}, choice=1) == [ChoiceIgnored(0), TextDelta("B")]


@pytest.mark.parametrize("body", [{"error": {"message": "no"}}, {"choices": None, "error": {"message": "no"}}])
def test_an_error_in_the_place_of_an_answer_is_raised_once(body):
    assert read_completion(body) == [ProviderError("no", {"message": "no"})]


# Anything at all

KEYS = st.sampled_from(
    "choices delta message index content text type role tool_calls function name arguments id function_call reasoning"
    " reasoning_content thinking thinking_blocks signature finish_reason error usage logprobs extra_content"
    " provider_specific_fields native_finish_reason refusal audio model".split()
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 2)
    | st.floats()
    | st.sampled_from(["", " ", "stop", "{}", "f", "\ud83d"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)
CHOICES = st.fixed_dictionaries(
    {}, optional={"delta": VALUES, "message": VALUES, "finish_reason": VALUES, "error": VALUES}
)
CHUNKS = VALUES | st.fixed_dictionaries({"choices": st.lists(CHOICES, max_size=2)})


@settings(deadline=None)
@given(st.lists(CHUNKS, max_size=4))
def test_no_json_whatever_makes_reading_or_folding_fail(chunks):
    for events in (events_of_chunks(*chunks), [event for one in chunks for event in read_completion(one)]):
        building = TurnBuilder(offer={}, ids=map("made_{}".format, range(1_000_000)).__next__)
        building.feed(events)
        turn = building.finish()
        turn.text.encode()
        turn.assistant_message()
        assert len(turn.calls) <= len(events)


@given(st.dictionaries(st.sampled_from(sorted(USUAL)), VALUES))
def test_a_chunk_of_usual_fields_alone_reports_no_error(fields):
    assert error_in({**fields, "object": "chat.completion.chunk"}) is None


# What says beside a message that it is not finished

MESSAGE = {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("body", "reasons"),
    [
        ({"message": MESSAGE, "done": False}, ["length"]),
        ({"message": MESSAGE, "done": True}, []),
        ({"message": MESSAGE, "status": "incomplete", "finish_reason": "stop"}, ["stop", "length"]),
        ({"choices": [{"message": MESSAGE, "status": "incomplete"}]}, ["length"]),
        ({"choices": [{"message": MESSAGE}], "status": "incomplete", "incomplete_details": None}, ["length"]),
        (
            {
                "choices": [{"message": MESSAGE}],
                "status": "incomplete",
                "incomplete_details": {"reason": "content_filter"},
            },
            ["content_filter"],
        ),
        (
            {"choices": [{"message": MESSAGE}], "status": "incomplete", "incomplete_details": {"reason": "stop"}},
            ["length"],
        ),
        ({"choices": [{"message": MESSAGE}], "status": "completed"}, []),
        ({"choices": [{"message": MESSAGE}], "done": False}, ["length"]),
        ({"choices": [{"message": MESSAGE, "finish_reason": "stop"}], "status": "failed"}, ["stop", "failed"]),
        ({"choices": [{"message": MESSAGE, "status": "cancelled"}]}, ["cancelled"]),
    ],
)
def test_a_status_beside_a_message_counts_as_a_finish_reason(body, reasons):
    assert [event.reason for event in read_completion(body) if isinstance(event, Finished)] == reasons


@pytest.mark.parametrize(
    ("reason", "native", "reasons"),
    [
        ("tool_calls", "MAX_TOKENS", ["tool_calls", "MAX_TOKENS"]),
        ("tool_calls", "LANGUAGE", ["tool_calls", "LANGUAGE"]),
        ("length", "max_output", ["length", "max_output"]),
        ("tool_calls", "end_turn", ["tool_calls"]),
        ("stop", "tool_use", ["stop"]),
        (None, "LANGUAGE", ["LANGUAGE"]),
        (None, "STOP", []),
        ("content_filter", "MAX_TOKENS", ["content_filter"]),
    ],
)
def test_a_routers_provider_is_heard_where_it_says_worse_or_what_nobody_knows(reason, native, reasons):
    choice = {"message": MESSAGE, "finish_reason": reason, "native_finish_reason": native}
    events = read_completion({"choices": [choice]})
    assert [event.reason for event in events if isinstance(event, Finished)] == reasons
