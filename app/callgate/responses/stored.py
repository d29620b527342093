"""Stored responses: what is stored of a chat, how it is continued, and all that the input of a response refers to."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from callgate.api.field_errors import wrong
from callgate.api.mcp_entries import without_credentials
from callgate.api.strict_json import LARGE_BODY, check_whole
from callgate.config import redaction
from callgate.conversation.errors import ChatError
from callgate.conversation.events import CallsHandedBack, ChatEnded, HiddenTurns
from callgate.hosted.returned import DIGEST
from callgate.responses.compaction import OF_COMPACTION, CompactionSeal, expanded, is_triggered
from callgate.responses.offered import ADDING
from callgate.responses.output import ITEM_DIGITS, ResponseHead
from callgate.responses.request import ResponsesBody, id_in
from callgate.state.local.memory import MemoryStore
from callgate.state.responses import LARGE, ResponseStore, StoredResponse, decode_response, encode_response
from callgate.state.store import Share, StoreError
from callgate.untrusted.readers import json_reader, read_value

if TYPE_CHECKING:
    from callgate.responses.conversations import Continued, ResponseConversations

INPUT_PLACE: Final = 0x8000
"""The first place of a response's input items."""
_ITEM_ID: Final = re.compile(rf"[a-z]+_([0-9a-f]{{24}})([0-9a-f]{{{ITEM_DIGITS}}})(?:[0-9a-f]{{{DIGEST}}})?")
_OUR_CALL: Final = re.compile(rf"mcp_[0-9a-f]{{{24 + ITEM_DIGITS}}}")
KINDS: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc", "mcp_call": "mcp", "compaction": "cmp"}

log = structlog.get_logger("callgate.responses")

_encode = msgspec.json.Encoder().encode
_decode = read_value


class ConnectionMemory:
    """Responses with `store: false`, kept while their connection lasts. The connections of one key share a limit."""

    def __init__(self, store: MemoryStore, share: Share, name: str, seconds: float) -> None:
        """`name`: unique for each connection; `seconds`: the longest life of a connection."""
        self._store = store
        self._share = share
        self._name = name
        self._seconds = seconds
        self._ids: OrderedDict[str, None] = OrderedDict()

    async def keep(self, id: str, response: StoredResponse) -> None:
        value = encode_response(response)
        if len(value) > self._share.bytes:
            return
        await self._store.put(self._key(id), value, self._seconds, self._share)
        self._ids[id] = None
        if len(self._ids) > REMEMBERED:
            await self.forget(next(iter(self._ids)))

    async def find(self, id: str) -> StoredResponse | None:
        if id in self._ids:
            encoded = await self._store.get(self._key(id))
        else:
            encoded = None
        if encoded is None:
            return None
        response = decode_response(encoded)
        response.size = len(encoded)
        return response

    async def forget(self, id: str) -> None:
        if id in self._ids:
            del self._ids[id]
            await self._store.delete(self._key(id))

    async def forget_all(self) -> None:
        for id in list(self._ids):
            await self.forget(id)

    def _key(self, id: str) -> str:
        return f"{self._name}\0{id}"


REMEMBERED: Final = 16
"""Responses of a connection; clients continue the last one."""


class ResponseInput(msgspec.Struct):
    """The input of one response."""

    given: str | Sequence[Any]
    """The items of the request, references replaced by what they refer to."""
    items: str | Sequence[Any]
    """The items behind the history of the parent, for the model."""
    parent: StoredResponse | None
    continued: "Continued | None"
    """The conversation that the response goes on with."""
    is_triggered: bool
    """Its last item asks for compaction."""
    is_sent: bool
    """All of it came with the request."""

    def is_large(self) -> bool:
        return not self.is_sent and (self.parent is None or self.parent.size > LARGE_BODY)

    def history(self) -> Sequence[Any]:
        """Return the stored messages before its items."""
        if self.parent is None:
            return ()
        return self.parent.history

    def place(self) -> str:
        """Return the field of the request that what it refers to came by."""
        if self.continued is not None:
            return "conversation"
        if self.parent is not None:
            return "previous_response_id"
        return "input"


async def read_input(
    params: ResponsesBody,
    responses: "StoredResponses",
    conversations: "ResponseConversations",
    owner: str,
    compactions: CompactionSeal,
    most: int,
) -> ResponseInput:
    """Read an input. Raises `ChatError` for what is not there, or is not its owner's."""
    parent = None
    continued = None
    if params.conversation is not None:
        if params.previous_response_id is not None:
            raise wrong("conversation", "'conversation' and 'previous_response_id' exclude one another.")
        continued = await conversations.continued(owner, id_in(params.conversation), most)
        parent = continued.parent
    elif params.previous_response_id is not None:
        parent = await responses.parent(owner, params.previous_response_id)
    given: str | Sequence[Any] = params.input
    if isinstance(params.input, list):
        given = await responses.resolved(owner, params.input, most, params.previous_response_id)
    if not given and parent is None and (continued is None or not continued.items):
        raise wrong("input", "Missing required parameter: 'input'.", "missing_required_parameter")
    items = given
    if continued is not None and continued.items:
        if isinstance(given, str):
            items = [*continued.items, {"type": "message", "role": "user", "content": given}]
        else:
            items = [*continued.items, *given]
    triggered = False
    if not isinstance(items, str) and any(map(_is_of_compaction, items)):
        triggered = is_triggered(items)
        items = expanded(items, compactions)
    return ResponseInput(
        given,
        items,
        parent,
        continued,
        triggered,
        is_sent=given is params.input and continued is None and parent is None,
    )


def _is_of_compaction(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(kind := item.get("type"), str) and kind in OF_COMPACTION


class StoredResponses:
    """The stored responses. Each is visible to its own key only."""

    def __init__(self, responses: ResponseStore, memory: ConnectionMemory | None = None) -> None:
        """`memory`: the responses of the WebSocket that a request came over."""
        self._responses = responses
        self.memory = memory

    def of_connection(self, memory: ConnectionMemory | None) -> "StoredResponses":
        """Return the same with the responses that a connection keeps."""
        if memory is None:
            return self
        return StoredResponses(self._responses, memory)

    async def put(self, owner: str, id: str, response: StoredResponse) -> None:
        await self._responses.put(owner, id, response)

    async def may_put(self, owner: str, id: str, response: StoredResponse) -> bool:
        """Store a response; return false, and log why, where the store takes none."""
        try:
            await self.put(owner, id, response)
        except StoreError as error:
            log.warning("response_not_kept", response=id, error=str(error))
            return False
        return True

    async def get(self, owner: str, id: str) -> StoredResponse:
        response = await self._find(owner, id)
        if response is None:
            raise not_found(id)
        return response

    async def decide(self, owner: str, ids: Collection[str], run_id: str) -> None:
        """Mark decisions as used by a run, so that an approved call does not run twice. A process that resumes the run may use
        them again."""
        for id in ids:
            try:
                is_ours = await self._responses.decide(owner, id, run_id)
            except StoreError as error:
                raise unreachable() from error
            if not is_ours:
                raise ChatError(
                    409,
                    f"About '{id}' was decided already; a decision counts once.",
                    param="input",
                    code="approval_decided",
                )

    async def find(self, owner: str, id: str) -> StoredResponse | None:
        return await self._find(owner, id)

    async def found_of(self, owner: str, ids: Collection[str]) -> dict[str, StoredResponse]:
        """Return those of these responses that are stored."""
        responses = {id: await self._find(owner, id) for id in ids}
        return {id: response for id, response in responses.items() if response is not None}

    async def delete(self, owner: str, id: str) -> None:
        try:
            is_stored = await self._responses.delete(owner, id)
        except StoreError as error:
            raise unreachable() from error
        if not is_stored:
            raise not_found(id)

    async def parent(self, owner: str, id: str) -> StoredResponse:
        """Return the response that another one continues."""
        response = await self._find(owner, id)
        if response is None:
            raise ChatError(
                400,
                f"Previous response with id '{id[:80]}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        if not response.history:
            raise ChatError(
                400,
                f"Previous response with id '{id[:80]}' has not ended, or came to nothing.",
                param="previous_response_id",
                code="previous_response_not_ready",
            )
        return response

    async def resolved(self, owner: str, items: list[Any], max_bytes: int, previous: str | None = None) -> list[Any]:
        """Return the items with references replaced by the items, together at most `max_bytes`, and each of them once. Calls and
        outputs with the id of a call of ours are that call, and left out where it is of the `previous` response. The same list where
        there is no such item."""
        references = _references(items)
        ours = _calls_of_ours(items)
        if previous is not None and ours:
            start = f"mcp_{previous.removeprefix('resp_')}"
            left_out = {place for place, id in ours.items() if id.startswith(start)}
            items = [item for place, item in enumerate(items) if place not in left_out]
            references = _references(items)
            ours = _calls_of_ours(items)
        if not references and not ours:
            return items
        ids_by_response: dict[str, set[str]] = {}
        for id in (*references.values(), *ours.values()):
            if isinstance(id, str) and (parts := _ITEM_ID.fullmatch(id)):
                ids_by_response.setdefault(f"resp_{parts[1]}", set()).add(id)
        items_by_id: dict[Any, msgspec.Raw] = {}
        for response_id, ids in ids_by_response.items():
            response = await self._find(owner, response_id)
            if response is not None:
                is_large = response.size > LARGE
                if is_large:
                    items_by_id |= await asyncio.to_thread(_items_of, response, ids)
                else:
                    items_by_id |= _items_of(response, ids)
        for place, id in references.items():
            if not isinstance(id, str) or id not in items_by_id:
                message = f"Item with id '{str(id)[:80]}' not found."
                raise ChatError(404, message, param=f"input[{place}].id", code="item_not_found")
        size = sum(memoryview(item_text).nbytes for item_text in items_by_id.values())
        checking = partial(check_whole, [*items_by_id.values()], max_bytes, "input")
        if LARGE < size <= max_bytes:
            await asyncio.to_thread(checking)
        else:
            checking()
        decoded = {id: _decode(item) for id, item in items_by_id.items()}
        return list(_each_once(items, references, ours, decoded))

    async def _find(self, owner: str, id: str) -> StoredResponse | None:
        if not id.startswith("resp_"):
            return None  # other kinds of stored objects are not visible here
        if self.memory is not None and (response := await self.memory.find(id)) is not None:
            return response
        try:
            return await self._responses.get(owner, id)
        except StoreError as error:
            raise unreachable() from error


class _Output(msgspec.Struct):
    output: list[msgspec.Raw]


class _Item(msgspec.Struct):
    id: Any = None


_read_output = json_reader(_Output)
_read_item = json_reader(_Item)


def _references(items: Sequence[Any]) -> dict[int, Any]:
    """Return the ids of referenced items, by their places."""
    return {
        place: item.get("id")
        for place, item in enumerate(items)
        if isinstance(item, dict) and item.get("type") == "item_reference"
    }


def _calls_of_ours(items: Sequence[Any]) -> dict[int, str]:
    """Return the ids of our calls that come back as calls of the client's, as some clients send them, and of their outputs."""
    return {
        place: item["call_id"]
        for place, item in enumerate(items)
        if isinstance(item, dict)
        and item.get("type") in ("function_call", "function_call_output")
        and isinstance(item.get("call_id"), str)
        and _OUR_CALL.fullmatch(item["call_id"])
    }


def _each_once(
    items: Sequence[Any], references: Mapping[int, Any], ours: Mapping[int, str], stored_items: Mapping[str, Any]
) -> Iterator[Any]:
    outputs = {id: items[place]["output"] for place, id in ours.items() if "output" in items[place]}
    ids: set[str] = set()
    for place, item in enumerate(items):
        id = references.get(place) or ours.get(place) or (item.get("id") if isinstance(item, dict) else None)
        if not isinstance(id, str) or (id not in stored_items and place not in ours):
            yield item
        elif id in stored_items:
            if id not in ids:
                yield stored_items[id]
            ids.add(id)
        elif item["type"] == "function_call":
            ids.add(id)
            yield {**item, "type": "mcp_call", "id": id, "output": _text_of(outputs.get(id))}
        elif id not in ids:
            yield item  # an output of what is not known here: refused when it is read


def _text_of(output: Any) -> str | None:
    if isinstance(output, list):
        texts = [part.get("text") for part in output if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    if isinstance(output, str):
        return output
    return None


def ids_of(items: Sequence[msgspec.Raw]) -> list[str]:
    """Return the ids of stored items."""
    return [str(_read_item(item).id) for item in items]


def output_of(response: StoredResponse) -> Sequence[msgspec.Raw]:
    """Return the items that a response has made."""
    return _read_output(response.response).output


def _items_of(response: StoredResponse, ids: Collection[str]) -> dict[Any, msgspec.Raw]:
    """Return the items with these ids, of the input and the output of a response."""
    items: dict[Any, msgspec.Raw] = {}
    for item in (*output_of(response), *response.input):
        id = _read_item(item).id
        if isinstance(id, str) and id in ids:
            items.setdefault(id, item)
    return items


def numbered(input: str | Sequence[Any], head: ResponseHead) -> list[msgspec.Raw]:
    """Return the input items of a response, each with an id."""
    if isinstance(input, str):
        content = [{"type": "input_text", "text": input}]
        id = head.item_id(KINDS["message"], INPUT_PLACE)
        item = {"type": "message", "role": "user", "content": content, "status": "completed", "id": id}
        return [msgspec.Raw(_encode(item))]
    return [msgspec.Raw(_encode(_with_id(item, head, INPUT_PLACE + place))) for place, item in enumerate(input)]


def with_ids(items: Sequence[Mapping[str, Any]], head: ResponseHead) -> list[Mapping[str, Any]]:
    """Return items of an input, each with an id."""
    return [_with_id(item, head, INPUT_PLACE + place) for place, item in enumerate(items)]


def _with_id(item: Mapping[str, Any], head: ResponseHead, place: int) -> Mapping[str, Any]:
    kind = item.get("type", "message")
    return {**as_stored(item), "id": item.get("id") or head.item_id(KINDS.get(kind, "item"), place)}


def as_stored(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item in the form in which items are shown."""
    kind = item.get("type", "message")
    content = item.get("content")
    item = {"type": kind, **item}
    if kind == "message" and isinstance(content, str):
        if item.get("role") == "assistant":
            part = "output_text"
        else:
            part = "input_text"
        item["content"] = [{"type": part, "text": content}]
    if kind == "message":
        item.setdefault("status", "completed")
    if kind in ADDING and isinstance(tools := item.get("tools"), list):
        item["tools"] = [without_credentials(tool) if isinstance(tool, dict) else tool for tool in tools]
    return item


def kept_of(
    response: Mapping[str, Any],
    input_items: list[msgspec.Raw],
    ended: ChatEnded,
    handed: CallsHandedBack | None,
    approvals: Mapping[str, str],
    skipped: int,
) -> StoredResponse:
    """Return what is stored of a chat. `skipped`: the number of messages at its beginning that are instructions, which are not
    stored."""
    history = [*ended.history[skipped:]]
    after: Sequence[Any] = ()
    last = {} if ended.last is None else ended.last.assistant_message()
    calls = last.pop("tool_calls", ())
    if handed is None:
        if last:  # a chat may end with a summary instead
            history.append(last)
    else:
        hidden = handed.hidden or HiddenTurns((), {}, {})
        names = {old: new for new, old in hidden.names.items()}
        open_ids = {call.id for call in handed.calls}
        known_calls = [{**call, "id": names.get(call["id"], call["id"])} for call in calls]
        known_calls = [call for call in known_calls if call["id"] in open_ids or call["id"] in hidden.results]
        if known_calls:
            last = {**last, "tool_calls": known_calls}
        history.append(last)
        history += [hidden.results[call["id"]] for call in known_calls if call["id"] in hidden.results]
        after = hidden.after
    return StoredResponse(
        msgspec.Raw(redaction.current.data(_encode(response))),
        input_items,
        history,
        after=[*after],
        approvals=dict(approvals),
    )


def not_found(id: str) -> ChatError:
    return ChatError(404, f"Response with id '{id[:80]}' not found.", param="id", code="response_not_found")


def unreachable() -> ChatError:
    return ChatError(
        503,
        "What is kept of earlier responses cannot be read at the moment. Try again in a moment.",
        type="server_error",
        code="store_unavailable",
        retry_after=1,
    )
