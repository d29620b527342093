"""Keeps a Messages request as it came, for a model behind Anthropic's own API."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from callgate.conversation.ports import JudgedFields, Message
from callgate.hosted.rows import OUR_BLOCK
from callgate.messages.history import OUR_CALL, OUR_SIGNATURE, BlockOrigin
from callgate.untrusted.readers import json_reader, read_shape

_messages = json_reader(list[dict[str, msgspec.Raw]])
_blocks = json_reader(list[msgspec.Raw])
_any = json_reader(dict[str, Any])


class OriginalMessages:
    """Finds the blocks of the request from which a message of its chat was made. Decodes them only when they are needed."""

    api: Literal["messages"] = "messages"
    is_chat = False
    functions: Mapping[str, Mapping[str, Any]] = {}
    native: Mapping[str, Mapping[str, Any]] = {}

    def __init__(
        self,
        fields: Mapping[str, msgspec.Raw],
        messages: Sequence[Message],
        origins: Sequence[Sequence[BlockOrigin] | None],
        foreign: Sequence[tuple[str, str]],
        betas: Sequence[str],
        unplaced: Sequence[str] = (),
    ) -> None:
        """`messages`: those of the chat, which are found by identity."""
        self.fields = fields
        self.foreign = foreign
        self.betas = betas
        self.unplaced = unplaced
        self._messages = messages
        self._origins = origins
        self._places: Mapping[int, int] | None = None
        self._given: Sequence[Mapping[str, msgspec.Raw]] = ()

    def heard(self, names: Sequence[str]) -> "OriginalMessages":
        """Return the same without fields that are done here among those that have no place."""
        unplaced = [name for name in self.unplaced if name not in names]
        return OriginalMessages(self.fields, self._messages, self._origins, self.foreign, self.betas, unplaced)

    def judged(self, fields: JudgedFields) -> "JudgedMessages":
        """Return the same for lanes, with these fields."""
        return JudgedMessages(fields, self._messages, self._origins, self.foreign, self.betas, self.unplaced)

    def blocks_of(self, message: Message) -> tuple[str, Sequence[Any]] | None:
        if self._places is None:
            self._places = {id(chat_message): place for place, chat_message in enumerate(self._messages)}
            self._given = _messages(self.fields["messages"])
        place = self._places.get(id(message))
        origins = None if place is None else self._origins[place]
        if origins is None:
            return None
        blocks = [block for origin in origins for block in self._blocks_at(origin)]
        return (read_shape(self._given[origins[0].message]["role"], str) if origins else "", blocks)

    def _blocks_at(self, origin: BlockOrigin) -> list[Any]:
        content = self._given[origin.message]["content"]
        if origin.blocks is None:
            if bytes(content) != b'""':
                return [{"type": "text", "text": content}]
            return []
        blocks = _blocks(content)
        return [block for place in origin.blocks if (block := _sent(blocks[place])) is not None]


class JudgedMessages(OriginalMessages):
    """The messages of a request that was judged."""

    fields: JudgedFields


def _sent(raw: msgspec.Raw) -> Any:
    """Return a block as the provider takes it: our calls become ordinary calls, unsigned thinking is left out."""
    text = bytes(raw)
    if OUR_SIGNATURE.encode() in text and _any(raw).get("type") == "thinking":
        return None
    if OUR_BLOCK.encode() in text and (block := _any(raw)).get("type") == "server_tool_use":
        return {"type": "tool_use", "id": block["id"], "name": block.get("name"), "input": block.get("input") or {}}
    if b'"mcp_tool_use"' in text and (block := _any(raw)).get("type") == "mcp_tool_use":
        id = block["id"].removeprefix(OUR_CALL)
        return {"type": "tool_use", "id": id, "name": block["name"], "input": block["input"]}
    return raw
