"""A plain request is read field by field, and as every other: whatever is not plain is left to the one that reads it whole."""

import json
from typing import Any

import msgspec
import pytest

from callgate.api.chat_outline import ChatOutline
from callgate.api.strict_json import split, split_fast
from callgate.chat import request_schema as room
from callgate.chat import requests
from callgate.chat.request_schema import outline_fast, outline_of_any
from callgate.chat.requests import read_chat_request
from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import Opened, written_here

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}}
TOOL = {"type": "function", "function": {"name": "f", "description": "é", "parameters": {"type": "object"}}}


def body(*messages: dict[str, Any], **more: Any) -> bytes:
    return msgspec.json.encode({"model": "m", "messages": list(messages or (USER,)), **more})


def outline_of(text: bytes, max_depth: int = 100) -> ChatOutline | None:
    return outline_fast(split(written_here(text), max_depth), max_depth)


PLAIN = [
    body(),
    body({"role": "system", "content": "é \\ \n 😀"}, {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}),
    body(USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c", "content": "[[["}),
    body(temperature=0.5, stream=True, stream_options={"include_usage": True}, n=2, top_k=40, user="u", stop=["a"]),
    body(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}}, parallel_tool_calls=False),
    body(tools=[TOOL], tool_choice="none", response_format={"type": "json_object"}, logit_bias={"1": 2}),
    body(tools=None, metadata={"tools": "a"}, reasoning_effort="low"),
]  # fmt: skip


@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_request_is_read_as_any_other(text: bytes) -> None:
    quick, whole = outline_of(text), outline_of_any(written_here(text))

    assert quick is not None
    for name in ChatOutline.__struct_fields__:
        if name not in ("messages", "response_format"):
            assert getattr(quick, name) == getattr(whole, name)
    assert [(it.role, bool(it.content), it.tool_call_id) for it in quick.messages] == [
        (it.role, bool(it.content), it.tool_call_id) for it in whole.messages
    ]


@pytest.mark.parametrize(
    "text",
    [
        body({**USER, "cache_control": {"type": "ephemeral"}}),
        body({**USER, "content": [{"type": "file", "file": {"file_id": "f"}}]}),
        body({**USER, "content": 3}),
        body({"role": "user"}, functions=[{"name": "f"}]),
        body(x="é"),
        body(x="\\u00e9"),
        body(x=[[[]]] * 60),
        body(temperature="hot"),
        body(response_format="json"),
        body(tools=[{"type": "function"}]),
        body(tools={}),
        body().replace(b"hi", b"\xff"),
        body(tools=[TOOL]).replace(b'{"type":"object"}', b"[" * 98 + b"]" * 98),
        b'{"messages":[{"role":"user","content":"hi"}]}',
        b'{"model":"m","input":"hi"}',
    ],
)
def test_what_is_not_plain_is_left_to_the_other_reader(text: bytes) -> None:
    assert outline_of(text) is None


def test_a_limit_on_depth_holds_in_every_field_of_a_request() -> None:
    for deep in (b'"x":%b', b'"tools":[%b]', b'"metadata":{"a":%b}', b'"response_format":{"a":%b}'):
        text = b'{"model":"m","messages":[{"role":"user","content":"hi"}],' + deep % (b"[" * 20 + b"]" * 20) + b"}"
        with pytest.raises(ChatError, match="nested deeper than 10 levels"):
            read_chat_request(written_here(text), {}, 100, 10)


def test_tools_are_known_again_by_every_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = room._SeenTools()
    read: list[bytes] = []
    right = room._right_tools

    def read_down(raw: msgspec.Raw, depth: int) -> Any:
        read.append(bytes(raw))
        return right(raw, depth)

    monkeypatch.setattr(room, "_right_tools", read_down)

    def names(text: bytes, depth: int = 100) -> list[str]:
        listed = seen.read(msgspec.Raw(text), depth).listed
        return [tool.function.name for tool in listed or () if tool.function is not None]

    one = msgspec.json.encode([TOOL, {**TOOL, "x": "y" * 100}])
    other = one.replace(b'"name":"f"', b'"name":"g"')
    assert names(one) == names(one) == ["f", "f"]
    assert names(other) == ["g", "g"]
    assert names(one) == ["f", "f"]
    assert names(one, 50) == ["f", "f"]
    assert read == [one, other, one, one]


def test_only_so_much_is_remembered_of_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = room._SeenTools()
    monkeypatch.setattr(room, "TOOLS_BYTES", 10_000)
    monkeypatch.setattr(room, "ONE_TOOLS_BYTES", 5_000)

    for size in (1000, 4000, 4000, 4000, 6000, 100):
        seen.read(msgspec.Raw(msgspec.json.encode([{**TOOL, "x": "y" * size}])), 100)

    assert 4000 < seen._size < 10_000
    assert sum(len(tools.text) for tools in seen._seen.values()) == seen._size
    assert {bytes(text) for text in seen._by_ending.values()} <= {bytes(tools.text) for tools in seen._seen.values()}


def test_tools_that_are_wrong_are_not_remembered_as_right() -> None:
    text = body(tools=[{"type": "function", "function": {"name": ""}}])
    for _ in range(2):
        with pytest.raises(ChatError) as caught:
            read_chat_request(written_here(text), {}, 100)
        assert caught.value.param == "tools[0].function"


def test_tools_that_are_known_are_not_parsed_again_behind_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = [{**TOOL, "x": f'"}}],{number}' * 100} for number in range(9)]
    parsed: list[bytes] = []

    def split_and_note(text: Opened, depth: int) -> Any:
        parsed.append(text)
        return split(text, depth)

    def read_again(text: bytes) -> Any:
        first = read_chat_request(written_here(text), {}, 100)
        with monkeypatch.context() as patched:
            patched.setattr(requests, "split", split_and_note)
            again = read_chat_request(written_here(text), {}, 100)
        assert again.fields == first.fields
        assert again.outline == first.outline
        return again

    assert read_again(body(tools=tools)).outline.has_functions_only
    assert not read_again(body(tools=[*tools, {"type": "web_search", "x": "y"}])).outline.has_functions_only
    assert not parsed
    wrong = body(tools=tools)[:-1] + b',"tools":[]}'
    with pytest.raises(ChatError, match="more than once"):
        read_again(wrong)
    with pytest.raises(ChatError, match="more than once"):
        read_chat_request(written_here(b'{"tools":[],' + body(tools=tools)[1:]), {}, 100)
    read_again(body(tools=tools, user="u"))
    assert parsed == [body(tools=tools, user="u")]


LONG = {"role": "user", "content": 'x"]},"messages":[{' * 300}


@pytest.mark.parametrize(
    "text",
    [
        body(USER, LONG),
        body(LONG, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {**USER, "content": [{"type": "text", "text": "]"}]}),
        msgspec.json.encode({"messages": [LONG, USER], "model": "m", "temperature": 1}),
        msgspec.json.encode({"messages": [LONG, USER], "model": "m", "metadata": {"tools": "a"}}),
        json.dumps({"model": "m", "n": 1, "messages": [LONG, USER]}).encode() + b" \n",
        json.dumps({"messages": [LONG, USER], "model": "m", "user": "u"}).encode(),
    ],
)  # fmt: skip
def test_a_body_that_is_mostly_messages_is_split_around_them(text: bytes) -> None:
    around, usual = split_fast(written_here(text)), split(written_here(text), 100)

    assert around is not None
    assert {name: bytes(value) for name, value in around.items()} == {
        name: bytes(value) for name, value in usual.items()
    }
    assert read_chat_request(written_here(text), {}, 100).fields.keys() == usual.keys()


@pytest.mark.parametrize(
    "more",
    [
        b',"messages":[{"role":"user","content":"other"}]',
        b',"model":"other"',
        b',"\\u006dessages":[{"role":"user","content":"other"}]',
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_duplicate_keys_around_messages_are_found(more: bytes, first: bool) -> None:
    given = {"messages": [LONG], "model": "m"} if first else {"model": "m", "messages": [LONG]}
    text = msgspec.json.encode(given)
    with pytest.raises(ChatError) as caught:
        read_chat_request(written_here(text[:-1] + more + b"}"), {}, 100)
    assert caught.value.code == "duplicate_parameter"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "tail", [b'],"x":[1', b']]"x":[', b"],", b'],"tools":[{"type":"function","function":{"name":"f"}}', b"]}{["]
)
def test_messages_that_are_not_where_they_seem_to_be_are_read_as_ever(first: bool, tail: bytes) -> None:
    given = {"messages": [LONG], "model": "m"} if first else {"model": "m", "messages": [LONG]}
    text = msgspec.json.encode(given)
    place = text.rindex(b"}]") + 1
    text = text[:place] + tail + text[place:]
    try:
        wanted = json.loads(text)
    except ValueError:
        with pytest.raises(ChatError):
            read_chat_request(written_here(text), {}, 100)
    else:
        request = read_chat_request(written_here(text), {}, 100)
        assert {name: json.loads(bytes(value)) for name, value in request.fields.items()} == wanted
