"""Checks a request as OpenAI would, where its provider does not get it as it is: where calls are written as text, and where
a request is translated. A mistake would become a wrong prompt, or an error about a request that the client did not send."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from callgate.conversation import raw_json
from callgate.conversation.errors import ChatError
from callgate.conversation.past_arguments import PastArguments
from callgate.conversation.ports import ModelRequest

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PART_FIELDS: Final[Mapping[str, tuple[str, type | tuple[type, ...]]]] = {
    "text": ("text", str),
    "refusal": ("refusal", str),
    "image_url": ("image_url", (str, dict)),
    "input_audio": ("input_audio", dict),
    "file": ("file", dict),
    "audio_url": ("audio_url", (str, dict)),
    "video_url": ("video_url", (str, dict)),
    "thinking": ("thinking", str),
    "redacted_thinking": ("data", str),
    "document": ("source", dict),
    "image": ("source", dict),
    "tool_result": ("content", (str, list)),
}
"""The types of content parts, and the field that each must have: OpenAI's, and those that other providers added."""
_INSIDE: Final = {"image_url": "url", "audio_url": "url", "video_url": "url", "input_audio": "data"}
"""The field that the object in a part must have."""


def check_request(request: ModelRequest, *, plain_names: bool = True, as_objects: bool = False) -> None:
    """Raise a `ChatError` that names the field, as OpenAI would, where tools or messages are invalid.

    `plain_names`: whether tool names must follow OpenAI's rule; not where litellm renames them. `as_objects`: the provider
    takes the arguments of earlier calls as objects.
    """
    _check_tools(request.tools, plain_names=plain_names)
    messages = [raw_json.read(message) for message in request.messages]
    _check_history(messages)
    _check_past_arguments(messages, as_objects=as_objects)


def _check_tools(tools: Sequence[Any], *, plain_names: bool) -> None:
    names: set[str] = set()
    for index, raw in enumerate(tools):
        tool = raw_json.read(raw)
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            continue  # a tool of the provider's own, which its translation takes or refuses
        body = tool[kind]
        where = f"tools[{index}].{kind}"
        name = body["name"]
        if plain_names and _NAME.fullmatch(name) is None:
            message = f"Invalid '{where}.name': expected 1 to 64 letters, digits, underscores or hyphens."
            raise _wrong(f"{where}.name", message)
        if name in names:
            raise _wrong(f"{where}.name", f"Invalid '{where}.name': another tool is called '{name}' as well.")
        names.add(name)
        if body.get("parameters") is not None:
            _check_parameters(body["parameters"], f"{where}.parameters")


def _check_parameters(schema: Any, where: str) -> None:
    if not isinstance(schema, dict):
        raise _wrong(where, f"Invalid type for '{where}': expected a JSON Schema of an object.", "invalid_type")
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise _wrong(f"{where}.type", f"Invalid schema for '{where}': its type must be 'object'.")
    properties = schema.get("properties")
    if properties is not None:
        if not isinstance(properties, dict):
            raise _wrong(f"{where}.properties", f"Invalid schema for '{where}': 'properties' must be an object.")
        for name, subschema in properties.items():
            if not isinstance(subschema, (dict, bool)):
                raise _wrong(f"{where}.properties.{name}", f"Invalid schema for '{where}': '{name}' must be a schema.")
    required = schema.get("required")
    if required is not None and not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        raise _wrong(f"{where}.required", f"Invalid schema for '{where}': 'required' must be an array of names.")


def _check_history(messages: Sequence[Mapping[str, Any]]) -> None:
    calling = 0
    called = frozenset[str]()
    unanswered = set[str]()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.get("role") == "tool":
            id = message.get("tool_call_id")
            if not isinstance(id, str) or not id:
                missing = f"{where}.tool_call_id"
                raise _wrong(missing, f"Missing required parameter: '{missing}'.", "missing_required_parameter")
            if id not in called:
                reason = "a message of role 'tool' must answer a call of the preceding message with 'tool_calls'"
                raise _wrong(f"{where}.tool_call_id", f"Invalid '{where}.tool_call_id': {reason}.")
            unanswered.discard(id)
        else:
            _check_answered(calling, unanswered)
            if message.get("role") == "assistant":
                calls = message.get("tool_calls")
            else:
                calls = None
            called = frozenset(call["id"] for call in calls or ())
            calling = index
            unanswered = set(called)
        if isinstance(message.get("content"), list):
            _check_parts(message["content"], f"{where}.content")
    _check_answered(calling, unanswered)


def _check_answered(calling: int, unanswered: set[str]) -> None:
    if unanswered:
        where = f"messages[{calling}].tool_calls"
        ids = ", ".join(sorted(unanswered))[:200]
        message = f"Invalid '{where}': messages of role 'tool' must follow that answer each call; none answers {ids}."
        raise _wrong(where, message)


def _check_past_arguments(messages: Sequence[Mapping[str, Any]], *, as_objects: bool) -> None:
    past = PastArguments(as_objects=as_objects)
    for index, message in enumerate(messages):
        for place, call in enumerate(message.get("tool_calls") or ()):
            _check_call(past, call.get("function"), f"messages[{index}].tool_calls[{place}].function")
        _check_call(past, message.get("function_call"), f"messages[{index}].function_call")


def _check_call(past: PastArguments, function: Any, where: str) -> None:
    if isinstance(function, Mapping):
        arguments = function.get("arguments")
    else:
        arguments = None
    if isinstance(arguments, str):
        past.check(arguments, f"{where}.arguments")


def _check_parts(parts: Sequence[Mapping[str, Any]], where: str) -> None:
    for index, part in enumerate(parts):
        at = f"{where}[{index}]"
        kind = part.get("type")
        field_and_types = _PART_FIELDS.get(kind) if isinstance(kind, str) else None
        if field_and_types is None:
            raise _wrong(f"{at}.type", f"Invalid value for '{at}.type': {str(kind)[:40]!r} is no type of content.")
        name, types = field_and_types
        field = part.get(name)
        at = f"{at}.{name}"
        if field is None:
            raise _wrong(at, f"Missing required parameter: '{at}'.", "missing_required_parameter")
        if not isinstance(field, types):
            raise _wrong(at, f"Invalid type for '{at}'.", "invalid_type")
        if isinstance(field, dict) and kind in _INSIDE and not isinstance(field.get(_INSIDE[kind]), str):
            inner = f"{at}.{_INSIDE[kind]}"
            raise _wrong(inner, f"Missing required parameter: '{inner}'.", "missing_required_parameter")


def _wrong(param: str, message: str, code: str = "invalid_value") -> ChatError:
    return ChatError(400, message, param=param, code=code)
