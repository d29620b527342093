"""Reads the body of a Messages request into a `ChatRequest`."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from callgate.api import chat_outline
from callgate.api.chat_request import DIALECTS, ChatRequest, Delivery, RequestedTools, RequestOrigin
from callgate.api.client_names import legal_names, renamed_messages
from callgate.api.strict_json import Fields, check_text, split
from callgate.calls.selection import ToolSelection
from callgate.conversation.client_run_tools import as_function, is_client_run
from callgate.conversation.hidden_history import ReturnedMessage
from callgate.conversation.ports import Message
from callgate.hosted.declared import Declarations, HostedTools, StandIns
from callgate.messages.context_edits import COMPACTION, FIELDS, MANAGEMENT, wishes_of
from callgate.messages.history import as_chat
from callgate.messages.original import OriginalMessages
from callgate.messages.request_schema import (
    MessagesOutline,
    MessagesTool,
    MessagesToolChoice,
    Thread,
    outline_of,
    wrong,
)
from callgate.messages.threads import NOTHING_EARLIER, Earlier
from callgate.messages.unplaced import beyond_chats, unheard_in
from callgate.models.resolve import ModelConfig
from callgate.policy.operator_ids import may_have_ids
from callgate.untrusted.doors import Opened, written_here
from callgate.untrusted.readers import EMPTY_LIST, json_reader, read_shape, read_value

if TYPE_CHECKING:
    from callgate.callers.client_mcp import ClientMcp

MCP_BETA: Final = "mcp-client-"
"""The prefix of the beta feature of clients that take `mcp_tool_use` and `mcp_tool_result`."""
LONGEST_USER: Final = 64
"""Characters that providers of Chat Completions take for `user`; some clients send three times as many."""
LISTING_BETA: Final = "mcp-client-2026-09-15"
"""The first of them that has `mcp_tool_listing`."""
BUDGETS: Final = ((4096, "low"), (16384, "medium"))
"""The largest thinking budgets for the efforts; beyond the last it is high."""
USUAL_THINKING: Final = ("disabled", "adaptive")
"""Types of `thinking` that leave it to the model, as its own default does, or want none of a model that is not known to think."""
EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Efforts in Chat Completions."""

_encode = msgspec.json.Encoder().encode
_objects = json_reader(list[dict[str, Any]])


class MessagesRequest(msgspec.Struct):
    """A request, and the format of its answer."""

    request: ChatRequest
    shows_thinking: bool
    shows_calls: bool
    """Whether the client is shown calls of ours."""
    thinks: bool
    """Whether it has `thinking` parameters."""
    thread: Thread | None
    left_out: Sequence[str]
    """The types of content that a model of chats cannot read, which is left out for one."""
    unheard: Sequence[str] = ()
    """What is left out whoever answers."""
    takes_lists: bool = False
    """Whether the client takes the lists of MCP servers' tools."""
    asks_of_context: bool = False
    """Whether it has fields about its context."""


def read_messages_request(
    body: Opened,
    headers: Mapping[str, str],
    max_messages: int,
    max_depth: int = 100,
    *,
    counts_only: bool = False,
    earlier: Earlier = NOTHING_EARLIER,
    reads_files: Callable[[str], bool] = lambda model: False,
    speaks_messages: Callable[[str], bool] = lambda model: False,
    stand_ins: Callable[[str], StandIns] = lambda model: {},
    labels: Callable[[], frozenset[str]] = frozenset,
    client: "ClientMcp | None" = None,
) -> MessagesRequest:
    """Read a request. Raises `ChatError` that names the wrong field.

    `earlier`: the messages of the thread that it continues. `reads_files`: whether a model takes PDFs. `speaks_messages`: whether it has
    Anthropic's own API, which reads its own `compaction` blocks. `stand_ins`: what stands for the tools that requests to a model declare. `labels`: returns the names of the MCP servers; `client`: which others its
    key may name.
    """
    fields = split(body, max_depth)
    check_text(body, max_depth)
    if earlier.messages:
        fields = {**earlier.fields, **fields, "messages": _joined(earlier.messages, fields)}
        body = written_here(_encode(fields))
    outline = outline_of(body, counts_only=counts_only)
    names = legal_names(tool.name for tool in outline.tools or () if tool.is_clients and tool.name and "." in tool.name)
    if names:
        fields = renamed_messages(fields, names)
        outline = outline_of(written_here(_encode(fields)), counts_only=counts_only)
    if len(outline.messages) > max_messages:
        raise wrong("messages", f"at most {max_messages} messages are accepted", code="array_above_max_length")
    history = as_chat(
        outline.system,
        outline.messages,
        reads_files=reads_files(outline.model),
        reads_compactions=speaks_messages(outline.model),
    )
    hosted, fields = _hosted(outline, fields, stand_ins)
    beyond = beyond_chats(outline, fields)
    foreign = [*history.foreign, *beyond.demanded]
    tools, toolsets = _tools(outline, foreign, hosted)
    servers = None
    tool_filter: str | tuple[ToolSelection, ...] | None = headers.get("x-callgate-tools")
    if outline.mcp_servers is not None:
        from callgate.messages.mcp_servers import read_servers  # few requests name any

        if tool_filter is not None:
            raise wrong("mcp_servers", "cannot be given beside the header `x-callgate-tools`")
        servers = read_servers(outline.mcp_servers, toolsets, history.listings, labels(), client)
        tool_filter = tuple(servers.narrowing)
    elif toolsets:
        raise wrong("tools", f"MCP server '{next(iter(toolsets))[:64]}' not found in `mcp_servers`")
    serial = False
    if outline.tool_choice is not None:
        serial = bool(outline.tool_choice.disable_parallel_tool_use)
    choice = _choice(outline.tool_choice, hosted)
    messages: list[Message] = [
        message if isinstance(message, ReturnedMessage) else msgspec.Raw(_encode(message))
        for message in history.messages
    ]
    normalized = _normalized(outline, messages, tools)
    if beyond.providers_own:
        normalized = {**beyond.providers_own, **normalized}
    thinking = outline.thinking
    events = headers.get("x-callgate-events")
    if events is not None and events not in DIALECTS:
        raise wrong("x-callgate-events", f"unknown tool events {events[:40]!r}; use one of {', '.join(DIALECTS)}")
    betas = [beta.strip() for beta in headers.get("anthropic-beta", "").split(",")]
    requested = RequestedTools(
        filter=tool_filter,
        choice=choice,
        takes_calls=choice != "none",
        own_names={legal: name for name, legal in names.items()},
        hosted=hosted,
    )
    if servers is not None:
        requested = replace(requested, approval_policies=servers.approvals, servers=servers.named())
    if outline.tools or outline.mcp_servers:
        requested = requested.with_list("some")
    elif outline.tools is not None:
        requested = requested.with_list("empty")
    request = ChatRequest(
        # From here on tools are not decoded again: their parameters are known to be objects.
        outline=chat_outline.ChatOutline(
            outline.model, [], [chat_outline.ChatTool("function")] * len(tools), parallel_tool_calls=not serial
        ),
        fields=fields,
        normalized=normalized,
        model=outline.model,
        n=1,
        metadata={},
        delivery=Delivery(
            stream=bool(outline.stream) and not counts_only,
            include_usage=True,
            tool_events="off",
        ),
        tools=requested,
        origin=RequestOrigin(
            original=OriginalMessages(fields, messages, history.origins, foreign, betas, beyond.unplaced),
            conversation=earlier.conversation,
            shown_calls=frozenset(history.shown),
            hosted_calls=tuple(history.hosted),
            may_have_ids=may_have_ids(body),
        ),
        may_pass=not (names or hosted or history.is_altered or outline.mcp_servers or outline.thread),
        history=messages,
    )
    return MessagesRequest(
        request,
        shows_thinking=thinking is not None and thinking.type != "disabled" and thinking.display != "omitted",
        shows_calls=events != "off" and any(beta.startswith(MCP_BETA) for beta in betas),
        thinks="thinking" in request.normalized or "reasoning_effort" in request.normalized,
        thread=outline.thread,
        left_out=history.left_out,
        unheard=unheard_in(outline),
        takes_lists=_takes_lists(betas),
        asks_of_context=MANAGEMENT in fields or COMPACTION in fields,
    )


def with_context(request: ChatRequest, entry: ModelConfig) -> ChatRequest:
    """Return a request of whose context is done here what it asks, for a model behind another API."""
    origin = request.origin
    assert isinstance(origin.original, OriginalMessages), "a request of this API has its original"
    original = origin.original.heard(FIELDS)
    wishes = wishes_of(request.fields, entry)
    return replace(request, context=wishes, origin=replace(origin, original=original))


def with_thinking(normalized: Mapping[str, msgspec.Raw], way: str) -> dict[str, msgspec.Raw]:
    """Translate `thinking` parameters for a model."""
    fields = {name: value for name, value in normalized.items() if name not in ("thinking", "reasoning_effort")}
    thinking = normalized.get("thinking")
    effort = normalized.get("reasoning_effort")
    if way == "thinking" and thinking is not None:
        fields["thinking"] = thinking
    elif way != "none":
        if thinking is not None and effort is None:
            parameters = read_value(thinking)
        else:
            parameters = {}
        if parameters.get("type") == "enabled":
            budget = parameters["budget_tokens"]
            effort = msgspec.Raw(_encode(next((name for most, name in BUDGETS if budget < most), "high")))
        if effort is not None:
            fields["reasoning_effort"] = effort
    return fields


def thinking_unheard(normalized: Mapping[str, msgspec.Raw], way: str) -> list[str]:
    """Return the `thinking` parameters that `with_thinking` leaves out, although they ask for something."""
    kind = ""
    if "thinking" in normalized:
        kind = read_value(normalized["thinking"])["type"]
    unheard = []
    if kind not in ("", *USUAL_THINKING) and (way == "none" or (way == "effort" and kind != "enabled")):
        unheard.append("thinking")
    if way == "none" and "reasoning_effort" in normalized:
        unheard.append("output_config.effort")
    return unheard


def _joined(earlier: Sequence[msgspec.Raw], fields: Fields) -> msgspec.Raw:
    try:
        messages = read_shape(fields.get("messages", EMPTY_LIST), list[msgspec.Raw])
    except msgspec.ValidationError:
        raise wrong("messages", "Input should be a valid list") from None
    return msgspec.Raw(_encode([*earlier, *messages]))


def _normalized(
    outline: MessagesOutline, messages: Sequence[Message], tools: Sequence[dict[str, Any]]
) -> dict[str, msgspec.Raw]:
    normalized: dict[str, Any] = {"model": outline.model, "messages": messages}
    if outline.max_tokens is not None:
        normalized["max_tokens"] = outline.max_tokens
    if tools:
        normalized["tools"] = tools
    if outline.tool_choice is not None and outline.tool_choice.disable_parallel_tool_use:
        normalized["parallel_tool_calls"] = False
    for name in ("temperature", "top_p", "top_k"):
        if (value := getattr(outline, name)) is not None:
            normalized[name] = value
    if outline.stop_sequences:
        normalized["stop"] = outline.stop_sequences
    if outline.metadata is not None and outline.metadata.user_id:
        user = outline.metadata.user_id
        if len(user) > LONGEST_USER:
            user = hashlib.sha256(user.encode()).hexdigest()
        normalized["user"] = user
    config = outline.output_config
    if config is not None and config.effort:
        normalized["reasoning_effort"] = EFFORTS[config.effort]
    form = outline.output_format if config is None or config.format is None else config.format
    if form is not None:
        schema = {"name": form.name or "answer", "schema": form.schema, "strict": True}
        normalized["response_format"] = {"type": "json_schema", "json_schema": schema}
    if outline.thinking is not None:
        thinking: dict[str, Any] = {"type": outline.thinking.type}
        if outline.thinking.budget_tokens is not None:
            thinking["budget_tokens"] = outline.thinking.budget_tokens
        normalized["thinking"] = thinking
    return {name: msgspec.Raw(_encode(value)) for name, value in normalized.items()}


# Tools -----------------------------------------------------------------------------------------------------------------


def _hosted(
    outline: MessagesOutline, fields: Fields, stand_ins: Callable[[str], StandIns]
) -> tuple[HostedTools | None, Fields]:
    """Return the tools that tools of ours stand for, and the fields without them: no provider is told of those."""
    if all(tool.is_clients for tool in outline.tools or ()):
        return None, fields
    declarations = Declarations(partial(stand_ins, outline.model), dotted=True)
    listed = _objects(fields["tools"])
    others = [
        tool for place, tool in enumerate(listed) if declarations.take(tool, f"tools.{place}", shown_in="block") is None
    ]
    client_names = [tool.name for tool in outline.tools or () if tool.is_clients and tool.name]
    hosted = declarations.tools(client_names, comes_back=True)
    if hosted is None:
        return None, fields
    fields = {name: value for name, value in fields.items() if name != "tools"}
    if others:
        fields["tools"] = msgspec.Raw(_encode(others))
    return hosted, fields


def _tools(
    outline: MessagesOutline, foreign: list[tuple[str, str]], hosted: HostedTools | None
) -> tuple[list[dict[str, Any]], dict[str, MessagesTool]]:
    """Return the client's own tools, and what it says of those of MCP servers, by the names of the servers."""
    tools: list[dict[str, Any]] = []
    toolsets: dict[str, MessagesTool] = {}
    for place, tool in enumerate(outline.tools or ()):
        if tool.is_clients:
            function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
            if tool.description is not None:
                function["description"] = tool.description
            if tool.strict is not None:
                function["strict"] = tool.strict
            tools.append({"type": "function", "function": function})
        elif tool.type == "mcp_toolset":
            if not tool.mcp_server_name:
                raise wrong(f"tools.{place}.mcp_toolset.mcp_server_name", "Field required")
            toolsets[tool.mcp_server_name] = tool
        elif tool.type is not None and is_client_run(tool.type):
            function = as_function(tool.type, width=tool.display_width_px, height=tool.display_height_px)
            tools.append({"type": "function", "function": function})
        elif hosted is None or not hosted.has_kind(tool.type):
            foreign.append((f"tools.{place}", str(tool.type)))
    return tools, toolsets


def _takes_lists(betas: Sequence[str]) -> bool:
    """Return whether a client takes `mcp_tool_listing` blocks."""
    return any(beta.startswith(MCP_BETA) and beta >= LISTING_BETA for beta in betas)


def _choice(choice: MessagesToolChoice | None, hosted: HostedTools | None) -> str | dict[str, Any] | None:
    match choice:
        case None:
            return None
        case MessagesToolChoice(type="any"):
            return "required"
        case MessagesToolChoice(type="tool", name=name):
            if hosted is not None:
                name = hosted.names_in_chat().get(str(name), name)
            return {"type": "function", "function": {"name": name}}
        case MessagesToolChoice(type=kind):
            return kind
