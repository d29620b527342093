from typing import Any

import msgspec
import pytest

from callgate.conversation.errors import ChatError
from callgate.conversation.ports import ModelRequest
from callgate.conversation.request_checks import check_request


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def calling(*ids: str) -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": "add", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def answer(id: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": "3"}


def part(kind: Any, **fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "look"}, {"type": kind, **fields}]}]


def model_request(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelRequest:
    raw = [msgspec.Raw(msgspec.json.encode(each)) for each in (*messages, *tools)]
    return ModelRequest(raw[: len(messages)], raw[len(messages) :])


HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
CALLED = [*HI, calling("a", "b")]
FUNCTION = "tools[1].function"


@pytest.mark.parametrize(
    ("param", "second"),
    [
        (f"{FUNCTION}.name", tool("fs/write")),
        (f"{FUNCTION}.name", tool("x" * 65)),
        (f"{FUNCTION}.name", tool("add\n")),
        (f"{FUNCTION}.name", tool("höhe")),
        (f"{FUNCTION}.name", tool("first")),
        ("tools[1].custom.name", {"type": "custom", "custom": {"name": "first"}}),
        (f"{FUNCTION}.parameters", tool("add", parameters=[])),
        (f"{FUNCTION}.parameters", tool("add", parameters=True)),
        (f"{FUNCTION}.parameters.type", tool("add", parameters={"type": "string"})),
        (f"{FUNCTION}.parameters.type", tool("add", parameters={"type": None})),
        (f"{FUNCTION}.parameters.properties", tool("add", parameters={"type": "object", "properties": ["a"]})),
        (f"{FUNCTION}.parameters.properties.a", tool("add", parameters={"properties": {"a": "string"}})),
        (f"{FUNCTION}.parameters.required", tool("add", parameters={"type": "object", "required": "a"})),
        (f"{FUNCTION}.parameters.required", tool("add", parameters={"type": "object", "required": [1]})),
    ],
)
def test_a_tool_that_no_provider_would_take_is_refused_by_its_place(param, second):
    with pytest.raises(ChatError) as caught:
        check_request(model_request(HI, [tool("first"), second]))
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("param", "messages"),
    [
        ("messages[1].tool_call_id", [*HI, answer("a")]),
        ("messages[1].tool_call_id", [*HI, {"role": "tool", "content": "3"}]),
        ("messages[2].tool_call_id", [*CALLED, answer("")]),
        ("messages[2].tool_call_id", [*CALLED, answer(7)]),
        ("messages[3].tool_call_id", [*CALLED, answer("a"), answer("c"), answer("b")]),
        ("messages[5].tool_call_id", [*CALLED, answer("a"), answer("b"), *HI, answer("a")]),
        ("messages[1].tool_calls", CALLED),
        ("messages[1].tool_calls", [*CALLED, answer("a")]),
        ("messages[1].tool_calls", [*CALLED, answer("a"), *HI]),
        ("messages[1].tool_calls", [*CALLED, calling("c"), answer("c")]),
        ("messages[0].content[1].type", part("hologram")),
        ("messages[0].content[1].type", part(["text"])),
        ("messages[0].content[1].text", part("text")),
        ("messages[0].content[1].text", part("text", text={"a": 1})),
        ("messages[0].content[1].image_url", part("image_url")),
        ("messages[0].content[1].image_url", part("image_url", image_url=[])),
        ("messages[0].content[1].image_url.url", part("image_url", image_url={})),
        ("messages[0].content[1].input_audio.data", part("input_audio", input_audio={"format": "wav"})),
        ("messages[0].content[1].file", part("file", file="x")),
    ],
)
def test_a_history_that_no_provider_would_take_is_refused_by_its_place(param, messages):
    with pytest.raises(ChatError) as caught:
        check_request(model_request(messages, []))
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        ([*CALLED, answer("b"), answer("a"), *HI, calling("a"), answer("a")], [tool("add"), tool("Add")]),
        ([*CALLED, answer("a"), answer("b"), {"role": "assistant", "content": "3", "tool_calls": None}], []),
        (part("image_url", image_url={"url": "data:,"}), [tool("x" * 64, parameters=None)]),
        (part("file", file={"file_id": "f"}), [tool("a-b_C1", parameters={"type": "object"})]),
        (HI, [tool("add", parameters={}), {"type": "web_search"}, {"type": "web_search"}]),
        (HI, [tool("add", parameters={"properties": {"a": True}, "required": ["a"]})]),
    ],
)
def test_what_providers_take_is_taken(messages, tools):
    check_request(model_request(messages, tools))


def test_a_translation_that_renames_tools_takes_any_name_but_none_twice():
    check_request(model_request(HI, [tool("fs/write")]), plain_names=False)
    with pytest.raises(ChatError, match="another tool"):
        check_request(model_request(HI, [tool("fs/write"), tool("fs/write")]), plain_names=False)
