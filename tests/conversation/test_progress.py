"""What of a tool's progress is passed on."""

import pytest

from callgate.calls.states import ReadyCall
from callgate.conversation.events import CallProgress, ChatEvent
from callgate.conversation.ports import ProgressReport
from callgate.conversation.progress import BURST, LONGEST, PER_SECOND, CallReports

pytestmark = pytest.mark.anyio


async def test_a_tool_that_reports_without_end_is_passed_on_as_fast_as_one_can_follow() -> None:
    received: list[CallProgress] = []
    now = 0.0

    async def emit(event: ChatEvent) -> None:
        assert isinstance(event, CallProgress)
        received.append(event)

    reports = CallReports(emit, 0, ReadyCall("c1", "copy", {}, "{}"), lambda: now)
    for number in range(10 * BURST):
        await reports.report(ProgressReport(str(number), 0.5))
    assert [each.message for each in received] == [str(number) for number in range(BURST)]
    for _ in range(1000):
        now += 0.01
        await reports.report(ProgressReport("more"))
    assert abs(len(received) - BURST - 10 * PER_SECOND) <= 1
    now += 3600
    for _ in range(10 * BURST):
        await reports.report(ProgressReport("x" * (LONGEST + 1)))
    assert abs(len(received) - 2 * BURST - 10 * PER_SECOND) <= 1
    assert len(received[-1].message) == LONGEST
