"""Translates a turn of a chat into a request to the Responses API."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from callgate.conversation import raw_json
from callgate.conversation.client_run_items import BY_KIND, ClientRunItem, returned_fields, sent_output
from callgate.conversation.found_tools import found_in_text, text_of
from callgate.conversation.ports import DeferredTools, ModelRequest
from callgate.conversation.response_items import BY_CLIENT, ITEMS
from callgate.models.direct.model import read_json
from callgate.models.json_values import list_or_empty
from callgate.models.translated.responses_answer import KEPT, texts_of
from callgate.models.translated.translation import Unanswerable, field_of
from callgate.models.unplaced import THOUGHTS as THOUGHTS_IN_CHATS
from callgate.models.unplaced import has_unsigned_thoughts, unnamed_in
from callgate.policy.litellm_settings import GO_ON

THOUGHTS: Final = "reasoning.encrypted_content"
LOGPROBS: Final = "message.output_text.logprobs"
DO_NOT_THINK: Final = ("gpt-3", "gpt-4", "chatgpt-", "ft:gpt-3", "ft:gpt-4")
"""Prefixes of OpenAI's models that refuse a request for encrypted reasoning."""
REFUSALS: Final = ("messages.refusal", "messages.content.refusal")
MESSAGE_ROLES: Final = frozenset({"system", "developer", "user"})
NO_PLACE: Final = frozenset(
    """
    stop seed logit_bias presence_penalty frequency_penalty modalities audio prediction functions function_call web_search_options
    """.split()
)
"""Fields of Chat Completions that this API does not have. One with a default value is left out."""
ALSO_CALLED: Final = {"stop": "stop_sequences"}
"""Their names in another API."""
ASKS_NOTHING: Final[Sequence[Any]] = (None, 0, 0.0, [], {}, ["text"], "none", "auto")
STATE: Final = frozenset(
    """
    previous_response_id conversation prompt background store include input instructions max_tool_calls text
    context_management n logprobs max_tokens max_completion_tokens reasoning_effort reasoning_summary verbosity
    response_format parallel_tool_calls thinking stream_options
    """.split()
)
"""Fields of a client's request that are not sent under their own names: their meaning in Chat Completions has another name
here, and under this name they would refer to the operator's account."""
LEFT_OUT: Final = frozenset("background store include input instructions max_tool_calls text thinking".split())
"""Those of them that have no meaning in Chat Completions that this API could have under another name."""
JOINED: Final = ("tools", "reasoning")
"""Fields of a request to this API that are joined with those of the chat that it became."""
NAMED: Final = ("function", "custom")
FUNCTION_FIELDS: Final = ("name", "description", "parameters", "strict")
CUSTOM_FIELDS: Final = ("name", "description", "format")
"""The fields of a tool that go up one level. No others: a `type` among them would make a tool that the provider runs itself, with
an address or files of its account."""

_encode = msgspec.json.Encoder().encode


def body_of(request: ModelRequest, model: str, by: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Make the body of a turn. `by`: the deployment, whose own items are sent back. `defaults`: the operator's fields."""
    allowed = request.params
    fields = {name: raw_json.read(value) for name, value in {**defaults, **allowed}.items()}
    _check_place(fields, allowed)
    for name in LEFT_OUT & allowed.keys():
        if fields[name] not in (None, False, [], {}):
            request.leave_out(name)
    body = {name: value for name, value in fields.items() if name not in STATE and name not in GO_ON}
    own: Mapping[str, Any] = {}
    if request.original is not None:
        own = {name: raw_json.read(value) for name, value in request.original.fields.items()}
    body |= {name: value for name, value in own.items() if name not in JOINED}
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
    body |= _offered(request, own.get("tools") or (), fields.get("parallel_tool_calls"))
    if own.get("reasoning"):
        body["reasoning"] = {**own["reasoning"], **body.get("reasoning", {})}
    return body | {
        "model": model,
        "input": list(_input(request, by)),
        "stream": request.stream,
        "store": False,
    }


def _check_place(fields: dict[str, Any], allowed: Mapping[str, Any]) -> None:
    """Take out the fields that this API does not have. Refuses a request that asks for something with one."""
    for name in NO_PLACE & fields.keys():
        value = fields.pop(name)
        if name in allowed and (value not in ASKS_NOTHING or _is_switch(name, value)):
            called = f"'{name}'"
            if name in ALSO_CALLED:
                called += f" (or '{ALSO_CALLED[name]}')"
            message = f"{called} means nothing to this model, which answers on the Responses API: {value!r:.64}"
            raise Unanswerable(message, name)


def _offered(request: ModelRequest, own: Sequence[Any], parallel: Any) -> dict[str, Any]:
    """Return what is said of tools. `own`: those that the provider runs."""
    further: Mapping[str, Mapping[str, Any]] = {}
    native = _native(request)
    if request.original is not None:
        further = request.original.functions
    tools = [_tool(raw_json.read(tool)) for tool in request.tools]
    if request.deferred is not None:
        tools = _searched(tools, request.deferred)
    tools = [_as_declared(tool, str(tool.get("name")), native, further) for tool in tools]
    if not tools and not own:
        return {}
    offered: dict[str, Any] = {"tools": [*tools, *own]}
    if (choice := _choice(raw_json.read(request.tool_choice))) is not None:
        offered["tool_choice"] = {"type": choice["name"]} if field_of(choice, "name") in native else choice
    if parallel is not None:
        offered["parallel_tool_calls"] = parallel
    return offered


def _as_declared(
    tool: dict[str, Any], name: str, native: Mapping[str, Mapping[str, Any]], further: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a tool as the client's request had it, where it had it otherwise than a chat does."""
    if name in native:
        return dict(native[name])
    return {**further.get(name, {}), **tool}


def _searched(tools: Sequence[dict[str, Any]], deferred: DeferredTools) -> list[dict[str, Any]]:
    """Return the tools with the provider's own search, which is left to us, instead of ours."""
    find = _tool(raw_json.read(deferred.find_definition))
    search = {"type": "tool_search", "execution": "client", "description": find["description"]}
    others = [tool for tool in tools if tool.get("name") not in (deferred.find, deferred.bridge)]
    return [*others, {**search, "parameters": find["parameters"]}]


def _loaded(message: Mapping[str, Any], deferred: DeferredTools) -> dict[str, Any]:
    """Return the result of a search as the definitions of the tools that it found."""
    names = set(found_in_text(text_of(message.get("content")))) & deferred.names
    tools = [_tool(raw_json.read(tool)) for tool in deferred.definitions] if names else []
    return {
        "type": "tool_search_output",
        "call_id": message["tool_call_id"],
        "execution": "client",
        "status": "completed",
        "tools": [{**tool, "defer_loading": True} for tool in tools if tool["name"] in names],
    }


def _search_call(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "tool_search_call",
        "call_id": item["call_id"],
        "execution": "client",
        "status": "completed",
        "arguments": read_json(item["arguments"].encode()),
    }


def _native(request: ModelRequest) -> Mapping[str, Mapping[str, Any]]:
    """Return the tools of this API for which functions stand."""
    return {} if request.original is None else request.original.native


def _is_switch(name: str, value: Any) -> bool:
    """Return whether a field asks for something although nothing is in it."""
    return name == "web_search_options" and value is not None


def _renamed(fields: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Translate fields with other names in Chat Completions. `body`: the operator's fields."""
    groups = {
        "reasoning": {"effort": fields.get("reasoning_effort"), "summary": fields.get("reasoning_summary")},
        "text": {"format": _format(fields.get("response_format")), "verbosity": fields.get("verbosity")},
    }
    given_groups = {
        name: {inner: value for inner, value in group.items() if value is not None} for name, group in groups.items()
    }
    renamed = {name: {**(body.get(name) or {}), **group} for name, group in given_groups.items() if group}
    limit = fields.get("max_completion_tokens", fields.get("max_tokens"))
    if limit is not None:
        renamed["max_output_tokens"] = limit
    return renamed | ({"metadata": fields["metadata"]} if fields.get("metadata") else {})


def _format(format: Any) -> dict[str, Any] | None:
    """Nested in a chat, flat here."""
    if not isinstance(format, dict):
        return None
    inner = format.get("json_schema")
    if isinstance(inner, dict):
        return {"type": "json_schema", **inner}
    return format


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


def _input(request: ModelRequest, by: str) -> Iterator[dict[str, Any]]:
    read = [raw_json.read(message) for message in request.messages]
    leave_out = request.leave_out
    native = _native(request)
    rows = {call["id"]: BY_KIND[name] for call in _calls_in(read) if (name := _name_of(call)) in native}
    if has_unsigned_thoughts(read):
        leave_out(THOUGHTS_IN_CHATS)
    for name in unnamed_in(read):
        if name not in REFUSALS:
            leave_out(name)
    custom = {call["id"] for call in _calls_in(read) if call.get("type") == "custom"}
    searches: set[str] = set()
    if request.deferred is not None:
        searches = {call["id"] for call in _calls_in(read) if _name_of(call) == request.deferred.find}
    for at, message in enumerate(read):
        role = message.get("role")
        content = message.get("content")
        if role == "tool" and message["tool_call_id"] in searches and request.deferred is not None:
            yield _loaded(message, request.deferred)
        elif role == "tool":
            yield _returned(message, rows.get(message["tool_call_id"]), is_custom=message["tool_call_id"] in custom)
        elif role == "assistant":
            own = (_as_own(item, rows) for item in _said(message, by))
            yield from (_search_call(item) if _is_search(item, searches) else item for item in own)
        elif role in MESSAGE_ROLES:
            content_parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
            parts = [_part(part, f"messages[{at}].content[{place}]") for place, part in enumerate(content_parts)]
            yield {"type": "message", "role": role, "content": parts}
        else:
            raise Unanswerable(
                f"messages[{at}].role: {str(role)[:40]!r} is unknown to this model.", f"messages[{at}].role"
            )


def _is_search(item: Mapping[str, Any], searches: Collection[str]) -> bool:
    return item["type"] == "function_call" and item.get("call_id") in searches


def _returned(message: Mapping[str, Any], row: ClientRunItem | None, *, is_custom: bool) -> dict[str, Any]:
    """Return the output of a call. `row`: that of its tool, if it has items of its own."""
    call_id = message["tool_call_id"]
    content = message.get("content")
    if isinstance(content, str):
        text = content
    else:
        text = "".join(str(part.get("text") or "") for part in content or () if isinstance(part, dict))
    if row is not None:
        return sent_output(row, call_id, text, _returned_item(message, row))
    kind = "custom_tool_call_output" if is_custom else "function_call_output"
    return {"type": kind, "call_id": call_id, "output": text}


def _calls_in(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for message in messages:
        yield from message.get("tool_calls") or ()


def _name_of(call: Mapping[str, Any]) -> str:
    return field_of(call, "function", "name") or ""


def _as_own(item: dict[str, Any], rows: Mapping[str, ClientRunItem]) -> dict[str, Any]:
    """Return the item of a call as that of its tool, if it has one of its own."""
    row = rows.get(item.get("call_id", "")) if item["type"] == "function_call" else None
    if row is None:
        return item
    arguments = read_json(item["arguments"].encode())
    return row.sent_call(item["call_id"], arguments if isinstance(arguments, dict) else {})


def _returned_item(message: Mapping[str, Any], row: ClientRunItem) -> Mapping[str, Any]:
    """Return what the client returned for a call, as far as it names nothing."""
    for stored_item in list_or_empty(message.get(ITEMS)):
        item = field_of(stored_item, "item")
        if field_of(stored_item, "by") == BY_CLIENT and field_of(item, "type") == row.output:
            return returned_fields(item)
    return {}


def _part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": text}:
            return {"type": "input_text", "text": text}
        case {"type": "image_url", "image_url": image}:
            image = image if isinstance(image, dict) else {"url": image}
            return {"type": "input_image", "detail": image.get("detail") or "auto", "image_url": image.get("url")}
        case {"type": "file", "file": {"file_data": data, **more}}:
            if more.get("filename"):
                named = {"filename": more["filename"]}
            else:
                named = {}
            return {"type": "input_file", "file_data": data, **named}
        case {"type": "input_audio", "input_audio": audio}:
            return {"type": "input_audio", "input_audio": audio}
    raise Unanswerable(
        f"{where}: a part of the type {str(part.get('type'))[:40]!r} cannot be sent to this model.", where
    )


def _said(message: Mapping[str, Any], by: str) -> Iterator[dict[str, Any]]:
    """Return the items of a model's turn: its own items, where this deployment made them and the message has the same text."""
    calls = {call["id"]: call for call in message.get("tool_calls") or ()}
    stored_items = message.get(ITEMS)
    if isinstance(stored_items, list):
        own = [stored_item["item"] for stored_item in stored_items if _is_by(stored_item, by)]
    else:
        own = []
    text = message.get("content")
    refusal = message.get("refusal")
    thoughts = [thought for item in own if (thought := _thought(item)) is not None]
    if calls.keys() <= {id for item in own if isinstance(id := item.get("call_id"), str)} and (
        not (text or refusal) or any(item["type"] == "message" for item in own)
    ):
        for item in own:
            if item["type"] in ("reasoning", "compaction"):
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


def _is_by(stored_item: Any, by: str) -> bool:
    """True if it is an item of this deployment that can be sent back. A history comes from a client and may hold anything."""
    if isinstance(stored_item, dict) and stored_item.get("by") == by:
        item = stored_item.get("item")
    else:
        item = None
    return isinstance(item, dict) and isinstance(kind := item.get("type"), str) and kind in KEPT


def _message(content: Any, phase: Any = None) -> Iterator[dict[str, Any]]:
    """Make a message item. Items in a history from a client are not sent on as they are, because they may refer to others."""
    parts: list[dict[str, Any]] = []
    for part in list_or_empty(content):
        text = field_of(part, "text")
        refusal = field_of(part, "refusal")
        if isinstance(text, str) and text:
            parts.append({"type": "output_text", "text": text})
        elif isinstance(refusal, str) and refusal:
            parts.append({"type": "refusal", "refusal": refusal})
    if parts:
        named = {"phase": phase} if isinstance(phase, str) else {}
        yield {"type": "message", "role": "assistant", "content": parts, **named}


def _thought(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a reasoning or compaction item without its id, by which the provider would look for a stored item."""
    if item["type"] == "compaction":
        return {"type": "compaction", "encrypted_content": str(item.get("encrypted_content") or "")}
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
