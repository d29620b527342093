"""Fits a request to what a provider's own wire has: what it has no place for is noted, or refused where it cannot be left out."""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from callgate.conversation.cache_marks import MARK, are_in, has_marks
from callgate.conversation.model_requests import as_model_request, with_withheld
from callgate.conversation.ports import Message, ModelRequest, Passthrough, tell_nobody
from callgate.conversation.readable_content import with_readable_results
from callgate.conversation.response_items import without_items
from callgate.models import resolve, unplaced
from callgate.models.litellm_model import decoded, supported_params
from callgate.models.providers import CLAUDE_WIRE, OWN_WIRES, UNPLACED
from callgate.models.translated.translation import Unanswerable, encode


def readable(request: ModelRequest | Passthrough, api: str, wire: str, arguments: Mapping[str, Any]) -> ModelRequest:
    """Return a request as it is read for a wire. `api`: its own; `arguments`: the entry's settings."""
    read = as_model_request(request, api, cache_marks=resolve.takes_cache_marks(arguments))
    if wire == CLAUDE_WIRE and (read.original is not None or "response_format" not in read.params):
        # Where litellm words it, the format of an answer is requested as a call.
        read = with_withheld(read)
    return with_readable_results(read)


def without_hints(litellm: Any, request: ModelRequest, arguments: Mapping[str, Any]) -> ModelRequest:
    """Return the request without the hints that its provider has no place for, and note them."""
    return unplaced.without_hints(request, partial(supported_params, litellm, arguments), arguments)


def note_lost_marks(request: ModelRequest, body: bytes) -> None:
    """Note that the cache marks of a request are not in the body that was made of it."""
    if has_marks(request) and not are_in(body):
        request.leave_out(MARK)


def check_fits(request: ModelRequest, wire: str) -> None:
    """Refuse what litellm would leave out of a request although it is the request: tools and calls whose input is a text, which
    only OpenAI's API has, and sound for a model that hears none."""
    if wire not in OWN_WIRES:
        return
    for place, tool in enumerate(request.tools):
        if b'"custom"' in bytes(tool) and decoded(tool).get("type") == "custom":
            where = f"tools[{place}]"
            raise Unanswerable(f"'{where}': a tool of the type 'custom' cannot be offered to this model.", where)
    last = len(request.messages) - 1
    follows_results = last > 0 and decoded(request.messages[last - 1]).get("role") == "tool"
    for place, message in enumerate(request.messages):
        # Of a tool or an older message it is left out, and said: refused, it would be refused in every later turn.
        if (
            place == last
            and not follows_results
            and UNPLACED[wire].sound
            and any(kind in bytes_of(message) for kind in SOUND)
        ) and decoded(message).get("role") != "tool":
            _check_sound(decoded(message), place)
        calls = decoded(message).get("tool_calls") if _may_have_custom(message) else None
        if any(call.get("type") == "custom" for call in calls or ()):
            where = f"messages[{place}].tool_calls"
            raise Unanswerable(f"'{where}': a call of the type 'custom' cannot be sent to this model.", where)


SOUND: Final = (b'"input_audio"', b'"audio_url"', b'"video_url"')
"""The types of parts that are heard or seen in time."""


def bytes_of(message: Message) -> bytes:
    return encode(message) if isinstance(message, dict) else bytes(message)


def _check_sound(message: Mapping[str, Any], place: int) -> None:
    content = message.get("content")
    for at, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and f'"{kind}"'.encode() in SOUND:
            where = f"messages[{place}].content[{at}]"
            raise Unanswerable(f"'{where}': a part of the type '{kind}' cannot be sent to this model.", where)


def _may_have_custom(message: Message) -> bool:
    return isinstance(message, dict) or b'"custom"' in bytes(message)


def _without_developer(message: Any) -> Any:
    if message.get("role") == "developer":
        return {**message, "role": "system"}
    return message


def fitted(
    litellm: Any,
    request: ModelRequest,
    provider: str,
    wire: str,
    arguments: Mapping[str, Any],
) -> list[Any]:
    """Return a decoded copy of the messages in roles that the wire has, and note what is left out. `arguments`: the entry's
    settings."""
    messages = [copy.deepcopy(without_items(decoded(message))) for message in request.messages]
    if request.leave_out is not tell_nobody:
        supported = partial(supported_params, litellm, arguments)
        for name in unplaced.left_out_by_litellm(request, provider, wire, messages, supported):
            request.leave_out(name)
    if wire not in OWN_WIRES:
        return messages
    return [_without_developer(message) for message in messages]


def own_wire_of(arguments: Mapping[str, Any]) -> str:
    """Return the wire of an entry's model, Anthropic's for Claude elsewhere."""
    if resolve.is_claude_elsewhere(arguments):
        return CLAUDE_WIRE
    return resolve.wire_of(arguments)
