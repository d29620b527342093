"""One durable run: stores the turns and outcomes of its chats, so that another process can resume it.

A chat is resumed by replaying it from the stored turns. A call with a stored outcome is not run again. A call without a
known outcome is run again if it is read-only; otherwise the model is sent that its outcome is unknown.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from callgate.calls.offer import Offer
from callgate.calls.outcome import Failed, FailureKind, Outcome, decode_outcome, encode_outcome
from callgate.calls.states import Call, ReadyCall
from callgate.conversation.errors import ChatError
from callgate.conversation.ports import Begin, Plan, Report, Toolbox, TurnModel, begin_at_once
from callgate.conversation.replay import StoredTurn, StoredTurnsModel
from callgate.ledger.database import DatabaseAway
from callgate.ledger.entry import BegunBefore, Ledger, LedgerEntry, NotRecorded, RunState
from callgate.ledger.runs import NOT_BEGUN, Fenced, RunLedger, StoredCall, StoredRun

AGAIN_SECONDS: Final = 0.25
"""The interval of attempts to write what a run cannot continue without."""
MOST_EPOCHS: Final = 4
"""How many processes may run a read-only call again: it may be what crashes them."""
UNKNOWN: Final = (
    "The server that ran this was lost before it answered: what it should do may or may not have happened. It is not run again."
    " Look whether it happened before you call it again."
)
SETTLED: Final = "Not run: this call was answered without being run when it was made."
TAKEN_OVER: Final = "run_taken_over"

log = structlog.get_logger("callgate.runs")
T = TypeVar("T")


class TakenOver(ChatError):
    """Raised where this process was taken for dead and another has resumed the run: nothing is answered here."""

    def __init__(self) -> None:
        super().__init__(
            503,
            "Another process carries this run on. Ask again with the same Idempotency-Key.",
            type="server_error",
            code=TAKEN_OVER,
            retry_after=1,
        )


class DurableRun:
    """A run of this process, with what is stored of it."""

    def __init__(
        self,
        ledger: RunLedger,
        calls: Ledger,
        stored: StoredRun,
        turns: Mapping[tuple[int, int], bytes] | None = None,
        known: Mapping[str, StoredCall] | None = None,
        *,
        answered: bytes = b"",
        leave: Callable[[str], None],
    ) -> None:
        """`leave` is called with the run's id when another process has taken it over, with its calls."""
        self.answered = answered
        """The answer in the background before this process took the run over."""
        self.stored = stored
        self.is_lost = False
        """Another process has taken it over."""
        self.whole_body: bytes | None = None
        """The whole answer, where it is streamed."""
        self.before_end: Callable[[], Awaitable[None]] | None = None
        """Stores what has to be stored before its end."""
        self._models: dict[int, StoredTurnsModel] = {}
        """Of its chats, by their choices."""
        self._ledger, self._calls = ledger, calls
        self._turns, self._known = turns or {}, known or {}
        self._leave = leave

    @classmethod
    async def taken_over(
        cls, ledger: RunLedger, calls: Ledger, stored: StoredRun, *, leave: Callable[[str], None]
    ) -> "DurableRun":
        await ledger.settle_calls(stored)
        turns, known = await ledger.turns(stored.id), await ledger.calls(stored.id)
        parts = await ledger.parts(stored.id) if stored.background else ()
        return cls(ledger, calls, stored, turns, known, answered=b"".join(body for _, body in parts), leave=leave)

    @property
    def id(self) -> str:
        return self.stored.id

    @property
    def has_written(self) -> bool:
        """True if a call that may write was begun before this process took the run over."""
        return any(call.writes and call.state not in NOT_BEGUN for call in self._known.values())

    def choice(self, number: int) -> "DurableChoice":
        """Return the chat of one choice."""
        turns: list[StoredTurn] = []
        while (body := self._turns.get((number, len(turns)))) is not None:
            turns.append(StoredTurn.decode(body))
        return DurableChoice(self, number, turns)

    @property
    def kept_turns(self) -> int:
        """The number of stored turns of its chat."""
        return len(self._turns)

    def begun(self, key: str) -> StoredCall | None:
        """Return a call that began, or has an outcome, from before this process took the run over."""
        call = self._known.get(key)
        return None if call is None or (call.outcome is None and call.state in NOT_BEGUN) else call

    def known(self, key: str) -> Outcome | None:
        """Return the outcome that a call had before this process took the run over; None where it is to be run."""
        call = self._known.get(key)
        if call is None:
            return None
        if call.outcome is not None:
            return decode_outcome(call.outcome)
        if call.state is RunState.UNKNOWN and (call.writes or self.stored.epoch > MOST_EPOCHS):
            return Failed(UNKNOWN, FailureKind.UNKNOWN)
        return None

    async def keep_turn(self, choice: int, turn: int, kept: StoredTurn) -> None:
        body = kept.encode()
        await self.insist(lambda: self._ledger.append(self.stored, choice, turn, body))

    def follow_turns(self, choice: int, model: StoredTurnsModel) -> None:
        self._models[choice] = model

    async def keep_answer(self, part: int, body: bytes) -> None:
        """Store a part of an answer in the background before a client is sent it. Raises `TakenOver`."""
        await self.insist(lambda: self._ledger.append_part(self.stored, part, body))

    async def keep_turns(self, choice: int = 0) -> None:
        """Store all turns of a chat, so that a process that takes the run over makes the same answer. Raises `TakenOver`."""
        model = self._models.get(choice)
        if model is None or not await model.keep():
            await self.insist(lambda: self._ledger.check(self.stored))

    async def claim(self, entry: LedgerEntry) -> None:
        """Claim a call. Raises `NotRecorded` where it cannot be stored that it begins, and `BegunBefore`."""
        known = self._known.get(entry.id)
        try:
            if known is not None and known.state is RunState.STARTED:  # a worker may be running it
                begun = await self.insist(lambda: self._ledger.claim(self.stored, entry))
            else:
                begun = await self._ledger.claim(self.stored, entry)
        except DatabaseAway as away:
            raise NotRecorded(str(away)) from away
        except Fenced:
            raise self._lost() from None
        if begun is None:
            return
        log.warning("call_begun_before", run_id=self.id, tool=entry.tool, call_id=entry.call_id, state=begun.state)
        if begun.outcome is not None:
            raise BegunBefore(decode_outcome(begun.outcome))
        raise BegunBefore(Failed(UNKNOWN, FailureKind.UNKNOWN))

    async def end_call(self, entry: LedgerEntry, end: "CallEnd", outcome: Outcome) -> None:
        kept = encode_outcome(outcome)
        await self.insist(
            lambda: self._ledger.end_call(self.stored, entry, end.state, end.note, end.result, kept, began=end.began)
        )

    async def insist(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write what the run cannot continue without; retried until the ledger is there."""
        waits = False
        while True:
            try:
                return await write()
            except Fenced:
                raise self._lost() from None
            except DatabaseAway as away:
                if self.is_lost:
                    raise TakenOver from away
                if not waits:
                    log.warning("run_waits_for_ledger", run_id=self.id, error=str(away))
                waits = True
            await asyncio.sleep(AGAIN_SECONDS)

    def wait_for(self, entry: LedgerEntry) -> None:
        self._calls.wait(entry)

    def abandon_call(self, entry: LedgerEntry, end: "CallEnd") -> None:
        """End the record of a cancelled call. Not where another process has the run."""
        if not self.is_lost:
            self._calls.end(entry, end.state, end.note, end.result)

    async def settle(self) -> None:
        """Wait until its end may be stored. Raises `TakenOver`."""
        if self.before_end is not None:
            await self.before_end()
        if self.is_lost:
            raise TakenOver

    def lose(self) -> None:
        """Leave the run to another process: nothing of it is written here any more, and its calls on workers go on."""
        self.is_lost = True
        self._leave(self.id)

    def _lost(self) -> TakenOver:
        self.lose()
        return TakenOver()


class CallEnd(msgspec.Struct, frozen=True):
    """The stored end of a call."""

    state: RunState
    note: str
    result: str | None
    began: bool


class DurableChoice:
    """One chat of a run: wraps its model and toolbox to replay what the ledger has."""

    def __init__(self, run: DurableRun, number: int, turns: Sequence[StoredTurn]) -> None:
        self._run, self._number, self.kept = run, number, turns
        self.ledger = DurableLedger(run, number)

    def chat(self, model: TurnModel, toolbox: Toolbox) -> tuple[TurnModel, Toolbox]:
        async def keep(turn: int, kept: StoredTurn) -> None:
            await self._run.keep_turn(self._number, turn, kept)

        remembering = StoredTurnsModel(model, self.kept, keep)
        self._run.follow_turns(self._number, remembering)
        return remembering, DurableToolbox(toolbox, self._run, self.ledger, remembering)


class DurableLedger:
    """The ledger of one chat. The keys of its calls are the same in every process: run, choice, turn, place in the turn."""

    def __init__(self, run: DurableRun, choice: int) -> None:
        self.process = ""
        self._run, self._choice = run, choice
        self._places: Mapping[str, int | str] = {}
        self._begun: set[str] = set()
        self._ends: dict[str, tuple[LedgerEntry, CallEnd]] = {}

    def number(self, calls: Sequence[Call]) -> None:
        """Number the calls of the turn that is about to run. Their ids are no keys: a call without an id from its provider gets
        a new one in each replay."""
        self._places = {call.id: place for place, call in enumerate(calls)}

    def key_at(self, turn: int, call_id: str) -> str:
        if (place := self._places.get(call_id)) is None:  # of before the first turn: its id stands in the request
            turn, place = -1, hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:16]
        return f"{self._run.id}/{self._choice}/{turn}/{place}"

    def key(self, entry: LedgerEntry) -> str:
        return self._keyed(entry).id

    def ended(self, key: str) -> tuple[LedgerEntry, CallEnd] | None:
        return self._ends.pop(key, None)

    def wait(self, entry: LedgerEntry) -> None:
        self._run.wait_for(self._keyed(entry))

    async def start(self, entry: LedgerEntry) -> None:
        entry = self._keyed(entry)
        await self._run.claim(entry)
        self._begun.add(entry.id)

    def end(self, entry: LedgerEntry, state: RunState, note: str = "", result: str | None = None) -> None:
        entry = self._keyed(entry)
        self._ends[entry.id] = entry, CallEnd(state, note, result, entry.id in self._begun)

    async def close(self) -> None:
        """Do nothing: the ledger outlives the chat."""

    def _keyed(self, entry: LedgerEntry) -> LedgerEntry:
        return replace(entry, id=self.key_at(entry.turn, entry.call_id), epoch=self._run.stored.epoch)


class DurableToolbox:
    """Wraps a toolbox: a call with a stored outcome is not run.

    The config may have changed since the run began. A call that began is not run again although its tool is gone, and a call
    that was answered without being run does not begin later."""

    def __init__(self, inner: Toolbox, run: DurableRun, ledger: DurableLedger, model: StoredTurnsModel) -> None:
        self._inner, self._run, self._ledger, self._model = inner, run, ledger, model
        self._turn = -1
        self._orphans: dict[str, StoredCall] = {}
        """Calls that began, and whose tools are gone, by their ids."""

    @property
    def offer(self) -> Offer:
        return self._inner.offer

    @property
    def schemas(self) -> Sequence[msgspec.Raw]:
        return self._inner.schemas

    def plan(self, calls: Sequence[Call]) -> Plan:
        self._turn += 1
        self._ledger.number(calls)
        plan = self._inner.plan(calls)
        self._orphans = {
            call.id: begun
            for call in plan.broken
            if (begun := self._run.begun(self._ledger.key_at(self._turn, call.id))) is not None
        }
        if not self._orphans:
            return plan
        # They have no arguments, and are never run: their outcomes are known.
        orphans = [
            ReadyCall(call.id, call.name or "", {}, call.text) for call in plan.broken if call.id in self._orphans
        ]
        places = [call.id for call in calls]
        ours = sorted((*plan.ours, *orphans), key=lambda call: places.index(call.id))
        return Plan(tuple(ours), plan.theirs, tuple(call for call in plan.broken if call.id not in self._orphans))

    def is_clients(self, name: str | None) -> bool:
        return self._inner.is_clients(name)

    def writes(self, call: ReadyCall) -> bool:
        orphan = self._orphans.get(call.id)
        return self._inner.writes(call) if orphan is None else orphan.writes

    def is_ordered(self, call: ReadyCall) -> bool:
        return call.id not in self._orphans and self._inner.is_ordered(call)

    async def run(self, call: ReadyCall, report: Report, begin: Begin = begin_at_once) -> Outcome:
        key = self._ledger.key_at(self._turn, call.id)
        known = self._run.known(key)
        if known is not None:
            return known
        if call.id in self._orphans:
            return Failed(UNKNOWN, FailureKind.UNKNOWN)
        if self._model.has_more:
            return Failed(SETTLED, FailureKind.NOT_RUN)
        await self._model.keep()
        try:
            outcome = await self._inner.run(call, report, begin)
        except BaseException:
            if (ended := self._ledger.ended(key)) is not None:
                self._run.abandon_call(*ended)
            raise
        if (ended := self._ledger.ended(key)) is not None:
            await self._run.end_call(*ended, outcome)
        return outcome
