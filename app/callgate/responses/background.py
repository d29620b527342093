"""Background mode: a response that is made without an open connection, and read, followed and cancelled by its id.

It is a run like those with an `Idempotency-Key`, whose streamed answer has its events. The store has a record of the response
from its beginning, which is replaced by the response at its end.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec
import structlog
from starlette.types import Receive, Send

from callgate.api.answers import STREAM_HEADERS, run_unless_disconnected, send_whole, start_message
from callgate.api.field_errors import wrong
from callgate.api.run_ports import WELL, Ended, KeptRun, LiveAnswer, RunRequest, RunResumer
from callgate.callers.caller import Caller, owner_name
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError
from callgate.responses.output import DONE, ResponseHead, ResponseWriter, event_of
from callgate.responses.resumed import ENDS, ResumedWriter, events_in, fields_of, number_of
from callgate.responses.stored import StoredResponses, not_found
from callgate.runs.durable_runs import DurableRuns
from callgate.runtime.manager import RuntimeManager
from callgate.state.responses import StoredResponse
from callgate.state.store import StoreError
from callgate.untrusted.readers import read_value

LOOK_SECONDS: Final = 0.25
"""How often the store is checked for the end of a response that another process makes."""
BEGIN_SECONDS: Final = 0.1
"""How often it is checked for the record of a response that begins."""
UNFINISHED: Final = frozenset({"queued", "in_progress"})
GONE: Final = {"code": "server_error", "message": "The process that made this response is gone; ask again."}

log = structlog.get_logger("callgate.responses")
_encode = msgspec.json.Encoder().encode
_decode = read_value


class BackgroundResponse:
    """The record of one response in the background, as the process that makes it writes it."""

    def __init__(self, responses: StoredResponses, owner: str, durable: KeptRun, writer: ResponseWriter) -> None:
        self._kept = responses
        self._owner = owner
        self._durable = durable
        self._writer = writer

    @classmethod
    def begin(
        cls,
        responses: StoredResponses,
        owner: str,
        durable: KeptRun,
        head: ResponseHead,
        diagnosis: Diagnosis | None,
    ) -> ResponseWriter:
        """Have a run write the record of its response; return the writer, which continues after the events that another process
        has stored."""
        events = events_in(durable.earlier_answer())
        if events:
            writer: ResponseWriter = ResumedWriter(head, diagnosis, events, durable.count_turns())
        else:
            writer = ResponseWriter(head, diagnosis)
        writer.begins_at_once = True
        response = cls(responses, owner, durable, writer)
        durable.stores_parts = True
        durable.before_work = response.store_beginning
        durable.before_end = response.store_end
        return writer

    async def store_beginning(self) -> None:
        await self._store(self._writer.resource("in_progress"))

    async def store_end(self, error: ChatError | None) -> None:
        """Store how it ended, unless it was stored as completed before its last event."""
        if self._durable.is_cancelled.is_set():
            await self._store(self._writer.resource("cancelled"))
        elif error is not None:
            await self._store(self._writer.failed(error))
        elif self._writer.response is not None and self._writer.response["status"] == "failed":
            await self._store(self._writer.response)

    async def _store(self, response: Mapping[str, Any]) -> None:
        await store_record(self._kept, self._owner, response)


async def store_record(responses: StoredResponses, owner: str, response: Mapping[str, Any]) -> None:
    """Store a response without the chat, which nothing can continue."""
    try:
        await responses.put(owner, response["id"], StoredResponse(msgspec.Raw(_encode(response)), [], []))
    except StoreError as failure:
        log.warning("response_not_kept", response=response["id"], error=str(failure))


class ResponsesResumer:
    """Resumes responses of other processes, background responses among them."""

    def __init__(self, endpoint: RunResumer, responses: StoredResponses) -> None:
        self._endpoint = endpoint
        self._kept = responses

    async def resume(self, request: RunRequest, caller: Caller, run: KeptRun, receive: Receive, send: Send) -> Ended:
        events = events_in(run.earlier_answer())
        if not (events and events[-1].startswith(ENDS)):
            return await self._endpoint.resume(request, caller, run, receive, send)
        # All events had been stored, and nothing is asked.
        run.stores_parts = True
        response = fields_of(events[-1])["response"]
        if response["status"] == "failed":
            await store_record(self._kept, owner_name(caller), response)
        await send(start_message(200, {**STREAM_HEADERS, "x-callgate-run": run.id}))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return WELL


class BackgroundResponses:
    """The responses in the background, for clients that read, follow and cancel them."""

    def __init__(self, responses: StoredResponses, runs: DurableRuns, manager: RuntimeManager) -> None:
        self._kept = responses
        self._runs = runs
        self._manager = manager

    async def deliver(self, owner: str, run: LiveAnswer, receive: Receive, send: Send) -> None:
        """Answer the request that begins a response, or repeats its key, with its current state."""
        row = await run.wait_for_row()
        if row is None:
            await run.follow(receive, send)
            return
        id = response_id_of(row.id)
        while (response := await self._state(owner, id, run)) is None:
            if run.status not in (0, 200):
                await run.follow(receive, send)
                return
            if run.has_ended:
                raise not_found(id)
            await run.wait_for_change(BEGIN_SECONDS)
        await send_whole(send, 200, _encode(response), {})

    async def deliver_stream(self, owner: str, run: LiveAnswer, receive: Receive, send: Send) -> None:
        """Answer the same with its events."""
        row = await run.wait_for_row()
        if row is None or self._runs.active(row.id) is run or row.answer is not None:
            await run.follow(receive, send)
        else:
            await self._stream(self._events(row.id, -1), receive, send)

    async def find(self, owner: str, id: str) -> dict[str, Any]:
        """Return the current state of a response of any process."""
        response: dict[str, Any] = _decode((await self._kept.get(owner, id)).response)
        if response["status"] not in UNFINISHED:
            return response
        state = await self._runs.state_of(run_id_of(id))
        if state == "running":
            return response
        response = _decode((await self._kept.get(owner, id)).response)  # it may just have ended
        if response["status"] in UNFINISHED and (state or not self._may_be_made_elsewhere(response)):
            response |= {"status": "failed", "error": GONE}
        return response

    async def cancel(self, owner: str, id: str) -> dict[str, Any]:
        """Stop a response, and return it. One that has ended is not changed."""
        response = await self.find(owner, id)
        if not response.get("background"):
            raise ChatError(
                400,
                "Only a response that is made in the background can be cancelled.",
                param="id",
                code="invalid_value",
            )
        if response["status"] in UNFINISHED:
            if not await self._runs.state_of(run_id_of(id)):
                raise ChatError(
                    409,
                    "Another process makes this response, and without a `data_dir` or a `ledger.url` only that one can stop it.",
                    param="id",
                    code="response_elsewhere",
                )
            await self._runs.cancel(run_id_of(id), owner)
            response = await self.find(owner, id)
            while response["status"] in UNFINISHED:
                await asyncio.sleep(LOOK_SECONDS)
                response = await self.find(owner, id)
        return response

    async def stream_again(self, owner: str, id: str, after: int, receive: Receive, send: Send) -> None:
        """Stream the events of a response after a number, those that follow included."""
        response = await self.find(owner, id)
        if not response.get("background"):
            raise wrong("stream", "Only a response that was made in the background can be streamed again.")
        if await self._runs.state_of(run_id_of(id)):
            events = self._events(run_id_of(id), after)
        else:
            # The run with its events is not kept any more, or is at another process.
            events = self._end_alone(owner, id, after)
        await self._stream(events, receive, send)

    def _may_be_made_elsewhere(self, response: Mapping[str, Any]) -> bool:
        """Return whether another process may be making a response that has no run here. Without a ledger nobody knows which
        processes live, but none makes a response for longer than a request may take."""
        config = self._manager.config
        if self._runs.are_kept or config.store.redis_url is None:
            return False
        return time.time() < float(response["created_at"]) + config.limits.request_seconds

    async def _state(self, owner: str, id: str, run: LiveAnswer) -> dict[str, Any] | None:
        """Return the state of a response that may have no record yet."""
        kept_response = await self._kept.find(owner, id)
        if kept_response is not None:
            response: dict[str, Any] = _decode(kept_response.response)
            if response["status"] in UNFINISHED and not run.parts:
                response["status"] = "queued"
            return response
        if run.has_ended or run.status != 200:
            return None
        events = events_in(b"".join(run.parts))
        if not events or events[-1].startswith(ENDS):  # what is complete had a record, which has been deleted
            return None
        begun: dict[str, Any] = fields_of(events[0])["response"]
        return begun

    async def _events(self, run_id: str, last: int) -> AsyncIterator[bytes]:
        active = self._runs.active(run_id)
        if active is not None:
            async for body in active.bodies():
                for event in events_in(body):
                    if (number := number_of(event)) > last:
                        last = number
                        yield event
                        if event.startswith(ENDS):
                            return
        async for body in self._runs.answered(run_id):
            for event in events_in(body):
                if (number := number_of(event)) > last:
                    last = number
                    yield event
                    if event.startswith(ENDS):
                        return

    async def _end_alone(self, owner: str, id: str, after: int) -> AsyncIterator[bytes]:
        """Yield the last event of a response, once it has ended."""
        response = await self.find(owner, id)
        while response["status"] in UNFINISHED:
            await asyncio.sleep(LOOK_SECONDS)
            response = await self.find(owner, id)
        if response["status"] != "cancelled":
            yield event_of(f"response.{response['status']}", after + 1, {"response": response})

    async def _stream(self, events: AsyncIterator[bytes], receive: Receive, send: Send) -> None:
        await send(start_message(200, STREAM_HEADERS))
        await send({"type": "http.response.body", "body": b"", "more_body": True})  # the headers, before any event

        async def send_all() -> None:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})

        await run_unless_disconnected(send_all(), receive)
        await send({"type": "http.response.body", "body": DONE, "more_body": False})


def run_id_of(id: str) -> str:
    """Return the id of the run that makes a response."""
    return "run_" + id.removeprefix("resp_")


def response_id_of(run_id: str) -> str:
    return "resp_" + run_id.removeprefix("run_")


def check_after(query: Mapping[str, str]) -> int:
    """Read the event number after which a stream is resumed."""
    after = query.get("starting_after", "-1")
    if after != "-1" and not (after.isdecimal() and len(after) < 10):
        raise wrong("starting_after", "Invalid 'starting_after': expected the number of an event.")
    return int(after)
