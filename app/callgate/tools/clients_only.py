"""A toolbox without server tools: what the model calls goes back to the client as the model sent it."""

from collections.abc import Callable, Sequence

import msgspec

from callgate.calls.offer import Offer
from callgate.calls.outcome import Outcome
from callgate.calls.states import Call, ReadyCall
from callgate.conversation.ports import Plan, Report
from callgate.tools.toolbox import RequestToolbox


class ClientsOnly(msgspec.Struct, eq=False):
    """Judges nothing, because nothing is run: whole or broken, a call is the client's."""

    _tools: Callable[[], Sequence[msgspec.Raw]]
    """Gives the client's, when they are looked at; a request that is passed through has nobody do so."""
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
        return Plan(ours=(), theirs=tuple(calls), broken=())

    def is_clients(self, name: str | None) -> bool:
        return True

    def writes(self, call: ReadyCall) -> bool:
        return False

    async def run(self, call: ReadyCall, report: Report) -> Outcome:
        raise AssertionError("a client's call is never run here")
