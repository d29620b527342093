"""Cache marks: where a client says up to which place a provider shall keep its prompt.

They are Anthropic's, and some providers of chats take them too. A chat that was made of a Messages request has none; they are put on
its messages and tools again for such a provider.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from callgate.conversation import raw_json
from callgate.conversation.ports import Message, ModelRequest, Original

MARK: Final = "cache_control"
MARK_OF_TOOLS: Final = "tools.cache_control"
_MARKED: Final = b'"cache_control":'
_IN_BODIES: Final = (b'"cache_control":', b'"cachePoint":')

_encode = msgspec.json.Encoder().encode


def has_marks(request: ModelRequest) -> bool:
    """True if the client marked messages or tools of a chat."""
    return any(_MARKED in _bytes(part) for part in (*request.messages, *request.tools))


def are_in(body: bytes) -> bool:
    """True if the body of a provider's request has marks, in whatever words."""
    return any(mark in body for mark in _IN_BODIES)


def with_marks(request: ModelRequest, original: Original) -> ModelRequest:
    """Return a chat with the marks of the request that it was made of."""
    messages = [_marked(message, original) for message in request.messages]
    return replace(request, messages=messages, tools=_marked_tools(request.tools, original))


def unplaced_beside_marks(original: Original) -> Sequence[str]:
    """Return the names of what is left out although marks are not: a mark of the whole request has no place."""
    return [
        name
        for name in original.unplaced
        if name != MARK_OF_TOOLS and (name != MARK or raw_json.read(original.fields.get(MARK)) is not None)
    ]


def _marked(message: Message, original: Original) -> Message:
    origin = original.blocks_of(message)
    if origin is None:
        return message
    _, blocks = origin
    if not blocks:
        return _marked_system(message, original)
    if not any(_MARKED in _bytes(block) for block in blocks):
        return message
    decoded = [raw_json.read(block) for block in blocks]
    body = dict(raw_json.read(message))
    content = body.get("content")
    if all(block.get("type") == "text" for block in decoded) and body.get("role") == "user":
        body["content"] = _parts(decoded)
    else:
        mark = next(block[MARK] for block in reversed(decoded) if block.get(MARK))
        if isinstance(content, list) and content:
            body["content"] = [*content[:-1], {**content[-1], MARK: mark}]
        elif content:
            body["content"] = [{"type": "text", "text": content, MARK: mark}]
        elif calls := body.get("tool_calls"):
            body["tool_calls"] = [*calls[:-1], {**calls[-1], MARK: mark}]
    return msgspec.Raw(_encode(body))


def _marked_system(message: Message, original: Original) -> Message:
    """Mark the instructions, which have a field of their own. Other messages without blocks are none of the client's."""
    system = original.fields.get("system")
    body = raw_json.read(message)
    if system is None or body.get("role") != "system" or _MARKED not in _bytes(system):
        return message
    return msgspec.Raw(_encode({**body, "content": _parts(raw_json.read(system))}))


def _parts(blocks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in blocks:
        part: dict[str, Any] = {"type": "text", "text": block.get("text") or ""}
        if block.get(MARK):
            part[MARK] = block[MARK]
        parts.append(part)
    return parts


def _marked_tools(tools: Sequence[msgspec.Raw], original: Original) -> Sequence[msgspec.Raw]:
    given = original.fields.get("tools")
    if given is None or _MARKED not in _bytes(given):
        return tools
    marks = {tool.get("name"): tool[MARK] for tool in raw_json.read(given) if tool.get(MARK)}
    marked: list[msgspec.Raw] = []
    for tool in tools:
        entry = raw_json.read(tool)
        mark = marks.get(entry.get("function", {}).get("name"))
        marked.append(tool if mark is None else msgspec.Raw(_encode({**entry, MARK: mark})))
    return marked


def _bytes(value: Any) -> bytes:
    """Return what the client wrote; nothing of what was made here, which has no marks."""
    if isinstance(value, msgspec.Raw):
        return bytes(value)
    return b""
