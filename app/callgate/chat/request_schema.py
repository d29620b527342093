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
from callgate.api.strict_json import (
    Fields,
    check_text,
    has_few_brackets,
    invalid_json,
    split_before_fast,
    split_fast,
)
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

FUNCTIONS: Final = frozenset({"function", "custom"})
"""Types of tools that a client runs itself."""
ENDING: Final = 64
"""Bytes at the end of tools by which they are looked up."""

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


class PlainOutline(ChatOutline):
    """The outline of a plain request."""

    has_functions_only: bool = True
    """Its tools are functions of the client's, if it has any: found out once for tools that come again."""


def outline_fast(fields: Fields, max_depth: int) -> PlainOutline | None:
    """Read the outline of a plain request. Equals `outline_of_any` for every request whose text is checked and names no object of
    a provider's account, or returns None."""
    outline = PlainOutline("", [])
    try:
        for name, value in fields.items():
            if name == "messages":
                outline.messages = _plain_messages(value)  # type: ignore[assignment]  # all that is asked of a message
            elif name == "tools":
                tools = _seen_tools.read(value, max_depth - 1)
                outline.tools = tools.listed
                outline.has_functions_only = tools.are_functions
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


class _RightTools(msgspec.Struct, frozen=True):
    """Valid tools."""

    text: msgspec.Raw
    listed: list[ChatTool] | None
    are_functions: bool
    """Each of them is a function of the client's."""


class _SeenTools:
    """A cache of valid tools by their bytes: clients send the same tools, perhaps hundreds, with every request of a
    conversation."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[int, bytes, int], _RightTools] = OrderedDict()
        self._by_ending: dict[bytes, msgspec.Raw] = {}
        """The newest text with each ending."""
        self._size = 0
        self._lock = Lock()
        """Needed because large bodies are read in threads."""

    def read(self, raw: msgspec.Raw, max_depth: int) -> _RightTools:
        # Looked up by length and ending, and then compared: hashing all bytes takes ten times as long.
        ending = bytes(memoryview(raw)[-ENDING:])
        key = len(raw), ending, max_depth
        with self._lock:
            seen = self._seen.get(key)
            if seen is not None and (seen.text is raw or seen.text == raw):
                self._seen.move_to_end(key)
                return seen
        tools = _right_tools(raw.copy(), max_depth)  # without the body that it is a part of
        if len(raw) <= ONE_TOOLS_BYTES:
            with self._lock:
                replaced = self._seen.pop(key, None)
                if replaced is not None:
                    self._size -= len(replaced.text)
                self._size += len(raw)
                self._seen[key] = tools
                self._by_ending[ending] = tools.text
                while self._size > TOOLS_BYTES:
                    (_, ending, _), oldest = self._seen.popitem(last=False)
                    self._size -= len(oldest.text)
                    if self._by_ending.get(ending) is oldest.text:
                        del self._by_ending[ending]
        return tools

    def before_the_end_of(self, body: bytes) -> msgspec.Raw | None:
        """Return the tools that a body may have as its last value, by their ending."""
        with self._lock:
            return self._by_ending.get(body[-ENDING - 1 : -1])


def split_large_fast(body: Opened, max_depth: int) -> tuple[Fields, PlainOutline] | None:
    """Split a large body whose messages, or tools that were read before, are most of it, and read its outline. Equals `split` and
    `outline_fast`, or returns None."""
    tools = _seen_tools.before_the_end_of(body)
    fields = split_fast(body, tools)
    if fields is not None and (outline := outline_fast(fields, max_depth)) is not None:
        return fields, outline
    if tools is None or (fields := split_before_fast(body, "tools", tools)) is None:
        return None
    outline = outline_fast(fields, max_depth)
    if outline is None:
        return None
    return fields, outline


def _right_tools(raw: msgspec.Raw, max_depth: int) -> _RightTools:
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
    return _RightTools(raw, tools, are_functions(tools or ()))


def are_functions(tools: Sequence[ChatTool]) -> bool:
    """True if all of these tools are functions of the client's."""
    return FUNCTIONS.issuperset(tool.type for tool in tools)


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
