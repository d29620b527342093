"""A model that litellm can translate for and our own client carries: at present Claude behind Anthropic's API.

litellm's provider class words the request and reads the answer; the deadlines, the errors, the events of the stream and
the stop reason are ours, so that nothing between us and the provider retries, logs, or puts its own word for the
provider's. What litellm cannot translate goes through litellm alone.
"""

import asyncio
import copy
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

import msgspec
import structlog
from msgspec.structs import replace

from app.calls.states import Flaw
from app.chat.errors import ChatError
from app.chat.events import CallDelta, CallWritten, Finished, ModelEvent
from app.chat.ports import Answer, Ask, Message
from app.upstream import errors
from app.upstream.chunks import ChunkReader, read_completion
from app.upstream.client import Client, Deadlines, Response, TransportError
from app.upstream.direct_model import ANSWER_BYTES, Body, HttpAnswer, opened, read_json
from app.upstream.litellm_model import COMMON_EXTRAS, LiteLLMModel, decoded, loaded, plain
from app.upstream.params import for_litellm
from app.upstream.resolve import ThroughLiteLLM
from app.upstream.sse import BOM, SseReader, SseTooLarge, looks_like_keep_alive

PROVIDER = "anthropic"
PATH = "/v1/messages"
CUT = frozenset({"max_tokens", "model_context_window_exceeded"})
"""Stop reasons of an answer that was not at its end."""
STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""What an error inside an answer would have had for a status; Anthropic names the same kinds there and here."""
NOT_FIELDS = frozenset({"model", "custom_llm_provider", "api_base", "base_url", "api_key", "headers", "extra_headers"})
"""Of an entry's settings those that say where and as whom a model is asked."""
REMEMBERED = 32
REMEMBERED_BYTES = 256 * 1024
"""How many translations of a request's fields are kept for each model, and how long the fields of one may be."""
REVERSE_NAMES = "_anthropic_tool_name_map"
"""Where litellm leaves, for its own reading of the answer, which tool names it had to change."""

Lost: TypeAlias = Callable[[Exception], None]

log = structlog.get_logger("callgate.models")
_encode = msgspec.json.Encoder().encode


class TranslatedModel:
    def __init__(
        self,
        name: str,
        way: ThroughLiteLLM,
        client: Client,
        deadlines: Deadlines,
        otherwise: LiteLLMModel,
        *,
        answer_bytes: int = ANSWER_BYTES,
    ) -> None:
        """`answer_bytes`: how long one answer may be, as it comes over the wire."""
        self.name = name
        self._way = way
        self._client = client
        self._deadlines = deadlines
        self._otherwise = otherwise
        self._answer_bytes = answer_bytes
        self._fields = _Fields(way)
        self._lost = False
        self._told: set[str] = set()

    @asynccontextmanager
    async def ask(self, ask: Ask) -> AsyncIterator[Answer]:
        question = None if self._lost else await self._translated(ask)
        if question is None:
            async with self._otherwise.ask(ask) as answer:
                yield answer
            return
        exchange = self._client.post(question.url, question.headers, question.body, self._deadlines)
        response = await opened(exchange, question.secrets)
        try:
            yield _TranslatedAnswer(response, question, self._answer_bytes, self._lose)
        except BaseException as error:
            await exchange.__aexit__(type(error), error, error.__traceback__)
            if isinstance(error, TransportError):
                raise errors.from_transport(error) from error
            raise
        await exchange.__aexit__(None, None, None)

    async def _translated(self, ask: Ask) -> "_Question | None":
        """The question in the provider's words; None where litellm has to find out by itself what is wrong with it."""
        litellm = await loaded()
        try:
            async with asyncio.timeout(self._deadlines.first_byte):  # it fetches images that only have an address
                return await _question(litellm, self._way, ask, self._fields)
        except UnicodeEncodeError:
            raise ChatError(400, "A message holds half of a surrogate pair, which no JSON text can carry.") from None
        except Exception as error:  # noqa: BLE001 -- litellm raises its own errors and bare KeyErrors over odd messages
            # The request may be to blame, so that this says nothing of the next one.
            self._tell("request", error)
            return None

    def _lose(self, error: Exception) -> None:
        """An answer could not be read; from here on litellm both asks and reads."""
        self._lost = True
        self._tell("answer", error)

    def _tell(self, what: str, error: Exception) -> None:
        if what in self._told:
            return
        self._told.add(what)
        # The error's text may hold the messages of a chat; its kind does not.
        log.warning("translation_failed", model=self.name, what=what, error=type(error).__name__)


@dataclass(frozen=True, slots=True)
class _Question:
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    config: Any
    parser: Any
    """Reads the events of a stream; it keeps what it saw of earlier ones."""
    completion: Any
    """What a whole answer is written into."""
    prefix: str | None
    """What the answer is to begin with, put into the model's mouth by the client."""


class _Untranslatable(Exception):
    """Known not to go this way."""


async def _question(litellm: Any, way: ThroughLiteLLM, ask: Ask, in_its_words: "_Fields") -> _Question:
    from litellm.llms.anthropic.chat.handler import ModelResponseIterator
    from litellm.llms.anthropic.common_utils import AnthropicModelInfo

    own = dict(way.arguments)
    base = own.pop("api_base", None) or own.pop("base_url", None)
    key = own.pop("api_key", None)
    if not (AnthropicModelInfo.get_api_key(key) or AnthropicModelInfo.get_auth_token()):
        raise _Untranslatable("without a key, litellm may fetch one")
    model, provider, _, _ = litellm.get_llm_provider(
        model=own.pop("model"), custom_llm_provider=own.pop("custom_llm_provider", None), api_base=base
    )
    if provider != PROVIDER:
        raise _Untranslatable(provider)
    headers = {**(own.pop("headers", None) or {}), **(own.pop("extra_headers", None) or {})}
    drop = own.get("drop_params")
    config = litellm.AnthropicConfig()
    messages = config.translate_developer_role_to_system_role(messages=_messages(ask.messages))
    fields = in_its_words.of(litellm, model, ask)
    json_mode, speed = bool(fields.pop("json_mode", False)), fields.get("speed")
    settings: dict[str, Any] = {"drop_params": drop, "api_base": base}
    headers = config.validate_environment(
        headers=headers,
        model=model,
        messages=messages,
        optional_params=fields,
        litellm_params=settings,
        api_key=key,
        api_base=base,
    )
    prefix = config.get_prefix_prompt(messages)
    body = await config.async_transform_request(
        model=model, messages=messages, optional_params=fields, litellm_params=settings, headers=headers
    )
    headers, body = _with_known_betas(headers, body)
    body["stream"] = ask.stream
    parser = ModelResponseIterator(
        streaming_response=None,
        sync_stream=False,
        json_mode=json_mode,
        speed=speed,
        tool_name_reverse_map=settings.get(REVERSE_NAMES),
    )
    sent = {str(name): str(value) for name, value in headers.items()}
    secret = tuple(value for name, value in sent.items() if name.lower() in {"x-api-key", "authorization"})
    return _Question(
        url=_address(AnthropicModelInfo.get_api_base(base)),
        headers=sent,
        body=_encode(body),
        secrets=(*way.secrets, *secret, *(value.removeprefix("Bearer ") for value in secret)),
        config=config,
        parser=parser,
        completion=litellm.ModelResponse(),
        prefix=prefix,
    )


def _messages(messages: Sequence[Message]) -> Any:
    from litellm.utils import validate_and_fix_openai_messages

    # litellm writes into what it is given, and the history is asked with again.
    return validate_and_fix_openai_messages(messages=[copy.deepcopy(decoded(message)) for message in messages])


class _Fields:
    """Requests' other fields in Anthropic's words, the operator's where a request has none.

    The latest are remembered, as JSON: the turns of a chat have the same tools and settings, as have most chats of a client,
    and litellm goes through its model list several times to translate even none.
    """

    def __init__(self, way: ThroughLiteLLM) -> None:
        self._own = {name: value for name, value in way.arguments.items() if name not in NOT_FIELDS}
        self._known: OrderedDict[bytes, bytes] = OrderedDict()

    def of(self, litellm: Any, model: str, ask: Ask) -> dict[str, Any]:
        asked = _encode((model, ask.params, ask.tools, ask.tool_choice))
        if (known := self._known.get(asked)) is not None:
            self._known.move_to_end(asked)
            return read_json(known)  # type: ignore[no-any-return]  # what was encoded below
        fields = _fields(litellm, model, self._own, ask)
        if len(asked) <= REMEMBERED_BYTES:
            self._known[asked] = _encode(fields)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return fields


def _fields(litellm: Any, model: str, own: Mapping[str, Any], ask: Ask) -> dict[str, Any]:
    from litellm.utils import (
        validate_and_fix_openai_tools,
        validate_and_fix_thinking_param,
        validate_chat_completion_tool_choice,
        validate_openai_optional_params,
    )

    named, beside = for_litellm(ask)
    given: dict[str, Any] = {
        **own,
        **{name: decoded(value) for name, value in named.items()},
        **{name: decoded(value) for name, value in beside.items() if name in COMMON_EXTRAS},
    }
    if ask.tools:
        given["tools"] = validate_and_fix_openai_tools(tools=[decoded(tool) for tool in ask.tools])
        if ask.tool_choice is not None:
            choice = decoded(ask.tool_choice)
            given["tool_choice"] = validate_chat_completion_tool_choice(tool_choice=choice, model=model)
    if "stop" in given:
        given["stop"] = validate_openai_optional_params(stop=given["stop"])
    if "thinking" in given:
        given["thinking"] = validate_and_fix_thinking_param(thinking=given["thinking"])
    fields: dict[str, Any] = litellm.get_optional_params(model=model, custom_llm_provider=PROVIDER, **given)
    return copy.deepcopy(fields)


def _with_known_betas(headers: dict[str, Any], body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    # The list of beta features is otherwise fetched from the network, while the event loop waits.
    os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
    from litellm.anthropic_beta_headers_manager import update_request_with_filtered_beta

    headers, body = update_request_with_filtered_beta(headers=headers, request_data=body, provider=PROVIDER)
    return headers, body


def _address(base: str | None) -> str:
    base = str(base)
    if base.endswith(PATH) or os.environ.get("LITELLM_ANTHROPIC_DISABLE_URL_SUFFIX", "").lower() == "true":
        return base
    return base.rstrip("/") + PATH


# The answer -----------------------------------------------------------------------------------------------------------


class _TranslatedAnswer(HttpAnswer):
    lane = "translated"

    def __init__(self, response: Response, question: _Question, answer_bytes: int, lost: Lost) -> None:
        super().__init__(response, question.secrets, answer_bytes)
        self._question = question
        self._lost = lost

    def _recognise(self, start: bytes) -> Body | None:
        mark = start.removeprefix(BOM).lstrip()[:1]
        if not mark:
            return None
        if mark == b"<":
            raise errors.bad_answer("The model's provider sent something that is not an answer.", "a web page")
        return (_Message if mark == b"{" else _Events)(self._question, self._lost)


class _Events:
    """Reads a stream."""

    def __init__(self, question: _Question, lost: Lost) -> None:
        self._parser = question.parser
        self._lost = lost
        self._sse = SseReader()
        self._chunks = ChunkReader()
        self._input: object = None
        """What the block of the call being written began with; nothing, unless a server sends it all at once."""
        self._in_pieces = False
        self.done = False
        self.fault: str | None = None

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        try:
            return self._read(self._sse.feed(data))
        except SseTooLarge as error:
            self.fault = str(error)
            return ()

    def finish(self) -> Sequence[ModelEvent]:
        events = [*self._read(self._sse.finish()), *self._chunks.finish()]
        self.fault = None  # a last event that was cut off says no more than the end of the body does
        return events

    def _read(self, payloads: Sequence[bytes]) -> list[ModelEvent]:
        events: list[ModelEvent] = []
        for payload in payloads:
            try:
                event = read_json(payload)
            except ValueError:
                if looks_like_keep_alive(payload):
                    continue
                self.fault = "an event of the stream is not JSON"
                break
            if not isinstance(event, dict):
                continue
            if event.get("type") == "message_stop":
                self.done = True
                events += self._chunks.finish()
                break
            events += self._translated(event)
            if self.fault is not None:
                break
        return events

    def _translated(self, event: dict[str, Any]) -> list[ModelEvent]:
        kind = event.get("type")
        if kind == "content_block_delta" and isinstance(text := _field(event, "delta", "text"), str):
            # Nearly all of a stream, and nothing to translate: litellm makes three objects of it for us to take apart.
            return self._chunks.read({"choices": [{"delta": {"content": text}}]})
        if kind == "error":
            return self._chunks.read({"error": _with_status(event.get("error"))})
        if kind == "message_start" and (name := _field(event, "message", "id")):
            self._parser.response_id = name
        try:
            chunk = plain(self._parser.chunk_parser(event))
        except Exception as error:  # noqa: BLE001 -- a KeyError, a pydantic error: whatever an odd event makes it raise
            self._lost(error)
            self.fault = "an event of the stream could not be translated"
            return []
        for choice in chunk.get("choices") or ():
            _tidy(choice, choice.get("delta"))
        found = self._chunks.read(chunk)
        if kind in {"content_block_start", "content_block_delta", "content_block_stop"}:
            found = self._as_written(event, found)
        if (reason := _field(event, "delta", "stop_reason")) is not None:
            found.append(Finished(_reason(reason, converted=self._parser.converted_response_format_tool)))
        return found

    def _as_written(self, event: dict[str, Any], found: list[ModelEvent]) -> list[ModelEvent]:
        """Calls as the provider wrote them. litellm leaves out arguments that come with the call's start, and at its
        end writes `{}` for none, which would make a whole call of one that was cut off behind its name."""
        if event["type"] == "content_block_start":
            self._input, self._in_pieces = _field(event, "content_block", "input"), False
        elif event["type"] == "content_block_delta":
            self._in_pieces = self._in_pieces or bool(_field(event, "delta", "partial_json"))
        else:
            found = [each for each in found if not isinstance(each, CallDelta)]
            if self._input and not self._in_pieces and not self._parser.json_mode:
                found.append(CallDelta(self._parser.tool_index, arguments=self._input))
            self._input = None
        return found


class _Message:
    """Reads a body that is one message."""

    def __init__(self, question: _Question, lost: Lost) -> None:
        self._question = question
        self._lost = lost
        self._parts: list[bytes] = []
        self.done = False
        self.fault: str | None = None

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        self._parts.append(data)
        return ()

    def finish(self) -> Sequence[ModelEvent]:
        try:
            body = read_json(b"".join(self._parts).removeprefix(BOM))
        except ValueError:
            self.fault = "the body is not JSON"
            return ()
        if isinstance(body, dict) and body.get("error"):
            self.done = True
            return ChunkReader().read({"error": _with_status(body["error"])})
        if not isinstance(body, dict) or not isinstance(body.get("content"), list):
            self.fault = "the body is not a message"
            return ()
        return self._translated(body)

    def _translated(self, body: dict[str, Any]) -> Sequence[ModelEvent]:
        question, parser, reason = self._question, self._question.parser, body.get("stop_reason")
        try:
            completion = question.config.transform_parsed_response(
                # It needs a reason, and writes its own into the body it is given.
                completion_response={**body, "stop_reason": reason or "end_turn"},
                raw_response=SimpleNamespace(headers={}, status_code=200),
                model_response=question.completion,
                json_mode=parser.json_mode,
                prefix_prompt=question.prefix,
                speed=parser.speed,
                tool_name_reverse_map=parser.tool_name_reverse_map,
            )
        except Exception as error:  # noqa: BLE001 -- as over the events of a stream
            self._lost(error)
            self.fault = "the body could not be translated"
            return ()
        completion = {**plain(completion), "id": body.get("id")}
        for choice in completion.get("choices") or ():
            _tidy(choice, choice.get("message"))
        events = read_completion(completion)
        self.done = True
        if isinstance(reason, str):
            has_calls = any(isinstance(event, CallWritten) for event in events)
            events.append(Finished(_reason(reason, converted=parser.json_mode and not has_calls)))
            if reason in CUT and _field({"last": body["content"][-1:]}, "last", 0, "type") == "tool_use":
                _mark_last_call(events)
        return events


def _mark_last_call(events: list[ModelEvent]) -> None:
    """A call that the length limit cut comes as an object in a whole message, so that nothing of it shows the cut."""
    for place in range(len(events) - 1, -1, -1):
        event = events[place]
        if isinstance(event, CallWritten):
            events[place] = replace(event, flaw=Flaw.TRUNCATED)
            return


def _reason(reason: str, *, converted: bool) -> str:
    """The provider's own word, but where litellm had a format asked for as a call and made text of it again."""
    return "end_turn" if converted and reason == "tool_use" else reason


def _tidy(choice: dict[str, Any], message: object) -> None:
    choice.pop("finish_reason", None)
    fields = message.get("provider_specific_fields") if isinstance(message, dict) else None
    if isinstance(fields, dict):
        fields.pop("thinking_blocks", None)  # they stand in the message already, and go back from there


def _with_status(error: object) -> object:
    if not isinstance(error, dict):
        return error or "the provider reported an error"
    status = STATUSES.get(str(error.get("type")))
    return error if status is None else {**error, "status": status}


def _field(found: object, *path: str | int) -> Any:
    for name in path:
        if isinstance(found, list) and isinstance(name, int):
            found = found[name] if name < len(found) else None
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found
