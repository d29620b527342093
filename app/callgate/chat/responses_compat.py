"""Rewrites a body of the Responses API that was sent to chat completions, as some editors do, as a chat request.

Text and images, calls and their results, and tools are translated. References to objects stored at a provider are left to the judge.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from callgate.conversation.errors import ChatError
from callgate.untrusted.readers import NULL, json_reader

Fields = dict[str, msgspec.Raw]

RENAMED = {"max_output_tokens": "max_completion_tokens"}
DROPPED = frozenset({"input", "instructions", "include", "reasoning", "text", "truncation", "store", "background"})
"""Fields that are translated below, or that Chat Completions does not have."""

_encode = msgspec.json.Encoder().encode
_decode = json_reader()


def is_misaddressed(fields: Mapping[str, Any]) -> bool:
    return "messages" not in fields and "input" in fields


def as_chat(fields: Fields) -> Fields:
    chat: dict[str, Any] = {RENAMED.get(name, name): value for name, value in fields.items() if name not in DROPPED}
    instructions = _decode(fields.get("instructions", NULL))
    chat["messages"] = [
        *([{"role": "system", "content": instructions}] if instructions else []),
        *_messages(_decode(fields["input"])),
    ]
    if "tools" in fields and isinstance(tools := _decode(fields["tools"]), list):
        chat["tools"] = [_tool(tool) for tool in tools]
    if "tool_choice" in fields:
        chat["tool_choice"] = _choice(_decode(fields["tool_choice"]))
    effort = _decode(fields.get("reasoning", NULL))
    if isinstance(effort, dict) and effort.get("effort"):
        chat["reasoning_effort"] = effort["effort"]
    format = _decode(fields.get("text", NULL))
    if isinstance(format, dict) and isinstance(format.get("format"), dict):
        chat["response_format"] = _format(format["format"])
    return {
        name: value if isinstance(value, msgspec.Raw) else msgspec.Raw(_encode(value)) for name, value in chat.items()
    }


def _messages(input: Any) -> list[dict[str, Any]]:
    if isinstance(input, str):
        return [{"role": "user", "content": input}]
    if not isinstance(input, list):
        raise _refused("input", "Invalid type for 'input': expected a string or an array.")
    messages: list[dict[str, Any]] = []
    for place, item in enumerate(input):
        _add(messages, item if isinstance(item, dict) else {}, f"input[{place}]")
    return messages


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    match item.get("type", "message"):
        case "message":
            messages.append({"role": item.get("role"), "content": _content(item.get("content"), where)})
        case "function_call" | "custom_tool_call" as kind:
            # Calls of one turn are separate items there, and one message here.
            if not (messages and "tool_calls" in messages[-1]):
                messages.append({"role": "assistant", "content": None, "tool_calls": []})
            if kind == "custom_tool_call":
                call = {
                    "id": item.get("call_id"),
                    "type": "custom",
                    "custom": {"name": item.get("name"), "input": item.get("input")},
                }
            else:
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
            messages[-1]["tool_calls"].append(call)
        case "function_call_output" | "custom_tool_call_output":
            output = _content(item.get("output"), where)
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        case "reasoning":
            pass  # encrypted for another API: left out
        case other:
            raise _refused(f"{where}.type", f"'{other}' items belong to the Responses API and cannot be used here.")


def _content(content: Any, where: str) -> Any:
    if isinstance(content, list):
        return [_part(part, where) for part in content]
    return content


def _part(part: Any, where: str) -> Any:
    if not isinstance(part, dict):
        return part
    match part.get("type"):
        case "input_text" | "output_text":
            return {"type": "text", "text": part.get("text")}
        case "input_image" if isinstance(part.get("image_url"), str):
            image = {"url": part["image_url"], **({"detail": part["detail"]} if part.get("detail") else {})}
            return {"type": "image_url", "image_url": image}
        case "refusal" | "text" | "image_url":
            return part
        case other:
            raise _refused(f"{where}.content", f"'{other}' parts belong to the Responses API and cannot be used here.")


def _tool(tool: Any) -> Any:
    """Convert a tool, which is flat there and nested here."""
    if not isinstance(tool, dict) or "function" in tool or "custom" in tool:
        return tool
    kind = tool.get("type")
    if kind not in ("function", "custom"):
        raise _refused("tools", f"'{kind}' tools belong to the Responses API and cannot be used here.")
    inner = {key: value for key, value in tool.items() if key != "type"}
    if kind == "custom" and isinstance(inner.get("format"), dict) and inner["format"].get("type") == "grammar":
        grammar = {key: inner["format"][key] for key in ("syntax", "definition") if key in inner["format"]}
        inner["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": kind, kind: inner}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom") and "name" in choice:
        return {"type": choice["type"], choice["type"]: {"name": choice["name"]}}
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools" and "tools" in choice:
        if isinstance(choice["tools"], list):
            tools = [_choice(tool) for tool in choice["tools"]]
        else:
            tools = choice["tools"]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": tools}}
    return choice


def _format(format: Mapping[str, Any]) -> dict[str, Any]:
    if format.get("type") != "json_schema" or "json_schema" in format:
        return dict(format)
    return {"type": "json_schema", "json_schema": {key: value for key, value in format.items() if key != "type"}}


def _refused(param: str, message: str) -> ChatError:
    return ChatError(400, message, param=param, code="unsupported_parameter")
