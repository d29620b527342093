"""The matrix of `python -m tests.lanes`: no provider's lane runs a call that the direct lane would not have run."""

import pytest

from tests.lanes.matrix import MODELS, native_cases, play, report
from tests.upstream.through_litellm import MARKS

pytestmark = MARKS


@pytest.mark.timeout(180)
async def test_no_lane_and_no_provider_runs_more_than_the_direct_lane():
    figures = await play(native_cases())
    assert [each.provider for each in figures] == list(MODELS)
    assert [call for each in figures for call in each.more] == [], "\n".join(report(figures))
    for each in figures:
        assert each.lanes <= {"direct", "translated", "messages", "responses"}, f"{each.provider} went by litellm"
        assert each.played > 100
        assert each.ran > 0.85 * each.reference_ran, f"{each.provider} runs hardly anything"
