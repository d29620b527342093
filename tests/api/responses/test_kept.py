"""What a connection remembers of responses that are not stored."""

import msgspec

from callgate.api.responses.kept import REMEMBERED, REMEMBERED_BYTES, ConnectionMemory
from callgate.stores.responses import StoredResponse


def response(text: str) -> StoredResponse:
    return StoredResponse(msgspec.Raw(b"{}"), [], [{"role": "assistant", "content": text}])


def test_a_connection_remembers_the_last_ones_whatever_their_size() -> None:
    memory = ConnectionMemory()
    big = "x" * (REMEMBERED_BYTES // 4)
    for number in range(5):
        memory.keep(str(number), response(big))
    assert [memory.find(str(number)) is not None for number in range(5)] == [False, False, True, True, True]
    assert memory.size <= REMEMBERED_BYTES
    for number in range(5, 40):
        memory.keep(str(number), response("small"))
    assert [number for number in range(40) if memory.find(str(number))] == [*range(40 - REMEMBERED, 40)]
    for number in range(40):
        memory.forget(str(number))
    assert memory.size == 0


def test_one_that_is_larger_than_all_of_them_may_be_is_not_remembered() -> None:
    memory = ConnectionMemory()
    memory.keep("1", response("x" * REMEMBERED_BYTES))
    assert (memory.find("1"), memory.size) == (None, 0)
