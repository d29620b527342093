"""Rewrites the deprecated `functions` and `function_call` into `tools` and `tool_choice`.

Such calls have no ids. Here they get one that is derived from everything before them, so that it is the same whenever the
same history comes again, and what is stored under it is found.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.conversation.events import CallsHandedBack
from callgate.untrusted.readers import NULL, json_reader

Fields = dict[str, msgspec.Raw]

_encode = msgspec.json.Encoder().encode
_decode = json_reader()
_items = json_reader(list[msgspec.Raw])


def is_legacy(fields: Mapping[str, Any]) -> bool:
    return "functions" in fields or "function_call" in fields


def without_legacy_fields(fields: Fields) -> Fields:
    """Return the request with tools. Invalid fields stay unchanged, for the check that follows."""
    current_fields = {name: value for name, value in fields.items() if name not in ("functions", "function_call")}
    functions = _decode(fields.get("functions", NULL))
    if isinstance(functions, list):
        if bytes(current_fields.get("tools", b""))[:1] == b"[":
            raw_tools = _items(current_fields["tools"])
        else:
            raw_tools = []
        current_fields["tools"] = _raw(
            [*raw_tools, *({"type": "function", "function": function} for function in functions)]
        )
    elif functions is not None:
        current_fields["tools"] = fields["functions"]
    choice = _decode(fields.get("function_call", NULL))
    if choice is not None:
        current_fields["tool_choice"] = _raw(
            choice if isinstance(choice, str) else {"type": "function", "function": choice}
        )
    messages = _decode(fields.get("messages", NULL))
    if isinstance(messages, list):
        current_fields["messages"] = _raw(_messages(messages, _items(fields["messages"])))
    return current_fields


def call_id(preceding: Sequence[Any], name: str | None, arguments: str) -> str:
    """Return the id of a call after these messages."""
    digest = hashlib.sha256()
    for message in preceding:
        if isinstance(message, msgspec.Raw):
            fields = _decode(message)
        else:
            fields = message
        if not isinstance(fields, dict):
            fields = {}
        digest.update(_encode([fields.get("role"), fields.get("content"), fields.get("tool_call_id")]))
    digest.update(_encode([name, arguments]))
    return f"call_{digest.hexdigest()[:24]}"


def with_derived_id(history: Sequence[Any], handed: CallsHandedBack) -> CallsHandedBack:
    """Return the one call that is handed back with the id that will be derived for it when the client returns."""
    call = handed.calls[0]
    id = call_id(history, call.name or "", call.text or "{}")
    hidden = handed.hidden
    if hidden is not None:
        hidden = replace(hidden, names={id: call.id})
    return CallsHandedBack((replace(call, id=id),), hidden)


def _messages(messages: Sequence[Any], raw: Sequence[msgspec.Raw]) -> list[Any]:
    chat: list[Any] = []
    open_calls: dict[str, str] = {}
    for message, text in zip(messages, raw, strict=True):
        if isinstance(message, dict):
            call = message.get("function_call")
        else:
            call = None
        if isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), str):
            id = open_calls[call["name"]] = call_id(chat, call["name"], call["arguments"])
            other_fields = {key: value for key, value in message.items() if key != "function_call"}
            function = {"name": call["name"], "arguments": call["arguments"]}
            chat.append({**other_fields, "tool_calls": [{"id": id, "type": "function", "function": function}]})
        elif isinstance(message, dict) and message.get("role") == "function":
            id = open_calls.pop(str(message.get("name")), "call_unknown")
            chat.append({"role": "tool", "tool_call_id": id, "content": message.get("content")})
        else:
            chat.append(text)
    return chat


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))
