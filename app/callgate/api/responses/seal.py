"""What a model thought, packed into one text that a client sends back unread.

A signature belongs to the model that made it, so that what was packed for one model is not unpacked for another.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.conversation.turn import ThinkingBlocks

MARK: Final = "cg1."
"""What those of ours begin with."""


class _Thought(msgspec.Struct):
    model: str
    text: str
    blocks: list[dict[str, Any]] = []


_decode = msgspec.json.Decoder(_Thought).decode


def sealed(model: str, blocks: Sequence[Mapping[str, Any]], text: str) -> str:
    """`blocks` are the pieces of thinking blocks in their order."""
    thinking = ThinkingBlocks()
    for block in blocks:
        thinking.add(block)
    packed = msgspec.json.encode(_Thought(model, text, thinking.blocks()))
    return MARK + base64.urlsafe_b64encode(packed).decode()


def unsealed(model: str, given: str) -> Mapping[str, Any] | None:
    """The fields of the model's message; None for what was not packed here. Nothing of what another model thought."""
    if not given.startswith(MARK):
        return None
    try:
        thought = _decode(base64.urlsafe_b64decode(given.removeprefix(MARK)))
    except (binascii.Error, msgspec.DecodeError, ValueError):
        return None
    if thought.model != model:
        return {}
    fields: dict[str, Any] = {"reasoning_content": thought.text} if thought.text else {}
    return fields | ({"thinking_blocks": thought.blocks} if thought.blocks else {})
