"""The Responses API: reads a request with what it refers to, and stores the response before its last event."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from callgate.api.chat_request import ChatRequest
from callgate.api.faces import Detached
from callgate.api.field_errors import wrong
from callgate.api.mcp_entries import OWN_LABEL
from callgate.api.middleware import RequestContext
from callgate.api.strict_json import LARGE_BODY, check_whole
from callgate.callers.caller import owner_name
from callgate.chat.requests import read_chat_request
from callgate.config.schema.whole import Config
from callgate.conversation.approved_calls import ClientApprovals
from callgate.models.resolve import lane_of
from callgate.responses.approvals import Decisions, asked_in, decisions_of
from callgate.responses.background import BackgroundResponses
from callgate.responses.compaction import CompactionSeal, wishes_of
from callgate.responses.conversations import ResponseConversations
from callgate.responses.exchange import ResponsesExchange
from callgate.responses.input_items import ReturnedContent, is_of_ours, messages_of
from callgate.responses.judged import judge_others, original_of, stand_ins_of
from callgate.responses.offered import Offered, offered_tools
from callgate.responses.request import ResponsesBody, chat_fields, read_body_of
from callgate.responses.seal import ReasoningSeal
from callgate.responses.stored import ResponseInput, StoredResponses, read_input
from callgate.runtime.manager import RuntimeManager
from callgate.state.responses import StoredResponse
from callgate.untrusted.doors import Opened, written_here

log = structlog.get_logger("callgate.responses")

_encode = msgspec.json.Encoder().encode


AnyExchange = TypeVar("AnyExchange", bound=ResponsesExchange)


class ResponsesFace:
    """`POST /v1/responses`."""

    route = "responses"
    adapts_requests = True
    keeps_answers = True
    stores_whole_stream = False

    def __init__(
        self,
        manager: RuntimeManager,
        responses: StoredResponses,
        conversations: ResponseConversations,
        background: BackgroundResponses,
    ) -> None:
        self._manager = manager
        self._kept = responses
        self._conversations = conversations
        self._background = background

    async def read(self, body: Opened, context: RequestContext, config: Config) -> "ResponsesExchange":
        return await self.read_as(ResponsesExchange, body, context, config)

    async def read_as(
        self, kind: "type[AnyExchange]", body: Opened, context: RequestContext, config: Config
    ) -> "AnyExchange":
        """Read a request as one of this API. Raises `ChatError` that names what is wrong with it."""
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
        seal = ReasoningSeal(_sealer=self._manager.shared.sealer, _owner=owner, _model=params.model)
        compactions = CompactionSeal(_sealer=self._manager.shared.sealer, _owner=owner, reasoning=seal)
        response_input = await read_input(
            params, responses, self._conversations, owner, compactions, config.limits.body_bytes
        )
        if runtime.guarding is not None:
            from callgate.responses.guarded_history import judged_input  # imported where there are hooks

            response_input = await judged_input(runtime, context.caller, params.model, response_input)
        is_large = is_large or response_input.is_large()
        stand_ins = partial(stand_ins_of, runtime, entry, context.caller)
        client_mcp = context.caller.client_mcp
        tools = params.tools or ()
        offering = partial(offered_tools, tools, stand_ins, runtime.labels, response_input.items, client_mcp)
        if is_large:
            offered = await asyncio.to_thread(offering)
        else:
            offered = offering()
        offered.original = original_of(fields, offered, context.caller, entry)
        asked_before = await _asked_before(responses, owner, response_input.items)
        returned = ReturnedContent(_reads_files=partial(runtime.toolboxes.reads_files, params.model))
        asking = partial(
            self._request, params, fields, offered, response_input, context, config, owner, seal, returned, asked_before
        )
        if is_large:
            request = await asyncio.to_thread(asking)
        else:
            request = asking()
        triggers = kind.compacts or response_input.is_triggered
        if triggers or ("context_management" in fields and lane_of(entry) != "responses"):
            request = replace(request, context=wishes_of(fields, entry, is_triggered=triggers))
        detached = None
        if params.background:
            if request.delivery.stream:
                deliver = self._background.deliver_stream
            else:
                deliver = self._background.deliver
            run_body = _encode({**fields, "stream": True})
            detached = Detached(partial(deliver, owner), run_body)
            request = replace(request, delivery=replace(request.delivery, stream=True))
        return kind(
            params,
            request,
            offered,
            response_input,
            responses,
            self._conversations,
            context,
            owner,
            compactions,
            returned,
            detached,
        )

    def _request(
        self,
        params: ResponsesBody,
        fields: Mapping[str, msgspec.Raw],
        offered: Offered,
        response_input: ResponseInput,
        context: RequestContext,
        config: Config,
        owner: str,
        seal: ReasoningSeal,
        returned: ReturnedContent,
        asked_before: Mapping[str, StoredResponse],
    ) -> ChatRequest:
        parent = response_input.parent
        items = response_input.items
        servers = None
        if offered.entries:
            from callgate.responses.named_servers import named_servers

            assert context.caller is not None, "the middleware requires a caller here"
            client_mcp = context.caller.client_mcp
            servers = named_servers(offered.entries, client_mcp, params.tool_choice, items, parent)
        items = _under_names_for_models(items, context, self._manager.current.labels)
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
        if not response_input.is_sent:
            check_whole([text], config.limits.body_bytes, response_input.place())
        request = read_chat_request(text, context.headers, config.limits.messages, config.limits.json_depth)
        tools = request.tools.with_more(params.tools, params.max_tool_calls, offered.hosted, servers)
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
        conversation = "" if response_input.continued is None else response_input.continued.id
        if parent is not None:
            conversation = parent.conversation or params.previous_response_id or ""
        is_stored_here = before or any(map(is_of_ours, messages))
        return replace(
            request,
            delivery=replace(request.delivery, tool_events="off", every_event=True),
            tools=tools,
            origin=replace(
                request.origin,
                original=offered.original,
                conversation=conversation,
                keeps_hidden=True,
                hosted_calls=tuple(returned.hosted_calls),
            ),
            may_pass=False,
            history=history if is_stored_here else None,
        )


def _under_names_for_models(
    items: str | Sequence[Any], context: RequestContext, labels: Callable[[], frozenset[str]]
) -> str | Sequence[Any]:
    """Return an input in which tools of servers that the key may name are called as models know them. `labels` returns those of ours."""
    if isinstance(items, str) or context.caller is None or context.caller.client_mcp is None:
        return items
    from callgate.responses.named_servers import under_names_for_models  # few keys may name any

    return under_names_for_models(items, {OWN_LABEL, *labels()})


async def _asked_before(
    responses: StoredResponses, owner: str, items: str | Sequence[Any]
) -> Mapping[str, StoredResponse]:
    """Return the responses whose requests for approval are in an input together with their decisions, by their ids."""
    if isinstance(items, str):
        return {}
    return await responses.found_of(owner, asked_in(items))
