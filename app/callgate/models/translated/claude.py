"""Claude behind Anthropic's API. litellm's provider class makes the request and reads the answer; the stop reason and the
calls are read here, as Anthropic sent them.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.conversation.events import CallDelta, CallWritten, ModelEvent
from callgate.conversation.finish import finished
from callgate.conversation.finish_words import FinishClass, FinishWords
from callgate.conversation.messages_api import ERROR_STATUSES
from callgate.conversation.ports import ModelRequest
from callgate.models import errors
from callgate.models import litellm_seam as seam
from callgate.models.direct.chunks import read_completion, reason_in, whole_number
from callgate.models.direct.model import read_json
from callgate.models.json_values import str_or_none
from callgate.models.litellm_model import as_dicts
from callgate.models.resolve import LiteLLMSettings
from callgate.models.translated.deferred_tools import defer
from callgate.models.translated.translation import (
    BETAS,
    UNKNOWN_CALL,
    EventsBody,
    Fields,
    MessageBody,
    ProviderRequest,
    Report,
    betas_in,
    encode,
    field_of,
    items_of,
    mark_last_call,
    messages_of,
    tidy,
)
from callgate.models.translated.wording import Elsewhere

PROVIDER = "anthropic"
PATH = "/v1/messages"
RUN_THERE = frozenset({"server_tool_use", "mcp_tool_use"})
"""Blocks of calls that Anthropic runs itself."""
BLOCKS = frozenset({"content_block_start", "content_block_delta", "content_block_stop"})
SAID = frozenset({"text", "thinking", "redacted_thinking"})
"""Blocks that stream no JSON."""
NO_KEY = "none"
"""Stands for a key where there is none to be had: litellm makes no request without one."""
PAUSED = "pause_turn"
"""A stop reason that does not end the answer: during long runs of Anthropic's own tools it has to be asked again with the
answer so far."""
WORDS = FinishWords(
    {
        FinishClass.STOP: "end_turn stop_sequence",
        FinishClass.TOOL_CALLS: "tool_use",
        FinishClass.LENGTH: "max_tokens model_context_window_exceeded compaction",
        FinishClass.CONTENT_FILTER: "refusal",
    },
    is_closed=True,
)
"""https://platform.claude.com/docs/en/build-with-claude/handling-stop-reasons"""
REVERSE_NAMES = "_anthropic_tool_name_map"
"""The parameter in which litellm keeps the tool names that it changed, for reading the answer."""


async def translate(
    litellm: Any,
    settings: LiteLLMSettings,
    request: ModelRequest,
    translate_fields: Fields,
    elsewhere: Elsewhere | None,
) -> ProviderRequest:
    own, model, base, key, headers = _settled(litellm, settings)
    place = ClaudeAt(
        provider=PROVIDER,
        model=model,
        url=_address(seam.ANTHROPIC_INFO.get().get_api_base(base)),
        base=base,
        key=key,
        headers=headers,
        own=own,
        fields={},
    )
    return await claude_request(settings, request, translate_fields, place, elsewhere)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeAt:
    """Where a Claude is, and how it is reached."""

    provider: str
    """Whose API it is; litellm has a class for each."""
    model: str
    url: str
    base: str | None
    key: str | None = field(repr=False)
    headers: dict[str, Any] = field(repr=False)
    own: Mapping[str, Any] = field(repr=False)
    """The entry's settings."""
    fields: Mapping[str, Any]
    """What is added to the fields of a request."""
    may_block: bool = False
    """Whether litellm may sign in over the network."""


class ClaudeWording(msgspec.Struct, kw_only=True):
    """A request in Anthropic's words, and what is needed to read the answer."""

    body: dict[str, Any]
    headers: dict[str, Any]
    json_mode: bool
    speed: Any
    names: dict[str, str] | None
    """The tools' own names, by those that litellm gave them."""
    prefix: str | None
    """The beginning of the answer that the client prefilled."""
    may_pause: bool


class RawClaudeWording(ClaudeWording, kw_only=True):
    """The same as a child wrote it: the parts of the body are not decoded."""

    body: dict[str, msgspec.Raw]


def config_of(provider: str) -> Any:
    """Return litellm's class for Claude at a provider."""
    match provider:
        case "vertex_ai":
            return seam.VERTEX_CLAUDE.get()()
        case "azure_ai":
            return seam.AZURE_CLAUDE.get()()
        case _:
            return seam.ANTHROPIC_CONFIG.get()()


async def claude_request(
    settings: LiteLLMSettings,
    request: ModelRequest,
    translate_fields: Fields,
    place: ClaudeAt,
    elsewhere: Elsewhere | None,
) -> ProviderRequest:
    """Make the request for a Claude."""
    own = place.own
    worded: ClaudeWording
    if elsewhere is None:
        worded = await word(
            settings,
            request,
            translate_fields,
            provider=place.provider,
            model=place.model,
            added=place.fields,
            headers=place.headers,
            key=place.key,
            base=place.base,
            may_block=place.may_block,
        )
    else:
        worded = await elsewhere.word(
            "claude",
            request,
            RawClaudeWording,
            provider=place.provider,
            model=place.model,
            added=place.fields,
            headers=betas_in(place.headers),
        )
        worded.headers = await _signed_in(place, worded.headers)
    body = worded.body | (own.get("extra_body") or {})
    body["stream"] = request.stream
    parser = parser_of(json_mode=worded.json_mode, speed=worded.speed, names=worded.names)
    sent_headers = {str(name): str(value) for name, value in worded.headers.items()}
    whole = _Whole(config_of(place.provider), seam.MODEL_RESPONSE.get()(), worded.prefix, parser)
    may_pause = worded.may_pause or _may_pause(own.get("extra_body") or {})
    return ProviderRequest(
        url=place.url,
        headers=sent_headers,
        body=encode(body),
        secrets=(*settings.secrets, *_secrets_in(sent_headers)),
        as_events=partial(EventsReader, parser, may_pause),
        as_message=partial(MessageReader, whole),
        continued=partial(continued, body) if may_pause else None,
    )


async def word(
    settings: LiteLLMSettings,
    request: ModelRequest,
    translate_fields: Fields,
    *,
    provider: str,
    model: str,
    added: Mapping[str, Any],
    headers: dict[str, Any],
    key: str | None = NO_KEY,
    base: str | None = None,
    may_block: bool = False,
) -> ClaudeWording:
    """Have litellm make the body. `added`: what is added to the fields of a request. Without `key` the headers sign nobody in."""
    config = config_of(provider)
    messages = config.translate_developer_role_to_system_role(messages=messages_of(settings, model, request))
    fields = {**translate_fields.of(model, request), **added}
    json_mode = bool(fields.pop("json_mode", False))
    speed = fields.get("speed")
    litellm_params: dict[str, Any] = {"drop_params": settings.arguments.get("drop_params"), "api_base": base}
    authorise = partial(
        config.validate_environment,
        headers=headers,
        model=model,
        messages=messages,
        optional_params=fields,
        litellm_params=litellm_params,
        api_key=key,
        api_base=base,
    )
    if may_block:
        headers = await asyncio.to_thread(authorise)
    else:
        headers = authorise()
    fields.pop("is_vertex_request", None)
    prefix = config.get_prefix_prompt(messages)
    body = await config.async_transform_request(
        model=model, messages=messages, optional_params=fields, litellm_params=litellm_params, headers=headers
    )
    if request.tools and field_of(body.get("tool_choice"), "name") == seam.RESPONSE_FORMAT_TOOL_NAME.get():
        body["tool_choice"] = {"type": "any"}  # the format is requested as a call; others may precede it
    headers, body = _with_known_betas(headers, body, provider)
    if request.deferred is not None:
        defer(body, request.deferred)
    return ClaudeWording(
        body=body,
        headers=headers,
        json_mode=json_mode,
        speed=speed,
        names=litellm_params.get(REVERSE_NAMES),
        prefix=prefix,
        may_pause=_may_pause(body),
    )


def _may_pause(body: Mapping[str, Any]) -> bool:
    """True where Anthropic may pause its answer, which it does only where it runs tools of its own."""
    tools = body.get("tools")
    if isinstance(tools, list):
        kinds = [field_of(tool, "type") for tool in tools]
    else:
        kinds = []
    return bool(body.get("mcp_servers")) or any(kind not in {None, "custom"} for kind in kinds)


async def _signed_in(place: ClaudeAt, worded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of a request that was worded without a key."""
    authorise = partial(
        config_of(place.provider).validate_environment,
        headers=dict(place.headers),
        model=place.model,
        messages=[],
        optional_params=dict(place.fields),
        litellm_params={"api_base": place.base},
        api_key=place.key,
        api_base=place.base,
    )
    if place.may_block:
        headers = await asyncio.to_thread(authorise)
    else:
        headers = authorise()
    headers, _ = _with_known_betas(headers, {}, place.provider)
    betas = [betas_in(headers).get(BETAS, ""), betas_in(worded).get(BETAS, "")]
    headers = {name: value for name, value in headers.items() if name.lower() != BETAS}
    names = dict.fromkeys(name.strip() for text in betas for name in str(text).split(",") if name.strip())
    if names:
        headers[BETAS] = ",".join(names)
    return headers


def parser_of(*, json_mode: bool, speed: Any = None, names: Mapping[str, str] | None = None) -> Any:
    """Return litellm's parser of events. `names`: the tools' own names, by those that litellm gave them."""
    return seam.ANTHROPIC_EVENTS.get()(
        streaming_response=None, sync_stream=False, json_mode=json_mode, speed=speed, tool_name_reverse_map=names
    )


def own_names(tools: Sequence[Any]) -> dict[str, str]:
    """Return the names of tools by those that litellm gives them, where it gives them others."""
    if not tools:
        return {}
    _, names = seam.ANTHROPIC_NAMES.get()(tools=tools)
    return dict(names)


def whole_of(mapped: Any, *, json_mode: bool, names: Mapping[str, str]) -> "_Whole":
    """Return what is needed to read a whole answer to a request that was not made here. `mapped`: the answer as litellm
    mapped it, where it did."""
    parser = parser_of(json_mode=json_mode, names=names)
    return _Whole(seam.ANTHROPIC_CONFIG.get()(), seam.MODEL_RESPONSE.get()(), None, parser, mapped)


def address(litellm: Any, settings: LiteLLMSettings) -> tuple[str, str, dict[str, str], tuple[str, ...]]:
    """Return the URL of an entry's model, its name there, the headers of a request without beta features, and the secrets
    among them."""
    _, model, base, key, headers = _settled(litellm, settings)
    headers = seam.ANTHROPIC_CONFIG.get()().validate_environment(
        headers=headers,
        model=model,
        messages=[],
        optional_params={},
        litellm_params={"api_base": base},
        api_key=key,
        api_base=base,
    )
    sent_headers = {str(name): str(value) for name, value in headers.items()}
    return (
        _address(seam.ANTHROPIC_INFO.get().get_api_base(base)),
        model,
        sent_headers,
        (*settings.secrets, *_secrets_in(sent_headers)),
    )


def _settled(
    litellm: Any, settings: LiteLLMSettings
) -> tuple[dict[str, Any], str, str | None, str | None, dict[str, Any]]:
    """Return an entry's other settings, its model, address, key and headers."""
    own = dict(settings.arguments)
    base = own.pop("api_base", None) or own.pop("base_url", None)
    key = own.pop("api_key", None)
    if not (seam.ANTHROPIC_INFO.get().get_api_key(key) or seam.ANTHROPIC_INFO.get().get_auth_token()):
        # litellm would fetch one from the network.
        raise errors.auth_failed("no key: set litellm_params.api_key or ANTHROPIC_API_KEY")
    model, _, _, _ = litellm.get_llm_provider(
        model=own.pop("model"), custom_llm_provider=own.pop("custom_llm_provider", None), api_base=base
    )
    return own, model, base, key, {**(own.pop("headers", None) or {}), **(own.pop("extra_headers", None) or {})}


def _secrets_in(headers: Mapping[str, str]) -> tuple[str, ...]:
    secret = [value for name, value in headers.items() if name.lower() in {"x-api-key", "api-key", "authorization"}]
    return (*secret, *(value.removeprefix("Bearer ") for value in secret))


def continued(body: dict[str, Any], content: list[Any]) -> bytes:
    return encode({**body, "messages": [*items_of(body["messages"]), {"role": "assistant", "content": content}]})


def _with_known_betas(
    headers: dict[str, Any], body: dict[str, Any], provider: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    # litellm would fetch the list of beta features from the network, on the event loop.
    os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
    headers, body = seam.ANTHROPIC_BETAS.get()(headers=headers, request_data=body, provider=provider)
    return headers, body


def _address(base: str | None) -> str:
    base = str(base)
    if base.endswith(PATH) or os.environ.get("LITELLM_ANTHROPIC_DISABLE_URL_SUFFIX", "").lower() == "true":
        return base
    return base.rstrip("/") + PATH


@dataclass(frozen=True, slots=True)
class _Whole:
    """The parts of the request that are needed to read a whole answer."""

    config: Any
    completion: Any
    """The litellm response object that the answer is written into."""
    prefix: str | None
    """The beginning of the answer that the client prefilled."""
    parser: Any
    mapped: Any = None
    """The answer as litellm mapped it, where it made the request and did."""


class EventsReader(EventsBody):
    def __init__(self, parser: Any, may_pause: bool, report: Report) -> None:
        super().__init__(report)
        self._parser = parser
        self._content: list[dict[str, Any]] | None = [] if may_pause else None
        """The blocks so far, where the answer may have to be continued after a pause."""
        self._json = ""
        self._calls: dict[int | None, int] = {}
        """The indexes of the calls that are being written, by the indexes of their blocks."""
        self._stopped: set[int | None] = set()
        self._others: set[int | None] = set()
        """Blocks that stream JSON and are no calls: the provider's own tools, and the format of the answer."""
        self._latest: int | None = None
        """The index of the block that began last, to which a piece without an index belongs."""
        self._begun = 0
        self._starts: dict[int, Mapping[str, Any]] = {}
        """The blocks of calls as they began."""
        self._inputs: dict[int, object] = {}
        """The inputs with which blocks of calls began; empty, unless a server sends all of it at once."""

    def _read_event(self, event: dict[str, Any]) -> list[ModelEvent]:
        kind = event.get("type")
        if self._content is not None:
            self._keep(event, self._content)
        if kind in BLOCKS and (of_call := self._call_events(event)) is not None:
            return of_call
        if kind == "content_block_delta" and isinstance(text := field_of(event, "delta", "text"), str):
            # Most events of a stream. They need no translation, for which litellm makes three objects each.
            return self._chunks.read({"choices": [{"delta": {"content": text}}]})
        if (strays := self._strays(event)) is not None:
            return strays
        if kind == "message_stop":
            self.is_done = True
            return [*self._given_at_once(), *self._chunks.finish()]
        if kind == "message_start" and (name := field_of(event, "message", "id")):
            self._parser.response_id = name
        try:
            chunk = as_dicts(self._parser.chunk_parser(event))
        except Exception as error:  # noqa: BLE001 -- a KeyError, a pydantic error: whatever an odd event makes it raise
            return self._untranslated(error)
        for choice in chunk.get("choices") or ():
            tidy(choice, choice.get("delta"))
        # Calls of Anthropic's own tools, which it runs itself, are no calls here.
        events: list[ModelEvent] = [
            read_event for read_event in self._chunks.read(chunk) if not isinstance(read_event, CallDelta)
        ]
        if (reason := reason_in(field_of(event, "delta", "stop_reason"))) is not None:
            if reason == PAUSED and self._content:
                self.paused = self._content
                events.append(finished(PAUSED, WORDS))
            else:
                events += self._given_at_once()
                events.append(finished(_reason(reason, converted=self._parser.converted_response_format_tool), WORDS))
                self.has_ended = True
        return events

    def _strays(self, event: Mapping[str, Any]) -> list[ModelEvent] | None:
        """Return what an event that is about no block does to the calls; None where it has nothing of one."""
        kind = event.get("type")
        if kind == "message_start" and self._begun:
            self.fault = "a message begins inside another"
            return []
        if kind in BLOCKS or (stray := field_of(event, "delta", "partial_json")) is None:
            return None
        return [CallDelta(UNKNOWN_CALL, arguments=stray)]

    def _keep(self, event: dict[str, Any], content: list[dict[str, Any]]) -> None:
        """Join the pieces of blocks, for a continuation."""
        kind = event.get("type")
        delta = event.get("delta")
        if kind == "content_block_start" and isinstance(block := event.get("content_block"), dict):
            content.append(dict(block))
            self._json = ""
        elif kind == "content_block_delta" and isinstance(delta, dict) and content:
            block = content[-1]
            for name in ("text", "thinking", "signature"):
                if isinstance(piece := delta.get(name), str):
                    block[name] = str(block.get(name) or "") + piece
            if isinstance(piece := delta.get("partial_json"), str):
                self._json += piece
            if delta.get("citation"):
                block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        elif kind == "content_block_stop" and content and self._json:
            self._close_json(content[-1], self._json)

    def _close_json(self, block: dict[str, Any], text: str) -> None:
        """Parse the joined input of a block."""
        try:
            block["input"] = read_json(text.encode(errors="surrogatepass"))
        except ValueError:
            self.fault = "a block of the stream is not JSON"

    def _error(self, error: object) -> object:
        return with_status(error)

    def _call_events(self, event: dict[str, Any]) -> list[ModelEvent] | None:
        """Read an event about a call, as the provider wrote it; None where it is about something else. Each piece goes to the
        call of its block index; litellm gives it to the latest, and writes `{}` for no arguments."""
        index = whole_number(event.get("index"))
        kind = event["type"]
        if kind != "content_block_start" and index is None:
            index = self._latest
        if kind == "content_block_start":
            self._latest = index
            block = event.get("content_block")
            if not isinstance(block, dict) or block.get("type") != "tool_use" or self._is_format(block):
                self._calls.pop(index, None)
                self._others.discard(index)
                if str(field_of(block, "type")) not in SAID:
                    self._others.add(index)
                return None
            if index not in self._calls or index in self._stopped:
                self._stopped.discard(index)
                self._calls[index] = self._begun
                self._begun += 1
            number = self._calls[index]
            if self._starts.setdefault(number, block) != block:
                self.fault = "a block begins twice"
                return []
            id_ = block.get("id")
            name = block.get("name")
            if block.get("input") not in (None, {}, ""):
                self._inputs[number] = block["input"]
            own_names = self._parser.tool_name_reverse_map or {}
            name = own_names.get(name, name) if isinstance(name, str) and name else None
            return [CallDelta(number, str_or_none(id_), name)]
        delta = event.get("delta")
        if index not in self._calls:
            stray = field_of(delta, "partial_json") if index not in self._others else None
            return [CallDelta(UNKNOWN_CALL, arguments=stray)] if stray else None
        if kind == "content_block_stop":
            self._stopped.add(index)
            if delta is None:
                return []
            return [CallDelta(UNKNOWN_CALL, arguments=[delta])]
        # A piece of an unknown format is kept, so that it breaks its call.
        piece = delta.get("partial_json", [delta]) if isinstance(delta, dict) else [delta]
        fragments: list[ModelEvent] = [CallDelta(self._calls[index], arguments=piece)]
        return (
            fragments
            if index not in self._stopped or not piece
            else [*fragments, CallDelta(UNKNOWN_CALL, arguments=piece)]
        )

    def _is_format(self, block: Any) -> bool:
        return bool(self._parser.json_mode) and field_of(block, "name") == seam.RESPONSE_FORMAT_TOOL_NAME.get()

    def _given_at_once(self) -> list[ModelEvent]:
        """Return the arguments that came with the beginning of their calls."""
        inputs = self._inputs
        self._inputs = {}
        return [CallDelta(number, arguments=value, at_once=True) for number, value in inputs.items()]


class MessageReader(MessageBody):
    def __init__(self, whole: _Whole, report: Report) -> None:
        super().__init__(report)
        self._whole = whole

    def _error(self, error: Any) -> object:
        return with_status(error)

    def _read_message(self, body: dict[str, Any]) -> list[ModelEvent] | None:
        if not isinstance(body.get("content"), list):
            return None
        parser = self._whole.parser
        reason = reason_in(body.get("stop_reason"))
        try:
            completion = self._completion(body, reason)
        except Exception as error:  # noqa: BLE001 -- as over the events of a stream
            self._untranslated(error)
            return None
        completion = {**as_dicts(completion), "id": body.get("id")}
        for choice in completion.get("choices") or ():
            tidy(choice, choice.get("message"))
        events = [_without_nothing(event) for event in read_completion(completion)]
        if reason == PAUSED and body["content"]:
            self.paused = body["content"]
            events.append(finished(PAUSED, WORDS))
        elif reason:
            has_calls = any(isinstance(event, CallWritten) for event in events)
            events.append(finished(_reason(reason, converted=parser.json_mode and not has_calls), WORDS))
            if not ends_in_call(body["content"]):
                mark_last_call(events)
        return events

    def _completion(self, body: dict[str, Any], reason: str | None) -> Any:
        """Return a message as litellm maps it, without the calls that Anthropic ran itself: they need no answer."""
        whole = self._whole
        parser = whole.parser
        content = [block for block in body["content"] if field_of(block, "type") not in RUN_THERE]
        if whole.mapped is not None and len(content) == len(body["content"]):
            return whole.mapped
        return whole.config.transform_parsed_response(
            # litellm needs a stop reason, and writes its own into the body that it gets.
            completion_response={**body, "content": content, "stop_reason": reason or "end_turn"},
            raw_response=SimpleNamespace(headers={}, status_code=200),
            model_response=whole.completion,
            json_mode=parser.json_mode,
            prefix_prompt=whole.prefix,
            speed=parser.speed,
            tool_name_reverse_map=parser.tool_name_reverse_map,
        )


def _without_nothing(event: ModelEvent) -> ModelEvent:
    """Replace an empty object, which stands for no arguments here; the gate decides whether the call is whole."""
    if isinstance(event, CallWritten) and event.arguments in ("{}", {}):
        return replace(event, arguments=None)
    return event


def ends_in_call(content: Sequence[Any]) -> bool:
    """True if nothing follows the last call."""
    for block in reversed(content):
        if field_of(block, "type") == "tool_use":
            return True
        if field_of(block, "type") != "text" or field_of(block, "text"):
            return False
    return False


def _reason(reason: str, *, converted: bool) -> str:
    """Return the provider's own reason, except where litellm requested a format as a call and converted it back to text."""
    if converted and reason == "tool_use":
        return "end_turn"
    return reason


def with_status(error: object) -> object:
    if not isinstance(error, dict):
        return error or "the provider reported an error"
    status = ERROR_STATUSES.get(str(error.get("type")))
    if status is None:
        return error
    return {**error, "status": status}
