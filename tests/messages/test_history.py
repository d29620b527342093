"""A history in Anthropic's words is one of a chat's, and each message of it knows where it came from."""

from typing import Any

import msgspec
import pytest

from callgate.conversation.errors import ChatError
from callgate.messages.history import OUR_SIGNATURE, History, as_chat, unsigned
from callgate.messages.request_schema import MessagesMessage

_messages = msgspec.json.Decoder(list[MessagesMessage])
CALL = {"type": "tool_use", "id": "t1", "name": "look", "input": {"q": "ä"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "x"}


def history_of(*turns: tuple[str, Any], system: str | None = None) -> History:
    messages = [{"role": role, "content": content} for role, content in turns]
    return as_chat(system, _messages.decode(msgspec.json.encode(messages)))


def test_messages_of_one_role_in_a_row_are_one_turn() -> None:
    history = history_of(
        ("user", "a"), ("user", [{"type": "text", "text": "b"}]), ("assistant", "c"), ("assistant", "d")
    )
    assert history.messages == [{"role": "user", "content": "a\n\nb"}, {"role": "assistant", "content": "cd"}]
    first, second = history.origins
    assert first is not None
    assert [(origin.message, origin.blocks) for origin in first] == [(0, None), (1, (0,))]
    assert second is not None
    assert [(origin.message, origin.blocks) for origin in second] == [(2, None), (3, None)]


def test_results_come_before_the_users_other_content_wherever_they_stand() -> None:
    said = {"type": "text", "text": "Thanks."}
    history = history_of(("user", "go"), ("assistant", [CALL]), ("user", [said, RESULT]))
    assert [message["role"] for message in history.messages] == ["user", "assistant", "tool", "user"]
    call, result, text = history.messages[1:]
    assert call["content"] is None
    assert call["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"q":"ä"}'}
    assert (result["tool_call_id"], result["content"], text["content"]) == ("t1", "x", "Thanks.")


def test_results_may_come_in_messages_of_their_own() -> None:
    other = {**CALL, "id": "t2"}
    results = [("user", [{**RESULT, "tool_use_id": "t2"}]), ("user", [RESULT])]
    history = history_of(("user", "go"), ("assistant", [CALL, other]), *results)
    assert [message.get("tool_call_id") for message in history.messages[2:]] == ["t2", "t1"]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({}, ""),
        ({"content": None}, ""),
        ({"content": []}, ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": "no", "is_error": True}, "Error: no"),
        ({"content": "Error: no", "is_error": True}, "Error: no"),
    ],
)
def test_a_result_is_a_text(result: dict[str, Any], text: str) -> None:
    answer = {"type": "tool_result", "tool_use_id": "t1", **result}
    assert history_of(("user", "go"), ("assistant", [CALL]), ("user", [answer])).messages[-1]["content"] == text


def test_signed_thinking_is_kept_byte_for_byte_and_ours_is_known_again() -> None:
    signed = {"type": "thinking", "thinking": "Hm \u2028 ä.", "signature": "c2ln+/="}
    hidden = {"type": "redacted_thinking", "data": "AAAA"}
    ours = {"type": "thinking", "thinking": "So.", "signature": unsigned("So.")}
    history = history_of(("user", "go"), ("assistant", [signed, hidden, ours, {"type": "text", "text": "Yes."}]))
    message = history.messages[-1]
    assert message["thinking_blocks"] == [signed, hidden]
    assert message["reasoning_content"] == "Hm \u2028 ä.So."
    assert history.is_altered, "it holds a signature that no provider knows"
    assert unsigned("So.").startswith(OUR_SIGNATURE)


def test_rounds_of_ours_are_messages_of_their_own_in_their_order() -> None:
    ours = {"type": "mcp_tool_use", "id": "mcptoolu_c1", "name": "add", "server_name": "x", "input": {}}
    answer = {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_c1", "is_error": False, "content": "4"}
    text = {"type": "text", "text": "Four."}
    history = history_of(("user", "go"), ("assistant", [ours, answer, text, CALL]), ("user", [RESULT]))
    assert [message["role"] for message in history.messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert (history.messages[2]["tool_call_id"], history.shown) == ("c1", {"c1"})
    assert history.origins[2] is None


def test_content_without_a_chat_equivalent_is_refused_with_its_place() -> None:
    document = {"type": "document", "source": {"type": "file", "file_id": "f"}}
    history = history_of(("user", [{"type": "text", "text": "a"}, document]))
    place = "messages.0.content.1"
    assert history.foreign == [(f"{place}.document.source", "file")]


def test_a_call_without_its_result_is_no_history() -> None:
    with pytest.raises(ChatError, match=r"messages\.1: `tool_use` ids were found without"):
        history_of(("user", "go"), ("assistant", [CALL]), ("system", "x"), ("user", [RESULT]))
