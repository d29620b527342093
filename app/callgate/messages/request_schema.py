"""The schema of a Messages request: the fields that are read, and their types."""

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import Opened
from callgate.untrusted.readers import json_reader

_INDEX = re.compile(r"\[(\d+)\]")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")

NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "text": ("text",),
    "image": ("source",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "mcp_tool_use": ("id", "name", "input", "server_name"),
    "mcp_tool_result": ("tool_use_id",),
}
"""The types of blocks that are read, with their required fields. Others are sent to a provider that knows them, or refused."""
OF_ASSISTANTS: Final = frozenset({"tool_use", "thinking", "redacted_thinking", "mcp_tool_use", "mcp_tool_result"})
OF_USERS: Final = frozenset({"image", "tool_result"})
IN_RESULTS: Final = frozenset({"text", "image"})
"""The types of blocks in a tool result."""


NEEDS_ITS_API: Final = frozenset({"inference_geo"})
"""Fields without which a request must not be answered: where it may be processed is no wish."""
NO_PLACE_IN_CHATS: Final = frozenset(
    """
    cache_control compaction context_management diagnostics fallback_credit_token service_tier speed billing_policy
    """.split()
)
"""Fields that only this API has, and that are left out for a model of chats."""
READ: Final = frozenset(
    """
    model messages max_tokens system stream stop_sequences temperature top_p top_k metadata tools tool_choice thinking
    output_config output_format mcp_servers thread container fallbacks user_profile_id workspace_id betas
    """.split()
)
"""Fields that are read here or judged. All others are a provider's own, and go on to a model of chats under their names."""


class MessageBlock(msgspec.Struct, gc=False):
    """A block of content, with the fields of those types that are read."""

    type: str
    text: str | None = None
    source: msgspec.Raw = msgspec.Raw()
    id: str | None = None
    name: str | None = None
    input: dict[str, msgspec.Raw] | None = None
    server_name: str | None = None
    tool_use_id: str | None = None
    content: msgspec.Raw = msgspec.Raw()
    title: msgspec.Raw = msgspec.Raw()
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    cache_control: msgspec.Raw = msgspec.Raw()
    citations: msgspec.Raw = msgspec.Raw()
    caller: msgspec.Raw = msgspec.Raw()
    mcp_server_name: str | None = None
    tools: msgspec.Raw = msgspec.Raw()


class MessagesMessage(msgspec.Struct, gc=False):
    role: Literal["user", "assistant", "system"]
    content: str | list[MessageBlock]


class _Enabled(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    enabled: bool | None = None
    defer_loading: bool | None = None


class MessagesTool(msgspec.Struct, gc=False):
    """A tool of the client's, one that Anthropic runs itself, or a choice among those of an MCP server."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, msgspec.Raw] | None = None
    strict: bool | None = None
    mcp_server_name: str | None = None
    default_config: _Enabled | None = None
    configs: dict[str, _Enabled | None] | None = None
    display_width_px: int | None = None
    display_height_px: int | None = None
    display_number: msgspec.Raw = msgspec.Raw()
    enable_zoom: msgspec.Raw = msgspec.Raw()
    max_characters: msgspec.Raw = msgspec.Raw()
    allowed_callers: msgspec.Raw = msgspec.Raw()
    cache_control: msgspec.Raw = msgspec.Raw()
    defer_loading: msgspec.Raw = msgspec.Raw()
    eager_input_streaming: msgspec.Raw = msgspec.Raw()
    input_examples: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    """Those of a server, as an earlier answer listed them."""

    @property
    def is_clients(self) -> bool:
        return self.type in (None, "custom")


class MessagesToolChoice(msgspec.Struct, gc=False):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _MessagesMetadata(msgspec.Struct, gc=False):
    user_id: str | None = None


class Thinking(msgspec.Struct, gc=False):
    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: int | None = None
    display: str | None = None
    block_binding: msgspec.Raw = msgspec.Raw()


class Format(msgspec.Struct, gc=False):
    type: Literal["json_schema"]
    schema: dict[str, msgspec.Raw]
    name: str | None = None


class OutputConfig(msgspec.Struct, gc=False):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Format | None = None
    task_budget: msgspec.Raw = msgspec.Raw()


class _ToolConfiguration(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    enabled: bool | None = None
    allowed_tools: list[str] | dict[str, Any] | None = None


class RequestedMcpServer(msgspec.Struct, gc=False):
    name: str
    type: str | None = None
    url: str | None = None
    authorization_token: str | None = None
    require_approval: Any = None
    """As the `mcp` entries of OpenAI's APIs have it; Anthropic's have nothing of the kind."""
    tool_configuration: _ToolConfiguration | None = None


class Thread(msgspec.Struct, gc=False):
    type: Literal["create", "continue"]
    previous_message_id: str | None = None


class MessagesOutline(msgspec.Struct):
    """The fields of a request that are read. Unknown fields are ignored."""

    model: str
    messages: list[MessagesMessage]
    max_tokens: int | None = None
    system: str | list[MessageBlock] | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: _MessagesMetadata | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None
    mcp_servers: list[RequestedMcpServer] | None = None
    thread: Thread | None = None
    service_tier: str | None = None


_outline = json_reader(MessagesOutline)
_blocks = json_reader(str | list[MessageBlock])


def outline_of(body: Opened, *, counts_only: bool = False) -> MessagesOutline:
    """Decode a body whose text was checked. Raises `ChatError` that names what is wrong. `counts_only`: a request to count
    tokens."""
    try:
        outline = _outline(body)
    except msgspec.ValidationError as error:
        raise from_validation(str(error)) from None
    if not outline.model:
        raise wrong("model", "must not be empty")
    if not counts_only and outline.max_tokens is None:
        raise wrong("max_tokens", "Field required")
    if outline.max_tokens is not None and outline.max_tokens < 1:
        raise wrong("max_tokens", "must be at least 1")
    _check_numbers(outline)
    if isinstance(outline.system, list):
        for place, block in enumerate(outline.system):
            if block.type != "text":
                raise wrong(f"system.{place}.type", "expected 'text'")
            _check_fields(block, f"system.{place}")
    _check_messages(outline.messages, is_continued=outline.thread is not None and outline.thread.type == "continue")
    _check_tools(outline.tools or ())
    choice = outline.tool_choice
    thread = outline.thread
    if choice is not None and choice.type == "tool" and not choice.name:
        raise wrong("tool_choice.tool.name", "Field required")
    if thread is not None and thread.type == "continue" and not thread.previous_message_id:
        raise wrong("thread.continue.previous_message_id", "Field required")
    return outline


def _check_numbers(outline: MessagesOutline) -> None:
    for name, value in (("temperature", outline.temperature), ("top_p", outline.top_p)):
        if value is not None and not 0 <= value <= 1:
            raise wrong(name, "must be between 0 and 1")
    if outline.top_k is not None and outline.top_k < 0:
        raise wrong("top_k", "must be at least 0")
    if outline.thinking is not None and outline.thinking.type == "enabled" and outline.thinking.budget_tokens is None:
        raise wrong("thinking.enabled.budget_tokens", "Field required")
    for place, text in enumerate(outline.stop_sequences or ()):
        if not text.strip():
            raise wrong(f"stop_sequences.{place}", "each stop sequence must contain non-whitespace")


class ToolOfListing(msgspec.Struct, gc=False):
    """A tool of a server, as an answer listed it."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None


_listing = json_reader(list[ToolOfListing])


def listing_in(tools: msgspec.Raw, where: str) -> list[ToolOfListing] | None:
    """Return the tools of a server that came back with a request; None where none came."""
    if bytes(tools) in (b"", b"null"):
        return None
    try:
        listing: list[ToolOfListing] = _listing(tools)
    except msgspec.ValidationError as error:
        raise from_validation(str(error), where) from None
    return listing


def blocks_in(content: msgspec.Raw, where: str) -> str | list[MessageBlock]:
    """Return the content blocks of a tool's result."""
    if bytes(content) in (b"", b"null"):
        return ""
    try:
        blocks: str | list[MessageBlock] = _blocks(content)
    except msgspec.ValidationError as error:
        raise from_validation(str(error), where) from None
    return blocks


def _check_messages(messages: Sequence[MessagesMessage], *, is_continued: bool) -> None:
    if not messages and not is_continued:
        raise wrong("messages", "at least one message is required")
    last = len(messages) - 1
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        if not message.content and not (message.role == "assistant" and index == last):
            raise wrong(
                where, "all messages must have non-empty content except for the optional final assistant message"
            )
        if isinstance(message.content, str):
            continue
        for place, block in enumerate(message.content):
            at = f"{where}.content.{place}"
            _check_fields(block, at)
            if block.type == "text" and not block.text:
                raise wrong(at, "text content blocks must be non-empty")
            if message.role == "system" and block.type != "text":
                raise wrong(f"{at}.type", "system messages hold text alone")
            if block.type in (OF_ASSISTANTS if message.role == "user" else OF_USERS):
                raise wrong(at, f"`{block.type}` blocks cannot be in `{message.role}` messages")


def _check_fields(block: MessageBlock, where: str) -> None:
    for name in NEEDS.get(block.type, ()):
        if not (value := getattr(block, name)) and (value is None or name == "source"):
            raise wrong(f"{where}.{block.type}.{name}", "Field required")
    if block.type in ("tool_use", "mcp_tool_use") and not (block.id and block.name):
        raise wrong(f"{where}.{block.type}.{'name' if block.id else 'id'}", "must not be empty")


def _check_tools(tools: Sequence[MessagesTool]) -> None:
    names: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"tools.{index}"
        if not tool.is_clients:
            continue
        if tool.name is None:
            raise wrong(f"{where}.custom.name", "Field required")
        if _TOOL_NAME.fullmatch(tool.name) is None:
            raise wrong(f"{where}.custom.name", f"String should match pattern '^{_TOOL_NAME.pattern}$'")
        if tool.input_schema is None:
            raise wrong(f"{where}.custom.input_schema", "Field required")
        if bytes(tool.input_schema.get("type", b'"object"')) != b'"object"':
            raise wrong(f"{where}.custom.input_schema.type", "Input should be 'object'")
        if tool.name in names:
            raise wrong("tools", "Tool names must be unique.")
        names.add(tool.name)


def from_validation(text: str, inside: str = "") -> ChatError:
    """Convert a msgspec error such as ``Expected `str`, got `int` - at `$.messages[0].role` ``."""
    what, _, where = text.partition(" - at `$")
    path = _INDEX.sub(r".\1", where.rstrip("`")).lstrip(".")
    param = ".".join(part for part in (inside, path) if part)
    start = "Object missing required field `"
    if what.startswith(start):
        missing = what[len(start) :].split("`", 1)[0]
        return wrong(f"{param}.{missing}" if param else missing, "Field required")
    if not param:
        return ChatError(400, f"The body of the request must be a JSON object. {what}.", code="invalid_type")
    return wrong(param, what[:1].lower() + what[1:])


def wrong(param: str, message: str, **options: Any) -> ChatError:
    return ChatError(400, f"{param}: {message}", param=param, **options)
