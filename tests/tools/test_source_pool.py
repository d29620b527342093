import asyncio

import pytest

from callgate.tools.registry import Registry
from callgate.tools.source_pool import SourcePool
from tests.fakes import EchoTool, FakeSource, tool

pytestmark = pytest.mark.anyio


def a_source() -> FakeSource:
    return FakeSource(tool("read", EchoTool()), name="files")


def state(source: FakeSource) -> str:
    return source.state


def registry_with(pool: SourcePool, source: FakeSource, identity: str) -> Registry:
    registry = Registry(pool=pool)
    registry.add_source(source, identity=identity)
    return registry


async def test_a_source_that_is_open_is_handed_over_and_closed_by_the_last_who_had_it():
    pool = SourcePool()
    first, second = a_source(), a_source()
    old = registry_with(pool, first, "files:1")
    assert old.handed_over() == ()
    await old.open()
    new = registry_with(pool, second, "files:1")
    assert new.handed_over() == ("files",)
    await new.open()
    assert (state(first), state(second)) == ("open", "new")
    assert [each.name for each in new.tools()] == ["read"]
    await old.close()
    assert state(first) == "open"
    await new.close()
    assert state(first) == "closed"
    assert len(pool) == 0


async def test_a_source_made_from_other_settings_is_another():
    pool = SourcePool()
    first, second = a_source(), a_source()
    old, new = registry_with(pool, first, "files:1"), registry_with(pool, second, "files:2")
    await old.open()
    await new.open()
    assert (state(first), state(second)) == ("open", "open")
    await old.close()
    assert (state(first), state(second)) == ("closed", "open")
    await new.close()


async def test_a_registry_that_was_never_opened_takes_nothing_with_it():
    pool = SourcePool()
    source = a_source()
    old = registry_with(pool, source, "files:1")
    await old.open()
    abandoned = registry_with(pool, a_source(), "files:1")
    await abandoned.close()
    assert state(source) == "open"
    await old.close()
    assert state(source) == "closed"


async def test_closing_twice_gives_back_once():
    pool = SourcePool()
    source = a_source()
    old, new = registry_with(pool, source, "files:1"), registry_with(pool, a_source(), "files:1")
    await old.open()
    await new.open()
    await old.close()
    await old.close()
    assert state(source) == "open"
    await new.close()


async def test_one_that_is_just_closing_is_not_handed_over():
    pool = SourcePool()
    first, second = a_source(), a_source()
    old = registry_with(pool, first, "files:1")
    await old.open()
    closing = asyncio.create_task(old.close())
    async with asyncio.timeout(30):
        while len(pool):  # noqa: ASYNC110 - the pool emits no event
            await asyncio.sleep(0)  # until the pool no longer has it; closing it takes a few turns of the loop more
    new = registry_with(pool, second, "files:1")
    await new.open()
    await closing
    assert (state(first), state(second)) == ("closed", "open")
    await new.close()
