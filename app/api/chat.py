"""`POST /v1/chat/completions`: where a request's straight line begins and ends.

An ASGI callable and not a FastAPI function: a function's machinery costs more than all that is done here, and
it would not tell us when the client leaves.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import structlog
from starlette.types import Receive, Scope, Send

from app.api.door import Visit, visit_of
from app.api.requests import ChatRequest, read_body, read_chat_request
from app.api.responses import ClientLeft, EventStream, Pulse, WholeAnswer
from app.api.wire import AnswerHead, ChunkWriter, CompletionWriter
from app.auth.keys import Caller
from app.chat.diagnosis import Diagnosis
from app.chat.errors import ChatError
from app.chat.events import CallStarted, ChatEnded, ChatEvent, Heard
from app.chat.loop import Rules, converse
from app.chat.ports import Ask, Tell
from app.runtime import House, Runtime


class Listener(Protocol):
    """Someone who cares what happens in a chat, but not for every word of it."""

    def hear(self, event: ChatEvent) -> None: ...


class ChatEndpoint:
    """Answers chat completions, whole or streamed."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = visit_of(scope)
        visit.route = "chat"
        assert visit.caller is not None, "the door lets nobody in without a caller"
        with self._house.lease() as runtime:
            limits = runtime.limits
            body = await read_body(receive, limits.body_bytes)
            request = read_chat_request(body, visit.headers, limits.messages)
            run = Run(runtime, visit, request, visit.caller)
            with structlog.contextvars.bound_contextvars(run_id=run.id):
                await run.answer(receive, send)


class Run:
    """One chat for one request: its model and tools, its listeners, and the headers of its answer."""

    def __init__(self, runtime: Runtime, visit: Visit, request: ChatRequest, caller: Caller) -> None:
        self.id = f"run_{secrets.token_hex(12)}"
        self._runtime, self._visit, self._request = runtime, visit, request
        self._engaged = runtime.engage(
            request.model,
            caller,
            run_id=self.id,
            client_tools=request.tools,
            wanted_tools=request.tool_filter,
            tool_choice=request.tool_choice,
        )
        self._wrote = False
        self._diagnosis = Diagnosis(self.id)
        heard_elsewhere = runtime.listeners(self._engaged.model_name, self.id)
        self._listeners: Sequence[Listener] = (self, self._diagnosis, *heard_elsewhere)
        visit.model = self._engaged.model_name
        visit.notes |= {"model": request.model, "stream": request.stream, "run_id": self.id}
        if request.n > 1 and self._engaged.has_house_tools:
            raise ChatError(
                400, "'n' must be 1 while tools of the house are on offer.", param="n", code="unsupported_value"
            )

    async def answer(self, receive: Receive, send: Send) -> None:
        request, runtime = self._request, self._runtime
        head = AnswerHead(f"chatcmpl-{self.id[4:]}", int(time.time()), request.model)
        told = self._diagnosis if runtime.diagnostics else None
        answer: EventStream | WholeAnswer
        if request.stream:
            answer = EventStream(
                self._chat, ChunkWriter(head, told, request.include_usage), self._headers, _pulse(runtime)
            )
        else:
            answer = WholeAnswer(self._chat, CompletionWriter(head, told), self._headers)
        try:
            error = await answer.send(receive, send)
        except ClientLeft:
            self._visit.notes["ending"] = "client_left"
            return
        if error is not None:
            self._visit.notes |= {"error": error.code or error.type, "detail": error.detail}

    async def _chat(self, tell: Tell) -> None:
        """The chat itself, heard by all listeners, within the time one request may take."""
        request, engaged = self._request, self._engaged
        ask = Ask(request.messages, (), request.tool_choice, request.params, request.stream)
        seconds = self._runtime.limits.request_seconds
        async with _Deadline(seconds):
            await converse(
                ask,
                engaged.model,
                engaged.toolbox,
                heard_by(self._listeners, tell),
                new_id=new_call_id,
                rules=self._rules(),
                sees_images=engaged.sees_images,
            )

    def _rules(self) -> Rules:
        rules = self._runtime.rules
        return rules if self._request.parallel else replace(rules, max_parallel_calls=1)

    def hear(self, event: ChatEvent) -> None:
        match event:
            case CallStarted(writes=True):
                self._wrote = True
            case ChatEnded(ending=ending):
                self._visit.notes["ending"] = str(ending.kind)
                if ending.note:
                    self._visit.notes["note"] = ending.note

    def _headers(self, error: ChatError | None = None) -> Mapping[str, str]:
        headers = {"x-callgate-run": self.id}
        if self._wrote:
            # Clients repeat a failed request by themselves. What a tool has written must not be written twice.
            headers["x-should-retry"] = "false"
        return headers


def heard_by(listeners: Sequence[Listener], tell: Tell) -> Tell:
    """Tell all listeners, then the writer. The model's words go to the writer alone: there are thousands of them."""

    async def tell_all(event: ChatEvent) -> None:
        if type(event) is not Heard:
            for listener in listeners:
                listener.hear(event)
        await tell(event)

    return tell_all


def _pulse(runtime: Runtime) -> Pulse:
    server = runtime.config.server
    return Pulse(first=server.first_chunk_seconds, heartbeat=server.heartbeat_seconds)


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class _Deadline:
    """The wall-clock limit of a request, as an error the client understands."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, failure: BaseException | None, trace: object) -> None:
        try:
            await self._timeout.__aexit__(kind, failure, trace)  # type: ignore[arg-type]
        except TimeoutError:
            raise ChatError(
                504,
                f"The request took longer than {self._seconds:g} seconds.",
                type="server_error",
                code="request_timeout",
            ) from None
