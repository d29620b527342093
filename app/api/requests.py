"""The body of a request into a `ChatRequest`: what is asked, with everything we do not read kept as the bytes it came in.

Messages and the client's tools are checked for their outline and never turned into objects here; a hundred kilobytes
of history must cost a scan and a copy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import msgspec
from starlette.types import Receive

from app.api.legacy import in_todays_words, is_legacy
from app.api.misaddressed import as_chat, is_misaddressed
from app.api.progress import Dialect
from app.api.strict_json import Fields, invalid_json, read_fields
from app.chat.errors import ChatError
from app.chat.lost import FIELD, Hint, take_hints

OURS = frozenset({"model", "messages", "tools", "tool_choice", "stream", "stream_options", "metadata", "n"})
"""Fields that are carried by name; all others travel on as they are."""

HINT_MARK = f'"{FIELD}"'.encode()

DIALECTS: Mapping[str, Dialect] = {dialect: dialect for dialect in get_args(Dialect)}


class _Part(msgspec.Struct, gc=False):
    type: str


class _CalledFunction(msgspec.Struct, gc=False):
    name: str
    arguments: str


class _Call(msgspec.Struct, gc=False):
    id: str
    function: _CalledFunction | None = None


class _Message(msgspec.Struct, gc=False):
    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


class _PlainMessage(msgspec.Struct, gc=False):
    """A message whose content stays text. Reading it is what a long history costs most."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: msgspec.Raw = msgspec.Raw(b"null")
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


class _StreamOptions(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class _Function(msgspec.Struct, gc=False):
    name: str
    parameters: msgspec.Raw = msgspec.Raw()


class _Tool(msgspec.Struct, gc=False):
    type: str
    function: _Function | None = None
    custom: _Function | None = None


class _Allowed(msgspec.Struct, gc=False):
    mode: Literal["auto", "required"] = "auto"
    tools: list[_Tool] = msgspec.field(default_factory=list)


class _Choice(msgspec.Struct, gc=False):
    """A choice that is more than a word."""

    type: Literal["function", "custom", "allowed_tools"]
    function: _Function | None = None
    custom: _Function | None = None
    allowed_tools: _Allowed | None = None


class _Metadata(msgspec.Struct, gc=False):
    tools: str | None = None
    tool_events: str | None = None


class _Outline(msgspec.Struct):
    """What of a request is looked at, and the types of what providers agree on. Unknown fields are passed over."""

    model: str
    messages: list[_Message]
    tools: list[_Tool] | None = None
    tool_choice: str | _Choice | None = None
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


class _PlainOutline(_Outline):
    """The same, for bodies whose messages all say what they say in one text."""

    messages: list[_PlainMessage]  # type: ignore[assignment]


_outline = msgspec.json.Decoder(_Outline)
_plain_outline = msgspec.json.Decoder(_PlainOutline)
_items = msgspec.json.Decoder(list[msgspec.Raw])
_metadata = msgspec.json.Decoder(_Metadata)
_objects = msgspec.json.Decoder(dict[str, Any])
_text = msgspec.json.Decoder(str)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One question of a client's."""

    model: str
    messages: Sequence[msgspec.Raw]
    stream: bool
    include_usage: bool
    tools: Sequence[msgspec.Raw]
    tool_choice: str | dict[str, Any] | None
    parallel: bool
    n: int
    params: Mapping[str, Any]
    fields: Mapping[str, msgspec.Raw]
    """The body as it came, field by field, for passing it on untouched; as a chat, if it came as something else."""
    tool_filter: str | None
    """Which house tools the client wants: names, or `none`; all that are on offer when absent."""
    tool_events: Dialect
    allowed: frozenset[str] | None = None
    """The only tools, of either side, that `tool_choice` lets the model use; all when absent."""
    mode: str | None = None
    """The choice that is left once the tools are cut down to those."""
    legacy: bool = False
    """It came with `functions`, and is answered with `function_call`."""
    hints: Mapping[int, Hint] = field(default_factory=dict)
    """What calls in the history say of calls of ours that ran beside them."""


class Items(Sequence[msgspec.Raw]):
    """The items of an array, taken apart when somebody looks at them: a request that is passed on is never looked at."""

    __slots__ = ("_items", "_take_apart")

    def __init__(self, take_apart: Callable[[], Sequence[msgspec.Raw]]) -> None:
        """`take_apart` gives at least one item."""
        self._take_apart = take_apart
        self._items: Sequence[msgspec.Raw] | None = None

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[msgspec.Raw]:
        return iter(self._all())

    def __getitem__(self, place: Any) -> Any:
        return self._all()[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self._all()) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def _all(self) -> Sequence[msgspec.Raw]:
        if self._items is None:
            self._items = self._take_apart()
        return self._items


def read_chat_request(body: bytes, headers: Mapping[str, str], max_messages: int, max_depth: int = 100) -> ChatRequest:
    """The request, or a `ChatError` that names the field that is wrong."""
    try:
        return _read(body, headers, max_messages, max_depth)
    except msgspec.DecodeError as error:  # in what is passed on unread otherwise: a number that no double can hold
        raise invalid_json(str(error)) from None


def _read(body: bytes, headers: Mapping[str, str], max_messages: int, max_depth: int) -> ChatRequest:
    came = passed = fields = read_fields(body, max_depth)
    hints: Mapping[int, Hint] = {}
    if HINT_MARK in body and "messages" in fields:
        rest, hints = _without_hints(fields["messages"])
        passed = fields = {**fields, "messages": rest}
    if is_misaddressed(fields):
        passed = fields = as_chat(fields)
    legacy = is_legacy(fields)
    if legacy:
        fields = in_todays_words(fields)
    outline = _checked(body if fields is came else _encode(fields))
    if not outline.model:
        raise _wrong("model", "you must provide a model parameter")
    if not outline.messages:
        raise _wrong(
            "messages", "Invalid 'messages': empty array. Expected an array with minimum length 1.", "empty_array"
        )
    if len(outline.messages) > max_messages:
        raise _wrong(
            "messages", f"Invalid 'messages': at most {max_messages} messages are accepted.", "array_above_max_length"
        )
    for index, message in enumerate(outline.messages):
        _check_message(index, message)
    n = 1 if outline.n is None else outline.n
    if not 1 <= n <= 128:
        raise _wrong("n", "Invalid 'n': expected a value between 1 and 128.", "invalid_value")
    _check_tools(outline)
    metadata, ours = _split_metadata(fields)
    params: dict[str, Any] = {name: value for name, value in fields.items() if name not in OURS}
    if metadata:
        params["metadata"] = metadata
    wanted = headers.get("x-callgate-events") or ours.tool_events or "off"
    tool_events = DIALECTS.get(wanted)
    if tool_events is None:
        raise _wrong("metadata.tool_events", f"Unknown tool events {wanted[:40]!r}; use one of {', '.join(DIALECTS)}.")
    return ChatRequest(
        model=outline.model,
        messages=Items(partial(_items.decode, fields["messages"])),
        stream=bool(outline.stream),
        include_usage=bool(outline.stream_options and outline.stream_options.include_usage),
        tools=Items(partial(_tools, fields["tools"], outline.tools)) if outline.tools else (),
        tool_choice=_objects_or_text(fields["tool_choice"]) if outline.tool_choice is not None else None,
        parallel=outline.parallel_tool_calls is not False,
        n=n,
        params=params,
        fields=passed,
        tool_filter=headers.get("x-callgate-tools") or ours.tools,
        tool_events=tool_events,
        allowed=_allowed(outline.tool_choice),
        mode=_mode(outline.tool_choice),
        legacy=legacy,
        hints=hints,
    )


def check_encoding(headers: Mapping[str, str]) -> None:
    """Bodies are taken as they are: what unpacks to a thousand times its size would pass every limit."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ChatError(
            415,
            f"Request bodies in '{encoding[:40]}' are not taken; send the JSON as it is.",
            code="unsupported_encoding",
        )


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body, refused as soon as it is larger than the limit."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ChatError(400, "The request was not sent to its end.")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise ChatError(413, f"The request body is larger than {limit} bytes.", code="request_too_large")
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _checked(body: bytes) -> _Outline:
    try:
        plain = _plain_outline.decode(body)
        if all(map(_says_one_text, plain.messages)):
            return plain
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # the same mistake is found below, and named as it has always been
    try:
        return _outline.decode(body)
    except msgspec.ValidationError as error:
        raise _from_validation(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_json(str(error)) from None


def _says_one_text(message: _PlainMessage) -> bool:
    """Or says nothing where nothing has to be said."""
    first = memoryview(message.content)[0]
    return first == _QUOTE or (first == _NULL and message.role in ("assistant", "tool", "function"))


_QUOTE, _NULL = b'"n'


def _from_validation(text: str) -> ChatError:
    """msgspec says what is wrong and where: ``Expected `str`, got `int` - at `$.messages[0].role` ``."""
    what, _, where = text.partition(" - at `$")
    param = where.rstrip("`").lstrip(".")
    if missing := _quoted(what, "Object missing required field `"):
        name = f"{param}.{missing}" if param else missing
        return _wrong(name, f"Missing required parameter: '{name}'.", "missing_required_parameter")
    if not param:
        return ChatError(400, f"The body of the request must be a JSON object. {what}.", code="invalid_type")
    return _wrong(param, f"Invalid type or value for '{param}': {what[:1].lower()}{what[1:]}.", "invalid_type")


def _quoted(text: str, start: str) -> str:
    return text[len(start) :].split("`", 1)[0] if text.startswith(start) else ""


def _check_message(index: int, message: _Message | _PlainMessage) -> None:
    where = f"messages[{index}]"
    if message.role == "tool" and not message.tool_call_id:
        raise _wrong(
            f"{where}.tool_call_id",
            f"Missing required parameter: '{where}.tool_call_id'.",
            "missing_required_parameter",
        )
    if message.role in ("system", "developer", "user") and message.content is None:
        raise _wrong(
            f"{where}.content",
            f"Invalid value for '{where}.content': expected a string or parts, got null.",
            "invalid_type",
        )


def _check_tools(outline: _Outline) -> None:
    for index, tool in enumerate(outline.tools or ()):
        if tool.type == "function" and (tool.function is None or not tool.function.name):
            where = f"tools[{index}].function"
            raise _wrong(where, f"Missing required parameter: '{where}.name'.", "missing_required_parameter")
        if tool.type == "custom" and (tool.custom is None or not tool.custom.name):
            where = f"tools[{index}].custom"
            raise _wrong(where, f"Missing required parameter: '{where}.name'.", "missing_required_parameter")
    choice = outline.tool_choice
    if isinstance(choice, _Choice) and getattr(choice, choice.type) is None:
        where = f"tool_choice.{choice.type}"
        raise _wrong(where, f"Missing required parameter: '{where}'.", "missing_required_parameter")
    if isinstance(choice, str) and choice not in ("none", "auto", "required"):
        raise _wrong(
            "tool_choice",
            "Invalid value for 'tool_choice': expected 'none', 'auto', 'required' or an object.",
            "invalid_value",
        )


def _without_hints(raw: msgspec.Raw) -> tuple[msgspec.Raw, Mapping[int, Hint]]:
    try:
        messages = _items.decode(raw)
    except msgspec.ValidationError:
        return raw, {}  # no list: the check that follows says so
    rest, hints = take_hints(messages)
    return msgspec.Raw(_encode(rest)), hints


def _tools(raw: msgspec.Raw, outlines: list[_Tool]) -> tuple[msgspec.Raw, ...]:
    """The client's tools as they came; parameters that were given as a text of JSON are taken out of it."""
    tools = _items.decode(raw)
    for place, tool in enumerate(outlines):
        if tool.function is not None and bytes(tool.function.parameters)[:1] == b'"':
            tools[place] = _with_parameters(
                tools[place], tool.function.parameters, f"tools[{place}].function.parameters"
            )
    return tuple(tools)


def _with_parameters(tool: msgspec.Raw, text: msgspec.Raw, where: str) -> msgspec.Raw:
    told = _objects.decode(tool)
    try:
        told["function"]["parameters"] = _objects.decode(_text.decode(text))
    except msgspec.DecodeError:
        raise _wrong(where, f"Invalid value for '{where}': expected a JSON Schema.", "invalid_type") from None
    return msgspec.Raw(_encode(told))


def _objects_or_text(raw: msgspec.Raw) -> Any:
    return msgspec.json.decode(raw)


def _allowed(choice: str | _Choice | None) -> frozenset[str] | None:
    if not isinstance(choice, _Choice) or choice.allowed_tools is None:
        return None
    named = (tool.function or tool.custom for tool in choice.allowed_tools.tools)
    return frozenset(tool.name for tool in named if tool is not None)


def _mode(choice: str | _Choice | None) -> str | None:
    return choice.allowed_tools.mode if isinstance(choice, _Choice) and choice.allowed_tools is not None else None


def _split_metadata(fields: Fields) -> tuple[dict[str, Any], _Metadata]:
    """The client's metadata without the two keys that are meant for us, and those two."""
    raw = fields.get("metadata")
    if raw is None or bytes(raw) == b"null":
        return {}, _Metadata()
    try:
        ours = _metadata.decode(raw)
        rest = _objects.decode(raw)
    except msgspec.ValidationError as error:
        failure = _from_validation(str(error))
        param = f"metadata.{failure.param}" if failure.param else "metadata"
        raise _wrong(param, f"Invalid value for '{param}'.", "invalid_type") from None
    for key in ("tools", "tool_events"):
        rest.pop(key, None)
    return rest, ours


def _wrong(param: str, message: str, code: str = "invalid_value") -> ChatError:
    return ChatError(400, message, param=param, code=code)
