"""However a stream of the Responses API is cut, the same comes of it; half of one runs nothing that the whole would not; and a turn
goes back as its model made it, to that model alone."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import pytest

from callgate.calls.offer import Offer, OfferedTool
from callgate.calls.states import BrokenCall, Flaw, ReadyCall
from callgate.conversation.errors import ChatError
from callgate.conversation.events import (
    CallDelta,
    CallWritten,
    ExtraField,
    Finished,
    Logprobs,
    ModelEvent,
    ProviderError,
    StreamEnd,
    TextDelta,
)
from callgate.conversation.ports import ModelRequest
from callgate.conversation.response_items import ITEMS
from callgate.conversation.turn import Turn, TurnBuilder
from callgate.models.translated import responses_request
from callgate.models.translated.responses_answer import ResponseEvents, ResponseObject
from callgate.policy.litellm_settings import without_settings
from callgate.tools.schema import compile_schema

BY = "api.example gpt-x"
INPUT = {"city": "東京", "unit": "celsius"}
TEXT = json.dumps(INPUT, ensure_ascii=False)
THOUGHT = {
    "type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I look"}], "encrypted_content": "c2ln+/=",
}  # fmt: skip
SAID = {
    "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "commentary",
    "content": [{"type": "output_text", "text": "So: 🌤", "annotations": [], "logprobs": []}],
}  # fmt: skip
CALL = {
    "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": TEXT, "status": "completed",
}  # fmt: skip
USAGE = {
    "input_tokens": 9, "output_tokens": 33, "total_tokens": 42,
    "input_tokens_details": {"cached_tokens": 4}, "output_tokens_details": {"reasoning_tokens": 20},
}  # fmt: skip
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "model": "gpt-x",
    "status": "completed",
    "error": None,
    "usage": USAGE,
}
EVENTS: Sequence[dict[str, Any]] = (
    {"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "output": [], "usage": None}},
    {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "rs_1", "summary": []}},
    {"type": "response.reasoning_summary_part.added", "output_index": 0, "summary_index": 0, "part": {"type": "summary_text", "text": ""}},
    {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "I "},
    {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "look"},
    {"type": "response.output_item.done", "output_index": 0, "item": THOUGHT},
    {"type": "response.output_item.added", "output_index": 1, "item": {"type": "web_search_call", "id": "ws_1", "status": "in_progress"}},
    {"type": "response.output_item.done", "output_index": 1, "item": {"type": "web_search_call", "id": "ws_1", "status": "completed"}},
    {"type": "response.output_item.added", "output_index": 2, "item": {**SAID, "content": [], "status": "in_progress"}},
    {"type": "response.output_text.delta", "output_index": 2, "content_index": 0, "delta": "So: ", "logprobs": [{"token": "So"}]},
    {"type": "response.output_text.delta", "output_index": 2, "content_index": 0, "delta": "🌤", "logprobs": []},
    {"type": "response.output_text.done", "output_index": 2, "content_index": 0, "text": "So: 🌤"},
    {"type": "response.output_item.done", "output_index": 2, "item": SAID},
    {"type": "response.output_item.added", "output_index": 3, "item": {**CALL, "arguments": "", "status": "in_progress"}},
    *({"type": "response.function_call_arguments.delta", "output_index": 3, "delta": piece} for piece in (TEXT[:9], TEXT[9:])),
    {"type": "response.function_call_arguments.done", "output_index": 3, "arguments": TEXT},
    {"type": "response.output_item.done", "output_index": 3, "item": CALL},
    {"type": "response.completed", "response": {**RESPONSE, "output": [THOUGHT, SAID, CALL]}},
)  # fmt: skip
END = len(EVENTS) - 1
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
"""Nothing is required: a call whose arguments were lost would be whole without any."""
OFFER: Offer = {"weather": OfferedTool("weather", SCHEMA, compile_schema(SCHEMA))}


def sse(events: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(f"event: {e['type']}\ndata: {json.dumps(e, ensure_ascii=False)}\n\n".encode() for e in events)


STREAM = sse(EVENTS)


def with_event(at: int, **fields: Any) -> bytes:
    """The stream, with another event in the place of one."""
    return sse([{**event, **fields} if place == at else event for place, event in enumerate(EVENTS)])


def turn_of(reads: Iterable[bytes]) -> Turn:
    body, events = ResponseEvents(BY), list[ModelEvent]()
    for data in reads:
        events += body.feed(data)
    fault = body.fault
    if not body.is_done:
        events += body.finish()
    builder = TurnBuilder(offer=OFFER, ids=lambda: "made")
    builder.feed(events)
    return builder.finish(StreamEnd.DONE if body.is_done and fault is None else StreamEnd.EOF)


def ready(turn: Turn) -> list[dict[str, Any]]:
    return [call.arguments for call in turn.calls if isinstance(call, ReadyCall)]


def test_a_stream_cut_in_two_reads_anywhere_is_the_same_turn() -> None:
    whole = turn_of([STREAM])
    assert ready(whole) == [INPUT]
    assert (whole.text, whole.reasoning, whole.reasons, whole.findings) == ("So: 🌤", "I look", ("tool_calls",), ())
    for at in range(0, len(STREAM), 3):
        assert turn_of([STREAM[:at], STREAM[at:]]) == whole


def test_a_stream_that_ends_anywhere_runs_no_call() -> None:
    last = STREAM.index(b'data: {"type": "response.completed"')
    for at in range(0, len(STREAM) - 2, 3):
        assert ready(turn_of([STREAM[:at]])) in ([], [INPUT])
        if at <= last:
            assert ready(turn_of([STREAM[:at]])) == [], "nothing runs before its provider ended the response"
    assert ready(turn_of([sse(EVENTS[:END]) + b"data: [DONE]\n\n"])) == [], "a mark ends no response"


def test_a_whole_answer_equals_the_stream() -> None:
    body = ResponseObject(BY)
    body.feed(json.dumps({**RESPONSE, "output": [THOUGHT, {"type": "web_search_call"}, SAID, CALL]}).encode())
    builder = TurnBuilder(offer=OFFER, ids=lambda: "made")
    builder.feed(body.finish())
    whole, streamed = builder.finish(), turn_of([STREAM])
    assert body.is_done
    for field in ("text", "reasoning", "calls", "reasons", "usage", "head"):
        assert getattr(whole, field) == getattr(streamed, field), field
    assert whole.usage is not None
    assert whole.usage.report["prompt_tokens_details"] == {"cached_tokens": 4}
    shown = ["reasoning", "web_search_call", "message", "function_call"]
    assert [each["item"]["type"] for each in whole.extra_fields[ITEMS]] == shown
    assert whole.assistant_message() == streamed.assistant_message()


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(with_event(END - 1, item={**CALL, "arguments": '{"city": "Rome"}'}), id="another text at its end"),
        pytest.param(with_event(END - 2, arguments='{"city": "Rome"}'), id="another text before its end"),
        pytest.param(with_event(END - 1, item={**CALL, "arguments": INPUT}), id="an object for a text"),
        pytest.param(with_event(END - 1, item={**CALL, "status": "incomplete"}), id="said to be cut"),
        pytest.param(with_event(END - 3, delta={"city": "Rome"}), id="a piece that is no text"),
        pytest.param(with_event(END - 3, output_index=9), id="a piece of no call"),
        pytest.param(with_event(END - 3, output_index=None), id="a piece without a place"),
        pytest.param(with_event(END - 5, output_index=None), id="a call without a place"),
        pytest.param(with_event(END, type="response.failed", response={**RESPONSE, "status": "failed"}), id="failed"),
        pytest.param(with_event(END, response={**RESPONSE, "status": "cancelled"}), id="cancelled"),
        pytest.param(with_event(END, response={**RESPONSE, "error": {"code": "server_error"}}), id="an error in the end"),
        pytest.param(with_event(END, response=None), id="an end without a response"),
        pytest.param(STREAM.replace(b'"arguments": "{', b'"arguments": "{}", "arguments": "{'), id="a field twice"),
        pytest.param(sse([*EVENTS[:END], {"type": "error", "message": "no"}, EVENTS[END]]), id="an error before the end"),
        pytest.param(
            with_event(END, response={**RESPONSE, "status": "incomplete", "incomplete_details": {"reason": "content_filter"}}),
            id="filtered",
        ),
    ],
)  # fmt: skip
def test_what_is_not_whole_does_not_run(events: bytes) -> None:
    assert ready(turn_of([events])) == []


def begun(**more: Any) -> dict[str, Any]:
    item = {**CALL, "arguments": "", "status": "in_progress", **more}
    return {"type": "response.output_item.added", "output_index": 0, "item": item}


DONE_ITEM = {"type": "response.output_item.done", "output_index": 0, "item": CALL}
DELTA = {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": TEXT}
FINAL = {"type": "response.completed", "response": {**RESPONSE, "output": [CALL]}}


@pytest.mark.parametrize(
    "events",
    [
        *(
            pytest.param([begun(), DELTA, {"type": kind, "response": response}], id=f"{kind} {sorted(response)}")
            for kind in ("response.failed", "response.cancelled")
            for response in ({}, {"status": "completed"})
        ),
        pytest.param([begun(), {"type": "response.incomplete", "response": RESPONSE}], id="cut, by the event alone"),
        pytest.param([begun(name="forecast"), DELTA, DONE_ITEM, FINAL], id="another name at its end"),
        pytest.param(
            [begun(), DELTA, {**FINAL, "response": {**RESPONSE, "output": [{**CALL, "name": "x"}]}}],
            id="in the response",
        ),
        pytest.param(
            [begun(), DELTA, {**FINAL, "response": {**RESPONSE, "output": [{**CALL, "arguments": "{}"}]}}],
            id="other arguments",
        ),
        pytest.param(
            [begun(), {**FINAL, "response": {**RESPONSE, "output": []}}], id="nothing of it but its beginning"
        ),
        pytest.param([begun(), DELTA, {"type": "response.error", "message": "x"}, FINAL], id="an error by its type"),
        pytest.param(
            [begun(), DELTA, {"type": "response.in_progress", "error": {"message": "x"}}, FINAL], id="an error beside"
        ),
    ],
)
def test_contradictory_events_about_a_call_or_the_end_do_not_run(events: list[dict[str, Any]]) -> None:
    assert ready(turn_of([sse(events)])) == []


def test_a_piece_inside_a_list_that_is_no_event_is_missed_by_its_call() -> None:
    first, lost, last = ({**DELTA, "delta": piece} for piece in ('{"city": "Ba', "th", '"}'))
    end = {**FINAL, "response": {**RESPONSE, "output": []}}
    for piece, runs in ((sse([lost]), [{"city": "Bath"}]), (f"data: [{json.dumps(lost)}]\n\n".encode(), [])):
        assert ready(turn_of([sse([begun(), first]) + piece + sse([last, end])])) == runs


FIRST, LOST, LAST = ({**DELTA, "delta": piece} for piece in ('{"city": "Ba', "th", '"}'))
BARE_END = {**FINAL, "response": {**RESPONSE, "output": []}}


@pytest.mark.parametrize(
    "odd",
    [
        {**LOST, "type": "response.function_call_arguments.deltas"},
        {**LOST, "type": "response.function_call_arguments_v2.delta"},
        {**LOST, "type": "function_call_arguments.delta"},
        {**LOST, "type": "response.Function_Call_arguments.delta"},
        {**LOST, "type": "response.output_item.delta", "output_index": 0},
        {**LOST, "type": "response.piece", "output_index": None, "item_id": "fc_1"},
        {**LOST, "type": ["response.function_call_arguments.delta"]},
        {**LOST, "type": None},
        {"type": "response.output_item.done", "output_index": 0, "item": [CALL]},
    ],
    ids=str,
)
def test_a_piece_in_an_event_that_is_not_known_is_missed_by_its_call(odd: dict[str, Any]) -> None:
    assert ready(turn_of([sse([begun(), FIRST, LAST, BARE_END])])) == [{"city": "Ba"}]
    assert ready(turn_of([sse([begun(), FIRST, odd, LAST, BARE_END])])) == []


@pytest.mark.parametrize("first", ['{"city": "Rome"}', '{"city": "Ro', {"city": "Rome"}, [TEXT]])
@pytest.mark.parametrize(
    "rest", [[DELTA, BARE_END], [DELTA, DONE_ITEM, FINAL], [{**DONE_ITEM, "item": {**CALL, "arguments": ""}}, BARE_END]]
)
def test_a_call_that_was_announced_with_other_arguments_does_not_run(first: Any, rest: list[dict[str, Any]]) -> None:
    assert ready(turn_of([sse([begun(arguments=first), *rest])])) == []


@pytest.mark.parametrize("first", [TEXT, TEXT[:9], "", "{}", None])
def test_a_call_that_was_announced_with_what_came_behind_runs(first: Any) -> None:
    assert ready(turn_of([sse([begun(arguments=first), DELTA, DONE_ITEM, FINAL])])) == [INPUT]


@pytest.mark.parametrize("output", [{"0": CALL}, [[CALL]], "x"])
def test_items_of_the_end_that_are_none_cannot_be_compared(output: Any) -> None:
    end = {**FINAL, "response": {**RESPONSE, "output": output}}
    assert ready(turn_of([sse([begun(), DELTA, DONE_ITEM, end])])) == []


@pytest.mark.parametrize("more", [{"incomplete_details": {"reason": "content_filter"}}, {"status": {}}, {"status": []}])
def test_a_response_that_contradicts_its_end_runs_nothing(more: dict[str, Any]) -> None:
    response = {**RESPONSE, "output": [CALL], **more}
    assert ready(turn_of([sse([begun(), DELTA, DONE_ITEM, {**FINAL, "response": response}])])) == []
    body = ResponseObject(BY)
    builder = TurnBuilder(offer=OFFER, ids=lambda: "made")
    builder.feed([*body.feed(json.dumps(response).encode()), *body.finish()])
    assert ready(builder.finish(StreamEnd.DONE)) == []


def test_the_whole_response_replaces_lost_deltas_of_a_call() -> None:
    [call] = turn_of([sse([begun(), FINAL])]).calls
    assert isinstance(call, ReadyCall)
    assert call.arguments == INPUT


@pytest.mark.parametrize("odd", [5, [], {}, None, ["function_call"]])
def test_types_that_are_no_text_are_none(odd: Any) -> None:
    for at in range(len(EVENTS)):
        turn_of([with_event(at, type=odd)])
        turn_of([with_event(at, item={**CALL, "type": odd})])
    body = ResponseObject(BY)
    body.feed(json.dumps({**RESPONSE, "output": [{**CALL, "type": odd}, SAID]}).encode())
    assert not any(isinstance(event, CallWritten) for event in body.finish())


@pytest.mark.parametrize("given", [[], 0, False, {"city": 1}, [TEXT]])
def test_arguments_of_a_whole_answer_that_are_no_text_are_never_none(given: Any) -> None:
    body = ResponseObject(BY)
    body.feed(json.dumps({**RESPONSE, "output": [{**CALL, "arguments": given}]}).encode())
    builder = TurnBuilder(offer=OFFER, ids=lambda: "made")
    builder.feed(body.finish())
    [call] = builder.finish().calls
    assert isinstance(call, BrokenCall) or call.arguments == given


def test_a_response_that_is_incomplete_for_an_unknown_reason_was_cut() -> None:
    incomplete = {**RESPONSE, "status": "incomplete", "incomplete_details": None}
    cut = [*EVENTS[: END - 3], {"type": "response.incomplete", "response": incomplete}]
    turn = turn_of([sse(cut)])
    [call] = turn.calls
    assert isinstance(call, BrokenCall)
    assert (call.flaw, turn.reasons) == (Flaw.TRUNCATED, ("length",))


def test_the_last_of_calls_that_only_a_cut_response_has_does_not_run() -> None:
    """As in a whole answer: gateways close the brackets of half a call."""
    calls = [CALL, {**CALL, "id": "fc_2", "call_id": "call_2"}]
    cut = {**RESPONSE, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": calls}
    turn = turn_of([sse([EVENTS[0], {"type": "response.incomplete", "response": cut}])])
    assert ready(turn) == [INPUT]
    assert [call.flaw for call in turn.calls if isinstance(call, BrokenCall)] == [Flaw.TRUNCATED]


def test_what_only_the_end_says_is_read_from_there() -> None:
    for events in ([EVENTS[0], EVENTS[END]], [EVENTS[0], EVENTS[5], EVENTS[12], EVENTS[END - 1], EVENTS[END]]):
        turn = turn_of([sse(events)])
        assert (ready(turn), turn.text) == ([INPUT], "So: 🌤")


def test_thinking_that_is_shown_twice_is_read_once() -> None:
    kinds = ("reasoning_text", "reasoning_summary_text", "reasoning_text")
    builder = TurnBuilder(offer={}, ids=lambda: "made")
    read = ResponseEvents(BY).feed(
        sse({"type": f"response.{kind}.delta", "output_index": 0, "content_index": 0, "delta": "x"} for kind in kinds)
    )
    builder.feed(read)
    assert builder.finish().reasoning == "xx"


def test_logprobs_and_annotations_are_those_of_a_chat() -> None:
    citation = {"type": "url_citation", "start_index": 0, "end_index": 2, "url": "http://a", "title": "A"}
    added = {"type": "response.output_text.annotation.added", "output_index": 2, "annotation": citation}
    read = ResponseEvents(BY).feed(sse([EVENTS[9], added]))
    assert read == [
        TextDelta("So: "),
        Logprobs({"content": [{"token": "So"}]}),
        ExtraField(
            "annotations",
            [{"type": "url_citation", "url_citation": {k: v for k, v in citation.items() if k != "type"}}],
        ),
    ]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": "rate_limit_exceeded", "message": "slow"}, 429),
        ({"code": "server_error", "message": "oh"}, 500),
        ({"code": "invalid_prompt", "message": "no"}, 400),
        ({"code": "something_new", "message": "?"}, None),
    ],
)
def test_errors_have_the_status_that_they_would_have_had(error: dict[str, str], status: int | None) -> None:
    failed = {"type": "response.failed", "response": {**RESPONSE, "status": "failed", "error": error}}
    for event in (failed, {"type": "error", **error}, {"type": "error", "error": error}):
        [found] = [each for each in ResponseEvents(BY).feed(sse([event])) if isinstance(each, ProviderError)]
        assert found.message == error["message"]
        assert found.body.get("status") == status


# What is sent ----------------------------------------------------------------------------------------------------------


def body_of(messages: Sequence[dict[str, Any]] = ({"role": "user", "content": "hi"},), **params: Any) -> dict[str, Any]:
    tools, choice = params.pop("tools", ()), params.pop("tool_choice", None)
    return responses_request.body_of(ModelRequest(messages, tools, choice, without_settings(params)), "gpt-x", BY, {})


def test_a_turn_goes_back_as_its_model_made_it() -> None:
    made = turn_of([STREAM]).assistant_message()
    answer = {"role": "tool", "tool_call_id": "call_1", "content": "4 C"}
    asked = body_of([{"role": "user", "content": "hi"}, made, answer])["input"]
    assert asked == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {k: v for k, v in THOUGHT.items() if k != "id"},
        {"type": "message", "role": "assistant", "phase": "commentary", "content": [{"type": "output_text", "text": "So: 🌤"}]},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": TEXT},
        {"type": "function_call_output", "call_id": "call_1", "output": "4 C"},
    ]  # fmt: skip


def test_what_another_model_thought_is_left_out() -> None:
    made = turn_of([STREAM]).assistant_message()
    made[ITEMS] = [{**each, "by": "elsewhere gpt-x"} for each in made[ITEMS]]
    kinds = [item["type"] for item in body_of([made])["input"]]
    assert kinds == ["message", "function_call"]


def test_a_history_names_nothing_in_the_operators_account() -> None:
    forged = [
        {"type": "item_reference", "id": "msg_of_somebody"},
        {"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]},
        {"type": "reasoning", "id": "rs_of_somebody", "summary": []},
        {"type": "web_search_call", "id": "ws_1"},
        {"type": "message", "id": "msg_of_somebody", "content": [{"type": "output_text", "text": "x"}]},
    ]
    message = {"role": "assistant", "content": "x", ITEMS: [{"by": BY, "item": item} for item in forged]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
    assert body_of([message])["input"] == [said]
    named = (
        "previous_response_id",
        "conversation",
        "prompt",
        "background",
        "instructions",
        "input",
        "include",
        "store",
    )
    assert "theirs" not in str(body_of(**cast(Any, dict.fromkeys(named, "theirs"))))


def test_fields_have_the_names_of_this_api() -> None:
    schema = {"name": "n", "schema": {"type": "object"}, "strict": True}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    grammar = {"type": "grammar", "grammar": {"definition": "a: b", "syntax": "lark"}}
    body = body_of(
        tools=[tool, {"type": "custom", "custom": {"name": "c", "format": grammar}}],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool]}},
        max_completion_tokens=9, reasoning_effort="high", reasoning_summary="auto", verbosity="low", logprobs=True,
        top_logprobs=2, parallel_tool_calls=False, metadata={"a": "b"}, seed=None, presence_penalty=0,
        response_format={"type": "json_schema", "json_schema": schema}, previous_response_id="resp_x", store=True,
    )  # fmt: skip
    assert body["tools"] == [
        {"type": "function", "strict": False, "name": "f", "parameters": {"type": "object"}},
        {"type": "custom", "name": "c", "format": {"type": "grammar", "definition": "a: b", "syntax": "lark"}},
    ]
    assert body["tool_choice"]["tools"] == [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    assert body["text"] == {"format": {"type": "json_schema", **schema}, "verbosity": "low"}
    assert body["reasoning"] == {"effort": "high", "summary": "auto"}
    assert body["include"] == ["reasoning.encrypted_content", "message.output_text.logprobs"]
    assert (body["max_output_tokens"], body["metadata"], body["store"]) == (9, {"a": "b"}, False)
    assert {"seed", "presence_penalty", "previous_response_id", "max_completion_tokens"}.isdisjoint(body)


def test_a_field_without_a_place_is_refused_by_its_name() -> None:
    with pytest.raises(ChatError) as refused:
        body_of(stop=["END"])
    assert (refused.value.status, refused.value.param) == (400, "stop")


def test_parts_have_the_names_of_this_api() -> None:
    parts = [
        {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"}},
    ]  # fmt: skip
    [message] = body_of([{"role": "user", "content": parts}])["input"]
    assert [part["type"] for part in message["content"]] == ["input_text", "input_image", "input_file"]
    with pytest.raises(ChatError) as refused:
        body_of([{"role": "user", "content": [{"type": "file", "file": {"file_id": "file_1"}}]}])
    assert refused.value.param == "messages[0].content[0]"


@pytest.mark.parametrize("kept", [5, "x", [5], [{}], [{"by": BY}], [{"by": BY, "item": {"type": []}}], [{"by": BY, "item": {"type": "function_call", "call_id": []}}]], ids=repr)  # fmt: skip
def test_a_history_may_hold_anything_for_items(kept: Any) -> None:
    message = {"role": "assistant", "content": "x", ITEMS: kept}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
    assert body_of([message])["input"] == [said]


def test_a_call_that_only_the_whole_response_has_is_read() -> None:
    item = {"type": "function_call", "id": "fc_9", "call_id": "call_9", "name": "now", "arguments": "{}"}
    said = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "I look."}
    response = {"id": "r", "status": "completed", "output": [{"type": "message", "content": []}, item]}
    events = ResponseEvents(BY).feed(sse([said, {"type": "response.completed", "response": response}]))
    assert [event.name for event in events if isinstance(event, CallDelta) and event.name] == ["now"]
    assert events[-1] == Finished("tool_calls")
