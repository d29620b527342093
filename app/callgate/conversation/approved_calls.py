"""Runs calls of an earlier turn that have been approved since, before the model is asked again."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.calls.arguments import Fragments
from callgate.calls.gate import FoundCall, settle
from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.selection import ToolOrigin
from callgate.calls.states import BrokenCall, Call, ReadyCall
from callgate.conversation import feedback
from callgate.conversation.events import BEFORE_ALL_TURNS
from callgate.conversation.ports import Emit, Message, Plan, Toolbox
from callgate.conversation.turn_calls import run_calls
from callgate.conversation.wrapper_toolbox import WrapperToolbox, in_order_of
from callgate.untrusted.readers import json_reader


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


_tool_message = json_reader(_ToolMessage)


class ClientApprovals(msgspec.Struct, gc=False):
    """The calls that a client approves by itself, and its decisions."""

    asks: Callable[[ToolOrigin | None], bool]
    """Whether calls of a tool need the client's approval. None is a tool of unknown origin."""
    approved: Sequence[ApprovedCall]
    claim: Callable[[str], Awaitable[None]]
    """Marks the decisions as used by a run. Raises where another used one before."""


class ClientApprovalToolbox(WrapperToolbox):
    """Hands calls that the client approves itself back to it, as if the tools were its own."""

    def __init__(self, inner: Toolbox, asks: Callable[[str], bool]) -> None:
        super().__init__(inner)
        self._asks = asks

    def plan(self, calls: Sequence[Call]) -> Plan:
        plan = self._inner.plan(calls)
        for_approval = [call for call in plan.ours if self._asks(call.name)]
        if not for_approval:
            return plan
        ids = {call.id for call in for_approval}
        ours = tuple(call for call in plan.ours if call.id not in ids)
        return in_order_of(calls, replace(plan, ours=ours, theirs=(*plan.theirs, *for_approval)))


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
        if b'"tool_call_id"' in bytes(message):
            tool_message = _tool_message(message)
        else:
            tool_message = None
    elif message["role"] == "tool":
        tool_message = msgspec.convert(message, _ToolMessage)
    else:
        tool_message = None
    if tool_message is not None and tool_message.role == "tool":
        return tool_message
    return None


def _judged(approved: ApprovedCall, toolbox: Toolbox) -> ReadyCall | Failed:
    """Return the call that can be run, or the failure of one that cannot."""
    written = Fragments()
    written.add(approved.arguments)
    call_written = FoundCall(approved.id, approved.name, written)
    [call] = settle([call_written], toolbox.offer, failure=None, at_length=False, new_id=lambda: approved.id)
    if isinstance(call, BrokenCall):
        return Failed(feedback.explain(call, toolbox.offer))
    if toolbox.is_clients(call.name):
        return Failed("Not run: a tool of this name is the client's now.", FailureKind.NOT_RUN)
    return call
