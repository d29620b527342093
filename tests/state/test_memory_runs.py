"""Runs that are kept in memory alone."""

import pytest

from callgate.state.local.memory_runs import MemoryRunLedger
from callgate.state.runs import NewRun, StoredRun

pytestmark = pytest.mark.anyio


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def begun(ledger: MemoryRunLedger, id: str, key: str | None) -> StoredRun:
    return await ledger.begin(
        NewRun(
            id=id,
            caller="alice",
            key_digest=key,
            request_digest=b"d",
            face="ChatFace",
            request=b"asked",
            background=False,
        )
    )


async def test_a_key_that_comes_again_gets_the_run_that_has_it_and_its_answer() -> None:
    ledger = MemoryRunLedger(entries=10, bytes=1000)
    first = await begun(ledger, "run_1", "key")
    assert (await begun(ledger, "run_2", "key")).id == "run_1"
    assert (await begun(ledger, "run_3", None)).id == "run_3"
    await ledger.finish(first, "done", b"answer")
    again = await begun(ledger, "run_4", "key")
    assert (again.id, again.state, again.answer, again.request) == ("run_1", "done", b"answer", b"")


async def test_a_run_that_is_forgotten_frees_its_key() -> None:
    ledger = MemoryRunLedger(entries=10, bytes=1000)
    await ledger.forget(await begun(ledger, "run_1", "key"))
    assert await ledger.find("run_1") is None
    assert (await begun(ledger, "run_2", "key")).id == "run_2"


async def test_answers_are_bounded_in_bytes_and_entries_the_oldest_are_forgotten_and_running_ones_are_not() -> None:
    ledger = MemoryRunLedger(entries=3, bytes=100)
    running = await begun(ledger, "run_0", "key_0")
    for number in range(1, 6):
        await ledger.finish(await begun(ledger, f"run_{number}", f"key_{number}"), "done", b"x" * 10)
    assert [await ledger.find(f"run_{number}") is not None for number in range(6)] == [
        True,
        False,
        False,
        True,
        True,
        True,
    ]
    await ledger.finish(await begun(ledger, "run_6", "key_6"), "done", b"x" * 95)
    assert [await ledger.find(f"run_{number}") is not None for number in range(7)] == [True] + [False] * 5 + [True]
    assert (await begun(ledger, "run_7", "key_1")).id == "run_7", "its key is free again"
    assert (await begun(ledger, "run_8", "key_0")).id == running.id


async def test_answers_are_kept_for_so_long_and_no_longer() -> None:
    clock = Clock()
    ledger = MemoryRunLedger(entries=10, bytes=1000, clock=clock)
    await ledger.finish(await begun(ledger, "run_1", "one"), "done", b"1")
    clock.now += 60
    await ledger.finish(await begun(ledger, "run_2", "two"), "done", b"2")
    clock.now += 50
    await ledger.prune(100)
    assert (await ledger.find("run_1"), await ledger.find("run_2") is not None) == (None, True)
