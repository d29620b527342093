"""Progress of a call on its way to the listeners. A tool may report as fast as it likes; what is passed on is what somebody can
follow, because listeners keep it."""

from collections.abc import Callable
from typing import Final

from callgate.calls.states import ReadyCall
from callgate.conversation.events import CallProgress
from callgate.conversation.ports import ApprovalNotice, Emit

BURST: Final = 100
"""Messages that one call may report at once."""
PER_SECOND: Final = 20
"""And on average; what comes faster is left out."""
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
            said = str(message[:LONGEST])
            await self._emit(CallProgress(self._turn, self._call, said, fraction, waits_for, approved))
