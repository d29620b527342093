"""Threads: conversations in which a client sends only new messages, and the id of the message before them.

The fields and messages that the client would otherwise send again are stored with the responses of the Responses API, for
its key.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from callgate.api.strict_json import check_whole
from callgate.conversation.errors import ChatError
from callgate.messages.request_schema import Thread, from_validation
from callgate.state.responses import LARGE, ResponseStore, StoredResponse
from callgate.state.store import StoreError
from callgate.untrusted.doors import Opened
from callgate.untrusted.readers import json_reader, read_shape

NOT_KEPT: Final = frozenset({"model", "messages", "max_tokens", "stream", "thread"})
"""Fields that are sent with every request."""

log = structlog.get_logger("callgate.conversations")

_encode = msgspec.json.Encoder().encode
_fields = json_reader(dict[str, msgspec.Raw])


class Earlier(msgspec.Struct, frozen=True):
    """The messages of a thread that a request continues."""

    fields: Mapping[str, msgspec.Raw] = {}
    messages: list[msgspec.Raw] = []
    conversation: str = ""
    """The id of the thread's first message."""
    size: int = 0
    """Its stored size in bytes."""


NOTHING_EARLIER: Final = Earlier()


class _ThreadField(msgspec.Struct):
    thread: Thread | None = None


_thread_field = json_reader(_ThreadField)


class Threads:
    def __init__(self, responses: ResponseStore) -> None:
        self._kept = responses

    async def earlier(self, owner: str, body: Opened, max_bytes: int) -> Earlier:
        """Return the messages of the thread that a body continues, together at most `max_bytes`."""
        if body.find(b'"thread"') < 0:
            return NOTHING_EARLIER
        try:
            thread = _thread_field(body).thread
        except msgspec.ValidationError as error:
            raise from_validation(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return NOTHING_EARLIER  # the reader of the whole body reports the error
        if thread is None or thread.type == "create" or not thread.previous_message_id:
            return NOTHING_EARLIER
        try:
            previous = await self._kept.get(owner, _id(thread.previous_message_id))
        except StoreError as error:
            log.warning("thread_unreachable", error=str(error))
            previous = None
        if previous is None:
            message = f"thread.previous_message_id: no thread has the message '{thread.previous_message_id[:80]}'"
            raise ChatError(404, message, param="thread.previous_message_id", code="thread_not_found")
        checking = partial(check_whole, [body, *previous.input], max_bytes, "thread.previous_message_id")
        if previous.size > LARGE:
            await asyncio.to_thread(checking)
        else:
            checking()
        conversation = previous.conversation or thread.previous_message_id
        return Earlier(_fields(previous.response), previous.input, conversation, previous.size)

    async def keep(
        self, owner: str, message: Mapping[str, Any], fields: Mapping[str, msgspec.Raw], conversation: str = ""
    ) -> None:
        """Store a conversation under its last message. If that fails the client has to send all of it again."""
        messages = read_shape(fields["messages"], list[msgspec.Raw])
        if message["content"]:
            answer = {"role": "assistant", "content": message["content"]}
            messages.append(msgspec.Raw(_encode(answer)))
        stored_fields = {name: value for name, value in fields.items() if name not in NOT_KEPT}
        try:
            response = StoredResponse(
                msgspec.Raw(_encode(stored_fields)), messages, [], conversation=conversation or message["id"]
            )
            await self._kept.put(owner, _id(message["id"]), response)
        except StoreError as error:
            log.warning("thread_not_kept", message=message["id"], error=str(error))


def _id(message_id: str) -> str:
    """Return the key of a thread, which cannot be the id of a response."""
    return f"thread\0{message_id}"
