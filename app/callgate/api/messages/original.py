"""Keeps a Messages request as it came, for a model behind Anthropic's own API."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from callgate.api.messages.history import OUR_CALL, OUR_SIGNATURE, BlockOrigin
from callgate.api.requests import ChatRequest
from callgate.conversation.ports import Message

_messages = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_blocks = msgspec.json.Decoder(list[msgspec.Raw])
_any = msgspec.json.Decoder(dict[str, Any])


class OriginalMessages:
    """Finds the blocks of the request from which a message of its chat was made. Decodes them only when they are needed."""

    api: Literal["messages"] = "messages"

    def __init__(
        self,
        request: ChatRequest,
        origins: Sequence[Sequence[BlockOrigin] | None],
        foreign: Sequence[tuple[str, str]],
        betas: Sequence[str],
    ) -> None:
        self.fields: Mapping[str, msgspec.Raw] = request.fields
        self.foreign, self.betas = foreign, betas
        self._request = weakref.ref(request)  # which has this
        self._origins = origins
        self._places: Mapping[int, int] | None = None
        self._given: Sequence[Mapping[str, msgspec.Raw]] = ()

    def blocks_of(self, message: Message) -> tuple[str, Sequence[Any]] | None:
        if self._places is None:
            request = self._request()
            assert request is not None, "a request is kept while it is answered"
            # Messages are found by identity; the request keeps them alive.
            self._places = {id(each): place for place, each in enumerate(request.messages)}
            self._given = _messages.decode(self.fields["messages"])
        place = self._places.get(id(message))
        origins = None if place is None else self._origins[place]
        if origins is None:
            return None
        blocks = [block for origin in origins for block in self._blocks_at(origin)]
        return (msgspec.json.decode(self._given[origins[0].message]["role"], type=str) if origins else "", blocks)

    def _blocks_at(self, origin: BlockOrigin) -> list[Any]:
        content = self._given[origin.message]["content"]
        if origin.blocks is None:
            return [{"type": "text", "text": content}] if bytes(content) != b'""' else []
        blocks = _blocks.decode(content)
        return [block for place in origin.blocks if (block := _sent(blocks[place])) is not None]


def _sent(raw: msgspec.Raw) -> Any:
    """Return a block as the provider takes it: our calls become ordinary calls, unsigned thinking is left out."""
    text = bytes(raw)
    if OUR_SIGNATURE.encode() in text and _any.decode(raw).get("type") == "thinking":
        return None
    if b'"mcp_tool_use"' in text and (block := _any.decode(raw)).get("type") == "mcp_tool_use":
        id = block["id"].removeprefix(OUR_CALL)
        return {"type": "tool_use", "id": id, "name": block["name"], "input": block["input"]}
    return raw
