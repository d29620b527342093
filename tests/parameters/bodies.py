"""Makes whole requests of samples: values that have to be right, and what a field needs beside it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

Body = dict[str, Any]

_PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_PDF: Final = "JVBERi0xLjQKJSVFT0YK"
_SCHEMA: Final = {"type": "object", "properties": {"q": {"type": "string"}}}
_OURS: Final = "callgate"
"""The label of the tools of the config."""
CALL: Final = "call_1"
"""The id of a call and of its result."""

OWN_CALLS: Final = {
    kind: f"{kind}_output" for kind in ("apply_patch_call", "shell_call", "local_shell_call", "computer_call")
}
"""The items of tools that the client runs, and those of what they returned."""
OWN_ARGUMENTS: Final[Mapping[str, Body]] = {
    "apply_patch_call": {"operation": {"type": "delete_file", "path": "a"}},
    "shell_call": {"action": {"commands": ["ls"]}},
    "local_shell_call": {"action": {"type": "exec", "command": ["ls"], "env": {}}},
    "computer_call": {"actions": [{"type": "screenshot"}]},
}

VALUES: Final[Mapping[str, Any]] = {
    "arguments": '{"q":"x"}',
    "schema": _SCHEMA,
    "parameters": _SCHEMA,
    "input_schema": _SCHEMA,
    "logit_bias": {"1000": 5},
    "n": 2,
    "top_logprobs": 3,
    "budget_tokens": 2048,
    "call_id": CALL,
    "tool_call_id": CALL,
    "tool_use_id": CALL,
    "file_data": f"data:application/pdf;base64,{_PDF}",
    "input_audio": {"data": "UklGRg==", "format": "wav"},
    "parallel_tool_calls": False,
    "disable_parallel_tool_use": True,
    "truncation": "auto",
    "max_tool_calls": 7,
    "mcp_server_name": _OURS,
    "signature": "c2lnbmVk",
}
"""Values that no marker can stand for."""


def corrected(body: Mapping[str, Any]) -> Body:
    """Return a sample with values that mean something."""
    return {name: _corrected(name, value) for name, value in body.items()}


def _corrected(name: str, value: Any) -> Any:
    if name in VALUES and not (name == "arguments" and not isinstance(value, str)):
        return VALUES[name]
    if isinstance(value, list):
        return [_corrected(name, item) for item in value]
    if isinstance(value, dict):
        return _object(name, {inner: _corrected(inner, item) for inner, item in value.items()})
    if name == "image_url" and isinstance(value, str):
        return f"data:image/png;base64,{_PNG}"
    if name in ("format", "media_type") and value in ("gif", "webp", "image/webp", "image/gif"):
        return "image/png"
    return value


def _object(name: str, value: Body) -> Body:
    kind = value.get("type")
    if kind == "local_shell_call_output":
        value["id"] = CALL
    if kind == "computer_screenshot" and "file_id" not in value:
        value["image_url"] = f"data:image/png;base64,{_PNG}"
    if name == "image_url" and "url" in value:
        value["url"] = f"data:image/png;base64,{_PNG}"
    if name == "file" and "file_id" not in value:
        value = {"file_data": VALUES["file_data"], "filename": "a.pdf", **value}
    if kind == "input_file" and not value.keys() & {"file_id", "file_url"}:
        value["file_data"] = VALUES["file_data"]
    if kind == "input_image" and not value.keys() & {"file_id"}:
        value["image_url"] = f"data:image/png;base64,{_PNG}"
    if kind == "base64" and "data" in value:
        value["media_type"] = value["media_type"] if value["media_type"] == "application/pdf" else "image/png"
        value["data"] = _PDF if value["media_type"] == "application/pdf" else _PNG
    if kind == "mcp" and "server_label" in value and "server_url" not in value:
        value["server_label"] = _OURS
    if name == "mcp_servers":
        value |= {"name": _OURS, "url": f"{_OURS}:{_OURS}"}
    if kind in ("tool_use", "function", "custom") and "id" in value:
        value["id"] = CALL
    if kind == "json_schema" and "json_schema" in value:
        value["json_schema"].setdefault("schema", _SCHEMA)
    if kind == "allowed_tools":
        inner = value.get("allowed_tools", value)
        named = {"type": "function", "name": "look"}
        inner["tools"] = [named if inner is value else {"type": "function", "function": {"name": "look"}}]
    return value


def body_for(api: str, path: str, sample: Mapping[str, Any]) -> Body:
    """Return a whole request with a sample, or one that lacks it, of the place that it would have it at."""
    field = path.partition(".")[0].partition("[")[0].removesuffix("{}")
    body: Body = dict(sample)
    _WHOLE[api](path, field, body)
    return body


def _chat(path: str, field: str, body: Body) -> None:
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    for message in body.get("messages", ()):
        if message["role"] == "tool":
            function = {"name": "look", "arguments": "{}"}
            messages.append(
                {"role": "assistant", "tool_calls": [{"id": CALL, "type": "function", "function": function}]}
            )
        messages.append(message)
        if message.get("tool_calls"):
            messages.append({"role": "tool", "tool_call_id": CALL, "content": "seen"})
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": "and?"})
    body["messages"] = messages
    if field in ("tool_choice", "parallel_tool_calls"):
        choice: Any = body.get("tool_choice")
        kind = choice["type"] if isinstance(choice, dict) else ""
        name = choice[kind]["name"] if kind in ("function", "custom") else "other"
        tools: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": _SCHEMA}}]
        if "[function]" in path and name != "look":
            tools.append({"type": "function", "function": {"name": name, "parameters": _SCHEMA}})
        if "[custom]" in path:
            tools.append({"type": "custom", "custom": {"name": name}})
        body["tools"] = tools
    if field == "function_call":
        wanted: Any = body.get("function_call")
        name = wanted["name"] if isinstance(wanted, dict) else "look"
        body["functions"] = [{"name": name, "parameters": _SCHEMA}]
    if field == "top_logprobs":
        body["logprobs"] = True
    if field == "stream_options":
        body["stream"] = True


def _with_beside(given: Any) -> list[Any]:
    """Return the items of an input with the calls of outputs, and the outputs of calls."""
    items: list[Any] = [{"role": "user", "content": "hi"}]
    for item in given if isinstance(given, list) else ():
        kind = str(item.get("type"))
        if kind in OWN_CALLS.values():
            call = next(call for call, output in OWN_CALLS.items() if output == kind)
            items.append({"type": call, "id": CALL, "call_id": CALL, **OWN_ARGUMENTS[call]})
        if kind in ("function_call_output", "custom_tool_call_output"):
            named = {"type": kind.removesuffix("_output"), "call_id": CALL, "name": "look"}
            items.append({**named, "arguments": "{}", "input": "x"})
            items.append({**item, "call_id": CALL})
        else:
            items.append(item)
        if kind == "reasoning":
            items.append({"role": "assistant", "content": "so"})
        if kind in OWN_CALLS:
            items.append(
                {"type": OWN_CALLS[kind], "id": CALL, "call_id": CALL, "status": "completed", "output": "seen"}
            )
        if kind in ("function_call", "custom_tool_call"):
            items.append({"type": f"{kind}_output", "call_id": CALL, "output": "seen"})
    return items


def _responses(path: str, field: str, body: Body) -> None:
    body["input"] = _with_beside(body.get("input")) if field == "input" else "hi"
    if field in ("tool_choice", "parallel_tool_calls"):
        choice: Any = body.get("tool_choice")
        kind = choice["type"] if isinstance(choice, dict) else "function"
        tools: list[Any] = [{"type": "function", "name": "look", "parameters": _SCHEMA, "strict": None}]
        if kind in ("function", "custom"):
            tools.append({"type": kind, "name": choice["name"] if isinstance(choice, dict) else "other"})
        elif kind == "mcp":
            choice["server_label"] = _OURS
            if "name" in choice:
                choice["name"] = "get_time"
            tools.append({"type": "mcp", "server_label": _OURS})
        elif kind != "allowed_tools":
            tools.append({"type": kind})
        body["tools"] = tools
    if field == "top_logprobs":
        body["include"] = ["message.output_text.logprobs"]
    if field == "stream_options":
        body["stream"] = True


def _messages(path: str, field: str, body: Body) -> None:
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    for message in body.get("messages", ()):
        content = message.get("content")
        kinds = [block["type"] for block in content] if isinstance(content, list) else []
        if message["role"] == "user" and "tool_result" in kinds:
            messages.append(
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": CALL, "name": "look", "input": {"q": "x"}}],
                }
            )
        messages.append(message)
        if message["role"] == "assistant":
            answer: Any = "and?"
            if "tool_use" in kinds:
                answer = [{"type": "tool_result", "tool_use_id": CALL, "content": "seen"}]
            messages.append({"role": "user", "content": answer})
    body["messages"] = messages
    if field == "thinking":
        body["max_tokens"] = 4096
    if field == "tool_choice":
        choice = body.get("tool_choice") or {}
        names = dict.fromkeys(["look", choice.get("name") or "look"])
        body["tools"] = [{"name": name, "input_schema": _SCHEMA} for name in names]
    if field == "tools" and "[mcp_toolset]" in path:
        body["mcp_servers"] = [{"type": "url", "name": _OURS, "url": f"{_OURS}:{_OURS}"}]


_WHOLE: Final[Mapping[str, Callable[[str, str, Body], None]]] = {
    "chat": _chat,
    "responses": _responses,
    "messages": _messages,
}
