"""One call of a tool that no model makes: through the gate, its policy, approval, the ledger and the recorder, as a model's call."""

import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar

from callgate.api.answers import ClientDisconnected
from callgate.api.conversation import WriteNote
from callgate.api.middleware import CLIENT_CLOSED, RequestContext
from callgate.api.recording import private_to, wants_content
from callgate.callers.caller import Caller
from callgate.calls.outcome import Outcome
from callgate.calls.states import Call
from callgate.conversation.errors import ChatError
from callgate.conversation.events import CallEnded, CallWritten, TurnEnded
from callgate.conversation.listeners import Handlers, Listener, emit_to_listeners, handles
from callgate.conversation.ports import Emit, Toolbox, emit_nothing
from callgate.conversation.single_call import call_once
from callgate.conversation.turn import TurnJudge
from callgate.records.row import RunRow
from callgate.runtime.manager import new_call_id
from callgate.runtime.runtime import Runtime

Within = Callable[[Coroutine[Any, Any, None]], Awaitable[None]]
"""Awaits the call for as long as somebody waits for it."""


class DirectCall:
    """One call, run as a chat of one turn."""

    def __init__(
        self,
        runtime: Runtime,
        context: RequestContext,
        caller: Caller,
        toolbox: Toolbox,
        *,
        run_id: str,
        route: str,
        name: str,
        arguments: str,
    ) -> None:
        """`toolbox` has the tool. `arguments`: as they were written."""
        self._runtime = runtime
        self._context = context
        self._caller = caller
        self._toolbox = toolbox
        self._run_id = run_id
        self._route = route
        self._name = name
        self._arguments = arguments

    async def result(self, within: Within, emit: Emit = emit_nothing) -> "CallResult":
        """Run the call, and record it. Raises `ChatError`, and `ClientDisconnected` if `within` does."""
        runtime = self._runtime
        call_result = CallResult()
        row = RunRow(
            id=self._run_id,
            began=time.time(),
            request_id=self._context.request_id,
            key=self._caller.name,
            route=self._route,
        )
        policy = runtime.recording.policy(
            self._caller.name,
            content=wants_content(self._context),
            private_to=private_to(runtime, self._context, self._caller),
        )
        trace = runtime.traces.begin(self._context.headers, self._run_id)
        recording = runtime.recorder.begin(row, policy, trace=trace)
        status = 200
        error = ""
        state = "cut_off"
        try:
            listeners: list[Listener] = [
                recording.events_listener(0),
                call_result,
                WriteNote(_context=self._context),
                runtime.log_listener(self._run_id),
            ]
            await within(self._carried_out(listeners, emit))
            state = ""
        except ClientDisconnected:
            status = CLIENT_CLOSED
            state = "client_left"
            self._context.notes["ending"] = state
            raise
        except ChatError as failure:
            status = failure.status
            error = failure.code or failure.type
            state = "failed"
            raise
        finally:
            runtime.recorder.end(recording, state=state, status=status, error=error)
        return call_result

    async def _carried_out(self, listeners: list[Listener], emit: Emit) -> None:
        toolbox = self._toolbox
        judge: TurnJudge | None = None
        if (guarding := self._runtime.guarding) is not None:
            guard = guarding.calls(self._caller, self._run_id, listeners)
            toolbox = guard.watched(toolbox)
            judge = guard.judge
        await call_once(
            CallWritten(self._name, self._arguments, new_call_id()),
            toolbox,
            emit_to_listeners(listeners, emit),
            new_id=new_call_id,
            rules=self._runtime.rules,
            judge=judge,
        )


class CallResult(Listener):
    """What became of the call."""

    handlers: ClassVar[Handlers] = {}

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self.outcome: Outcome | None = None
        """None where it was broken."""
        self.seconds = 0.0

    @property
    def call(self) -> Call:
        """The call, as the gate judged it."""
        return self._calls[0]

    @handles(handlers, TurnEnded)
    def _turn_ended(self, event: TurnEnded) -> None:
        self._calls += [*event.answer.run, *event.answer.broken]

    @handles(handlers, CallEnded)
    def _call_ended(self, event: CallEnded) -> None:
        self.outcome = event.outcome
        self.seconds = event.seconds
