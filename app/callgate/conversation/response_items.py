"""What a model of the Responses API said in a turn, item by item, kept for its next turn."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

ITEMS: Final = "response_items"
"""The field of a chat's assistant message that holds them: objects with the `item` and who made it (`by`). What a model thought
means nothing to another one, so that it goes to nobody else."""


def without_items(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message for any other API."""
    return {name: value for name, value in message.items() if name != ITEMS} if ITEMS in message else message


def hold_thought(kept: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the model thought, whether or not it shows what."""
    return any(each["item"].get("type") == "reasoning" for each in kept)
