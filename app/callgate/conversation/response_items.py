"""The items of a turn on the Responses API, kept for the model's next turn."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

ITEMS: Final = "response_items"
"""The field of a chat's assistant message that holds them: objects with the `item` and who made it (`by`). What a model thought
means nothing to another one, so that it goes to nobody else."""


def without_items(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message for any other API."""
    return {name: value for name, value in message.items() if name != ITEMS} if ITEMS in message else message


def thoughts_in(kept: Any) -> Sequence[Mapping[str, Any]]:
    """Those of what a model thought, whether or not it shows what. A provider on another lane may call anything so."""
    items = [each for each in kept if isinstance(each, dict)] if isinstance(kept, list) else ()
    return [it for it in items if isinstance(item := it.get("item"), dict) and item.get("type") == "reasoning"]
