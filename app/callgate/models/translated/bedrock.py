"""Bedrock's Converse API. litellm's provider class makes the request, botocore finds the credentials and signs it; the answer,
one JSON text or a stream of AWS's binary frames, is read here.
"""

import asyncio
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from callgate.conversation.errors import AnswerTooLarge, ChatError
from callgate.conversation.events import (
    CallDelta,
    CallWritten,
    ModelEvent,
    ProviderError,
    ReasoningDelta,
    TextDelta,
    ThinkingBlock,
)
from callgate.conversation.finish import finished
from callgate.conversation.finish_words import FinishClass, FinishWords
from callgate.conversation.ports import ModelRequest
from callgate.conversation.usage import Usage
from callgate.models import litellm_seam as seam
from callgate.models.direct.chunks import error_in, reason_in, whole_number
from callgate.models.direct.model import TWICE, Body, read_json
from callgate.models.litellm_model import COMMON_EXTRAS, decoded
from callgate.models.providers import PROVIDERS
from callgate.models.resolve import LiteLLMSettings
from callgate.models.translated.openai_shaped import FormatBody
from callgate.models.translated.translation import (
    UNKNOWN_CALL,
    Fields,
    MessageBody,
    ProviderRequest,
    Report,
    betas_in,
    encode,
    field_of,
    has_duplicate_names_in_calls,
    mark_last_call,
    messages_of,
)
from callgate.models.translated.wording import Elsewhere

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
FRAME_BYTES = 24 * 1024 * 1024
"""The limit of a frame, which is botocore's."""
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


async def translate(
    litellm: Any,
    settings: LiteLLMSettings,
    request: ModelRequest,
    translate_fields: Fields,
    elsewhere: Elsewhere | None,
) -> ProviderRequest:
    own = settings.arguments
    name = str(own["model"]).removeprefix("bedrock/")
    headers = {"Content-Type": "application/json", **(own.get("headers") or {}), **(own.get("extra_headers") or {})}
    worded: BedrockWording
    if elsewhere is None:
        worded = await word(settings, request, translate_fields, name=name, headers=headers)
    else:
        worded = await elsewhere.word("bedrock", request, RawBedrockWording, name=name, headers=betas_in(headers))
    as_call = worded.as_call
    data = encode(worded.body | (own.get("extra_body") or {}))
    url, signed_headers = await asyncio.to_thread(
        _signed, seam.AWS.get()(), own, name, data, headers, as_stream=worded.as_stream
    )
    secret = tuple(
        value for header, value in signed_headers.items() if header.lower() in {"authorization", "x-amz-security-token"}
    )
    return ProviderRequest(
        url=url,
        headers=signed_headers,
        body=data,
        secrets=(*settings.secrets, *secret, *(value.removeprefix("Bearer ") for value in secret)),
        as_events=partial(_formatted, Frames, worded.names, as_call),
        as_message=partial(_formatted, BedrockMessage, worded.names, as_call),
    )


class BedrockWording(msgspec.Struct):
    """A request in Bedrock's words, and what is needed to read the answer."""

    body: dict[str, Any]
    as_call: bool
    """Whether a response format is requested as a call."""
    as_stream: bool
    names: dict[str, str]
    """The tools' own names, by those that litellm gave them."""


class RawBedrockWording(BedrockWording):
    """The same as a child wrote it: the parts of the body are not decoded."""

    body: dict[str, msgspec.Raw]


async def word(
    settings: LiteLLMSettings,
    request: ModelRequest,
    translate_fields: Fields,
    *,
    name: str,
    headers: dict[str, Any],
) -> BedrockWording:
    """Have litellm make the body."""
    format_call = seam.RESPONSE_FORMAT_TOOL_NAME.get()
    model = name if name.startswith("converse/") else f"converse/{name}"  # or litellm may choose another of their APIs
    config = seam.CONVERSE_CONFIG.get()()
    fields = translate_fields.of(model, request, extras=EXTRAS)
    as_call = bool(fields.get("json_mode"))
    fake_stream = fields.pop("fake_stream", False)
    for setting in ("stream", "model_id"):
        fields.pop(setting, None)
    as_stream = request.stream and not seam.CONVERSE_FAKES_STREAM.get()(
        config, fake_stream=fake_stream, model=name, stream=True, custom_llm_provider=PROVIDER
    )
    litellm_params: dict[str, Any] = {"drop_params": settings.arguments.get("drop_params")}
    body = await seam.CONVERSE_REQUEST.get()(
        config, model=name, messages=messages_of(settings, name, request), optional_params=fields,
        litellm_params=litellm_params, headers=headers,
    )  # fmt: skip
    if request.tools and field_of(body, "toolConfig", "toolChoice", "tool", "name") == format_call:
        body["toolConfig"]["toolChoice"] = {"any": {}}  # the format is requested as a call; others may precede it
    names = own_names(map(decoded, request.tools)) | {format_call: format_call}
    return BedrockWording(dict(body), as_call, as_stream, names)


def own_names(tools: Iterable[Any]) -> dict[str, str]:
    """Return the names of tools by those that litellm gives them. Raises `ChatError` where it gives two of them the same: whose
    call such a name is cannot be known."""
    legal_name = seam.BEDROCK_TOOL_NAME.get()
    names: dict[str, str] = {}
    for index, tool in enumerate(tools):
        name = field_of(tool, "function", "name")
        if not isinstance(name, str):
            continue
        sent_name = legal_name(name)
        if names.setdefault(sent_name, name) != name:
            field = f"tools[{index}].function.name"
            message = (
                f"Invalid '{field}': Bedrock takes letters, digits, underscores and hyphens, and would know both "
                f"'{names[sent_name]}' and '{name}' as '{sent_name}'."
            )
            raise ChatError(400, message, code="invalid_value", param=field)
    return names


def _formatted(kind: Any, names: Mapping[str, str], as_call: bool, report: Report) -> Body:
    body: Body = kind(names, report)
    if as_call:
        return FormatBody(body)
    return body


def _signed(
    aws: Any, own: Mapping[str, Any], name: str, data: bytes, headers: dict[str, str], *, as_stream: bool
) -> tuple[str, dict[str, str]]:
    """The address and the signed headers. In a thread: credentials may be looked up in files and on the network."""
    aws_settings = {setting: own[setting] for setting in PROVIDERS[PROVIDER].settings if own.get(setting)}
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    region, slash, own_name = name.partition("/")
    if slash and region in seam.AWS_REGIONS.get()():
        name = own_name
        aws_settings.setdefault("aws_region_name", region)
    identity = aws_settings.pop("model_id", None)
    region = seam.AWS_REGION.get()(aws, optional_params=aws_settings, model=name, model_id=identity)
    endpoint, _ = aws.get_runtime_endpoint(
        api_base=own.get("api_base") or own.get("base_url"),
        aws_bedrock_runtime_endpoint=aws_settings.get("aws_bedrock_runtime_endpoint"),
        aws_region_name=region,
    )
    path = "converse-stream" if as_stream else "converse"
    url = f"{endpoint.rstrip('/')}/model/{aws.encode_model_id(identity or name)}/{path}"
    key = own.get("api_key")
    credentials = None
    has_token = seam.AWS_TOKEN.get()(key) is not None
    if not has_token and "Authorization" not in headers:
        credentials = aws.resolve_credentials(seam.AWS_SIGN_IN.get()(aws_settings), region)
    if credentials is None and not has_token:
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
        self.is_done = False
        self.has_ended = False
        self.fault: str | None = None

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        from botocore.eventstream import InvalidPayloadLength, ParserError

        events: list[ModelEvent] = []
        try:
            self._buffer.add_data(data)
            for frame in self._buffer:
                events += self._read(frame)
        except InvalidPayloadLength as error:
            raise AnswerTooLarge(f"{FRAME_BYTES} bytes in one frame") from error
        except (ParserError, ValueError, KeyError, struct.error) as error:  # the last two are botocore's, for odd heads
            self._report(error)
            self.fault = "a frame of the stream cannot be read"
        return events

    def finish(self) -> Sequence[ModelEvent]:
        # The token counts come after the stop reason; without them the answer is still whole.
        self.is_done = self._stopped
        return ()

    def _read(self, frame: Any) -> Iterator[ModelEvent]:
        kind = frame.headers.get(":event-type")
        if has_duplicate_names_in_calls(frame.payload):
            raise ValueError(TWICE)
        payload = read_json(frame.payload) if frame.payload else {}
        if not isinstance(payload, dict):
            raise ValueError("a payload that is no object")  # noqa: TRY004 -- a provider's mistake, as what is no JSON is
        name = str(frame.headers.get(":exception-type") or frame.headers.get(":error-code") or "")
        if not name:
            name = next((word for word in (str(kind), *payload) if _EXCEPTION.search(word)), "")
            payload = payload[name] if isinstance(payload.get(name), dict) else payload
        if name or frame.headers.get(":message-type") != "event":
            found_message = field_of(payload, "message") or frame.headers.get(":error-message") or name
            yield ProviderError(
                str(found_message), {"error": {"message": found_message, "type": name, "status": STATUSES.get(name)}}
            )
        elif (error := error_in(payload)) is not None:
            yield error
        elif kind == "contentBlockStart":
            yield from self._start(payload)
        elif kind == "contentBlockDelta":
            yield from self._delta(payload)
        elif kind == "contentBlockStop":
            self._stopped_blocks.add(_index(payload))
        elif kind == "messageStop":
            self._stopped = True
            if reason := reason_in(field_of(payload, "stopReason")):
                yield finished(reason, WORDS)
        elif kind == "metadata":
            self.is_done = self._stopped
            yield from _usage(field_of(payload, "usage"))
        elif field_of(payload, "delta", "toolUse") is not None:
            raise ValueError("an event of the stream says something of a call that is not known")

    def _start(self, payload: Any) -> Iterator[ModelEvent]:
        self._stopped_blocks.discard(_index(payload))
        self._call_blocks.discard(_index(payload))
        if isinstance(call := field_of(payload, "start", "toolUse"), dict):
            self._call_blocks.add(_index(payload))
            tool = _name(call.get("name"), self._names)
            yield CallDelta(_index(payload), call.get("toolUseId"), tool, _arguments(call.get("input")))

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


def _arguments(value: Any) -> Any:
    """Return None for an empty object, which stands for no arguments here; the gate decides whether the call is whole."""
    if value == {}:
        return None
    return value


def _name(name: Any, names: Mapping[str, str]) -> str | None:
    """Return the tool's own name for the one that litellm replaced it by, where Bedrock would have refused it."""
    if isinstance(name, str) and name:
        return names.get(name, name)
    return None


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
    yield Usage.of_api("bedrock", counts)
