"""The lane for Claude where the client uses Anthropic's Messages API too: the request is sent on nearly unchanged.

The client's blocks are sent on byte for byte, with cache marks, documents, citations and signatures. Turns that were made
here are sent as the provider wrote them. Where none of our tools is offered, the answer's bytes are passed through.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from msgspec.structs import replace as replace_fields

from callgate.conversation import raw_json
from callgate.conversation.client_run_tools import is_client_run
from callgate.conversation.events import (
    CallWritten,
    ExtraField,
    Finished,
    ModelEvent,
    Passed,
    ProviderError,
    ProviderHead,
    ReasoningDelta,
    TextDelta,
    ThinkingBlock,
)
from callgate.conversation.finish import finished
from callgate.conversation.messages_api import BLOCKS, CONTEXT
from callgate.conversation.ports import Message, ModelRequest, Original, Passthrough
from callgate.conversation.usage import Usage
from callgate.http.event_stream import looks_like_keep_alive, payloads_in
from callgate.models import errors
from callgate.models.direct.chunks import reason_in
from callgate.models.direct.forbidden_calls import LeftOutBlocks
from callgate.models.direct.model import AnswerEvents, WholeBody, read_json
from callgate.models.json_values import nonempty_str, str_or_none
from callgate.models.resolve import LiteLLMSettings, body_settings
from callgate.models.translated import claude
from callgate.models.translated.deferred_tools import defer
from callgate.models.translated.translation import (
    MessageBody,
    ProviderRequest,
    Report,
    encode,
    field_of,
    mark_last_call,
)
from callgate.untrusted.readers import EMPTY_LIST, Text, json_reader

LANE: Final = "messages"
NOT_PASSED: Final = frozenset("model messages stream tools tool_choice mcp_servers thread".split())
"""Fields that this lane writes itself."""
OF_MESSAGES: Final = frozenset(
    "max_tokens temperature top_p top_k stop_sequences thinking output_config metadata service_tier".split()
)
"""Settings of an entry that have the same name in this API."""
COUNTED: Final = frozenset({"system", "tool_choice", "thinking", "output_config"})
"""Fields that count as input tokens, beside messages and tools."""
NOT_FORWARDED: Final = ("mcp-client-", "message-threads-", "files-api-")
"""Prefixes of beta features that are not forwarded, because they are implemented here or not at all."""
PLACEHOLDER: Final = {"name": "none", "description": "Not to be called.", "input_schema": {"type": "object"}}
"""A tool for turns without tools and with calls in the history, where the provider requires tools."""
_BETA = re.compile(r"[a-z0-9-]{1,64}")


async def translate(
    litellm: Any, settings: LiteLLMSettings, request: ModelRequest, original: Original
) -> ProviderRequest:
    """Make the request of a turn."""
    body = _fields(settings, original)
    if "response_format" not in request.params:
        # The response format is withheld in this turn.
        body.pop("output_format", None)
        if "output_config" in body:
            config = raw_json.read(body["output_config"])
            body["output_config"] = {name: value for name, value in config.items() if name != "format"}
    body["messages"] = _messages(request.messages, original)
    own_tools = {raw_json.read(tool).get("name"): tool for tool in _tools_of(original)}
    if request.tools:
        body["tools"] = [*_tools(request.tools, own_tools), *_hosted(original)]
        if (choice := _choice(request)) is not None:
            body["tool_choice"] = choice
        if request.deferred is not None:
            defer(body, request.deferred)
    elif any(b'"tool_use"' in encode(message) for message in body["messages"]):
        body["tools"] = list(own_tools.values()) or [PLACEHOLDER]
        body["tool_choice"] = {"type": "none"}
    return _worded(
        litellm,
        settings,
        original,
        body,
        stream=request.stream,
        as_events=MessageEventsReader,
        as_message=_ClaudeMessage,
        may_pause=True,
    )


async def passed(litellm: Any, settings: LiteLLMSettings, request: Passthrough, original: Original) -> ProviderRequest:
    """Make the client's own request, with the answer passed through."""
    body = _fields(settings, original)
    body |= {name: original.fields[name] for name in ("messages", "tools", "tool_choice") if name in original.fields}
    # An answer in another format than was requested is read, and converted.
    as_events: Any = MessageEventsReader
    as_message: Any = _ClaudeMessage
    if request.stream:
        if request.takes_calls:
            as_events = PassedMessageEvents
        else:
            as_events = _EventsWithoutCalls
    elif request.takes_calls:
        as_message = _PassedBody
    else:
        as_message = _BodyWithoutCalls
    return _worded(litellm, settings, original, body, stream=request.stream, as_events=as_events, as_message=as_message)


def _worded(
    litellm: Any,
    settings: LiteLLMSettings,
    original: Original,
    body: dict[str, Any],
    *,
    stream: bool | None = None,
    as_events: Any,
    as_message: Any,
    may_pause: bool = False,
) -> ProviderRequest:
    url, model, headers, secrets = claude.address(litellm, settings)
    body["model"] = model
    if stream is not None:
        body["stream"] = stream
    betas = [beta for beta in original.betas if _BETA.fullmatch(beta) and not beta.startswith(NOT_FORWARDED)]
    if betas:
        beta_header = next((name for name in headers if name.lower() == "anthropic-beta"), "anthropic-beta")
        headers[beta_header] = ",".join(dict.fromkeys([*filter(None, headers.get(beta_header, "").split(",")), *betas]))
    has_server_tools = may_pause and any(
        raw_json.read(tool).get("type") not in (None, "custom") for tool in body.get("tools") or ()
    )
    return ProviderRequest(
        url=url,
        headers=headers,
        body=encode(body),
        secrets=secrets,
        as_events=as_events,
        as_message=as_message,
        lane=LANE,
        continued=partial(claude.continued, body) if has_server_tools else None,
    )


def count_request(
    litellm: Any, settings: LiteLLMSettings, request: ModelRequest, original: Original
) -> ProviderRequest:
    """Return the request that counts the tokens of a turn."""
    body: dict[str, Any] = {name: value for name, value in original.fields.items() if name in COUNTED}
    body["messages"] = _messages(request.messages, original)
    own_tools = {raw_json.read(tool).get("name"): tool for tool in _tools_of(original)}
    if request.tools:
        body["tools"] = [*_tools(request.tools, own_tools), *_hosted(original)]
    whole_request = _worded(litellm, settings, original, body, as_events=MessageEventsReader, as_message=_ClaudeMessage)
    return replace(whole_request, url=whole_request.url + "/count_tokens")


# What is sent ----------------------------------------------------------------------------------------------------------


def _fields(settings: LiteLLMSettings, original: Original) -> dict[str, Any]:
    body: dict[str, Any] = {name: value for name, value in original.fields.items() if name not in NOT_PASSED}
    extra = settings.arguments.get("extra_body")
    own = {name: value for name, value in body_settings(settings.arguments).items() if name in OF_MESSAGES}
    for name, value in {**own, **(extra if isinstance(extra, dict) else {})}.items():
        body.setdefault(name, value)
    return body


def _messages(messages: Sequence[Message], original: Original) -> list[dict[str, Any]]:
    """Join consecutive messages of one role: a chat has one for each tool result."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role, blocks = original.blocks_of(message) or _of_chat(raw_json.read(message))
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": list(blocks)})
    return turns


def _of_chat(message: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Convert a message that was made here."""
    role = message.get("role")
    content = message.get("content")
    if role == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
        return "user", [{**result, "content": content} if content else result]
    if role == "assistant":
        return "assistant", list(_assistant(message))
    if isinstance(content, str):
        blocks = [{"type": "text", "text": content}]
    else:
        blocks = [_part(part) for part in content or ()]
    return "system" if role in ("system", "developer") else "user", blocks


def _assistant(message: Mapping[str, Any]) -> Iterator[Any]:
    calls = {call["id"]: call for call in message.get("tool_calls") or ()}
    blocks = message.get(BLOCKS) or ()
    if calls.keys() <= {block.get("id") for block in blocks if block.get("type") == "tool_use"} and blocks:
        # As the provider wrote it; broken calls have an empty input, and repeated ones are left out.
        for block in blocks:
            if block.get("type") != "tool_use":
                yield block
            elif (call := calls.pop(block.get("id"), None)) is not None:
                yield {**block, "input": _input(call, block.get("input"))}
        return
    yield from (block for block in message.get("thinking_blocks") or () if block.get("signature") or block.get("data"))
    if message.get("content"):
        yield {"type": "text", "text": message["content"]}
    for id, call in calls.items():
        yield {"type": "tool_use", "id": id, "name": call["function"]["name"], "input": _input(call, {})}


def _input(call: Mapping[str, Any], otherwise: Any) -> Any:
    try:
        value = read_json(call["function"]["arguments"].encode())
    except ValueError:
        return otherwise
    if isinstance(value, dict):
        return value
    return otherwise


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") == "image_url":
        url = part["image_url"]["url"]
        kind, comma, data = url.removeprefix("data:").partition(";base64,")
        if comma:
            return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {"type": "text", "text": part.get("text") or ""}


_raw_tools: Callable[[Text], list[msgspec.Raw] | None] = json_reader(list[msgspec.Raw] | None)


def _tools_of(original: Original) -> list[msgspec.Raw]:
    return _raw_tools(original.fields.get("tools", EMPTY_LIST)) or []


def _hosted(original: Original) -> list[Any]:
    """The tools that the provider runs."""
    kinds = ((tool, raw_json.read(tool).get("type")) for tool in _tools_of(original))
    return [tool for tool, kind in kinds if kind not in (None, "custom", "mcp_toolset") and not is_client_run(kind)]


def _tools(tools: Sequence[msgspec.Raw], own: Mapping[Any, msgspec.Raw]) -> Iterator[Any]:
    for tool in tools:
        function = raw_json.read(tool)["function"]
        if function["name"] in own:
            yield own[function["name"]]
        else:
            schema = function.get("parameters") or {"type": "object"}
            offered = {"name": function["name"], "input_schema": schema}
            yield {**offered, "description": function["description"]} if function.get("description") else offered


def _choice(request: ModelRequest) -> dict[str, Any] | None:
    serial = raw_json.read(request.params.get("parallel_tool_calls")) is False
    wanted_choice = raw_json.read(request.tool_choice)
    if wanted_choice is None and not serial:
        return None
    choice: dict[str, Any] = {"type": {"required": "any", "none": "none"}.get(str(wanted_choice), "auto")}
    if isinstance(wanted_choice, dict):
        choice = {"type": "tool", "name": field_of(wanted_choice, "function", "name")}
    if serial and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    return choice


# What is read ----------------------------------------------------------------------------------------------------------


_AS_THEY_ARE = SimpleNamespace(
    tool_name_reverse_map=None, json_mode=False, converted_response_format_tool=False, response_id=None
)
"""The parts of the request that reading an answer needs, where litellm changed nothing."""


class MessageEventsReader(claude.EventsReader):
    """Reads a stream into events, and keeps its blocks as they came."""

    def __init__(self, report: Report) -> None:
        super().__init__(_AS_THEY_ARE, may_pause=True, report=report)
        self._counted: dict[str, Any] = {}

    def _read_event(self, event: dict[str, Any]) -> list[ModelEvent]:
        kind = event.get("type")
        content = self._content
        assert content is not None
        if kind in claude.BLOCKS:
            self._keep(event, content)
            events = self._call_events(event)
            if events is None:
                events = list(self._said(event))
            if kind == "content_block_stop" and content:
                events = [*events, ExtraField(BLOCKS, [content[-1]])]
            return events
        if (strays := self._strays(event)) is not None:
            return strays
        if kind == "message_start":
            message = event.get("message")
            return [_head(message), *self._count(field_of(message, "usage"))]
        if kind == "message_delta":
            return [*self._count(event.get("usage")), *_edits_in(event), *self._ended(event, content)]
        if kind == "message_stop":
            self.is_done = True
            return [*self._given_at_once(), *self._chunks.finish()]
        return []

    def _ended(self, event: dict[str, Any], content: list[Any]) -> Iterator[ModelEvent]:
        reason = reason_in(field_of(event, "delta", "stop_reason"))
        if reason == claude.PAUSED and content:
            self.paused = content
            yield finished(claude.PAUSED, claude.WORDS)
        elif reason is not None:
            yield from self._given_at_once()
            yield finished(reason, claude.WORDS)
            self.has_ended = True

    def _said(self, event: dict[str, Any]) -> Iterator[ModelEvent]:
        block = event.get("content_block")
        delta = event.get("delta")
        if isinstance(block, dict) and block.get("type") == "redacted_thinking":
            yield ThinkingBlock(block)
        if block is None:
            text = field_of(delta, "text")
        else:
            text = field_of(block, "text")
        if isinstance(text, str) and text and field_of(block, "type") in (None, "text"):
            yield from self._chunks.read({"choices": [{"delta": {"content": text}}]})
        if isinstance(thought := field_of(delta, "thinking"), str) and thought:
            yield ReasoningDelta(thought, "thinking")
            yield ThinkingBlock({"type": "thinking", "thinking": thought})
        if signature := field_of(delta, "signature"):
            yield ThinkingBlock({"type": "thinking", "thinking": "", "signature": signature})

    def _close_json(self, block: dict[str, Any], text: str) -> None:
        try:
            block["input"] = read_json(text.encode(errors="surrogatepass"))
        except ValueError:
            block["input"] = {}  # the gate checks the text as it came

    def _count(self, counts: Any) -> Iterator[ModelEvent]:
        if isinstance(counts, dict):
            self._counted |= {name: value for name, value in counts.items() if value is not None}
            yield Usage.of_api("messages", self._counted)


class _ClaudeMessage(MessageBody):
    """Reads a whole message into events, block by block."""

    def _error(self, error: Any) -> object:
        return claude.with_status(error)

    def _read_message(self, body: dict[str, Any]) -> list[ModelEvent] | None:
        content = body.get("content")
        if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
            return None
        events: list[ModelEvent] = [_head(body)]
        for block in content:
            events += [*_of_block(block), ExtraField(BLOCKS, [block])]
        if isinstance(counts := body.get("usage"), dict):
            events.append(Usage.of_api("messages", counts))
        events += _edits_in(body)
        reason = reason_in(body.get("stop_reason"))
        if reason == claude.PAUSED and content:
            self.paused = content
            events.append(finished(claude.PAUSED, claude.WORDS))
        elif reason:
            events.append(finished(reason, claude.WORDS))
            if not claude.ends_in_call(content):
                mark_last_call(events)
        return events


def _edits_in(answer: Mapping[str, Any]) -> Iterator[ModelEvent]:
    edits = field_of(answer, CONTEXT, "applied_edits")
    if isinstance(edits, list):
        yield ExtraField(CONTEXT, edits)


def _head(message: Any) -> ProviderHead:
    id = field_of(message, "id")
    model = field_of(message, "model")
    return ProviderHead(str_or_none(id), str_or_none(model))


def _of_block(block: Mapping[str, Any]) -> Iterator[ModelEvent]:
    match block:
        case {"type": "text", "text": str() as text}:
            yield TextDelta(text)
        case {"type": "thinking"}:
            if (thought := block.get("thinking")) and isinstance(thought, str):
                yield ReasoningDelta(thought, "thinking")
            yield ThinkingBlock(block)
        case {"type": "redacted_thinking"}:
            yield ThinkingBlock(block)
        case {"type": "tool_use"}:
            value = block.get("input")
            arguments = None if value == {} else value
            yield CallWritten(_text_in(block, "name"), arguments, _text_in(block, "id"))


def _text_in(block: Mapping[str, Any], name: str) -> str | None:
    value = block.get(name)
    return nonempty_str(value)


# What passes through ---------------------------------------------------------------------------------------------------


class _PassedBody(WholeBody):
    """Passes a whole message on."""

    def __init__(self, report: Report) -> None:
        super().__init__()

    def _read(self, body: Any) -> Sequence[ModelEvent]:
        return _passed_on(self, body, b"".join(self._parts))


class _BodyWithoutCalls(_ClaudeMessage):
    """Passes a whole message on. One with calls, where calls are forbidden, is read; whoever has its events leaves them out."""

    def _read(self, body: Any) -> Sequence[ModelEvent]:
        blocks = field_of(body, "content")
        is_at_calls = field_of(body, "stop_reason") == "tool_use"
        if isinstance(blocks, list) and (is_at_calls or any(field_of(block, "type") == "tool_use" for block in blocks)):
            return super()._read(body)
        return _passed_on(self, body, b"".join(self._parts))


def _passed_on(body: WholeBody, value: Any, data: bytes) -> Sequence[ModelEvent]:
    if not isinstance(value, dict) or not isinstance(value.get("content"), list):
        error = value.get("error") if isinstance(value, dict) else None
        if error:
            body.is_done = True
            return (ProviderError(errors.read_error(error).message, claude.with_status(error)),)
        body.fault = "the body is not a message"
        return ()
    body.is_done = True
    usage = value.get("usage")
    reason = reason_in(value.get("stop_reason"))
    if isinstance(usage, dict):
        counts = Usage.of_api("messages", usage)
    else:
        counts = None
    reasons = (finished(reason, claude.WORDS),) if reason else ()
    return (Passed(data, reasons, counts),)


class PassedMessageEvents:
    """Passes whole events of a stream through, from the first content on."""

    def __init__(self, report: Report) -> None:
        self._stream = AnswerEvents()
        self._start: list[bytes] | None = []
        self._counts: dict[str, Any] = {}
        self.is_done = False
        self.has_ended = False
        self.fault: str | None = None

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        data = self._stream.whole(data)
        if not data:
            return ()
        if self._start is None and data.find(b'"message_') < 0 and data.find(b"error") < 0:
            return (Passed(data),)
        return self._looked_at(data)

    def finish(self) -> Sequence[ModelEvent]:
        return ()

    def _looked_at(self, data: bytes) -> Sequence[ModelEvent]:
        reasons: tuple[Finished, ...] = ()
        has_begun = self._start is None
        error = None
        for payload in payloads_in(data):
            try:
                event = read_json(payload.data)
            except ValueError:
                if looks_like_keep_alive(payload.data):
                    continue
                self.fault = "an event of the stream is not JSON"
                return ()
            kind = field_of(event, "type")
            if kind == "error":
                error = event.get("error")
                break
            if kind == "message_start":
                counts = field_of(event, "message", "usage")
            else:
                counts = field_of(event, "usage")
            if isinstance(counts, dict):
                self._counts |= {name: value for name, value in counts.items() if value is not None}
            if kind == "message_delta" and (reason := reason_in(field_of(event, "delta", "stop_reason"))):
                reasons += (finished(reason, claude.WORDS),)
            has_begun = has_begun or kind in ("content_block_start", "message_delta")
            self.is_done = self.is_done or kind == "message_stop"
        if error is not None:
            self.is_done = True
            data = data[: max(0, data.rfind(b"event: error\n"))]  # newlines in text are escaped
            failed = ProviderError(errors.read_error(error).message, claude.with_status(error))
            if self._start is not None:
                return (failed,)
            return (Passed(data, reasons, None), failed)
        if not has_begun:
            assert self._start is not None
            self._start.append(data)
            return ()
        if self._start is not None:
            data = b"".join((*self._start, data))
            self._start = None
        return (Passed(data, reasons, Usage.of_api("messages", self._counts) if reasons else None),)


class _EventsWithoutCalls(PassedMessageEvents):
    """Passes whole events of a stream through, without calls: they are forbidden."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self._left_out = LeftOutBlocks()

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        return [self._without_calls(event) for event in super().feed(data)]

    def _without_calls(self, event: ModelEvent) -> ModelEvent:
        if not isinstance(event, Passed) or not self._left_out.are_in(event.data):
            return event
        return replace_fields(event, data=self._left_out.take_from(event.data), left_out=self._left_out.calls)
