"""The items of a turn on the Responses API, kept for the model's next turn."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

ITEMS: Final = "response_items"
"""The field of an assistant message that holds them: objects with the `item` and the deployment that made it (`by`). Reasoning
items are sent only to the deployment that made them."""


def without_items(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the message without its items, for any other API."""
    return {name: value for name, value in message.items() if name != ITEMS} if ITEMS in message else message


def thoughts_in(kept: Any) -> Sequence[Mapping[str, Any]]:
    """Return the reasoning items. A field of this name from a provider on another lane may hold anything."""
    items = [each for each in kept if isinstance(each, dict)] if isinstance(kept, list) else ()
    return [it for it in items if isinstance(item := it.get("item"), dict) and item.get("type") == "reasoning"]
