"""The scripted upstream over real sockets: each fault and shape does what it says, and bad histories are refused.

What other tests rely on is tested here first; an upstream that quietly behaved would make them pass for nothing.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients import http_client, openai_client
from tests.harness.wire import RawAnswer, raw_connection, raw_post
from tests.scripted_upstream import (
    Call,
    Cut,
    Empty,
    End,
    ErrorEvent,
    Fault,
    Hang,
    Hold,
    Html,
    Malformed,
    Misframed,
    Pace,
    Reply,
    RequestRecord,
    Reset,
    Shape,
    Upstream,
    Verbatim,
    by_turn,
    dump,
)
from tests.scripted_upstream.history import Rejection, check_request
from tests.scripted_upstream.names import ALWAYS, ENDINGS, FAULTS, SHAPES, behaviour

pytestmark = pytest.mark.anyio

CORPUS = Path(__file__).parent / "corpus"
STREAMS = sorted((CORPUS / "stream").glob("*.json"))
MESSAGES = sorted((CORPUS / "message").glob("*.json"))
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
TWO_CALLS = (Call("get_weather", {"city": "Lisbon"}, id="c1"), Call("get_time", id="c2"))


def chat_body(model: str = "m", text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


async def streamed(upstream: Upstream, reply: Reply, **fields: Any) -> RawAnswer:
    upstream.script("m", [reply])
    return await raw_post(upstream.url, chat_body(stream=True, **fields))


async def whole(upstream: Upstream, reply: Reply, **fields: Any) -> RawAnswer:
    upstream.script("m", [reply])
    return await raw_post(upstream.url, chat_body(**fields))


def deltas(answer: RawAnswer) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in answer.chunks for choice in chunk["choices"]]


def text_of_deltas(answer: RawAnswer) -> str:
    return "".join(delta.get("content") or "" for delta in deltas(answer))


def fragments(answer: RawAnswer) -> list[dict[str, Any]]:
    return [fragment for delta in deltas(answer) for fragment in delta.get("tool_calls", [])]


def finishes(answer: RawAnswer) -> list[str]:
    found = [choice["finish_reason"] for chunk in answer.chunks for choice in chunk["choices"]]
    return [reason for reason in found if reason is not None]


# Plain answers -----------------------------------------------------------------------------------


async def test_a_text_is_streamed_in_pieces_and_ends_with_done(upstream):
    answer = await streamed(upstream, Reply(text="The answer is forty-two."))
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert text_of_deltas(answer) == "The answer is forty-two."
    assert len([delta for delta in deltas(answer) if delta.get("content")]) == 3
    assert finishes(answer) == ["stop"]
    assert answer.data[-1] == "[DONE]"
    assert answer.ended == "complete"
    assert upstream.requests[0].outcome == "done"
    assert upstream.requests[0].sent == len(answer.data)


async def test_a_text_comes_whole_when_no_stream_is_asked_for(upstream):
    answer = await whole(upstream, Reply(text="yes", reasoning="hm"))
    body = json.loads(answer.body)
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "yes",
        "refusal": None,
        "reasoning_content": "hm",
    }
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]


async def test_the_official_client_reads_the_same_calls_in_both_modes(upstream):
    upstream.script("m", [Reply(text="Both.", calls=TWO_CALLS)], repeat_last=True)
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    async with openai_client(upstream.url) as client:
        one = await client.chat.completions.create(**asked)
        async with client.chat.completions.stream(**asked) as stream:
            other = await stream.get_final_completion()
    for completion in (one, other):
        message = completion.choices[0].message
        assert message.content == "Both."
        assert [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or []] == [
            ("c1", "get_weather", '{"city":"Lisbon"}'),
            ("c2", "get_time", "{}"),
        ]
        assert completion.choices[0].finish_reason == "tool_calls"


async def test_usage_is_streamed_only_when_asked_for_and_in_a_chunk_of_its_own(upstream):
    upstream.script("m", [Reply(text="a", usage={"total_tokens": 9})] * 2)
    silent = await raw_post(upstream.url, chat_body(stream=True))
    counted = await raw_post(upstream.url, chat_body(stream=True, stream_options={"include_usage": True}))
    assert all("usage" not in chunk for chunk in silent.chunks)
    assert counted.chunks[-1]["choices"] == []
    assert counted.chunks[-1]["usage"] == {"total_tokens": 9}
    assert all(chunk["usage"] is None for chunk in counted.chunks[:-1])


async def test_several_choices_are_streamed_side_by_side(upstream):
    answer = await streamed(upstream, Reply(text="ab", shape=Shape(piece=1)), n=2)
    order = [choice["index"] for chunk in answer.chunks for choice in chunk["choices"]]
    assert order == [0, 1, 0, 1, 0, 1, 0, 1]
    assert len(json.loads((await whole(upstream, Reply(text="ab"), n=3)).body)["choices"]) == 3


async def test_a_connection_carries_one_request_after_another(upstream):
    upstream.script("m", [Reply(text="one"), Reply(text="two")])
    async with raw_connection(upstream.url) as connection:
        await connection.post("/v1/chat/completions", chat_body(stream=True))
        first = await connection.answer()
        await connection.post("/chat/completions", chat_body())
        second = await connection.answer()
    assert text_of_deltas(first) == "one"
    assert json.loads(second.body)["choices"][0]["message"]["content"] == "two"
    assert upstream.stats.opened == 1


async def test_a_chunked_request_body_is_read(upstream):
    upstream.script("m", [Reply(text="one")])
    body = json.dumps(chat_body()).encode()
    async with raw_connection(upstream.url) as connection:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        await connection.send(head + b"5\r\n" + body[:5] + b"\r\n")
        await connection.send(b"%x;note=1\r\n" % len(body[5:]) + body[5:] + b"\r\n0\r\n\r\n")
        assert (await connection.answer()).status == 200
    assert upstream.requests[0].raw == body


# Faults in a stream ------------------------------------------------------------------------------


async def test_a_cut_sends_exactly_so_many_events_and_then_closes(upstream):
    answer = await streamed(upstream, Reply(text="x" * 80, fault=Cut(after=3)))
    assert len(answer.data) == 3
    assert answer.ended == "eof"
    assert upstream.requests[0].outcome == "fault:cut"
    assert upstream.requests[0].sent == 3


async def test_a_cut_can_lie_inside_a_character(upstream):
    reply = Reply(text="é" * 8)
    event = (await streamed(upstream, reply)).parts[1]
    inside = event.index("é".encode()) + 1
    answer = await streamed(upstream, replace(reply, fault=Cut(after=1, into=inside)))
    assert len(answer.parts[1]) == inside
    assert answer.body.endswith(b"\xc3")


async def test_a_cut_past_the_end_takes_only_the_last_frame(upstream):
    answer = await streamed(upstream, Reply(text="x", fault=Cut(after=99)))
    assert answer.data[-1] == "[DONE]"
    assert answer.ended == "eof"


@pytest.mark.parametrize("fault", [Cut(after=None), Reset(after=None)])
async def test_a_fault_before_the_head_sends_nothing(upstream, fault):
    answer = await streamed(upstream, Reply(text="x", fault=fault))
    assert answer.raw == b""
    assert upstream.requests[0].status is None


@pytest.mark.parametrize("after", [0, 2])
async def test_a_reset_is_a_reset_and_not_a_close(upstream, after):
    answer = await streamed(upstream, Reply(text="x" * 80, fault=Reset(after=after)))
    assert answer.ended == "reset"
    assert upstream.requests[0].outcome == "fault:reset"


@pytest.mark.parametrize(("after", "mark"), [(None, b""), (0, b"\r\n\r\n"), (2, b"xxxxxxxx")])
async def test_a_hang_holds_until_the_client_leaves(upstream, after, mark):
    upstream.script("m", [Reply(text="x" * 80, fault=Hang(after=after))])
    async with raw_connection(upstream.url) as connection:
        await connection.post("/v1/chat/completions", chat_body(stream=True))
        await upstream.requests.wait(1)
        await upstream.requests[0].until_reached()
        received = await connection.until(mark)
        assert (received == b"") == (after is None)
        assert upstream.requests[0].sent == (after or 0)
        assert upstream.stats.active == 1
    assert await upstream.requests[0].until_closed() == "client_disconnected"
    assert (upstream.stats.active, upstream.stats.peak_active, upstream.stats.disconnects) == (0, 1, 1)


async def test_a_hang_is_let_go_when_the_upstream_closes():
    async with Upstream() as upstream:
        upstream.script("m", [Reply(fault=Hang())])
        asked = asyncio.create_task(raw_post(upstream.url, chat_body()))
        await upstream.requests.wait(1)
        await upstream.requests[0].until_reached()
    assert upstream.requests[0].outcome == "released"
    assert (await asked).ended == "eof"


async def test_a_malformed_event_is_no_json_and_the_stream_goes_on(upstream):
    answer = await streamed(upstream, Reply(text="x" * 16, fault=Malformed(after=1)))
    with pytest.raises(ValueError):
        json.loads(answer.data[1])
    assert answer.data[-1] == "[DONE]"
    assert [json.loads(text)["object"] for text in answer.data[2:-1]] == ["chat.completion.chunk"] * 3
    assert upstream.requests[0].outcome == "fault:malformed"


async def test_misframed_breaks_the_chunk_sizes(upstream):
    answer = await streamed(upstream, Reply(text="x" * 16, fault=Misframed(after=1)))
    assert b"\r\nnot-a-size\r\n" in answer.raw
    assert len(answer.data) == 1
    assert answer.ended == "eof"


@pytest.mark.parametrize("named", [False, True])
async def test_an_error_event_is_the_last_thing_in_the_stream(upstream, named):
    answer = await streamed(upstream, Reply(text="x" * 80, fault=ErrorEvent(after=2, message="boom", named=named)))
    assert json.loads(answer.data[-1])["error"]["message"] == "boom"
    assert len(answer.data) == 3
    assert "[DONE]" not in answer.data
    assert answer.ended == "complete"
    assert (b"event: error\n" in answer.body) is named


@pytest.mark.parametrize("fault", [Empty(), Html()])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_200_with_nothing_or_with_a_page(upstream, fault, stream):
    upstream.script("m", [Reply(text="x", fault=fault)])
    answer = await raw_post(upstream.url, chat_body(stream=stream))
    assert answer.status == 200
    assert answer.ended == "complete"
    assert answer.body == (b"" if fault == Empty() else answer.body)
    assert (b"<html>" in answer.body) == (fault == Html())


# Ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "done", "ended", "chunked"),
    [
        ("done", True, "complete", True),
        ("no_done", False, "complete", True),
        ("eof", False, "eof", False),
        ("error", False, "eof", True),
    ],
)
async def test_a_stream_ends_as_it_is_scripted(upstream, end: End, done, ended, chunked):
    answer = await streamed(upstream, Reply(text="abc", end=end))
    assert text_of_deltas(answer) == "abc"
    assert (answer.data[-1] == "[DONE]") is done
    assert answer.ended == ended
    assert ("transfer-encoding" in answer.headers) is chunked
    assert not answer.raw.endswith(b"\r\n0\r\n\r\n") or ended == "complete"


async def test_a_lingering_stream_keeps_its_body_open_after_done(upstream):
    upstream.script("m", [Reply(text="abc", end="linger")])
    async with raw_connection(upstream.url) as connection:
        await connection.post("/v1/chat/completions", chat_body(stream=True))
        assert (await connection.until(b"[DONE]\n\n")).count(b"data: ") == 4
        await upstream.requests[0].until_reached()
        assert not upstream.requests[0].closed.is_set()
    assert await upstream.requests[0].until_closed() == "done"


# Faults of whole answers -------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "ended"), [(Cut(), "eof"), (Reset(), "reset")])
async def test_a_whole_answer_breaks_off_half_way(upstream, fault, ended):
    answer = await whole(upstream, Reply(text="x" * 80, fault=fault))
    assert answer.ended == ended
    assert len(answer.body) == int(answer.headers["content-length"]) // 2


async def test_a_whole_answer_hangs_half_way(upstream):
    upstream.script("m", [Reply(text="x" * 80, fault=Hang(after=0))])
    async with raw_connection(upstream.url) as connection:
        await connection.post("/v1/chat/completions", chat_body())
        await connection.until(b"xxxx")
    assert await upstream.requests[0].until_closed() == "client_disconnected"


async def test_a_malformed_whole_answer_is_broken_json_of_the_length_it_claims(upstream):
    answer = await whole(upstream, Reply(text="x" * 80, fault=Malformed()))
    assert answer.ended == "complete"
    with pytest.raises(ValueError):
        json.loads(answer.body)


async def test_a_misframed_whole_answer_has_a_broken_chunk_size(upstream):
    answer = await whole(upstream, Reply(text="x", fault=Misframed()))
    assert b"\r\n\r\nnot-a-size\r\n" in answer.raw


async def test_an_error_inside_a_whole_200(upstream):
    answer = await whole(upstream, Reply(text="x", fault=ErrorEvent(message="boom", code=500)))
    assert answer.status == 200
    assert json.loads(answer.body) == {"error": {"message": "boom", "type": "server_error", "param": None, "code": 500}}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_status_is_sent_with_its_body_and_headers(upstream, stream):
    upstream.script("m", [Reply(status=429, headers={"retry-after": "7"}, body={"error": {"message": "slow"}})])
    answer = await raw_post(upstream.url, chat_body(stream=stream))
    assert (answer.status, answer.headers["retry-after"]) == (429, "7")
    assert json.loads(answer.body) == {"error": {"message": "slow"}}
    assert upstream.requests[0].outcome == "fault:429"


async def test_a_body_is_sent_as_it_is_when_it_is_text(upstream):
    answer = await whole(
        upstream, Reply(status=502, body="<h1>Bad gateway</h1>", headers={"content-type": "text/html"})
    )
    assert answer.body == b"<h1>Bad gateway</h1>"
    assert answer.headers["content-type"] == "text/html"


# Shapes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "indexes", "ids"),
    [
        (Shape(one_chunk=True), [0, 1], ["c1", "c2"]),
        (Shape(one_chunk=True, index="none"), [None, None], ["c1", "c2"]),
        (Shape(one_chunk=True, index="zero"), [0, 0], ["c1", "c2"]),
        (Shape(one_chunk=True, ids="none"), [0, 1], [None, None]),
        (Shape(one_chunk=True, ids="same"), [0, 1], ["call_same", "call_same"]),
        (Shape(one_chunk=True, ids="empty"), [0, 1], ["", ""]),
    ],
)
async def test_indexes_and_ids_of_calls(upstream, shape, indexes, ids):
    answer = await streamed(upstream, Reply(calls=TWO_CALLS, shape=shape))
    assert [fragment.get("index") for fragment in fragments(answer)] == indexes
    assert [fragment["id"] for fragment in fragments(answer)] == ids
    assert [fragment["function"]["arguments"] for fragment in fragments(answer)] == ['{"city":"Lisbon"}', "{}"]


async def test_interleaved_calls_take_turns(upstream):
    answer = await streamed(upstream, Reply(calls=TWO_CALLS, shape=Shape(interleave=True)))
    assert [fragment["index"] for fragment in fragments(answer)] == [0, 1, 0, 1, 0, 0]


async def test_names_are_split_and_heads_repeated(upstream):
    split = fragments(await streamed(upstream, Reply(calls=TWO_CALLS[:1], shape=Shape(name_split=True))))
    assert [fragment["function"].get("name") for fragment in split[:2]] == ["get_w", "eather"]
    everywhere = fragments(await streamed(upstream, Reply(calls=TWO_CALLS[:1], shape=Shape(head_everywhere=True))))
    assert {(f["id"], f["function"]["name"]) for f in everywhere} == {("c1", "get_weather")}
    assert len(everywhere) == 4


async def test_everything_in_a_single_chunk(upstream):
    answer = await streamed(upstream, Reply(text="Hi", reasoning="hm", calls=TWO_CALLS, shape=Shape(all_in_one=True)))
    [chunk] = answer.chunks
    [choice] = chunk["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert (choice["delta"]["content"], choice["delta"]["reasoning_content"]) == ("Hi", "hm")
    assert [call["id"] for call in choice["delta"]["tool_calls"]] == ["c1", "c2"]


async def test_finish_on_the_last_delta_roles_everywhere_and_empty_choices(upstream):
    shape = Shape(finish_on_last=True, role_everywhere=True, empty_choices=True)
    answer = await streamed(upstream, Reply(text="abc", shape=shape))
    assert answer.chunks[0]["choices"] == []
    assert answer.chunks[-1]["choices"][0]["delta"]["content"] == "abc"
    assert answer.chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(delta["role"] == "assistant" for delta in deltas(answer))


async def test_usage_unasked_and_on_every_chunk(upstream):
    shape = Shape(usage_everywhere=True, usage_unasked=True)
    answer = await streamed(upstream, Reply(text="abc", usage={"total_tokens": 3}, shape=shape))
    assert all(chunk["usage"] == {"total_tokens": 3} for chunk in answer.chunks)
    assert answer.chunks[-1]["choices"] == []


@pytest.mark.parametrize(
    ("finish", "expected"), [(None, []), ("stop", ["stop"]), ("eos", ["eos"]), ("tool_calls", ["tool_calls"])]
)
async def test_finish_reasons_are_sent_as_written(upstream, finish, expected):
    answer = await streamed(upstream, Reply(calls=TWO_CALLS, finish=finish))
    assert finishes(answer) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"a": "é"}, '{"a":"é"}'),
        ('{"a": tru', '{"a": tru'),
        ("", ""),
        (Verbatim({"a": 1}), {"a": 1}),
        (Verbatim(None), None),
        (Verbatim([1]), [1]),
    ],
)
async def test_arguments_are_text_unless_verbatim(upstream, arguments, expected):
    call = Call("f", arguments, extras={"extra_content": {"google": {"thought_signature": "s"}}})
    body = json.loads((await whole(upstream, Reply(calls=[call]))).body)
    [sent] = body["choices"][0]["message"]["tool_calls"]
    assert sent["function"]["arguments"] == expected
    assert sent["extra_content"] == {"google": {"thought_signature": "s"}}
    [fragment] = fragments(await streamed(upstream, Reply(calls=[call], shape=Shape(one_chunk=True))))
    assert fragment["function"]["arguments"] == expected
    assert fragment["extra_content"] == sent["extra_content"]


async def test_made_up_call_ids_never_repeat(upstream):
    upstream.script("m", [Reply(calls=[Call("a"), Call("b")])], repeat_last=True)
    answers = [await raw_post(upstream.url, chat_body(stream=True)) for _ in range(3)]
    ids = [fragment["id"] for answer in answers for fragment in fragments(answer) if "id" in fragment]
    assert len(ids) == len(set(ids)) == 6


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        (Shape(crlf=True), b"data: [DONE]\r\n\r\n"),
        (Shape(comments=True), b": keep-alive\n\ndata: [DONE]\n\n"),
        (Shape(bare_colon=True), b"data:[DONE]\n\n"),
        (Shape(fields=True), b"event: message\nid: 7\nretry: 3000\ndata: [DONE]\n\n"),
    ],
)
async def test_the_spelling_of_events(upstream, shape, line):
    answer = await streamed(upstream, Reply(text="abc", shape=shape))
    assert answer.body.endswith(line)
    assert text_of_deltas(answer) == "abc"


async def test_one_byte_at_a_time(upstream):
    answer = await streamed(upstream, Reply(text="é", shape=Shape(split="bytes")))
    assert {len(part) for part in answer.parts} == {1}
    assert text_of_deltas(answer) == "é"


async def test_events_cut_inside_a_character(upstream):
    answer = await streamed(upstream, Reply(text="a\U0001f600b", shape=Shape(split="characters")))
    assert text_of_deltas(answer) == "a\U0001f600b"
    cut = [part for part in answer.parts if part.endswith(b"\xf0")]
    assert len(cut) == 1


async def test_all_events_in_one_write(upstream):
    answer = await streamed(upstream, Reply(text="x" * 80, shape=Shape(coalesce=True)))
    assert len(answer.parts) == 1
    assert text_of_deltas(answer) == "x" * 80


async def test_an_answer_is_held_until_the_gate_opens(upstream):
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="x" * 16, pace=Pace(hold=Hold(gate, after=2)))])
    async with raw_connection(upstream.url) as connection:
        await connection.post("/v1/chat/completions", chat_body(stream=True))
        await connection.until(b"xxxxxxxx")
        await upstream.requests[0].until_reached()
        assert upstream.requests[0].sent == 2
        gate.set()
        answer = await connection.answer()
    assert text_of_deltas(answer) == "x" * 16
    assert upstream.requests[0].outcome == "done"


async def test_a_held_head_keeps_even_the_status_back(upstream):
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="x", pace=Pace(hold=Hold(gate, after=None)))])
    asked = asyncio.create_task(raw_post(upstream.url, chat_body()))
    await upstream.requests.wait(1)
    await upstream.requests[0].until_reached()
    assert upstream.requests[0].status is None
    gate.set()
    assert (await asked).status == 200


# Scripts -----------------------------------------------------------------------------------------


async def test_a_script_that_runs_out_fails_the_test():
    upstream = Upstream()
    await upstream.open()
    script = upstream.script("m", [Reply(text="one")])
    assert (await raw_post(upstream.url, chat_body())).status == 200
    assert script.left == 0
    assert (await raw_post(upstream.url, chat_body())).status == 500
    await upstream.close()
    with pytest.raises(AssertionError, match="'m' has run out: request 2 came"):
        upstream.check()


async def test_a_script_that_raises_fails_the_test_and_ends_the_exchange():
    def choose(_: RequestRecord) -> Reply:
        message = "no answer to that"
        raise LookupError(message)

    upstream = Upstream()
    await upstream.open()
    upstream.script("m", choose)
    assert (await raw_post(upstream.url, chat_body())).raw == b""
    assert await upstream.requests[0].until_closed() == "crashed"
    await upstream.close()
    with pytest.raises(AssertionError, match="no answer to that"):
        upstream.check()


async def test_a_function_chooses_by_the_turn_of_each_conversation(upstream):
    upstream.script("m", by_turn([Reply(calls=[Call("get_time", id="c1")]), Reply(text="noon")]))
    done = [
        {"role": "assistant", "content": None, "tool_calls": [_call("c1")]},
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
    ]
    later = chat_body()
    later["messages"] += done
    second, first = await asyncio.gather(raw_post(upstream.url, later), raw_post(upstream.url, chat_body()))
    assert json.loads(second.body)["choices"][0]["message"]["content"] == "noon"
    assert json.loads(first.body)["choices"][0]["message"]["tool_calls"]
    assert next(r for r in upstream.requests if r.turn == 1).tool_results == {"c1": "12:00"}


async def test_what_was_asked_is_on_record(upstream):
    upstream.script("m", [Reply(text="x")])
    await raw_post(upstream.url, chat_body(tools=[WEATHER]), headers={"authorization": "Bearer sk-secret-1234"})
    [record] = upstream.requests
    assert (record.model, record.stream, record.tool_names, record.turn) == ("m", False, ["get_weather"], 0)
    assert json.loads(record.raw) == record.body
    assert record.headers["authorization"] == "Bearer sk-secret-1234"
    assert "sk-secret" not in dump(upstream)


async def test_waiting_for_a_request_that_never_comes_is_an_error(upstream):
    with pytest.raises(AssertionError, match="waited for 1 requests, saw 0"):
        await upstream.requests.wait(1, within=0.01)


async def test_many_at_once_are_counted(upstream):
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="x", pace=Pace(hold=Hold(gate)))] * 20)
    asked = [asyncio.create_task(raw_post(upstream.url, chat_body(stream=True))) for _ in range(20)]
    for record in await upstream.requests.wait(20):
        await record.until_reached()
    assert (upstream.stats.active, upstream.stats.peak_connections) == (20, 20)
    gate.set()
    assert all(answer.ended == "complete" for answer in await asyncio.gather(*asked))
    assert upstream.stats.active == 0


async def test_its_port_is_closed_after_it_stopped_and_it_comes_back_on_the_same_port(upstream):
    url = upstream.url
    upstream.script("m", [Reply(text="x")])
    await upstream.stop_listening()
    with pytest.raises(ConnectionRefusedError):
        await raw_post(url, chat_body())
    await upstream.open()
    assert (await raw_post(url, chat_body())).status == 200


async def test_a_wrong_key_is_refused_and_no_fault_of_the_test():
    async with Upstream(key="right") as upstream:
        upstream.script("m", [Reply(text="x")])
        refused = await raw_post(upstream.url, chat_body(), headers={"authorization": "Bearer wrong"})
        taken = await raw_post(upstream.url, chat_body(), headers={"authorization": "Bearer right"})
    assert (refused.status, taken.status) == (401, 200)
    assert json.loads(refused.body)["error"]["code"] == "invalid_api_key"


# What OpenAI refuses -----------------------------------------------------------------------------


def _call(call_id: Any = "c1", name: Any = "get_time", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _asked(*calls: dict[str, Any], content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def _result(call_id: Any = "c1", content: Any = "12:00") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


USER = {"role": "user", "content": "hello"}

BAD_HISTORIES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a call without an answer": ([USER, _asked(_call())], "did not have response messages: c1"),
    "one of two calls without an answer": ([USER, _asked(_call(), _call("c2")), _result()], "messages: c2"),
    "an answer that comes too late": ([USER, _asked(_call()), USER, _result()], "must be followed by tool messages"),
    "an answer to nothing": ([USER, _result()], "must be a response to a preceding message"),
    "an answer given twice": ([USER, _asked(_call()), _result(), _result()], "must be a response"),
    "an answer to a call of an earlier turn": (
        [USER, _asked(_call()), _result(), _asked(_call("c2")), _result("c1"), _result("c2")],
        "must be a response",
    ),
    "an empty list of calls": ([USER, {"role": "assistant", "content": "x", "tool_calls": []}], "empty array"),
    "an id used twice in one message": ([USER, _asked(_call(), _call()), _result()], "Duplicate value"),
    "an empty id": ([USER, _asked(_call("")), _result("")], "id, type and function.arguments"),
    "a missing id": ([USER, _asked(_call(None)), _result(None)], "id, type and function.arguments"),
    "arguments that are no text": ([USER, _asked(_call(arguments={})), _result()], "function.arguments"),
    "an illegal name in a call": ([USER, _asked(_call(name="get time")), _result()], "does not match pattern"),
    "a result of null": ([USER, _asked(_call()), _result(content=None)], "expected a string, got null"),
    "an empty list of parts": ([{"role": "user", "content": []}], "empty array"),
    "a part without a type": ([{"role": "user", "content": [{"text": "x"}]}], "Missing required parameter"),
    "an assistant who said nothing": ([USER, {"role": "assistant", "content": None}], "got null"),
    "a user with calls": ([{**USER, "tool_calls": [_call()]}], "'tool_calls' was unexpected"),
    "a role nobody knows": ([{"role": "robot", "content": "x"}], "Invalid value: 'robot'"),
    "no messages": ([], "Missing required parameter: 'messages'"),
}


@pytest.mark.parametrize("case", BAD_HISTORIES)
async def test_a_bad_history_is_refused(upstream, case):
    messages, words = BAD_HISTORIES[case]
    upstream.script("m", [Reply(text="x")])
    with upstream.rejections_expected() as rejected:
        answer = await raw_post(upstream.url, {"model": "m", "messages": messages})
    assert answer.status == 400
    assert words in json.loads(answer.body)["error"]["message"]
    assert len(rejected) == 1
    assert upstream.requests[0].outcome == "rejected:400"


BAD_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "an empty list of tools": ({"tools": []}, "tools"),
    "two tools of one name": ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
    "a tool with an illegal name": ({"tools": [_tool := {"type": "function", "function": {"name": "a.b"}}]}, "name"),
    "a tool with a name of 65 letters": ({"tools": [{**_tool, "function": {"name": "a" * 65}}]}, "name"),
    "a tool without a function": ({"tools": [{"type": "function"}]}, "tools[0]"),
    "parameters that are no object": (
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]},
        "parameters",
    ),
    "a choice without tools": ({"tool_choice": "auto"}, "tool_choice"),
    "parallel calls without tools": ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    "a choice of a tool that is not there": (
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "nope"}}},
        "tool_choice",
    ),
    "stream options without a stream": ({"stream_options": {"include_usage": True}}, "stream_options"),
    "a temperature that is too high": ({"temperature": 3}, "temperature"),
    "a model that is no text": ({"model": None}, "model"),
}


@pytest.mark.parametrize("case", BAD_FIELDS)
async def test_a_bad_field_is_refused(upstream, case):
    fields, param = BAD_FIELDS[case]
    with pytest.raises(Rejection) as refused:
        check_request({**chat_body(), **fields})
    assert param in str(refused.value.param)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"a": NaN}', b'{"a": "\\ud800"}', b'{"a": "\xff"}', b"[" * 5000])
async def test_what_is_no_strict_json_object_is_refused(upstream, raw):
    with upstream.rejections_expected():
        answer = await raw_post(upstream.url, raw)
    assert answer.status == 400
    assert "could not parse" in json.loads(answer.body)["error"]["message"]


async def test_a_good_history_of_every_kind_is_taken(upstream):
    upstream.script("m", [Reply(text="x")])
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": [{"type": "text", "text": "very"}]},
        USER,
        _asked(_call("c1"), _call("c2"), content="wait"),
        _result("c2"),
        _result("c1", [{"type": "text", "text": "12:00"}]),
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": "fine", "reasoning_content": "hm"},
        USER,
    ]
    choice = {"type": "function", "function": {"name": "get_time"}}
    body = {"model": "m", "messages": messages, "tools": [WEATHER, TIME], "tool_choice": choice}
    assert (await raw_post(upstream.url, body)).status == 200


async def test_an_unexpected_refused_request_fails_the_test():
    upstream = Upstream()
    await upstream.open()
    upstream.script("m", [Reply(text="x")])
    await raw_post(upstream.url, {"model": "m", "messages": [USER, _result()]})
    await upstream.close()
    with pytest.raises(AssertionError, match="was refused: messages with role 'tool'"):
        upstream.check()


async def test_expecting_a_refusal_that_does_not_come_fails_the_test(upstream):
    with pytest.raises(AssertionError, match="none came"), upstream.rejections_expected():
        pass


async def test_a_lax_script_takes_any_history(upstream):
    upstream.script("m", [Reply(text="x")], lax=True)
    assert (await raw_post(upstream.url, {"model": "m", "messages": [_result()]})).status == 200


# The corpus --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
async def test_a_stream_of_the_corpus_is_played_as_it_was_taken_down(upstream, path):
    case = json.loads(path.read_text(encoding="utf-8"))
    answer = await raw_post(upstream.url, chat_body(upstream.replay(case), stream=True))
    end = case.get("end", "done")
    mark = ["[DONE]"] if end == "done" else []
    assert [json.loads(text) for text in answer.data[: len(case["chunks"])]] == case["chunks"]
    assert answer.data[len(case["chunks"]) :] == mark
    assert answer.ended == ("complete" if end == "done" else "eof")
    assert ("transfer-encoding" in answer.headers) is (end != "eof")


@pytest.mark.parametrize("path", MESSAGES, ids=lambda path: path.stem)
async def test_a_message_of_the_corpus_is_played_as_it_was_taken_down(upstream, path):
    case = json.loads(path.read_text(encoding="utf-8"))
    answer = await raw_post(upstream.url, chat_body(upstream.replay(case)))
    [choice] = json.loads(answer.body)["choices"]
    assert choice["message"] == case["message"]
    assert choice["finish_reason"] == case["finish_reason"]


@pytest.mark.parametrize(("path", "stream"), [(STREAMS[0], False), (MESSAGES[0], True)])
async def test_a_case_asked_in_the_other_mode_fails_the_test(path, stream):
    upstream = Upstream()
    await upstream.open()
    model = upstream.replay(json.loads(path.read_text(encoding="utf-8")))
    assert (await raw_post(upstream.url, chat_body(model, stream=stream))).status == 400
    await upstream.close()
    with pytest.raises(AssertionError, match="was asked for"):
        upstream.check()


# Names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FAULTS, *SHAPES, *ENDINGS, *ALWAYS, "429x2", "retry=1", "lax", "cut@3"])
@pytest.mark.parametrize("stream", [True, False])
async def test_every_modifier_can_be_played_in_both_modes(upstream, name, stream):
    text = 'CALL get_weather {"city":"Lisbon"}\nCALL get_time'
    upstream_model = f"agent+{name}"
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(raw_connection(upstream.url))
        await connection.post(
            "/v1/chat/completions", chat_body(upstream_model, text, stream=stream, tools=[WEATHER, TIME])
        )
        await upstream.requests.wait(1)
        if name not in ("hang", "linger"):
            await connection.answer()
    assert await upstream.requests[0].until_closed() != "open"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("agent+cut@3", Cut(after=3)),
        ("openai/agent+hang", Hang(after=None)),
        ("echo+reset@0", Reset(after=0)),
        ("echo+noconn", Cut(after=None)),
    ],
)
async def test_a_name_means_a_fault_at_a_place(name, fault: Fault):
    meant = behaviour(name)
    assert meant is not None
    assert meant.fault == fault


@pytest.mark.parametrize("name", ["gpt", "agent+cutt", "agent+429y", "agent+cut@x", "agent+nope=1", ""])
async def test_a_name_that_means_nothing_is_not_found(upstream, name):
    assert behaviour(name) is None
    answer = await raw_post(upstream.url, chat_body(name or "none"))
    assert answer.status == 404
    assert json.loads(answer.body)["error"]["code"] == "model_not_found"


async def test_a_status_can_be_for_the_first_requests_only(upstream):
    answers = [await raw_post(upstream.url, chat_body("echo+503x2+retry=0.5")) for _ in range(3)]
    assert [answer.status for answer in answers] == [503, 503, 200]
    assert answers[0].headers["retry-after"] == "0.5"


async def test_the_agent_follows_directives_turn_by_turn(upstream):
    messages = [{"role": "user", "content": 'CALL add {"a":1}\nTHEN\nCALL add {"a":2}\nSAY done'}]
    for turn, wanted in enumerate(['{"a":1}', '{"a":2}']):
        body = json.loads((await raw_post(upstream.url, {"model": "agent", "messages": messages})).body)
        message = body["choices"][0]["message"]
        assert [call["function"]["arguments"] for call in message["tool_calls"]] == [wanted]
        messages += [message, _result(message["tool_calls"][0]["id"], str(turn))]
    body = json.loads((await raw_post(upstream.url, {"model": "agent", "messages": messages})).body)
    assert body["choices"][0]["message"]["content"] == "done"


@pytest.mark.parametrize(
    ("base", "mark"),
    [
        ("agent-json", '{"name": "add", "arguments": {"a": "x"}}'),
        ("agent-fence", '```json\n{"name": "add"'),
        ("agent-xml", '<invoke name="add"><parameter name="a">x</parameter></invoke>'),
        ("agent-hermes", '<tool_call>\n{"name": "add"'),
    ],
)
async def test_models_without_function_calling_write_their_calls(upstream, base, mark):
    body = json.loads((await raw_post(upstream.url, chat_body(base, 'CALL add {"a":"x"}'))).body)
    assert mark in body["choices"][0]["message"]["content"]
    assert "tool_calls" not in body["choices"][0]["message"]


async def test_the_pages_beside_the_chat(upstream):
    upstream.script("m", [Reply(text="x")])
    async with http_client(upstream.url) as client:
        await client.post("/chat/completions", json=chat_body())
        assert "m" in [model["id"] for model in (await client.get("/models")).json()["data"]]
        assert (await client.get("/models/m")).json()["id"] == "m"
        assert (await client.get("/models/nope")).status_code == 404
        assert (await client.get("/nowhere")).json()["error"]["code"] == "unknown_url"
        assert (await client.get("/__requests")).json()[0]["outcome"] == "done"
        assert (await client.get("/__stats")).json()["peak_active"] == 1
        await client.delete("/__requests")
        assert (await client.get("/__requests")).json() == []


# Anthropic's face --------------------------------------------------------------------------------


async def anthropic(upstream: Upstream, messages: list[dict[str, Any]], **fields: Any) -> RawAnswer:
    body = {"model": "m", "max_tokens": 100, "messages": messages, **fields}
    return await raw_post(upstream.url, body, "/v1/messages", {"x-api-key": "k"})


async def test_anthropic_whole(upstream):
    upstream.script("m", [Reply(text="Hi", reasoning="hm", calls=TWO_CALLS)])
    body = json.loads((await anthropic(upstream, [USER])).body)
    assert [block["type"] for block in body["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert body["content"][2]["input"] == {"city": "Lisbon"}
    assert body["stop_reason"] == "tool_use"
    assert body["usage"]["output_tokens"] > 0


async def test_anthropic_streamed(upstream):
    upstream.script("m", [Reply(text="Hi", calls=TWO_CALLS[:1])])
    answer = await anthropic(upstream, [USER], stream=True)
    kinds = [chunk["type"] for chunk in answer.chunks]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 2
    parts = [c["delta"]["partial_json"] for c in answer.chunks if c.get("delta", {}).get("type") == "input_json_delta"]
    assert json.loads("".join(parts)) == {"city": "Lisbon"}
    assert b"event: content_block_delta\ndata: " in answer.body
    assert b"[DONE]" not in answer.body


async def test_anthropic_faults_lie_where_they_are_scripted(upstream):
    upstream.script("m", [Reply(text="x" * 80, fault=Cut(after=4)), Reply(fault=ErrorEvent(after=1, message="boom"))])
    cut = await anthropic(upstream, [USER], stream=True)
    assert (len(cut.chunks), cut.ended) == (4, "eof")
    failed = await anthropic(upstream, [USER], stream=True)
    assert failed.chunks[-1]["type"] == "error"
    assert failed.chunks[-1]["error"]["message"] == "boom"


@pytest.mark.parametrize("results", [[], ["t1", "t1"], ["t2"]])
async def test_anthropic_demands_one_result_for_each_call(upstream, results):
    upstream.script("m", [Reply(text="x")])
    asked = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]}
    parts = [{"type": "tool_result", "tool_use_id": one, "content": "r"} for one in results]
    answered = {"role": "user", "content": parts or "never mind"}
    with upstream.rejections_expected():
        answer = await anthropic(upstream, [USER, asked, answered])
    assert answer.status == 400
    assert json.loads(answer.body)["type"] == "error"
