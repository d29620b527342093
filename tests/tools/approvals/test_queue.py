import asyncio
from typing import Any

import pytest

from callgate.calls.outcome import Failed, FailureKind
from callgate.calls.states import ReadyCall
from callgate.conversation.errors import ChatError
from callgate.conversation.ports import ProgressReport
from callgate.tools.approvals.queue import (
    KEPT_SETTLED,
    ApprovalOutcome,
    ApprovalQueue,
    PendingApproval,
    SettledApproval,
    hash_of,
)
from tests.fakes import EchoTool, ready, silent, tool

pytestmark = pytest.mark.anyio

SEND = tool("send", EchoTool())


class Office:
    """ApprovalQueue, with the audit log at hand."""

    def __init__(self) -> None:
        self.log: list[SettledApproval] = []
        self.approvals = ApprovalQueue(audit=self.log.append)

    def ask(
        self, call: ReadyCall, report: Any = silent, *, caller: str = "ann", seconds: float = 30, max_waiting: int = 10
    ) -> Any:
        asking = self.approvals.ask(
            SEND, call, report, run_id="run_1", caller=caller, seconds=seconds, max_waiting=max_waiting
        )
        return asyncio.create_task(asking)

    async def one(self) -> PendingApproval:
        async with asyncio.timeout(30):
            while not self.approvals.waiting():
                await self.approvals.changed()
        return self.approvals.waiting()[0]


async def test_an_approved_call_may_run_and_is_written_down():
    office = Office()
    asking = office.ask(ready("send", {"to": "bob"}))
    asked = await office.one()
    office.approvals.decide(asked.id, ApprovalOutcome.APPROVED, by="eve")
    assert await asking is None
    assert office.approvals.waiting() == ()
    assert [(one.decision, one.by, one.approval.id) for one in office.log] == [
        (ApprovalOutcome.APPROVED, "eve", asked.id)
    ]


async def test_a_denied_call_is_not_run_and_the_model_is_sent_the_reason():
    office = Office()
    asking = office.ask(ready("send"))
    office.approvals.decide((await office.one()).id, ApprovalOutcome.DENIED, by="eve", reason="not on a Sunday")
    refused = await asking
    assert isinstance(refused, Failed)
    assert refused.kind is FailureKind.REFUSED
    assert "not on a Sunday" in refused.text


async def test_no_decision_is_a_denial_and_the_model_is_sent_it():
    office = Office()
    refused = await office.ask(ready("send"), seconds=0.01)
    assert isinstance(refused, Failed)
    assert "nobody gave it within 0.01 s" in refused.text
    assert [one.decision for one in office.log] == [ApprovalOutcome.EXPIRED]
    with pytest.raises(ChatError) as late:
        office.approvals.decide(office.log[0].approval.id, ApprovalOutcome.APPROVED, by="eve")
    assert (late.value.status, late.value.code) == (409, "approval_expired")


async def test_who_leaves_withdraws_the_call():
    office = Office()
    asking = office.ask(ready("send"))
    asked = await office.one()
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    assert office.approvals.waiting() == ()
    assert [one.decision for one in office.log] == [ApprovalOutcome.WITHDRAWN]
    with pytest.raises(ChatError, match="withdrawn already"):
        office.approvals.decide(asked.id, ApprovalOutcome.APPROVED, by="eve")


async def test_a_decision_counts_once():
    office = Office()
    asking = office.ask(ready("send"))
    asked = await office.one()
    office.approvals.decide(asked.id, ApprovalOutcome.DENIED, by="eve")
    with pytest.raises(ChatError) as twice:  # before the one who waits has even woken up
        office.approvals.decide(asked.id, ApprovalOutcome.APPROVED, by="mallory")
    assert twice.value.code == "approval_denied"
    assert await asking is not None
    with pytest.raises(ChatError) as later:
        office.approvals.decide(asked.id, ApprovalOutcome.APPROVED, by="mallory")
    assert later.value.code == "approval_denied"
    assert [one.by for one in office.log] == ["eve"]


async def test_an_id_that_never_was_is_not_found():
    with pytest.raises(ChatError) as unknown:
        Office().approvals.decide("apr_0", ApprovalOutcome.APPROVED, by="eve")
    assert unknown.value.status == 404


async def test_a_decision_that_names_another_hash_decides_nothing():
    office = Office()
    asking = office.ask(ready("send", {"to": "bob"}))
    asked = await office.one()
    other = hash_of(ready("send", {"to": "mallory"}))
    with pytest.raises(ChatError) as wrong:
        office.approvals.decide(asked.id, ApprovalOutcome.APPROVED, by="eve", hash=other)
    assert (wrong.value.status, wrong.value.code) == (409, "hash_mismatch")
    with pytest.raises(ChatError) as missing:
        office.approvals.decide(asked.id, ApprovalOutcome.APPROVED, by="eve", demand_hash=True)
    assert missing.value.code == "hash_required"
    office.approvals.decide(asked.id, ApprovalOutcome.APPROVED, by="eve", hash=asked.hash, demand_hash=True)
    assert await asking is None


async def test_arguments_that_change_while_it_waits_are_not_run():
    office = Office()
    call = ready("send", {"to": ["bob"]})
    asking = office.ask(call)
    asked = await office.one()
    call.arguments["to"].append("mallory")
    assert asked.call.arguments == {"to": ["bob"]}
    office.approvals.decide(asked.id, ApprovalOutcome.APPROVED, by="eve")
    refused = await asking
    assert isinstance(refused, Failed)
    assert "no longer" in refused.text


async def test_only_so_many_wait():
    office = Office()
    first = office.ask(ready("send"), max_waiting=1)
    asked = await office.one()
    refused = await office.ask(ready("send"), max_waiting=1)
    assert isinstance(refused, Failed)
    assert "too many" in refused.text
    office.approvals.decide(asked.id, ApprovalOutcome.APPROVED, by="eve")
    assert await first is None


async def test_one_caller_cannot_take_all_places():
    office = Office()
    waiting = [office.ask(ready("send"), max_waiting=4) for _ in range(2)]
    refused = await office.ask(ready("send"), max_waiting=4)
    assert isinstance(refused, Failed)
    waiting.append(office.ask(ready("send"), caller="bob", max_waiting=4))
    while len(office.approvals.waiting()) < 3:
        await office.approvals.changed()
    for asked in office.approvals.waiting():
        office.approvals.decide(asked.id, ApprovalOutcome.APPROVED, by="eve")
    assert [await each for each in waiting] == [None] * 3


async def test_the_wait_is_reported():
    said: list[str] = []

    async def report(progress: ProgressReport) -> None:
        said.append(progress.message)

    office = Office()
    asking = office.ask(ready("send"), report)
    asked = await office.one()
    office.approvals.decide(asked.id, ApprovalOutcome.APPROVED, by="eve")
    await asking
    assert said == [f"waiting for approval {asked.id}", "approved"]


async def test_a_report_that_fails_leaves_nothing_waiting():
    async def report(progress: ProgressReport) -> None:
        raise ConnectionResetError

    office = Office()
    with pytest.raises(ConnectionResetError):
        await office.ask(ready("send"), report)
    assert office.approvals.waiting() == ()
    assert [one.decision for one in office.log] == [ApprovalOutcome.WITHDRAWN]


async def test_what_is_over_is_remembered_but_not_for_ever():
    office = Office()
    for _ in range(KEPT_SETTLED + 1):
        await office.approvals.ask(SEND, ready("send"), silent, run_id="r", caller="ann", seconds=0, max_waiting=1)
    with pytest.raises(ChatError) as forgotten:
        office.approvals.decide(office.log[0].approval.id, ApprovalOutcome.APPROVED, by="eve")
    assert forgotten.value.status == 404


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 10**30}, {"a": 10**30 + 1}, False),
        ({"a": "\ud800"}, {"a": "\ud801"}, False),
    ],
)
def test_the_hash_is_of_the_arguments_and_not_of_their_order(one, other, same):
    assert (hash_of(ready("send", one)) == hash_of(ready("send", other))) is same
