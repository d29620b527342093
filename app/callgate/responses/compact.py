"""`POST /v1/responses/compact`: has a conversation summarized, and returns the items that stand for it from then on."""

from collections.abc import Mapping, Sequence
from typing import Any

from callgate.api.answers import BodyWriter, StreamWriter
from callgate.api.conversation import Conversation
from callgate.api.field_errors import wrong
from callgate.api.middleware import RequestContext
from callgate.api.strict_json import read_fields
from callgate.config.schema.whole import Config
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.events import ChatEnded, ChatEvent
from callgate.responses.compaction import users_in
from callgate.responses.exchange import ResponsesExchange
from callgate.responses.face import ResponsesFace
from callgate.responses.output import ResponseItems
from callgate.responses.stored import with_ids
from callgate.untrusted.doors import Opened
from callgate.untrusted.readers import NULL, read_value


class CompactFace:
    """`POST /v1/responses/compact`."""

    route = "responses_compact"
    adapts_requests = True
    keeps_answers = False
    stores_whole_stream = False

    def __init__(self, responses: ResponsesFace) -> None:
        self._responses = responses

    async def read(self, body: Opened, context: RequestContext, config: Config) -> "CompactExchange":
        fields = read_fields(body, config.limits.json_depth)
        for name in ("stream", "background"):
            if read_value(fields.get(name, NULL)):
                raise wrong(name, f"Invalid value for '{name}': a conversation is compacted in one answer.")
        if read_value(fields.get("conversation", NULL)) is not None:
            raise wrong("conversation", "'conversation' cannot be compacted; send its items as 'input'.")
        return await self._responses.read_as(CompactExchange, body, context, config)


class CompactExchange(ResponsesExchange):
    """A request for a summary, and its answer: the messages of the user, and the item that stands for all else."""

    compacts = True

    def whole(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> BodyWriter:
        items = ResponseItems(self._head(conversation, began), diagnoses[0] if diagnoses else None)
        return CompactBody(items, users_in(self.input.given, self.compactions, self.input.history()))

    def streamed(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> StreamWriter:
        raise AssertionError("it is answered whole")


class CompactBody:
    """Gathers the items of a compacted conversation."""

    def __init__(self, items: ResponseItems, users: Sequence[Any]) -> None:
        """`users`: the messages of the user."""
        self._items = items
        self._users = users

    def write(self, event: ChatEvent) -> None:
        if type(event) is ChatEnded:
            self._items.end(event)
        else:
            self._items.take(event)

    def body(self) -> Mapping[str, Any]:
        response = self._items.response
        assert response is not None, "a body is asked for after the end"
        output = [*with_ids(self._users, self._items.head), *response["output"]]
        shown: dict[str, Any] = {
            name: response[name] for name in ("usage", "service_tier", "x_callgate") if name in response
        }
        head = {"id": response["id"], "object": "response.compaction", "created_at": response["created_at"]}
        return {**head, "output": output, **shown}
