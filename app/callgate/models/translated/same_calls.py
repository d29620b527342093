"""Keeps calls of one turn that say the same, of which litellm sends Gemini only the first.

All are answered, and Gemini refuses a turn that has more answers than calls.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.calls.json_text import ARGUMENTS
from callgate.models.translated.translation import field_of
from callgate.untrusted.doors import open_text
from callgate.untrusted.readers import json_reader

MARK: Final = "callgate__same_call"
"""An argument that tells a repeated call from the first, until litellm has made the body."""

_decode = json_reader()
_encode = msgspec.json.Encoder(order="sorted").encode


def tell_calls_apart(messages: Sequence[dict[str, Any]]) -> None:
    """Mark the arguments of calls that repeat one of their turn. Changes messages, and no call in them."""
    for message in messages:
        calls = message.get("tool_calls") or ()
        if len(calls) > 1:
            message["tool_calls"] = _told_apart(calls)


def take_marks_out(body: Mapping[str, Any]) -> None:
    for content in body.get("contents") or ():
        for part in content.get("parts") or ():
            arguments = field_of(part, "function_call", "args")
            if isinstance(arguments, dict):
                arguments.pop(MARK, None)


def _told_apart(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    marked: list[dict[str, Any]] = []
    seen_calls: set[bytes] = set()
    for place, call in enumerate(calls):
        function = call.get("function") or {}
        arguments = _arguments(function.get("arguments"))
        identity = _encode([function.get("name"), arguments])
        if identity in seen_calls:
            text = _encode({**arguments, MARK: place}).decode()
            call = {**call, "function": {**function, "arguments": text}}  # noqa: PLW2901 -- a copy of it
        seen_calls.add(identity)
        marked.append(call)
    return marked


def _arguments(encoded: Any) -> dict[str, Any]:
    if isinstance(encoded, str) and encoded.strip():
        arguments = _decode(open_text(encoded, ARGUMENTS))
    else:
        arguments = encoded
    if isinstance(arguments, dict):
        return arguments
    return {}
