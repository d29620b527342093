"""Reads the body of a request into a `ChatRequest`. Fields that we do not read stay undecoded.

Messages and the client's tools are checked and not turned into objects here, because histories may be large.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, get_args

import msgspec
from starlette.types import Receive

from callgate.api.client_names import legal_names, renamed_chat
from callgate.api.large_bodies import LARGE
from callgate.api.legacy import is_legacy, without_legacy_fields
from callgate.api.mcp_entries import McpEntry, read_entry
from callgate.api.operator_ids import may_have_ids
from callgate.api.progress import Dialect
from callgate.api.request_schema import (
    MCP,
    ChatOutline,
    ChatTool,
    ChatToolChoice,
    from_validation,
    outline_of,
    outline_of_any,
    wrong,
)
from callgate.api.responses_compat import as_chat, is_misaddressed
from callgate.api.strict_json import (
    LARGE_BODY,
    Fields,
    check_count,
    check_text,
    invalid_json,
    split,
    split_around_messages,
)
from callgate.calls.selection import ApprovalPolicy, ToolSelection
from callgate.conversation.approved_calls import ClientApprovals
from callgate.conversation.errors import ChatError
from callgate.conversation.ports import Message, ModelRequest, Original, Passthrough
from callgate.conversation.turn_recovery import FIELD, Hint, take_hints
from callgate.conversation.usage import UsageScope
from callgate.ledger.runs import StoredRun
from callgate.runtime.route import ClientTools

OURS = frozenset({"model", "messages", "tools", "tool_choice", "stream", "stream_options", "metadata", "n"})
"""Fields that are attributes here; all others are sent on unchanged."""

ABOUT_TOOLS = frozenset({"tools", "functions", "tool_choice", "function_call", "parallel_tool_calls"})
"""Fields that providers refuse without tools."""
IDLE_CHOICES = ("auto", "none", None)
"""Tool choices that say nothing where there are no tools."""

MAX_DIGITS = 15
"""Digits of a Content-Length."""
Hold: TypeAlias = Callable[[int, int], None]
HINT_MARK = f'"{FIELD}"'.encode()

DIALECTS: Mapping[str, Dialect] = {dialect: dialect for dialect in get_args(Dialect)}


class _Metadata(msgspec.Struct, gc=False):
    tools: str | None = None
    tool_events: str | None = None


_items = msgspec.json.Decoder(list[msgspec.Raw])
_metadata = msgspec.json.Decoder(_Metadata)
_objects = msgspec.json.Decoder(dict[str, Any])
_objects_of = msgspec.json.Decoder(list[dict[str, Any]]).decode
_text = msgspec.json.Decoder(str)
NO_METADATA = _Metadata()
NO_HINTS: Mapping[int, Hint] = {}

_encode = msgspec.json.Encoder().encode


class ChatRequest(msgspec.Struct, weakref=True):
    """One request of a client. What a passed-through request does not need is decoded lazily."""

    outline: ChatOutline
    fields: Mapping[str, msgspec.Raw]
    """The undecoded fields of the body, for passing them through; translated, if they are of another API."""
    normalized: Mapping[str, msgspec.Raw]
    """The same, with `tools` for deprecated `functions`."""
    model: str
    stream: bool
    include_usage: bool
    n: int
    metadata: dict[str, Any]
    """The client's metadata without our own keys."""
    tool_filter: str | tuple[ToolSelection, ...] | None
    """The tools of ours that the client wants: names, or `none`, or selections; all that are offered when absent."""
    tool_events: Dialect | None
    """How the client wants calls of our tools to be shown; None where it does not say."""
    tool_choice: str | dict[str, Any] | None = None
    takes_calls: bool = True
    """False where the client forbids calls, so that none is sent to it."""
    allowed: frozenset[str] | None = None
    """The tools, the client's and ours, that `tool_choice` allows; all when absent."""
    mode: str | None = None
    """The tool choice after the tools were narrowed to those."""
    legacy: bool = False
    """It has `functions`, so that calls are sent as `function_call`."""
    hints: Mapping[int, Hint] = {}
    """The hints in the history about calls of ours, by positions of messages."""
    may_pass: bool = True
    """The writer of the answer also takes a passed-through one."""
    in_background: bool = False
    """It continues without its client, and the answer is sent by another handler of this process."""
    background: Callable[[StoredRun], bytes] | None = None
    """Set where it continues without a client, which fetches the answer later: makes the answer for the meantime."""
    begun_before: Callable[[StoredRun], None] | None = None
    """Called where an earlier request with its key has begun its run; then there is no answer."""
    every_event: bool = False
    """The writer of the answer handles the events of turns too."""
    keeps_hidden: bool = False
    """Hidden turns are stored even where no tool of ours is offered."""
    max_calls: int | None = None
    """The limit of calls of our tools, in all turns together."""
    asking: Sequence[ApprovalPolicy] = ()
    """The calls of our tools that wait for approval because the request says so."""
    client_names: Mapping[str, str] = {}
    """The client's own names of its tools, by the legal ones that they have here."""
    approvals: ClientApprovals | None = None
    """The calls of our tools that the client approves itself, if any."""
    kept_history: Sequence[Message] | None = None
    """The history, where a part of it was stored here. In messages that are dicts nothing has to be restored."""
    shown: frozenset[str] = frozenset()
    """The ids of our calls that the client was shown and sent back."""
    original: Original | None = None
    """The client's own request, where its API is another that a model may have too."""
    conversation: str = ""
    """The id of the conversation that it goes on with, where the client names one."""
    client_tools: ClientTools = "absent"
    """Whether the client gave tools, its own or ours by name."""
    usage_scope: UsageScope = "sum"
    """Which token counts the answer reports."""
    may_have_ids: bool = False
    """It may name objects of the operator's account at a provider."""
    _messages: Sequence[msgspec.Raw] | None = None

    def give_tools(self, client_tools: ClientTools) -> None:
        """Note whether the client gave tools. Beside an empty list a choice that says nothing is dropped, because providers refuse
        it without tools."""
        self.client_tools = client_tools
        self.takes_calls = self.takes_calls and client_tools != "empty"
        if client_tools == "empty" and self.tool_choice in IDLE_CHOICES:
            self.tool_choice = None

    @property
    def history(self) -> Sequence[Message]:
        return self.messages if self.kept_history is None else self.kept_history

    @property
    def messages(self) -> Sequence[msgspec.Raw]:
        if self._messages is None:
            self._messages = _items.decode(self.normalized["messages"])
        return self._messages

    @property
    def size(self) -> int:
        """Return the bytes of its messages and tools."""
        return sum(
            memoryview(self.normalized[name]).nbytes for name in ("messages", "tools") if name in self.normalized
        )

    @property
    def tools(self) -> Sequence[msgspec.Raw]:
        return _tools(self.normalized["tools"], self.outline.tools) if self.outline.tools else ()

    def read(self) -> ModelRequest:
        """Return the request for a model that reads it."""
        return ModelRequest(
            self.history, self.tools, self.tool_choice, self.params, self.stream, self.original, self.takes_calls
        )

    @property
    def end_user(self) -> str:
        """Return the end user that the client names: `user`, `safety_identifier`, or both."""
        named_users = [
            bytes(self.normalized[name]) for name in ("user", "safety_identifier") if name in self.normalized
        ]
        return b"\0".join(named_users).decode()

    @property
    def parallel(self) -> bool:
        return self.outline.parallel_tool_calls is not False

    @property
    def params(self) -> Mapping[str, Any]:
        """Return the fields that are no attributes."""
        params: dict[str, Any] = {name: value for name, value in self.normalized.items() if name not in OURS}
        if self.metadata:
            params["metadata"] = self.metadata
        return params


def passed_through(request: ChatRequest) -> Passthrough:
    """Return the request for passing it through, without our own keys of the metadata."""
    fields = request.fields
    if "metadata" in fields and request.original is None:
        fields = {name: value for name, value in fields.items() if name != "metadata"}
        if request.metadata:
            fields["metadata"] = msgspec.Raw(_encode(request.metadata))
    has_tools = bool(request.outline.tools)
    return Passthrough(
        fields,
        request.stream,
        request.include_usage,
        request.n,
        has_tools,
        request.read,
        request.original,
        request.takes_calls,
    )


def read_chat_request(
    body: bytes,
    headers: Mapping[str, str],
    max_messages: int,
    max_depth: int = 100,
    labels: Callable[[], frozenset[str]] = frozenset,
) -> ChatRequest:
    """Read a request. Raises `ChatError` that names the wrong field. `labels`: returns the names of the MCP servers."""
    try:
        return _read(body, headers, max_messages, max_depth, labels)
    except msgspec.DecodeError as error:  # in a field that is mostly not decoded: a number that no double can hold
        raise invalid_json(str(error)) from None


def _read(  # noqa: PLR0912
    body: bytes,
    headers: Mapping[str, str],
    max_messages: int,
    max_depth: int,
    labels: Callable[[], frozenset[str]],
) -> ChatRequest:
    hints: Mapping[int, Hint] = NO_HINTS
    legacy = has_ids = False
    normalized, outline = split_around_messages(body), None
    if normalized is not None:
        outline = outline_of(normalized, max_depth)
    if normalized is None or outline is None:
        normalized = split(body, max_depth)
        outline = outline_of(normalized, max_depth)
    passed = normalized
    own = NOTHING_OWN
    if outline is None:
        check_text(body, max_depth)
        passed, normalized, hints = _in_words_of_chat(body, normalized)
        legacy = normalized is not passed
        outline = outline_of_any(_encode(normalized))
        normalized, outline, own = _with_tools_of_its_own(normalized, outline, labels)
        has_ids = may_have_ids(body)  # plain requests were checked, with cached tools
    client_tools: ClientTools = "absent"
    if outline.tools or own.entries:
        client_tools = "some"
    elif outline.tools is not None:
        client_tools, outline.tools = "empty", None
        passed, normalized = without_empty_tools(passed), without_empty_tools(normalized)
    if len(outline.messages) > max_messages:
        raise wrong(
            "messages", f"Invalid 'messages': at most {max_messages} messages are accepted.", "array_above_max_length"
        )
    if outline.n is not None and not 1 <= outline.n <= 128:
        raise wrong("n", "Invalid 'n': expected a value between 1 and 128.", "invalid_value")
    metadata, ours = _split_metadata(normalized) if "metadata" in normalized else ({}, NO_METADATA)
    tool_events: Dialect | None = None
    if (wanted := headers.get("x-callgate-events") or ours.tool_events) is not None:
        tool_events = DIALECTS.get(wanted)
        if tool_events is None:
            raise wrong(
                "metadata.tool_events", f"Unknown tool events {wanted[:40]!r}; use one of {', '.join(DIALECTS)}."
            )
    request = ChatRequest(
        outline=outline,
        fields=passed,
        normalized=normalized,
        model=outline.model,
        stream=bool(outline.stream),
        include_usage=bool(outline.stream_options and outline.stream_options.include_usage),
        n=1 if outline.n is None else outline.n,
        metadata=metadata,
        tool_filter=headers.get("x-callgate-tools") or ours.tools,
        tool_events=tool_events,
        legacy=legacy,
        hints=hints,
        may_pass=tool_events != "trace",
        every_event=tool_events == "trace",
        client_tools=client_tools,
        takes_calls=outline.tool_choice != "none" and client_tools != "empty",
    )
    if has_ids:
        request.may_have_ids = True
    if own is not NOTHING_OWN:
        _note_own_tools(request, own)
    if outline.tool_choice is not None and "tool_choice" in normalized:
        request.tool_choice = msgspec.json.decode(normalized["tool_choice"])
        if (
            isinstance(outline.tool_choice, ChatToolChoice)
            and (allowed := outline.tool_choice.allowed_tools) is not None
        ):
            named = (tool.function or tool.custom for tool in allowed.tools)
            request.allowed, request.mode = frozenset(tool.name for tool in named if tool is not None), allowed.mode
    return request


class _OwnTools(msgspec.Struct, frozen=True):
    """What a request's `tools` say besides functions with legal names."""

    entries: Sequence[McpEntry] | None = None
    """Its entries about servers of ours; None where it has none."""
    names: Mapping[str, str] = {}
    """The legal names of the functions that have others."""


NOTHING_OWN: Final = _OwnTools()


def _with_tools_of_its_own(
    fields: Fields, outline: ChatOutline, labels: Callable[[], frozenset[str]]
) -> tuple[Fields, ChatOutline, _OwnTools]:
    """Return the fields without entries about servers of ours, and with legal names."""
    tools = outline.tools or ()
    entries: list[McpEntry] | None = None
    if any(tool.type == MCP for tool in tools):
        known, kept = labels(), []
        entries = []
        for place, tool in enumerate(_objects_of(fields["tools"])):
            if tool.get("type") == MCP:
                entries.append(read_entry(tool, known, f"tools[{place}]"))
            else:
                kept.append(tool)
        fields = {name: value for name, value in fields.items() if name != "tools"}
        if kept:
            fields["tools"] = msgspec.Raw(_encode(kept))
    names = legal_names(tool.name for tool in tools if tool.name is not None)
    if names:
        fields = renamed_chat(fields, names)
    if entries is None and not names:
        return fields, outline, NOTHING_OWN
    return fields, outline_of_any(_encode(fields)), _OwnTools(entries, names)


def _note_own_tools(request: ChatRequest, own: _OwnTools) -> None:
    """Note what a request's `tools` say of ours, and the names of the client's own."""
    request.may_pass = False
    request.client_names = {legal: name for name, legal in own.names.items()}
    if own.entries is None:
        return
    if request.tool_filter is not None:
        raise wrong("tools", "Name our tools in 'tools' or in the header and metadata, not in both.")
    request.tool_filter = tuple(entry.selection for entry in own.entries)
    request.asking = tuple(entry.approval for entry in own.entries if entry.approval is not None)


def _in_words_of_chat(body: bytes, fields: Fields) -> tuple[Fields, Fields, Mapping[int, Hint]]:
    """Return the fields for passing through, the same with deprecated fields translated, and the hints in them."""
    hints: Mapping[int, Hint] = NO_HINTS
    if HINT_MARK in body and "messages" in fields:
        rest, hints = _without_hints(fields["messages"])
        fields = {**fields, "messages": rest}
    if is_misaddressed(fields):
        fields = as_chat(fields)
    return fields, without_legacy_fields(fields) if is_legacy(fields) else fields, hints


def without_empty_tools(fields: Fields) -> Fields:
    """Return a request without its empty list of tools, which OpenAI refuses, and without what it then refuses as well."""
    return {name: value for name, value in fields.items() if not (name in ABOUT_TOOLS and _says_nothing(name, value))}


def _says_nothing(name: str, value: msgspec.Raw) -> bool:
    """True if a field about tools says nothing without tools. Another choice is a mistake that the provider should name."""
    if name in ("tool_choice", "function_call"):
        return msgspec.json.decode(value) in IDLE_CHOICES
    return True


def check_body(headers: Mapping[str, str], limit: int) -> None:
    """Refuse a body by its headers: too large, or compressed, because a compressed body may unpack to a thousand times its
    size."""
    length = headers.get("content-length")
    if length is not None and length.isdecimal() and (len(length) > MAX_DIGITS or int(length) > limit):
        raise _too_large(limit)
    if (encoding := headers.get("content-encoding")) is None:
        return
    encoding = encoding.strip().lower()
    if encoding not in ("", "identity"):
        raise ChatError(
            415,
            f"Request bodies in '{encoding[:40]}' are not taken; send the JSON as it is.",
            code="unsupported_encoding",
        )


async def read_body(receive: Receive, limit: int, hold: Hold | None = None, *, counted: bool = False) -> bytes:
    """Return the whole body; raises as soon as it is larger than the limit. `hold` is called with the bytes so far of a large
    one, and the limit; it raises where there is no room. `counted`: it is JSON, and its number of values is limited."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ChatError(400, "The request was not sent to its end.")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        if size > LARGE and hold is not None:
            hold(size, limit)
        if not message.get("more_body"):
            break
        parts.append(part)
    body = b"".join((*parts, part)) if parts else part
    if counted and size > LARGE_BODY:
        await asyncio.to_thread(check_count, body)
    return body


def _too_large(limit: int) -> ChatError:
    return ChatError(413, f"The request body is larger than {limit} bytes.", code="request_too_large")


def _without_hints(raw: msgspec.Raw) -> tuple[msgspec.Raw, Mapping[int, Hint]]:
    try:
        messages = _items.decode(raw)
    except msgspec.ValidationError:
        return raw, {}  # no list: reported by the check that follows
    rest, hints = take_hints(messages)
    return msgspec.Raw(_encode(rest)), hints


def _tools(raw: msgspec.Raw, outlines: Sequence[ChatTool]) -> tuple[msgspec.Raw, ...]:
    """Return the client's tools undecoded, with parameters parsed that are JSON in a string."""
    tools = _items.decode(raw)
    for place, tool in enumerate(outlines):
        if tool.function is not None and bytes(tool.function.parameters)[:1] == b'"':
            where = f"tools[{place}].function.parameters"
            described = _objects.decode(tools[place])
            try:
                described["function"]["parameters"] = _objects.decode(_text.decode(tool.function.parameters))
            except msgspec.DecodeError:
                raise wrong(where, f"Invalid value for '{where}': expected a JSON Schema.", "invalid_type") from None
            tools[place] = msgspec.Raw(_encode(described))
    return tuple(tools)


def _split_metadata(fields: Fields) -> tuple[dict[str, Any], _Metadata]:
    """Return the client's metadata without our two keys, and those two."""
    raw = fields["metadata"]
    if bytes(raw) == b"null":
        return {}, NO_METADATA
    try:
        ours = _metadata.decode(raw)
        rest = _objects.decode(raw)
    except msgspec.ValidationError as error:
        failure = from_validation(str(error))
        param = f"metadata.{failure.param}" if failure.param else "metadata"
        raise wrong(param, f"Invalid value for '{param}'.", "invalid_type") from None
    for key in ("tools", "tool_events"):
        rest.pop(key, None)
    return rest, ours
