"""Bodies of the Responses API that were sent to chat completions are rewritten as chats, or refused by the field."""

from typing import Any

import msgspec
import pytest

from callgate.api.chat_request import ChatRequest
from callgate.chat.requests import read_chat_request
from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import written_here


def chat_request(**fields: Any) -> ChatRequest:
    return read_chat_request(written_here(msgspec.json.encode({"model": "m", **fields})), {}, 100)


def messages_of(**fields: Any) -> list[Any]:
    request = chat_request(**fields)
    return [
        msgspec.json.decode(message)
        for message in msgspec.json.decode(request.normalized["messages"], type=list[msgspec.Raw])
    ]


def test_a_text_is_what_the_user_says() -> None:
    assert messages_of(input="hi") == [{"role": "user", "content": "hi"}]


def test_items_become_messages_and_calls_of_one_turn_one_message() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}
    given = [
        {"type": "message", "role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "look"}, image]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "b", "name": "g", "input": "ls"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
    ]
    assert messages_of(instructions="Sys.", input=given) == [
        {"role": "system", "content": "Sys."},
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "b", "type": "custom", "custom": {"name": "g", "input": "ls"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "2"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
    ]


def test_tools_and_choices_are_nested_as_chats_have_them() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: X"}
    tools = [{"type": "function", "name": "f", "parameters": {}}, {"type": "custom", "name": "g", "format": grammar}]
    request = chat_request(input="hi", tools=tools, tool_choice={"type": "function", "name": "f"})
    assert [msgspec.json.decode(tool) for tool in request.read_tools()] == [
        {"type": "function", "function": {"name": "f", "parameters": {}}},
        {
            "type": "custom",
            "custom": {
                "name": "g",
                "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: X"}},
            },
        },
    ]
    assert request.tools.choice == {"type": "function", "function": {"name": "f"}}


def test_allowed_tools_are_known() -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    request = chat_request(input="hi", tool_choice=choice)
    assert (request.tools.allowed, request.tools.choice_among_allowed) == (frozenset({"f"}), "required")


def test_other_fields_have_their_names_of_chats() -> None:
    format = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    request = chat_request(
        input="hi",
        max_output_tokens=9,
        reasoning={"effort": "high"},
        text={"format": format},
        temperature=0.5,
        store=True,
    )
    params = {name: msgspec.json.decode(value) for name, value in request.other_fields().items()}
    assert params == {
        "max_completion_tokens": 9,
        "reasoning_effort": "high",
        "temperature": 0.5,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
    }
    assert "input" not in request.fields, "what is passed through is a chat as well"
    assert "messages" in request.fields


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": 7}, "input"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content"),
        ({"input": "hi", "tools": [{"type": "file_search"}]}, "tools"),
        ({"input": []}, "messages"),
        ({"input": [7]}, "messages[0].role"),
    ],
)
def test_a_field_without_a_chat_equivalent_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ChatError) as caught:
        chat_request(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
