"""The attempts at one turn: who was asked, what failed, and who is asked next where an answer breaks off."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from callgate.conversation.errors import ChatError
from callgate.conversation.events import NOBODY, Attempt, Responder

UNGUIDED = 3
"""How often a model is asked for one turn that cannot say itself who else there is."""


class Repeater(Protocol):
    """What knows who else can be asked."""

    @property
    def number(self) -> int:
        """How often somebody was asked."""
        ...

    @property
    def by(self) -> Responder:
        """Who was asked last."""
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


class Attempts:
    """The attempts at one turn. A model that has several ways to be asked takes charge of them."""

    __slots__ = ("_asked", "emit", "in_charge", "turn")

    def __init__(self, turn: int, emit: Callable[[Attempt], Awaitable[None]]) -> None:
        self.turn = turn
        self.emit = emit
        self.in_charge: Repeater | None = None
        self._asked = 1

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
        """Whether the turn may be asked for once more, after a failure of which nothing was passed on."""
        if self.in_charge is None:
            self._asked += 1
            return self._asked <= UNGUIDED
        try:
            await self.in_charge.go_on(failure)
        except ChatError:
            return False
        return True
