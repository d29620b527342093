"""The attempts at one turn: the deployments that were asked, their failures, and the choice of the next one."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from callgate.conversation.errors import ChatError
from callgate.conversation.events import NOBODY, Attempt, Responder

UNGUIDED = 3
"""How often a model without retries of its own is asked for one turn."""


class Repeater(Protocol):
    """Finds the next deployment to ask."""

    @property
    def number(self) -> int:
        """The number of attempts."""
        ...

    @property
    def by(self) -> Responder:
        """The deployment that was asked last."""
        ...

    def succeeded(self) -> None:
        """Note that the last answer is complete."""
        ...

    async def failed(self, failure: ChatError) -> None:
        """Note that the last answer broke off."""
        ...

    async def go_on(self, failure: ChatError) -> None:
        """Choose the deployment that is asked next, and wait before it if necessary; raises the failure where none is left."""
        ...


class Attempts(msgspec.Struct, eq=False):
    """The attempts at one turn. A model with several deployments sets `in_charge` to choose among them."""

    turn: int
    emit: Callable[[Attempt], Awaitable[None]]
    in_charge: Repeater | None = None
    _asked: int = 1

    @property
    def number(self) -> int:
        return self._asked if self.in_charge is None else self.in_charge.number

    @property
    def by(self) -> Responder:
        return NOBODY if self.in_charge is None else self.in_charge.by

    def succeeded(self) -> None:
        """Note that the turn is complete."""
        if self.in_charge is not None:
            self.in_charge.succeeded()

    async def broke_off(self, failure: ChatError, seconds: float) -> None:
        """Note that the turn broke off in the middle."""
        if self.in_charge is not None:
            await self.in_charge.failed(failure)
        else:
            reason = failure.code or failure.type
            await self.emit(Attempt(self.turn, self._asked, NOBODY, seconds, status=200, reason=reason))

    async def go_on(self, failure: ChatError) -> bool:
        """Prepare another attempt after a failure before any output; return whether there may be one."""
        if self.in_charge is None:
            self._asked += 1
            return self._asked <= UNGUIDED
        try:
            await self.in_charge.go_on(failure)
        except ChatError:
            return False
        return True
