from typing import Any, cast

import pytest

from callgate.tools.executor import Safety
from callgate.tools.kinds.mcp.descriptors import Descriptor
from callgate.tools.kinds.mcp.ledger_pins import LedgerPins
from callgate.tools.kinds.mcp.pins import DamagedPins, Pins
from tests.harness.needs import needs
from tests.harness.postgres import PostgresServer

pytestmark = pytest.mark.anyio


def descriptor(safety: Safety, digest: str) -> Descriptor:
    return Descriptor("send", "Sends.", {}, safety, direct=True, digest=digest, plain_digest=digest)


@needs("postgres", "module:asyncpg")
async def test_another_machine_reads_the_pinned_description_and_enforces_it(
    postgres: PostgresServer, schema: str
) -> None:
    from callgate.state.cluster.postgres import PostgresDatabase, migrate

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


class Rows:
    """A ledger with these pins."""

    def __init__(self, *pins: str) -> None:
        self.pins = pins

    async def fetch(self, statement: str, *values: Any) -> list[tuple[str, str]]:
        return [(f"mail\ntool{number}", pin) for number, pin in enumerate(self.pins)]


@pytest.mark.parametrize(
    "rogue",
    [
        "nothing",
        "17",
        '{"digest":' + "[" * 100_000,
        '{"digest":"a","x":[' + "{}," * 2_000 + "{}]}",
        '{"digest":"' + "a" * 90_000 + '"}',
    ],
    ids=["no JSON", "another type", "too deep", "too many values", "too long"],
)
async def test_a_pin_that_somebody_else_wrote_withholds_all_tools_and_names_its_row(rogue: str) -> None:
    good = '{"digest":"one","safety":"destructive"}'
    withheld = Pins()
    ledger_pins = LedgerPins(cast("Any", Rows(good, rogue)), withheld)
    await ledger_pins.open()
    with pytest.raises(DamagedPins, match="tool1"):
        withheld.look("mail", [descriptor(Safety.READ_ONLY, "two")])
    await ledger_pins.close()
    pins = Pins()
    await LedgerPins(cast("Any", Rows(good)), pins).open()
    [held] = pins.look("mail", [descriptor(Safety.READ_ONLY, "two")])
    assert held.safety is Safety.READ_ONLY
