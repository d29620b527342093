"""The queue of calls that wait for a person: for an approval before they run, or for an answer while they run. It survives a reload.

A decision is about one call with exactly the arguments that were shown, and counts once. Without a decision a call is denied
after a timeout, and a question is cancelled. `ApprovalRule` decides which calls need approval, keys who may decide.
"""

import asyncio
import copy
import hashlib
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from callgate.calls.outcome import Failed, FailureKind
from callgate.calls.states import ReadyCall
from callgate.conversation.errors import ChatError
from callgate.conversation.ports import ProgressReport, Report, approved_by, waits_for_approval, waits_for_input
from callgate.tools.executor import Tool
from callgate.tools.questions import (
    Action,
    BadAnswer,
    NobodyToAsk,
    PersonsAnswer,
    Question,
    check_content,
    masked_content,
)

OF_ONE = 2
"""One caller may have one waiting call in so many, so that there is room for others."""
KEPT_SETTLED = 1000
"""Ended approvals that are kept, to answer a late decision with their result."""
MAX_REASON = 500
"""Characters of a reason that are passed on to the model."""


class ApprovalOutcome(StrEnum):
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    """The client disconnected, or its request timed out."""
    ANSWERED = "answered"
    """A question was answered; the others are no answers."""
    DECLINED = "declined"
    CANCELLED = "cancelled"


INPUT = "input"
"""The `kind` of a question, where for a call that waits for approval the kind of its tool stands."""
ACTIONS: dict[ApprovalOutcome, Action] = {
    ApprovalOutcome.ANSWERED: "accept",
    ApprovalOutcome.DECLINED: "decline",
}
"""What a server is told of the end of its question; `cancel` for all else."""
DECISIONS = {
    "approve": ApprovalOutcome.APPROVED,
    "deny": ApprovalOutcome.DENIED,
    "answer": ApprovalOutcome.ANSWERED,
    "decline": ApprovalOutcome.DECLINED,
    "cancel": ApprovalOutcome.CANCELLED,
}
"""The words of a decision."""
OF_QUESTIONS = frozenset({ApprovalOutcome.ANSWERED, ApprovalOutcome.DECLINED, ApprovalOutcome.CANCELLED})


class PendingApproval(msgspec.Struct, frozen=True):
    """One waiting call, as it is shown for a decision."""

    id: str
    tool: Tool
    call: ReadyCall
    """A copy, so that it cannot change after it was shown."""
    hash: str
    """The hash of the tool's name and the arguments; a decision may have to include it."""
    run_id: str
    caller: str
    since: float
    expires: float
    question: Question | None = None
    """What the running call asks; None where it waits to run."""
    owner: str = ""
    """Whose request it is, where no key's name can be taken for nobody's."""

    def facts(self) -> dict[str, Any]:
        """Describe the call for people."""
        facts = self._facts_of_call()
        if self.question is None:
            return facts
        return {**facts, "kind": INPUT, "owner": self.owner, **self.question.facts()}

    def _facts_of_call(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "approval",
            "tool": self.tool.name,
            "description": self.tool.description,
            "kind": self.tool.kind,
            "source": self.tool.source,
            "safety": str(self.tool.policy.safety),
            "arguments": self.call.arguments,
            "hash": self.hash,
            "run": self.run_id,
            "call": self.call.id,
            "caller": self.caller,
            "since": int(self.since),
            "expires": int(self.expires),
        }


class SettledApproval(msgspec.Struct, frozen=True):
    """The end of a call that waited, for the audit log."""

    approval: PendingApproval
    decision: ApprovalOutcome
    by: str = ""
    reason: str = ""
    content: Mapping[str, Any] | None = None
    """What was filled into the form of a question."""

    def answer(self) -> PersonsAnswer:
        """Return the answer to a question."""
        return PersonsAnswer(ACTIONS.get(self.decision, "cancel"), self.content)


class ApprovalQueue:
    """The waiting calls, and the decisions about them. `on_waiting` is called with each new one, `audit` with its end."""

    def __init__(
        self,
        audit: Callable[[SettledApproval], None] | None = None,
        now: Callable[[], float] = time.time,
        on_waiting: Callable[[PendingApproval], None] | None = None,
    ) -> None:
        self._audit = audit or _ignore
        self._on_waiting = on_waiting or _ignore
        self._now = now
        self._waiting: dict[str, tuple[PendingApproval, asyncio.Future[SettledApproval]]] = {}
        self._settled: OrderedDict[str, ApprovalOutcome] = OrderedDict()
        self._news = asyncio.Event()

    def waiting(self) -> tuple[PendingApproval, ...]:
        """Return the waiting calls, the oldest first."""
        return tuple(approval for approval, answer in self._waiting.values() if not answer.done())

    async def ask(
        self,
        tool: Tool,
        call: ReadyCall,
        report: Report,
        *,
        run_id: str,
        caller: str,
        seconds: float,
        max_waiting: int,
        grace: float = 0.0,
        id: str = "",
    ) -> Failed | None:
        """Wait for a decision about a call. Return None when it may run, else the failure for the model. `grace`: how long a
        decision may take to arrive from another process. `id`: of an earlier approval in another process."""
        if self._is_full(caller, max_waiting):
            return Failed("Not run: too many calls wait for approval already. Try again later.", FailureKind.REFUSED)
        since = self._now()
        approval = PendingApproval(
            id=self._new_id(id),
            tool=tool,
            call=copy.deepcopy(call),
            hash=hash_of(call),
            run_id=run_id,
            caller=caller,
            since=since,
            expires=since + seconds,
        )
        settled = await self._settled_of(approval, report, waits_for_approval(approval.id), seconds + grace)
        refusal = refusal_of(settled.decision, settled.by, settled.reason, seconds)
        if refusal is None and hash_of(call) != approval.hash:
            text = "Not run: its arguments are no longer those that were approved."
            refusal = Failed(text, FailureKind.REFUSED)
        if refusal is None:
            await report(approved_by(settled.by, settled.reason))
        return refusal

    async def put(
        self,
        question: Question,
        tool: Tool,
        call: ReadyCall,
        report: Report,
        *,
        run_id: str,
        caller: str,
        owner: str,
        seconds: float,
        max_waiting: int,
        grace: float = 0.0,
        id: str = "",
    ) -> PersonsAnswer:
        """Put a question of a running call to a person, and wait for the answer. Raises `NobodyToAsk`."""
        if self._is_full(caller, max_waiting):
            raise NobodyToAsk("too many calls wait for a person already")
        since = self._now()
        approval = PendingApproval(
            id=self._new_id(id),
            tool=tool,
            call=copy.deepcopy(call),
            hash=hash_of_question(call, question),
            run_id=run_id,
            caller=caller,
            since=since,
            expires=since + seconds,
            question=question,
            owner=owner,
        )
        settled = await self._settled_of(approval, report, waits_for_input(approval.id), seconds + grace)
        await report(told_of(question, settled.answer(), settled.by))
        return settled.answer()

    def _is_full(self, caller: str, max_waiting: int) -> bool:
        of_caller = sum(approval.caller == caller for approval, _ in self._waiting.values())
        return len(self._waiting) >= max_waiting or of_caller >= max(max_waiting // OF_ONE, 1)

    def _new_id(self, id: str) -> str:
        if id and id not in self._waiting:
            return id
        return f"apr_{secrets.token_hex(8)}"

    async def _settled_of(
        self, approval: PendingApproval, report: Report, waits: ProgressReport, seconds: float
    ) -> SettledApproval:
        """Have a call wait for its decision; return that, or what became of it without one."""
        answer: asyncio.Future[SettledApproval] = asyncio.get_running_loop().create_future()
        self._waiting[approval.id] = approval, answer
        self._notify()
        settled = SettledApproval(approval, ApprovalOutcome.WITHDRAWN)
        try:
            self._on_waiting(approval)
            await report(waits)
            await asyncio.wait([answer], timeout=seconds)
            if answer.done():
                settled = answer.result()
            else:
                settled = SettledApproval(approval, ApprovalOutcome.EXPIRED)
        finally:
            if answer.done():
                settled = answer.result()  # decided at the same moment
            del self._waiting[settled.approval.id]
            self._settled[settled.approval.id] = settled.decision
            while len(self._settled) > KEPT_SETTLED:
                self._settled.popitem(last=False)
            self._notify()
            self._audit(settled)
        return settled

    def decide(
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
    ) -> SettledApproval:
        """Approve or deny a waiting call, or answer its question. Raises `ChatError` where it does not wait. `owner`: of whoever
        may only answer the questions of his own requests."""
        if id in self._waiting and not self._waiting[id][1].done():
            approval, answer = self._waiting[id]
        else:
            if id in self._waiting:
                raise too_late(self._waiting[id][1].result().decision)
            if id in self._settled:
                raise too_late(self._settled[id])
            raise not_found()
        facts = approval.facts()
        check_owner(facts, owner)
        check_hash(hash, approval.hash, demanded=demand_hash)
        content = check_decision(facts, decision, content)
        settled = SettledApproval(approval, decision, by, reason.strip()[:MAX_REASON], content)
        answer.set_result(settled)
        return settled

    async def changed(self) -> None:
        """Wait until the set of waiting calls has changed."""
        await self._news.wait()

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def refusal_of(decision: ApprovalOutcome, by: str, reason: str, seconds: float) -> Failed | None:
    """Return the failure of a denied call, for the model; None where it was approved. `by`: who decided."""
    if decision is ApprovalOutcome.APPROVED:
        return None
    if decision is ApprovalOutcome.DENIED:
        why = f" Their reason: {_ended(reason)}" if reason else ""
        text = f"Not run: a person was asked and refused this call.{why} Do not send the same call again."
    else:
        text = f"Not run: this call needs a person's approval, and nobody gave it within {seconds:g} s."
    return Failed(text, FailureKind.REFUSED, str(decision), by, reason)


def _ended(reason: str) -> str:
    """Return a reason as a sentence, so that what follows it is another one."""
    return reason if reason.endswith((".", "!", "?", "…")) else f"{reason}."


def hash_of(call: ReadyCall) -> str:
    """Hash a call's tool and arguments, independent of the order of keys."""
    text = json.dumps([call.name, call.arguments], sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def hash_of_question(call: ReadyCall, question: Question) -> str:
    """Hash a question with the call that asks it."""
    facts = question.facts()
    text = json.dumps([call.name, call.arguments, facts], sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"


def told_of(question: Question, answer: PersonsAnswer, by: str) -> ProgressReport:
    """Return what the run is told of an answer: the fields that ask for secrets are masked."""
    content = ""
    if answer.content is not None and question.form is not None:
        content = json.dumps(masked_content(question.form, answer.content), ensure_ascii=False)
    return ProgressReport(WORDS_OF_ACTION[answer.action], decided_by=by, answer=content)


WORDS_OF_ACTION: dict[Action, str] = {"accept": "answered", "decline": "declined", "cancel": "not answered"}


def check_owner(facts: Mapping[str, Any], owner: str | None) -> None:
    """Refuse a decision of who may only answer the questions of his own requests about anything else."""
    if owner is not None and not (facts["kind"] == INPUT and facts["owner"] == owner):
        raise not_found()


def check_decision(facts: Mapping[str, Any], decision: ApprovalOutcome, content: Any) -> dict[str, Any] | None:
    """Return the content of an answer. Raises `ChatError` for a decision that does not fit what waits."""
    is_question = facts["kind"] == INPUT
    if is_question is not (decision in OF_QUESTIONS):
        if is_question:
            message = "A tool asks a question here: the decision is `answer`, `decline` or `cancel`."
        else:
            message = "A call waits to run here: the decision is `approve` or `deny`."
        raise ChatError(400, message, param="decision", code="invalid_decision")
    if decision is not ApprovalOutcome.ANSWERED or "schema" not in facts:
        if content is not None:
            raise ChatError(400, "Only the answer to a form has `content`.", param="content", code="invalid_content")
        return None
    try:
        return check_content(facts["schema"], content)
    except BadAnswer as error:
        place = f"content.{error.field}" if error.field else "content"
        raise ChatError(
            400, f"The answer does not fit the form: {error}", param=place, code="invalid_content"
        ) from None


def check_hash(sent_hash: str | None, hash_of_call: str, *, demanded: bool) -> None:
    """Refuse a decision with the hash of other arguments, or without a hash where it is required."""
    if sent_hash is None and demanded:
        raise ChatError(400, "A decision must name the `hash` that it is about.", param="hash", code="hash_required")
    if sent_hash is not None and not hmac.compare_digest(sent_hash.encode(), hash_of_call.encode()):
        raise ChatError(
            409, "The call that waits has other arguments than this hash is of.", param="hash", code="hash_mismatch"
        )


def not_found() -> ChatError:
    return ChatError(404, "No call waits under this id.", param="id", code="approval_not_found")


def too_late(decision: ApprovalOutcome) -> ChatError:
    return ChatError(
        409, f"This call was {decision} already; a decision counts once.", param="id", code=f"approval_{decision}"
    )


def _ignore(_: object) -> None:
    """Ignore notices."""
