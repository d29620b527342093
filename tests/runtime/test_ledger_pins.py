import pytest

from callgate.runtime.ledger_pins import LedgerPins
from callgate.tools.executor import Safety
from callgate.tools.mcp_descriptors import Descriptor, Pins
from tests.harness.needs import needs
from tests.harness.postgres import PostgresServer

pytestmark = [pytest.mark.anyio, needs("postgres", "module:asyncpg")]


def descriptor(safety: Safety, digest: str) -> Descriptor:
    return Descriptor("send", "Sends.", {}, safety, direct=True, digest=digest, plain_digest=digest)


async def test_another_machine_reads_the_pinned_description_and_enforces_it(
    postgres: PostgresServer, schema: str
) -> None:
    from callgate.ledger.postgres import PostgresDatabase, migrate

    await migrate(postgres.url, schema)
    changes: list[tuple[str, str]] = []
    for safety, digest in ((Safety.DESTRUCTIVE, "one"), (Safety.READ_ONLY, "two")):
        database = PostgresDatabase(postgres.url, schema)
        await database.open()
        pins = Pins(lambda server, tool: changes.append((server, tool)))
        kept = LedgerPins(database, pins)
        await kept.open()
        [held] = pins.look("mail", [descriptor(safety, digest)])
        assert held.safety is Safety.DESTRUCTIVE, "what it says later relaxes nothing"
        await kept.close()
        await database.close()
    assert changes == [("mail", "send")]
