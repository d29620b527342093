"""The items of a turn on the Responses API, kept for the model's next turn."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

ITEMS: Final = "response_items"
"""The field of an assistant message that holds them: objects with the `item` and the deployment that made it (`by`). Reasoning
items are sent only to the deployment that made them."""


BY_CLIENT: Final = "client"
"""Stands for a deployment where an item is what the client returned for a call."""


PROVIDER: Final = "provider"
"""Stands for a deployment where an item is about a tool that its provider ran: a client of this API is shown it, and no model."""
OF_PROVIDERS: Final[Mapping[str, str]] = {
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
}
"""The types of such items, and what their ids begin with."""


def kind_of(item: Any) -> str:
    """Return the type of an item that a client sent; empty where that is no text."""
    if isinstance(item, dict) and isinstance(kind := item.get("type"), str):
        return kind
    return ""


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


def run_by_provider(field: Any) -> Sequence[Mapping[str, Any]]:
    """Return the items about tools that a provider ran."""
    if not isinstance(field, list):
        return ()
    return [entry["item"] for entry in field if isinstance(entry, dict) and entry.get("by") == PROVIDER]


def without_run_by_provider(field: Any) -> Any:
    """Return the items of a turn for the history, which has none about tools that a provider ran."""
    if not isinstance(field, list):
        return field
    return [entry for entry in field if not (isinstance(entry, dict) and entry.get("by") == PROVIDER)]


def _is_reasoning(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"
