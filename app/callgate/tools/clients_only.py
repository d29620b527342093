"""A toolbox without server tools: all calls are sent to the client as the model wrote them."""

from collections.abc import Callable, Sequence

import msgspec

from callgate.calls.offer import Offer
from callgate.calls.outcome import Outcome
from callgate.calls.states import BrokenCall, Call, Flaw, ReadyCall
from callgate.conversation.ports import Begin, Plan, Report
from callgate.tools.toolbox import RequestToolbox


class ClientsOnly(msgspec.Struct, eq=False):
    """A toolbox with only the client's tools. Broken calls are sent to the client as well."""

    _tools: Callable[[], Sequence[msgspec.Raw]]
    """Returns the client's tools. Called lazily, because a passed-through request does not need them."""
    _box: RequestToolbox | None = None

    @property
    def offer(self) -> Offer:
        return self._opened().offer

    @property
    def schemas(self) -> Sequence[msgspec.Raw]:
        return self._opened().schemas

    def _opened(self) -> RequestToolbox:
        if self._box is None:
            self._box = RequestToolbox((), self._tools())
        return self._box

    def plan(self, calls: Sequence[Call]) -> Plan:
        broken = tuple(call for call in calls if isinstance(call, BrokenCall))
        if any(call.flaw is Flaw.NOT_ALONE for call in broken):
            return Plan(ours=(), theirs=(), broken=broken)  # all of them: the model is asked again
        return Plan(ours=(), theirs=tuple(calls), broken=())

    def is_clients(self, name: str | None) -> bool:
        return True

    def writes(self, call: ReadyCall) -> bool:
        return False

    def is_ordered(self, call: ReadyCall) -> bool:
        return False

    async def run(self, call: ReadyCall, report: Report, begin: Begin) -> Outcome:
        raise AssertionError("a client's call is never run here")
