"""What a connection remembers of responses that are not stored."""

import msgspec
import pytest

from callgate.responses.stored import REMEMBERED, ConnectionMemory
from callgate.state.local.memory import MemoryStore
from callgate.state.responses import StoredResponse
from callgate.state.store import Share

pytestmark = pytest.mark.anyio

MOST = 100_000


def response(text: str) -> StoredResponse:
    return StoredResponse(msgspec.Raw(b"{}"), [], [{"role": "assistant", "content": text}])


def memory_of(store: MemoryStore, owner: str, name: str) -> ConnectionMemory:
    return ConnectionMemory(store, Share(owner, MOST), name, 60.0)


async def test_connections_of_one_key_remember_so_much_together() -> None:
    store = MemoryStore(1000, 10 * MOST)
    one, two, other = memory_of(store, "a", "1"), memory_of(store, "a", "2"), memory_of(store, "b", "3")
    big = response("x" * (MOST // 3))
    await other.keep("0", big)
    await one.keep("0", big)
    await one.keep("1", big)
    assert await two.find("1") is None, "one knows nothing of another's"
    await two.keep("0", big)
    assert [await one.find("0") is None, await one.find("1") is None] == [True, False]
    assert await two.find("0") is not None
    assert await other.find("0") is not None
    await one.keep("2", response("x" * MOST))
    assert await one.find("2") is None, "larger than all may be"
    for each in (one, two, other):
        await each.forget_all()
    assert (store.size, len(store)) == (0, 0)


async def test_a_connection_remembers_the_last_ones() -> None:
    store = MemoryStore(1000, MOST)
    memory = memory_of(store, "a", "1")
    for number in range(40):
        await memory.keep(str(number), response("small"))
    assert [number for number in range(40) if await memory.find(str(number))] == [*range(40 - REMEMBERED, 40)]
    assert len(store) == REMEMBERED
