"""A toolbox whose every run stands in the ledger, before it begins and after it ended."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence

import msgspec
import structlog

from callgate.calls.offer import Offer
from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.states import Call, ReadyCall
from callgate.conversation.ports import Plan, Report, Toolbox
from callgate.ledger.entry import Ledger, LedgerEntry, NotRecorded, RunState

NOT_WRITTEN_DOWN = "Not run: this server cannot write down what it runs at the moment. Try again later."
_NEVER_BEGAN = frozenset({FailureKind.REFUSED, FailureKind.NOT_RUN})
_UNSEEN_ENDS = frozenset({FailureKind.TIMEOUT, FailureKind.UNKNOWN})

log = structlog.get_logger("callgate.ledger")


class RecordedToolbox:
    """Around another toolbox. What may write is not started unless it stands in the ledger."""

    def __init__(
        self,
        inner: Toolbox,
        ledger: Ledger,
        *,
        run_id: str,
        key_name: str,
        mask: Callable[[str], str] | None = None,
    ) -> None:
        self._inner, self._ledger = inner, ledger
        self._run_id, self._key_name = run_id, key_name
        self._mask = mask
        """Set where contents are kept: takes secrets out of them."""
        self._turn = -1
        self.offer: Offer = inner.offer
        self.schemas: Sequence[msgspec.Raw] = inner.schemas

    def plan(self, calls: Sequence[Call]) -> Plan:
        self._turn += 1
        return self._inner.plan(calls)

    def is_clients(self, name: str | None) -> bool:
        return self._inner.is_clients(name)

    def writes(self, call: ReadyCall) -> bool:
        return self._inner.writes(call)

    async def run(self, call: ReadyCall, report: Report) -> Outcome:
        entry = self._entry(call)
        try:
            await self._ledger.start(entry)
        except NotRecorded as failure:
            log.error("tool_run_not_recorded", tool=call.name, call_id=call.id, error=str(failure))  # noqa: TRY400 - said once, by the writer
            if entry.writes:
                return Failed(NOT_WRITTEN_DOWN, FailureKind.REFUSED)
        except asyncio.CancelledError:
            self._ledger.end(entry, RunState.FAILED, "never begun: the request ended first")
            raise
        try:
            outcome = await self._inner.run(call, report)
        except BaseException as failure:
            self._ledger.end(entry, RunState.UNKNOWN, f"cut off: {type(failure).__name__}")
            raise
        state, note = _seen(outcome)
        self._ledger.end(entry, state, note, self._mask(outcome.text) if self._mask else None)
        return outcome

    def _entry(self, call: ReadyCall) -> LedgerEntry:
        return LedgerEntry(
            run_id=self._run_id,
            turn=max(self._turn, 0),
            call_id=call.id,
            tool=call.name,
            arguments_hash=hashlib.sha256(call.text.encode(errors="surrogatepass")).hexdigest(),
            key_name=self._key_name,
            writes=self._inner.writes(call),
            started_at=time.time(),
            arguments=self._mask(call.text) if self._mask else None,
        )


def _seen(outcome: Outcome) -> tuple[RunState, str]:
    if not isinstance(outcome, Failed):
        return RunState.DONE, ""
    if outcome.kind in _NEVER_BEGAN:
        return RunState.FAILED, f"never begun: {outcome.kind}"
    return (RunState.UNKNOWN if outcome.kind in _UNSEEN_ENDS else RunState.FAILED), str(outcome.kind)
