"""Reads the body of a request into a `ChatRequest`. Everything we do not read stays the bytes it came in.

Messages and the client's tools are checked for their outline and never turned into objects here; a hundred kilobytes
of history must cost a scan and a copy.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, get_args

import msgspec
from starlette.types import Receive

from callgate.api.large_bodies import LARGE
from callgate.api.legacy import in_todays_words, is_legacy
from callgate.api.operator_ids import may_have_ids
from callgate.api.progress import Dialect
from callgate.api.request_schema import (
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
from callgate.conversation.approved_calls import ClientApprovals
from callgate.conversation.errors import ChatError
from callgate.conversation.ports import Message, ModelRequest, Original, Passthrough
from callgate.conversation.turn_recovery import FIELD, Hint, take_hints
from callgate.ledger.runs import StoredRun

OURS = frozenset({"model", "messages", "tools", "tool_choice", "stream", "stream_options", "metadata", "n"})
"""Fields that are carried by name; all others travel on as they are."""

MAX_DIGITS = 15
"""Of a length; nobody's body has more."""
Hold: TypeAlias = Callable[[int, int], None]
HINT_MARK = f'"{FIELD}"'.encode()

DIALECTS: Mapping[str, Dialect] = {dialect: dialect for dialect in get_args(Dialect)}


class _Metadata(msgspec.Struct, gc=False):
    tools: str | None = None
    tool_events: str | None = None


_items = msgspec.json.Decoder(list[msgspec.Raw])
_metadata = msgspec.json.Decoder(_Metadata)
_objects = msgspec.json.Decoder(dict[str, Any])
_text = msgspec.json.Decoder(str)
NO_METADATA = _Metadata()
NO_HINTS: Mapping[int, Hint] = {}

_encode = msgspec.json.Encoder().encode


class ChatRequest(msgspec.Struct):
    """One question of a client's. What a request that is passed on does not need is taken out when it is asked for."""

    outline: ChatOutline
    fields: Mapping[str, msgspec.Raw]
    """The body as it came, field by field, for passing it on untouched; as a chat, if it came as something else."""
    words: Mapping[str, msgspec.Raw]
    """The same in today's words."""
    model: str
    stream: bool
    include_usage: bool
    n: int
    metadata: dict[str, Any]
    """What of the client's is not meant for us."""
    tool_filter: str | None
    """Which of our tools the client wants: names, or `none`; all that are on offer when absent."""
    tool_events: Dialect | None
    """How the client wants to be shown that tools run; None where it does not say."""
    tool_choice: str | dict[str, Any] | None = None
    allowed: frozenset[str] | None = None
    """The only tools, of either side, that `tool_choice` lets the model use; all when absent."""
    mode: str | None = None
    """The choice that is left once the tools are cut down to those."""
    legacy: bool = False
    """It came with `functions`, and is answered with `function_call`."""
    hints: Mapping[int, Hint] = {}
    """What calls in the history say of calls of ours that ran beside them."""
    may_pass: bool = True
    """Whoever writes the answer takes it in its provider's own bytes as well."""
    in_background: bool = False
    """It goes on without its client, which is answered by whoever asks for it here."""
    background: Callable[[StoredRun], bytes] | None = None
    """Set where it is carried on when nobody waits for it, and its answer fetched later: what is answered meanwhile."""
    begun_before: Callable[[StoredRun], None] | None = None
    """Told, where an earlier request with its key has begun its run: then nothing is answered."""
    every_event: bool = False
    """Whoever writes the answer is given the events of turns too."""
    keeps_hidden: bool = False
    """What the client is not shown is kept for it even where no tool of ours is on offer."""
    max_calls: int | None = None
    """How many calls of our tools it allows, all turns together."""
    approvals: ClientApprovals | None = None
    """Which calls of our tools the client decides about, if it wants to."""
    kept_history: Sequence[Message] | None = None
    """What the chat begins with, where some of it was kept here. Messages that are dicts are whole: nothing is put back
    into them."""
    shown: frozenset[str] = frozenset()
    """The calls of ours whose rounds the client was shown and gives back, by id."""
    original: Original | None = None
    """The question as it came, where it came by an API that a model may have itself."""
    conversation: str = ""
    """The id of the conversation that it goes on with, where the client names one."""
    may_have_ids: bool = False
    """It may name what is kept in the operator's account at a provider."""
    _messages: Sequence[msgspec.Raw] | None = None

    @property
    def history(self) -> Sequence[Message]:
        return self.messages if self.kept_history is None else self.kept_history

    @property
    def messages(self) -> Sequence[msgspec.Raw]:
        if self._messages is None:
            self._messages = _items.decode(self.words["messages"])
        return self._messages

    @property
    def size(self) -> int:
        """The bytes of its messages and tools."""
        return sum(memoryview(self.words[name]).nbytes for name in ("messages", "tools") if name in self.words)

    @property
    def tools(self) -> Sequence[msgspec.Raw]:
        return _tools(self.words["tools"], self.outline.tools) if self.outline.tools else ()

    def read(self) -> ModelRequest:
        """The question as a model gets it that reads it."""
        return ModelRequest(self.history, self.tools, self.tool_choice, self.params, self.stream, self.original)

    @property
    def end_user(self) -> str:
        """Return the end user that the client names: `user`, and `safety_identifier` in its place or beside."""
        said = [bytes(self.words[name]) for name in ("user", "safety_identifier") if name in self.words]
        return b"\0".join(said).decode()

    @property
    def parallel(self) -> bool:
        return self.outline.parallel_tool_calls is not False

    @property
    def params(self) -> Mapping[str, Any]:
        """Every field that is not carried by name."""
        params: dict[str, Any] = {name: value for name, value in self.words.items() if name not in OURS}
        if self.metadata:
            params["metadata"] = self.metadata
        return params


def passed_through(request: ChatRequest) -> Passthrough:
    """The question in the client's own bytes; of the metadata, what was meant for us stays here."""
    fields = request.fields
    if "metadata" in fields and request.original is None:
        fields = {name: value for name, value in fields.items() if name != "metadata"}
        if request.metadata:
            fields["metadata"] = msgspec.Raw(_encode(request.metadata))
    has_tools = bool(request.outline.tools)
    return Passthrough(
        fields, request.stream, request.include_usage, request.n, has_tools, request.read, request.original
    )


def read_chat_request(body: bytes, headers: Mapping[str, str], max_messages: int, max_depth: int = 100) -> ChatRequest:
    """The request, or a `ChatError` that names the field that is wrong."""
    try:
        return _read(body, headers, max_messages, max_depth)
    except msgspec.DecodeError as error:  # in what is passed on unread otherwise: a number that no double can hold
        raise invalid_json(str(error)) from None


def _read(body: bytes, headers: Mapping[str, str], max_messages: int, max_depth: int) -> ChatRequest:
    hints: Mapping[int, Hint] = NO_HINTS
    legacy = has_ids = False
    words, outline = split_around_messages(body), None
    if words is not None:
        outline = outline_of(words, max_depth)
    if words is None or outline is None:
        words = split(body, max_depth)
        outline = outline_of(words, max_depth)
    passed = words
    if outline is None:
        check_text(body, max_depth)
        passed, words, hints = _in_words_of_chat(body, words)
        legacy = words is not passed
        outline = outline_of_any(_encode(words))
        has_ids = may_have_ids(body)  # in a plain one they were looked for, once for the same tools
    if len(outline.messages) > max_messages:
        raise wrong(
            "messages", f"Invalid 'messages': at most {max_messages} messages are accepted.", "array_above_max_length"
        )
    if outline.n is not None and not 1 <= outline.n <= 128:
        raise wrong("n", "Invalid 'n': expected a value between 1 and 128.", "invalid_value")
    metadata, ours = _split_metadata(words) if "metadata" in words else ({}, NO_METADATA)
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
        words=words,
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
        may_have_ids=has_ids,
    )
    if outline.tool_choice is not None:
        request.tool_choice = msgspec.json.decode(words["tool_choice"])
        if (
            isinstance(outline.tool_choice, ChatToolChoice)
            and (allowed := outline.tool_choice.allowed_tools) is not None
        ):
            named = (tool.function or tool.custom for tool in allowed.tools)
            request.allowed, request.mode = frozenset(tool.name for tool in named if tool is not None), allowed.mode
    return request


def _in_words_of_chat(body: bytes, fields: Fields) -> tuple[Fields, Fields, Mapping[int, Hint]]:
    """The fields as they are passed on, the same in today's words, and the hints that were in them."""
    hints: Mapping[int, Hint] = NO_HINTS
    if HINT_MARK in body and "messages" in fields:
        rest, hints = _without_hints(fields["messages"])
        fields = {**fields, "messages": rest}
    if is_misaddressed(fields):
        fields = as_chat(fields)
    return fields, in_todays_words(fields) if is_legacy(fields) else fields, hints


def check_body(headers: Mapping[str, str], limit: int) -> None:
    """Refuse a body that says by its headers that it will not be taken. Bodies are taken as they are: what unpacks to a
    thousand times its size would pass every limit."""
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
    """The whole body, refused as soon as it is larger than the limit. `hold` is called with the size of what is here of a large
    one, and with the limit; it raises where there is no room. `counted`: it is JSON, and may have no more values than can be
    read while others wait."""
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
        return raw, {}  # no list: the check that follows says so
    rest, hints = take_hints(messages)
    return msgspec.Raw(_encode(rest)), hints


def _tools(raw: msgspec.Raw, outlines: Sequence[ChatTool]) -> tuple[msgspec.Raw, ...]:
    """The client's tools as they came; parameters that were given as a text of JSON are taken out of it."""
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
    """The client's metadata without the two keys that are meant for us, and those two."""
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
