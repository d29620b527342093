"""Cohere's v2 chat API. litellm's provider class makes most of the request; the answer is read here."""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.conversation.events import (
    CallDelta,
    CallWritten,
    ExtraField,
    ModelEvent,
    ProviderError,
    ProviderHead,
    ReasoningDelta,
    TextDelta,
)
from callgate.conversation.finish import finished
from callgate.conversation.finish_words import FinishClass, FinishWords
from callgate.conversation.ports import ModelRequest
from callgate.conversation.usage import Usage
from callgate.models import litellm_seam as seam
from callgate.models.direct.chunks import entries, reason_in, whole_number
from callgate.models.json_values import nonempty_str, str_or_none
from callgate.models.litellm_model import decoded
from callgate.models.resolve import LiteLLMSettings
from callgate.models.translated.translation import (
    UNKNOWN_CALL,
    EventsBody,
    Fields,
    MessageBody,
    ProviderRequest,
    Report,
    encode,
    field_of,
    messages_of,
)
from callgate.models.translated.wording import Elsewhere

URL = "https://api.cohere.com/v2/chat"
WORDS = FinishWords(
    {
        FinishClass.STOP: "COMPLETE STOP_SEQUENCE",
        FinishClass.TOOL_CALLS: "TOOL_CALL",
        FinishClass.LENGTH: "MAX_TOKENS",
        FinishClass.CONTENT_FILTER: "ERROR_TOXIC",
        FinishClass.ERROR: "ERROR ERROR_LIMIT TIMEOUT USER_CANCEL",
    },
    is_closed=True,
)
"""https://docs.cohere.com/reference/chat, and those of its first version."""
NOT_LITELLMS = frozenset({"response_format", "parallel_tool_calls"})
"""Fields that Cohere has equivalents for, which litellm does not translate."""


async def translate(
    litellm: Any,
    settings: LiteLLMSettings,
    request: ModelRequest,
    translate_fields: Fields,
    elsewhere: Elsewhere | None,
) -> ProviderRequest:
    own = settings.arguments
    model, _, key, base = litellm.get_llm_provider(
        model=own["model"],
        custom_llm_provider=own.get("custom_llm_provider"),
        api_base=own.get("api_base") or own.get("base_url"),
    )
    model = model.removeprefix("v2/")
    key = own.get("api_key") or key or os.environ.get("COHERE_API_KEY") or os.environ.get("CO_API_KEY")
    worded: CohereWording
    if elsewhere is None:
        worded = await word(settings, request, translate_fields, model=model)
    else:
        worded = await elsewhere.word("cohere", request, RawCohereWording, model=model)
    body = worded.body | (own.get("extra_body") or {})
    body["stream"] = request.stream
    headers = seam.COHERE_CONFIG.get()().validate_environment(
        headers={}, model=model, messages=[], optional_params={}, litellm_params={}, api_key=key
    ) | {**(own.get("headers") or {}), **(own.get("extra_headers") or {})}  # fmt: skip
    return ProviderRequest(
        url=_address(base or os.environ.get("COHERE_API_BASE")),
        headers={str(name): str(value) for name, value in headers.items() if str(name).lower() != "accept"},
        body=encode(body),
        secrets=(*settings.secrets, *((key,) if key else ())),
        as_events=partial(CohereEvents, model),
        as_message=partial(CohereMessage, model),
    )


class CohereWording(msgspec.Struct):
    """A request in Cohere's words."""

    body: dict[str, Any]


class RawCohereWording(CohereWording):
    """The same as a child wrote it: the parts of the body are not decoded."""

    body: dict[str, msgspec.Raw]


async def word(
    settings: LiteLLMSettings, request: ModelRequest, translate_fields: Fields, *, model: str
) -> CohereWording:
    """Have litellm make the body."""
    config = seam.COHERE_CONFIG.get()()
    messages = config.translate_developer_role_to_system_role(messages=messages_of(settings, model, request))
    for message in messages:
        message.pop("reasoning_content", None)  # Cohere refuses unknown fields
    params = {name: value for name, value in request.params.items() if name not in NOT_LITELLMS}
    fields = translate_fields.of(model, replace(request, params=params, tool_choice=None))
    body = config.transform_request(
        model=model, messages=messages, optional_params=fields, litellm_params={}, headers={}
    )
    # `auto` is Cohere's default and has no value there; for a named function "any" is the nearest.
    choice = decoded(request.tool_choice) if request.tools else None
    if choice in ("none", "required") or isinstance(choice, dict):
        body["tool_choice"] = "NONE" if choice == "none" else "REQUIRED"
    answer_format = decoded(request.params.get("response_format"))
    if (kind := field_of(answer_format, "type")) in ("json_object", "json_schema"):
        body["response_format"] = {"type": "json_object"}
    if kind == "json_schema":
        body["response_format"]["json_schema"] = field_of(answer_format, "json_schema", "schema") or {}
    return CohereWording(body)


def _address(base: str | None) -> str:
    if base is None:
        return URL
    base = base.rstrip("/")
    if base.endswith("/chat"):
        return base
    if base.endswith("/v2"):
        return f"{base}/chat"
    return f"{base}/v2/chat"


class CohereEvents(EventsBody):
    def __init__(self, model: str, report: Report) -> None:
        super().__init__(report)
        self._model = model
        self._ended_calls: set[int | None] = set()

    def _read_event(self, event: dict[str, Any]) -> list[ModelEvent]:
        return list(self._events(event))

    def _events(self, event: dict[str, Any]) -> Iterator[ModelEvent]:
        kind = event.get("type")
        delta_message = field_of(event, "delta", "message")
        index = whole_number(event.get("index"))
        if kind == "message-start":
            yield ProviderHead(str_or_none(event.get("id")), self._model)
        elif kind in {"content-start", "content-delta"}:
            yield from _content(field_of(delta_message, "content"))
        elif kind == "tool-plan-delta":
            yield from _plan(delta_message)
        elif kind in {"tool-call-start", "tool-call-delta"}:
            yield from self._pieces(event, index, opens=kind == "tool-call-start")
        elif kind == "tool-call-end":
            self._ended_calls.add(index)
        elif kind == "citation-start":
            if citation := field_of(delta_message, "citations"):
                yield ExtraField("citations", [citation])
        elif kind == "message-end":
            delta = event.get("delta")
            yield from _ended(delta)
            self.is_done = True
        elif field_of(delta_message, "tool_calls"):
            self.fault = "an event of the stream says something of a call that is not known"

    def _pieces(self, event: dict[str, Any], index: int | None, *, opens: bool) -> Iterator[ModelEvent]:
        calls = entries(field_of(event, "delta", "message", "tool_calls"))
        if not calls and not opens:
            yield CallDelta(index, arguments=[event.get("delta")])  # unknown format: kept, to break its call
        for call in calls:
            function = call.get("function")
            id_ = call.get("id")
            name = field_of(function, "name")
            if isinstance(function, dict):
                piece = function.get("arguments")
            else:
                piece = [call]
            yield CallDelta(
                index,
                nonempty_str(id_),
                nonempty_str(name),
                piece,
            )
            if opens:
                self._ended_calls.discard(index)
            elif piece and index in self._ended_calls:
                yield CallDelta(UNKNOWN_CALL, arguments=piece)


class CohereMessage(MessageBody):
    def __init__(self, model: str, report: Report) -> None:
        super().__init__(report)
        self._model = model

    def _error(self, error: Any) -> object:
        return error

    def _read_message(self, body: dict[str, Any]) -> list[ModelEvent] | None:
        message = body.get("message")
        if not isinstance(message, dict):
            return None
        events: list[ModelEvent] = [ProviderHead(str_or_none(body.get("id")), self._model)]
        content = message.get("content")
        for part in content if isinstance(content, list) else [content]:
            events += _content(part)
        events += _plan(message)
        for call in entries(message.get("tool_calls")):
            name = field_of(call, "function", "name")
            id_ = call.get("id")
            events.append(
                CallWritten(
                    nonempty_str(name),
                    field_of(call, "function", "arguments"),
                    nonempty_str(id_),
                )
            )
        if message.get("citations"):
            events.append(ExtraField("citations", message["citations"]))
        return [*events, *_ended(body)]


def _content(part: Any) -> Iterator[ModelEvent]:
    if isinstance(part, str) and part:
        yield TextDelta(part)
    if isinstance(text := field_of(part, "text"), str) and text:
        yield TextDelta(text)
    if isinstance(thought := field_of(part, "thinking"), str) and thought:
        yield ReasoningDelta(thought, "thinking")


def _plan(message: Any) -> Iterator[ModelEvent]:
    """Return the model's plan for its tools, which goes back with them."""
    if isinstance(plan := field_of(message, "tool_plan"), str) and plan:
        yield ExtraField("tool_plan", plan)


def _ended(delta_message: Any) -> Iterator[ModelEvent]:
    if reason := reason_in(field_of(delta_message, "finish_reason")):
        yield finished(reason, WORDS)
    if (error := field_of(delta_message, "error")) is not None:
        yield ProviderError(str(field_of(error, "message") or error), {"error": error})
    tokens = field_of(delta_message, "usage", "tokens")
    if isinstance(tokens, dict):
        yield Usage.of_api("cohere", tokens)
