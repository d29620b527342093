"""Calls that come back are found by their ids, whole, and never more of them than a request may have."""

import pytest

from callgate.calls.states import ReadyCall
from callgate.conversation.errors import ChatError
from callgate.hosted.returned import key_in, key_of, returned_call
from callgate.state.conversations import Conversations
from callgate.state.local.memory import MemoryStore

RUN = "run_" + "0123456789ab" * 2
CALL = ReadyCall("call_1", "find", {"query": "x"}, '{"query":"x"}')


def item_id(call_id: str = CALL.id) -> str:
    return f"ws_{key_of(RUN, call_id)[:24]}0003{key_of(RUN, call_id)[24:]}"


def test_an_id_of_ours_says_what_the_call_is_kept_under() -> None:
    assert key_in(item_id()) == key_of(RUN, CALL.id)
    assert key_in(f"srvtoolu_callgate_{key_of(RUN, CALL.id)}") == key_of(RUN, CALL.id)


@pytest.mark.parametrize("id", [None, 5, "", "ws_1", "ws_" + "0" * 64, "srvtoolu_01abc", "mcp_" + "0" * 28])
def test_other_ids_say_nothing(id: object) -> None:
    assert key_in(id) == ""


@pytest.mark.anyio
async def test_what_comes_back_is_filled_and_may_not_come_to_more_than_a_request() -> None:
    conversations = Conversations(MemoryStore(entries=100, bytes=1_000_000), 60.0, lambda: "call_new")
    await conversations.keep_call("key a", RUN, CALL, "x" * 1000)
    call, answer, returned = returned_call(item_id(), "web_search", {}, "less")
    await conversations.fill("key b", [returned], 10_000)
    assert answer["content"] == "less"
    await conversations.fill("key a", [returned], 10_000)
    assert (call["function"]["name"], answer["content"]) == ("find", "x" * 1000)
    with pytest.raises(ChatError) as caught:
        await conversations.fill("key a", [returned] * 20, 10_000)
    assert caught.value.status == 413
