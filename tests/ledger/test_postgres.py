"""The ledger in Postgres where Postgres fails: nothing that may write is begun, and nothing of an end is lost."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from callgate.ledger.database import DatabaseAway
from callgate.ledger.entry import LedgerEntry, NotRecorded, RunState
from tests.harness.needs import needs
from tests.harness.postgres import PostgresServer, postgres_server

pytestmark = [pytest.mark.anyio, needs("postgres", "module:asyncpg")]


def entry(call_id: str, *, writes: bool = True) -> LedgerEntry:
    return LedgerEntry("run_1", 0, call_id, "pay", "00", "alice", writes, 1e12)


@contextlib.asynccontextmanager
async def opened(url: str, schema: str, **options: Any) -> AsyncIterator[Any]:
    from callgate.ledger.postgres import migrate
    from callgate.ledger.shared import open_ledger

    await migrate(url, schema)
    ledger = await open_ledger(
        url=url, schema=schema, dead_after=options.get("dead_after", 5.0), on_lost=lambda _: None
    )
    try:
        yield ledger
    finally:
        await ledger.close()


async def until(ledger: Any, expected: dict[str, str]) -> None:
    async with asyncio.timeout(15):
        while dict(await ledger.database.fetch("SELECT call_id, state FROM calls")) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_while_the_server_is_away_nothing_that_may_write_begins_and_ends_are_kept_for_it(schema: str) -> None:
    with postgres_server() as server:
        async with opened(server.url, schema) as ledger:
            before = entry("before")
            await ledger.calls.start(before)
            await asyncio.to_thread(server.stop)
            with pytest.raises(NotRecorded, match="Postgres"):
                await ledger.calls.start(entry("refused"))
            ledger.calls.end(before, RunState.DONE)
            with pytest.raises(DatabaseAway):
                await ledger.database.fetch("SELECT 1")
            await asyncio.to_thread(server.start, "fsync=off")
            await until(ledger, {"before": "done"})


async def test_after_the_server_was_away_nobody_is_dead_whom_there_was_no_time_to_hear(schema: str) -> None:
    with postgres_server() as server:
        async with opened(server.url, schema, dead_after=1.0) as ledger:
            await ledger.calls.start(entry("of_another"))
            await ledger.database.fetch("UPDATE calls SET process = 'other'")
            await ledger.database.fetch("INSERT INTO processes VALUES ('other', 'proxy', '', {now})")
            presence = ledger.presence
            async with asyncio.timeout(15):
                while presence.silence != presence.dead_after:  # noqa: ASYNC110 - it beats when it beats
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(server.stop)
                while not presence.is_away:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                stopped = time.time()
                await asyncio.sleep(presence.dead_after)  # in which nobody can be heard
                await asyncio.to_thread(server.start, "fsync=off")
                # Just as this process, the other was seen last before.
                await ledger.database.fetch("UPDATE processes SET seen_at = ?1 WHERE name = 'other'", stopped - 0.5)
                while presence.is_away:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert presence.silence > 2 * presence.dead_after
            assert await ledger.database.fetch("SELECT state FROM calls") == [("started",)]
            await until(ledger, {"of_another": "unknown"})


async def test_a_process_that_waits_for_all_its_connections_says_that_it_lives(
    postgres: PostgresServer, schema: str
) -> None:
    import asyncpg

    async with opened(postgres.url, schema, dead_after=1.0) as ledger:
        waiting = [asyncio.create_task(ledger.database.fetch("SELECT pg_sleep(0.7)")) for _ in range(24)]
        connection = await asyncpg.connect(postgres.url)
        longest = 0.0
        while not all(task.done() for task in waiting):
            age = "SELECT EXTRACT(EPOCH FROM clock_timestamp()) - min(seen_at) FROM"
            longest = max(longest, float(await connection.fetchval(f"{age} {schema}.processes")))
            await asyncio.sleep(0.02)
        await connection.close()
        assert longest < 1.0


async def test_a_server_that_takes_no_writes_refuses_them_in_words(postgres: PostgresServer, schema: str) -> None:
    async with opened(postgres.url, schema) as ledger:
        await ledger.calls.start(entry("before"))
        role = await ledger.database.fetch("SELECT current_database()")
        await ledger.database.fetch(f"ALTER DATABASE {role[0][0]} SET default_transaction_read_only = on")
        try:
            await ledger.database.pool.expire_connections()
            with pytest.raises(NotRecorded, match="read-only"):
                await ledger.calls.start(entry("refused"))
            await ledger.calls.start(entry("read", writes=False))
        finally:
            import asyncpg

            connection = await asyncpg.connect(postgres.url)
            await connection.execute("SET default_transaction_read_only = off")
            await connection.execute(f"ALTER DATABASE {role[0][0]} RESET default_transaction_read_only")
            await connection.close()
            await ledger.database.pool.expire_connections()


async def test_a_call_that_was_taken_for_lost_does_not_begin(postgres: PostgresServer, schema: str) -> None:
    async with opened(postgres.url, schema) as ledger:
        patient = entry("patient")
        ledger.calls.wait(patient)
        await until(ledger, {"patient": "waiting"})
        await ledger.database.fetch("UPDATE calls SET state = 'withdrawn', ended_at = {now}")
        with pytest.raises(NotRecorded, match="taken for dead"):
            await ledger.calls.start(patient)


async def test_a_database_without_tables_is_said_to_need_them(postgres: PostgresServer, schema: str) -> None:
    from callgate.ledger.postgres import NotMigrated, PostgresDatabase

    with pytest.raises(NotMigrated, match="callgate ledger migrate"):
        await PostgresDatabase(postgres.url, schema).open()


async def test_several_that_migrate_at_once_make_the_tables_once(postgres: PostgresServer, schema: str) -> None:
    from callgate.ledger.postgres import migrate

    made = await asyncio.gather(*(migrate(postgres.url, schema) for _ in range(4)))
    assert sorted(made) == [False, False, False, True]


async def test_whoever_died_before_the_server_went_is_known_to_be_dead_without_delay(schema: str) -> None:
    with postgres_server() as server:
        async with opened(server.url, schema, dead_after=2.0) as ledger:
            await ledger.calls.start(entry("of_another"))
            await ledger.database.fetch("UPDATE calls SET process = 'other'")
            presence = ledger.presence
            async with asyncio.timeout(15):
                while presence.silence != presence.dead_after:  # noqa: ASYNC110 - it beats when it beats
                    await asyncio.sleep(0.01)
                await ledger.database.fetch("INSERT INTO processes VALUES ('other', 'proxy', '', {now})")
                died = time.monotonic()
                await asyncio.to_thread(server.stop)
                while not presence.is_away:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(server.start, "fsync=off")
                away = time.monotonic() - died
            await until(ledger, {"of_another": "unknown"})
            assert time.monotonic() - died < presence.dead_after + away + 2.0
