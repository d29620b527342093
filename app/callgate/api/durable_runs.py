"""Runs requests that outlive the process that answers them: those with an `Idempotency-Key`, and those in the
background.

A run is a row of the ledger, which one process owns. Further requests with its key follow it, in this or another process, and
get its answer from the beginning. When its process dies, another one replays it from what is stored and resumes it.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, Self

import msgspec
import structlog
from msgspec.structs import replace
from starlette.types import Message, Receive, Send

from callgate.api.errors import ErrorBody, as_chat_error, in_openais_shape
from callgate.api.followed_run import (
    Ended,
    FollowedRun,
    StreamEnd,
    chat_stream_end,
    check_key,
    interrupted,
    other_request,
)
from callgate.api.mcp_entries import without_stored_credentials
from callgate.api.run_publisher import AnswerPiece, RunPublisher, decode_piece
from callgate.auth.keys import Caller
from callgate.conversation.errors import ChatError
from callgate.conversation.ids import new_run_id
from callgate.ledger.database import DatabaseAway
from callgate.ledger.presence import Presence
from callgate.ledger.runs import MOST_TAKEN, RunLedger, StoredRun
from callgate.runtime.durable_run import DurableRun, TakenOver
from callgate.runtime.manager import RuntimeManager
from callgate.stores.store import StoreError
from callgate.telemetry.logs import set_log_ids

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
UNKEPT_HEADERS: Final = frozenset({"authorization", "api-key", "x-api-key", "cookie", "proxy-authorization"})
"""Credentials are not stored: the process that resumes a run knows its caller by name."""

log = structlog.get_logger("callgate.runs")


class RunRequest(msgspec.Struct, frozen=True):
    """A stored request, which the process that resumes its run reads again."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def of(cls, path: str, headers: Mapping[str, str], body: bytes) -> "RunRequest":
        return cls(path, {name: value for name, value in headers.items() if name not in UNKEPT_HEADERS}, body)

    def stored(self) -> bytes:
        return _encode(replace(self, body=without_stored_credentials(self.body)))


class RunAnswer(msgspec.Struct, frozen=True):
    """The answer of a run so far."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    whole: bytes | None = None
    """The same in one piece, where it was streamed."""


class RunResumer(Protocol):
    """Answers the requests of one face."""

    async def resume(self, request: RunRequest, caller: Caller, run: DurableRun, receive: Receive, send: Send) -> Ended:
        """Answer a request whose run began in another process."""
        ...


class DurableRuns:
    """The runs of this process, and those of others that clients follow here."""

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager
        self._carriers: dict[str, RunResumer] = {}
        self._followed: dict[str, FollowedRun] = {}
        self._ours: dict[str, _Carried] = {}
        self._ledger: RunLedger | None = None
        self._looking: asyncio.Task[None] | None = None
        self._is_closing = False
        self.on_left: list[Callable[[str], None]] = []
        """Called with the id of a run that another process has taken over."""

    def add(self, face: str, carrier: RunResumer) -> None:
        self._carriers[face] = carrier

    @property
    def is_on(self) -> bool:
        """True if runs are durable: there is a ledger, and the config allows it."""
        return self._ledger is not None

    async def __aenter__(self) -> Self:
        config, shared = self._manager.current.config, self._manager.shared.shared_ledger
        if shared is not None and config.runs.durable == "keyed":
            self._ledger = RunLedger(shared.database, shared.calls.process)
            self._looking = asyncio.create_task(self._look(self._ledger, shared.presence), name="looking for runs")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave the running runs to other processes."""
        self._is_closing = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        for carried in list(self._ours.values()):
            carried.durable.lose()
        tasks = {
            run.task for run in (*self._followed.values(), *(it.followed for it in self._ours.values())) if run.task
        }
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- requests

    async def answer(
        self,
        owner: str,
        face: str,
        request: RunRequest,
        begin: Callable[[DurableRun, Receive, Send], Awaitable[Ended]],
        receive: Receive,
        send: Send,
        *,
        key: str | None,
        in_background: bool,
        error_body: ErrorBody = in_openais_shape,
        stream_end: StreamEnd = chat_stream_end,
        accepted: Callable[[StoredRun], bytes] | None = None,
        begun_before: Callable[[StoredRun], None] | None = None,
    ) -> None:
        """Answer a request by its run. `accepted` makes the answer where the client does not wait for the run's own;
        `begun_before` is called, and the answer is empty, where an earlier request has begun it.

        Raises `ClientDisconnected` when its client disconnected."""
        if self._ledger is None:
            raise ChatError(
                400,
                "Nothing can go on in the background here: it needs a `data_dir` or a `ledger.url`, and `runs.durable`.",
                code="background_not_available",
            )
        digest = hashlib.sha256(request.body).digest()
        id = new_run_id()
        key_digest = None
        if key is not None:
            check_key(key)
            key_digest = hashlib.sha256(f"{face}\0{key}".encode()).hexdigest()
        place = f"{owner}\0{key_digest or id}\0{digest.hex()}"
        while (run := self._followed.get(place)) is not None and run.is_over:
            assert run.task is not None
            await asyncio.wait({run.task})  # it is ending; then it is known whether it may run again
        is_new = run is None
        if run is None:
            run = self._followed[place] = FollowedRun(digest, error_body, stream_end, outlives_server=True)
            run.goes_on = in_background
            values = {
                "caller": owner,
                "key_digest": key_digest,
                "request_digest": digest,
                "face": face,
                "request": request.stored(),
                "background": in_background,
            }
            run.task = asyncio.create_task(self._answer(place, run, id, values, begin), name="a durable run")
        stored = None if accepted is None and begun_before is None else await run.begun()
        if stored is not None and begun_before is not None and not (is_new and stored.id == id):
            begun_before(stored)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        if stored is None or accepted is None:
            await run.follow(receive, send)
            return
        body = accepted(stored)
        await send(
            {
                "type": "http.response.start",
                "status": 202,
                "headers": [
                    (b"content-type", b"application/json"),
                    (b"content-length", b"%d" % len(body)),
                    (b"x-callgate-run", stored.id.encode()),
                    (b"retry-after", b"1"),
                ],
            }
        )
        await send({"type": "http.response.body", "body": body})

    async def find(self, id: str, caller: str, *, sees_all: bool = False) -> StoredRun:
        """Return a run of this caller. Raises `ChatError` 404."""
        found = None
        if self._ledger is not None and id.isprintable():  # databases do not take every character
            async with _available():
                found = await self._ledger.find(id)
        if found is None or not (sees_all or found.caller == caller):
            raise ChatError(404, f"There is no run `{id[:64]}` that is kept.", param="id", code="run_not_found")
        return found

    async def cancel(self, id: str, caller: str, *, sees_all: bool = False) -> StoredRun:
        """Cancel a run of any process; one that has ended is not changed."""
        stored = await self.find(id, caller, sees_all=sees_all)
        assert self._ledger is not None, "it was found in it"
        async with _available():
            await self._ledger.cancel(stored.id)
        if (carried := self._ours.get(stored.id)) is not None:
            carried.stop()
            await asyncio.wait({carried.followed.task} if carried.followed.task else set())
        async with _available():
            return await self._ledger.find(stored.id) or stored

    def stop(self, id: str) -> None:
        """Stop a run if this process has it."""
        if (carried := self._ours.get(id)) is not None:
            carried.stop()

    async def end_of(self, id: str) -> "tuple[str, RunAnswer | None]":
        """Return the state of a run, and its answer once it has ended. `running` also where it will be taken over or the ledger
        is away; empty where it is not stored."""
        if self._ledger is None:
            return "", None
        try:
            found = await self._ledger.find(id)
        except DatabaseAway:
            return "running", None
        if found is None:
            return "", None
        return found.state, None if found.answer is None else decode_answer(found.answer)

    async def answered(self, id: str) -> AsyncIterator[bytes]:
        """Yield the answer of a background run of any process, from its beginning. Ends with the run, also without a complete
        answer where the run failed."""
        ledger, last = self._ledger, -1
        if ledger is None:
            return
        while True:
            try:
                found = await ledger.find(id)
                parts = await ledger.parts(id, last) if found is not None and found.answer is None else []
            except DatabaseAway:  # logged by the ledger's presence; continues when it is back
                await asyncio.sleep(POLL_SECONDS)
                continue
            if found is None:
                return
            if found.answer is not None:
                answer = decode_answer(found.answer)
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
        values: dict[str, Any],
        begin: Callable[[DurableRun, Receive, Send], Awaitable[Ended]],
    ) -> None:
        ledger = self._ledger
        assert ledger is not None, "asked while it is on"
        try:
            while True:
                async with _available():
                    await self._check_home(values["key_digest"])
                    stored = await ledger.begin(id, **values)
                if stored.request_digest != run.digest:
                    raise other_request()
                run.stands(stored)
                if stored.id == id:
                    durable = DurableRun(ledger, self._manager.shared.ledger, stored, leave=self._leave)
                    await self._run_to_end(_Carried(run, durable), begin)
                    return
                if await self._follow(ledger, stored, run):
                    return
                # The earlier run was deleted because it may be repeated: this process runs it.
        except ChatError as refusal:
            run.cut(refusal)
        finally:
            self._followed.pop(place, None)
            run.end()

    async def _run_to_end(
        self, carried: "_Carried", begin: Callable[[DurableRun, Receive, Send], Awaitable[Ended]]
    ) -> None:
        """Run it to its end, and store its answer."""
        run, durable, ledger = carried.followed, carried.durable, self._ledger
        assert ledger is not None, "asked while it is on"
        stored = durable.stored
        self._ours[stored.id] = carried

        streams = self._manager.run_streams
        publisher = None if streams is None else RunPublisher(streams, stored.id, stored.epoch)
        try:
            try:
                ended = await begin(durable, carried.receiver(ledger), carried.recorder(publisher))
            except TakenOver:
                raise
            except Exception as failure:  # noqa: BLE001 - sent to all followers, because the task's result is not awaited
                error = as_chat_error(failure)
                ended = Ended(error, left=True)  # refused before it began, so that a retry may succeed
            await durable.settle()
            is_kept = carried.is_stopped or stored.background or ended.wrote or durable.has_written
            if not is_kept and ended.may_run_again:
                run.is_over = True
                await durable.insist(lambda: ledger.forget(stored))
                if ended.error is not None:
                    run.fail(ended.error)
                return
            if ended.error is not None:
                run.fail(ended.error)
            elif ended.left or carried.is_stopped:
                # No client is waiting, and half an answer is useless: the reason is stored instead.
                run.status = 0
                run.fail(
                    ChatError(409, "This run was cancelled.", code="run_cancelled")
                    if carried.is_stopped
                    else interrupted()
                )
            answer = RunAnswer(run.status, run.headers, b"".join(run.parts), durable.whole_body)
            state = "cancelled" if carried.is_stopped else "done"
            await durable.insist(lambda: ledger.finish(stored, state, _encode(answer)))
        except TakenOver as taken:
            log.warning("run_taken_over_elsewhere", run_id=stored.id)
            run.withdraw(taken)
        except asyncio.CancelledError:
            if not self._is_closing:
                raise
            durable.lose()
            with contextlib.suppress(DatabaseAway):  # then other processes take this one for dead later
                await ledger.release(stored)
            log.info("run_handed_over", run_id=stored.id)
            run.withdraw(TakenOver())
        finally:
            self._ours.pop(stored.id, None)
            if publisher is not None:
                await publisher.close()

    async def _follow(self, ledger: RunLedger, stored: StoredRun, run: FollowedRun) -> bool:
        """Follow a run of another process; return whether it has ended."""
        if (carried := self._ours.get(stored.id)) is not None:
            await carried.followed.send_all(run.record)
            return True
        noted_at = -FOLLOWED_SECONDS
        loop = asyncio.get_running_loop()
        epoch, last, length = stored.epoch, "0", 0
        while stored.answer is None:
            if run.left.is_set():
                return True
            async with _available():
                if loop.time() - noted_at >= FOLLOWED_SECONDS / 2:
                    noted_at = loop.time()
                    await ledger.follow(stored.id)
                found = await ledger.find(stored.id)
            if found is None or found.epoch != epoch:
                if not run.status:
                    return False  # begin again, with the process that has it now
                raise TakenOver
            stored = found
            if stored.answer is None:
                last, pieces = await self._next_pieces(stored, run, last)
                for piece in pieces:
                    if not run.status:
                        await run.record(
                            {"type": "http.response.start", "status": piece.status, "headers": piece.headers}
                        )
                    await run.record({"type": "http.response.body", "body": piece.body})
                    length += len(piece.body)
        assert stored.answer is not None, "the loop ends with it"
        answer = decode_answer(stored.answer)
        if run.status:
            await run.record({"type": "http.response.body", "body": answer.body[length:]})
        else:
            run.replay(answer.status, answer.headers, answer.body)
        return True

    async def _next_pieces(self, stored: StoredRun, run: FollowedRun, last: str) -> tuple[str, list[AnswerPiece]]:
        """Wait a moment, and return the new pieces of its answer."""
        if (streams := self._manager.run_streams) is not None:
            with contextlib.suppress(StoreError):  # the whole answer will be in the ledger
                last, pieces = await streams.read(stored.id, stored.epoch, last, POLL_SECONDS)
                return last, [decode_piece(each) for each in pieces]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await run.left.wait()
        return last, []

    async def _check_home(self, key_digest: str | None) -> None:
        """Refuse a key that first came to a process with another ledger, where Redis is shared and the ledgers are files."""
        shared, config = self._manager.shared.shared_ledger, self._manager.current.config
        if key_digest is None or shared is None or config.store.redis_url is None or config.ledger.url is not None:
            return
        home = (await shared.database.identity()).encode()
        try:
            if await self._manager.store.add(f"home:{key_digest}", home, config.store.answer_seconds):
                return
            kept = await self._manager.store.get(f"home:{key_digest}")
        except StoreError as error:
            raise _unavailable(str(error)) from error
        if kept not in (home, None):
            raise ChatError(
                409,
                "This Idempotency-Key was first sent to a server that shares no ledger with this one: both need the same"
                " `ledger.url`.",
                code="idempotency_key_elsewhere",
            )

    # -- runs of other processes

    async def _look(self, ledger: RunLedger, presence: Presence) -> None:
        looks = 0
        while True:
            taken: Sequence[StoredRun] = ()
            try:
                for id in await ledger.cancelled(list(self._ours)):
                    if id in self._ours:
                        self._ours[id].stop()
                if self._manager.is_ready:
                    taken = await ledger.take_over(presence.silence)
                for stored in taken:
                    self._resume(ledger, stored)
                if looks % PRUNE_LOOKS == 0:
                    await ledger.prune(self._manager.current.config.store.answer_seconds)
                looks += 1
            except DatabaseAway:
                pass  # logged by the ledger's presence
            await asyncio.sleep(LOOK_SECONDS if len(taken) < MOST_TAKEN else SOON_SECONDS)

    def _leave(self, id: str) -> None:
        """Leave a run to another process."""
        for left in self.on_left:
            left(id)
        if self._manager.shared.fleet is not None:
            self._manager.shared.fleet.leave(id)

    def _resume(self, ledger: RunLedger, stored: StoredRun) -> None:
        run = FollowedRun(stored.request_digest, outlives_server=True)
        run.goes_on = True  # its clients did not disconnect: their server died
        run.task = asyncio.create_task(self._finish_taken_over(ledger, stored, run), name="a durable run")
        place = f"{stored.caller}\0{stored.id}"
        self._followed[place] = run
        run.task.add_done_callback(lambda _: self._followed.pop(place, None))

    async def _finish_taken_over(self, ledger: RunLedger, stored: StoredRun, run: FollowedRun) -> None:
        set_log_ids({"run_id": stored.id})
        log.warning("run_taken_over", run_id=stored.id, epoch=stored.epoch)

        async def begin(durable: DurableRun, receive: Receive, send: Send) -> Ended:
            caller = self._manager.current.caller_named(stored.caller)
            carrier = self._carriers.get(stored.face)
            if stored.epoch > MAX_RESUMES:
                raise ChatError(
                    500,
                    f"This run was given up: {MAX_RESUMES} processes have carried it on, and none to its end.",
                    type="server_error",
                    code="run_given_up",
                )
            if caller is None or carrier is None:
                raise ChatError(401, "The key of this run is no key any more.", code="invalid_api_key")
            return await carrier.resume(decode_request(stored.request), caller, durable, receive, send)

        try:
            while True:
                try:
                    durable = await DurableRun.taken_over(
                        ledger, self._manager.shared.ledger, stored, leave=self._leave
                    )
                    break
                except DatabaseAway:
                    await asyncio.sleep(LOOK_SECONDS)
            await self._run_to_end(_Carried(run, durable), begin)
        finally:
            run.end()


class _Carried:
    """A run of this process, and what may end it early."""

    def __init__(self, followed: FollowedRun, durable: DurableRun) -> None:
        self.followed, self.durable = followed, durable
        self._stopped = asyncio.Event()

    @property
    def is_stopped(self) -> bool:
        """True if a client has cancelled it."""
        return self._stopped.is_set()

    def stop(self) -> None:
        self._stopped.set()

    def receiver(self, ledger: RunLedger) -> Receive:
        """Return the `Receive` that ends when the run is cancelled."""

        async def receive() -> Message:
            await self.unwanted(ledger)
            return {"type": "http.disconnect"}

        return receive

    def recorder(self, publisher: RunPublisher | None) -> Send:
        """Return the `Send` that takes the answer of the run."""
        if publisher is None:
            return self.followed.record

        async def record(message: Message) -> None:
            await self.followed.record(message)
            publisher.feed(message)

        return record

    async def unwanted(self, ledger: RunLedger) -> None:
        """Wait until it was cancelled, or has no followers in any process."""
        left = asyncio.create_task(self._left(ledger))
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({left, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            stopped.cancel()
            await asyncio.wait({left, stopped})

    async def _left(self, ledger: RunLedger) -> None:
        await self.followed.left.wait()
        while True:
            try:
                if not await ledger.is_followed(self.durable.id, FOLLOWED_SECONDS):
                    return
            except DatabaseAway:
                pass  # followers are assumed
            await asyncio.sleep(FOLLOWED_SECONDS / 2)


_encode = msgspec.msgpack.Encoder().encode
decode_answer = msgspec.msgpack.Decoder(RunAnswer).decode
decode_request = msgspec.msgpack.Decoder(RunRequest).decode


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
