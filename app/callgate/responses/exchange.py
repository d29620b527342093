"""One request to the Responses API, and the writers and the keeper of its answer."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from callgate.api.answers import BodyWriter, StreamWriter
from callgate.api.chat_request import ChatRequest
from callgate.api.conversation import Conversation
from callgate.api.faces import Detached, FaceExchange
from callgate.api.left_out import LONGEST_KIND, note_left_out
from callgate.api.middleware import RequestContext
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.events import ChatEnded, ContextChanged, ToolsListed
from callgate.responses.background import BackgroundResponse
from callgate.responses.compaction import CompactionSeal
from callgate.responses.conversations import ResponseConversations
from callgate.responses.input_items import ReturnedContent
from callgate.responses.offered import Offered
from callgate.responses.output import ResponseBody, ResponseHead, ResponseItems, ResponseWriter, stream_end
from callgate.responses.request import ResponsesBody, shown_fields
from callgate.responses.stored import ResponseInput, StoredResponses, kept_of, numbered
from callgate.runtime.route import Route
from callgate.state.responses import StoredResponse

log = structlog.get_logger("callgate.responses")

_encode = msgspec.json.Encoder().encode


class ResponsesExchange(FaceExchange):
    """One response, whole or as its events."""

    compacts = False
    """It ends with a summary of the conversation."""

    def __init__(
        self,
        params: ResponsesBody,
        request: ChatRequest,
        offered: Offered,
        response_input: ResponseInput,
        responses: StoredResponses,
        conversations: ResponseConversations,
        context: RequestContext,
        owner: str,
        compactions: CompactionSeal,
        returned: ReturnedContent,
        detached: Detached | None,
    ) -> None:
        self.request = request
        self.detached = detached
        self.asked = params
        self.input = response_input
        self.compactions = compactions
        self._offered = offered
        self._kept = responses
        self._conversations = conversations
        self._context = context
        self._owner = owner
        self._seal = compactions.reasoning
        self._returned = returned
        self._items: ResponseItems | None = None
        self._listed: dict[str, str] = {} if response_input.parent is None else dict(response_input.parent.listed)
        """Marks of the lists of tools that the client has."""

    def request_for(self, route: Route, warn: Callable[[str], None]) -> ChatRequest:
        _warn_of_unheard(warn, self.asked, self._offered, self.input.given, self._returned)
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
        if self.asked.store is False and self._kept.memory is None and self.input.continued is None:
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
        numbered_input = numbered(self.input.given, items.head)
        skipped = 1 if self.asked.instructions else 0
        kept_response = kept_of(response, numbered_input, ended, items.handed_back, items.approvals, skipped)
        id = response["id"]
        kept_response.conversation = self.request.origin.conversation or id
        kept_response.listed = self._listed
        if self._offered.entries:
            kept_response.listed = self._marks_with(response["output"])
        if self.input.continued is not None and not await self._conversations.extend(
            self._owner, self.input.continued, kept_response
        ):
            response["conversation"] = None
            kept_response.response = msgspec.Raw(_encode(response))
        await self._keep(id, kept_response, response)

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

    def _lists(self, conversation: Conversation) -> Sequence[ToolsListed]:
        """Return the lists of tools of ours for the client, and mark those that it has."""
        if self.compacts:
            return ()
        from callgate.responses.listed_tools import lists_of_ours  # few requests name servers

        self._listed = self._marks_with(self.input.items)
        return lists_of_ours(conversation, self._offered.entries)

    def _marks_with(self, items: str | Sequence[Any]) -> dict[str, str]:
        from callgate.responses.listed_tools import marks_in

        return self._listed | marks_in(items)

    def _is_known(self, listed: ToolsListed) -> bool:
        from callgate.responses.listed_tools import is_marked

        return is_marked(self._listed, listed)

    def _asks(self, conversation: Conversation) -> Callable[[str], bool] | None:
        offered = self._offered
        if not offered.approvals:
            return None
        clients = {function["function"]["name"] for function in offered.functions}
        return lambda name: name not in clients and offered.asks(conversation.route.origin_of(name))

    def _seal_of_summaries(self) -> Callable[[ContextChanged], str] | None:
        wishes = self.request.context
        if wishes is None or wishes.compact is None:
            return None
        return partial(self.compactions.seal, is_whole=not wishes.compact.is_last)

    def _head(self, conversation: Conversation, began: int) -> ResponseHead:
        params = self.asked
        shows = (
            self.request.tools.client_list != "absent"  # a client that gave no tools may fail at items of calls
            and self._context.headers.get("x-callgate-events") != "off"
            and conversation.runtime.tools_shown(conversation.route, conversation.caller) == "mcp_call"
        )
        lists = self._lists(conversation) if self._offered.entries else ()
        return ResponseHead(
            conversation.run_id,
            began,
            shown_fields(params, self._offered),
            self._offered.clients,
            lambda tool: self._offered.label_of(conversation.route.source_of(tool)),
            wrote=lambda: bool(self._context.aftermath.started),
            tool_name=partial(_clients_name_of, conversation),
            asks=self._asks(conversation),
            decided=self._offered.decided,
            shows_calls=shows,
            shows_thinking=params.shows_thinking,
            seal=self._seal.seal if params.includes("reasoning.encrypted_content") else None,
            seal_summary=None if self.request.context is None else self._seal_of_summaries(),
            seal_foreign=self.compactions.seal_foreign,
            usage_scope=conversation.delivery.usage_scope,
            hosted=self._offered.hosted_by_name,
            includes=frozenset(params.include or ()),
            lists=lists,
            is_known=self._is_known if self._listed else None,
        )


def _clients_name_of(conversation: Conversation, tool: str) -> str:
    return conversation.route.clients_name_of(tool)


def _warn_of_unheard(
    warn: Callable[[str], None],
    params: ResponsesBody,
    offered: Offered,
    items: str | Sequence[Any],
    returned: ReturnedContent,
) -> None:
    """Call `warn` for what was left out while the request was read."""
    if offered.elsewhere:
        kinds = (tool["type"] for tool in offered.elsewhere)
        warn(f"left out of `tools`, nobody here has them: {_listed(kinds)}")
    if offered.unheard:
        warn(f"left out of `tools`: {_listed(offered.unheard)}")
    if isinstance(items, list) and any(isinstance(item, dict) and item.get("phase") for item in items):
        warn("left out of `input`: `phase`, which no chat has a place for")
    if params.stream_options is not None and params.stream_options.get("include_obfuscation"):
        warn("left out: `stream_options.include_obfuscation`; events are not padded here")
    if returned.unheard:
        warn(f"left out of `input`: {_listed(returned.unheard)}")
    if returned.types_left_out:
        note_left_out(warn, returned.types_left_out)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted({ascii(name[:LONGEST_KIND])[1:-1] for name in names}))
