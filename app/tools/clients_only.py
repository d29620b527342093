"""A toolbox with nothing of the house in it: what the model calls goes back to the client as the model sent it."""

from collections.abc import Sequence

import msgspec

from app.calls.offer import Offer
from app.calls.outcome import Outcome
from app.calls.states import Call, ReadyCall
from app.chat.ports import Plan, Report
from app.tools.toolbox import RequestToolbox


class ClientsOnly:
    """Judges nothing, because nothing is run: whole or broken, a call is the client's."""

    def __init__(self, client: Sequence[msgspec.Raw]) -> None:
        box = RequestToolbox((), client, run_id="")
        self.offer: Offer = box.offer
        self.schemas = box.schemas

    def plan(self, calls: Sequence[Call]) -> Plan:
        return Plan(ours=(), theirs=tuple(calls), broken=())

    def is_clients(self, name: str | None) -> bool:
        return True

    def writes(self, call: ReadyCall) -> bool:
        return False

    async def run(self, call: ReadyCall, report: Report) -> Outcome:
        raise AssertionError("a client's call is never run here")
