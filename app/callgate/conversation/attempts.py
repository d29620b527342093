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

    @property
    def by(self) -> Responder:
        """The deployment that was asked last."""
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
    _asked: int = 1

    @property
    def number(self) -> int:
        return self._asked if self.chooser is None else self.chooser.number

    @property
    def by(self) -> Responder:
        return NO_RESPONDER if self.chooser is None else self.chooser.by

    def succeeded(self, *, gave_reason: bool) -> bool:
        """Note that the turn is complete, and whether it had a finish reason. Return whether a reason is missing: the deployment
        has sent reasons before."""
        return self.chooser is not None and self.chooser.succeeded(gave_reason=gave_reason)

    async def broke_off(self, failure: ChatError, seconds: float) -> None:
        """Note that the turn broke off in the middle."""
        if self.chooser is not None:
            await self.chooser.failed(failure)
        else:
            reason = failure.code or failure.type
            await self.emit(Attempt(self.turn, self._asked, NO_RESPONDER, seconds, status=200, reason=reason))

    async def go_on(self, failure: ChatError) -> bool:
        """Prepare another attempt after a failure before any output; return whether there may be one."""
        if self.chooser is None:
            self._asked += 1
            return self._asked <= UNGUIDED
        try:
            await self.chooser.go_on(failure)
        except ChatError as last:
            last.with_traceback(None)  # it is the failure itself, and would be in a cycle with this frame
            return False
        return True
