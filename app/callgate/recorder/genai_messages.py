"""Formats the recorded messages of a turn by OpenTelemetry's conventions for generative AI."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from callgate.recorder.model import part_of
from callgate.recorder.row import Recording

INSTRUCTIONS: Final = ("system", "developer")

_encode = msgspec.json.encode


def message_attributes(recording: Recording, choice: int, turn: int) -> dict[str, str]:
    """Return the attributes with the model's input and output messages. Texts that were cut are omitted."""
    content = recording.content
    request = _read(content.get("request"))
    messages: list[Any] = _list(request.get("messages")) if isinstance(request, Mapping) else []
    for number in range(turn + 1):
        history = _read(content.get(part_of(choice, f"turn.{number}.history")))
        if history is not None:
            messages = _list(history)
        messages = messages + _list(_read(content.get(part_of(choice, f"turn.{number}.asked"))))
    readable = [message for message in messages if isinstance(message, Mapping)]
    attributes: dict[str, str] = {}
    instructions = [part for each in readable if each.get("role") in INSTRUCTIONS for part in _parts(each)]
    if instructions:
        attributes["gen_ai.system_instructions"] = _json(instructions)
    rest = [each for each in readable if each.get("role") not in INSTRUCTIONS]
    if rest:
        attributes["gen_ai.input.messages"] = _json({"role": each.get("role"), "parts": _parts(each)} for each in rest)
    tools = content.get(part_of(choice, "tools"))
    if tools and _read(tools) is not None:
        attributes["gen_ai.tool.definitions"] = tools
    answer = _answer(recording, choice, turn)
    if answer:
        attributes["gen_ai.output.messages"] = _json([answer])
    return attributes


def _answer(recording: Recording, choice: int, turn: int) -> dict[str, Any]:
    content = recording.content
    ended = next(
        (each for each in recording.events if (each.kind, each.choice, each.turn) == ("turn_ended", choice, turn)), None
    )
    if ended is None:
        return {}
    parts: list[dict[str, Any]] = []
    for name, kind in (("reasoning", "reasoning"), ("text", "text")):
        if text := content.get(part_of(choice, f"turn.{turn}.{name}")):
            parts.append({"type": kind, "content": text})
    parts += [
        {
            "type": "tool_call",
            "id": call["id"],
            "name": call["name"],
            "arguments": content.get(part_of(choice, f"call.{call['id']}.arguments"), ""),
        }
        for call in ended.facts["calls"]
    ]
    reasons = ended.facts["finish_reasons"]
    return {"role": "assistant", "parts": parts, "finish_reason": reasons[0] if reasons else ""}


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if message.get("role") == "tool":
        return [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}]
    parts: list[dict[str, Any]] = []
    if isinstance(content, str) and content:
        parts.append({"type": "text", "content": content})
    elif isinstance(content, list):
        parts += [
            {"type": "text", "content": each.get("text")} if each.get("type") == "text" else {"type": each.get("type")}
            for each in content
            if isinstance(each, Mapping)
        ]
    for call in _list(message.get("tool_calls")):
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            named = {"name": function.get("name"), "arguments": function.get("arguments")}
            parts.append({"type": "tool_call", "id": call.get("id"), **named})
    return parts


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _read(text: str | None) -> Any:
    """Parse JSON; None if the text is missing, or was cut."""
    try:
        return None if text is None else msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None


def _json(values: Iterable[Any]) -> str:
    return _encode(list(values)).decode(errors="replace")
