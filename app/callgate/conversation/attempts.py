"""The attempts at one turn: the deployments that were asked, their failures, and the choice of the next one."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from callgate.conversation.errors import ChatError
from callgate.conversation.events import NO_RESPONDER, Attempt, Responder

UNGUIDED = 3
"""How often a model without retries of its own is asked for one turn."""


class AttemptChooser(Protocol):
    """Finds the next deployment to ask."""

    @property
    def number(self) -> int:
        """The number of attempts."""
        ...

    def responder(self) -> Responder:
        """Return the deployment that was asked last."""
        ...

    def succeeded(self, *, gave_reason: bool) -> bool:
        """Note that the last answer is complete, and whether it had a finish reason. Return whether a reason is missing: the
        deployment has sent reasons before."""
        ...

    async def failed(self, failure: ChatError) -> None:
        """Note that the last answer broke off."""
        ...

    async def go_on(self, failure: ChatError) -> None:
        """Choose the deployment that is asked next, and wait before it if necessary; raises the failure where none is left."""
        ...


class Attempts(msgspec.Struct, eq=False):
    """The attempts at one turn. A model with several deployments sets `chooser` to choose among them."""

    turn: int
    emit: Callable[[Attempt], Awaitable[None]]
    chooser: AttemptChooser | None = None
    number: int = 1
    """How many attempts there were when the last one ended."""
    by: Responder = NO_RESPONDER
    """The deployment that was asked last."""
    began: float = 0.0
    """When the turn began. A model that was asked before sets it to the time of that."""

    def succeeded(self, *, gave_reason: bool) -> bool:
        """Note that the turn is complete, and whether it had a finish reason. Return whether a reason is missing: the deployment
        has sent reasons before."""
        chooser = self.chooser
        if chooser is None:
            return False
        is_missing = chooser.succeeded(gave_reason=gave_reason)
        self.by = chooser.responder()
        self.number = chooser.number
        return is_missing

    async def broke_off(self, failure: ChatError, seconds: float) -> None:
        """Note that the turn broke off in the middle."""
        chooser = self.chooser
        if chooser is None:
            reason = failure.code or failure.type
            await self.emit(Attempt(self.turn, self.number, NO_RESPONDER, seconds, status=200, reason=reason))
            return
        await chooser.failed(failure)
        self.by = chooser.responder()
        self.number = chooser.number

    async def go_on(self, failure: ChatError) -> bool:
        """Prepare another attempt after a failure before any output; return whether there may be one."""
        if self.chooser is None:
            self.number += 1
            return self.number <= UNGUIDED
        try:
            await self.chooser.go_on(failure)
        except ChatError as last:
            last.with_traceback(None)  # it is the failure itself, and would be in a cycle with this frame
            return False
        return True
