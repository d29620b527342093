"""What is refused, fails or was recorded has the bodies on the wire that it had."""

import pytest

from tests.snapshots import compare, wire
from tests.snapshots.served import FOLDER, SNAPSHOTS


@pytest.mark.anyio
@pytest.mark.parametrize("name", SNAPSHOTS)
async def test_the_bodies_served_are_those_taken_down(name: str) -> None:
    compare(FOLDER / f"{name}.txt", wire.snapshot(await SNAPSHOTS[name]()), f"print {name} [WAY]")
