"""Limits the progress reports of a call, because listeners store them."""

from collections.abc import Callable
from typing import Final

from callgate.calls.states import ReadyCall
from callgate.conversation.events import CallProgress
from callgate.conversation.ports import Emit, ProgressReport

BURST: Final = 100
"""Reports of one call that are passed on at once."""
PER_SECOND: Final = 20
"""The average rate; reports beyond it are dropped."""
LONGEST: Final = 2000
"""Characters of one message."""


class CallReports:
    """The progress reports of one call, limited in rate and length."""

    def __init__(self, emit: Emit, turn: int, call: ReadyCall, clock: Callable[[], float]) -> None:
        self._emit = emit
        self._turn = turn
        self._call = call
        self._clock = clock
        self._left = float(BURST)
        self._at = clock()

    async def report(self, progress: ProgressReport) -> None:
        now = self._clock()
        self._left = min(self._left + (now - self._at) * PER_SECOND, BURST)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            await self._emit(
                CallProgress(
                    self._turn,
                    self._call,
                    progress.message[:LONGEST],
                    progress.fraction,
                    progress.waits_for,
                    progress.approved,
                    progress.decided_by,
                    progress.reason,
                    progress.asks,
                    progress.answer,
                )
            )
