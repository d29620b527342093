"""The schema of a Chat Completions request: the fields that are read, with the types that all providers have in common.

Most requests are plain: their messages have only common fields, and no text that JSON parsers could read differently. Plain
requests are decoded field by field, once each. All others are checked and decoded as a whole, with precise errors.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Annotated, Any, Final, get_type_hints

import msgspec

from callgate.api.chat_outline import ChatMessage, ChatOutline, ChatTool, ChatToolChoice, Role
from callgate.api.chat_request import OURS_IN_CHATS
from callgate.api.field_errors import from_validation, wrong
from callgate.api.strict_json import Fields, check_text, has_few_brackets, invalid_json
from callgate.calls.legal_names import is_legal
from callgate.conversation.errors import ChatError
from callgate.policy.judge import check_calls_nobody
from callgate.policy.nameable import MCP
from callgate.policy.operator_ids import ANYBODYS, KEPT_BY_PROVIDERS, WITH_ID, may_have_ids, place_of_id
from callgate.untrusted.doors import Opened
from callgate.untrusted.readers import Text, json_reader

TOOLS_BYTES: Final = 4 * 1024 * 1024
"""The size of the cache of valid tools."""
ONE_TOOLS_BYTES: Final = TOOLS_BYTES // 8

NEVER_PLAIN: Final = frozenset({"functions", "function_call", "input"}) | KEPT_BY_PROVIDERS | WITH_ID
"""Fields of other APIs, which have to be translated first, and fields that may name objects of the operator's account."""

OF_SEVERAL: Final = "namespace"
"""The type of a tool that holds others."""


class _ImageUrl(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    url: Annotated[str, msgspec.Meta(pattern=ANYBODYS)]
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


def outline_fast(fields: Fields, max_depth: int) -> ChatOutline | None:
    """Read the outline of a plain request. Equals `outline_of_any` for every request whose text is checked and names no object of
    a provider's account, or returns None."""
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
                if not _is_checked_fast(text, max_depth - 1):
                    return None
                read = _READERS.get(name)
                if read is not None:
                    setattr(outline, name, read(value))
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


def _is_checked_fast(text: bytes, max_depth: int) -> bool:
    """Return True only for a text that passes `check_text`, and False for most others, which may pass too."""
    if not text.isascii() or b"\\u" in text:
        return False
    return len(text) <= 2 * max_depth or has_few_brackets(text, max_depth)


def outline_of_any(body: Opened) -> ChatOutline:
    """Decode the outline of any request, whose text has been checked. Raises `ChatError` that names what is wrong."""
    try:
        outline = _whole(body)
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
        tools = _right_tools(raw, max_depth)
        if len(text) <= ONE_TOOLS_BYTES:
            with self._lock:
                self._size += len(text) - len(self._seen.pop(key, (b"",))[0])
                self._seen[key] = text, tools
                while self._size > TOOLS_BYTES:
                    _, (oldest, _) = self._seen.popitem(last=False)
                    self._size -= len(oldest)
        return tools


def _right_tools(raw: msgspec.Raw, max_depth: int) -> list[ChatTool] | None:
    try:
        check_text(raw, max_depth)
        tools: list[ChatTool] | None = _tools(raw)
        _check_tools(tools or ())
    except ChatError:
        raise _NotRight from None
    if may_have_ids(bytes(raw)) and place_of_id({"tools": raw}):
        raise _NotRight
    if not all(map(_is_plain_tool, tools or ())):
        raise _NotRight
    return tools


def _is_plain_tool(tool: ChatTool) -> bool:
    """False for tools that name servers, and for names that not all providers accept."""
    if tool.type in (MCP, OF_SEVERAL):
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
        check_calls_nobody(tool, f"tools[{index}]", OURS_IN_CHATS)
        if tool.type == "function" and (tool.function is None or not tool.function.name):
            where = f"tools[{index}].function"
            raise wrong(where, f"Missing required parameter: '{where}.name'.", "missing_required_parameter")
        if tool.type == "custom" and (tool.custom is None or not tool.custom.name):
            where = f"tools[{index}].custom"
            raise wrong(where, f"Missing required parameter: '{where}.name'.", "missing_required_parameter")


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


_whole = json_reader(ChatOutline)
_plain_messages = json_reader(list[_PlainMessage])
_tools = json_reader(list[ChatTool] | None)
_seen_tools = _SeenTools()

_READERS: dict[str, Callable[[Text], Any]] = {
    name: json_reader(kind) for name, kind in get_type_hints(ChatOutline).items()
} | {"response_format": json_reader(dict[str, msgspec.Raw] | None)}
"""The decoders for the fields of a plain request. A `response_format` only has to be an object."""
