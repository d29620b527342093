"""Lines, events and messages: cut anywhere, bounded everywhere, and read only for what they are."""

import asyncio
import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.conversation.ports import ProgressReport, ignore_progress
from callgate.http.trace_context import TRACE, Trace
from callgate.tools.kinds.mcp.wire import (
    CALL,
    MAX_BATCH,
    MAX_PARTS,
    TAIL_BYTES,
    CallMessages,
    Gone,
    Line,
    Lines,
    RpcAnswer,
    RpcError,
    RpcProgress,
    ServerRequest,
    Terms,
    Unreadable,
    Waiting,
    answer_fast,
    answer_in,
    answer_in_part,
    batch_of,
    id_in_head,
    id_in_tail,
    id_of_unreadable,
    message_of,
    progress_of,
    read_message,
)
from tests.chaos.scale import held_to


def cuts(data: bytes, places: list[int]) -> list[bytes]:
    """The data in pieces."""
    ends = sorted({place % (len(data) + 1) for place in places})
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


PLACES = st.lists(st.integers(0, 10_000), max_size=12)


# Lines --------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line), max_size=10), PLACES)
def test_however_a_stream_is_cut_the_same_lines_come_out(lines, places):
    reader = Lines()
    data = b"".join(line + b"\n" for line in lines)
    whole = [Line(line) for line in lines if line]  # empty ones are nothing
    assert [line for piece in cuts(data, places) for line in reader.feed(piece)] == whole


@given(st.binary(min_size=1, max_size=2000).filter(lambda line: b"\n" not in line), PLACES)
def test_of_a_line_that_is_too_long_the_front_and_the_end_are_kept(line, places):
    reader = Lines(max_bytes=50)
    found = [each for piece in cuts(line + b"\nnext\n", places) for each in reader.feed(piece)]
    dropped = line[50:]
    assert found == [Line(line[:50], len(dropped), dropped[-TAIL_BYTES:]), Line(b"next")]


# Messages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"  ", b"listening on 8080", b"[1]", b'"x"', b'{"id":', b"\xff", b"null"])
def test_what_is_no_message_is_none(data):
    assert read_message(data) is None


def test_a_lone_surrogate_or_a_broken_byte_spoils_a_text_and_not_the_answer():
    message = read_message(b'{"id":"c1","result":{"content":[{"type":"text","text":"a\\ud800b\xffc"}]}}')
    assert message is not None
    result = answer_in(message).result
    assert result is not None
    assert result.content[0].text == "a?b�c"


def test_a_response_without_a_proper_result_is_unreadable():
    for result in (b"7", b'{"content":1}', b'{"content":[{"type":"text","text":5}]}'):
        message = read_message(b'{"id":"c1","result":' + result + b"}")
        assert message is not None
        with pytest.raises(Unreadable):
            answer_in(message)


def test_an_error_is_an_answer():
    message = read_message(b'{"id":"c1","error":{"code":-32602,"message":"no","data":{"x":1}}}')
    assert message is not None
    assert answer_in(message) == RpcAnswer(error=RpcError(-32602, "no", {"x": 1}))


@given(st.text(max_size=200), st.integers(0, 400))
def test_of_an_answer_cut_anywhere_the_text_so_far_is_read(words, at):
    whole = json.dumps(
        {"jsonrpc": "2.0", "id": "c1", "result": {"content": [{"type": "text", "text": words}]}}
    ).encode()
    head = whole[: min(at, len(whole))]
    try:
        answer = answer_in_part(head, 1000)
    except Unreadable:
        assert b'"result": {' not in head
        return
    assert answer.missing == 1000
    assert answer.result is not None
    for piece in answer.result.content:
        if piece.text:
            given = words.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
            assert given.startswith(piece.text.rstrip("�"))


@pytest.mark.parametrize(
    "line, id",
    [
        (b'{"jsonrpc":"2.0","id":"c12","result":{', "c12"),
        (b'{"id": "c12", "jsonrpc"', "c12"),
        (b'{"result":{"id":"c12"', None),
        (b'{"jsonrpc":"2.0","id":7,"result":{', None),
    ],
)
def test_the_id_of_a_long_answer_may_stand_first(line, id):
    assert id_in_head(line) == id


@pytest.mark.parametrize(
    "tail, id",
    [
        (b'xxx"}]},"jsonrpc":"2.0","id":"c12"}', "c12"),
        (b'xxx"}]},"id":"c12","jsonrpc":"2.0"}\r', "c12"),
        (b'xxx "id":"c9" xxx"}]}}', None),
        (b"", None),
    ],
)
def test_the_id_of_a_long_answer_may_stand_last(tail, id):
    assert id_in_tail(tail) == id


@pytest.mark.parametrize(
    "params, expected",
    [
        ({"progressToken": "c1", "progress": 1, "total": 4, "message": "m"}, ("c1", RpcProgress("m", 0.25))),
        ({"progressToken": "c1", "progress": 9, "total": 4}, ("c1", RpcProgress("", 1.0))),
        ({"progressToken": "c1", "progress": 3}, ("c1", RpcProgress("3", None))),
        ({"progressToken": "c1", "progress": 3, "total": 0}, ("c1", RpcProgress("3", None))),
        ({"progressToken": 5}, (5, RpcProgress("", None))),
        ({"progressToken": "c1", "progress": "x"}, None),
        ([], None),
    ],
)
def test_progress_is_a_message_and_a_fraction_where_there_is_one(params, expected):
    message = read_message(json.dumps({"method": "notifications/progress", "params": params}).encode())
    assert message is not None
    assert progress_of(message) == expected


OLD = Terms("2025-06-18", modern=False)
NEW = Terms("2026-07-28", modern=True, client={"name": "callgate"}, capabilities={"elicitation": {"form": {}}})


def called(name: str, arguments: dict[str, Any], **more: Any) -> ServerRequest:
    return ServerRequest(CALL, {"name": name, "arguments": arguments, **more}, ignore_progress)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(max_size=30), st.dictionaries(st.text(max_size=8), VALUES, max_size=4), st.sampled_from([OLD, NEW]))
def test_a_call_that_is_written_fast_is_the_one_that_is_written_plainly(name, arguments, terms):
    fast = CallMessages(name, terms).message_fast("c17", {"name": name, "arguments": arguments})
    assert fast is None or fast == message_of("c17", called(name, arguments), terms)


@pytest.mark.parametrize("terms", [OLD, NEW], ids=["2025", "2026"])
def test_only_calls_with_more_to_them_are_written_plainly(terms):
    messages = CallMessages('a "tool"', terms)
    assert messages.message_fast("c1", called('a "tool"', {"city": "Oslø"}).params) is not None
    assert messages.message_fast("c1", called('a "tool"', {"text": "\ud800"}).params) is None
    assert messages.message_fast("c1", called('a "tool"', {}, requestState="s").params) is None
    held = TRACE.set(Trace(None, "run_1", is_exported=True))
    try:
        assert messages.message_fast("c1", called('a "tool"', {}).params) is None
    finally:
        TRACE.reset(held)


def plain_answer(data: bytes, id: str) -> RpcAnswer | None:
    """What the plain way reads; None where it finds no answer."""
    for part in batch_of(data):
        message = read_message(part)
        if message is not None and message.method is None and message.id in (id, None):
            return msgspec.structs.replace(answer_in(message), raw=msgspec.Raw())
    return None


ANSWERS = [
    b'{"jsonrpc":"2.0","id":"c1","result":{"content":[{"type":"text","text":"21 C"}]}}',
    b'{"result":{"content":[{"type":"text","text":"21 C"}],"isError":true},"id":"c1"}',
    b'{"id":null,"result":{"content":[],"structuredContent":{"a":[1,2]}}}',
    b'{"result":{}}',
    b'{"id":"c1","result":{"content":[{"type":"image","data":"AA==","mimeType":"image/png"}]},"method":null}',
    b'{"id":"c1","result":{"content":[{"type":"text","text":"x","annotations":{"audience":["user"]}}]},"error":null}',
    b'{"id":"c1","result":{"resultType":"input_required","requestState":"s","inputRequests":{}}}',
    b'[{"id":"c2","result":{}},{"id":"c1","result":{"content":[]}}]',
    b'{"id":"c1","error":{"code":-1,"message":"no"}}',
    b'{"id":"c1","result":{"content":[]},"error":{"code":-1,"message":"no"}}',
    b'{"id":"c1","result":{"content":[]},"method":"ping"}',
    b'{"id":"c2","result":{"content":[]}}',
    b'{"id":"c1","result":null}',
    b'{"id":"c1","result":{"content":[{"type":"text","text":5}]}}',
    b'{"id":1.5,"result":{}}',
    b'{"id":"c1","result":{"content":[{"type":"text","text":"a\\ud800b\xffc"}]}}',
    b'{"id":"c1","result":{"content":[' + b",".join([b"{}"] * (MAX_PARTS + 1)) + b"]}}",
    b'  {"id":"c1","id":"c2","result":{}}\n',
    b"no answer",
    b"",
]


@pytest.mark.parametrize("whole", ANSWERS, ids=range(len(ANSWERS)))
def test_an_answer_that_is_read_fast_is_the_one_that_is_read_plainly(whole):
    for data in {whole, *(whole[:place] for place in range(0, len(whole), len(whole) // 40 + 1))}:
        try:
            fast = answer_fast(data, "c1")
        except Unreadable:
            with pytest.raises(Unreadable):
                plain_answer(data, "c1")
            continue
        assert fast is None or fast == plain_answer(data, "c1")


def test_an_ordinary_answer_is_read_fast():
    assert all(answer_fast(data, "c1") is not None for data in ANSWERS[:2])
    assert all(answer_fast(data, "c1") is None for data in ANSWERS[2:4]), "an event may not go without an id"


def test_a_request_says_who_asks_only_where_the_protocol_wants_it():
    old = json.loads(message_of("c1", called("echo", {"a": 1}), OLD))
    assert old["params"] == {"name": "echo", "arguments": {"a": 1}, "_meta": {"progressToken": "c1"}}
    new = json.loads(message_of("c1", ServerRequest("tools/list", {}, ignore_progress), NEW))
    assert new["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert new["params"]["_meta"]["io.modelcontextprotocol/clientInfo"] == {"name": "callgate"}


# Waiting ------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_waiting_call_gets_the_latest_progress_and_then_the_answer():
    reported: list[tuple[str, float | None]] = []

    async def report(progress: ProgressReport) -> None:
        reported.append((progress.message, progress.fraction))

    waiting = Waiting()
    task = asyncio.create_task(waiting.answer(report))
    await asyncio.sleep(0)
    waiting.progressed(RpcProgress("one", None))
    waiting.progressed(RpcProgress("two", 0.5))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.answered(RpcAnswer())
    assert await task == RpcAnswer()
    assert reported == [("two", 0.5)]


@pytest.mark.anyio
async def test_an_answer_that_came_before_the_wait_is_not_lost():
    async def report(progress: ProgressReport) -> None: ...

    waiting = Waiting()
    waiting.answered(RpcAnswer())
    assert await waiting.answer(report) == RpcAnswer()
    waiting = Waiting()
    waiting.failed(Gone("away"))
    with pytest.raises(Gone):
        await waiting.answer(report)


# What is no answer --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 8_000_000,
        b'{"jsonrpc":"2.0","id":"c1","result":' + b"[" * 8_000_000 + b"}",
        b'{"jsonrpc":"2.0","id":"c1","result":' + b'{"a":' * 1_000_000 + b"}",
    ],
)
def test_what_is_nested_too_deep_is_no_message_and_its_call_is_known(data):
    began = time.process_time()
    assert [read_message(each) for each in batch_of(data)] == [None]
    held_to(0.5, "what is nested too deep is no message, of the processor", time.process_time() - began)
    assert id_of_unreadable(data) == ("c1" if data.startswith(b"{") else None)


def test_a_number_that_is_none_does_not_spoil_the_answer():
    message = read_message(
        b'{"jsonrpc":"2.0","id":"c1","result":{"content":[{"type":"text","text":"4"}],"x":NaN,"y":-Infinity}}'
    )
    assert message is not None
    result = answer_in(message).result
    assert result is not None
    assert result.content[0].text == "4"


def test_a_batch_of_too_many_is_one_message_that_cannot_be_read():
    small = b"[" + b",".join([b"{}"] * MAX_BATCH) + b"]"
    large = small[:-1] + b",{}]"
    assert len(batch_of(small)) == MAX_BATCH
    assert batch_of(large) == [large]
    assert read_message(large) is None


def test_a_batch_is_read_message_by_message():
    pieces = batch_of(b' [{"jsonrpc":"2.0","id":"c1","result":{}}, {"jsonrpc":"2.0","method":"m"}]')
    messages = [read_message(each) for each in pieces]
    assert [(each.id, each.method) for each in messages if each] == [("c1", None), (None, "m")]
