"""One durable run: stores the turns and outcomes of its chats, so that another process can resume it.

A chat is resumed by replaying it from the stored turns. A call with a stored outcome is not run again. A call without a
known outcome is run again if it is read-only; otherwise the model is sent that its outcome is unknown.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import structlog
from msgspec.structs import replace

from callgate.api.run_ports import TakenOver
from callgate.calls.outcome import Failed, FailureKind, Outcome, decode_outcome, encode_outcome
from callgate.calls.states import Call, ReadyCall
from callgate.config import redaction
from callgate.conversation.errors import ChatError
from callgate.conversation.ports import Begin, Plan, Report, Toolbox, TurnModel, begin_at_once
from callgate.conversation.replay import StoredTurn, StoredTurnsModel
from callgate.conversation.wrapper_toolbox import WrapperToolbox, in_order_of
from callgate.state.database import DatabaseAway
from callgate.state.entry import BegunBefore, CallState, Ledger, LedgerEntry, NotRecorded
from callgate.state.runs import NOT_BEGUN, CallEnd, Fenced, RunLedger, StoredCall, StoredRun
from callgate.untrusted.readers import READ_ERRORS

AGAIN_SECONDS: Final = 0.25
"""The interval of attempts to write what a run cannot continue without."""
MOST_EPOCHS: Final = 4
"""How many processes may run a read-only call again: it may be what crashes them."""
UNKNOWN: Final = (
    "The server that ran this was lost before it answered: what it should do may or may not have happened. It is not run again."
    " Look whether it happened before you call it again."
)
SETTLED: Final = "Not run: this call was answered without being run when it was made."

log = structlog.get_logger("callgate.runs")
T = TypeVar("T")


def log_unreadable(row: StoredRun, part: str, error: Exception) -> None:
    """Log that the ledger, or Redis, has something of a run that is not what a process of ours wrote."""
    log.error("run_unreadable", run_id=row.id, part=part, error=f"{type(error).__name__}: {error}")


def unreadable_run(part: str) -> ChatError:
    return ChatError(500, f"{part} cannot be read.", type="server_error", code="run_unreadable")


class DurableRun:
    """A run of this process, with what is stored of it."""

    def __init__(
        self,
        ledger: RunLedger,
        calls: Ledger,
        row: StoredRun,
        turns: Mapping[tuple[int, int], bytes] | None = None,
        known_calls: Mapping[str, StoredCall] | None = None,
        *,
        parts: Sequence[tuple[int, bytes]] = (),
        on_lost: Callable[[str], None],
    ) -> None:
        """`parts`: its answer before this process took the run over. `on_lost` is called with the run's id when another process
        has taken it over, with its calls."""
        self.row = row
        self.is_lost = False
        """Another process has taken it over."""
        self.is_cancelled = asyncio.Event()
        """A client has cancelled it."""
        self.outlives_process = ledger.is_durable
        self.whole_body: bytes | None = None
        """The whole answer, where it is streamed."""
        self.stores_parts = False
        """The stream of its answer is stored as it is made, for a process that takes it over to continue it."""
        self.before_work: Callable[[], Awaitable[None]] | None = None
        """Stores what has to be stored before it begins."""
        self.before_end: Callable[[ChatError | None], Awaitable[None]] | None = None
        """Stores what has to be stored before its end, given the error that it ended with."""
        self._parts = list(parts)
        self._models: dict[int, StoredTurnsModel] = {}
        """The models of its chats, by choice."""
        self._ledger = ledger
        self._calls = calls
        self._turns = turns or {}
        self._known_calls = known_calls or {}
        self._on_lost = on_lost

    @classmethod
    async def taken_over(
        cls, ledger: RunLedger, calls: Ledger, row: StoredRun, *, on_lost: Callable[[str], None]
    ) -> "DurableRun":
        await ledger.settle_calls(row)
        turns = await ledger.turns(row.id)
        known_calls = await ledger.calls(row.id)
        parts = await ledger.parts(row.id) if row.background else []
        return cls(ledger, calls, row, turns, known_calls, parts=parts, on_lost=on_lost)

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def created_at(self) -> float:
        return self.row.created_at

    def has_written(self) -> bool:
        """True if a call that may write was begun before this process took the run over."""
        return any(call.writes and call.state not in NOT_BEGUN for call in self._known_calls.values())

    def earlier_answer(self) -> bytes:
        """Return the answer in the background before this process took the run over."""
        return b"".join(body for _, body in self._parts)

    def next_part(self) -> int:
        """Return the number of the first part of its answer that this process stores."""
        if self._parts:
            return self._parts[-1][0] + 1
        return 0

    async def choice(self, number: int) -> "DurableChoice":
        """Return the chat of one choice. Raises `ChatError` where what is stored of it cannot be read."""
        turns: list[StoredTurn] = []
        while (body := self._turns.get((number, len(turns)))) is not None:
            try:
                turns.append(await StoredTurn.decode(body))
            except READ_ERRORS as error:
                log_unreadable(self.row, "a turn", error)
                raise unreadable_run("What is stored of this run") from None
        return DurableChoice(self, number, turns)

    def count_turns(self) -> int:
        """Return the number of stored turns of its chat."""
        return len(self._turns)

    def call_begun_before(self, key: str) -> StoredCall | None:
        """Return a call that began, or has an outcome, from before this process took the run over."""
        call = self._known_calls.get(key)
        if call is None or (call.outcome is None and call.state in NOT_BEGUN):
            return None
        return call

    def known_outcome(self, key: str) -> Outcome | None:
        """Return the outcome that a call had before this process took the run over; None where it is to be run."""
        call = self._known_calls.get(key)
        if call is None:
            return None
        if call.outcome is not None:
            return self._outcome_of(call.outcome)
        if call.state is CallState.UNKNOWN and (call.writes or self.row.epoch > MOST_EPOCHS):
            return Failed(UNKNOWN, FailureKind.UNKNOWN)
        return None

    def _outcome_of(self, stored: bytes) -> Outcome:
        try:
            return decode_outcome(stored)
        except READ_ERRORS as error:
            log_unreadable(self.row, "the outcome of a call", error)
            return Failed(UNKNOWN, FailureKind.UNKNOWN)

    async def store_turn(self, choice: int, turn: int, stored_turn: StoredTurn) -> None:
        body = stored_turn.encode()
        await self.insist(lambda: self._ledger.append(self.row, choice, turn, body))

    def follow_turns(self, choice: int, model: StoredTurnsModel) -> None:
        self._models[choice] = model

    async def store_part(self, part: int, body: bytes) -> None:
        """Store a part of an answer in the background before a client is sent it. Raises `TakenOver`."""
        await self.insist(lambda: self._ledger.append_part(self.row, part, body))

    async def store_turns(self, choice: int = 0) -> None:
        """Store all turns of a chat, so that a process that takes the run over makes the same answer. Raises `TakenOver`."""
        model = self._models.get(choice)
        if model is None or not await model.keep():
            await self.insist(lambda: self._ledger.check(self.row))

    async def claim(self, entry: LedgerEntry) -> None:
        """Claim a call. Raises `NotRecorded` where it cannot be stored that it begins, and `BegunBefore`."""
        known_call = self._known_calls.get(entry.id)
        try:
            if known_call is not None and known_call.state in (
                CallState.STARTED,
                CallState.WAITING,
            ):  # a worker may be running it
                begun = await self.insist(lambda: self._ledger.claim(self.row, entry))
            else:
                begun = await self._ledger.claim(self.row, entry)
        except DatabaseAway as away:
            raise NotRecorded(str(away)) from away
        except Fenced:
            raise self._taken_over() from None
        if begun is None:
            return
        log.warning("call_begun_before", run_id=self.id, tool=entry.tool, call_id=entry.call_id, state=begun.state)
        if begun.outcome is not None:
            raise BegunBefore(self._outcome_of(begun.outcome))
        raise BegunBefore(Failed(UNKNOWN, FailureKind.UNKNOWN))

    async def end_call(self, entry: LedgerEntry, end: CallEnd, outcome: Outcome) -> None:
        encoded = redaction.current.data(encode_outcome(outcome))
        await self.insist(lambda: self._ledger.end_call(self.row, entry, end, encoded))

    async def insist(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write what the run cannot continue without; retried until the ledger is there."""
        waits = False
        while True:
            try:
                return await write()
            except Fenced:
                raise self._taken_over() from None
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

    async def begin_work(self) -> None:
        if self.before_work is not None:
            await self.before_work()

    async def settle(self, error: ChatError | None) -> None:
        """Wait until its end may be stored. Raises `TakenOver`."""
        if self.before_end is not None and not self.is_lost:
            await self.before_end(error)
        if self.is_lost:
            raise TakenOver

    def close(self) -> None:
        """Drop what would be in a cycle of references with it."""
        self._models.clear()
        self.before_work = None
        self.before_end = None

    def hand_over(self) -> None:
        """Give the run to another process: nothing of it is written here any more, and its calls on workers go on."""
        self.is_lost = True
        self._on_lost(self.id)

    def _taken_over(self) -> TakenOver:
        self.hand_over()
        return TakenOver()


class DurableChoice:
    """One chat of a run: wraps its model and toolbox to replay what the ledger has."""

    def __init__(self, run: DurableRun, number: int, turns: Sequence[StoredTurn]) -> None:
        self._run = run
        self._number = number
        self.turns = turns
        """The stored turns."""
        self.calls = DurableCallLog(run, number)

    def chat(self, model: TurnModel, toolbox: Toolbox) -> tuple[TurnModel, Toolbox]:
        async def store(turn: int, stored_turn: StoredTurn) -> None:
            await self._run.store_turn(self._number, turn, stored_turn)

        replaying = StoredTurnsModel(model, self.turns, store)
        self._run.follow_turns(self._number, replaying)
        return replaying, DurableToolbox(toolbox, self._run, self.calls, replaying)


class DurableCallLog:
    """Writes the calls of one chat into the rows of its run. Their keys are the same in every process: run, choice, turn,
    place in the turn."""

    def __init__(self, run: DurableRun, choice: int) -> None:
        self.process = ""
        self._run = run
        self._choice = choice
        self._places: Mapping[str, int | str] = {}
        self._begun: set[str] = set()
        self._ends: dict[str, tuple[LedgerEntry, CallEnd]] = {}

    def number(self, calls: Sequence[Call]) -> None:
        """Number the calls of the turn that is about to run. Their ids are no keys: a call without an id from its provider gets
        a new one in each replay."""
        self._places = {call.id: place for place, call in enumerate(calls)}

    def key_at(self, turn: int, call_id: str) -> str:
        if (place := self._places.get(call_id)) is None:  # of before the first turn: its id stands in the request
            turn = -1
            place = hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:16]
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

    def end(self, entry: LedgerEntry, state: CallState, note: str = "", result: str | None = None) -> None:
        entry = self._keyed(entry)
        self._ends[entry.id] = entry, CallEnd(state, note, result, entry.id in self._begun)

    async def close(self) -> None:
        """Do nothing: the ledger outlives the chat."""

    def _keyed(self, entry: LedgerEntry) -> LedgerEntry:
        return replace(entry, id=self.key_at(entry.turn, entry.call_id), epoch=self._run.row.epoch)


class DurableToolbox(WrapperToolbox):
    """Wraps a toolbox: a call with a stored outcome is not run.

    The config may have changed since the run began. A call that began is not run again although its tool is gone, and a call
    that was answered without being run does not begin later."""

    def __init__(self, inner: Toolbox, run: DurableRun, calls: DurableCallLog, model: StoredTurnsModel) -> None:
        super().__init__(inner)
        self._run = run
        self._calls = calls
        self._model = model
        self._turn = -1
        self._orphans: dict[str, StoredCall] = {}
        """Calls that began, and whose tools are gone, by their ids."""

    def plan(self, calls: Sequence[Call]) -> Plan:
        self._turn += 1
        self._calls.number(calls)
        plan = self._inner.plan(calls)
        self._orphans = {
            call.id: begun
            for call in plan.broken
            if (begun := self._run.call_begun_before(self._calls.key_at(self._turn, call.id))) is not None
        }
        if not self._orphans:
            return plan
        # They have no arguments, and are never run: their outcomes are known.
        orphans = [
            ReadyCall(call.id, call.name or "", {}, call.text) for call in plan.broken if call.id in self._orphans
        ]
        broken = tuple(call for call in plan.broken if call.id not in self._orphans)
        return in_order_of(calls, replace(plan, ours=(*plan.ours, *orphans), broken=broken))

    def writes(self, call: ReadyCall) -> bool:
        orphan = self._orphans.get(call.id)
        if orphan is None:
            return self._inner.writes(call)
        return orphan.writes

    def is_ordered(self, call: ReadyCall) -> bool:
        return call.id not in self._orphans and self._inner.is_ordered(call)

    async def run(self, call: ReadyCall, report: Report, begin: Begin = begin_at_once) -> Outcome:
        key = self._calls.key_at(self._turn, call.id)
        earlier_outcome = self._run.known_outcome(key)
        if earlier_outcome is not None:
            return earlier_outcome
        if call.id in self._orphans:
            return Failed(UNKNOWN, FailureKind.UNKNOWN)
        if self._model.has_more:
            tool = self.offer.get(call.name)
            if tool is None or not tool.may_run_again:
                return Failed(SETTLED, FailureKind.NOT_RUN)
        await self._model.keep()
        try:
            outcome = await self._inner.run(call, report, begin)
        except BaseException:
            if (ended := self._calls.ended(key)) is not None:
                self._run.abandon_call(*ended)
            raise
        if (ended := self._calls.ended(key)) is not None:
            await self._run.end_call(*ended, outcome)
        return outcome
