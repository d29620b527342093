"""Gives a client's tools names that all providers accept, where it has others (`fs.read`). It is sent its own names."""

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.api.strict_json import Fields
from callgate.calls.legal_names import is_legal, legal_name
from callgate.calls.states import Call
from callgate.conversation.events import CallsHandedBack, ChatEvent
from callgate.conversation.ports import Emit
from callgate.untrusted.readers import read_value

_encode = msgspec.json.Encoder().encode
_decode = read_value


def legal_names(names: Iterable[str]) -> dict[str, str]:
    """Return the new names of those that are not legal."""
    return {name: legal_name(name) for name in names if not is_legal(name)}


def under_own_names(emit: Emit, names: Mapping[str, str]) -> Emit:
    """Emit the calls that a client is handed under its own names. `names`: these by the legal ones."""

    def own(call: Call) -> Call:
        name = names.get(call.name or "")
        if name is None:
            return call
        return replace(call, name=name)

    def emit_renamed(event: ChatEvent) -> Awaitable[None]:
        if isinstance(event, CallsHandedBack):
            event = replace(event, calls=tuple(map(own, event.calls)))
        return emit(event)

    return emit_renamed


def renamed_chat(fields: Fields, names: Mapping[str, str]) -> Fields:
    """Return the fields of a chat request with other names of tools, wherever they stand."""
    changed: dict[str, Any] = {"tools": [_renamed_tool(tool, names) for tool in _decode(fields["tools"])]}
    if "tool_choice" in fields:
        changed["tool_choice"] = _renamed_choice(_decode(fields["tool_choice"]), names)
    messages = _decode(fields["messages"])
    for message in messages:
        message["tool_calls"] = [_renamed_tool(call, names) for call in message.get("tool_calls") or ()]
        if not message["tool_calls"]:
            del message["tool_calls"]
        if message.get("role") == "tool" and message.get("name") in names:
            message["name"] = names[message["name"]]
    return {**fields, **_encoded(changed | {"messages": messages})}


def renamed_messages(fields: Fields, names: Mapping[str, str]) -> Fields:
    """The same for a Messages request."""
    changed: dict[str, Any] = {"tools": [_under(tool, names) for tool in _decode(fields["tools"])]}
    if "tool_choice" in fields:
        changed["tool_choice"] = _under(_decode(fields["tool_choice"]), names)
    messages = _decode(fields["messages"])
    for message in messages:
        if isinstance(message["content"], list):
            message["content"] = [
                _under(block, names) if block.get("type") == "tool_use" else block for block in message["content"]
            ]
    return {**fields, **_encoded(changed | {"messages": messages})}


def _encoded(fields: Mapping[str, Any]) -> Fields:
    return {name: msgspec.Raw(_encode(value)) for name, value in fields.items()}


def _renamed_tool(tool: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    changed = {kind: _under(tool[kind], names) for kind in ("function", "custom") if isinstance(tool.get(kind), dict)}
    return {**tool, **changed}


def _renamed_choice(choice: Any, names: Mapping[str, str]) -> Any:
    if not isinstance(choice, dict):
        return choice
    allowed = choice.get("allowed_tools")
    if isinstance(allowed, dict):
        tools = [_renamed_tool(tool, names) for tool in allowed.get("tools") or ()]
        return {**choice, "allowed_tools": {**allowed, "tools": tools}}
    return _renamed_tool(choice, names)


def _under(named: Any, names: Mapping[str, str]) -> Any:
    if isinstance(named, dict) and named.get("name") in names:
        return {**named, "name": names[named["name"]]}
    return named
