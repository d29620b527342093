"""Rewrites the deprecated `functions` and `function_call` into `tools` and `tool_choice`.

Such calls have no ids. Here they get one that is derived from everything before them, so that it is the same whenever the
same history comes again, and what is stored under it is found.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Fields = dict[str, msgspec.Raw]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_items = msgspec.json.Decoder(list[msgspec.Raw])


def is_legacy(fields: Mapping[str, Any]) -> bool:
    return "functions" in fields or "function_call" in fields


def without_legacy_fields(fields: Fields) -> Fields:
    """Return the request with tools. Invalid fields stay unchanged, for the check that follows."""
    rest = {name: value for name, value in fields.items() if name not in ("functions", "function_call")}
    functions = _decode(fields.get("functions", b"null"))
    if isinstance(functions, list):
        given = _items.decode(rest["tools"]) if bytes(rest.get("tools", b""))[:1] == b"[" else []
        rest["tools"] = _raw([*given, *({"type": "function", "function": function} for function in functions)])
    elif functions is not None:
        rest["tools"] = fields["functions"]
    choice = _decode(fields.get("function_call", b"null"))
    if choice is not None:
        rest["tool_choice"] = _raw(choice if isinstance(choice, str) else {"type": "function", "function": choice})
    messages = _decode(fields.get("messages", b"null"))
    if isinstance(messages, list):
        rest["messages"] = _raw(_messages(messages, _items.decode(fields["messages"])))
    return rest


def call_id(preceding: Sequence[Any], name: str | None, arguments: str) -> str:
    """Return the id of a call after these messages."""
    digest = hashlib.sha256()
    for message in preceding:
        fields = _decode(message) if isinstance(message, msgspec.Raw) else message
        known_fields = fields if isinstance(fields, dict) else {}
        digest.update(
            _encode([known_fields.get("role"), known_fields.get("content"), known_fields.get("tool_call_id")])
        )
    digest.update(_encode([name, arguments]))
    return f"call_{digest.hexdigest()[:24]}"


def _messages(messages: Sequence[Any], raw: Sequence[msgspec.Raw]) -> list[Any]:
    chat: list[Any] = []
    open_calls: dict[str, str] = {}
    for message, text in zip(messages, raw, strict=True):
        call = message.get("function_call") if isinstance(message, dict) else None
        if isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), str):
            id = open_calls[call["name"]] = call_id(chat, call["name"], call["arguments"])
            rest = {key: value for key, value in message.items() if key != "function_call"}
            function = {"name": call["name"], "arguments": call["arguments"]}
            chat.append({**rest, "tool_calls": [{"id": id, "type": "function", "function": function}]})
        elif isinstance(message, dict) and message.get("role") == "function":
            id = open_calls.pop(str(message.get("name")), "call_unknown")
            chat.append({"role": "tool", "tool_call_id": id, "content": message.get("content")})
        else:
            chat.append(text)
    return chat


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))
