"""The outline of a request is checked, what is wrong is named, and everything else stays the bytes it was."""

import json
from typing import Any

import msgspec
import pytest

from callgate.api.bodies import read_body
from callgate.api.chat_request import ChatRequest
from callgate.chat.requests import read_chat_request
from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import written_here

USER = {"role": "user", "content": "hi"}


def chat_request(body: Any, headers: dict[str, str] | None = None, max_messages: int = 100) -> ChatRequest:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return read_chat_request(written_here(raw), headers or {}, max_messages)


def raw_messages(request: ChatRequest) -> list[bytes]:
    return [bytes(message) for message in request.read_history() if isinstance(message, msgspec.Raw)]


def test_a_plain_question_is_read() -> None:
    request = chat_request(
        {"model": "m", "messages": [USER], "stream": True, "stream_options": {"include_usage": True}}
    )
    assert (request.model, request.delivery.stream, request.delivery.include_usage, request.n) == ("m", True, True, 1)
    assert raw_messages(request) == [b'{"role":"user","content":"hi"}']


def test_unknown_fields_travel_on_as_they_came() -> None:
    request = chat_request(
        b'{"model":"m","messages":[{"role":"user","content":"hi","x": 1.50}],"top_k": 40 ,"min_p":0.10}'
    )
    assert raw_messages(request)[0] == b'{"role":"user","content":"hi","x": 1.50}'
    assert {name: bytes(value) for name, value in request.other_fields().items()} == {"top_k": b"40", "min_p": b"0.10"}


def test_metadata_for_us_is_taken_out_of_what_travels_on() -> None:
    request = chat_request(
        {"model": "m", "messages": [USER], "metadata": {"tools": "a,b", "tool_events": "x", "trace": "t1"}}
    )
    assert (request.tools.filter, request.delivery.tool_events) == ("a,b", "x")
    assert request.other_fields()["metadata"] == {"trace": "t1"}


def test_metadata_that_was_only_for_us_does_not_travel_at_all() -> None:
    assert (
        "metadata" not in chat_request({"model": "m", "messages": [USER], "metadata": {"tools": "none"}}).other_fields()
    )


def test_headers_outrank_metadata() -> None:
    body = {"model": "m", "messages": [USER], "metadata": {"tools": "a"}}
    assert chat_request(body, {"x-callgate-tools": "none"}).tools.filter == "none"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [USER]}, "model"),
        ({"model": "", "messages": [USER]}, "model"),
        ({"model": 7, "messages": [USER]}, "model"),
        ({"model": "m"}, "messages"),
        ({"model": "m", "messages": []}, "messages"),
        ({"model": "m", "messages": "hi"}, "messages"),
        ({"model": "m", "messages": ["hi"]}, "messages[0]"),
        ({"model": "m", "messages": [USER] * 101}, "messages"),
        ({"model": "m", "messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"model": "m", "messages": [USER, {"role": "robot", "content": "hi"}]}, "messages[1].role"),
        ({"model": "m", "messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"model": "m", "messages": [{"role": "user"}]}, "messages[0].content"),
        ({"model": "m", "messages": [{"role": "user", "content": [{"text": "hi"}]}]}, "messages[0].content[0].type"),
        ({"model": "m", "messages": [{"role": "tool", "content": "42"}]}, "messages[0].tool_call_id"),
        ({"model": "m", "messages": [USER], "stream": "yes"}, "stream"),
        ({"model": "m", "messages": [USER], "n": 0}, "n"),
        ({"model": "m", "messages": [USER], "n": "2"}, "n"),
        ({"model": "m", "messages": [USER], "temperature": "hot"}, "temperature"),
        ({"model": "m", "messages": [USER], "tools": {}}, "tools"),
        ({"model": "m", "messages": [USER], "tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
        ({"model": "m", "messages": [USER], "tools": [{"type": "function"}]}, "tools[0].function"),
        ({"model": "m", "messages": [USER], "tool_choice": "always"}, "tool_choice"),
        ({"model": "m", "messages": [USER], "stream_options": 1}, "stream_options"),
        ({"model": "m", "messages": [USER], "metadata": {"tools": 1}}, "metadata.tools"),
        ({"model": "m", "messages": [USER], "metadata": {"tool_events": "loud"}}, "metadata.tool_events"),
    ],
)
def test_what_is_wrong_is_a_400_that_names_the_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ChatError) as caught:
        chat_request(body)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'"hi"',
        b"{",
        b"\xff\xfe",
        b'{"model":"m","messages":[{"role":"user","content":"a"}],"x":NaN}',
        b'{"model":"m","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"a"}],"x":{"y":["\xed\xa0\x80"]}}',
        b'{"model":"m","messages":[{"role":"user","content":"a"}],"x":{"y":["\\udc00 tail"]}}',
        b'{"model":"m","model":"other","messages":[{"role":"user","content":"a"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"a"}],"n":12,"n":1}',
        b'{"model":"m","messages":[{"role":"user","content":"a"}],"x":' + b"[" * 100 + b"]" * 100 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_no_json_object_is_a_400(body: bytes) -> None:
    with pytest.raises(ChatError) as caught:
        chat_request(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "more",
    [
        b'"x":' + b"[" * 99 + b"]" * 99,
        b'"x":[' + b",".join([b"[{}]"] * 500) + b"]",
        b'"x":"' + b'[{\\"' * 500 + b'"',
        b'"x":"a \\\\","y" : [ 1 , 2 ] , "z":{ }',
        b'"x":"\\ud83d\\ude00 and \\\\ud800 in words"',
    ],
)
def test_plain_json_is_taken_however_it_is_written(more: bytes) -> None:
    body = b' { "model" : "m","messages":[{"role":"user","content":"a"}],' + more + b"} \n"
    assert chat_request(body).model == "m"


def test_the_error_names_the_depth_limit() -> None:
    with pytest.raises(ChatError, match="nested deeper than 100 levels") as caught:
        chat_request(b'{"model":"m","x":' + b"[" * 100 + b"]" * 100 + b"}")
    assert caught.value.code == "json_too_deep"


@pytest.mark.parametrize("more", [{}, {"messages": []}], ids=["none of its own", "an empty list of its own"])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["compact", "spaced"])
def test_messages_inside_another_field_are_not_those_of_the_request(
    more: dict[str, Any], separators: tuple[str, str]
) -> None:
    inside = {"messages": [{"role": "user", "content": "a" * 10_000}]}
    for body in (
        {"model": "m", "x": inside, **more},
        {"x": inside, **more, "model": "m"},
        {**more, "x": inside, "model": "m"},
    ):
        with pytest.raises(ChatError) as caught:
            chat_request(json.dumps(body, separators=separators).encode())
        assert caught.value.param == "messages"


def test_a_repeated_field_is_named() -> None:
    with pytest.raises(ChatError, match="more than once") as caught:
        chat_request(b'{"model":"m","messages":[],"\\u006dodel":"m"}')
    assert (caught.value.param, caught.value.code) == ("model", "duplicate_parameter")


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "function"}, "tool_choice.function"),
        ({"type": "function", "function": {}}, "tool_choice.function.name"),
        ({"type": "anything"}, "tool_choice.type"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "none"}}, "tool_choice.allowed_tools.mode"),
        (7, "tool_choice"),
    ],
)
def test_a_choice_of_tools_that_is_none_is_named(choice: Any, param: str) -> None:
    with pytest.raises(ChatError) as caught:
        chat_request({"model": "m", "messages": [USER], "tool_choice": choice})
    assert (caught.value.status, caught.value.param) == (400, param)


def parts(*pieces: bytes) -> Any:
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    queue = iter(messages)

    async def receive() -> Any:
        return next(queue)

    return receive


@pytest.mark.anyio
async def test_a_body_in_pieces_is_read_whole() -> None:
    assert await read_body(parts(b"ab", b"cd"), 4) == b"abcd"


@pytest.mark.anyio
async def test_a_body_over_the_limit_is_refused_without_reading_on() -> None:
    with pytest.raises(ChatError) as caught:
        await read_body(parts(b"abc", b"de"), 4)
    assert caught.value.status == 413


@pytest.mark.anyio
async def test_a_client_that_leaves_while_sending_is_noticed() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    with pytest.raises(ChatError):
        await read_body(receive, 4)
