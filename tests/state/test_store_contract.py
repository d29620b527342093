"""What every store promises, held against each of them; Redis is a real server of the test's own."""

import ast
import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import callgate.state
from callgate.state.cluster.ledger_store import LedgerStore
from callgate.state.cluster.redis import RedisStore
from callgate.state.local.disk import DiskStore
from callgate.state.local.memory import MemoryStore
from callgate.state.store import KeyValueStore, Share, StoreError
from tests.harness.needs import needs
from tests.harness.redis import redis_server

pytestmark = pytest.mark.anyio

LONG = 60.0


STORES = {"memory": MemoryStore, "disk": DiskStore, "redis": RedisStore, "postgres": LedgerStore}


def test_every_store_is_held_to_the_contract() -> None:
    methods = {name for name, method in vars(KeyValueStore).items() if inspect.isfunction(method) and name[0] != "_"}
    written = {
        node.name
        for file in Path(callgate.state.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
        and methods <= {method.name for method in node.body if isinstance(method, ast.AsyncFunctionDef)}
    }
    assert written - {"KeyValueStore"} == {store.__name__ for store in STORES.values()}


@pytest.fixture(
    params=[
        "memory",
        "disk",
        pytest.param("redis", marks=needs("redis-server", "module:redis")),
        pytest.param("postgres", marks=needs("postgres", "module:asyncpg")),
    ]
)
async def store(request: Any, tmp_path: Path, schema: str) -> AsyncIterator[KeyValueStore]:
    if request.param == "memory":
        yield MemoryStore(entries=100, bytes=1_000_000)
        return
    if request.param == "disk":
        (tmp_path / "ledger.sqlite3").touch()
        kept = DiskStore(tmp_path / "ledger.sqlite3")
        yield kept
        await kept.close()
        return
    if request.param == "postgres":
        from callgate.state.cluster.postgres import PostgresDatabase, migrate

        server = request.getfixturevalue("postgres")
        await migrate(server.url, schema)
        database = PostgresDatabase(server.url, schema)
        await database.open()
        yield LedgerStore(lambda: database)
        await database.close()
        return
    async with redis_server(tmp_path) as url:
        opened = RedisStore(url)
        yield opened
        await opened.close()


async def until_gone(store: KeyValueStore, key: str) -> None:
    """Time is the store's own here, and nothing can be waited on but the store."""
    async with asyncio.timeout(30):
        while await store.get(key) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_what_was_put_is_there_byte_for_byte(store: KeyValueStore) -> None:
    await store.put("a", b"\x00\xff bytes", LONG)
    assert await store.get("a") == b"\x00\xff bytes"
    assert await store.get("b") is None


async def test_a_later_value_takes_the_place_of_an_earlier_one(store: KeyValueStore) -> None:
    await store.put("a", b"1", LONG)
    await store.put("a", b"2", LONG)
    assert await store.get("a") == b"2"


async def test_adding_succeeds_only_while_the_key_is_free(store: KeyValueStore) -> None:
    assert await store.add("a", b"1", LONG)
    assert not await store.add("a", b"2", LONG)
    assert await store.get("a") == b"1"


async def test_of_many_that_add_at_once_one_succeeds(store: KeyValueStore) -> None:
    taken = await asyncio.gather(*(store.add("a", str(n).encode(), LONG) for n in range(20)))
    assert sum(taken) == 1
    assert await store.get("a") == str(taken.index(True)).encode()


async def test_what_was_deleted_is_gone_and_the_key_free(store: KeyValueStore) -> None:
    await store.put("a", b"1", LONG)
    await store.delete("a")
    await store.delete("never there")
    assert await store.get("a") is None
    assert await store.add("a", b"2", LONG)


async def test_what_has_expired_is_gone_and_the_key_free(store: KeyValueStore) -> None:
    await store.put("a", b"1", 0.001)
    await until_gone(store, "a")
    assert await store.add("a", b"2", LONG)


async def test_asking_can_renew_the_time_something_is_kept(store: KeyValueStore) -> None:
    await store.put("a", b"1", LONG)
    assert await store.get_all(["a"], renew=0.001) == [b"1"]
    await until_gone(store, "a")


async def test_many_are_asked_for_at_once_and_come_in_their_order(store: KeyValueStore) -> None:
    for key in "abc":
        await store.put(key, key.encode(), LONG)
    assert await store.get_all(["c", "x", "a"], renew=LONG) == [b"c", None, b"a"]
    assert await store.get_all([], renew=LONG) == []


async def test_large_values_come_back_whole(store: KeyValueStore) -> None:
    value = bytes(range(256)) * 2000
    await store.put("a", value, LONG)
    assert await store.get("a") == value


async def test_many_small_entries_keep_to_the_size_of_their_share(store: KeyValueStore, request: Any) -> None:
    share = Share("small", 5_000)
    for n in range(200):
        await store.put(f"key{n}", b"x" * 96, LONG, share)
    there = [n for n in range(200) if await store.get(f"key{n}") is not None]
    assert there == list(range(there[0], 200)), "the oldest went"
    assert 40 <= len(there) <= 52


# Each of them -----------------------------------------------------------------------------------------------------


async def test_memory_forgets_what_was_not_touched_for_longest() -> None:
    store = MemoryStore(entries=2, bytes=1000)
    for key in ("a", "b"):
        await store.put(key, b"1", LONG)
    await store.get_all(["a"], renew=LONG)
    await store.put("c", b"1", LONG)
    assert [await store.get(key) for key in "abc"] == [b"1", None, b"1"]


async def test_memory_is_bounded_in_bytes_and_counts_them_right() -> None:
    store = MemoryStore(entries=100, bytes=30)
    for n in range(10):
        await store.put(f"key{n}", b"123456", LONG)
    assert (len(store), store.size) == (3, 30)
    await store.put("key9", b"1", LONG)
    assert store.size == 25
    await store.put("huge", b"1" * 31, LONG)
    assert await store.get("huge") is None
    assert store.size == 25


async def test_memory_expires_by_its_clock() -> None:
    now = 0.0
    store = MemoryStore(entries=10, bytes=1000, clock=lambda: now)
    await store.put("a", b"1", 10)
    now = 9.9
    assert await store.get_all(["a"], renew=10) == [b"1"]
    now = 19.8
    assert await store.get("a") == b"1"
    now = 19.9
    assert await store.get("a") is None
    assert store.size == 0


@needs("module:redis")
async def test_a_redis_that_cannot_be_reached_is_an_error_of_ours() -> None:
    store = RedisStore("redis://127.0.0.1:1")
    with pytest.raises(StoreError, match="Redis"):
        await store.get("a")
    await store.close()


@needs("redis-server", "module:redis")
async def test_a_redis_that_went_away_and_came_back_is_used_again(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(redis_server(tmp_path))
        store = RedisStore(url)
        await store.put("a", b"1", LONG)
        await stack.aclose()
        with pytest.raises(StoreError):
            await store.get("a")
        port = int(url.rpartition(":")[2])
        async with redis_server(tmp_path, port=port):
            await store.put("a", b"2", LONG)
            assert await store.get("a") == b"2"
        await store.close()


@needs("redis-server", "module:redis")
async def test_two_prefixes_in_one_redis_do_not_see_each_other(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as url:
        one, other = RedisStore(url, "one:"), RedisStore(url, "other:")
        await one.put("a", b"1", LONG)
        assert await other.get("a") is None
        await one.close()
        await other.close()


A, B = Share("a", 1000), Share("b", 1000)


async def keys_of(store: KeyValueStore, keys: list[str]) -> list[str]:
    return [key for key in keys if await store.get(key) is not None]


async def test_over_its_share_the_oldest_entries_of_an_owner_go_and_no_others(store: KeyValueStore) -> None:
    await store.put("of_b", b"x" * 900, LONG, B)
    await store.put("of_nobody", b"x" * 900, LONG)
    for key in "1234":
        await store.put(key, b"x" * 400, LONG, A)
    assert await keys_of(store, ["of_b", "of_nobody", *"1234"]) == ["of_b", "of_nobody", "3", "4"]
    await store.put("5", b"x" * 900, LONG, A)
    assert await keys_of(store, ["of_b", *"12345"]) == ["of_b", "5"]


async def test_what_is_added_counts_in_its_share_and_each_entry_beside_its_bytes(store: KeyValueStore) -> None:
    share = Share("a", 1000, per_entry=400)
    for key in "123":
        assert await store.add(key, b"x", LONG, share)
    assert not await store.add("3", b"y", LONG, share)
    assert await keys_of(store, list("123")) == ["2", "3"]
    await store.put("of_nobody", b"x", LONG)
    assert not await store.add("of_nobody", b"y", LONG, share)
    assert await store.get("3") == b"x"


async def test_what_is_put_again_or_deleted_counts_once_or_no_more(store: KeyValueStore) -> None:
    for _ in range(5):
        await store.put("1", b"x" * 400, LONG, A)
    await store.put("2", b"x" * 400, LONG, A)
    assert await keys_of(store, ["1", "2"]) == ["1", "2"]
    await store.delete("1", A)
    assert await store.get("1") is None
    await store.put("3", b"x" * 400, LONG, A)
    assert await keys_of(store, ["1", "2", "3"]) == ["2", "3"]
    await store.put("2", b"x" * 500, LONG, A)  # the latest now
    await store.put("4", b"x" * 400, LONG, A)
    assert await keys_of(store, ["2", "3", "4"]) == ["2", "4"]


async def test_many_that_are_put_into_a_share_at_once_keep_to_it(store: KeyValueStore) -> None:
    keys = [f"{number:02}" for number in range(40)]
    await asyncio.gather(*(store.put(key, b"x" * 98, LONG, A) for key in keys))
    assert len(await keys_of(store, keys)) == 10


@needs("redis-server", "module:redis")
async def test_what_redis_let_expire_counts_no_more(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as url:
        store = RedisStore(url)
        await store.put("1", b"x" * 900, 0.05, A)
        await until_gone(store, "1")
        await store.put("2", b"x" * 400, 0.05, A)
        await store.put("3", b"x" * 400, LONG, A)
        assert await store.get("3") is not None
        sizes = await store._client.hgetall("callgate:share_sizes:a")
        assert int(sizes[b""]) <= 1000
        await store.close()


@needs("redis-server", "module:redis")
async def test_sizes_that_redis_keeps_longer_than_their_order_count_no_more(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as url:
        store = RedisStore(url)
        await store.put("1", b"x" * 900, LONG, A)
        await store._client.delete("callgate:1", "callgate:share:a")
        await store.put("2", b"x" * 400, LONG, A)
        await store.put("3", b"x" * 400, LONG, A)
        assert await keys_of(store, ["2", "3"]) == ["2", "3"]
        await store.close()


async def test_full_memory_drops_the_oldest_of_the_owner_with_most() -> None:
    by_bytes, by_entries = MemoryStore(entries=100, bytes=1500), MemoryStore(entries=5, bytes=10_000)
    for store, size in ((by_bytes, 290), (by_entries, 10)):
        await store.put("of_b", b"x" * size, LONG, B)
        await store.add("decided", b"1", LONG)
        for key in "12345":
            await store.put(key, b"x" * size, LONG, Share("a", 100_000))
        kept = await keys_of(store, ["of_b", "decided", *"12345"])
        assert kept[:2] == ["of_b", "decided"]
        assert kept[-1] == "5"
        assert "1" not in kept
    assert by_bytes.size <= 1500
    assert len(by_entries) == 5
