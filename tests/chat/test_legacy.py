"""Requests from before there were tools, in today's words."""

from typing import Any

import msgspec
import pytest

from callgate.api.chat_request import ChatRequest
from callgate.chat import legacy
from callgate.chat.requests import read_chat_request
from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import written_here

FUNCTION = {"name": "f", "description": "Does.", "parameters": {"type": "object"}}
USER = {"role": "user", "content": "hi"}


def chat_request(**fields: Any) -> ChatRequest:
    return read_chat_request(written_here(msgspec.json.encode({"model": "m", "messages": [USER], **fields})), {}, 100)


def decoded_messages(messages: Any) -> list[Any]:
    return [msgspec.json.decode(message) for message in messages]


def test_functions_become_tools_and_the_body_itself_stays_as_it_came() -> None:
    request = chat_request(functions=[FUNCTION], function_call="auto")
    assert decoded_messages(request.read_tools()) == [{"type": "function", "function": FUNCTION}]
    assert request.tools.choice == "auto"
    assert request.delivery.rename_calls is not None
    assert request.fields.keys() == {"model", "messages", "functions", "function_call"}
    assert "functions" not in request.other_fields()


@pytest.mark.parametrize(
    ("given", "choice"),
    [("none", "none"), ({"name": "f"}, {"type": "function", "function": {"name": "f"}}), (None, None)],
)
def test_a_choice_keeps_its_meaning(given: Any, choice: Any) -> None:
    assert chat_request(functions=[FUNCTION], function_call=given).tools.choice == choice


def test_calls_and_their_results_get_ids_that_belong_together() -> None:
    said = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    result = {"role": "function", "name": "f", "content": "1"}
    messages = decoded_messages(
        chat_request(functions=[FUNCTION], messages=[USER, said, result, said, result]).read_history()
    )
    ids = [message["tool_calls"][0]["id"] for message in messages if message["role"] == "assistant"]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == ids
    assert len(set(ids)) == 2
    assert messages[0] == USER


def test_an_id_follows_from_everything_before_it_and_from_nothing_else() -> None:
    raw = [msgspec.Raw(b'{"role":"user","content":"hi"}')]
    spaced = [msgspec.Raw(b'{ "content": "hi", "role": "user", "name": "x" }')]
    first = legacy.call_id(raw, "f", "{}")
    assert legacy.call_id(spaced, "f", "{}") == legacy.call_id([USER], "f", "{}") == first
    assert (
        len({first, legacy.call_id([], "f", "{}"), legacy.call_id(raw, "g", "{}"), legacy.call_id(raw, "f", "{ }")})
        == 4
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"functions": "f"},
        {"functions": [7]},
        {"functions": [{}]},
        {"functions": [FUNCTION], "function_call": "always"},
        {"functions": [FUNCTION], "function_call": {}},
    ],
)
def test_what_is_wrong_is_a_400(fields: dict[str, Any]) -> None:
    with pytest.raises(ChatError) as caught:
        chat_request(**fields)
    assert caught.value.status == 400


def test_a_number_that_no_double_can_hold_is_the_clients_mistake():
    body = b'{"model": "m", "messages": [{"role": "user", "content": "x", "odd": 1e999}], "functions": [{"name": "f"}]}'
    with pytest.raises(ChatError, match="out of range") as caught:
        read_chat_request(written_here(body), {}, 50)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
