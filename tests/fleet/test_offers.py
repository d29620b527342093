"""How a call is offered to workers while the ledger comes and goes."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from callgate.calls.outcome import Returned, encode_outcome
from callgate.calls.states import ReadyCall
from callgate.fleet.fleet import Fleet, FleetPool
from callgate.state.database import DatabaseAway
from callgate.state.fleet_calls import FleetCallState, FleetOffer
from callgate.tools.executor import CallContext
from tests.fakes import silent
from tests.harness.ports import free_port

pytestmark = pytest.mark.anyio


class ResumedLedger:
    """A ledger in which a worker ended the call of a resumed run, while the answer to its offer was lost."""

    process = "new"

    def __init__(self) -> None:
        self.offered: list[tuple[str, str]] = []
        self._answers: list[int | DatabaseAway] = [DatabaseAway("it was restarted"), 1]

    def offer(self, offer: FleetOffer, on_offered: Callable[[int | DatabaseAway], None]) -> None:
        self.offered.append((offer.id, offer.offer))
        on_offered(self._answers.pop(0))

    async def key(self, pool: str) -> bytes:
        return b"key"

    async def states(self, ids: list[str]) -> list[FleetCallState]:
        return [FleetCallState(id, "done", 0.0, encode_outcome(Returned("paid")), 1) for id in ids]

    async def sweep(self, ours: list[str], dead_after: float) -> int:
        return 0

    async def prune(self) -> None: ...


async def test_a_call_of_a_resumed_run_is_not_offered_anew_where_the_answer_to_its_offer_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("redis")
    monkeypatch.setattr("callgate.fleet.fleet.LOOK_SECONDS", 0.01)
    ledger: Any = ResumedLedger()
    fleet = Fleet(f"redis://127.0.0.1:{free_port()}", "test:", lambda _: None)
    presence: Any = SimpleNamespace(silence=lambda: 5.0)
    await fleet.open(ledger, ledger, presence)
    try:
        call = ReadyCall("call_1", "pay", {}, "{}")
        context = CallContext("run_1", 0, "run_1/0/0/0", silent, 1000)
        assert await fleet.run(FleetPool("gpu", 20.0), "pay", call, context, 20.0) == Returned("paid")
    finally:
        await fleet.close()
    assert ledger.offered == [("run_1/0/0/0", "new/0")] * 2, "the same offer, so that it is not one anew"
