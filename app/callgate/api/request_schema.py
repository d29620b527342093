"""The schema of a Chat Completions request: the fields that are read, with the types that all providers have in common.

Most requests are plain: their messages have only common fields, and no text that JSON parsers could read differently. Plain
requests are decoded field by field, once each. All others are checked and decoded as a whole, with precise errors.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final, Literal, get_type_hints

import msgspec

from callgate.api.operator_ids import KEPT_BY_PROVIDERS, WITH_ID, may_have_ids, place_of_id
from callgate.api.strict_json import Fields, check_text, invalid_json, is_plain
from callgate.calls.legal_names import is_legal
from callgate.conversation.errors import ChatError

TOOLS_BYTES: Final = 4 * 1024 * 1024
"""The size of the cache of valid tools."""
ONE_TOOLS_BYTES: Final = TOOLS_BYTES // 8

NEVER_PLAIN: Final = frozenset({"functions", "function_call", "input"}) | KEPT_BY_PROVIDERS | WITH_ID
"""Fields of other APIs, which have to be translated first, and fields that may name objects of the operator's account."""

MCP: Final = "mcp"
CALLED_BY_PROVIDERS: Final = frozenset({"url", "mcp_toolset"})
"""Types of tools in which some providers, or litellm in front of them, take a server's address."""
OF_SEVERAL: Final = "namespace"
"""The type of a tool that holds others."""

Role = Literal["developer", "system", "user", "assistant", "tool", "function"]


class _Part(msgspec.Struct, gc=False):
    type: str


class _CalledFunction(msgspec.Struct, gc=False):
    name: str
    arguments: str


class _Call(msgspec.Struct, gc=False):
    id: str
    function: _CalledFunction | None = None


class ChatMessage(msgspec.Struct, gc=False):
    role: Role
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


class _StreamOptions(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class _Function(msgspec.Struct, gc=False):
    name: str
    parameters: msgspec.Raw = msgspec.Raw()


class ChatTool(msgspec.Struct, gc=False):
    type: str
    function: _Function | None = None
    custom: _Function | None = None
    tools: list["ChatTool"] | None = None
    """Those in it, where its type holds several."""
    server_url: Any = None
    connector_id: Any = None
    tunnel_id: Any = None

    @property
    def has_address(self) -> bool:
        """Whether it names a server, under whatever type a provider may know for that."""
        return not (self.server_url is None and self.connector_id is None and self.tunnel_id is None)

    @property
    def name(self) -> str | None:
        named = self.function or self.custom
        return None if named is None else named.name


class _Allowed(msgspec.Struct, gc=False):
    mode: Literal["auto", "required"] = "auto"
    tools: list[ChatTool] = msgspec.field(default_factory=list)


class ChatToolChoice(msgspec.Struct, gc=False):
    """A tool choice that is an object."""

    type: Literal["function", "custom", "allowed_tools"]
    function: _Function | None = None
    custom: _Function | None = None
    allowed_tools: _Allowed | None = None


class ChatOutline(msgspec.Struct):
    """The fields of a request that are checked, with their common types. Unknown fields are ignored."""

    model: str
    messages: list[ChatMessage]
    tools: list[ChatTool] | None = None
    tool_choice: str | ChatToolChoice | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    parallel_tool_calls: bool | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    seed: int | None = None
    user: str | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None


class _ImageUrl(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    url: str
    detail: str | None = None


class _PlainPart(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    type: str
    text: str | None = None
    image_url: _ImageUrl | None = None


class _PlainFunction(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    name: str
    arguments: str


class _PlainCall(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    id: str
    type: str | None = None
    function: _PlainFunction | None = None
    index: int | None = None


class _PlainMessage(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A message with only these fields. Decoding all of its texts finds invalid strings."""

    role: Role
    content: str | list[_PlainPart] | None = None
    tool_calls: list[_PlainCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


def outline_of(fields: Fields, max_depth: int) -> ChatOutline | None:
    """Return the outline of a plain request, or None for any other, valid or not."""
    outline = ChatOutline("", [])
    try:
        for name, value in fields.items():
            if name == "messages":
                outline.messages = _plain_messages(value)  # type: ignore[assignment]  # all that is asked of a message
            elif name == "tools":
                outline.tools = _seen_tools.read(value, max_depth - 1)
            elif name in NEVER_PLAIN:
                return None
            else:
                text = bytes(value)
                if not is_plain(text, max_depth - 1):
                    return None
                read = _READERS.get(name)
                if read is not None:
                    setattr(outline, name, read(text))
                elif name != "metadata" and may_have_ids(text):
                    return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _NotRight):
        return None
    if not outline.messages or not outline.model:
        return None
    _check_messages(outline.messages)
    if outline.tool_choice is not None:
        _check_choice(outline.tool_choice)
    return outline


def outline_of_any(body: bytes) -> ChatOutline:
    """Decode the outline of any request, whose text has been checked. Raises `ChatError` that names what is wrong."""
    try:
        outline = _whole.decode(body)
    except msgspec.ValidationError as error:
        raise from_validation(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_json(str(error)) from None
    if not outline.model:
        raise wrong("model", "you must provide a model parameter")
    if not outline.messages:
        raise wrong(
            "messages", "Invalid 'messages': empty array. Expected an array with minimum length 1.", "empty_array"
        )
    _check_messages(outline.messages)
    _check_tools(outline.tools or ())
    _check_choice(outline.tool_choice)
    return outline


class _NotRight(Exception):
    """Raised where tools are or may be invalid."""


class _SeenTools:
    """A cache of valid tools by their bytes: clients send the same tools, perhaps hundreds, with every request of a
    conversation."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[int, bytes, int], tuple[bytes, list[ChatTool] | None]] = OrderedDict()
        self._size = 0
        self._lock = Lock()
        """Needed because large bodies are read in threads."""

    def read(self, raw: msgspec.Raw, max_depth: int) -> list[ChatTool] | None:
        text = bytes(raw)
        # Looked up by length and ending, and then compared: hashing all bytes takes ten times as long.
        key = len(text), text[-64:], max_depth
        with self._lock:
            seen = self._seen.get(key)
            if seen is not None and seen[0] == text:
                self._seen.move_to_end(key)
                return seen[1]
        tools = _right_tools(text, max_depth)
        if len(text) <= ONE_TOOLS_BYTES:
            with self._lock:
                self._size += len(text) - len(self._seen.pop(key, (b"",))[0])
                self._seen[key] = text, tools
                while self._size > TOOLS_BYTES:
                    _, (oldest, _) = self._seen.popitem(last=False)
                    self._size -= len(oldest)
        return tools


def _right_tools(text: bytes, max_depth: int) -> list[ChatTool] | None:
    try:
        check_text(text, max_depth)
        tools: list[ChatTool] | None = _tools.decode(text)
        _check_tools(tools or ())
    except ChatError:
        raise _NotRight from None
    if may_have_ids(text) and place_of_id({"tools": msgspec.Raw(text)}):
        raise _NotRight
    if not all(map(_is_plain_tool, tools or ())):
        raise _NotRight
    return tools


def _is_plain_tool(tool: ChatTool) -> bool:
    """False for tools that name servers, and for names that not all providers accept."""
    if tool.type == MCP or tool.type in CALLED_BY_PROVIDERS or tool.type == OF_SEVERAL:
        return False
    return tool.name is None or is_legal(tool.name)


def _check_messages(messages: Sequence[ChatMessage | _PlainMessage]) -> None:
    for index, message in enumerate(messages):
        role = message.role
        if role == "tool" and not message.tool_call_id:
            where = f"messages[{index}].tool_call_id"
            raise wrong(where, f"Missing required parameter: '{where}'.", "missing_required_parameter")
        if message.content is None and role in ("system", "developer", "user"):
            where = f"messages[{index}].content"
            raise wrong(where, f"Invalid value for '{where}': expected a string or parts, got null.", "invalid_type")


def _check_tools(tools: Sequence[ChatTool]) -> None:
    for index, tool in enumerate(tools):
        _check_calls_nobody(tool, f"tools[{index}]", of_ours=True)
        if tool.type == "function" and (tool.function is None or not tool.function.name):
            where = f"tools[{index}].function"
            raise wrong(where, f"Missing required parameter: '{where}.name'.", "missing_required_parameter")
        if tool.type == "custom" and (tool.custom is None or not tool.custom.name):
            where = f"tools[{index}].custom"
            raise wrong(where, f"Missing required parameter: '{where}.name'.", "missing_required_parameter")


def _check_calls_nobody(tool: ChatTool, where: str, *, of_ours: bool = False) -> None:
    """Refuse a tool in which a provider would take the address of a server. `of_ours`: an entry about a server of ours may be
    there."""
    is_entry = tool.type == MCP and of_ours
    if tool.type in CALLED_BY_PROVIDERS or (not is_entry and (tool.type == MCP or tool.has_address)):
        message = f"No server of a request's choice is called. '{where}' is refused."
        raise ChatError(400, message, param=where, code="unsupported_value")
    for index, inner in enumerate(tool.tools or ()):
        _check_calls_nobody(inner, f"{where}.tools[{index}]")


def _check_choice(choice: str | ChatToolChoice | None) -> None:
    if isinstance(choice, ChatToolChoice) and getattr(choice, choice.type) is None:
        where = f"tool_choice.{choice.type}"
        raise wrong(where, f"Missing required parameter: '{where}'.", "missing_required_parameter")
    if isinstance(choice, str) and choice not in ("none", "auto", "required"):
        raise wrong(
            "tool_choice",
            "Invalid value for 'tool_choice': expected 'none', 'auto', 'required' or an object.",
            "invalid_value",
        )


def from_validation(text: str) -> ChatError:
    """Convert a msgspec error such as ``Expected `str`, got `int` - at `$.messages[0].role` ``."""
    what, _, where = text.partition(" - at `$")
    param = where.rstrip("`").lstrip(".")
    if (missing := what.removeprefix("Object missing required field `")) != what:
        missing = missing.partition("`")[0]
        name = f"{param}.{missing}" if param else missing
        return wrong(name, f"Missing required parameter: '{name}'.", "missing_required_parameter")
    if not param:
        return ChatError(400, f"The body of the request must be a JSON object. {what}.", code="invalid_type")
    return wrong(param, f"Invalid type or value for '{param}': {what[:1].lower()}{what[1:]}.", "invalid_type")


def wrong(param: str, message: str, code: str = "invalid_value") -> ChatError:
    return ChatError(400, message, param=param, code=code)


_whole = msgspec.json.Decoder(ChatOutline)
_plain_messages = msgspec.json.Decoder(list[_PlainMessage]).decode
_tools = msgspec.json.Decoder(list[ChatTool] | None)
_seen_tools = _SeenTools()

_READERS: dict[str, Callable[[bytes], Any]] = {
    name: msgspec.json.Decoder(kind).decode for name, kind in get_type_hints(ChatOutline).items()
} | {"response_format": msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode}
"""The decoders for the fields of a plain request. A `response_format` only has to be an object."""
