"""Reads the body of a request into a `ChatRequest`. Fields that we do not read stay undecoded.

Messages and the client's tools are checked and not turned into objects here, because histories may be large.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from callgate.api.chat_outline import ChatOutline, ChatToolChoice
from callgate.api.chat_request import (
    AS_USUAL,
    DIALECTS,
    IDLE_CHOICES,
    ONLY_CHAT,
    SAYS_NOTHING,
    ChatRequest,
    Delivery,
    Dialect,
    RequestedTools,
    RequestOrigin,
)
from callgate.api.client_names import legal_names, renamed_chat
from callgate.api.field_errors import from_validation, wrong
from callgate.api.mcp_entries import McpEntry, read_entry, servers_of
from callgate.api.strict_json import LARGE, Fields, check_text, invalid_json, split
from callgate.chat.legacy import is_legacy, with_derived_id, without_legacy_fields
from callgate.chat.request_schema import outline_fast, outline_of_any, split_large_fast
from callgate.chat.responses_compat import as_chat, is_misaddressed
from callgate.conversation.errors import ChatError
from callgate.conversation.turn_recovery import FIELD, Hint, take_hints
from callgate.policy.nameable import MCP
from callgate.policy.operator_ids import may_have_ids
from callgate.runtime.route import ClientTools
from callgate.untrusted.doors import Opened, written_here
from callgate.untrusted.readers import json_reader, read_value

if TYPE_CHECKING:
    from callgate.callers.client_mcp import ClientMcp

ABOUT_TOOLS = frozenset({"tools", "functions", "tool_choice", "function_call", "parallel_tool_calls"})
"""Fields that providers refuse without tools."""

MAX_CHOICES = 128
HINT_MARK = f'"{FIELD}"'.encode()


class _Metadata(msgspec.Struct, gc=False):
    tools: str | None = None
    tool_events: str | None = None


_items = json_reader(list[msgspec.Raw])
_metadata = json_reader(_Metadata)
_objects = json_reader(dict[str, Any])
_objects_of = json_reader(list[dict[str, Any]])
NO_METADATA = _Metadata()
NO_HINTS: Mapping[int, Hint] = {}

_encode = msgspec.json.Encoder().encode


def read_chat_request(
    body: Opened,
    headers: Mapping[str, str],
    max_messages: int,
    max_depth: int = 100,
    labels: Callable[[], frozenset[str]] = frozenset,
    client: "ClientMcp | None" = None,
) -> ChatRequest:
    """Read a request. Raises `ChatError` that names the wrong field. `labels`: returns the names of the MCP servers; `client`: which
    others its key may name."""
    try:
        return _read(body, headers, max_messages, max_depth, labels, client)
    except msgspec.DecodeError as error:  # in a field that is mostly not decoded: a number that no double can hold
        raise invalid_json(str(error)) from None


def _read(
    body: Opened,
    headers: Mapping[str, str],
    max_messages: int,
    max_depth: int,
    labels: Callable[[], frozenset[str]],
    client: "ClientMcp | None",
) -> ChatRequest:
    hints: Mapping[int, Hint] = NO_HINTS
    legacy = False
    has_ids = False
    outline: ChatOutline | None
    large = None
    if len(body) >= LARGE:
        large = split_large_fast(body, max_depth)
    if large is None:
        normalized = split(body, max_depth)
        outline = outline_fast(normalized, max_depth)
    else:
        normalized, outline = large
    passed = normalized
    own = NOTHING_OWN
    if outline is None:
        check_text(body, max_depth)
        passed, normalized, hints = _in_words_of_chat(body, normalized)
        legacy = normalized is not passed
        outline = outline_of_any(written_here(_encode(normalized)))
        normalized, outline, own = _with_tools_of_its_own(normalized, outline, labels, client)
        has_ids = may_have_ids(body)  # plain requests were checked, with cached tools
    client_tools: ClientTools = "absent"
    if outline.tools or own.entries:
        client_tools = "some"
    elif outline.tools is not None:
        client_tools = "empty"
        outline = replace(outline, tools=None)
        passed = without_empty_tools(passed)
        normalized = without_empty_tools(normalized)
    if len(outline.messages) > max_messages or (outline.n is not None and not 1 <= outline.n <= MAX_CHOICES):
        raise _too_many(outline, max_messages)
    metadata: Mapping[str, Any] = {}
    ours = NO_METADATA
    if "metadata" in normalized:
        metadata, ours = _split_metadata(normalized)
    tool_events: Dialect | None = None
    if (events_mode := headers.get("x-callgate-events") or ours.tool_events) is not None:
        tool_events = _tool_events(events_mode)
    delivery = _delivery(outline, tool_events, legacy=legacy)
    tools = _requested_tools(outline, headers.get("x-callgate-tools") or ours.tools, client_tools)
    if own is not NOTHING_OWN:
        tools = _with_own(tools, own)
    if outline.tool_choice is not None and "tool_choice" in normalized:
        tools = _with_choice(tools, outline.tool_choice, normalized["tool_choice"])
    origin = ONLY_CHAT
    if hints or has_ids:
        origin = RequestOrigin(hints=hints, may_have_ids=has_ids)
    return ChatRequest(
        outline,
        passed,
        normalized,
        outline.model,
        1 if outline.n is None else outline.n,
        metadata,
        delivery,
        tools,
        origin,
        not delivery.every_event and own is NOTHING_OWN,
    )


def _delivery(outline: ChatOutline, tool_events: Dialect | None, *, legacy: bool) -> Delivery:
    options = outline.stream_options
    if not outline.stream and options is None and tool_events is None and not legacy:
        return AS_USUAL
    return Delivery(
        stream=bool(outline.stream),
        include_usage=options is not None and bool(options.include_usage),
        tool_events=tool_events,
        rename_calls=with_derived_id if legacy else None,
        every_event=tool_events == "trace",
    )


def _requested_tools(outline: ChatOutline, wanted: str | None, client_tools: ClientTools) -> RequestedTools:
    if wanted is None and client_tools == "absent" and outline.tool_choice is None:
        return SAYS_NOTHING
    takes_calls = outline.tool_choice != "none" and client_tools != "empty"
    return RequestedTools(filter=wanted, client_list=client_tools, takes_calls=takes_calls)


def _too_many(outline: ChatOutline, max_messages: int) -> ChatError:
    if len(outline.messages) > max_messages:
        message = f"Invalid 'messages': at most {max_messages} messages are accepted."
        return wrong("messages", message, "array_above_max_length")
    return wrong("n", f"Invalid 'n': expected a value between 1 and {MAX_CHOICES}.", "invalid_value")


def _tool_events(name: str) -> Dialect:
    if name not in DIALECTS:
        raise wrong("metadata.tool_events", f"Unknown tool events {name[:40]!r}; use one of {', '.join(DIALECTS)}.")
    return DIALECTS[name]


def _with_choice(tools: RequestedTools, choice: str | ChatToolChoice, raw: msgspec.Raw) -> RequestedTools:
    decoded = read_value(raw)
    if isinstance(choice, str) or choice.allowed_tools is None:
        return replace(tools, choice=decoded)
    allowed = choice.allowed_tools
    described = (tool.function or tool.custom for tool in allowed.tools)
    names = frozenset(tool.name for tool in described if tool is not None)
    return replace(tools, choice=decoded, allowed=names, choice_among_allowed=allowed.mode)


class _OwnTools(msgspec.Struct, frozen=True):
    """What a request's `tools` say besides functions with legal names."""

    entries: Sequence[McpEntry] | None = None
    """Its entries about servers of ours; None where it has none."""
    names: Mapping[str, str] = {}
    """The legal names of the functions that have others."""
    client: "ClientMcp | None" = None
    """Which servers its key may name."""


NOTHING_OWN: Final = _OwnTools()


def _with_tools_of_its_own(
    fields: Fields, outline: ChatOutline, labels: Callable[[], frozenset[str]], client: "ClientMcp | None"
) -> tuple[Fields, ChatOutline, _OwnTools]:
    """Return the fields without entries about servers of ours, and with legal names."""
    tools = outline.tools or ()
    entries: list[McpEntry] | None = None
    if any(tool.type == MCP for tool in tools):
        server_labels = labels()
        other_tools = []
        entries = []
        for place, tool in enumerate(_objects_of(fields["tools"])):
            if tool.get("type") == MCP:
                entries.append(read_entry(tool, server_labels, f"tools[{place}]", client))
            else:
                other_tools.append(tool)
        fields = {name: value for name, value in fields.items() if name != "tools"}
        if other_tools:
            fields["tools"] = msgspec.Raw(_encode(other_tools))
    names = legal_names(tool.name for tool in tools if tool.name is not None)
    if names:
        fields = renamed_chat(fields, names)
    if entries is None and not names:
        return fields, outline, NOTHING_OWN
    return fields, outline_of_any(written_here(_encode(fields))), _OwnTools(entries, names, client)


def _with_own(tools: RequestedTools, own: _OwnTools) -> RequestedTools:
    """Add what the request's `tools` say of ours, and the names of the client's own."""
    own_names = {legal: name for name, legal in own.names.items()}
    if own.entries is None:
        return replace(tools, own_names=own_names)
    if tools.filter is not None:
        raise wrong("tools", "Name our tools in 'tools' or in the header and metadata, not in both.")
    return replace(
        tools,
        own_names=own_names,
        filter=tuple(entry.selection for entry in own.entries if entry.server is None),
        approval_policies=tuple(entry.approval for entry in own.entries if entry.approval is not None),
        servers=servers_of(own.entries, own.client),
    )


def _in_words_of_chat(body: bytes, fields: Fields) -> tuple[Fields, Fields, Mapping[int, Hint]]:
    """Return the fields for passing through, the same with deprecated fields translated, and the hints in them."""
    hints: Mapping[int, Hint] = NO_HINTS
    if HINT_MARK in body and "messages" in fields:
        plain_messages, hints = _without_hints(fields["messages"])
        fields = {**fields, "messages": plain_messages}
    if is_misaddressed(fields):
        fields = as_chat(fields)
    normalized = fields
    if is_legacy(fields):
        normalized = without_legacy_fields(fields)
    return fields, normalized, hints


def without_empty_tools(fields: Fields) -> Fields:
    """Return a request without its empty list of tools, which OpenAI refuses, and without what it then refuses as well."""
    return {name: value for name, value in fields.items() if not (name in ABOUT_TOOLS and _says_nothing(name, value))}


def _says_nothing(name: str, value: msgspec.Raw) -> bool:
    """True if a field about tools says nothing without tools. Another choice is a mistake that the provider should name."""
    if name in ("tool_choice", "function_call"):
        return read_value(value) in IDLE_CHOICES
    return True


def _without_hints(raw: msgspec.Raw) -> tuple[msgspec.Raw, Mapping[int, Hint]]:
    try:
        messages = _items(raw)
    except msgspec.ValidationError:
        return raw, {}  # no list: reported by the check that follows
    plain_messages, hints = take_hints(messages)
    return msgspec.Raw(_encode(plain_messages)), hints


def _split_metadata(fields: Fields) -> tuple[Mapping[str, Any], _Metadata]:
    """Return the client's metadata without our two keys, and those two."""
    raw = fields["metadata"]
    if bytes(raw) == b"null":
        return {}, NO_METADATA
    try:
        ours = _metadata(raw)
        client_metadata = _objects(raw)
    except msgspec.ValidationError as error:
        failure = from_validation(str(error))
        param = f"metadata.{failure.param}" if failure.param else "metadata"
        raise wrong(param, f"Invalid value for '{param}'.", "invalid_type") from None
    for key in ("tools", "tool_events"):
        client_metadata.pop(key, None)
    return client_metadata, ours
