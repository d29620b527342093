"""`POST /v1/chat/completions`: where a request's straight line begins and ends.

An ASGI callable and not a FastAPI function: a function's machinery costs more than all that is done here, and
it would not tell us when the client leaves.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from callgate.api import legacy
from callgate.api.answers import BodyWriter, Chat, ClientLeft, EventStream, Pulse, StreamWriter, WholeAnswer
from callgate.api.errors import encode
from callgate.api.idempotency import WELL, Ended, Idempotency
from callgate.api.middleware import RequestContext, context_of
from callgate.api.openai_writers import (
    AnswerHead,
    ChoicesChunkWriter,
    ChoicesWriter,
    ChunkWriter,
    CompletionWriter,
    ForChoice,
    function_body,
)
from callgate.api.passthrough import PassedBody, PassedStream, pass_on
from callgate.api.progress import progress_in
from callgate.api.requests import ChatRequest, check_encoding, read_body, read_chat_request
from callgate.auth.keys import Caller
from callgate.auth.meter import Meter
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError
from callgate.conversation.events import CallsHandedBack, CallStarted, ChatEnded, ChatEvent, Ending
from callgate.conversation.ids import new_id
from callgate.conversation.listeners import Handlers, Listener, handlers_of
from callgate.conversation.loop import Rules, converse
from callgate.conversation.ports import CannotPassOn, Emit, Message, ModelRequest
from callgate.runtime.manager import RuntimeManager, new_call_id
from callgate.runtime.runtime import Runtime
from callgate.stores.conversations import Conversations

Keep: TypeAlias = Callable[[CallsHandedBack], Awaitable[CallsHandedBack]]


class ChatEndpoint:
    """Answers chat completions, whole or streamed."""

    def __init__(self, house: RuntimeManager) -> None:
        self._house = house
        self._once = Idempotency(house.store)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.route = "chat"
        caller = context.caller
        assert caller is not None, "the door lets nobody in without a caller"
        config = self._house.current.config
        limits = config.limits
        check_encoding(context.headers)
        body = await read_body(receive, limits.body_bytes)
        request = read_chat_request(body, context.headers, limits.messages, limits.json_depth)

        key = context.headers.get("idempotency-key")
        if key is None:
            await self._answer(context, request, caller, receive, send)
            return
        begin, seconds = partial(self._answer, context, request, caller), config.store.answer_seconds
        try:
            await self._once.answer(caller_key(caller), key, body, begin, seconds, receive, send)
        except ClientLeft:
            context.notes["ending"] = "client_left"

    async def _answer(
        self, context: RequestContext, request: ChatRequest, caller: Caller, receive: Receive, send: Send
    ) -> Ended:
        with self._house.lease() as runtime:
            return await Run(runtime, self._house.conversations, context, request, caller).answer(receive, send)


class Run:
    """The answer to one request, and its headers: passed through where nothing has to be read, and otherwise what comes
    of its chats, one for each choice."""

    def __init__(
        self,
        runtime: Runtime,
        conversations: Conversations,
        context: RequestContext,
        request: ChatRequest,
        caller: Caller,
    ) -> None:
        self.id = context.ids["run_id"] = new_id("run")
        self.runtime, self.conversations, self.request, self.caller = runtime, conversations, request, caller
        self.chosen = runtime.choose(
            request.model,
            caller,
            wanted_tools=request.tool_filter,
            tool_choice=request.tool_choice,
            allowed=request.allowed,
        )
        self._visit = context
        self.notes = _Notes(context)
        self._limit_headers: Mapping[str, str] = {}
        self._meter: Meter | None = None
        self._relay = self.chosen.relay(with_tools=request.has_tools)
        self._chats: Sequence[Conversation] = () if self._relay is not None else self._opened()
        context.model = self.chosen.name
        context.notes["model"] = request.model
        context.notes["stream"] = request.stream

    async def answer(self, receive: Receive, send: Send) -> Ended:
        answer = self._streamed() if self.request.stream else self._whole()
        try:
            error = await answer.send(receive, send)
        except ClientLeft:
            self._visit.notes["ending"] = "client_left"
            return Ended(wrote=self._visit.wrote, left=True)
        if error is None and not self._visit.wrote:
            return WELL
        if error is not None:
            self._visit.notes |= {"error": error.code or error.type, "detail": error.detail}
        return Ended(error, self._visit.wrote)

    def _opened(self) -> Sequence["Conversation"]:
        chats = [Conversation(self) for _ in range(self.request.n)]
        if self._meter is not None:
            for chat in chats:
                chat.add_listener(self._meter.tally())
        return chats

    def _streamed(self) -> EventStream:
        writer = self._stream_writer() if self._relay is None else PassedStream(self._head)
        seconds = self.runtime.limits.request_seconds
        return EventStream(self._work(), writer, self._headers, _pulse(self.runtime), seconds)

    def _whole(self) -> WholeAnswer:
        writer = self._body_writer() if self._relay is None else PassedBody()
        return WholeAnswer(self._work(), writer, self._headers, self.runtime.limits.request_seconds)

    def _stream_writer(self) -> StreamWriter:
        head, diagnoses, include_usage = self._head(), self._diagnoses(), self.request.include_usage
        if len(self._chats) == 1:
            return ChunkWriter(head, diagnoses[0] if diagnoses else None, include_usage)
        return ChoicesChunkWriter(head, diagnoses, include_usage, len(self._chats))

    def _body_writer(self) -> BodyWriter:
        head, diagnoses = self._head(), self._diagnoses()
        if len(self._chats) == 1:
            return CompletionWriter(head, diagnoses[0] if diagnoses else None)
        return ChoicesWriter(head, diagnoses, len(self._chats))

    def _work(self) -> Chat:
        """Everything that is told to the client, held to what the key may use and the model takes at once."""
        work = self._metered if self.caller.allowance.is_metered else self._carry
        return work if self.chosen.places is None else partial(self._placed, work)

    async def _placed(self, work: Chat, emit: Callable[[Any], Awaitable[None]]) -> None:
        with await self.runtime.place_at(self.request.model):
            await work(emit)

    async def _metered(self, emit: Callable[[Any], Awaitable[None]]) -> None:
        """An estimate is reserved before and settled after."""
        request = self.request
        size = sum(memoryview(each).nbytes for each in (*request.messages, *request.tools))
        longest = _longest_answer(request.params)
        meter = self._meter = await self.runtime.meter(self.caller, request.model, size, longest, request.n)
        for chat in self._chats:
            chat.add_listener(meter.tally())
        try:
            async with meter:
                self._limit_headers = meter.headers
                await self._carry(emit)
        finally:
            self._limit_headers = meter.headers

    async def _carry(self, emit: Callable[[Any], Awaitable[None]]) -> None:
        if self._relay is None:
            await self._converse_all(emit)
            return
        tally = None if self._meter is None else self._meter.tally()
        try:
            await pass_on(self._relay, self.request, emit, self._account_for_passage, tally)
        except CannotPassOn:
            await self._read_after_all(emit)

    def _account_for_passage(self, ending: Ending, usage: Mapping[str, Any] | None, seconds: float) -> None:
        self._visit.notes["ending"] = str(ending.kind)
        self.runtime.write_down_passage(self.chosen, self.id, ending, usage, seconds)

    async def _read_after_all(self, emit: Callable[[bytes], Awaitable[None]]) -> None:
        """Idempotency more, its answer read and written anew: it comes in another shape than was asked for."""
        self._chats = self._opened()
        stream = self._stream_writer() if self.request.stream else None
        body = self._body_writer() if stream is None else None

        async def write(told: Any) -> None:
            if body is not None:
                body.write(told)
            elif stream is not None and (data := stream.write(told)):
                await emit(data)

        await self._converse_all(write)
        if body is not None:
            await emit(encode(body.body()))

    async def _converse_all(self, emit: Callable[[Any], Awaitable[None]]) -> None:
        if len(self._chats) == 1:
            await self._chats[0].carry(emit)
            return
        try:
            async with asyncio.TaskGroup() as group:
                for choice, chat in enumerate(self._chats):
                    group.create_task(chat.carry(_for_choice(choice, emit)))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the client is told of one; it cannot be answered in parts

    def _head(self) -> AnswerHead:
        request = self.request
        progress = progress_in(request.tool_events, self.id)
        return AnswerHead(f"chatcmpl-{self.id[4:]}", int(time.time()), request.model, progress, request.legacy)

    def _diagnoses(self) -> list[Diagnosis] | None:
        return [chat.diagnosis for chat in self._chats] if self.runtime.diagnostics else None

    def _headers(self, error: ChatError | None = None) -> Mapping[str, str]:
        headers = {"x-callgate-run": self.id, **self._limit_headers}
        if self.chosen.warnings:
            headers["x-callgate-warning"] = "; ".join(self.chosen.warnings)
        if self._visit.wrote:
            # Clients repeat a failed request by themselves. What a tool has written must not be written twice.
            headers["x-should-retry"] = "false"
        return headers


class _Notes(Listener):
    """What the door is to know of a chat. Not the run itself: it has its chats, and a ring of the two would keep every
    body that came until the next collection."""

    def __init__(self, context: RequestContext) -> None:
        self._visit = context

    def _call_started(self, event: CallStarted) -> None:
        if event.writes:
            self._visit.wrote = True

    def _chat_ended(self, event: ChatEnded) -> None:
        self._visit.notes["ending"] = str(event.ending.kind)
        if event.ending.note:
            self._visit.notes["note"] = event.ending.note

    handlers: ClassVar[Handlers] = {CallStarted: _call_started, ChatEnded: _chat_ended}


class Conversation:
    """One chat of a run: its model and tools, and those who listen to it."""

    def __init__(self, run: Run) -> None:
        request, runtime = run.request, run.runtime
        self._runtime, self._conversations, self._request = runtime, run.conversations, request
        self._caller = run.caller
        self._engaged = runtime.engage(
            run.chosen, run.caller, run_id=run.id, client_tools=request.tools, allowed=request.allowed
        )
        self.diagnosis = Diagnosis(run.id, run.chosen.warnings)
        self.listeners: Sequence[Listener] = (run.notes, self.diagnosis, *runtime.listeners(run.chosen.name, run.id))

    def add_listener(self, listener: Listener) -> None:
        self.listeners = (*self.listeners, listener)

    async def carry(self, emit: Emit) -> None:
        """The chat from its question to its end, heard by all listeners."""
        request, engaged = self._request, self._engaged
        messages: Sequence[Message] = request.messages
        if engaged.has_server_tools:
            messages = await self._conversations.made_whole(
                owner_of(self._caller, request), messages, request.hints, engaged.toolbox
            )
            engaged.recall(messages)
        await converse(
            ModelRequest(messages, (), self._tool_choice(), request.params, request.stream),
            engaged.model,
            engaged.toolbox,
            emit_to_listeners(self.listeners, emit, self._kept if engaged.has_server_tools else None),
            new_id=new_call_id,
            rules=self._rules(),
            sees_images=engaged.sees_images,
            format_with_tools=engaged.format_with_tools,
        )

    def _tool_choice(self) -> Any:
        """Where tools of ours are on offer the list is already cut down to what is allowed; only the mode is left."""
        request = self._request
        return request.mode if request.mode is not None and self._engaged.has_server_tools else request.tool_choice

    async def _kept(self, handed: CallsHandedBack) -> CallsHandedBack:
        """Keep what the client is not shown before it is told of its calls: it may return at once."""
        if self._request.legacy:
            handed = _for_legacy(handed, self._request.messages)
        return await self._conversations.keep(
            owner_of(self._caller, self._request),
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


def owner_of(caller: Caller, request: ChatRequest) -> str:
    """Who alone gets back what was kept: a key, and the one of its users that the request names."""
    return f"{caller_key(caller)}\0{request.end_user}" if request.end_user else caller_key(caller)


def emit_to_listeners(listeners: Sequence[Listener], emit: Emit, keep: Keep | None = None) -> Emit:
    """Tell those who listen, then the writer. The model's words go to the writer alone: there are thousands of them.

    `keep` is given calls that go back to the client before anybody else is, and says how they are told.
    """
    handlers = handlers_of(listeners)

    # No coroutine, because every chunk of every answer goes through here; whoever tells waits for the writer itself.
    def tell_all(event: ChatEvent) -> Awaitable[None]:
        if keep is not None and isinstance(event, CallsHandedBack):
            return keep_and_emit(keep, event)
        for place, handle in handlers.get(type(event), ()):
            handle(listeners[place], event)
        return emit(event)

    async def keep_and_emit(keep: Keep, handed: CallsHandedBack) -> None:
        handed = await keep(handed)
        for place, handle in handlers.get(CallsHandedBack, ()):
            handle(listeners[place], handed)
        await emit(handed)

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
    hidden = handed.hidden and replace(handed.hidden, names={id: call.id})
    return CallsHandedBack((replace(call, id=id),), hidden)


def _for_choice(choice: int, emit: Callable[[Any], Awaitable[None]]) -> Emit:
    async def tell_for_choice(event: ChatEvent) -> None:
        await emit(ForChoice(choice, event))

    return tell_for_choice


def _pulse(runtime: Runtime) -> Pulse:
    server = runtime.config.server
    return Pulse(first=server.first_chunk_seconds, heartbeat=server.heartbeat_seconds)
