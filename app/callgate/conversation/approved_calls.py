"""Runs calls of an earlier turn that have been approved since, before the model is asked again."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.calls.arguments import Fragments
from callgate.calls.gate import FoundCall, settle
from callgate.calls.offer import Offer
from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.selection import ToolOrigin
from callgate.calls.states import BrokenCall, Call, ReadyCall
from callgate.conversation import feedback
from callgate.conversation.events import BEFORE_ALL_TURNS
from callgate.conversation.ports import Begin, Emit, Message, Plan, Report, Toolbox
from callgate.conversation.turn_calls import run_calls


class ApprovedCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call as it was shown for approval."""

    id: str
    name: str
    arguments: str
    placeholder: str
    """The content of the message that its result will be in."""


class _ToolMessage(msgspec.Struct, gc=False):
    role: str = ""
    tool_call_id: str = ""
    content: Any = None


_tool_message = msgspec.json.Decoder(_ToolMessage).decode


class ClientApprovals(msgspec.Struct, gc=False):
    """The calls that a client approves by itself, and its decisions."""

    asks: Callable[[ToolOrigin | None], bool]
    """Whether calls of a tool need the client's approval. None is a tool of unknown origin."""
    approved: Sequence[ApprovedCall]
    claim: Callable[[str], Awaitable[None]]
    """Marks the decisions as used by a run. Raises where another used one before."""


class ClientApprovalToolbox:
    """Hands calls that the client approves itself back to it, as if the tools were its own."""

    def __init__(self, inner: Toolbox, asks: Callable[[str], bool]) -> None:
        self._inner, self._asks = inner, asks

    @property
    def offer(self) -> Offer:
        return self._inner.offer

    @property
    def schemas(self) -> Sequence[msgspec.Raw]:
        return self._inner.schemas

    def plan(self, calls: Sequence[Call]) -> Plan:
        plan = self._inner.plan(calls)
        asked = {call.id for call in plan.ours if self._asks(call.name)}
        if not asked:
            return plan
        theirs = {call.id for call in plan.theirs} | asked
        return replace(
            plan,
            ours=tuple(call for call in plan.ours if call.id not in asked),
            theirs=tuple(call for call in calls if call.id in theirs),
        )

    def is_clients(self, name: str | None) -> bool:
        return self._inner.is_clients(name)

    def writes(self, call: ReadyCall) -> bool:
        return self._inner.writes(call)

    def is_ordered(self, call: ReadyCall) -> bool:
        return self._inner.is_ordered(call)

    async def run(self, call: ReadyCall, report: Report, begin: Begin) -> Outcome:
        return await self._inner.run(call, report, begin)


async def run_approved(
    history: Sequence[Message],
    approved: Sequence[ApprovedCall],
    toolbox: Toolbox,
    emit: Emit,
    *,
    most: int,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Message, ...]:
    """Return the history with the results of the approved calls, of which at most `most` run at the same time. They pass the
    gate again, because the offered tools may have changed."""
    waiting = _waiting_in(history, approved)
    judged = {call.id: _judged(call, toolbox) for _, call in waiting.values()}
    outcomes: dict[str, Outcome] = {id: outcome for id, outcome in judged.items() if isinstance(outcome, Failed)}
    calls = [call for call in judged.values() if isinstance(call, ReadyCall)]
    if calls:
        outcomes |= await run_calls(calls, toolbox, emit, BEFORE_ALL_TURNS, most=most, clock=clock)
    messages = list(history)
    for place, (answer_to, call) in waiting.items():
        messages[place] = {"role": "tool", "tool_call_id": answer_to, "content": outcomes[call.id].text}
    return tuple(messages)


def _waiting_in(history: Sequence[Message], approved: Sequence[ApprovedCall]) -> dict[int, tuple[str, ApprovedCall]]:
    """Return the approved calls by the places of the messages that answer them, with the ids in these: a turn that was restored
    has the model's own."""
    waiting: dict[int, tuple[str, ApprovedCall]] = {}
    by_placeholder = {call.placeholder: call for call in approved}
    for place, message in enumerate(history if approved else ()):
        answer = _tool_message_of(message)
        if answer is not None and isinstance(answer.content, str) and answer.content in by_placeholder:
            waiting[place] = answer.tool_call_id, by_placeholder.pop(answer.content)
    return waiting


def _tool_message_of(message: Message) -> _ToolMessage | None:
    if isinstance(message, msgspec.Raw):
        found = _tool_message(message) if b'"tool_call_id"' in bytes(message) else None
    elif message["role"] == "tool":
        found = msgspec.convert(message, _ToolMessage)
    else:
        found = None
    return found if found is not None and found.role == "tool" else None


def _judged(approved: ApprovedCall, toolbox: Toolbox) -> ReadyCall | Failed:
    """Return the call that can be run, or the failure of one that cannot."""
    written = Fragments()
    written.add(approved.arguments)
    found = FoundCall(approved.id, approved.name, written)
    [call] = settle([found], toolbox.offer, failure=None, at_length=False, new_id=lambda: approved.id)
    if isinstance(call, BrokenCall):
        return Failed(feedback.explain(call, toolbox.offer))
    if toolbox.is_clients(call.name):
        return Failed("Not run: a tool of this name is the client's now.", FailureKind.NOT_RUN)
    return call
