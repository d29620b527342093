"""Formats the recorded messages of a turn by OpenTelemetry's conventions for generative AI."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from callgate.recorder.turn_texts import part_of
from callgate.records.row import RECORDED_TEXT, RecordedRun
from callgate.untrusted.doors import TooMuch, open_text
from callgate.untrusted.readers import read_value

INSTRUCTIONS: Final = ("system", "developer")

_encode = msgspec.json.encode


def message_attributes(recording: RecordedRun, choice: int, turn: int) -> dict[str, str]:
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
    instructions = [part for item in readable if item.get("role") in INSTRUCTIONS for part in _parts(item)]
    if instructions:
        attributes["gen_ai.system_instructions"] = _json(instructions)
    conversation = [item for item in readable if item.get("role") not in INSTRUCTIONS]
    if conversation:
        attributes["gen_ai.input.messages"] = _json(
            {"role": item.get("role"), "parts": _parts(item)} for item in conversation
        )
    tools = content.get(part_of(choice, "tools"))
    if tools and _read(tools) is not None:
        attributes["gen_ai.tool.definitions"] = tools
    answer = _answer(recording, choice, turn)
    if answer:
        attributes["gen_ai.output.messages"] = _json([answer])
    return attributes


def _answer(recording: RecordedRun, choice: int, turn: int) -> dict[str, Any]:
    content = recording.content
    ended = next(
        (item for item in recording.events if (item.kind, item.choice, item.turn) == ("turn_ended", choice, turn)), None
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
            {"type": "text", "content": item.get("text")} if item.get("type") == "text" else {"type": item.get("type")}
            for item in content
            if isinstance(item, Mapping)
        ]
    for call in _list(message.get("tool_calls")):
        if isinstance(call, Mapping):
            function = call.get("function")
        else:
            function = None
        if isinstance(function, Mapping):
            named = {"name": function.get("name"), "arguments": function.get("arguments")}
            parts.append({"type": "tool_call", "id": call.get("id"), **named})
    return parts


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return []


def _read(text: str | None) -> Any:
    """Parse JSON; None if the text is missing, or was cut."""
    try:
        if text is None:
            return None
        return read_value(open_text(text, RECORDED_TEXT))
    except (TooMuch, msgspec.DecodeError):
        return None


def _json(values: Iterable[Any]) -> str:
    return _encode(list(values)).decode(errors="replace")
