"""The journal of one request: stores each call in the ledger when it waits, begins and ends."""

import hashlib
import time
from collections.abc import Callable

import msgspec
import structlog
from msgspec.structs import replace

from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.states import ReadyCall
from callgate.state.entry import BegunBefore, CallState, Ledger, LedgerEntry, NotRecorded
from callgate.state.tables import CUT_OFF, NEVER

NOT_WRITTEN_DOWN = "Not run: this server cannot write down what it runs at the moment. Try again later."
_NEVER_BEGAN = frozenset({FailureKind.REFUSED, FailureKind.NOT_RUN})
_UNSEEN_ENDS = frozenset({FailureKind.TIMEOUT, FailureKind.UNKNOWN})

log = structlog.get_logger("callgate.ledger")


class LedgerJournal(msgspec.Struct, eq=False):
    """Makes the record of each call of one request."""

    ledger: Ledger
    run_id: str
    key_name: str
    mask: Callable[[str], str] | None = None
    """Set where contents are stored; masks secrets in them."""

    def record(self, call: ReadyCall, turn: int, *, writes: bool, offered: bool = False) -> "LedgerRecord":
        arguments = call.text
        entry = LedgerEntry(
            self.run_id,
            turn,
            call.id,
            call.name,
            hashlib.sha256(arguments.encode(errors="surrogatepass")).hexdigest(),
            self.key_name,
            writes,
            time.time(),
            None if self.mask is None else self.mask(arguments),
            offered,
        )
        return LedgerRecord(_ledger=self.ledger, _entry=entry, _mask=self.mask)


class LedgerRecord(msgspec.Struct, eq=False, kw_only=True):
    """One call in the ledger. Only a call that began can have an unknown end."""

    _ledger: Ledger
    _entry: LedgerEntry
    _mask: Callable[[str], str] | None
    _waited: bool = False
    _began: bool = False
    _began_before: bool = False
    """Its row has been written by whoever began it."""

    def key(self) -> str:
        return self._ledger.key(self._entry)

    def wait(self) -> None:
        """Store that it waits for approval or for a place."""
        if not self._waited:
            self._waited = True
            self._ledger.wait(self._entry)

    async def begin(self) -> Outcome | None:
        """Store that it begins; it may run only if this returns None. A call with side effects needs a durable row, and one
        that began before has the outcome of its row."""
        if self._waited:
            self._entry = replace(self._entry, started_at=time.time())
        try:
            await self._ledger.start(self._entry)
        except BegunBefore as before:
            self._began_before = True
            return before.outcome
        except NotRecorded as failure:
            log.error("tool_run_not_recorded", tool=self._entry.tool, call_id=self._entry.call_id, error=str(failure))  # noqa: TRY400 - said once, by the writer
            if self._entry.writes:
                return Failed(NOT_WRITTEN_DOWN, FailureKind.REFUSED)
        self._began = True
        return None

    def end(self, outcome: Outcome) -> None:
        if self._began_before:
            return
        state, note = _state_and_note(outcome) if self._began else _never_began(outcome)
        self._ledger.end(self._entry, state, note, self._mask(outcome.text) if self._mask else None)

    def cut_off(self, error: BaseException) -> None:
        """Store that the request was cut off: the call is unknown, or withdrawn if it has not begun."""
        if self._began:
            self._ledger.end(self._entry, CallState.UNKNOWN, f"{CUT_OFF}{type(error).__name__}")
        else:
            self._ledger.end(self._entry, CallState.WITHDRAWN, f"{NEVER}the request ended first")


def _never_began(outcome: Outcome) -> tuple[CallState, str]:
    return CallState.FAILED, f"{NEVER}{outcome.kind}" if isinstance(outcome, Failed) else "never begun"


def _state_and_note(outcome: Outcome) -> tuple[CallState, str]:
    if not isinstance(outcome, Failed):
        if outcome.facts is not None and outcome.facts.cached_of:
            return CallState.DONE, f"cached: of {outcome.facts.cached_of}"
        return CallState.DONE, ""
    if outcome.kind in _NEVER_BEGAN:
        return _never_began(outcome)
    return (CallState.UNKNOWN if outcome.kind in _UNSEEN_ENDS else CallState.FAILED), str(outcome.kind)
