"""Keeps results of tools that are not sound JSON from being taken for JSON by a library.

A result is text, and what a tool brings may not end a chat. litellm hands a text that it can parse to Gemini as an object, and
parses it for others too: recursively, as loosely as Python does, and then cannot send what came of it.
"""

import json
from collections.abc import Sequence
from typing import Any

from callgate.calls.json_text import JsonFault, read_json

_ROLES = ("tool", "function")


def put_in_objects(messages: Sequence[dict[str, Any]]) -> None:
    """Put each result that looks like JSON and is not sound into an object, as litellm does with prose. Changes messages."""
    for message in messages:
        if message.get("role") in _ROLES:
            message["content"] = _sound(message.get("content"))


def _sound(content: Any) -> Any:
    if isinstance(content, str):
        if _is_doubtful(content):
            return _in_object(content)
        return content
    if not isinstance(content, list):
        return content
    texts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
    text = "".join(str(part.get("text") or "") for part in texts)
    if not _is_doubtful(text):
        return content
    others = [part for part in content if not any(part is known_text for known_text in texts)]
    return [{**texts[0], "text": _in_object(text)}, *others]


def _is_doubtful(text: str) -> bool:
    """Whether a library could take a text for JSON that it is not, or that nothing can carry."""
    try:
        read_json(text)
    except JsonFault as fault:
        return fault.grammatical or text.lstrip()[:1] in ("{", "[")
    return False


def _in_object(text: str) -> str:
    return json.dumps({"content": text}, ensure_ascii=False)
