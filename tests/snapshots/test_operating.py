"""What operators and their tools read is what it was."""

import pytest

from tests.snapshots import compare
from tests.snapshots.operating import FOLDER, SNAPSHOTS


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_what_operators_read_is_what_was_taken_down(name: str) -> None:
    compare(FOLDER / name, SNAPSHOTS[name](), f"print {name}")


def test_there_is_nothing_else_taken_down() -> None:
    assert {file.name for file in FOLDER.iterdir()} == SNAPSHOTS.keys()
