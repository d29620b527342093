"""What readers of other wires than OpenAI's make of events in odd places and odd shapes: nothing that could run."""

import json
import re
import struct
import zlib
from collections import Counter

import pytest

from callgate.calls.states import BrokenCall, Flaw
from callgate.conversation.events import CallDelta, Finished, TextDelta
from callgate.models.translated.openai_shaped import FormatBody
from tests.lanes.attacks import SHAPES, Plan, Planned, executed, turn_of_reads
from tests.lanes.wires import frame, frame_of
from tests.models.through_litellm import MARKS

pytestmark = MARKS
CLAUDES = ("anthropic", "messages")


def sse(*events):
    return b"".join(
        event if isinstance(event, bytes) else f"data: {json.dumps(event)}\n\n".encode() for event in events
    )


def turn_of(wire, body, *, stream=True):
    shape = SHAPES[wire]
    return turn_of_reads(shape.stream_body() if stream else shape.whole_body(), [body])


def flaws(turn):
    return [(call.name, call.flaw) for call in turn.calls if isinstance(call, BrokenCall)]


def start(index, id="t1", name="delete_all"):
    block = {"type": "tool_use", "id": id, "name": name, "input": {}}
    return {"type": "content_block_start", "index": index, "content_block": block}


def piece(index, text):
    return {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": text}}


def stop(index):
    return {"type": "content_block_stop", "index": index}


MESSAGE = {"id": "m1", "model": "m", "usage": {"input_tokens": 1, "output_tokens": 1}}
HEAD = {"type": "message_start", "message": MESSAGE}
TEXT = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "I"}}
END = [
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]


@pytest.mark.parametrize("wire", CLAUDES)
@pytest.mark.parametrize("index", [0, 7], ids=["of-text", "of-none"])
async def test_input_in_a_block_that_is_no_calls_leaves_no_call_blank(wire, index):
    turn = turn_of(wire, sse(HEAD, TEXT, start(1), piece(index, '{"where": "/tmp"}'), stop(1), *END))
    assert not executed(turn)
    assert flaws(turn) == [("delete_all", Flaw.TRUNCATED), (None, Flaw.MISSING_NAME)]


@pytest.mark.parametrize("wire", CLAUDES)
async def test_input_for_a_block_that_has_stopped_is_not_held_for_certain(wire):
    late = piece(1, '{"confirm": "yes"}')
    events = [start(1), piece(1, '{"where": "/tmp"}'), stop(1), start(2, "t2"), late, stop(2)]
    turn = turn_of(wire, sse(HEAD, *events, *END))
    assert not executed(turn)


@pytest.mark.parametrize("wire", CLAUDES)
async def test_input_of_a_tool_that_the_provider_runs_is_ignored(wire):
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    hosted = [{"type": "content_block_start", "index": 1, "content_block": search}, piece(1, '{"query": "x"}'), stop(1)]
    turn = turn_of(wire, sse(HEAD, TEXT, *hosted, start(2), stop(2), *END))
    assert executed(turn) == Counter(["delete_all {}"])
    assert flaws(turn) == []


def twice(text):
    """An event about a piece of input, in these words."""
    return f'data: {{"type": "content_block_delta", {text}}}\n\n'.encode()


@pytest.mark.parametrize("wire", CLAUDES)
@pytest.mark.parametrize(
    "event",
    [
        twice('"index": 1, "delta": {"partial_json": "{\\"where\\": \\"/\\"}", "partial_json": "{}"}'),
        twice('"index": 1, "index": 2, "delta": {"partial_json": "{}"}'),
        b'data: {"type": "message_delta", "delta": {"stop_reason": "error", "stop_reason": "tool_use"}}\n\n',
    ],
)
async def test_nothing_runs_of_a_stream_with_an_event_that_names_a_field_twice(wire, event):
    before = [HEAD, TEXT, start(1)] if b"partial" in event else [HEAD, TEXT, start(1), piece(1, "{}"), stop(1)]
    rest = [stop(1), *END] if b"partial" in event else END[1:]
    assert not executed(turn_of(wire, sse(*before, event, *rest)))


async def test_a_field_is_seen_twice_beside_bytes_that_are_no_text_and_numbers_that_are_none():
    call = b'{"id": "a", "function": {"name": "delete_all", "arguments": "{}", "arguments": "{\\"where\\": \\"/\\"}"}}'
    for beside in (b'"x\xff"', b"9" * 5000):
        message = b'{"role": "assistant", "content": "I", "tool_calls": [' + call + b'], "vendor": ' + beside + b"}"
        body = b'{"choices": [{"index": 0, "message": ' + message + b', "finish_reason": "tool_calls"}]}'
        assert not executed(turn_of("openai", body, stream=False))


@pytest.mark.parametrize("wire", ["anthropic", "messages", "cohere", "gemini"])
@pytest.mark.parametrize("data", [b"Overloaded", b"", b"[1, 2"])
async def test_an_event_of_type_error_is_an_error_with_any_data(wire, data):
    shape = SHAPES[wire]
    attack = _planned(wire)
    *events, end = [shape.encode(event) for event in shape.events(attack)]
    error = b"event: error\ndata: " + data + b"\n\n"
    assert executed(turn_of_reads(shape.stream_body(), [b"".join([*events, end])]))
    for place in range(2, len(events) + 1):
        body = b"".join([*events[:place], error, *events[place:], end])
        assert not executed(turn_of_reads(shape.stream_body(), [body]))


@pytest.mark.parametrize("wire", ["openai", "anthropic", "messages", "cohere"])
async def test_a_piece_inside_a_list_that_is_no_event_is_missed_by_its_call(wire):
    shape = SHAPES[wire]
    call = Planned("c1", "delete_all", {}, '{"where": "/"}', ['{"where": "/', "tmp", '"}'])
    plan = Plan(["", ""], [call], shape.reasons["tool_calls"], stream=True, may_run=[1], copies=[0])
    events = [shape.encode(event) for event in shape.events(plan)]
    assert executed(turn_of_reads(shape.stream_body(), [b"".join(events)]))
    [place] = [at for at, event in enumerate(events) if b"tmp" in event and b"/tmp" not in event]
    events[place] = re.sub(rb"(?m)^data: (.*)$", rb"data: [\1]", events[place])
    assert not executed(turn_of_reads(shape.stream_body(), [b"".join(events)]))


def _planned(wire):
    call = Planned("c1", "delete_all", {"where": "/tmp"}, '{"where": "/tmp"}', ['{"where": ', '"/tmp"}'])
    return Plan(["I delete.", ""], [call], SHAPES[wire].reasons["tool_calls"], stream=True, may_run=[1], copies=[0])


FRAMES = [
    frame("messageStart", {"role": "assistant"}),
    frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "I"}}),
    frame(
        "contentBlockStart", {"contentBlockIndex": 1, "start": {"toolUse": {"toolUseId": "t1", "name": "delete_all"}}}
    ),
    frame("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"toolUse": {"input": '{"where": "/tmp"}'}}}),
    frame("contentBlockStop", {"contentBlockIndex": 1}),
    frame("messageStop", {"stopReason": "tool_use"}),
    frame("metadata", {"usage": {"inputTokens": 1, "outputTokens": 1}}),
]


@pytest.mark.parametrize("error", [{"detail": "x"}, {"code": 500, "message": "x"}, {"errors": ["x"]}, {"message": "x"}])
async def test_an_event_with_an_error_ends_the_turn_whatever_its_name(error):
    assert executed(turn_of("bedrock", b"".join(FRAMES)))
    for place in range(2, len(FRAMES)):
        body = b"".join([*FRAMES[:place], frame("contentBlockDelta", error), *FRAMES[place:]])
        assert not executed(turn_of("bedrock", body))


def _with_sums(lengths, rest):
    start = lengths + struct.pack("!I", zlib.crc32(lengths)) + rest
    return start + struct.pack("!I", zlib.crc32(start))


LENGTHS_OF_NOTHING = struct.pack("!II", 0, 0)


@pytest.mark.parametrize(
    "odd",
    [
        LENGTHS_OF_NOTHING + struct.pack("!I", zlib.crc32(LENGTHS_OF_NOTHING)),
        _with_sums(struct.pack("!II", 19, 3), b"\x01x\xff"),
        frame_of("contentBlockDelta", b'[{"contentBlockIndex": 1, "delta": {"toolUse": {"input": "x"}}}]'),
        frame_of("contentBlockDelta", b'"x"'),
        frame("contentBlockPiece", {"contentBlockIndex": 1, "delta": {"toolUse": {"input": "x"}}}),
    ],
    ids=["a frame of no length", "a header of no type", "a list", "a text", "a piece by another name"],
)
async def test_a_frame_that_is_no_event_ends_the_turn(odd):
    assert not executed(turn_of("bedrock", b"".join([*FRAMES[:4], odd, *FRAMES[4:]])))


async def test_an_event_with_two_finish_reasons_is_not_read():
    twice = frame_of("messageStop", b'{"stopReason": "malformed_tool_use", "stopReason": "tool_use"}')
    assert not executed(turn_of("bedrock", b"".join([*FRAMES[:5], twice, FRAMES[6]])))


def google(*parts, reason=None):
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    return {"candidates": [candidate | ({"finishReason": reason} if reason else {})], "responseId": "r"}


WIPE = {"functionCall": {"id": "c1", "name": "delete_all", "args": {"where": "/tmp"}}}


@pytest.mark.parametrize(
    ("chunks", "runs"),
    [
        ([google(WIPE, reason="MAX_TOKENS")], False),
        ([google(WIPE), google({"text": ""}, reason="MAX_TOKENS")], False),
        ([google(WIPE), google(reason="MAX_TOKENS")], False),
        ([google(WIPE, {"text": "Done and"}), google(reason="MAX_TOKENS")], True),
        ([google(WIPE), google({"text": "Done and"}, reason="MAX_TOKENS")], True),
        ([google(WIPE), google(reason="STOP")], True),
    ],
)
async def test_googles_last_call_does_not_run_where_the_length_limit_may_have_cut_it(chunks, runs):
    streamed = turn_of("gemini", sse({**google({"text": "I"})}, *chunks))
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    reason = chunks[-1]["candidates"][0]["finishReason"]
    whole = turn_of("gemini", json.dumps(google({"text": "I"}, *parts, reason=reason)).encode(), stream=False)
    for turn in (streamed, whole):
        assert bool(executed(turn)) is runs
        assert flaws(turn) == ([] if runs else [("delete_all", Flaw.TRUNCATED)])


@pytest.mark.parametrize("wire", CLAUDES)
async def test_an_empty_text_behind_claudes_last_call_hides_no_cut(wire):
    call = {"type": "tool_use", "id": "t1", "name": "delete_all", "input": {"where": "/tmp"}}
    for behind, runs in (([{"type": "text", "text": ""}], False), ([{"type": "text", "text": "Done and"}], True)):
        body = {**MESSAGE, "role": "assistant", "content": [call, *behind], "stop_reason": "max_tokens"}
        assert bool(executed(turn_of(wire, json.dumps(body).encode(), stream=False))) is runs


@pytest.mark.parametrize("wire", CLAUDES)
@pytest.mark.parametrize("odd", [5, ["delete_all"], {}, None, ""])
async def test_a_name_or_an_id_that_is_no_text_is_none(wire, odd):
    call = {"type": "tool_use", "id": "t1", "name": "delete_all", "input": {"where": "/tmp"}}
    for changed, ran in (({**call, "name": odd}, 0), ({**call, "id": odd}, 1)):
        content = [{"type": "text", "text": "I"}, changed]
        body = {**MESSAGE, "role": "assistant", "content": content, "stop_reason": "tool_use"}
        turn = turn_of(wire, json.dumps(body).encode(), stream=False)
        assert turn is None or executed(turn).total() == ran


@pytest.mark.parametrize("wire", CLAUDES)
@pytest.mark.parametrize(
    "middle",
    [piece(9, "/cache"), {**piece(1, "/cache"), "type": "block_delta"}, {**piece(1, "/cache"), "type": ["x"]}],
    ids=["another-index", "another-type", "no-type"],
)
async def test_no_call_runs_without_a_piece_from_its_middle(wire, middle):
    whole = [HEAD, start(1), piece(1, '{"where": "/tmp'), middle, piece(1, '/*"}'), stop(1), *END]
    assert not executed(turn_of(wire, sse(*whole)))
    assert executed(turn_of(wire, sse(*(event for event in whole if event is not middle))))


@pytest.mark.parametrize("wire", CLAUDES)
@pytest.mark.parametrize("kind", ["message_start", "message_delta", "message_stop", "ping"])
async def test_a_piece_in_an_event_about_no_block_is_missed_by_its_call(wire, kind):
    odd = {"type": kind, "delta": {"partial_json": "/cache"}}
    whole = [HEAD, start(1), piece(1, '{"where": "/tmp'), odd, piece(1, '/*"}'), stop(1), *END]
    assert not executed(turn_of(wire, sse(*whole)))


@pytest.mark.parametrize("wire", CLAUDES)
async def test_a_block_that_begins_twice_otherwise_runs_nothing(wire):
    block = {"type": "tool_use", "id": "t1", "name": "delete_all", "input": {"where": "/tmp"}}
    first = {**start(1), "content_block": block}
    second = {**first, "content_block": {**block, "input": {"where": "/"}}}
    assert executed(turn_of(wire, sse(HEAD, first, first, stop(1), *END))).total() == 1
    for other in (second, {**first, "content_block": {**block, "name": "nothing"}}):
        assert not executed(turn_of(wire, sse(HEAD, first, other, stop(1), *END)))
    assert not executed(turn_of(wire, sse(HEAD, first, HEAD, stop(1), *END)))


@pytest.mark.parametrize("wire", CLAUDES)
@pytest.mark.parametrize("odd", [[], {}, [[]]])
async def test_a_reason_that_is_no_text_is_none_that_is_known(wire, odd):
    end = {"type": "message_delta", "delta": {"stop_reason": odd}}
    assert not executed(turn_of(wire, sse(HEAD, start(1), piece(1, '{"where": "/tmp"}'), stop(1), end, *END[1:])))


@pytest.mark.parametrize("delta", [{}, {"toolUse": {}}, {"toolUse": 5}, {"toolUseV2": {"input": "x"}}, "x"])
async def test_an_event_of_a_call_in_an_unknown_form_breaks_the_call(delta):
    odd = frame("contentBlockDelta", {"contentBlockIndex": 1, "delta": delta})
    assert not executed(turn_of("bedrock", b"".join([*FRAMES[:4], odd, *FRAMES[4:]])))


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "tool-call-delta", "index": 0, "delta": {"message": {}}},
        {"type": "tool-call-delta", "index": 0, "delta": {"message": {"tool_calls": {"function": "x"}}}},
        {"type": "tool-call-part", "index": 0, "delta": {"message": {"tool_calls": {"function": {"arguments": "x"}}}}},
        {"type": {}, "index": 0, "delta": {"message": {"tool_calls": {"function": {"arguments": "x"}}}}},
    ],
)
async def test_an_event_of_coheres_about_a_call_in_no_form_that_is_known_breaks_it(odd):
    shape = SHAPES["cohere"]
    events = [shape.encode(event) for event in shape.events(_planned("cohere"))]
    assert executed(turn_of("cohere", b"".join(events)))
    assert not executed(turn_of("cohere", b"".join([*events[:4], sse(odd), *events[4:]])))


async def test_coheres_answers_are_read_whatever_their_text_and_counts_are():
    call = {"id": "c1", "type": "function", "function": {"name": "delete_all", "arguments": "{}"}}
    for content in (None, 5, True, "I", {"text": "I"}):
        body = {"message": {"content": content, "tool_calls": [call]}, "finish_reason": "TOOL_CALL"}
        body["usage"] = {"tokens": {"input_tokens": "many", "output_tokens": [1]}}
        assert executed(turn_of("cohere", json.dumps(body).encode(), stream=False))


class _Given:
    is_done = True
    has_ended = False
    fault = None

    def __init__(self, *events):
        self._events = events

    def feed(self, data):
        return self._events

    def finish(self):
        return ()


async def test_pieces_of_a_format_and_of_a_call_beside_it_are_kept_apart():
    from litellm.constants import RESPONSE_FORMAT_TOOL_NAME

    body = FormatBody(
        _Given(
            CallDelta(1, "c1", "delete_all"),
            CallDelta(2, "c2", RESPONSE_FORMAT_TOOL_NAME),
            CallDelta(1, arguments='{"where": "/tmp"}'),
            CallDelta(2, arguments='{"a": 1}'),
            Finished("tool_calls"),
        )
    )
    found = body.feed(b"")
    assert [event for event in found if isinstance(event, CallDelta)] == [
        CallDelta(1, "c1", "delete_all"),
        CallDelta(1, arguments='{"where": "/tmp"}'),
    ]
    assert "".join(event.text for event in found if isinstance(event, TextDelta)) == '{"a": 1}'
    assert found[-1] == Finished("tool_calls")
