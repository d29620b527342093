"""The items of a turn on the Responses API, kept for the model's next turn."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

ITEMS: Final = "response_items"
"""The field of an assistant message that holds them: objects with the `item` and the deployment that made it (`by`). Reasoning
items are sent only to the deployment that made them."""


BY_CLIENT: Final = "client"
"""Stands for a deployment where an item is what the client returned for a call."""


def without_items(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the message without its items, for any other API."""
    if ITEMS in message:
        return {name: value for name, value in message.items() if name != ITEMS}
    return message


def thoughts_in(field: Any) -> Sequence[Mapping[str, Any]]:
    """Return the reasoning items. A field of this name from a provider on another lane may hold anything."""
    if not isinstance(field, list):
        return ()
    return [entry for entry in field if isinstance(entry, dict) and _is_reasoning(entry.get("item"))]


def compactions_in(field: Any) -> Sequence[Mapping[str, Any]]:
    """Return the items that stand for what a provider summarized itself."""
    if not isinstance(field, list):
        return ()
    kinds = ((entry, entry.get("item")) for entry in field if isinstance(entry, dict))
    return [entry for entry, item in kinds if isinstance(item, dict) and item.get("type") == "compaction"]


def _is_reasoning(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"
