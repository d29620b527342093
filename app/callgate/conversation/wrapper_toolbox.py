"""The base of a toolbox around another, which overrides what differs."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from callgate.calls.offer import Offer
from callgate.calls.outcome import Outcome
from callgate.calls.states import Call, ReadyCall
from callgate.conversation.ports import Begin, Plan, Report, Toolbox, begin_at_once


class WrapperToolbox:
    """Passes everything on to the toolbox inside."""

    def __init__(self, inner: Toolbox) -> None:
        self._inner = inner

    @property
    def offer(self) -> Offer:
        return self._inner.offer

    def definitions(self) -> Sequence[msgspec.Raw]:
        return self._inner.definitions()

    def plan(self, calls: Sequence[Call]) -> Plan:
        return self._inner.plan(calls)

    def is_clients(self, name: str | None) -> bool:
        return self._inner.is_clients(name)

    def writes(self, call: ReadyCall) -> bool:
        return self._inner.writes(call)

    def is_ordered(self, call: ReadyCall) -> bool:
        return self._inner.is_ordered(call)

    async def run(self, call: ReadyCall, report: Report, begin: Begin = begin_at_once) -> Outcome:
        return await self._inner.run(call, report, begin)


def in_order_of(calls: Sequence[Call], plan: Plan) -> Plan:
    """Return the plan with each list in the order of the turn's calls, as it is not where a wrapper moved some of them."""
    places = {call.id: place for place, call in enumerate(calls)}

    def place_of(call: Call) -> int:
        return places[call.id]

    return replace(plan, ours=tuple(sorted(plan.ours, key=place_of)), theirs=tuple(sorted(plan.theirs, key=place_of)))
