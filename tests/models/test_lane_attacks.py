"""Damaged answers on every wire: a hundred of each, the same ones every time. `python -m tests.lanes attacks` tries as many as are
asked for."""

import pytest

from tests.lanes.attacks import SHAPES, search
from tests.models.through_litellm import MARKS

pytestmark = MARKS


@pytest.mark.parametrize("wire", SHAPES)
async def test_of_a_damaged_answer_runs_only_what_was_written_whole(wire):
    figures = search(wire, range(100))
    assert figures.wrong == []
    assert figures.ran > 0.8 * figures.possible, "what is whole is refused as well"
    assert figures.possible > 80, "hardly anything is left that may run"
