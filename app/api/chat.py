"""`POST /v1/chat/completions`: where a request's straight line begins and ends.

An ASGI callable and not a FastAPI function: a function's machinery costs more than all that is done here, and
it would not tell us when the client leaves.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from app.api import legacy
from app.api.door import Visit, visit_of
from app.api.errors import encode
from app.api.once import Ended, Once
from app.api.progress import progress_in
from app.api.relay import Passed, PassedBody, PassedStream
from app.api.requests import ChatRequest, check_encoding, read_body, read_chat_request
from app.api.responses import BodyWriter, ClientLeft, EventStream, Pulse, StreamWriter, WholeAnswer
from app.api.wire import (
    AnswerHead,
    ChoicesChunkWriter,
    ChoicesWriter,
    ChunkWriter,
    CompletionWriter,
    ForChoice,
    function_body,
)
from app.auth.keys import Caller
from app.chat.diagnosis import Diagnosis
from app.chat.errors import ChatError
from app.chat.events import CallsHandedBack, CallStarted, ChatEnded, ChatEvent, Heard
from app.chat.ids import new_id
from app.chat.loop import Rules, converse
from app.chat.ports import Ask, CannotPassOn, Message, Relay, Tell
from app.runtime import House, Runtime, new_call_id
from app.stores.conversations import Conversations

Keep: TypeAlias = Callable[[CallsHandedBack], Awaitable[CallsHandedBack]]


class Listener(Protocol):
    """Someone who cares what happens in a chat, but not for every word of it."""

    def hear(self, event: ChatEvent) -> None: ...


class ChatEndpoint:
    """Answers chat completions, whole or streamed."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._once = Once(house.store)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = visit_of(scope)
        visit.route = "chat"
        caller = visit.caller
        assert caller is not None, "the door lets nobody in without a caller"
        config = self._house.current.config
        limits = config.limits
        check_encoding(visit.headers)
        body = await read_body(receive, limits.body_bytes)
        request = read_chat_request(body, visit.headers, limits.messages, limits.json_depth)

        async def begin(receive: Receive, send: Send) -> Ended:
            with self._house.lease() as runtime:
                run = Run(runtime, self._house.conversations, visit, request, caller)
                visit.ids["run_id"] = run.id
                return await run.answer(receive, send)

        key = visit.headers.get("idempotency-key")
        if key is None:
            await begin(receive, send)
            return
        try:
            seconds = config.store.answer_seconds
            await self._once.answer(caller_key(caller), key, body, begin, seconds, receive, send)
        except ClientLeft:
            visit.notes["ending"] = "client_left"


class Run:
    """The answer to one request: its chats, one for each choice, and the headers."""

    def __init__(
        self, runtime: Runtime, conversations: Conversations, visit: Visit, request: ChatRequest, caller: Caller
    ) -> None:
        self.id = new_id("run")
        self._runtime, self._visit, self._request = runtime, visit, request
        self._caller = caller
        self._limit_headers: Mapping[str, str] = {}
        self._tally: Callable[[], Listener] | None = None
        self._new_chat = partial(Conversation, self, runtime, conversations, request, caller)
        self._chats = [self._new_chat()]
        self._relay = self._chats[0].relay
        if self._relay is None:
            self._open_all_choices()
        visit.model = self._chats[0].model_name
        visit.notes |= {"model": request.model, "stream": request.stream}

    async def answer(self, receive: Receive, send: Send) -> Ended:
        answer = self._streamed() if self._request.stream else self._whole()
        try:
            error = await answer.send(receive, send)
        except ClientLeft:
            self._visit.notes["ending"] = "client_left"
            return Ended(wrote=self._visit.wrote, left=True)
        if error is not None:
            self._visit.notes |= {"error": error.code or error.type, "detail": error.detail}
        return Ended(error, self._visit.wrote)

    def hear(self, event: ChatEvent) -> None:
        match event:
            case CallStarted(writes=True):
                self._visit.wrote = True
            case ChatEnded(ending=ending):
                self._visit.notes["ending"] = str(ending.kind)
                if ending.note:
                    self._visit.notes["note"] = ending.note

    def _open_all_choices(self) -> None:
        while len(self._chats) < self._request.n:
            chat = self._new_chat()
            if self._tally is not None:
                chat.add_listener(self._tally())
            self._chats.append(chat)

    def _streamed(self) -> EventStream:
        writer = self._stream_writer() if self._relay is None else PassedStream(self._head())
        return EventStream(self._chat, writer, self._headers, _pulse(self._runtime))

    def _whole(self) -> WholeAnswer:
        writer = self._body_writer() if self._relay is None else PassedBody()
        return WholeAnswer(self._chat, writer, self._headers)

    def _stream_writer(self) -> StreamWriter:
        head, diagnoses, include_usage = self._head(), self._diagnoses(), self._request.include_usage
        if len(self._chats) == 1:
            return ChunkWriter(head, diagnoses[0] if diagnoses else None, include_usage)
        return ChoicesChunkWriter(head, diagnoses, include_usage, len(self._chats))

    def _body_writer(self) -> BodyWriter:
        head, diagnoses = self._head(), self._diagnoses()
        if len(self._chats) == 1:
            return CompletionWriter(head, diagnoses[0] if diagnoses else None)
        return ChoicesWriter(head, diagnoses, len(self._chats))

    async def _chat(self, tell: Callable[[Any], Awaitable[None]]) -> None:
        """All chats to their ends, within the time one request may take."""
        with _Deadline(self._runtime.limits.request_seconds), await self._runtime.place_at(self._request.model):
            if self._caller.allowance.is_metered:
                await self._chat_metered(tell)
            else:
                await self._carry_all(tell)

    async def _chat_metered(self, tell: Callable[[Any], Awaitable[None]]) -> None:
        """The chats, held to what the key may use: an estimate is reserved before and settled after them."""
        request = self._request
        size = sum(memoryview(each).nbytes for each in (*request.messages, *request.tools))
        meter = await self._runtime.meter(self._caller, request.model, size, _longest_answer(request.params), request.n)
        self._tally = meter.tally
        for chat in self._chats:
            chat.add_listener(self._tally())
        try:
            async with meter:
                self._limit_headers = meter.headers
                await self._carry_all(tell)
        finally:
            self._limit_headers = meter.headers

    async def _carry_all(self, tell: Callable[[Any], Awaitable[None]]) -> None:
        if self._relay is not None:
            await self._pass_on(self._relay, tell)
        else:
            await self._converse_all(tell)

    async def _pass_on(self, relay: Relay, tell: Callable[[bytes], Awaitable[None]]) -> None:
        try:
            await Passed(relay, self._request, self._chats[0].listeners_to_a_passage).carry(tell)
        except CannotPassOn:
            self._open_all_choices()
            await self._read_after_all(tell)

    async def _read_after_all(self, tell: Callable[[bytes], Awaitable[None]]) -> None:
        """Once more, its answer read and written anew: it comes in another shape than was asked for."""
        stream = self._stream_writer() if self._request.stream else None
        body = self._body_writer() if stream is None else None

        async def write(told: Any) -> None:
            if body is not None:
                body.write(told)
            elif stream is not None and (data := stream.write(told)):
                await tell(data)

        await self._converse_all(write)
        if body is not None:
            await tell(encode(body.body()))

    async def _converse_all(self, tell: Callable[[Any], Awaitable[None]]) -> None:
        if len(self._chats) == 1:
            await self._chats[0].carry(tell)
            return
        try:
            async with asyncio.TaskGroup() as group:
                for choice, chat in enumerate(self._chats):
                    group.create_task(chat.carry(_for_choice(choice, tell)))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the client is told of one; it cannot be answered in parts

    def _head(self) -> AnswerHead:
        request = self._request
        progress = progress_in(request.tool_events, self.id)
        return AnswerHead(f"chatcmpl-{self.id[4:]}", int(time.time()), request.model, progress, request.legacy)

    def _diagnoses(self) -> list[Diagnosis] | None:
        return [chat.diagnosis for chat in self._chats] if self._runtime.diagnostics else None

    def _headers(self, error: ChatError | None = None) -> Mapping[str, str]:
        headers = {"x-callgate-run": self.id, **self._limit_headers}
        if self._visit.wrote:
            # Clients repeat a failed request by themselves. What a tool has written must not be written twice.
            headers["x-should-retry"] = "false"
        return headers


class Conversation:
    """One chat of a run: its model and tools, and those who listen to it."""

    def __init__(
        self, run: Run, runtime: Runtime, conversations: Conversations, request: ChatRequest, caller: Caller
    ) -> None:
        self._runtime, self._conversations, self._request, self._caller = runtime, conversations, request, caller
        self._engaged = runtime.engage(
            request.model,
            caller,
            run_id=run.id,
            client_tools=request.tools,
            wanted_tools=request.tool_filter,
            tool_choice=request.tool_choice,
            allowed=request.allowed,
        )
        self.model_name = self._engaged.model_name
        self.diagnosis = Diagnosis(run.id)
        self.relay = self._engaged.relay
        self.listeners: Sequence[Listener] = (run, self.diagnosis, *runtime.listeners(self.model_name, run.id))

    def add_listener(self, listener: Listener) -> None:
        self.listeners = (*self.listeners, listener)

    @property
    def listeners_to_a_passage(self) -> Sequence[Listener]:
        """Nobody is shown a diagnosis of what is passed through."""
        return [listener for listener in self.listeners if listener is not self.diagnosis]

    async def carry(self, tell: Tell) -> None:
        """The chat from its question to its end, heard by all listeners."""
        request, engaged = self._request, self._engaged
        messages: Sequence[Message] = request.messages
        if engaged.has_house_tools:
            messages = await self._conversations.made_whole(
                caller_key(self._caller), messages, request.hints, engaged.toolbox
            )
            engaged.recall(messages)
        await converse(
            Ask(messages, (), self._tool_choice(), request.params, request.stream),
            engaged.model,
            engaged.toolbox,
            heard_by(self.listeners, tell, self._kept if engaged.has_house_tools else None),
            new_id=new_call_id,
            rules=self._rules(),
            sees_images=engaged.sees_images,
            format_with_tools=engaged.format_with_tools,
        )

    def _tool_choice(self) -> Any:
        """Where tools of ours are on offer the list is already cut down to what is allowed; only the mode is left."""
        request = self._request
        return request.mode if request.mode is not None and self._engaged.has_house_tools else request.tool_choice

    async def _kept(self, handed: CallsHandedBack) -> CallsHandedBack:
        """Keep what the client is not shown before it is told of its calls: it may return at once."""
        if self._request.legacy:
            handed = _for_legacy(handed, self._request.messages)
        return await self._conversations.keep(
            caller_key(self._caller),
            handed,
            self._request.messages,
            with_hint=self._runtime.diagnostics and not self._request.legacy,
        )

    def _rules(self) -> Rules:
        rules = self._runtime.rules
        return rules if self._request.parallel else replace(rules, max_parallel_calls=1)


def caller_key(caller: Caller) -> str:
    """Whose something is that is kept: no key can be named so that it is taken for nobody's."""
    return "anonymous" if caller.anonymous else f"key {caller.name}"


def heard_by(listeners: Sequence[Listener], tell: Tell, keep: Keep | None = None) -> Tell:
    """Tell all listeners, then the writer. The model's words go to the writer alone: there are thousands of them.

    `keep` is given calls that go back to the client before anybody else is, and says how they are told.
    """

    # No coroutine, because every chunk of every answer goes through here; whoever tells waits for the writer itself.
    def tell_all(event: ChatEvent) -> Awaitable[None]:
        if isinstance(event, Heard):
            return tell(event)
        if keep is not None and isinstance(event, CallsHandedBack):
            return keep_and_tell(keep, event)
        for listener in listeners:
            listener.hear(event)
        return tell(event)

    async def keep_and_tell(keep: Keep, handed: CallsHandedBack) -> None:
        handed = await keep(handed)
        for listener in listeners:
            listener.hear(handed)
        await tell(handed)

    return tell_all


def _longest_answer(params: Mapping[str, Any]) -> int | None:
    """How many tokens the request allows the model to answer with, if it says so."""
    for name in ("max_completion_tokens", "max_tokens"):
        said = params.get(name)
        value = msgspec.json.decode(said) if isinstance(said, msgspec.Raw) else said
        if isinstance(value, int) and value > 0:
            return value
    return None


def _for_legacy(handed: CallsHandedBack, messages: Sequence[Message]) -> CallsHandedBack:
    """One call, under the id that it will have when the client comes back without one."""
    call = handed.calls[0]
    function = function_body(call)
    id = legacy.call_id(messages, function["name"], function["arguments"])
    unseen = handed.unseen and replace(handed.unseen, names={id: call.id})
    return CallsHandedBack((replace(call, id=id),), unseen)


def _for_choice(choice: int, tell: Callable[[Any], Awaitable[None]]) -> Tell:
    async def tell_for_choice(event: ChatEvent) -> None:
        await tell(ForChoice(choice, event))

    return tell_for_choice


def _pulse(runtime: Runtime) -> Pulse:
    server = runtime.config.server
    return Pulse(first=server.first_chunk_seconds, heartbeat=server.heartbeat_seconds)


class _Deadline:
    """The wall-clock limit of a request, as an error the client understands. It costs a third of `asyncio.timeout`."""

    __slots__ = ("_cancelled_before", "_passed", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._passed = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._cancelled_before = task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._pass)

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        if self._passed and self._task.uncancel() <= self._cancelled_before and kind is asyncio.CancelledError:
            raise ChatError(
                504,
                f"The request took longer than {self._seconds:g} seconds.",
                type="server_error",
                code="request_timeout",
            ) from None

    def _pass(self) -> None:
        self._passed = True
        self._task.cancel()
