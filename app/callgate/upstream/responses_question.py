"""Translates a turn of a chat into a request to the Responses API."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from callgate.conversation import raw_json
from callgate.conversation.ports import Message, ModelRequest
from callgate.conversation.response_items import ITEMS
from callgate.upstream.params import ALWAYS_PASSED, IN_BODY, is_denied
from callgate.upstream.responses_answer import KEPT, texts_of
from callgate.upstream.translation import Unanswerable, field_of

THOUGHTS: Final = "reasoning.encrypted_content"
LOGPROBS: Final = "message.output_text.logprobs"
DO_NOT_THINK: Final = ("gpt-3", "gpt-4", "chatgpt-", "ft:gpt-3", "ft:gpt-4")
"""Prefixes of OpenAI's models that refuse a request for encrypted reasoning."""
MESSAGE_ROLES: Final = frozenset({"system", "developer", "user"})
NO_PLACE: Final = (
    "stop", "seed", "logit_bias", "presence_penalty", "frequency_penalty", "modalities", "audio", "prediction",
    "functions", "function_call", "web_search_options",
)  # fmt: skip
"""Fields of Chat Completions that this API does not have. One with a default value is left out."""
ASKS_NOTHING: Final[Sequence[Any]] = (None, 0, 0.0, [], {}, ["text"], "none", "auto")
STATE: Final = frozenset(
    """
    previous_response_id conversation prompt background store include input instructions max_tool_calls text
    context_management n logprobs max_tokens max_completion_tokens reasoning_effort reasoning_summary verbosity
    response_format parallel_tool_calls thinking
    """.split()
)
"""Fields of a client's request that are not sent under their own names: their meaning in Chat Completions has another name
here, and under this name they would refer to the operator's account."""
NAMED: Final = ("function", "custom")
FUNCTION_FIELDS: Final = ("name", "description", "parameters", "strict")
CUSTOM_FIELDS: Final = ("name", "description", "format")
"""The fields of a tool that go up one level. No others: a `type` among them would make a tool that the provider runs itself, with
an address or files of its account."""
READ_HERE: Final = IN_BODY | {"reasoning_summary"}

_encode = msgspec.json.Encoder().encode


def body_of(ask: ModelRequest, model: str, by: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Make the body of a turn. `by`: the deployment, whose own items are sent back. `defaults`: the operator's fields."""
    asked = {name: value for name, value in ask.params.items() if name in READ_HERE or not is_denied(name)}
    fields = {name: raw_json.read(value) for name, value in {**defaults, **asked}.items()}
    for name in NO_PLACE:
        if name in fields and (value := fields.pop(name)) not in ASKS_NOTHING and name in asked:
            message = f"'{name}' means nothing to this model, which answers on the Responses API: {value!r:.64}"
            raise Unanswerable(message, name)
    body = {name: value for name, value in fields.items() if name not in STATE and name not in ALWAYS_PASSED}
    body |= {name: defaults[name] for name in ("reasoning", "text", "include") if name in defaults}
    body |= _renamed(fields, body)
    include = list(body.get("include") or ())
    if not model.startswith(DO_NOT_THINK):
        include.append(THOUGHTS)
    if fields.get("logprobs"):
        include.append(LOGPROBS)
    if include:
        body["include"] = list(dict.fromkeys(include))
    if not fields.get("logprobs"):
        body.pop("top_logprobs", None)
    if ask.tools:
        offered: dict[str, Any] = {"tools": [_tool(raw_json.read(tool)) for tool in ask.tools]}
        if (choice := _choice(raw_json.read(ask.tool_choice))) is not None:
            offered["tool_choice"] = choice
        if fields.get("parallel_tool_calls") is not None:
            offered["parallel_tool_calls"] = fields["parallel_tool_calls"]
        body |= offered
    return body | {"model": model, "input": list(_input(ask.messages, by)), "stream": ask.stream, "store": False}


def _renamed(fields: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Translate fields with other names in Chat Completions. `body`: the operator's fields."""
    groups = {
        "reasoning": {"effort": fields.get("reasoning_effort"), "summary": fields.get("reasoning_summary")},
        "text": {"format": _format(fields.get("response_format")), "verbosity": fields.get("verbosity")},
    }
    given = {
        name: {inner: value for inner, value in group.items() if value is not None} for name, group in groups.items()
    }
    renamed = {name: {**(body.get(name) or {}), **group} for name, group in given.items() if group}
    limit = fields.get("max_completion_tokens", fields.get("max_tokens"))
    if limit is not None:
        renamed["max_output_tokens"] = limit
    return renamed | ({"metadata": fields["metadata"]} if fields.get("metadata") else {})


def _format(format: Any) -> dict[str, Any] | None:
    """Nested in a chat, flat here."""
    if not isinstance(format, dict):
        return None
    inner = format.get("json_schema")
    return {"type": "json_schema", **inner} if isinstance(inner, dict) else format


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool.get("type")
    if kind == "function":
        function = tool["function"]
        # The default here is strict, which would refuse or change most schemas.
        return {
            "type": "function",
            "strict": False,
            **{name: function[name] for name in FUNCTION_FIELDS if function.get(name) is not None},
        }
    if kind == "custom":
        custom = {"type": "custom", **{name: tool["custom"][name] for name in CUSTOM_FIELDS if name in tool["custom"]}}
        if isinstance(grammar := field_of(custom, "format", "grammar"), dict):
            custom["format"] = {"type": "grammar", **grammar}
        return custom
    raise Unanswerable(f"tools: a tool of the type {str(kind)[:40]!r} cannot be offered to this model.", "tools")


def _choice(choice: Any) -> Any:
    """Nested in a chat, flat here."""
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    inner = choice.get(kind) if isinstance(kind, str) else None
    if not isinstance(inner, dict):
        return choice
    if kind == "allowed_tools":
        tools = [_choice(tool) for tool in inner.get("tools") or () if tool.get("type") in NAMED]
        return {"type": kind, "mode": inner.get("mode") or "auto", "tools": tools}
    fields = FUNCTION_FIELDS if kind == "function" else CUSTOM_FIELDS
    return {"type": kind, **{name: inner[name] for name in fields if name in inner}}


def _input(messages: Sequence[Message], by: str) -> Iterator[dict[str, Any]]:
    read = [raw_json.read(message) for message in messages]
    calls = (call for message in read for call in message.get("tool_calls") or ())
    custom = {call["id"] for call in calls if call.get("type") == "custom"}
    for at, message in enumerate(read):
        role, content = message.get("role"), message.get("content")
        if role == "tool":
            text = (
                content
                if isinstance(content, str)
                else "".join(str(part.get("text") or "") for part in content or () if isinstance(part, dict))
            )
            kind = "custom_tool_call_output" if message["tool_call_id"] in custom else "function_call_output"
            yield {"type": kind, "call_id": message["tool_call_id"], "output": text}
        elif role == "assistant":
            yield from _said(message, by)
        elif role in MESSAGE_ROLES:
            given = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
            parts = [_part(part, f"messages[{at}].content[{place}]") for place, part in enumerate(given)]
            yield {"type": "message", "role": role, "content": parts}
        else:
            raise Unanswerable(
                f"messages[{at}].role: {str(role)[:40]!r} is unknown to this model.", f"messages[{at}].role"
            )


def _part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": text}:
            return {"type": "input_text", "text": text}
        case {"type": "image_url", "image_url": image}:
            image = image if isinstance(image, dict) else {"url": image}
            return {"type": "input_image", "detail": image.get("detail") or "auto", "image_url": image.get("url")}
        case {"type": "file", "file": {"file_data": data, **more}}:
            named = {"filename": more["filename"]} if more.get("filename") else {}
            return {"type": "input_file", "file_data": data, **named}
        case {"type": "input_audio", "input_audio": audio}:
            return {"type": "input_audio", "input_audio": audio}
    raise Unanswerable(
        f"{where}: a part of the type {str(part.get('type'))[:40]!r} cannot be sent to this model.", where
    )


def _said(message: Mapping[str, Any], by: str) -> Iterator[dict[str, Any]]:
    """Return the items of a model's turn: its own items, where this deployment made them and the message has the same text."""
    calls = {call["id"]: call for call in message.get("tool_calls") or ()}
    kept = message.get(ITEMS)
    own = [each["item"] for each in kept if _is_by(each, by)] if isinstance(kept, list) else []
    text, refusal = message.get("content"), message.get("refusal")
    thoughts = [thought for item in own if (thought := _thought(item)) is not None]
    if calls.keys() <= {id for item in own if isinstance(id := item.get("call_id"), str)} and (
        not (text or refusal) or any(item["type"] == "message" for item in own)
    ):
        for item in own:
            if item["type"] == "reasoning":
                if (thought := _thought(item)) is not None:
                    yield thought
            elif item["type"] == "message":
                yield from _message(field_of(item, "content"), item.get("phase"))
            elif isinstance(id := item.get("call_id"), str) and id in calls:
                yield _call(calls[id])
        return
    yield from thoughts
    parts = [{"type": "text", "text": text}] if isinstance(text, str) else text or ()
    yield from _message([*parts, {"type": "refusal", "refusal": refusal}])
    yield from map(_call, calls.values())


def _is_by(kept: Any, by: str) -> bool:
    """True if it is an item of this deployment that can be sent back. A history comes from a client and may hold anything."""
    item = kept.get("item") if isinstance(kept, dict) and kept.get("by") == by else None
    return isinstance(item, dict) and isinstance(kind := item.get("type"), str) and kind in KEPT


def _message(content: Any, phase: Any = None) -> Iterator[dict[str, Any]]:
    """Make a message item. Items in a history from a client are not sent on as they are, because they may refer to others."""
    parts: list[dict[str, Any]] = []
    for part in content if isinstance(content, list) else ():
        text, refusal = field_of(part, "text"), field_of(part, "refusal")
        if isinstance(text, str) and text:
            parts.append({"type": "output_text", "text": text})
        elif isinstance(refusal, str) and refusal:
            parts.append({"type": "refusal", "refusal": refusal})
    if parts:
        named = {"phase": phase} if isinstance(phase, str) else {}
        yield {"type": "message", "role": "assistant", "content": parts, **named}


def _thought(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a reasoning item without its id, by which the provider would look for a stored item."""
    if item["type"] != "reasoning":
        return None
    summary = [{"type": "summary_text", "text": text} for text in texts_of(item.get("summary"))]
    if isinstance(sealed := item.get("encrypted_content"), str) and sealed:
        return {"type": "reasoning", "summary": summary, "encrypted_content": sealed}
    if not (content := [{"type": "reasoning_text", "text": text} for text in texts_of(item.get("content"))]):
        return None
    # Servers that return plain reasoning require an id, and do not look it up.
    id = f"rs_{sha256(_encode(content)).hexdigest()[:24]}"
    return {"type": "reasoning", "id": id, "summary": summary, "content": content}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    if call.get("type") == "custom":
        custom = call["custom"]
        return {"type": "custom_tool_call", "call_id": call["id"], "name": custom["name"], "input": custom["input"]}
    function = call["function"]
    named = {"call_id": call["id"], "name": function["name"]}
    return {"type": "function_call", **named, "arguments": function["arguments"]}
