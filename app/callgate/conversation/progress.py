"""Limits the progress reports of a call, because listeners store them."""

from collections.abc import Callable
from typing import Final

from callgate.calls.states import ReadyCall
from callgate.conversation.events import CallProgress
from callgate.conversation.ports import ApprovalNotice, Emit

BURST: Final = 100
"""Reports of one call that are passed on at once."""
PER_SECOND: Final = 20
"""The average rate; reports beyond it are dropped."""
LONGEST: Final = 2000
"""Characters of one message."""


class CallReports:
    """The progress reports of one call, limited in rate and length."""

    def __init__(self, emit: Emit, turn: int, call: ReadyCall, clock: Callable[[], float]) -> None:
        self._emit, self._turn, self._call, self._clock = emit, turn, call, clock
        self._left = float(BURST)
        self._at = clock()

    async def report(self, message: str, fraction: float | None = None) -> None:
        now = self._clock()
        self._left = min(self._left + (now - self._at) * PER_SECOND, BURST)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            waits_for, approved = "", False
            if isinstance(message, ApprovalNotice):
                waits_for, approved = message.wanted, not message.wanted
            shortened = str(message[:LONGEST])
            await self._emit(CallProgress(self._turn, self._call, shortened, fraction, waits_for, approved))
