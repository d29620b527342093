"""The Responses API: reads a request with what it refers to, and stores the response before its last event."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from callgate.api.answers import BodyWriter, StreamWriter
from callgate.api.chat_request import ChatRequest
from callgate.api.conversation import Conversation
from callgate.api.faces import Detached, FaceExchange
from callgate.api.field_errors import wrong
from callgate.api.middleware import RequestContext
from callgate.api.strict_json import LARGE_BODY, check_whole
from callgate.callers.caller import owner_name
from callgate.chat.requests import read_chat_request
from callgate.config.schema.whole import Config
from callgate.conversation.approved_calls import ClientApprovals
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.events import ChatEnded
from callgate.responses.approvals import Decisions, asked_in, decisions_of
from callgate.responses.background import BackgroundResponse, BackgroundResponses
from callgate.responses.input_items import ReturnedContent, is_of_ours, messages_of
from callgate.responses.judged import judge_others, original_of
from callgate.responses.offered import Offered, offered_tools
from callgate.responses.output import ResponseBody, ResponseHead, ResponseItems, ResponseWriter, stream_end
from callgate.responses.request import ResponsesBody, chat_fields, read_body_of, shown_fields
from callgate.responses.seal import ReasoningSeal
from callgate.responses.stored import StoredResponses, kept_of, numbered
from callgate.responses.unheard import warn_of_unheard
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.route import Route
from callgate.state.responses import StoredResponse
from callgate.untrusted.doors import Opened, written_here

log = structlog.get_logger("callgate.responses")

_encode = msgspec.json.Encoder().encode


class ResponsesFace:
    """`POST /v1/responses`."""

    route = "responses"
    adapts_requests = True
    keeps_answers = True
    stores_whole_stream = False

    def __init__(self, manager: RuntimeManager, responses: StoredResponses, background: BackgroundResponses) -> None:
        self._manager = manager
        self._kept = responses
        self._background = background

    async def read(self, body: Opened, context: RequestContext, config: Config) -> "ResponsesExchange":
        assert context.caller is not None, "the middleware requires a caller here"
        owner = owner_name(context.caller)
        responses = self._kept.of_connection(context.connection_memory)
        is_large = len(body) > LARGE_BODY  # then the slow steps run in a thread
        reading = partial(read_body_of, body, config.limits.json_depth)
        if is_large:
            params, fields = await asyncio.to_thread(reading)
        else:
            params, fields = reading()
        runtime = self._manager.current
        entry = runtime.check_model(params.model, context.caller)
        judge_others(fields, context.caller, may_select=entry.provider_selectors)
        parent = None
        if params.previous_response_id is not None:
            parent = await responses.parent(owner, params.previous_response_id)
        most = config.limits.body_bytes
        items: str | Sequence[Any] = params.input
        if isinstance(params.input, list):
            items = await responses.resolved(owner, params.input, most, params.previous_response_id)
        is_large = is_large or items is not params.input or (parent is not None and parent.size > LARGE_BODY)
        if not items and parent is None:
            raise wrong("input", "Missing required parameter: 'input'.", "missing_required_parameter")
        offering = partial(offered_tools, params.tools or (), config.responses.hosted_tools, runtime.labels, items)
        if is_large:
            offered = await asyncio.to_thread(offering)
        else:
            offered = offering()
        offered.original = original_of(fields, offered, context.caller, entry)
        asked_before = await _asked_before(responses, owner, items)
        seal = ReasoningSeal(_sealer=self._manager.shared.sealer, _owner=owner, _model=params.model)
        returned = ReturnedContent(_reads_files=partial(runtime.toolboxes.reads_files, params.model))
        asking = partial(
            self._request,
            params,
            fields,
            offered,
            items,
            parent,
            context,
            config,
            owner,
            seal,
            returned,
            asked_before,
        )
        if is_large:
            request = await asyncio.to_thread(asking)
        else:
            request = asking()
        detached = None
        if params.background:
            if request.delivery.stream:
                deliver = self._background.deliver_stream
            else:
                deliver = self._background.deliver
            run_body = _encode({**fields, "stream": True})
            detached = Detached(partial(deliver, owner), run_body)
            request = replace(request, delivery=replace(request.delivery, stream=True))
        return ResponsesExchange(params, request, offered, items, responses, context, owner, seal, returned, detached)

    def _request(
        self,
        params: ResponsesBody,
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
        if parent is None and isinstance(items, str):
            decisions = Decisions()
        else:
            decisions = decisions_of(items, parent, asked_before)
        messages = messages_of(items, before, seal.open, after, decisions, returned)
        if params.instructions:
            instructions = [{"role": "system", "content": params.instructions}]
        else:
            instructions = []
        history = [*(msgspec.Raw(_encode(message)) for message in instructions), *before, *messages]
        chat = chat_fields(params, fields, offered) | {"messages": history}
        text = written_here(_encode(chat))
        if parent is not None or items is not params.input:
            where = "input" if parent is None else "previous_response_id"
            check_whole([text], config.limits.body_bytes, where)
        request = read_chat_request(text, context.headers, config.limits.messages, config.limits.json_depth)
        tools = replace(request.tools, max_calls=params.max_tool_calls)
        if params.tools is not None:
            tools = tools.with_list("some" if params.tools else "empty")
        if offered.approvals or decisions.ids:
            if params.store is False:
                raise wrong("store", "Calls that wait for approval have to be kept: 'store' must not be false.")
            claim = partial(self._kept.decide, owner, decisions.ids.values())
            tools = replace(tools, approvals=ClientApprovals(offered.asks, decisions.approved, claim))
            offered.decided = decisions.ids
        if offered.selections is not None:
            if tools.filter is not None:
                raise wrong("tools", "Name our tools in 'tools' or in the header and metadata, not in both.")
            tools = replace(tools, filter=tuple(offered.selections))
        conversation = ""
        if parent is not None:
            conversation = parent.conversation or params.previous_response_id or ""
        is_stored_here = before or any(map(is_of_ours, messages))
        return replace(
            request,
            delivery=replace(request.delivery, tool_events="off", every_event=True),
            tools=tools,
            origin=replace(request.origin, original=offered.original, conversation=conversation, keeps_hidden=True),
            may_pass=False,
            history=history if is_stored_here else None,
        )


async def _asked_before(
    responses: StoredResponses, owner: str, items: str | Sequence[Any]
) -> Mapping[str, StoredResponse]:
    """Return the responses whose requests for approval are in an input together with their decisions, by their ids."""
    if isinstance(items, str):
        return {}
    return await responses.found_of(owner, asked_in(items))


class ResponsesExchange(FaceExchange):
    """One response, whole or as its events."""

    def __init__(
        self,
        params: ResponsesBody,
        request: ChatRequest,
        offered: Offered,
        items: str | Sequence[Any],
        responses: StoredResponses,
        context: RequestContext,
        owner: str,
        seal: ReasoningSeal,
        returned: ReturnedContent,
        detached: Detached | None,
    ) -> None:
        self.request = request
        self.detached = detached
        self.asked = params
        self._offered = offered
        self._input = items
        self._kept = responses
        self._context = context
        self._owner = owner
        self._seal = seal
        self._returned = returned
        self._items: ResponseItems | None = None

    def request_for(self, route: Route, warn: Callable[[str], None]) -> ChatRequest:
        warn_of_unheard(warn, self.asked, self._offered, self._input, self._returned)
        if self._seal.not_opened:
            count = len(self._seal.not_opened)
            reason = ", ".join(sorted(set(self._seal.not_opened)))
            log.warning("reasoning_not_opened", items=count, reason=reason)
            warn(f"left out of `input`: the `encrypted_content` of {count} items, which is {reason}")
        return self.request

    def whole(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> BodyWriter:
        self._items = ResponseItems(self._head(conversation, began), diagnoses[0] if diagnoses else None)
        return ResponseBody(self._items)

    def streamed(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> StreamWriter:
        head = self._head(conversation, began)
        diagnosis = diagnoses[0] if diagnoses else None
        if self.detached is not None and conversation.durable is not None:
            writer = BackgroundResponse.begin(self._kept, self._owner, conversation.durable, head, diagnosis)
        else:
            writer = ResponseWriter(head, diagnosis)
        self._items = writer
        return writer

    def keeper(self, conversation: Conversation) -> "ResponsesExchange | None":
        if self.asked.store is False and self._kept.memory is None:
            return None
        assert self._items is not None, "the writer is made before its keeper"
        return self

    stream_end = staticmethod(stream_end)

    copy = None

    async def store(self, choice: int, ended: ChatEnded) -> None:
        """Store the response."""
        items = self._items
        assert items is not None, "there is a writer before there are events"
        response = items.end(ended)
        if response["status"] == "failed":
            return
        numbered_input = numbered(self._input, items.head)
        skipped = 1 if self.asked.instructions else 0
        kept_response = kept_of(response, numbered_input, ended, items.handed_back, items.approvals, skipped)
        kept_response.conversation = self.request.origin.conversation or items.head.id
        await self._keep(items.head.id, kept_response, response)

    async def _keep(self, id: str, kept_response: StoredResponse, response: dict[str, Any]) -> None:
        if self.asked.store is False:
            if self._kept.memory is not None:
                await self._kept.memory.keep(id, kept_response)
            return
        if not await self._kept.may_put(self._owner, id, kept_response):
            response["store"] = False
            return
        assert self._items is not None, "what is kept was written"
        self._items.encoded = kept_response.response

    def _asks(self, conversation: Conversation) -> Callable[[str], bool] | None:
        offered = self._offered
        if not offered.approvals:
            return None
        clients = {function["function"]["name"] for function in offered.functions}
        return lambda name: name not in clients and offered.asks(conversation.route.origin_of(name))

    def _head(self, conversation: Conversation, began: int) -> ResponseHead:
        params = self.asked
        shows = (
            self.request.tools.client_list != "absent"  # a client that gave no tools may fail at items of calls
            and self._context.headers.get("x-callgate-events") != "off"
            and conversation.runtime.tools_shown(conversation.route, conversation.caller) == "mcp_call"
        )
        return ResponseHead(
            conversation.run_id,
            began,
            shown_fields(params, self._offered),
            self._offered.clients,
            lambda tool: self._offered.label_of(conversation.route.source_of(tool)),
            wrote=lambda: bool(self._context.aftermath.started),
            asks=self._asks(conversation),
            decided=self._offered.decided,
            shows_calls=shows,
            shows_thinking=params.shows_thinking,
            seal=self._seal.seal if params.includes("reasoning.encrypted_content") else None,
            usage_scope=conversation.delivery.usage_scope,
        )
