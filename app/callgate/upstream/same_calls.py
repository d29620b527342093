"""Keeps calls of one turn that say the same, of which litellm sends Gemini only the first.

All are answered, and Gemini refuses a turn that has more answers than calls.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.upstream.translation import field_of

MARK: Final = "callgate__same_call"
"""An argument that tells a repeated call from the first, until litellm has made the body."""

_decode = msgspec.json.Decoder().decode
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
    seen: set[bytes] = set()
    for place, call in enumerate(calls):
        function = call.get("function") or {}
        arguments = _arguments(function.get("arguments"))
        said = _encode([function.get("name"), arguments])
        if said in seen:
            text = _encode({**arguments, MARK: place}).decode()
            call = {**call, "function": {**function, "arguments": text}}  # noqa: PLW2901 -- a copy of it
        seen.add(said)
        marked.append(call)
    return marked


def _arguments(given: Any) -> dict[str, Any]:
    arguments = _decode(given) if isinstance(given, str) and given.strip() else given
    return arguments if isinstance(arguments, dict) else {}
