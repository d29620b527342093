"""Runs requests that outlive the process that answers them: those with an `Idempotency-Key`, and those in the
background.

A run is a row of the ledger, which one process owns. Further requests with its key follow it, in this or another process, and
get its answer from the beginning. When its process dies, another one replays it from what is stored and resumes it.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Self

import msgspec
import structlog
from starlette.types import Message, Receive, Send

from callgate.api.errors import as_chat_error, shutting_down
from callgate.api.middleware import masked_send
from callgate.api.rights import no_key_any_more
from callgate.api.run_ports import Ended, RunRequest, RunResumer, RunStart, TakenOver
from callgate.callers.caller import Caller
from callgate.conversation.errors import ChatError
from callgate.conversation.ids import new_run_id
from callgate.runs.answer_parts import AnswerParts
from callgate.runs.durable_run import DurableRun, log_unreadable, unreadable_run
from callgate.runs.followed_run import (
    FollowedRun,
    check_key,
    interrupted,
    other_request,
)
from callgate.runs.publisher import AnswerPiece, RunPublisher, decode_piece
from callgate.runtime.manager import RuntimeManager
from callgate.state.database import DatabaseAway
from callgate.state.local.memory_runs import MemoryRunLedger
from callgate.state.presence import Presence
from callgate.state.runs import DROPPED, MOST_TAKEN, DatabaseRunLedger, NewRun, RunLedger, StoredRun
from callgate.state.store import StoreError
from callgate.telemetry.logs import set_log_ids
from callgate.untrusted.doors import OWN_BYTES
from callgate.untrusted.messagepack import PackDoor, open_pack
from callgate.untrusted.readers import READ_ERRORS, msgpack_reader

LOOK_SECONDS: Final = 0.5
"""How often the ledger is checked for runs of dead processes, and for runs of this one that were cancelled."""
SOON_SECONDS: Final = 0.05
"""The interval after a full batch of runs was taken over: there may be more, and other processes should take some."""
POLL_SECONDS: Final = 0.25
"""How often a run of another process is polled by its followers."""
FOLLOWED_SECONDS: Final = 2.0
"""How long followers in other processes count after their last poll."""
MAX_RESUMES: Final = 16
"""How many processes may resume one run, which may be what crashes them."""
PRUNE_LOOKS: Final = 7200
"""How many checks there are between two prunings of old runs: an hour."""
DONE: Final = b"data: [DONE]\n\n"

log = structlog.get_logger("callgate.runs")


class RunAnswer(msgspec.Struct, frozen=True):
    """The answer of a run so far."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    whole: bytes | None = None
    """The same in one piece, where it was streamed."""


class DurableRuns:
    """The runs of this process, and those of others that clients follow here."""

    def __init__(self, manager: RuntimeManager, in_memory: MemoryRunLedger) -> None:
        """`in_memory` has the runs where there is no ledger."""
        self._manager = manager
        self._resumers: dict[str, RunResumer] = {}
        self._followed: dict[str, FollowedRun] = {}
        self._active: dict[str, _ActiveRun] = {}
        self._ledger: RunLedger = in_memory
        self._looking: asyncio.Task[None] | None = None
        self._is_closing = False

    def add(self, face: str, resumer: RunResumer) -> None:
        self._resumers[face] = resumer

    @property
    def are_kept(self) -> bool:
        """True if runs outlive this process: there is a ledger."""
        return self._ledger.is_durable

    async def __aenter__(self) -> Self:
        shared = self._manager.shared.shared_ledger
        if shared is None:
            self._looking = asyncio.create_task(self._keep_pruning(), name="pruning runs")
        else:
            self._ledger = DatabaseRunLedger(
                shared.database, shared.calls.process, self._manager.config.store.answer_bytes
            )
            self._looking = asyncio.create_task(self._look(shared.presence), name="looking for runs")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave the running runs to other processes; without a ledger they end."""
        self._is_closing = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        active = list(self._active.values())
        for run in active:
            if self._ledger.is_durable:
                run.durable.hand_over()
        followed = (*self._followed.values(), *(run.followed for run in active))
        tasks = {run.task for run in followed if run.task}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- requests

    async def start(self, start: RunStart) -> FollowedRun:
        """Return the run that answers a request, which begins unless an earlier request has its key."""
        digest = hashlib.sha256(start.request.body).digest()
        id = new_run_id()
        key_digest = None
        if start.key is not None:
            check_key(start.key)
            key_digest = hashlib.sha256(f"{start.face}{start.key_scope}\0{start.key}".encode()).hexdigest()
        place = f"{start.owner}\0{key_digest or id}\0{digest.hex()}"
        while (run := self._followed.get(place)) is not None and run.is_closed:
            assert run.task is not None
            await asyncio.wait({run.task})  # it is ending; then it is known whether it may run again
        if run is None:
            run = self._followed[place] = FollowedRun(
                digest, start.error_body, start.stream_end, outlives_server=self._ledger.is_durable
            )
            run.needs_no_clients = start.in_background
            if start.in_background:
                place_holder = start.hold_place()
            else:
                place_holder = contextlib.nullcontext()
            run.task = asyncio.create_task(
                self._answer(place, run, id, key_digest, start, place_holder), name="a durable run"
            )
        return run

    def active(self, id: str) -> FollowedRun | None:
        """Return a run of this process."""
        run = self._active.get(id)
        if run is None:
            return None
        return run.followed

    async def find(self, id: str, caller: str, *, sees_all: bool = False) -> StoredRun:
        """Return a run of this caller. Raises `ChatError` 404."""
        row = None
        if id.isprintable():  # databases do not take every character
            async with _available():
                row = await self._ledger.find(id)
        if row is None or not (sees_all or row.caller == caller):
            raise ChatError(404, f"There is no run `{id[:64]}` that is kept.", param="id", code="run_not_found")
        return row

    async def cancel(self, id: str, caller: str, *, sees_all: bool = False) -> StoredRun:
        """Cancel a run of any process; one that has ended is not changed."""
        row = await self.find(id, caller, sees_all=sees_all)
        async with _available():
            await self._ledger.cancel(row.id)
        if (active := self._active.get(row.id)) is not None:
            active.durable.is_cancelled.set()
            await asyncio.wait({active.followed.task} if active.followed.task else set())
        async with _available():
            return await self._ledger.find(row.id) or row

    async def state_of(self, id: str) -> str:
        """Return the state of a run; `running` also where it will be taken over or the ledger is away, empty where there is
        none."""
        try:
            row = await self._ledger.find(id)
        except DatabaseAway:
            return "running"
        if row is None:
            return ""
        return row.state

    async def answered(self, id: str) -> AsyncIterator[bytes]:
        """Yield the answer of a background run of any process, from its beginning. Ends with the run, also without a complete
        answer where the run failed."""
        last = -1
        while True:
            try:
                row = await self._ledger.find(id)
                if row is None or row.answer:
                    parts = []
                else:
                    parts = await self._ledger.parts(id, last)
            except DatabaseAway:  # logged by the ledger's presence; continues when it is back
                await asyncio.sleep(POLL_SECONDS)
                continue
            if row is None:
                return
            if row.answer == DROPPED:
                return
            if row.answer is not None:
                try:
                    answer = answer_of(row)
                except ChatError:  # it cannot be read, which was logged
                    return
                if answer.status == 200:
                    yield answer.body
                return
            for part, body in parts:
                last = part
                yield body
            await asyncio.sleep(POLL_SECONDS)

    # -- one run

    async def _answer(
        self,
        place: str,
        run: FollowedRun,
        id: str,
        key_digest: str | None,
        start: RunStart,
        place_holder: AbstractContextManager[object],
    ) -> None:
        try:
            with place_holder:
                while True:
                    row = await self._begin(id, key_digest, run.digest, start)
                    if row.request_digest != run.digest:
                        raise other_request()
                    run.set_row(row)
                    if row.id == id:
                        durable = DurableRun(self._ledger, self._manager.shared.ledger, row, on_lost=self._hand_over)
                        await self._run_to_end(_ActiveRun(run, durable), start.work)
                        return
                    if await self._follow(row, run):
                        return
                    # The earlier run was deleted because it may be repeated: this process runs it.
        except ChatError as refusal:
            run.cut(refusal)
        finally:
            self._followed.pop(place, None)
            run.end()

    async def _begin(self, id: str, key_digest: str | None, digest: bytes, start: RunStart) -> StoredRun:
        async with _available():
            return await self._ledger.begin(
                NewRun(
                    id=id,
                    caller=start.owner,
                    key_digest=key_digest,
                    request_digest=digest,
                    face=start.face,
                    request=start.request.stored(),
                    background=start.in_background,
                )
            )

    async def _run_to_end(
        self, active: "_ActiveRun", work: Callable[[DurableRun, Receive, Send], Awaitable[Ended]]
    ) -> None:
        """Run it to its end, and store its answer."""
        run = active.followed
        durable = active.durable
        row = durable.row
        ledger = self._ledger
        self._active[row.id] = active

        streams = self._manager.run_streams if ledger.is_durable else None
        publisher = None if streams is None else RunPublisher(streams, row.id, row.epoch)
        answer_sender = active.sender(publisher)
        try:
            try:
                ended = await work(durable, active.receiver(ledger), answer_sender)
            except TakenOver:
                raise
            except Exception as failure:  # noqa: BLE001 - sent to all followers, because the task's result is not awaited
                error = as_chat_error(failure)
                ended = Ended(error, abandoned=True)  # refused before it began, so that a retry may succeed
            await active.parts.close()
            await durable.settle(ended.error)
            await self._store_end(active, ended)
        except TakenOver as taken:
            log.warning("run_taken_over_elsewhere", run_id=row.id)
            run.withdraw(taken)
        except asyncio.CancelledError:
            if not self._is_closing:
                raise
            if not ledger.is_durable:
                await durable.settle(shutting_down())
                run.withdraw(shutting_down())
                return
            durable.hand_over()
            with contextlib.suppress(DatabaseAway):  # then other processes take this one for dead later
                await ledger.release(row)
            log.info("run_handed_over", run_id=row.id)
            run.withdraw(TakenOver())
        finally:
            self._active.pop(row.id, None)
            durable.close()
            if publisher is not None:
                await publisher.close()

    async def _store_end(self, active: "_ActiveRun", ended: Ended) -> None:
        """Store its answer, or forget a run that may be repeated."""
        run = active.followed
        durable = active.durable
        row = durable.row
        is_cancelled = durable.is_cancelled.is_set()
        is_kept = is_cancelled or row.background or ended.wrote or durable.has_written()
        if not is_kept and ended.may_run_again:
            run.is_closed = True
            await durable.insist(lambda: self._ledger.forget(row))
            if ended.error is not None:
                run.fail(ended.error)
            return
        if ended.error is not None:
            run.fail(ended.error)
        elif is_cancelled and durable.stores_parts and run.status:
            await run.record({"type": "http.response.body", "body": DONE})
        elif is_cancelled:
            run.replace(ChatError(409, "This run was cancelled.", code="run_cancelled"))
        elif ended.abandoned:
            # No client is waiting, and half an answer is useless: the reason is stored instead.
            run.replace(interrupted())
        answer = RunAnswer(run.status, run.headers, b"".join(run.parts), durable.whole_body)
        state = "cancelled" if is_cancelled else "done"
        await durable.insist(lambda: self._ledger.finish(row, state, _encode(answer)))

    async def _follow(self, row: StoredRun, run: FollowedRun) -> bool:
        """Follow a run of another process; return whether it has ended."""
        if (active := self._active.get(row.id)) is not None:
            await active.followed.send_all(run.record)
            return True
        noted_at = -FOLLOWED_SECONDS
        loop = asyncio.get_running_loop()
        epoch = row.epoch
        last: str | None = "0"
        length = 0
        while row.answer is None:
            if run.is_abandoned.is_set():
                return True
            async with _available():
                if loop.time() - noted_at >= FOLLOWED_SECONDS / 2:
                    noted_at = loop.time()
                    await self._ledger.follow(row.id)
                current = await self._ledger.find(row.id)
            if current is None or current.epoch != epoch:
                if not run.status:
                    return False  # begin again, with the process that has it now
                raise TakenOver
            row = current
            if row.answer is None:
                last, pieces = await self._next_pieces(row, run, last)
                for piece in pieces:
                    if not run.status:
                        await run.record(
                            {"type": "http.response.start", "status": piece.status, "headers": piece.headers}
                        )
                    await run.record({"type": "http.response.body", "body": piece.body})
                    length += len(piece.body)
        answer = answer_of(row)
        if run.status:
            await run.record({"type": "http.response.body", "body": answer.body[length:]})
        else:
            run.replay(answer.status, answer.headers, answer.body)
        return True

    async def _next_pieces(
        self, row: StoredRun, run: FollowedRun, last: str | None
    ) -> tuple[str | None, list[AnswerPiece]]:
        """Wait a moment, and return the id of its last piece and the new pieces of its answer. None instead of the id where one
        cannot be read, and none after it is: the whole answer will be in the ledger."""
        if (streams := self._manager.run_streams) is not None and last is not None:
            with contextlib.suppress(StoreError):  # the whole answer will be in the ledger
                last, encoded_pieces = await streams.read(row.id, row.epoch, last, POLL_SECONDS)
                pieces: list[AnswerPiece] = []
                try:
                    for encoded_piece in encoded_pieces:
                        pieces.append(decode_piece(encoded_piece))
                except READ_ERRORS as error:
                    log_unreadable(row, "a piece of its answer", error)
                    return None, pieces
                return last, pieces
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await run.is_abandoned.wait()
        return last, []

    # -- runs of other processes

    async def _look(self, presence: Presence) -> None:
        looks = 0
        while True:
            rows: Sequence[StoredRun] = ()
            try:
                for id in await self._ledger.cancelled(list(self._active)):
                    if id in self._active:
                        self._active[id].durable.is_cancelled.set()
                if self._manager.is_ready():
                    rows = await self._ledger.take_over(presence.silence())
                for row in rows:
                    self._resume(row)
                if looks % PRUNE_LOOKS == 0:
                    await self._prune()
                looks += 1
            except DatabaseAway:
                pass  # logged by the ledger's presence
            await asyncio.sleep(LOOK_SECONDS if len(rows) < MOST_TAKEN else SOON_SECONDS)

    async def _keep_pruning(self) -> None:
        while True:
            await asyncio.sleep(PRUNE_LOOKS * LOOK_SECONDS)
            await self._prune()

    async def _prune(self) -> None:
        await self._ledger.prune(self._manager.current.config.store.answer_seconds)

    def _hand_over(self, id: str) -> None:
        """Leave the calls of a run to another process."""
        if self._manager.shared.fleet is not None:
            self._manager.shared.fleet.leave(id)

    async def _caller_of(self, row: StoredRun) -> Caller | None:
        """Return the caller of a run, if its key is still valid, as soon as that is known."""
        while True:
            try:
                return self._manager.current.access.caller_named(row.caller)
            except ChatError:  # keys cannot be checked at the moment
                await asyncio.sleep(LOOK_SECONDS)

    def _resume(self, row: StoredRun) -> None:
        run = FollowedRun(row.request_digest, outlives_server=True)
        run.needs_no_clients = True  # its clients did not disconnect: their server died
        run.task = asyncio.create_task(self._finish_taken_over(row, run), name="a durable run")
        place = f"{row.caller}\0{row.id}"
        self._followed[place] = run
        run.task.add_done_callback(lambda _: self._followed.pop(place, None))

    async def _finish_taken_over(self, row: StoredRun, run: FollowedRun) -> None:
        set_log_ids({"run_id": row.id})
        log.warning("run_taken_over", run_id=row.id, epoch=row.epoch)

        async def answer(durable: DurableRun, receive: Receive, send: Send) -> Ended:
            caller = await self._caller_of(row)
            resumer = self._resumers.get(row.face)
            if row.epoch > MAX_RESUMES:
                raise ChatError(
                    500,
                    f"This run was given up: {MAX_RESUMES} processes have carried it on, and none to its end.",
                    type="server_error",
                    code="run_given_up",
                )
            if caller is None or resumer is None:
                raise no_key_any_more()
            return await resumer.resume(request_of(row), caller, durable, receive, send)

        try:
            while True:
                try:
                    durable = await DurableRun.taken_over(
                        self._ledger, self._manager.shared.ledger, row, on_lost=self._hand_over
                    )
                    break
                except DatabaseAway:
                    await asyncio.sleep(LOOK_SECONDS)
            await self._run_to_end(_ActiveRun(run, durable), answer)
        finally:
            run.end()


class _ActiveRun:
    """A run of this process, and what may end it early."""

    def __init__(self, followed: FollowedRun, durable: DurableRun) -> None:
        self.followed = followed
        self.durable = durable
        self.parts = AnswerParts(durable, followed.record)

    def receiver(self, ledger: RunLedger) -> Receive:
        """Return the `Receive` that ends when the run is cancelled."""

        async def receive() -> Message:
            await self._wait_until_unwanted(ledger)
            return {"type": "http.disconnect"}

        return receive

    def sender(self, publisher: RunPublisher | None) -> Send:
        """Return the `Send` that takes the answer of the run, as it is stored: masked."""

        async def send(message: Message) -> None:
            if self.durable.stores_parts:
                await self.parts.send(message)
            else:
                await self.followed.record(message)
            if publisher is not None:
                publisher.feed(message)

        return masked_send(send)

    async def _wait_until_unwanted(self, ledger: RunLedger) -> None:
        """Wait until it was cancelled, or has no followers in any process."""
        abandoned = asyncio.create_task(self._wait_until_abandoned(ledger))
        cancelled = asyncio.create_task(self.durable.is_cancelled.wait())
        try:
            await asyncio.wait({abandoned, cancelled}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            abandoned.cancel()
            cancelled.cancel()
            await asyncio.wait({abandoned, cancelled})

    async def _wait_until_abandoned(self, ledger: RunLedger) -> None:
        await self.followed.is_abandoned.wait()
        while True:
            try:
                if not await ledger.is_followed(self.durable.id, FOLLOWED_SECONDS):
                    return
            except DatabaseAway:
                pass  # followers are assumed
            await asyncio.sleep(FOLLOWED_SECONDS / 2)


_encode = msgspec.msgpack.Encoder().encode
_read_answer = msgpack_reader(RunAnswer)
ANSWER: Final = PackDoor(name="kept answer of a run", bytes=OWN_BYTES, values=2_000)


def answer_of(row: StoredRun) -> RunAnswer:
    """Return the answer of a run that has ended. Raises a `ChatError` where it is no longer kept."""
    assert row.answer is not None, "it has ended"
    if row.answer == DROPPED:
        raise ChatError(
            409,
            "This request was answered, and is not run again. Its answer is no longer kept: newer ones of its key take up"
            " `store.answer_bytes`.",
            code="answer_not_kept",
        )
    try:
        return decode_answer(row.answer)
    except READ_ERRORS as error:
        log_unreadable(row, "its answer", error)
        raise unreadable_run("The answer of this run") from None


def decode_answer(data: bytes) -> RunAnswer:
    """Decode an answer from the ledger. Raises the errors of `READ_ERRORS`."""
    return _read_answer(open_pack(data, ANSWER))


_read_request = msgpack_reader(RunRequest)
REQUEST: Final = PackDoor(name="kept request of a run", bytes=OWN_BYTES, values=2_000)


def request_of(row: StoredRun) -> RunRequest:
    """Return the request of a run, to be read as if a client had sent it. Raises a `ChatError` where it cannot be read."""
    try:
        return _read_request(open_pack(row.request, REQUEST))
    except READ_ERRORS as error:
        log_unreadable(row, "its request", error)
        raise unreadable_run("The request of this run") from None


@contextlib.asynccontextmanager
async def _available() -> Any:
    try:
        yield
    except DatabaseAway as away:
        raise _unavailable(str(away)) from away


def _unavailable(error: str) -> ChatError:
    """Return the error for a run that cannot be stored, which could be run twice."""
    log.error("run_refused", error=error)
    return ChatError(
        503,
        "This run cannot be kept at the moment, so that nothing is run. Try again in a moment.",
        type="server_error",
        code="runs_unavailable",
        retry_after=1,
    )
