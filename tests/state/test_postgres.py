"""The ledger in Postgres where Postgres fails: nothing that may write is begun, and nothing of an end is lost."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate.state.database import DatabaseAway, NotMigrated
from callgate.state.entry import CallState, NotRecorded
from callgate.state.presence import NEVER
from callgate.state.tables import FLEET_COLUMNS
from tests.chaos.scale import held_to
from tests.harness.needs import needs
from tests.harness.postgres import PostgresServer, postgres_server
from tests.state.entries import entry

pytestmark = [pytest.mark.anyio, needs("postgres", "module:asyncpg")]


@contextlib.asynccontextmanager
async def opened_ledger(url: str, schema: str, **options: Any) -> AsyncIterator[Any]:
    from callgate.state.cluster.postgres import migrate
    from callgate.state.ledger import open_ledger

    await migrate(url, schema)
    ledger = await open_ledger(
        url=url, schema=schema, dead_after=options.get("dead_after", 5.0), on_lost=lambda _: None
    )
    try:
        yield ledger
    finally:
        await ledger.close()


@contextlib.asynccontextmanager
async def connected(server: PostgresServer) -> AsyncIterator[Any]:
    import asyncpg

    connection = await asyncpg.connect(server.url)
    try:
        yield connection
    finally:
        await connection.close()


async def until_not_away(ledger: Any) -> None:
    async with asyncio.timeout(30):
        while ledger.presence.is_away:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until(ledger: Any, expected: dict[str, str]) -> None:
    async with asyncio.timeout(30):
        while dict(await ledger.database.fetch("SELECT call_id, state FROM calls")) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_while_the_server_is_away_nothing_that_may_write_begins_and_ends_are_kept_for_it(schema: str) -> None:
    with postgres_server() as server:
        async with opened_ledger(server.url, schema) as ledger:
            before = entry("before")
            await ledger.calls.start(before)
            await asyncio.to_thread(server.stop)
            with pytest.raises(NotRecorded, match="Postgres"):
                await ledger.calls.start(entry("refused"))
            ledger.calls.end(before, CallState.DONE)
            with pytest.raises(DatabaseAway):
                await ledger.database.fetch("SELECT 1")
            await asyncio.to_thread(server.start, "fsync=off")
            await until(ledger, {"before": "done"})


async def test_after_an_outage_of_the_server_no_process_counts_as_dead_before_it_could_report(schema: str) -> None:
    with postgres_server() as server:
        async with opened_ledger(server.url, schema, dead_after=1.0) as ledger:
            await ledger.calls.start(entry("of_another"))
            await ledger.database.fetch("UPDATE calls SET process = 'other'")
            await ledger.database.fetch("INSERT INTO processes VALUES ('other', 'proxy', '', {now})")
            presence = ledger.presence
            async with asyncio.timeout(30):
                while presence.silence() != presence.dead_after:  # noqa: ASYNC110 - it beats when it beats
                    await asyncio.sleep(0.01)
                # Just as this process, the other was seen last before.
                await ledger.database.fetch("UPDATE processes SET seen_at = {now} WHERE name = 'other'")
                await asyncio.to_thread(server.stop)
                while not presence.is_away:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await asyncio.sleep(presence.dead_after)  # in which no process can report
                assert presence.silence() == NEVER, "whoever asks before the first beat takes nobody for dead"
                await asyncio.to_thread(server.start, "fsync=off")
                while presence.is_away:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert presence.silence() > 2 * presence.dead_after
            assert await ledger.database.fetch("SELECT state FROM calls") == [("started",)]
            await until(ledger, {"of_another": "unknown"})


async def test_a_process_that_waits_for_all_its_connections_says_that_it_lives(
    postgres: PostgresServer, schema: str
) -> None:
    import asyncpg

    async with opened_ledger(postgres.url, schema, dead_after=1.0) as ledger:
        waiting = [asyncio.create_task(ledger.database.fetch("SELECT pg_sleep(0.7)")) for _ in range(24)]
        connection = await asyncpg.connect(postgres.url)
        beats: set[float] = set()
        while not any(task.done() for task in waiting[8:]):  # which wait for connections
            beats.add(await connection.fetchval(f"SELECT min(seen_at) FROM {schema}.processes"))
            await asyncio.sleep(0.02)
        await asyncio.wait(waiting)
        await connection.close()
        assert len(beats) > 1


async def test_a_server_that_takes_no_writes_refuses_them_with_a_message(postgres: PostgresServer, schema: str) -> None:
    async with opened_ledger(postgres.url, schema) as ledger:
        await ledger.calls.start(entry("before"))
        role = await ledger.database.fetch("SELECT current_database()")
        await ledger.database.fetch(f"ALTER DATABASE {role[0][0]} SET default_transaction_read_only = on")
        try:
            ledger.database.pool.forget()
            with pytest.raises(NotRecorded, match="read-only"):
                await ledger.calls.start(entry("refused"))
            await ledger.calls.start(entry("read", writes=False))
        finally:
            import asyncpg

            connection = await asyncpg.connect(postgres.url)
            await connection.execute("SET default_transaction_read_only = off")
            await connection.execute(f"ALTER DATABASE {role[0][0]} RESET default_transaction_read_only")
            await connection.close()
            ledger.database.pool.forget()


async def test_a_call_that_was_taken_for_lost_does_not_begin(postgres: PostgresServer, schema: str) -> None:
    async with opened_ledger(postgres.url, schema) as ledger:
        patient = entry("patient")
        ledger.calls.wait(patient)
        await until(ledger, {"patient": "waiting"})
        await ledger.database.fetch("UPDATE calls SET state = 'withdrawn', ended_at = {now}")
        with pytest.raises(NotRecorded, match="taken for dead"):
            await ledger.calls.start(patient)


async def test_a_database_without_tables_is_an_error_that_says_what_to_do(
    postgres: PostgresServer, schema: str
) -> None:
    from callgate.state.cluster.postgres import PostgresDatabase

    with pytest.raises(NotMigrated, match="callgate ledger migrate"):
        await PostgresDatabase(postgres.url, schema).open()


async def test_several_that_migrate_at_once_make_the_tables_once(postgres: PostgresServer, schema: str) -> None:
    from callgate.state.cluster.postgres import migrate

    made = await asyncio.gather(*(migrate(postgres.url, schema) for _ in range(4)))
    assert sorted(made) == [False, False, False, True]


async def test_tables_of_an_older_version_get_what_they_lack_and_keep_what_they_have(
    postgres: PostgresServer, schema: str
) -> None:
    import asyncpg

    from callgate.state.cluster.postgres import PostgresDatabase, migrate

    assert await migrate(postgres.url, schema)
    async with opened_ledger(postgres.url, schema) as ledger:
        await ledger.calls.start(entry("before"))
    connection = await asyncpg.connect(postgres.url, server_settings={"search_path": schema})
    for statement in (
        "ALTER TABLE keys DROP COLUMN events",
        "ALTER TABLE keys DROP COLUMN usage",
        "ALTER TABLE keys DROP COLUMN offer",
        "ALTER TABLE calls DROP COLUMN epoch",
        "ALTER TABLE approvals DROP COLUMN reason",
        "DROP TABLE answer_parts",
        "UPDATE ledger_version SET version = 1",
    ):
        await connection.execute(statement)
    with pytest.raises(NotMigrated, match="of version 1"):
        await PostgresDatabase(postgres.url, schema).open()
    made = await asyncio.gather(*(migrate(postgres.url, schema) for _ in range(2)))
    assert sorted(made) == [False, True]
    async with opened_ledger(postgres.url, schema) as ledger:
        assert await ledger.database.fetch("SELECT call_id, epoch FROM calls") == [("before", 0)]
        assert await ledger.database.fetch("SELECT events, usage, offer FROM keys") == []
        assert await ledger.database.fetch("SELECT part FROM answer_parts") == []

    await connection.execute("INSERT INTO ledger_version VALUES (99)")
    await connection.execute("DROP TABLE answer_parts")
    with pytest.raises(NotMigrated, match="of version 99"):
        await PostgresDatabase(postgres.url, schema).open()
    with pytest.raises(NotMigrated, match="update it"):
        await migrate(postgres.url, schema)
    assert await connection.fetchval("SELECT to_regclass('answer_parts')") is None, "nothing is changed"
    await connection.close()


async def test_calls_of_pools_keep_what_is_known_of_them_where_they_had_two_rows(
    postgres: PostgresServer, schema: str
) -> None:
    import asyncpg

    from callgate.state.cluster.postgres import migrate

    await migrate(postgres.url, schema)
    async with opened_ledger(postgres.url, schema) as ledger:
        for name in ("waits", "runs", "ended", "told"):
            await ledger.calls.start(entry(name))
    connection = await asyncpg.connect(postgres.url, server_settings={"search_path": schema})
    for statement in (
        *(f"ALTER TABLE calls DROP COLUMN {column.split()[0]}" for column in FLEET_COLUMNS),
        "ALTER TABLE run_turns RENAME TO journal",
        "INSERT INTO journal VALUES ('run_1', 0, 0, 'turn')",
        (
            "CREATE TABLE fleet_calls (id TEXT PRIMARY KEY, process TEXT, pool TEXT, tool TEXT, arguments_hash TEXT, state TEXT,"
            " offered_at DOUBLE PRECISION, worker TEXT, child BIGINT, attempt TEXT, began_at DOUBLE PRECISION,"
            " ended_at DOUBLE PRECISION, note TEXT NOT NULL DEFAULT '', outcome BYTEA)"
        ),
        (
            "INSERT INTO fleet_calls (id, process, pool, arguments_hash, state, offered_at, worker, ended_at, outcome)"
            " SELECT id, 'old', 'gpu', 'hash', CASE call_id WHEN 'waits' THEN 'offered' WHEN 'runs' THEN 'running' ELSE 'done' END,"
            " 1, CASE call_id WHEN 'waits' THEN NULL ELSE 'worker' END, CASE WHEN call_id IN ('ended', 'told') THEN 2 END,"
            " CASE WHEN call_id IN ('ended', 'told') THEN 'paid'::bytea END FROM calls"
        ),
        "UPDATE calls SET state = 'failed', ended_at = 3, note = 'too long' WHERE call_id = 'told'",
        "UPDATE ledger_version SET version = 5",
    ):
        await connection.execute(statement)
    assert await migrate(postgres.url, schema)
    calls = await connection.fetch(
        "SELECT call_id, state, pool, offers, worker, ended_at, note, worker_outcome FROM calls ORDER BY call_id"
    )
    assert [tuple(call) for call in calls] == [
        ("ended", "done", "gpu", 1, "worker", 2.0, "", b"paid"),
        ("runs", "started", "gpu", 1, "worker", None, "", None),
        ("told", "failed", "gpu", 1, "worker", 3.0, "too long", b"paid"),
        ("waits", "waiting", "gpu", 1, None, None, "", None),
    ]
    assert await connection.fetchval("SELECT body FROM run_turns") == b"turn"
    assert await connection.fetchval("SELECT to_regclass('fleet_calls')") is None
    assert not await migrate(postgres.url, schema)
    await connection.close()


async def test_a_process_that_died_before_the_server_went_is_known_to_be_dead_without_delay(schema: str) -> None:
    with postgres_server() as server:
        async with opened_ledger(server.url, schema, dead_after=2.0) as ledger:
            await ledger.calls.start(entry("of_another"))
            await ledger.database.fetch("UPDATE calls SET process = 'other'")
            presence = ledger.presence
            async with asyncio.timeout(30):
                while presence.silence() != presence.dead_after:  # noqa: ASYNC110 - it beats when it beats
                    await asyncio.sleep(0.01)
                await ledger.database.fetch("INSERT INTO processes VALUES ('other', 'proxy', '', {now})")
                died = time.monotonic()
                await asyncio.to_thread(server.stop)
                while not presence.is_away:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(server.start, "fsync=off")
                away = time.monotonic() - died
            await until(ledger, {"of_another": "unknown"})
            bar = presence.dead_after + away + 2.0
            held_to(bar, "a process that died before the server is known to be dead", time.monotonic() - died)


async def test_connections_that_are_ended_in_the_middle_of_statements_are_replaced(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened_ledger(postgres.url, schema) as ledger, connected(postgres) as other:
        is_over = False

        async def ask(number: int) -> None:
            while not is_over:
                with contextlib.suppress(DatabaseAway):
                    assert await ledger.database.fetch("SELECT ?1::bigint", number) == [(number,)]

        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(ask(number))
            for _ in range(60):
                await other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                    " AND application_name = 'callgate'"
                )
            is_over = True
        await until_not_away(ledger)
        await ledger.calls.start(entry("after"))


async def test_after_a_failover_it_writes_to_the_server_that_takes_writes(schema: str) -> None:
    with postgres_server() as first, tempfile.TemporaryDirectory(prefix="callgate-postgres-") as folder:
        standby = await asyncio.to_thread(first.standby, Path(folder))
        try:
            both = f"127.0.0.1:{first.port},127.0.0.1:{standby.port}"
            url = f"postgresql://postgres@{both}/postgres?target_session_attrs=read-write"
            async with opened_ledger(url, schema, dead_after=1.0) as ledger:
                await ledger.calls.start(entry("before"))
                async with connected(standby) as other, connected(first) as one:
                    async with asyncio.timeout(30):
                        sent = await one.fetchval("SELECT pg_current_wal_lsn()::text")
                        while not await other.fetchval(f"SELECT pg_last_wal_replay_lsn() >= '{sent}'"):  # noqa: ASYNC110
                            await asyncio.sleep(0.01)
                    # It stays there, and its connections with it.
                    await one.execute("ALTER SYSTEM SET default_transaction_read_only = on")
                    await one.execute("SELECT pg_reload_conf()")
                    await other.fetchval("SELECT pg_promote()")
                async with asyncio.timeout(30):
                    while True:
                        with contextlib.suppress(NotRecorded):
                            await ledger.calls.start(entry("after"))
                            break
                        await asyncio.sleep(0.05)
                await until(ledger, {"before": "started", "after": "started"})
        finally:
            standby.stop()


async def test_a_statement_that_is_given_up_ends_at_the_server_and_the_next_ones_share_few_connections(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened_ledger(postgres.url, schema) as ledger:
        asking = "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pg_sleep(3%'"
        sleeping = asyncio.create_task(ledger.database.fetch("SELECT pg_sleep(30)"))
        async with asyncio.timeout(30):
            while not await ledger.database.fetch(asking):  # noqa: ASYNC110 - asks a server
                await asyncio.sleep(0.01)
            sleeping.cancel()
            while await ledger.database.fetch(asking):  # noqa: ASYNC110 - asks a server
                await asyncio.sleep(0.01)
        asked = (ledger.database.fetch("SELECT pg_backend_pid(), pg_sleep(0.01)") for _ in range(40))
        assert 1 <= len({rows[0][0] for rows in await asyncio.gather(*asked)}) <= 8
