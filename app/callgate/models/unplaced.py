"""Finds what of a request is left out where litellm words it for a provider."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from callgate.conversation import raw_json
from callgate.conversation.ports import ModelRequest
from callgate.conversation.response_items import ITEMS
from callgate.models.litellm_model import COMMON_EXTRAS
from callgate.models.params import NAMED, NOT_IN_CHATS
from callgate.models.providers import OPENAI_WIRES, UNNAMED, UNPLACED, Unplaced, provider_named

OF_MESSAGES: Final = ("name", "refusal", "function_call")


HINTS: Final = ("prompt_cache_key", "safety_identifier", "service_tier", "store")
"""Fields of OpenAI's that change nothing of an answer. Agents send them to every model, and litellm refuses the request where it
knows of no place for one."""


def without_hints(
    request: ModelRequest, supported: Callable[[], Container[str]], arguments: Mapping[str, Any]
) -> ModelRequest:
    """Return the request without the hints that a model's provider has no place for, and note them. `supported`: returns the fields
    of OpenAI's that litellm knows of the model; `arguments`: the entry's settings."""
    hints = [name for name in HINTS if name in request.params]
    if not hints:
        return request
    placed = supported()
    allowed = arguments.get("allowed_openai_params") or ()
    dropped = [name for name in hints if name not in placed and name not in allowed]
    if not dropped:
        return request
    for name in dropped:
        if name != "store" or raw_json.read(request.params[name]):
            request.leave_out(name)
    params = {name: value for name, value in request.params.items() if name not in dropped}
    return replace(request, params=params)


def left_out_by_litellm(
    request: ModelRequest,
    provider: str | None,
    wire: str,
    messages: Sequence[Mapping[str, Any]],
    supported: Callable[[], Container[str]],
) -> Iterator[str]:
    """Yield the names of the fields that a provider's wire has no place for. `messages`: those of the request, decoded.
    `supported`: returns the fields of OpenAI's that litellm knows of its model, which takes litellm a fifth of a request."""
    unplaced = UNPLACED.get(wire, NOTHING)
    is_openais = wire in OPENAI_WIRES
    for name, value in request.params.items():
        if name in NOT_IN_CHATS or (name in COMMON_EXTRAS and name not in unplaced.fields):
            continue
        if (
            name == "metadata"
            or name in unplaced.fields
            or (name not in NAMED and not is_openais)
            or (name == "user" and is_openais and name not in supported())
        ):
            yield name
        elif name == "web_search_options" and unplaced.search_options:
            yield from _of_search(raw_json.read(value))
        elif name == "response_format" and not is_openais:
            yield from _of_format(raw_json.read(value), unplaced)
    row = provider_named(provider) or UNNAMED
    if unplaced.names or not row.names_messages:
        yield from unnamed_in(messages)

    if unplaced.thoughts and has_unsigned_thoughts(messages):
        yield THOUGHTS


THOUGHTS: Final = "messages.reasoning_content"
NOTHING: Final = Unplaced(names=False)


def unnamed_in(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the fields of messages that a wire without names has no place for."""
    for message in messages:
        if message.get("role") in ("tool", "function"):
            continue
        for name in OF_MESSAGES:
            if message.get(name):
                yield f"messages.{name}"
        content = message.get("content")
        if isinstance(content, list) and any(isinstance(part, dict) and "refusal" in part for part in content):
            yield "messages.content.refusal"


def has_unsigned_thoughts(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether messages have thinking that no provider signed or sealed, which one that does so refuses."""
    return any(
        message.get("reasoning_content") and not message.get("thinking_blocks") and not message.get(ITEMS)
        for message in messages
    )


def _of_search(options: Any) -> Iterator[str]:
    """Yield what the provider's search has no place for; litellm leaves it out as a whole where nothing is in it."""
    if options == {}:
        yield "web_search_options"
    elif isinstance(options, dict):
        yield from (f"web_search_options.{name}" for name in options)


def _of_format(form: Any, unplaced: Unplaced) -> Iterator[str]:
    if not isinstance(form, dict):
        return
    if form.get("type") == "json_object" and unplaced.json_object:
        yield "response_format"
    schema = form.get("json_schema")
    if isinstance(schema, dict) and schema.get("description"):
        yield "response_format.json_schema.description"
