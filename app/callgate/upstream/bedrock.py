"""Bedrock's Converse API. litellm's provider class makes the request, botocore finds the credentials and signs it; the answer,
one JSON text or a stream of AWS's binary frames, is read here.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from callgate.conversation.events import (
    CallDelta,
    CallWritten,
    ModelEvent,
    ProviderError,
    ReasoningDelta,
    TextDelta,
    ThinkingBlock,
    Usage,
)
from callgate.conversation.finish import finished
from callgate.conversation.finish_words import FinishClass, FinishWords
from callgate.conversation.ports import ModelRequest
from callgate.upstream.chunks import error_in, reason_in, whole_number
from callgate.upstream.direct_model import TWICE, Body, read_json
from callgate.upstream.litellm_model import COMMON_EXTRAS, decoded
from callgate.upstream.openai_shaped import FormatBody
from callgate.upstream.resolve import OF_PROVIDERS, LiteLLMSettings
from callgate.upstream.translation import (
    UNKNOWN_CALL,
    Fields,
    MessageBody,
    Question,
    Report,
    encode,
    field_of,
    has_duplicate_names_in_calls,
    mark_last_call,
    messages_of,
)

PROVIDER = "bedrock"
WORDS = FinishWords(
    {
        FinishClass.STOP: "end_turn stop_sequence",
        FinishClass.TOOL_CALLS: "tool_use",
        FinishClass.LENGTH: "max_tokens model_context_window_exceeded",
        FinishClass.CONTENT_FILTER: "guardrail_intervened content_filtered refusal",
        FinishClass.ERROR: "malformed_model_output malformed_tool_use",
    },
    is_closed=True,
)
"""https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html, and `refusal` of newer Claude models."""
STATUSES = {
    "internalServerException": 500,
    "modelStreamErrorException": 502,
    "modelTimeoutException": 504,
    "serviceUnavailableException": 503,
    "throttlingException": 429,
    "validationException": 400,
}
"""The HTTP status for each exception inside a stream."""
_EXCEPTION = re.compile("exception$|^error", re.IGNORECASE)
"""Names of events, and of fields in them, that report an error."""
EXTRAS = COMMON_EXTRAS - {"cache_control"}
PREFIXES = ("bedrock/", "converse/", "nova-2/", "nova/")


async def question(litellm: Any, settings: LiteLLMSettings, ask: ModelRequest, translate_fields: Fields) -> Question:
    from litellm.constants import RESPONSE_FORMAT_TOOL_NAME
    from litellm.litellm_core_utils.prompt_templates.factory import make_valid_bedrock_tool_name
    from litellm.llms.bedrock.base_aws_llm import BaseAWSLLM

    own = settings.arguments
    name = str(own["model"]).removeprefix("bedrock/")
    model = name if name.startswith("converse/") else f"converse/{name}"  # or litellm may choose another of their APIs
    config = litellm.AmazonConverseConfig()
    fields = translate_fields.of(litellm, model, ask, extras=EXTRAS)
    as_call = bool(fields.get("json_mode"))
    fake_stream = fields.pop("fake_stream", False)
    for setting in ("stream", "model_id"):
        fields.pop(setting, None)
    as_stream = ask.stream and not config.should_fake_stream(
        fake_stream=fake_stream, model=name, stream=True, custom_llm_provider=PROVIDER
    )
    headers = {"Content-Type": "application/json", **(own.get("headers") or {}), **(own.get("extra_headers") or {})}
    given: dict[str, Any] = {"drop_params": own.get("drop_params")}
    body = await config._async_transform_request(  # noqa: SLF001 -- the public one is not asynchronous
        model=name, messages=messages_of(litellm, settings, name, ask), optional_params=fields,
        litellm_params=given, headers=headers,
    )  # fmt: skip
    if ask.tools and field_of(body, "toolConfig", "toolChoice", "tool", "name") == RESPONSE_FORMAT_TOOL_NAME:
        body["toolConfig"]["toolChoice"] = {"any": {}}  # the format is requested as a call; others may precede it
    body |= own.get("extra_body") or {}
    data = encode(body)
    url, sent = await asyncio.to_thread(_signed, BaseAWSLLM(), own, name, data, headers, as_stream=as_stream)
    names = {
        make_valid_bedrock_tool_name(given_name): given_name
        for tool in ask.tools
        if isinstance(given_name := field_of(decoded(tool), "function", "name"), str)
    } | {RESPONSE_FORMAT_TOOL_NAME: RESPONSE_FORMAT_TOOL_NAME}
    secret = tuple(
        value for header, value in sent.items() if header.lower() in {"authorization", "x-amz-security-token"}
    )
    return Question(
        url=url,
        headers=sent,
        body=data,
        secrets=(*settings.secrets, *secret, *(value.removeprefix("Bearer ") for value in secret)),
        as_events=partial(_formatted, Frames, names, as_call),
        as_message=partial(_formatted, BedrockMessage, names, as_call),
    )


def _formatted(kind: Any, names: Mapping[str, str], as_call: bool, report: Report) -> Body:
    body: Body = kind(names, report)
    return FormatBody(body) if as_call else body


def _signed(
    aws: Any, own: Mapping[str, Any], name: str, data: bytes, headers: dict[str, str], *, as_stream: bool
) -> tuple[str, dict[str, str]]:
    """The address and the signed headers. In a thread: credentials may be looked up in files and on the network."""
    from litellm.llms.bedrock.base_aws_llm import bedrock_bearer_token, pop_aws_auth_params
    from litellm.llms.bedrock.common_utils import get_all_bedrock_regions

    aws_settings = {setting: own[setting] for setting in OF_PROVIDERS[PROVIDER] if own.get(setting)}
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    region, slash, rest = name.partition("/")
    if slash and region in get_all_bedrock_regions():
        name = rest
        aws_settings.setdefault("aws_region_name", region)
    identity = aws_settings.pop("model_id", None)
    region = aws._get_aws_region_name(optional_params=aws_settings, model=name, model_id=identity)  # noqa: SLF001
    endpoint, _ = aws.get_runtime_endpoint(
        api_base=own.get("api_base") or own.get("base_url"),
        aws_bedrock_runtime_endpoint=aws_settings.get("aws_bedrock_runtime_endpoint"),
        aws_region_name=region,
    )
    path = "converse-stream" if as_stream else "converse"
    url = f"{endpoint.rstrip('/')}/model/{aws.encode_model_id(identity or name)}/{path}"
    key = own.get("api_key")
    credentials = None
    if bedrock_bearer_token(key) is None and "Authorization" not in headers:
        credentials = aws.resolve_credentials(pop_aws_auth_params(aws_settings), region)
    if credentials is None and bedrock_bearer_token(key) is None:
        return url, headers
    prepared = aws.get_request_headers(
        credentials=credentials, aws_region_name=region, extra_headers=headers, endpoint_url=url, data=data,
        headers=dict(headers), api_key=key,
    )  # fmt: skip
    ours = {"content-length", "host", "accept", "accept-encoding", "connection", "user-agent"}
    return url, {
        str(name): (value.decode("latin-1") if isinstance(value, bytes) else str(value))
        for name, value in prepared.headers.items()
        if name.lower() not in ours
    }


class Frames:
    """Reads a stream of binary frames, each with a checksum."""

    def __init__(self, names: Mapping[str, str], report: Report) -> None:
        from botocore.eventstream import EventStreamBuffer

        self._buffer = EventStreamBuffer()
        self._names = names
        self._report = report
        self._stopped = False
        self._call_blocks: set[int | None] = set()
        self._stopped_blocks: set[int | None] = set()
        self.done = False
        self.has_ended = False
        self.fault: str | None = None

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        from botocore.eventstream import ParserError

        events: list[ModelEvent] = []
        try:
            self._buffer.add_data(data)
            for frame in self._buffer:
                events += self._read(frame)
        except (ParserError, ValueError, UnicodeDecodeError) as error:
            self._report(error)
            self.fault = "a frame of the stream cannot be read"
        return events

    def finish(self) -> Sequence[ModelEvent]:
        # The token counts come after the stop reason; without them the answer is still whole.
        self.done = self._stopped
        return ()

    def _read(self, frame: Any) -> Iterator[ModelEvent]:
        kind = frame.headers.get(":event-type")
        if has_duplicate_names_in_calls(frame.payload):
            raise ValueError(TWICE)
        payload = read_json(frame.payload) if frame.payload else {}
        name = str(frame.headers.get(":exception-type") or frame.headers.get(":error-code") or "")
        if not name and isinstance(payload, dict):
            name = next((word for word in (str(kind), *payload) if _EXCEPTION.search(word)), "")
            payload = payload[name] if isinstance(payload.get(name), dict) else payload
        if name or frame.headers.get(":message-type") != "event":
            found_message = field_of(payload, "message") or frame.headers.get(":error-message") or name
            yield ProviderError(
                str(found_message), {"error": {"message": found_message, "type": name, "status": STATUSES.get(name)}}
            )
        elif isinstance(payload, dict) and (error := error_in(payload)) is not None:
            yield error
        elif kind == "contentBlockStart":
            self._stopped_blocks.discard(_index(payload))
            self._call_blocks.discard(_index(payload))
            if isinstance(call := field_of(payload, "start", "toolUse"), dict):
                self._call_blocks.add(_index(payload))
                tool = _name(call.get("name"), self._names)
                yield CallDelta(_index(payload), call.get("toolUseId"), tool, _arguments(call.get("input")))
        elif kind == "contentBlockDelta":
            yield from self._delta(payload)
        elif kind == "contentBlockStop":
            self._stopped_blocks.add(_index(payload))
        elif kind == "messageStop":
            self._stopped = True
            if reason := reason_in(field_of(payload, "stopReason")):
                yield finished(reason, WORDS)
        elif kind == "metadata":
            self.done = self._stopped
            yield from _usage(field_of(payload, "usage"))

    def _delta(self, payload: Any) -> Iterator[ModelEvent]:
        delta = field_of(payload, "delta")
        if isinstance(text := field_of(delta, "text"), str) and text:
            yield TextDelta(text)
        piece = field_of(delta, "toolUse", "input")
        use = field_of(delta, "toolUse")
        if _index(payload) in self._call_blocks and not (isinstance(use, dict) and "input" in use):
            piece = [delta]  # unknown format: kept, to break its call
        if piece is not None:
            yield CallDelta(_index(payload), arguments=piece)
            if piece and _index(payload) in self._stopped_blocks:
                yield CallDelta(UNKNOWN_CALL, arguments=piece)
        if isinstance(thought := field_of(delta, "reasoningContent"), dict):
            yield from _thought(thought)


class BedrockMessage(MessageBody):
    def __init__(self, names: Mapping[str, str], report: Report) -> None:
        super().__init__(report)
        self._names = names

    def _error(self, error: Any) -> object:
        return error

    def _read_message(self, body: dict[str, Any]) -> list[ModelEvent] | None:
        blocks = field_of(body, "output", "message", "content")
        if not isinstance(blocks, list):
            return None
        events: list[ModelEvent] = []
        for block in blocks:
            if isinstance(text := field_of(block, "text"), str) and text:
                events.append(TextDelta(text))
            if isinstance(call := field_of(block, "toolUse"), dict):
                arguments = _arguments(call.get("input"))
                events.append(CallWritten(_name(call.get("name"), self._names), arguments, call.get("toolUseId")))
            if isinstance(thought := field_of(block, "reasoningContent"), dict):
                events += _thought(thought)
        if reason := reason_in(body.get("stopReason")):
            if events and not isinstance(events[-1], CallWritten):
                mark_last_call(events)
            events.append(finished(reason, WORDS))
        return [*events, *_usage(body.get("usage"))]


def _index(payload: Any) -> int | None:
    return whole_number(field_of(payload, "contentBlockIndex"))


def _arguments(given: Any) -> Any:
    """Return None for an empty object, which stands for no arguments here; the gate decides whether the call is whole."""
    return None if given == {} else given


def _name(name: Any, names: Mapping[str, str]) -> str | None:
    """Return the tool's own name for the one that litellm replaced it by, where Bedrock would have refused it."""
    return names.get(name, name) if isinstance(name, str) and name else None


def _thought(thought: Mapping[str, Any]) -> Iterator[ModelEvent]:
    whole = thought.get("reasoningText")
    found_message = whole if isinstance(whole, dict) else thought
    if isinstance(text := found_message.get("text"), str) and text:
        yield ReasoningDelta(text)
        yield ThinkingBlock({"type": "thinking", "thinking": text})
    if signature := found_message.get("signature"):
        yield ThinkingBlock({"type": "thinking", "thinking": "", "signature": signature})
    if redacted := thought.get("redactedContent"):
        yield ThinkingBlock({"type": "redacted_thinking", "data": redacted})


def _usage(counts: Any) -> Iterator[ModelEvent]:
    if not isinstance(counts, dict):
        return
    tokens = {name: value for name, value in counts.items() if type(value) is int}
    cached = tokens.get("cacheReadInputTokens", 0)
    prompt = tokens.get("inputTokens", 0) + cached + tokens.get("cacheWriteInputTokens", 0)
    completion = tokens.get("outputTokens", 0)
    yield Usage(
        {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            **({"prompt_tokens_details": {"cached_tokens": cached}} if cached else {}),
        }
    )
