"""However a stream of Anthropic's is cut, the same comes of it; and half of one runs nothing that the whole would not."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from callgate.calls.offer import Offer, OfferedTool
from callgate.calls.states import ReadyCall
from callgate.conversation.events import Finished, ModelEvent, Passed, ProviderHead, StreamEnd
from callgate.conversation.messages_api import BLOCKS
from callgate.conversation.turn import Turn, TurnBuilder
from callgate.models.translated import messages_lane
from callgate.tools.schema import compile_schema

INPUT = {"city": "東京", "unit": "celsius"}
TEXT = json.dumps(INPUT, ensure_ascii=False)
EVENTS: Sequence[dict[str, Any]] = (
    {"type": "message_start", "message": {"id": "msg_1", "model": "claude", "usage": {"input_tokens": 9, "output_tokens": 1, "cache_read_input_tokens": 4}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "I look"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "c2ln+/="}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"query": "x"}'}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}},
    {"type": "content_block_stop", "index": 2},
    {"type": "content_block_start", "index": 3, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta", "text": "So: 🌤"}},
    {"type": "content_block_delta", "index": 3, "delta": {"type": "citations_delta", "citation": {"url": "u"}}},
    {"type": "content_block_stop", "index": 3},
    {"type": "content_block_start", "index": 4, "content_block": {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}},
    *({"type": "content_block_delta", "index": 4, "delta": {"type": "input_json_delta", "partial_json": piece}} for piece in (TEXT[:9], TEXT[9:])),
    {"type": "content_block_stop", "index": 4},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 33}},
    {"type": "message_stop"},
)  # fmt: skip
STREAM = b"".join(f"event: {e['type']}\ndata: {json.dumps(e, ensure_ascii=False)}\n\n".encode() for e in EVENTS)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
OFFER: Offer = {"weather": OfferedTool("weather", SCHEMA, compile_schema(SCHEMA))}


def never(error: Exception) -> None:
    raise error


def events_and_end(reads: Iterable[bytes], body: Any = None) -> tuple[list[ModelEvent], bool]:
    """The events, and whether the stream came to its end."""
    body = body or messages_lane.MessageEventsReader(never)
    events: list[ModelEvent] = []
    for data in reads:
        events += body.feed(data)
    if not body.is_done:
        events += body.finish()
    assert body.fault is None
    return events, body.is_done


def turn_of(reads: Iterable[bytes]) -> Turn:
    events, done = events_and_end(reads)
    builder = TurnBuilder(offer=OFFER, ids=lambda: "id")
    builder.feed(events)
    return builder.finish(StreamEnd.DONE if done else StreamEnd.EOF)


def test_a_stream_cut_in_two_reads_anywhere_is_the_same_turn() -> None:
    whole = turn_of([STREAM])
    [call] = whole.calls
    assert isinstance(call, ReadyCall)
    assert (call.arguments, whole.text, whole.reasons) == (INPUT, "So: 🌤", ("tool_use",))
    for at in range(0, len(STREAM), 3):
        assert turn_of([STREAM[:at], STREAM[at:]]) == whole


def test_what_an_answer_calls_itself_is_text_or_nothing() -> None:
    assert turn_of([STREAM]).head == ProviderHead("msg_1", "claude")
    odd = STREAM.replace(b'"msg_1"', b"12").replace(b'"claude"', b'{"name": "claude"}')
    assert turn_of([odd]).head == ProviderHead()


def test_a_piece_that_names_no_block_is_the_latest_ones_and_never_left_out() -> None:
    for index in (None, "x", 0.5):
        for at in (15, 16):
            reads = [
                f"data: {json.dumps({**event, 'index': index} if place == at else event)}\n\n".encode()
                for place, event in enumerate(EVENTS)
            ]
            [call] = turn_of(reads).calls
            assert isinstance(call, ReadyCall)
            assert call.arguments == INPUT


def test_a_stream_that_ends_anywhere_runs_no_call_that_the_whole_would_not() -> None:
    whole = turn_of([STREAM])
    for at in range(0, len(STREAM), 3):
        ready = [call for call in turn_of([STREAM[:at]]).calls if isinstance(call, ReadyCall)]
        assert [call.arguments for call in ready] in ([], [INPUT])
        if ready:
            assert b'"stop_reason"' in STREAM[:at], "nothing runs before its provider ended the turn"
    assert whole.failure is None


def test_the_blocks_are_kept_as_they_came() -> None:
    turn = turn_of([STREAM])
    kinds = ["thinking", "server_tool_use", "web_search_tool_result", "text", "tool_use"]
    blocks = turn.extra_fields[BLOCKS]
    assert [block["type"] for block in blocks] == kinds
    assert blocks[0] == {"type": "thinking", "thinking": "I look", "signature": "c2ln+/="}
    assert blocks[3] == {"type": "text", "text": "So: 🌤", "citations": [{"url": "u"}]}
    assert (blocks[1]["input"], blocks[4]["input"]) == ({"query": "x"}, INPUT)
    assert turn.usage is not None
    assert (turn.usage.report["prompt_tokens"], turn.usage.report["completion_tokens"]) == (13, 33)


def test_what_passes_through_is_the_same_bytes_wherever_it_is_cut() -> None:
    for at in range(0, len(STREAM), 17):
        events, done = events_and_end([STREAM[:at], STREAM[at:]], messages_lane.PassedMessageEvents(never))
        assert done
        passed = [event for event in events if isinstance(event, Passed)]
        assert b"".join(event.data for event in passed) == STREAM
        assert [event.reasons for event in passed if event.reasons] == [(Finished("tool_use"),)]
        assert passed[-1].usage is None or passed[-1].usage.report["prompt_tokens"] == 13
