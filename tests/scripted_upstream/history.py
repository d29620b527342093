"""What OpenAI refuses: the checks of a chat request that a proxy which writes history can get wrong.

Written after the API's own behaviour: an assistant message with calls is followed by exactly one tool message for each
call id, empty arrays are refused, tool names are legal and unique.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
RANGES = {"temperature": (0, 2), "top_p": (0, 1), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2)}


class Rejection(Exception):
    """The request is refused, with what OpenAI's error envelope needs."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        type: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.type = type


def check_request(body: Mapping[str, Any], *, lax: bool = False) -> None:
    """Raises `Rejection` for a request that OpenAI would answer with 400. Lax leaves the history unchecked."""
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise Rejection("you must provide a model parameter", param="model")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Rejection("Missing required parameter: 'messages'.", param="messages", code="missing_required_parameter")
    _check_numbers(body)
    _check_tools(body)
    if body.get("stream_options") is not None and not body.get("stream"):
        raise _only_with("stream_options", "'stream' is true")
    if not lax:
        check_history(messages)


def parse(raw: bytes) -> dict[str, Any]:
    """The body as JSON, by the strict rules of RFC 8259: no NaN, no lone surrogates, an object."""
    refused = Rejection("We could not parse the JSON body of your request.")

    def no_constant(_: str) -> None:
        raise refused

    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=no_constant)
        json.dumps(body, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        raise refused from None
    if not isinstance(body, dict):
        raise refused
    return body


def check_history(messages: list[Any]) -> None:
    pending: dict[str, str] = {}
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            role = message.get("role") if isinstance(message, dict) else None
            raise Rejection(f"Invalid value: {role!r}.", param=f"{where}.role", code="invalid_value")
        if message["role"] == "tool":
            _check_answer(message, pending, where)
            continue
        _check_all_answered(pending)
        if message["role"] == "assistant":
            pending = _check_assistant(message, where)
        else:
            _check_plain(message, where)
    _check_all_answered(pending)


def _check_answer(message: Mapping[str, Any], pending: dict[str, str], where: str) -> None:
    if message.get("tool_call_id") not in pending:
        raise Rejection(
            "messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
            param=f"{where}.role",
        )
    del pending[message["tool_call_id"]]
    _check_content(message, where)


def _check_all_answered(pending: Mapping[str, str]) -> None:
    if pending:
        raise Rejection(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(pending)}",
            param=f"{next(iter(pending.values()))}.role",
        )


def _check_assistant(message: Mapping[str, Any], where: str) -> dict[str, str]:
    """The ids that tool messages must now answer, each with the place of the message that asked."""
    calls = message.get("tool_calls")
    if calls == []:
        raise _empty(f"{where}.tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise Rejection(f"Invalid type for '{where}.tool_calls'.", param=f"{where}.tool_calls", code="invalid_type")
    if not calls and not message.get("function_call") and not message.get("refusal"):
        _check_content(message, where)
    elif message.get("content") == []:
        raise _empty(f"{where}.content")
    pending: dict[str, str] = {}
    for at, call in enumerate(calls or []):
        call_id = _check_call(call, f"{where}.tool_calls[{at}]")
        if call_id in pending:
            raise Rejection(f"Duplicate value for 'tool_call_id' of '{call_id}' in message[{where}].", param=where)
        pending[call_id] = where
    return pending


def _check_call(call: Any, where: str) -> str:
    given: Mapping[str, Any] = call if isinstance(call, dict) else {}
    function, call_id = given.get("function"), given.get("id")
    custom = given.get("custom")
    if given.get("type") == "custom" and call_id and isinstance(custom, dict) and isinstance(custom.get("input"), str):
        return str(call_id)
    sound = given.get("type") == "function" and isinstance(call_id, str) and call_id
    if not sound or not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        raise Rejection(f"Invalid '{where}': id, type and function.arguments are required.", param=where)
    name = function.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise _illegal_name(f"{where}.function.name")
    return str(call_id)


def _check_plain(message: Mapping[str, Any], where: str) -> None:
    for stranger in ("tool_calls", "tool_call_id"):
        if stranger in message:
            raise Rejection(
                f"Additional properties are not allowed ('{stranger}' was unexpected) - '{where}'", param=where
            )
    _check_content(message, where)


def _check_content(message: Mapping[str, Any], where: str) -> None:
    content = message.get("content")
    if content == []:
        raise _empty(f"{where}.content")
    if isinstance(content, list):
        for at, part in enumerate(content):
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise Rejection(f"Missing required parameter: '{where}.content[{at}].type'.", param=f"{where}.content")
    elif not isinstance(content, str):
        got = "null" if content is None else type(content).__name__
        raise Rejection(f"Invalid value for 'content': expected a string, got {got}.", param=f"{where}.content")


def _check_tools(body: Mapping[str, Any]) -> None:
    tools = body.get("tools")
    if tools is None:
        for dependent in ("tool_choice", "parallel_tool_calls"):
            if body.get(dependent) is not None:
                raise _only_with(dependent, "'tools' are specified")
        return
    if not isinstance(tools, list):
        raise Rejection("Invalid type for 'tools': expected an array.", param="tools", code="invalid_type")
    if not tools:
        raise _empty("tools")
    names = set()
    for at, tool in enumerate(tools):
        name = _tool_name(tool, f"tools[{at}]")
        if name in names:
            raise Rejection(f"Duplicate tool name: {name}", param=f"tools[{at}].function.name", code="invalid_value")
        names.add(name)
    _check_choice(body.get("tool_choice"), names)


def _tool_name(tool: Any, where: str) -> str:
    given: Mapping[str, Any] = tool if isinstance(tool, dict) else {}
    function = given.get("function")
    custom = given.get("custom")
    if given.get("type") == "custom" and isinstance(custom, dict) and TOOL_NAME.fullmatch(str(custom.get("name"))):
        return str(custom["name"])
    if not isinstance(function, dict) or given.get("type") != "function":
        raise Rejection(f"Missing required parameter: '{where}.function'.", param=where)
    name = function.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise _illegal_name(f"{where}.function.name")
    parameters = function.get("parameters")
    if parameters is not None and (not isinstance(parameters, dict) or parameters.get("type", "object") != "object"):
        raise Rejection(
            f"Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"'.",
            param=f"{where}.function.parameters",
            code="invalid_function_parameters",
        )
    return name


def _check_choice(choice: Any, names: set[str]) -> None:
    if choice is None or choice in ("auto", "none", "required"):
        return
    chosen: Mapping[str, Any] = choice if isinstance(choice, dict) else {}
    if chosen.get("type") == "allowed_tools":
        return
    function = chosen.get("function")
    named = function.get("name") if chosen.get("type") == "function" and isinstance(function, dict) else None
    if named not in names:
        raise Rejection(f"Tool choice '{named}' not found in 'tools' parameter.", param="tool_choice")


def _check_numbers(body: Mapping[str, Any]) -> None:
    for field, (low, high) in RANGES.items():
        value = body.get(field)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise Rejection(f"Invalid value for '{field}'.", param=field, code="invalid_value")


def _only_with(field: str, condition: str) -> Rejection:
    return Rejection(f"'{field}' is only allowed when {condition}.", param=field, code="invalid_value")


def _empty(where: str) -> Rejection:
    return Rejection(
        f"Invalid '{where}': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        param=where,
        code="empty_array",
    )


def _illegal_name(where: str) -> Rejection:
    return Rejection(
        f"Invalid '{where}': string does not match pattern. Expected a string that matches '^[a-zA-Z0-9_-]+$'.",
        param=where,
        code="invalid_value",
    )
