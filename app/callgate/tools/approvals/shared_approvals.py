"""Approvals across processes that share a ledger: a call that waits in one process can be approved in any.

The row in the ledger decides: only one `UPDATE … WHERE state = 'waiting'` succeeds. The process where the call waits polls
for decisions. A call of a durable run keeps its row when another process resumes the run, so that a decision stays valid.
Without a ledger there is one process with its queue.

A question that a running call asks is such a row too. Its answer lies sealed where the reason of a denial stands, until the process
where the call runs has taken it; an answer to a durable run as long as the row, since the run may be carried on.
"""

import asyncio
import contextlib
import hashlib
import json
from typing import Any, Final

import msgspec
import structlog

from callgate.calls.outcome import Failed
from callgate.calls.states import ReadyCall
from callgate.conversation.errors import ChatError
from callgate.conversation.ports import Report, approved_by, waits_for_approval, waits_for_input
from callgate.state.database import Database, DatabaseAway
from callgate.state.ledger import SharedLedger
from callgate.state.sealing import NotSealedHere, Sealer
from callgate.tools.approvals.queue import (
    ACTIONS,
    INPUT,
    MAX_REASON,
    ApprovalOutcome,
    ApprovalQueue,
    PendingApproval,
    SettledApproval,
    check_decision,
    check_hash,
    check_owner,
    hash_of,
    hash_of_question,
    not_found,
    refusal_of,
    told_of,
    too_late,
)
from callgate.tools.executor import Tool
from callgate.tools.questions import PersonsAnswer, Question
from callgate.untrusted.doors import OWN_BYTES, Door, Untrusted, written_here
from callgate.untrusted.readers import READ_ERRORS, json_reader, read_leniently
from callgate.untrusted.slices import open_in_slices
from callgate.untrusted.work import TurnShare

LOOK_SECONDS: Final = 0.5
GRACE_SECONDS: Final = 2.0
"""How long a call waits beyond its deadline, for a decision in another process at the last moment."""
KEPT_SECONDS: Final = 86_400.0

_INSERT: Final = (
    "INSERT INTO approvals (id, process, facts, hash, since, expires, state) VALUES (?1, ?2, ?3, ?4, {now},"
    " {now} + CAST(?5 AS {real}), 'waiting') ON CONFLICT (id) DO UPDATE SET process = excluded.process, facts = excluded.facts,"
    " since = excluded.since, expires = excluded.expires,"
    " state = CASE WHEN approvals.state IN ('approved', 'denied') THEN approvals.state ELSE 'waiting' END RETURNING id"
)
_WAITING: Final = (
    "SELECT id, facts FROM approvals WHERE state = 'waiting' AND expires > {now}"
    " AND process IN (SELECT name FROM processes WHERE seen_at > {now} - CAST(?1 AS {real})) ORDER BY since, id"
)
_DECIDE: Final = (
    "UPDATE approvals SET state = ?3, decided_by = ?4, reason = ?5 WHERE id = ?2 AND state = 'waiting' AND expires > {now}"
    " AND process IN (SELECT name FROM processes WHERE seen_at > {now} - CAST(?1 AS {real})) RETURNING id"
)
"""Not where its process is gone: no process would run it, and one that resumes the run asks again."""
_FORGET: Final = "UPDATE approvals SET reason = '' WHERE id = ?1 AND process = ?2 RETURNING id"
_END: Final = "UPDATE approvals SET state = ?2 WHERE id = ?1 AND process = ?3 AND state = 'waiting' RETURNING id"
_DECISION: Final = (
    "SELECT state, decided_by, reason FROM approvals WHERE id = ?1 AND hash = ?2 AND state IN ('approved', 'denied')"
)
_DECIDED: Final = (
    "SELECT id, state, decided_by, reason FROM approvals WHERE process = ?1 AND state IN ('approved', 'denied')"
    " AND expires > {now} - CAST(?2 AS {real})"
)
_PRUNE: Final = "DELETE FROM approvals WHERE expires < {now} - CAST(?1 AS {real}) RETURNING id"

log = structlog.get_logger("callgate.approvals")
audit = structlog.get_logger("callgate.audit")

FACTS: Final = Door(name="call that waits for approval", bytes=OWN_BYTES)
"""Its arguments were counted when the model wrote them."""
SEALED_FOR: Final = "answer to a tool's question"


class _SealedAnswer(msgspec.Struct):
    """An answer in a row."""

    decision: ApprovalOutcome
    content: dict[str, Any] | None = None


_read_answer = json_reader(_SealedAnswer)
_STATES: Final = {
    ApprovalOutcome.ANSWERED: ApprovalOutcome.APPROVED,
    ApprovalOutcome.DECLINED: ApprovalOutcome.DENIED,
    ApprovalOutcome.CANCELLED: ApprovalOutcome.DENIED,
}
"""The state of a row for the end of a question; what was decided is sealed in it."""
_ENDS_OF_QUESTIONS: Final = {
    ApprovalOutcome.APPROVED: ApprovalOutcome.ANSWERED,
    ApprovalOutcome.DENIED: ApprovalOutcome.DECLINED,
}


async def _facts_in(id: str, facts: str) -> dict[str, Any]:
    """Decode what another process wrote of a call. Raises `ChatError`: what cannot be shown cannot be decided."""
    try:
        opened = await open_in_slices(Untrusted(facts.encode("utf-8", "surrogatepass"), FACTS))
        return msgspec.convert(read_leniently(opened), dict[str, Any])
    except READ_ERRORS as error:
        log.error("approval_unreadable", approval=id, error=f"{type(error).__name__}: {error}")  # noqa: TRY400 - the reason is all there is to say
        raise ChatError(
            500, "What the ledger has of this call cannot be read.", type="server_error", code="approval_unreadable"
        ) from None


def _note_remembered(
    tool: Tool, call: ReadyCall, decision: ApprovalOutcome, by: str, *, id: str, hash: str, caller: str, run_id: str
) -> None:
    """Log that what an earlier process of a durable run asked was decided already."""
    audit.info(
        "approval_remembered",
        decision=str(decision),
        by=by,
        approval=id,
        tool=tool.name,
        hash=hash,
        caller=caller,
        run_id=run_id,
        call_id=call.id,
    )


class SharedApprovals:
    """Shares the calls that wait in this process through the ledger, and shows those of the others."""

    def __init__(self, queue: ApprovalQueue, sealer: Sealer) -> None:
        """`sealer` seals what was filled into forms, for the process where the call runs."""
        self._queue = queue
        self._sealer = sealer
        self._of_durable_runs: set[str] = set()
        """The questions whose answers another process may need, if it carries their run on."""
        self._database: Database | None = None
        self._process = ""
        self._dead_after = 0.0
        self._written: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    def use(self, ledger: SharedLedger | None) -> None:
        """Share approvals through a ledger from now on."""
        if ledger is not None:
            self._database = ledger.database
            self._process = ledger.calls.process
            self._dead_after = ledger.presence.dead_after

    async def ask(
        self,
        tool: Tool,
        call: ReadyCall,
        report: Report,
        key: str,
        *,
        run_id: str,
        caller: str,
        seconds: float,
        max_waiting: int,
    ) -> Failed | None:
        """Wait for a decision about this call. None when it may run; else why not, for the model."""
        id = ""
        grace = 0.0
        hash = hash_of(call)
        if self._database is not None:
            grace = GRACE_SECONDS
            if key.startswith(f"{run_id}/"):  # of a durable run, whose earlier process may have asked
                id = "apr_" + hashlib.sha256(f"{key} {hash}".encode()).hexdigest()[:16]
                if (decided := await self._remembered(self._database, id, hash)) is not None:
                    decision, by, reason = decided
                    _note_remembered(tool, call, decision, by, id=id, hash=hash, caller=caller, run_id=run_id)
                    await report(waits_for_approval(id))
                    if (refusal := refusal_of(decision, by, reason, seconds)) is None:
                        await report(approved_by(by, reason))
                    return refusal
        return await self._queue.ask(
            tool,
            call,
            report,
            run_id=run_id,
            caller=caller,
            seconds=seconds,
            max_waiting=max_waiting,
            grace=grace,
            id=id,
        )

    async def put(
        self,
        question: Question,
        tool: Tool,
        call: ReadyCall,
        report: Report,
        key: str,
        number: int,
        *,
        run_id: str,
        caller: str,
        owner: str,
        seconds: float,
        max_waiting: int,
    ) -> PersonsAnswer:
        """Put a question of this running call to a person, and wait for the answer. `number`: of the question in its call. Raises
        `NobodyToAsk`."""
        id = ""
        grace = 0.0
        if self._database is not None:
            grace = GRACE_SECONDS
            if key.startswith(f"{run_id}/"):  # of a durable run, whose earlier process may have asked
                hash = hash_of_question(call, question)
                id = "apr_" + hashlib.sha256(f"{key} {hash} {number}".encode()).hexdigest()[:16]
                if (decided := await self._remembered(self._database, id, hash)) is not None:
                    _, by, sealed = decided
                    decision, content = self._opened(id, sealed)
                    answer = PersonsAnswer(ACTIONS.get(decision, "cancel"), content)
                    _note_remembered(tool, call, decision, by, id=id, hash=hash, caller=caller, run_id=run_id)
                    await report(waits_for_input(id))
                    await report(told_of(question, answer, by))
                    return answer
                self._of_durable_runs.add(id)
        try:
            return await self._queue.put(
                question,
                tool,
                call,
                report,
                run_id=run_id,
                caller=caller,
                owner=owner,
                seconds=seconds,
                max_waiting=max_waiting,
                grace=grace,
                id=id,
            )
        finally:
            self._of_durable_runs.discard(id)

    def _opened(self, id: str, sealed: str) -> tuple[ApprovalOutcome, dict[str, Any] | None]:
        """Return the answer that was sealed for a question; cancelled where it cannot be opened, which is logged."""
        try:
            answer = _read_answer(written_here(self._sealer.open(SEALED_FOR, id, sealed)))
        except (NotSealedHere, *READ_ERRORS) as error:
            todo = "give all processes the same CALLGATE_SECRET"
            log.error("answer_unreadable", approval=id, error=str(error), todo=todo)  # noqa: TRY400 - the reason is all there is to say
            return ApprovalOutcome.CANCELLED, None
        return answer.decision, answer.content

    async def _remembered(self, database: Database, id: str, hash: str) -> tuple[ApprovalOutcome, str, str] | None:
        with contextlib.suppress(DatabaseAway):  # then it waits until that is back, and for its decision
            for state, by, reason in await database.fetch(_DECISION, id, hash):
                return ApprovalOutcome(state), by, reason
        return None

    async def waiting(self) -> list[dict[str, Any]]:
        """Describe the waiting calls of all processes, the oldest first."""
        if self._database is None:
            return [approval.facts() for approval in self._queue.waiting()]
        if unwritten := [written for written in self._written.values() if not written.done()]:
            await asyncio.wait(unwritten, timeout=LOOK_SECONDS)  # so that a call that was reported is in the list
        waiting: list[dict[str, Any]] = []
        share = TurnShare()
        for id, facts in await self._fetch(_WAITING, self._dead_after):
            with contextlib.suppress(ChatError):  # logged
                waiting.append(await _facts_in(id, facts))
            share.take(len(facts))
            if not share.is_left:
                await asyncio.sleep(0)
                share = TurnShare()
        return waiting

    async def decide(
        self,
        id: str,
        decision: ApprovalOutcome,
        *,
        by: str,
        reason: str = "",
        content: Any = None,
        hash: str | None = None,
        demand_hash: bool = False,
        owner: str | None = None,
    ) -> dict[str, Any]:
        """Approve or deny a waiting call of any process, or answer its question. Raises `ChatError` where it does not wait. `owner`:
        of whoever may only answer the questions of his own requests."""
        if self._database is None:
            settled = self._queue.decide(
                id,
                decision,
                by=by,
                reason=reason,
                content=content,
                hash=hash,
                demand_hash=demand_hash,
                owner=owner,
            )
            return {**settled.approval.facts(), "decision": str(settled.decision), "by": settled.by}
        if (written := self._written.get(id)) is not None:
            await asyncio.wait({written})
        rows = []
        if id.isprintable():  # databases do not take every character
            rows = await self._fetch("SELECT facts, hash, state FROM approvals WHERE id = ?1", id)
        if not rows:
            raise not_found()
        encoded_facts, of, state = rows[0]
        facts = await _facts_in(id, encoded_facts)
        check_owner(facts, owner)
        check_hash(hash, of, demanded=demand_hash)
        content = check_decision(facts, decision, content)
        reason = reason.strip()[:MAX_REASON]
        if facts["kind"] == INPUT:
            reason = self._sealer.seal(SEALED_FOR, id, msgspec.json.encode(_SealedAnswer(decision, content)))
        values = (self._dead_after, id, _STATES.get(decision, decision).value, by, reason)
        if state != "waiting" or not await self._fetch(_DECIDE, *values):
            [[state, is_over]] = await self._fetch("SELECT state, expires <= {now} FROM approvals WHERE id = ?1", id)
            if state == "waiting":
                raise too_late(ApprovalOutcome.EXPIRED if is_over else ApprovalOutcome.WITHDRAWN)
            settled_as = ApprovalOutcome(state)
            if facts["kind"] == INPUT:
                settled_as = _ENDS_OF_QUESTIONS.get(settled_as, settled_as)
            raise too_late(settled_as)
        self._apply(id, ApprovalOutcome(values[2]), by, reason)
        return {**facts, "decision": str(decision), "by": by}

    # -- from the queue of this process

    def began(self, approval: PendingApproval) -> None:
        """Share a call that waits here."""
        if self._database is None:
            return
        task = asyncio.create_task(self._write(self._database, approval), name="an approval")
        self._written[approval.id] = task
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(self._database), name="looking for decisions")

    def ended(self, settled: SettledApproval) -> None:
        """End a call's row when it does not wait any more."""
        written = self._written.pop(settled.approval.id, None)
        if self._database is None or written is None:
            return
        is_durable = settled.approval.id in self._of_durable_runs
        task = asyncio.create_task(
            self._end(self._database, settled, written, is_durable=is_durable), name="end of an approval"
        )
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        if waiting := {*self._ending, *self._written.values()}:
            await asyncio.wait(waiting)

    async def _write(self, database: Database, approval: PendingApproval) -> None:
        """Write a waiting call, with retries. Without a row it cannot be approved elsewhere."""
        facts = json.dumps(approval.facts())
        while True:
            try:
                seconds = approval.expires - approval.since
                await database.fetch(_INSERT, approval.id, self._process, facts, approval.hash, seconds)
            except DatabaseAway as error:
                log.warning("approval_not_shared", approval=approval.id, error=str(error))
                await asyncio.sleep(LOOK_SECONDS)
                if approval.id in self._written:
                    continue
            return

    async def _end(
        self, database: Database, settled: SettledApproval, written: "asyncio.Task[None]", *, is_durable: bool
    ) -> None:
        await asyncio.wait({written})
        with contextlib.suppress(DatabaseAway):  # its row expires by itself
            if settled.decision in {ApprovalOutcome.EXPIRED, ApprovalOutcome.WITHDRAWN}:
                await database.fetch(_END, settled.approval.id, settled.decision.value, self._process)
            if settled.approval.question is not None and not is_durable:
                await database.fetch(_FORGET, settled.approval.id, self._process)
            await database.fetch(_PRUNE, KEPT_SECONDS)

    async def _look(self, database: Database) -> None:
        """Poll for decisions of other processes, as long as any call waits."""
        while self._written:
            await asyncio.sleep(LOOK_SECONDS)
            with contextlib.suppress(DatabaseAway):  # logged by the ledger's presence
                for id, state, by, reason in await database.fetch(_DECIDED, self._process, KEPT_SECONDS):
                    self._apply(id, ApprovalOutcome(state), by, reason)

    def _apply(self, id: str, decision: ApprovalOutcome, by: str, reason: str) -> None:
        """Settle a call that waits here as its row says."""
        approval = next((waiting for waiting in self._queue.waiting() if waiting.id == id), None)
        if approval is None:
            return
        if approval.question is None:
            self._queue.decide(id, decision, by=by, reason=reason)
            return
        decision, content = self._opened(id, reason)
        self._queue.decide(id, decision, by=by, content=content)

    async def _fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        assert self._database is not None, "asked where there is one"
        try:
            return await self._database.fetch(statement, *values)
        except DatabaseAway as away:
            raise ChatError(
                503,
                "Calls that wait for approval cannot be looked at or decided at the moment. Try again in a moment.",
                type="server_error",
                code="approvals_unavailable",
                retry_after=1,
            ) from away
