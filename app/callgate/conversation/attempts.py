"""The attempts at one turn: the deployments that were asked, the failures, and the next one where an answer breaks
off."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from callgate.conversation.errors import ChatError
from callgate.conversation.events import NOBODY, Attempt, Responder

UNGUIDED = 3
"""How often a model is asked for one turn that cannot say itself who else there is."""


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
        """The last answer came to its end."""
        ...

    async def failed(self, failure: ChatError) -> None:
        """The last answer broke off."""
        ...

    async def go_on(self, failure: ChatError) -> None:
        """Find who is asked next, and wait as long as is due; raises the failure where nobody is left."""
        ...


class Attempts(msgspec.Struct, eq=False):
    """The attempts at one turn. A model that has several ways to be asked takes charge of them."""

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
        """The turn came to its end."""
        if self.in_charge is not None:
            self.in_charge.succeeded()

    async def broke_off(self, failure: ChatError, seconds: float) -> None:
        """The turn broke off in the middle."""
        if self.in_charge is not None:
            await self.in_charge.failed(failure)
        else:
            reason = failure.code or failure.type
            await self.emit(Attempt(self.turn, self._asked, NOBODY, seconds, status=200, reason=reason))

    async def go_on(self, failure: ChatError) -> bool:
        """Prepare another attempt after a failure of which nothing was passed on; return whether there may be one."""
        if self.in_charge is None:
            self._asked += 1
            return self._asked <= UNGUIDED
        try:
            await self.in_charge.go_on(failure)
        except ChatError:
            return False
        return True
