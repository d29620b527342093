"""The Responses API: reads a request with what it refers to, and stores the response before its last event."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from callgate.api.answers import BodyWriter, StreamWriter, Work
from callgate.api.conversation import Conversation
from callgate.api.faces import AnsweredElsewhere
from callgate.api.middleware import RequestContext
from callgate.api.request_schema import wrong
from callgate.api.requests import ChatRequest, read_chat_request
from callgate.api.responses.approvals import asked_in, decisions_of
from callgate.api.responses.background import BACKGROUND, BackgroundRuns, GatheredStream
from callgate.api.responses.input_items import ReturnedContent, messages_of
from callgate.api.responses.offered import Offered, offered_tools
from callgate.api.responses.output import ResponseBody, ResponseHead, ResponseItems, ResponseWriter, stream_end
from callgate.api.responses.request import ResponsesBody, chat_fields, read_body_of, shown_fields
from callgate.api.responses.seal import ReasoningSeal
from callgate.api.responses.stored import CONNECTION, StoredResponses, kept_of, numbered
from callgate.api.strict_json import LARGE_BODY, check_whole
from callgate.auth.keys import owner_name
from callgate.config.schema import Config
from callgate.conversation.approved_calls import ClientApprovals
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.events import CallsHandedBack, ChatEnded, ChatEvent
from callgate.conversation.hidden_history import ReturnedMessage
from callgate.runtime.durable_run import DurableRun
from callgate.runtime.manager import RuntimeManager
from callgate.stores.responses import StoredResponse
from callgate.stores.store import StoreError

log = structlog.get_logger("callgate.responses")

_encode = msgspec.json.Encoder().encode


class ResponsesFace:
    """`POST /v1/responses`."""

    route = "responses"

    def __init__(self, manager: RuntimeManager, kept: StoredResponses, background: BackgroundRuns) -> None:
        self._manager, self._kept, self._background = manager, kept, background

    async def read(self, body: bytes, context: RequestContext, config: Config) -> "ResponsesExchange":
        exchange = await self.read_here(body, context, config)
        if exchange.asked.background:
            if (run := BACKGROUND.get()) is None:
                raise AnsweredElsewhere(partial(self._background.start, body, exchange.request.stream))
            exchange.request.in_background = self._background.are_durable
            exchange.request.begun_before = run.find
        return exchange

    async def read_here(self, body: bytes, context: RequestContext, config: Config) -> "ResponsesExchange":
        """The same, for a request that is answered here."""
        assert context.caller is not None, "the middleware requires a caller here"
        owner = owner_name(context.caller)
        is_large = len(body) > LARGE_BODY  # then the slow steps run in a thread
        reading = partial(read_body_of, body, config.limits.json_depth)
        asked, fields = await asyncio.to_thread(reading) if is_large else reading()
        runtime = self._manager.current
        runtime.check_model(asked.model, context.caller)
        parent = None
        if asked.previous_response_id is not None:
            parent = await self._kept.parent(owner, asked.previous_response_id)
        most = config.limits.body_bytes
        items: str | Sequence[Any] = asked.input
        if isinstance(asked.input, list):
            items = await self._kept.resolved(owner, asked.input, most, asked.previous_response_id)
        is_large = is_large or items is not asked.input or (parent is not None and parent.size > LARGE_BODY)
        if not items and parent is None:
            raise wrong("input", "Missing required parameter: 'input'.", "missing_required_parameter")
        offering = partial(offered_tools, asked.tools or (), config.responses.hosted_tools, runtime.labels())
        offered = await asyncio.to_thread(offering) if is_large else offering()
        asked_before = await self._kept.found_of(owner, asked_in(items))
        seal = ReasoningSeal(self._manager.shared.sealer, owner, asked.model)
        returned = ReturnedContent(reads_files=runtime.reads_files(asked.model))
        asking = partial(
            self._request, asked, fields, offered, items, parent, context, config, owner, seal, returned, asked_before
        )
        request = await asyncio.to_thread(asking) if is_large else asking()
        return ResponsesExchange(asked, request, offered, items, self._kept, context, owner, seal, returned)

    def _request(
        self,
        asked: ResponsesBody,
        fields: Mapping[str, msgspec.Raw],
        offered: Offered,
        items: str | Sequence[Any],
        parent: StoredResponse | None,
        context: RequestContext,
        config: Config,
        owner: str,
        seal: ReasoningSeal,
        returned: ReturnedContent,
        asked_before: Mapping[str, StoredResponse],
    ) -> ChatRequest:
        before = [] if parent is None else parent.history
        after = () if parent is None else parent.after
        decisions = decisions_of(items, parent, asked_before)
        messages = messages_of(items, before, seal.open, after, decisions, returned)
        instructions = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
        history = [*(msgspec.Raw(_encode(message)) for message in instructions), *before, *messages]
        chat = chat_fields(asked, fields, offered) | {"messages": history}
        text = _encode(chat)
        if parent is not None or items is not asked.input:
            where = "input" if parent is None else "previous_response_id"
            check_whole([text], config.limits.body_bytes, where)
        request = read_chat_request(text, context.headers, config.limits.messages, config.limits.json_depth)
        request.may_pass, request.every_event, request.keeps_hidden = False, True, True
        request.tool_events = "off"
        request.max_calls = asked.max_tool_calls
        if asked.tools is not None:
            request.give_tools("some" if asked.tools else "empty")
        if parent is not None:
            request.conversation = parent.conversation or asked.previous_response_id or ""
        if before or any(isinstance(message, ReturnedMessage) for message in messages):
            request.kept_history = history
        if offered.approvals or decisions.ids:
            if asked.store is False:
                raise wrong("store", "Calls that wait for approval have to be kept: 'store' must not be false.")
            take = partial(self._kept.decide, owner, decisions.ids.values())
            request.approvals = ClientApprovals(offered.asks, decisions.approved, take)
            offered.decided = decisions.ids
        if offered.selections is not None:
            if request.tool_filter is not None:
                raise wrong("tools", "Name our tools in 'tools' or in the header and metadata, not in both.")
            request.tool_filter = tuple(offered.selections)
        return request


class ResponsesExchange:
    """One response, whole or as its events."""

    stream_end = staticmethod(stream_end)

    def __init__(
        self,
        asked: ResponsesBody,
        request: ChatRequest,
        offered: Offered,
        items: str | Sequence[Any],
        kept: StoredResponses,
        context: RequestContext,
        owner: str,
        seal: ReasoningSeal,
        returned: ReturnedContent,
    ) -> None:
        self.request = request
        self.asked, self._offered, self._input = asked, offered, items
        self._kept, self._context, self._owner = kept, context, owner
        self._seal, self._returned = seal, returned
        self._items: ResponseItems | None = None
        self._handed: CallsHandedBack | None = None
        self._durable: DurableRun | None = None
        """Set where its run is durable."""

    def whole(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> BodyWriter:
        self._items = ResponseItems(self._head(conversation, began), diagnoses[0] if diagnoses else None)
        return ResponseBody(self._items)

    def streamed(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> StreamWriter:
        head, diagnosis = self._head(conversation, began), diagnoses[0] if diagnoses else None
        if (run := BACKGROUND.get()) is None:
            self._items = writer = ResponseWriter(head, diagnosis)
            return writer
        self._items = run.begin(head, diagnosis, conversation.durable)
        return GatheredStream(self._items, run)

    def work(self, conversation: Conversation) -> Work:
        self._durable = conversation.durable
        if self._offered.left_out:
            conversation.warn(
                f"left out of `tools`, nobody here has them: {', '.join(sorted(set(self._offered.left_out)))}"
            )
        if isinstance(self._input, list) and any(isinstance(item, dict) and item.get("phase") for item in self._input):
            conversation.warn("left out of `input`: `phase`, which no chat has a place for")
        self._returned.note(conversation)
        if self._seal.not_opened:
            count, why = len(self._seal.not_opened), ", ".join(sorted(set(self._seal.not_opened)))
            log.warning("reasoning_not_opened", items=count, reason=why)
            conversation.warn(f"left out of `input`: the `encrypted_content` of {count} items, which is {why}")
        is_kept = self.asked.store is not False or CONNECTION.get() is not None
        if not is_kept and (self._durable is None or not self.request.stream):
            return conversation.work
        return partial(self._kept_work, conversation.work)

    async def _kept_work(self, work: Work, emit: Callable[[Any], Awaitable[None]]) -> None:
        # No coroutine, because every chunk goes through here.
        def emit_kept(event: ChatEvent) -> Awaitable[None]:
            kind = type(event)
            if kind is ChatEnded:
                return self._keep_and_emit(event, emit)  # type: ignore[arg-type]
            if kind is CallsHandedBack:
                self._handed = event  # type: ignore[assignment]
            return emit(event)

        await work(emit_kept)

    async def _keep_and_emit(self, ended: ChatEnded, emit: Callable[[Any], Awaitable[None]]) -> None:
        """Store the response before its last event is sent, because the client may continue it at once."""
        items = self._items
        assert items is not None, "there is a writer before there are events"
        response = items.end(ended)
        if response["status"] != "failed":
            given = numbered(self._input, items.head)
            skipped = 1 if self.asked.instructions else 0
            kept = kept_of(response, given, ended, self._handed, items.approvals, skipped)
            kept.conversation = self.request.conversation or items.head.id
            if self._durable is not None:
                await self._durable.keep_turns()
            await self._keep(items.head.id, kept, response)
        await emit(ended)

    async def _keep(self, id: str, kept: StoredResponse, response: dict[str, Any]) -> None:
        if self.asked.store is False:
            if (memory := CONNECTION.get()) is not None:
                await memory.keep(id, kept)
            return
        if (run := BACKGROUND.get()) is not None:
            kept.process = run.process
        try:
            await self._kept.put(self._owner, id, kept)
        except StoreError as error:
            response["store"] = False
            log.warning("response_not_kept", response=id, error=str(error))
            return
        assert self._items is not None, "what is kept was written"
        self._items.encoded = kept.response

    def _asks(self, conversation: Conversation) -> Callable[[str], bool] | None:
        offered = self._offered
        if not offered.approvals:
            return None
        clients = {function["function"]["name"] for function in offered.functions}
        return lambda name: name not in clients and offered.asks(conversation.route.origin_of(name))

    def _head(self, conversation: Conversation, began: int) -> ResponseHead:
        asked = self.asked
        shows = (
            self._context.headers.get("x-callgate-events") != "off"
            and conversation.tools_shown == "mcp_call"
            and self.request.client_tools != "absent"  # a client that gave no tools may fail at items of calls
        )
        return ResponseHead(
            conversation.run_id,
            began,
            shown_fields(asked, self._offered),
            self._offered.clients,
            lambda tool: self._offered.label_of(conversation.source_of(tool)),
            wrote=lambda: conversation.wrote,
            asks=self._asks(conversation),
            decided=self._offered.decided,
            shows_calls=shows,
            shows_thinking=asked.shows_thinking,
            seal=self._seal.seal if asked.includes("reasoning.encrypted_content") else None,
            usage_scope=self.request.usage_scope,
        )
