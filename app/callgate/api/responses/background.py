"""Background mode: a response that is made without an open connection, and read, followed and cancelled by its id.

It is made by an inner request through the whole application, whose events are gathered here. Meanwhile this process has its
events, and the store has a record with the name of this process. With a ledger it is a durable run, which another process
resumes. Otherwise the response has failed when its process is gone.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import msgspec
import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callgate.api.answers import STREAM_HEADERS, run_unless_disconnected, send_whole, start_message
from callgate.api.durable_runs import DurableRuns, RunRequest, RunResumer
from callgate.api.errors import ABOUT_RETRIES
from callgate.api.followed_run import WELL, Ended
from callgate.api.middleware import HAS_PLACE, context_of
from callgate.api.request_schema import wrong
from callgate.api.responses.output import ResponseHead, ResponseWriter
from callgate.api.responses.resumed import ENDS, ResumedWriter, events_in, fields_of, number_of
from callgate.api.responses.stored import StoredResponses, not_found
from callgate.auth.keys import Caller, owner_name
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError
from callgate.conversation.events import ChatEvent
from callgate.ledger.runs import StoredRun
from callgate.runtime.durable_run import TAKEN_OVER, DurableRun, TakenOver
from callgate.stores.claims import StoreProcesses
from callgate.stores.responses import StoredResponse
from callgate.stores.store import StoreError

LOOK_SECONDS: Final = 1.0
"""How often the store is checked for cancellations by other processes, and for the end of responses that are followed here."""
BATCH_SECONDS: Final = 0.2
"""The interval of writes of a durable run's events, which are sent to clients only after they were stored."""
FOUND_SECONDS: Final = 10.0
"""How long a response with a repeated key may have no record yet, which is written when it begins."""
UNFINISHED: Final = frozenset({"queued", "in_progress"})
GONE: Final = {"code": "server_error", "message": "The process that made this response is gone; ask again."}

log = structlog.get_logger("callgate.responses")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode


class _Refusal(msgspec.Struct, frozen=True):
    """The error with which a response was refused before it began."""

    status: int
    headers: Mapping[str, str]
    """Those about retries."""
    body: bytes


class BackgroundRun:
    """One response that is being made."""

    def __init__(self, owner: str, process: str) -> None:
        """`process`: the process that makes it."""
        self.owner, self.process = owner, process
        self.id = ""
        self.writer: ResponseWriter | None = None
        self.begun = asyncio.Event()
        """Set when it has an id, was refused, or was begun by an earlier request."""
        self.found: StoredRun | None = None
        """The run of an earlier request with its key."""
        self.refusal: _Refusal | None = None
        self.events: list[bytes] = []
        """The events for followers."""
        self.final: dict[str, Any] | None = None
        """The response, once it is over."""
        self.task: asyncio.Task[Any]
        self.stopped = ""
        """The status with which it was stopped before its end."""
        self.stop_work: Callable[[str], None] | None = None
        """Stops a durable run, by its run's id."""
        self.recording: asyncio.Task[None] | None = None
        """Stores the record that it is being made, before its result is stored."""
        self.is_kept = asyncio.Event()
        """Set when that is done or has failed; then its client is sent the id."""
        self.is_left = False
        """Another process has taken it over."""
        self._news = asyncio.Event()
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._body = b""
        self._durable: DurableRun | None = None
        self._unkept: list[bytes] = []
        self._keeping: asyncio.Task[None] | None = None
        self._is_ending = asyncio.Event()

    def begin(self, head: ResponseHead, diagnosis: Diagnosis | None, durable: DurableRun | None) -> ResponseWriter:
        """Return its writer, which continues after the stored events."""
        if self.events and durable is not None:
            writer: ResponseWriter = ResumedWriter(head, diagnosis, self.events, durable.kept_turns)
        else:
            writer = ResponseWriter(head, diagnosis)
        writer.begins_at_once = True
        if durable is not None:
            self._durable, durable.before_end = durable, self.keep_rest
        self.id, self.writer = head.id, writer
        self.begun.set()
        return writer

    def find(self, stored: StoredRun) -> None:
        """Note that an earlier request has begun it."""
        self.found = stored
        self.begun.set()

    def resource(self) -> dict[str, Any]:
        """Return the current response."""
        if self.final is not None:
            return self.final
        assert self.writer is not None, "a run that has begun has a writer"
        return self.writer.resource("in_progress" if self.events else "queued")

    def add(self, data: bytes) -> None:
        """Add events of the answer. Those of a durable run are sent to followers once they are stored."""
        if self.stopped or self.is_left:
            return
        if self._durable is None:
            self.events += events_in(data)
            self.notify()
            return
        self._unkept += events_in(data)
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep(self._durable), name="keeps what a response says")

    async def _keep(self, durable: DurableRun) -> None:
        with contextlib.suppress(TakenOver):  # then another process stores them
            while self._unkept:
                events, self._unkept = self._unkept, []
                await durable.keep_answer(number_of(events[0]), b"".join(events))
                self.events += events
                self.notify()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BATCH_SECONDS):
                        await self._is_ending.wait()

    async def keep_rest(self) -> None:
        """Return when all events are stored, or another process has taken the run over."""
        self._is_ending.set()
        if self._keeping is not None:
            await asyncio.wait({self._keeping})

    def stop(self, status: str) -> None:
        """Stop it with a status; further events are ignored."""
        if not self.stopped:
            self.stopped = status
            if self.stop_work is None:
                self.task.cancel()
            else:
                self.stop_work(run_id_of(self.id))

    def notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def follow(self, after: int) -> AsyncIterator[bytes]:
        """Yield the events after a number, those that follow included."""
        at = 0
        while True:
            news = self._news
            for event in self.events[at:]:
                at += 1
                if number_of(event) > after:
                    yield event
            if self.final is not None and at == len(self.events):
                return
            await news.wait()

    async def send(self, message: Message) -> None:
        """Take an ASGI message of the answer, for its status; the events come from the writer."""
        if self.stopped or self.is_left:
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = _about_retries(message["headers"])
        elif self._status != 200:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                self.refusal = _Refusal(self._status, self._headers, self._body)
                self.begun.set()


class GatheredStream:
    """Wraps the writer of a background response: its events are gathered for followers."""

    def __init__(self, writer: ResponseWriter, run: BackgroundRun) -> None:
        self._writer, self._run = writer, run

    def write(self, event: ChatEvent) -> bytes:
        return self._gathered(self._writer.write(event))

    def heartbeat(self) -> bytes:
        return self._gathered(self._writer.heartbeat())

    def error(self, error: ChatError) -> bytes:
        return self._gathered(self._writer.error(error))

    def _gathered(self, data: bytes) -> bytes:
        if data:
            self._run.add(data)
        return data


BACKGROUND: Final[ContextVar[BackgroundRun | None]] = ContextVar("background_run", default=None)
"""The background run of an inner request."""


class ResponsesResumer:
    """Resumes responses of other processes, background responses among them."""

    def __init__(self, endpoint: RunResumer, background: "BackgroundRuns") -> None:
        self._endpoint, self._background = endpoint, background

    async def resume(self, request: RunRequest, caller: Caller, run: DurableRun, receive: Receive, send: Send) -> Ended:
        answer = partial(self._endpoint.resume, request, caller, run)
        if not _decode(request.body, type=_BackgroundRequest).background:
            return await answer(receive, send)
        return await self._background.resume(caller, run, answer, receive, send)


class _BackgroundRequest(msgspec.Struct):
    background: bool | None = None


class BackgroundRuns:
    """The responses that this process makes in the background."""

    def __init__(self, app: ASGIApp, kept: StoredResponses, processes: StoreProcesses, durable: DurableRuns) -> None:
        self._app, self._kept, self._processes, self._durable = app, kept, processes, durable
        self._runs: dict[tuple[str, str], BackgroundRun] = {}
        durable.on_left.append(self._leave)

    @property
    def are_durable(self) -> bool:
        """True if responses outlive this process."""
        return self._durable.is_on

    async def start(self, body: bytes, stream: bool, scope: Scope, receive: Receive, send: Send) -> None:
        """Begin a response, and answer with its current state, or with its events."""
        context = context_of(scope)
        assert context.caller is not None, "the middleware requires a caller here"
        if "idempotency-key" in context.headers and not self.are_durable:
            raise wrong(
                "background",
                "Background mode with an 'Idempotency-Key' needs a ledger here: `data_dir` or `ledger.url`, and `runs.durable`.",
            )
        run = BackgroundRun(owner_name(context.caller), self._processes.own)
        place = context.place.handed_on() if context.place is not None else contextlib.nullcontext()
        run.task = asyncio.create_task(self._make(run, place, scope, body), name="a response in the background")
        await run.begun.wait()
        if run.found is not None:
            if not await self._answer_again(run.owner, run.found, stream, receive, send):
                await self.start(body, stream, scope, receive, send)
            return
        await run.is_kept.wait()
        if run.refusal is not None and run.writer is None:
            await send_whole(send, run.refusal.status, run.refusal.body, run.refusal.headers)
        elif stream:
            await self._stream(run.follow(-1), receive, send)
        else:
            await send_whole(send, 200, _encode(run.resource()), {})

    async def _answer_again(self, owner: str, stored: StoredRun, stream: bool, receive: Receive, send: Send) -> bool:
        """Answer a request with a repeated key; False where the earlier one left nothing."""
        id, until = response_id_of(stored.id), asyncio.get_running_loop().time() + FOUND_SECONDS
        while (owner, id) not in self._runs and await self._kept.find(owner, id) is None:
            state, answer = await self._durable.end_of(stored.id)
            if not state:
                return False
            if answer is not None and answer.status != 200:
                await send_whole(send, answer.status, answer.body, _about_retries(answer.headers))
                return True
            if answer is not None or asyncio.get_running_loop().time() > until:
                raise not_found(id)
            await asyncio.sleep(LOOK_SECONDS / 10)
        if stream:
            await self.stream_again(owner, id, -1, receive, send)
        else:
            await send_whole(send, 200, _encode(await self.found(owner, id)), {})
        return True

    async def found(self, owner: str, id: str) -> dict[str, Any]:
        """Return the current state of a response of any process."""
        run = self._runs.get((owner, id))
        if run is not None and not run.is_left:
            return run.resource()
        response, _ = await self._settled(owner, id)
        return response

    async def cancel(self, owner: str, id: str) -> dict[str, Any]:
        """Stop a response, and return it. One that has ended is not changed."""
        run = self._runs.get((owner, id))
        if run is None or run.is_left:
            response, _ = await self._settled(owner, id)
            if not response.get("background"):
                raise ChatError(
                    400,
                    "Only a response that is made in the background can be cancelled.",
                    param="id",
                    code="invalid_value",
                )
            if response["status"] in UNFINISHED:
                await self._kept.ask_to_cancel(owner, id)
                while response["status"] in UNFINISHED:
                    await asyncio.sleep(LOOK_SECONDS / 4)
                    response, _ = await self._settled(owner, id)
            return response
        run.stop("cancelled")
        await asyncio.wait({run.task})
        return run.resource()

    async def stream_again(self, owner: str, id: str, after: int, receive: Receive, send: Send) -> None:
        """Stream the events of a response after a number, those that follow included. For a response of another process that is
        no durable run only after its end."""
        run = self._runs.get((owner, id))
        if run is None:
            response, _ = await self._settled(owner, id)
            if not response.get("background"):
                raise wrong("stream", "Only a response that was made in the background can be streamed again.")
        await self._stream(self._events(owner, id, run, after), receive, send)

    async def _events(self, owner: str, id: str, run: BackgroundRun | None, last: int) -> AsyncIterator[bytes]:
        if run is not None:
            async for event in run.follow(last):
                last = number_of(event)
                yield event
            if not run.is_left:
                return
        async for body in self._durable.answered(run_id_of(id)):
            for event in events_in(body):
                if (number := number_of(event)) > last:
                    last = number
                    yield event
                    if event.startswith(ENDS):
                        return
        for event in await self._kept_events(owner, id):
            if number_of(event) > last:
                yield event

    async def _kept_events(self, owner: str, id: str) -> Sequence[bytes]:
        """Return the stored events of a response after its end; none for a deleted one. Waits while the store is away."""
        while True:
            try:
                response, kept = await self._settled(owner, id)
                # Its events are stored last.
                if response["status"] not in UNFINISHED and not (kept.process and await self._is_made(kept.process)):
                    return kept.events
            except StoreError:
                pass  # logged where something is stored
            except ChatError as error:
                if error.status != 503:
                    return ()
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        """Stop the unfinished responses, which have failed then, except for durable ones."""
        running = list(self._runs.values())
        for run in running:
            if run.stop_work is None:
                run.stop("failed")
        if running:
            await asyncio.wait({run.task for run in running})

    # -- making one

    async def resume(
        self,
        caller: Caller,
        durable: DurableRun,
        answer: Callable[[Receive, Send], Awaitable[Ended]],
        receive: Receive,
        send: Send,
    ) -> Ended:
        """Resume a response of another process, after the events that it has sent."""
        run = BackgroundRun(owner_name(caller), self._processes.own)
        task = asyncio.current_task()
        assert task is not None, "called in a task"
        run.task, run.stop_work = task, self._durable.stop
        run.events = events_in(durable.answered)

        async def send_on(message: Message) -> None:
            await run.send(message)
            await send(message)
            if message["type"] == "http.response.start" and message["status"] == 200 and durable.answered:
                await send({"type": "http.response.body", "body": durable.answered, "more_body": True})

        if run.events and run.events[-1].startswith(ENDS):
            # All events but the last had been sent.
            run.id = response_id_of(durable.id)
            await send_on(start_message(200, {**STREAM_HEADERS, "x-callgate-run": durable.id}))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            await self._end(run, None)
            return WELL
        before = BACKGROUND.set(run)
        watching = asyncio.create_task(self._watch(run), name="watches a response in the background")
        try:
            return await answer(receive, send_on)
        finally:
            BACKGROUND.reset(before)
            watching.cancel()
            if run.writer is not None:
                await run.keep_rest()
                await self._end(run, None)

    async def _make(self, run: BackgroundRun, place: AbstractContextManager[object], scope: Scope, body: bytes) -> None:
        BACKGROUND.set(run)
        if self.are_durable:
            run.stop_work = self._durable.stop
        asked: dict[str, Any] = _decode(body, type=dict[str, msgspec.Raw])
        sent = [_encode({**asked, "stream": True})]
        over = asyncio.Event()

        async def receive() -> Message:
            if sent:
                return {"type": "http.request", "body": sent.pop(), "more_body": False}
            await over.wait()
            return {"type": "http.disconnect"}

        inner = {name: value for name, value in scope.items() if name not in ("context", "endpoint", "extensions")}
        inner[HAS_PLACE] = True
        watching = asyncio.create_task(self._watch(run), name="watches a response in the background")
        error = None
        try:
            with place:
                await self._app(inner, receive, run.send)
            if run.writer is not None and run.refusal is not None:
                refused = _decode(run.refusal.body)["error"]
                error = ChatError(run.refusal.status, refused["message"], code=refused["code"], type=refused["type"])
        finally:
            watching.cancel()
            if run.writer is not None:
                await self._end(run, error)
            run.begun.set()
            run.is_kept.set()

    async def _watch(self, run: BackgroundRun) -> None:
        """Store the record that it is being made, then check for cancellation."""
        await run.begun.wait()
        if run.writer is None:
            return
        with contextlib.suppress(StoreError):
            await self._keep_watching(run)
        run.is_kept.set()

    async def _keep_watching(self, run: BackgroundRun) -> None:
        key = (run.owner, run.id)
        self._runs[key] = run
        await self._processes.announce()
        run.recording = asyncio.create_task(self._kept.put(*key, self._record(run)))
        await asyncio.shield(run.recording)
        run.is_kept.set()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if await self._kept.is_to_cancel(*key):
                run.stop("cancelled")
                return

    async def _end(self, run: BackgroundRun, error: ChatError | None) -> None:
        """Store the result with its events."""
        if run.is_left or (run.stop_work is not None and not run.stopped and _has_no_end(run, error)):
            if run.is_left or (await self._durable.end_of(run_id_of(run.id)))[0] != "cancelled":
                run.final = run.resource()
                self._runs.pop((run.owner, run.id), None)
                run.notify()
                return
            run.stopped, error = "cancelled", None  # cancelled as a durable run
        if run.stopped == "failed":
            error = ChatError(503, "The server was shut down.", type="server_error")
        if error is not None or run.stopped:
            assert run.writer is not None, "a run that has begun has a writer"
            run.final = run.writer.resource("cancelled") if error is None else run.writer.failed(error)
            run.events += [] if error is None else events_in(run.writer.error(error))
        else:
            run.final = fields_of(run.events[-1])["response"]
        key = (run.owner, run.id)
        if run.recording is not None:
            await asyncio.wait({run.recording})
            run.recording.exception()  # marks it as retrieved; the write below meets the same error
        try:
            kept = await self._kept.find(*key)
            if kept is None or run.final["status"] not in ("completed", "incomplete"):
                kept = self._record(run)
            kept.response, kept.events, kept.process = msgspec.Raw(_encode(run.final)), run.events, ""
            await self._kept.put(*key, kept)
        except (StoreError, ChatError) as failure:
            log.warning("response_not_kept", response=run.id, error=str(failure))
        self._runs.pop(key, None)
        run.notify()

    def _record(self, run: BackgroundRun) -> StoredResponse:
        return StoredResponse(msgspec.Raw(_encode(run.resource())), [], [], process=self._processes.own)

    def _leave(self, run_id: str) -> None:
        for run in self._runs.values():
            run.is_left = run.is_left or run_id_of(run.id) == run_id

    # -- responses of other processes

    async def _settled(self, owner: str, id: str) -> tuple[dict[str, Any], StoredResponse]:
        kept = await self._kept.get(owner, id)
        response: dict[str, Any] = _decode(kept.response)
        is_made = response["status"] not in UNFINISHED or await self._is_made(kept.process)
        if not is_made and (await self._durable.end_of(run_id_of(id)))[0] != "running":
            response |= {"status": "failed", "error": GONE}
        return response, kept

    async def _is_made(self, process: str) -> bool:
        return process != self._processes.own and await self._processes.is_alive(process)

    async def _stream(self, events: AsyncIterator[bytes], receive: Receive, send: Send) -> None:
        await send(start_message(200, STREAM_HEADERS))

        async def send_all() -> None:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})

        await run_unless_disconnected(send_all(), receive)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


def run_id_of(id: str) -> str:
    """Return the id of the run that makes a response."""
    return "run_" + id.removeprefix("resp_")


def response_id_of(run_id: str) -> str:
    return "resp_" + run_id.removeprefix("run_")


def _about_retries(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers of an error that say whether and when to repeat the request."""
    named = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
    return {name: value for name, value in named if name in ABOUT_RETRIES}


def _has_no_end(run: BackgroundRun, error: ChatError | None) -> bool:
    """True if it ended without a result here: another process has it, or it was cancelled as a durable run."""
    if error is not None:
        return error.code == TAKEN_OVER
    return not (run.events and run.events[-1].startswith(ENDS))


def check_after(given: Mapping[str, str]) -> int:
    """Read the event number after which a stream is resumed."""
    after = given.get("starting_after", "-1")
    if after != "-1" and not (after.isdecimal() and len(after) < 10):
        raise wrong("starting_after", "Invalid 'starting_after': expected the number of an event.")
    return int(after)
