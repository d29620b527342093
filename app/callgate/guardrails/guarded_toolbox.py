"""The toolbox of a chat with hooks: what they blocked does not run, and what runs without a turn of its own is judged first."""

from collections.abc import Sequence

from msgspec.structs import replace

from callgate.calls.outcome import Failed, Outcome
from callgate.calls.states import Call, ReadyCall
from callgate.conversation.ports import Begin, Plan, Report, Toolbox, begin_at_once
from callgate.conversation.wrapper_toolbox import WrapperToolbox, in_order_of
from callgate.guardrails.judge import ChatJudge


class GuardedToolbox(WrapperToolbox):
    """Around all others, so that nobody is asked about a call that does not run."""

    def __init__(self, inner: Toolbox, judge: ChatJudge) -> None:
        super().__init__(inner)
        self._judge = judge

    def plan(self, calls: Sequence[Call]) -> Plan:
        """Plan the calls. A blocked one of the client's is answered here: it would run it."""
        plan = self._inner.plan(calls)
        blocked = tuple(call for call in plan.theirs if isinstance(call, ReadyCall) and self._judge.is_blocked(call))
        if not blocked:
            return plan
        theirs = tuple(call for call in plan.theirs if call not in blocked)
        return in_order_of(calls, replace(plan, ours=(*plan.ours, *blocked), theirs=theirs))

    def writes(self, call: ReadyCall) -> bool:
        return not self._judge.is_blocked(call) and self._inner.writes(call)

    def is_ordered(self, call: ReadyCall) -> bool:
        return not self._judge.is_blocked(call) and self._inner.is_ordered(call)

    async def run(self, call: ReadyCall, report: Report, begin: Begin = begin_at_once) -> Outcome:
        judged = await self._judge.before_run(call, self._inner.offer)
        if isinstance(judged, Failed):
            await begin()
            return judged
        return await self._inner.run(judged, report, begin)
