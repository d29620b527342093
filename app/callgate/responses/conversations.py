"""Conversations: lists of items that clients keep here, and that responses go on with and add to."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import structlog

from callgate.api.field_errors import wrong
from callgate.api.strict_json import check_whole
from callgate.config import redaction
from callgate.conversation.errors import ChatError
from callgate.conversation.ids import new_item_id
from callgate.responses.compaction import ITEM as COMPACTION_ITEM
from callgate.responses.input_items import check_item
from callgate.responses.request import check_metadata
from callgate.responses.stored import KINDS, as_stored, ids_of, output_of, unreachable
from callgate.state.response_conversations import ConversationLocked, ConversationStore, StoredConversation
from callgate.state.responses import LARGE, StoredResponse
from callgate.state.store import LargerThanShare, StoreError
from callgate.untrusted.readers import read_value

PREFIX: Final = "conv_"
MOST_ADDED: Final = 20
"""Items that may be added at a time, as at OpenAI."""
LONGEST_ID: Final = 128

log = structlog.get_logger("callgate.conversations")

_encode = msgspec.json.Encoder().encode


class Continued(msgspec.Struct):
    """A conversation that a response goes on with."""

    id: str
    changes: int
    """How often its items had been changed."""
    parent: StoredResponse | None
    """The chat that its first items became; None where there is none."""
    items: list[Any]
    """The items behind those."""


class ResponseConversations:
    """The conversations of all keys. Each is visible to its own key only."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store

    async def create(self, owner: str, items: Sequence[Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
        check_metadata(metadata)
        id = new_item_id("conv")
        conversation = StoredConversation(created_at=int(time.time()), metadata=dict(metadata))
        _add(conversation, _checked_items(items))
        try:
            await self._store.put(owner, id, conversation)
        except StoreError as error:
            raise _not_kept(error) from error
        return shown(id, conversation)

    async def get(self, owner: str, id: str, param: str = "conversation_id") -> StoredConversation:
        """Return a conversation of this key. Raises `ChatError` 404 for any other."""
        conversation = None
        if id.startswith(PREFIX) and len(id) <= LONGEST_ID:
            try:
                conversation = await self._store.get(owner, id)
            except StoreError as error:
                raise unreachable() from error
        if conversation is None:
            raise not_found(id, param)
        return conversation

    async def update(self, owner: str, id: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
        check_metadata(metadata)
        async with self._changed(owner, id) as conversation:
            conversation.metadata = dict(metadata)
        return shown(id, conversation)

    async def delete(self, owner: str, id: str) -> None:
        await self.get(owner, id)
        try:
            await self._store.delete(owner, id)
        except ConversationLocked:
            raise _locked(id) from None
        except StoreError as error:
            raise unreachable() from error

    async def add(self, owner: str, id: str, items: Sequence[Any]) -> list[Any]:
        """Add items; return them, each with its id."""
        checked = _checked_items(items)
        async with self._changed(owner, id) as conversation:
            return _add(conversation, checked)

    async def remove(self, owner: str, id: str, item_id: str) -> dict[str, Any]:
        async with self._changed(owner, id) as conversation:
            if item_id not in conversation.ids:
                raise _no_item(item_id)
            conversation.remove(item_id)
        return shown(id, conversation)

    async def item(self, owner: str, id: str, item_id: str) -> Any:
        conversation = await self.get(owner, id)
        if item_id not in conversation.ids:
            raise _no_item(item_id)
        return read_value(conversation.items[conversation.ids.index(item_id)])

    async def continued(self, owner: str, id: str, most: int) -> Continued:
        """Return a conversation for a response that goes on with it. Its items have at most `most` bytes together."""
        conversation = await self.get(owner, id, "conversation")
        further = conversation.items[conversation.covered :]
        if conversation.size < LARGE:
            check_whole(further, most, "conversation")
            items = list(map(read_value, further))
        else:
            await asyncio.to_thread(check_whole, further, most, "conversation")
            items = await asyncio.to_thread(lambda: list(map(read_value, further)))
        parent = None
        if conversation.covered:
            parent = StoredResponse(
                msgspec.Raw(b"{}"),
                [],
                conversation.history,
                approvals=conversation.approvals,
                after=conversation.after,
                conversation=id,
                listed=conversation.listed,
                size=conversation.size,
            )
        return Continued(id, conversation.changes, parent, items)

    async def extend(self, owner: str, continued: Continued, chat: StoredResponse) -> bool:
        """Add the items of a response to the conversation that it went on with, before its last event is sent. Returns False, and logs
        why, where that is not possible. `chat`: the response, and the chat that the conversation became."""
        items = [*chat.input, *output_of(chat)]
        try:
            async with self._store.changed(owner, continued.id) as conversation:
                if conversation is None:
                    log.warning("conversation_not_extended", conversation=continued.id, error="it was deleted")
                    return False
                is_first = conversation.changes == continued.changes
                earlier = set(conversation.ids)
                ids = zip(items, ids_of(items), strict=True)
                new = [(item, item_id) for item, item_id in ids if item_id not in earlier]
                conversation.add([item for item, _ in new], [item_id for _, item_id in new])
                if is_first:  # no other response, and no client, has changed anything meanwhile
                    conversation.covered = len(conversation.items)
                    conversation.history = chat.history
                    conversation.after = chat.after
                    conversation.approvals = chat.approvals
                    conversation.listed = chat.listed
        except ConversationLocked:
            log.warning("conversation_not_extended", conversation=continued.id, error="another process has locked it")
            return False
        except StoreError as error:
            log.warning("conversation_not_extended", conversation=continued.id, error=str(error))
            return False
        return True

    @asynccontextmanager
    async def _changed(self, owner: str, id: str) -> AsyncIterator[StoredConversation]:
        await self.get(owner, id)
        try:
            async with self._store.changed(owner, id) as conversation:
                if conversation is None:
                    raise not_found(id)
                yield conversation
        except ConversationLocked:
            raise _locked(id) from None
        except StoreError as error:
            raise _not_kept(error) from error


def shown(id: str, conversation: StoredConversation) -> dict[str, Any]:
    """Return a conversation as the API shows it."""
    return {
        "id": id,
        "object": "conversation",
        "created_at": conversation.created_at,
        "metadata": conversation.metadata,
    }


def _checked_items(items: Sequence[Any]) -> Sequence[dict[str, Any]]:
    if len(items) > MOST_ADDED:
        raise wrong("items", f"Invalid 'items': at most {MOST_ADDED} at a time.", "array_above_max_length")
    for place, item in enumerate(items):
        where = f"items[{place}]"
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "item_reference":
            raise wrong(f"{where}.type", f"'{where}': a conversation keeps items, not references to them.")
        if kind != COMPACTION_ITEM:
            check_item(item, where)
    return items


def _add(conversation: StoredConversation, items: Sequence[dict[str, Any]]) -> list[Any]:
    """Add items, each with an id: its own, unless it has none or another item has the same."""
    added: list[Any] = []
    for item in items:
        kind = str(item.get("type", "message"))
        id = item.get("id")
        if not isinstance(id, str) or not id or len(id) > LONGEST_ID or id in conversation.ids:
            id = new_item_id(KINDS.get(kind, "item"))
        with_id = as_stored(item) | {"id": id}
        # A secret that is masked in answers is masked in what is kept of them.
        conversation.add([msgspec.Raw(redaction.current.data(_encode(with_id)))], [id])
        added.append(with_id)
    return added


def not_found(id: str, param: str = "conversation_id") -> ChatError:
    message = f"Conversation with id '{id[:80]}' not found."
    return ChatError(404, message, param=param, code="conversation_not_found")


def _no_item(id: str) -> ChatError:
    return ChatError(404, f"Item with id '{id[:80]}' not found.", param="item_id", code="item_not_found")


def _locked(id: str) -> ChatError:
    message = f"Another process is changing the conversation '{id[:80]}'. Try again in a moment."
    return ChatError(409, message, param="conversation_id", code="conversation_locked", retry_after=1)


def _not_kept(error: StoreError) -> ChatError:
    if isinstance(error, LargerThanShare):
        message = f"The conversation is too large to be kept: it would be {error}. Begin a new one."
        return ChatError(413, message, code="conversation_too_large")
    return unreachable()
