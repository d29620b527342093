"""Packs a model's reasoning into one opaque text that a client sends back.

Signatures are valid only for the model that made them, so the packed text names the model and is not unpacked for another.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.conversation.response_items import ITEMS
from callgate.conversation.turn import ThinkingBlocks

MARK: Final = "cg1."
"""The prefix of packed texts."""


class _Thought(msgspec.Struct):
    model: str
    text: str
    blocks: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []


_decode = msgspec.json.Decoder(_Thought).decode


def sealed(model: str, blocks: Sequence[Mapping[str, Any]], text: str) -> str:
    """Pack reasoning. `blocks`: thinking blocks in order, and items of the Responses API."""
    thinking = ThinkingBlocks()
    items: list[dict[str, Any]] = []
    for block in blocks:
        if "item" in block:
            items.append(dict(block))
        else:
            thinking.add(block)
    packed = msgspec.json.encode(_Thought(model, text, thinking.blocks(), items))
    return MARK + base64.urlsafe_b64encode(packed).decode()


def unsealed(model: str, given: str) -> Mapping[str, Any] | None:
    """Unpack reasoning into fields of an assistant message; None for a text that was not packed here, or no fields where it
    is of another model."""
    if not given.startswith(MARK):
        return None
    try:
        thought = _decode(base64.urlsafe_b64decode(given.removeprefix(MARK)))
    except (binascii.Error, msgspec.DecodeError, ValueError):
        return None
    if thought.model != model:
        return {}
    fields: dict[str, Any] = {"reasoning_content": thought.text} if thought.text else {}
    fields |= {"thinking_blocks": thought.blocks} if thought.blocks else {}
    return fields | ({ITEMS: thought.items} if thought.items else {})
