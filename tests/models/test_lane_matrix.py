"""The matrix of `python -m tests.lanes`: no provider's lane runs a call that the direct lane would not have run."""

import asyncio

import pytest

from tests.chaos.scale import scaled
from tests.lanes.exchanges import PROVIDERS, exchanges
from tests.lanes.exchanges import report as report_of_exchanges
from tests.lanes.matrix import MODELS, TAPPED, native_cases, play, report
from tests.lanes.models import lanes_of_models
from tests.models.through_litellm import MARKS

EVERY = scaled(4, 1)
"""Every so manieth case of the corpus; `make chaos` plays all, and so does `python -m tests.lanes`."""

pytestmark = [*MARKS, pytest.mark.leaves("aws-signing", why="litellm keeps its thread for signing")]


@pytest.mark.timeout(300)
async def test_no_lane_and_no_provider_runs_more_than_the_direct_lane():
    figures = await play(native_cases()[::EVERY])
    assert [each.provider for each in figures] == list(MODELS)
    assert [call for each in figures for call in each.more] == [], "\n".join(report(figures))
    for each in figures:
        if each.provider.startswith(TAPPED):
            assert each.lanes == {"litellm"}, f"{each.provider} did not go by litellm"
        else:
            assert each.lanes <= {"direct", "translated", "messages", "responses"}, f"{each.provider} went by litellm"
        assert each.played > 100 / EVERY
        assert each.ran > 0.85 * each.reference_ran, f"{each.provider} runs hardly anything"


@pytest.mark.timeout(300)
async def test_what_litellm_receives_decides_what_runs_on_its_lane():
    found = await exchanges()
    assert len(PROVIDERS) >= 10
    assert [each.line() for each in found if each.is_wrong] == [], "\n".join(report_of_exchanges(found))
    for each in found:
        if each.ending in ("good", "error", "refusal"):
            assert each.reasons, f"the provider's own word was not seen: {each.line()}"
            assert "end_not_seen" not in each.findings


async def test_nearly_all_of_litellms_models_that_call_tools_may_have_tools():
    found = await asyncio.to_thread(lanes_of_models)
    assert found.counts["refused"] == 0, "\n".join(found.report())
    assert found.counts["tapped"] < 0.1 * found.counts.total(), "\n".join(found.report())
    assert found.counts["direct"] > 0.6 * found.counts.total(), "\n".join(found.report())
