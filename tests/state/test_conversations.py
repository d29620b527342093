"""What clients do not see is kept for each of them, under ids that are theirs alone."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from callgate.calls.states import ReadyCall
from callgate.conversation.errors import ChatError
from callgate.conversation.events import CallsHandedBack, HiddenTurns
from callgate.conversation.turn_recovery import Recovery
from callgate.state.conversations import Conversations
from callgate.state.local.disk import DiskStore
from callgate.state.local.memory import MemoryStore
from callgate.state.store import Share, StoreError
from tests.conversation.test_hidden_history import answer, assistant_message, call, decoded_messages, raw
from tests.fakes import Listener, ScriptedToolbox, counter

pytestmark = pytest.mark.anyio

MOST = 100_000
"""Bytes that may be put back into one history."""
OWN = ReadyCall("c", "echo", {}, "{}")
HIDDEN = HiddenTurns((), assistant_message(call("h", "clock"), call("c")), {"h": answer("h", "ours")}, ran=("h",))
HANDED = CallsHandedBack((OWN,), HIDDEN)


def conversations(store: Any = None) -> Conversations:
    return Conversations(MemoryStore(100, 100_000) if store is None else store, 60.0, counter("fresh"))


async def returned(kept: Conversations, caller: str, id: str = "c") -> list[Any]:
    back = [raw(assistant_message(call(id))), raw(answer(id))]
    return decoded_messages(
        await kept.with_hidden_turns(caller, back, {}, Recovery(ScriptedToolbox({"echo"}), Listener(), 64), MOST)
    )


WHOLE = [HIDDEN.assistant, answer("h", "ours"), answer("c")]
AS_IT_CAME = [assistant_message(call("c")), answer("c")]


async def test_what_was_kept_for_a_caller_is_put_back_again_and_again() -> None:
    kept = conversations()
    assert await kept.keep("alice", HANDED) == HANDED
    assert [await returned(kept, "alice") for _ in range(2)] == [WHOLE, WHOLE]
    assert await returned(kept, "bob") == AS_IT_CAME


async def test_nothing_is_kept_where_the_client_has_seen_everything() -> None:
    store = MemoryStore(100, 100_000)
    handed = CallsHandedBack((OWN,))
    assert await conversations(store).keep("alice", handed, with_hint=True) is handed
    assert len(store) == 0


async def test_a_counted_id_of_another_chat_is_not_taken_for_what_was_kept() -> None:
    kept = conversations()
    asked, other = raw({"role": "user", "content": "hi"}), raw({"role": "user", "content": "ho"})
    assert (await kept.keep("alice", HANDED, [asked])).calls[0].id == "c"
    turn = [raw(assistant_message(call("c"))), raw(answer("c"))]
    assert (
        decoded_messages(
            await kept.with_hidden_turns(
                "alice", [other, *turn], {}, Recovery(ScriptedToolbox({"echo"}), Listener(), 64), MOST
            )
        )[1:]
        == AS_IT_CAME
    )
    assert (
        decoded_messages(
            await kept.with_hidden_turns(
                "alice", [asked, *turn], {}, Recovery(ScriptedToolbox({"echo"}), Listener(), 64), MOST
            )
        )[1:]
        == WHOLE
    )


async def test_an_id_that_another_chat_has_is_replaced() -> None:
    kept = conversations()
    other = replace(HIDDEN, results={"h": answer("h", "of another chat")})
    first = await kept.keep("alice", HANDED)
    second = await kept.keep("alice", CallsHandedBack((OWN,), other))
    assert (first.calls[0].id, second.calls[0].id) == ("c", "fresh_1")
    assert (await returned(kept, "alice"))[1]["content"] == "ours"
    [assistant, ours, own] = await returned(kept, "alice", "fresh_1")
    assert ours["content"] == "of another chat"
    assert (assistant, own["tool_call_id"]) == (HIDDEN.assistant, "c")


async def test_an_id_that_the_clients_own_history_has_is_replaced() -> None:
    kept = conversations()
    earlier = [raw(assistant_message(call("c"))), raw(answer("c", "earlier"))]
    handed = await kept.keep("alice", HANDED, earlier)
    [id] = [call.id for call in handed.calls]
    back = [*earlier, raw(assistant_message(call(id))), raw(answer(id))]
    whole = decoded_messages(
        await kept.with_hidden_turns("alice", back, {}, Recovery(ScriptedToolbox({"echo"}), Listener(), 64), MOST)
    )
    assert whole == [assistant_message(call("c")), answer("c", "earlier"), *WHOLE]


async def test_the_same_chat_asked_again_keeps_its_id() -> None:
    kept = conversations()
    await kept.keep("alice", HANDED)
    assert (await kept.keep("alice", HANDED)).calls[0].id == "c"


async def test_the_first_call_carries_the_hint() -> None:
    handed = await conversations().keep("alice", HANDED, with_hint=True)
    assert handed.calls[0].extras == {"x_callgate": {"house": [[0, "h", "clock", "{}"]]}}


class BrokenStore(MemoryStore):
    """Cannot be reached."""

    def __init__(self) -> None:
        super().__init__(1, 1)

    async def get_all(self, keys: Any, *, renew: float) -> list[bytes | None]:
        raise StoreError("away")

    async def add(self, key: str, value: bytes, seconds: float, share: Share | None = None) -> bool:
        raise StoreError("away")


async def test_a_store_that_is_away_costs_what_was_not_seen_and_nothing_else() -> None:
    kept = conversations(BrokenStore())
    assert (await kept.keep("alice", HANDED)).calls == (OWN,)
    assert await returned(kept, "alice") == AS_IT_CAME


def turn_of(id: str, size: int) -> CallsHandedBack:
    result = answer("h", "x" * size)
    hidden = HiddenTurns((), assistant_message(call("h", "clock"), call(id)), {"h": result}, ran=("h",))
    return CallsHandedBack((replace(OWN, id=id),), hidden)


async def is_kept(kept: Conversations, caller: str, id: str) -> bool:
    return "xxx" in str(await returned(kept, caller, id))


@pytest.mark.parametrize("stored", ["memory", "disk"])
async def test_a_key_has_its_share_of_what_is_kept_whichever_users_it_names(stored: str, tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite3"
    file.touch()  # the ledger makes it
    store = MemoryStore(100, 1_000_000) if stored == "memory" else DiskStore(file)
    kept = Conversations(store, 60.0, counter("fresh"), owner_bytes=10_000)
    await kept.keep("key bob", turn_of("of_bob", 4000))
    for number in range(4):
        await kept.keep(f"key eve\0user {number}", turn_of(f"c{number}", 3000))
    newest_first = [(f"key eve\0user {number}", f"c{number}") for number in (3, 2, 1, 0)]  # what is gone is made again
    assert [await is_kept(kept, *caller) for caller in newest_first] == [True, True, False, False]
    assert await is_kept(kept, "key bob", "of_bob")
    await store.close()


async def test_a_turn_larger_than_the_share_of_its_key_takes_nothing_with_it() -> None:
    kept = Conversations(MemoryStore(100, 1_000_000), 60.0, counter("fresh"), owner_bytes=10_000)
    await kept.keep("key eve", turn_of("small", 3000))
    with capture_logs() as logs:
        await kept.keep("key eve", turn_of("large", 30_000))
    assert [line["event"] for line in logs] == ["conversation_not_kept"]
    assert "10000 are kept of one key" in logs[0]["error"]
    assert await is_kept(kept, "key eve", "small")


async def test_no_more_is_put_back_into_one_history_than_a_request_may_have() -> None:
    """A hundred kilobytes of a client's brought in a hundred megabytes."""
    kept = conversations(MemoryStore(100, 10 * MOST))
    back: list[msgspec.Raw] = []
    for number in range(3):
        id = f"call_{number}a9b8c7d6"
        hidden = HiddenTurns(
            (), assistant_message(call("h", "clock"), call(id)), {"h": answer("h", "x" * (MOST * 2 // 5))}, ran=("h",)
        )
        await kept.keep("alice", CallsHandedBack((replace(OWN, id=id),), hidden))
        back += [raw(assistant_message(call(id))), raw(answer(id))]

    async def whole(count: int) -> list[Any]:
        recovery = Recovery(ScriptedToolbox({"echo"}), Listener(), 64)
        return decoded_messages(await kept.with_hidden_turns("alice", back[: 2 * count], {}, recovery, MOST))

    assert len(await whole(2)) == 6
    with pytest.raises(ChatError) as refused:
        await whole(3)
    assert (refused.value.status, refused.value.code) == (413, "request_too_large")
