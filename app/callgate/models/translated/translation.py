"""Shared by the translations of all providers: the request as it is sent, and readers of event streams and bodies.

What is specific to a provider is in its own module: `claude`, `gemini`.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec.structs import replace

from callgate.config.unprinted import Unprinted
from callgate.conversation.call_assembly import MAX_CALLS
from callgate.conversation.errors import AnswerTooLarge, ChatError
from callgate.conversation.events import CallWritten, ModelEvent
from callgate.conversation.ports import ModelRequest
from callgate.http.event_stream import Payload
from callgate.models import litellm_seam as seam
from callgate.models.direct.chunks import ChunkReader, error_in
from callgate.models.direct.model import TWICE, Body, JsonEvents, WholeBody, has_duplicate_names, read_json, reported
from callgate.models.litellm_model import COMMON_EXTRAS, decoded
from callgate.models.params import for_litellm
from callgate.models.providers import ALL_SETTINGS
from callgate.models.resolve import LiteLLMSettings
from callgate.untrusted.readers import read_shape

Report: TypeAlias = Callable[[Exception], None]
"""Called with the error when an answer could not be read."""
NOT_FIELDS = frozenset(
    "model custom_llm_provider api_base base_url api_key headers extra_headers extra_body organization api_version "
    "cache_control_injection_points".split()
)
"""Settings of an entry that are no parameters of its requests."""
NOT_SHAPING = (NOT_FIELDS | ALL_SETTINGS) - {
    "model",
    "custom_llm_provider",
    "cache_control_injection_points",
    "api_version",
}
"""Settings of an entry that say nothing about the bodies of its requests: where it is, and as whom it is asked."""
BETAS = "anthropic-beta"
REMEMBERED_BYTES = 8 * 1024 * 1024
LONGEST_REMEMBERED = 256 * 1024
"""The size of the cache of translated fields, and the longest entry in it."""

UNKNOWN_CALL = -1
"""The index for pieces outside of any call's block, or in one that has stopped. Where there are such pieces, a call without
arguments may have lost them."""

encode = msgspec.json.Encoder().encode


class ProviderRequest(Unprinted, frozen=True):
    """A request in a provider's format, and the readers of its answer."""

    unprinted = frozenset({"headers", "body", "secrets"})

    url: str
    headers: Mapping[str, str]
    body: bytes
    secrets: tuple[str, ...]
    as_events: Callable[[Report], Body]
    """Makes the reader of a stream."""
    as_message: Callable[[Report], Body]
    """Makes the reader of a body that is one JSON text."""
    lane: str = "translated"
    continued: Callable[[list[Any]], bytes] | None = None
    """Makes the body that continues after a pause, from the answer so far."""


class Unanswerable(ChatError):
    """A request that this provider does not support."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(400, message, param=param)


def messages_of(settings: LiteLLMSettings, model: str, request: ModelRequest) -> Any:
    """Return the messages as litellm takes them, with the marks of the entry's `cache_control_injection_points`. A copy, which
    litellm may change."""
    messages = seam.FIX_MESSAGES.get()(messages=list(request.messages))
    points = settings.arguments.get("cache_control_injection_points")
    if not points:
        return messages
    return seam.with_cache_marks(
        model=model,
        messages=messages,
        non_default_params={"cache_control_injection_points": copy.deepcopy(points)},
        prompt_id=None,
        prompt_variables=None,
        dynamic_callback_params={},
    )


class Fields:
    """Translates a request's other fields for the provider, with the operator's where a request has none.

    The latest are cached, as JSON, for all models together: the turns of a chat have the same tools and settings, as have
    most chats of a client, and litellm searches its model list several times for each translation.
    """

    _known: ClassVar[OrderedDict[tuple[bytes, bytes], bytes]] = OrderedDict()
    _size: ClassVar[int] = 0

    def __init__(self, provider: str, settings: LiteLLMSettings) -> None:
        own_settings = NOT_FIELDS | ALL_SETTINGS
        self._provider = provider
        self._own = {name: value for name, value in settings.arguments.items() if name not in own_settings}
        self._version = settings.arguments.get("api_version")
        self._identity = encode((provider, self._version, self._own))

    def of(
        self,
        model: str,
        request: ModelRequest,
        *,
        extras: frozenset[str] = COMMON_EXTRAS,
        taken: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Translate the fields. `extras`: the fields outside OpenAI's that the provider class translates. `taken`: fields of
        OpenAI's that the provider takes, whatever litellm's list of models says."""
        key = self._identity, encode((model, sorted(extras), taken, request.params, request.tools, request.tool_choice))
        if (cached := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return read_json(cached)  # type: ignore[no-any-return]  # what was encoded below
        own_fields: dict[str, Any] = {"api_version": self._version} if self._version else {}
        if taken:
            own_fields["allowed_openai_params"] = [*(self._own.get("allowed_openai_params") or ()), *taken]
        fields = _fields(self._provider, model, {**self._own, **own_fields}, request, extras)
        encoded = encode(fields)
        size = len(key[1]) + len(encoded)
        if size <= LONGEST_REMEMBERED:
            self._known[key] = encoded
            Fields._size += size
            while Fields._size > REMEMBERED_BYTES:
                (_, request_key), translated = self._known.popitem(last=False)
                Fields._size -= len(request_key) + len(translated)
        return fields


def _fields(
    provider: str, model: str, own: Mapping[str, Any], request: ModelRequest, extras: frozenset[str]
) -> dict[str, Any]:
    named, beside = for_litellm(request)
    arguments: dict[str, Any] = {
        **own,
        **{name: decoded(value) for name, value in named.items()},
        **{name: decoded(value) for name, value in beside.items() if name in extras},
    }
    if request.tools:
        arguments["tools"] = seam.FIX_TOOLS.get()(tools=[decoded(tool) for tool in request.tools])
        if request.tool_choice is not None:
            choice = decoded(request.tool_choice)
            arguments["tool_choice"] = seam.CHECK_TOOL_CHOICE.get()(tool_choice=choice, model=model)
    if "stop" in arguments:
        arguments["stop"] = seam.FIX_STOP.get()(stop=arguments["stop"])
    if "thinking" in arguments:
        arguments["thinking"] = seam.FIX_THINKING.get()(thinking=arguments["thinking"])
    fields: dict[str, Any] = seam.GET_OPTIONAL_PARAMS.get()(model=model, custom_llm_provider=provider, **arguments)
    return copy.deepcopy(fields)


NO_EVENT = "an event of the stream says nothing of what it is"


class EventsBody(JsonEvents):
    """Reads a stream."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report
        self.paused: list[Any] | None = None
        """The answer so far, where the provider paused."""

    def _read_payload(self, payload: Payload, event: Any) -> Sequence[ModelEvent]:
        if payload.is_error and not (isinstance(event, dict) and event.get("error")):
            return reported(payload.data)
        if has_duplicate_names_in_calls(payload.data):
            self.fault = TWICE
            return ()
        if not isinstance(event, dict):
            errors = self._chunks.read(event)
            if isinstance(event, list) and event and not errors:
                self.fault = NO_EVENT
            return errors
        if not isinstance(event.get("type"), str | None):
            self.fault = NO_EVENT
            return ()
        if (reported_error := error_in(event)) is not None:
            return self._chunks.read({"error": self._error(reported_error.body)})
        if error := field_of(event, "delta", "error"):
            return [*self._read_event(event), *self._chunks.read({"error": self._error(error)})]
        return self._read_event(event)

    def _error(self, error: object) -> object:
        """Return a provider's error with the HTTP status for it."""
        return error

    def _read_event(self, event: dict[str, Any]) -> list[ModelEvent]:
        """Read one event of the provider; sets `done` behind the last one."""
        raise NotImplementedError

    def _untranslated(self, error: Exception) -> list[ModelEvent]:
        self._report(error)
        self.fault = "an event of the stream could not be translated"
        return []


class MessageBody(WholeBody):
    """Reads a body that is one message."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.paused: list[Any] | None = None
        self._report = report

    def finish(self) -> Sequence[ModelEvent]:
        if has_duplicate_names_in_calls(b"".join(self._parts)):
            self.fault = TWICE
            return ()
        return super().finish()

    def _read(self, body: Any) -> Sequence[ModelEvent]:
        if isinstance(body, dict) and (reported_error := error_in(body)) is not None:
            self.is_done = True
            return ChunkReader().read({"error": self._error(reported_error.body)})
        if sum(map(len, self._parts)) > SURELY_FEW_CALLS and _calls_in(body) > MAX_CALLS:
            raise AnswerTooLarge(f"{MAX_CALLS} calls")
        if isinstance(body, dict):
            events = self._read_message(body)
        else:
            events = None
        if events is None:
            self.fault = self.fault or "the body is not a message"
            return ()
        self.is_done = True
        return events

    def _error(self, error: Any) -> object:
        """Return a provider's error with the HTTP status for it."""
        raise NotImplementedError

    def _read_message(self, body: dict[str, Any]) -> list[ModelEvent] | None:
        """Read a whole answer; None where it is not one."""
        raise NotImplementedError

    def _untranslated(self, error: Exception) -> None:
        """Note that the body could not be read."""
        self._report(error)
        self.fault = "the body could not be translated"


def _calls_in(body: Any) -> int:
    """Count the calls of an answer: litellm takes long for each, and the calls of one answer are limited."""
    calls = 0
    waiting = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            if "functionCall" in value or "toolUse" in value or value.get("type") == "tool_use":
                calls += 1
            else:
                waiting += value.values()
    return calls


SURELY_FEW_CALLS = 64 * 1024
"""Bytes that hold fewer calls than an answer may have."""
_CALLS = (b'"functionCall"', b'"tool_use"', b'"toolUse"')
_PIECES = (b'"partial_json"', b'"tool_calls"')
_REASONS = (b'_reason"', b'Reason"')
_ONCE = tuple(b'"%b"' % name for name in b"partial_json arguments name function tool_calls message delta index".split())
"""Names that occur once in an event with a piece of a call: quotes inside text are escaped."""


def has_duplicate_names_in_calls(text: bytes) -> bool:
    """True if an object in a text with a call, or with a finish reason, has a duplicate key. Which value its provider meant
    cannot be known."""
    is_doubtful = (
        any(word in text for word in _CALLS)
        or any(text.count(word) > 1 for word in _REASONS)
        or (any(word in text for word in _PIECES) and any(text.count(name) > 1 for name in _ONCE))
    )
    return is_doubtful and has_duplicate_names(text)


def mark_last_call(events: list[ModelEvent]) -> None:
    """Mark that something came behind the last call, so that the length limit has not cut it."""
    for place in range(len(events) - 1, -1, -1):
        event = events[place]
        if isinstance(event, CallWritten):
            events[place] = replace(event, at_once=False)
            return


def betas_in(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header that names Anthropic's beta features, where there is one: of all headers only it shapes bodies."""
    return {name.lower(): value for name, value in headers.items() if name.lower() == BETAS}


def items_of(value: Any) -> list[Any]:
    """Return the items of a list in a body, which a child may have written."""
    if isinstance(value, msgspec.Raw):
        return read_shape(value, list[msgspec.Raw])
    return list(value)


def tidy(choice: dict[str, Any], message: object) -> None:
    """Remove fields that litellm invented or repeats."""
    choice.pop("finish_reason", None)
    if isinstance(message, dict):
        fields = message.get("provider_specific_fields")
    else:
        fields = None
    if isinstance(fields, dict):
        fields.pop("thinking_blocks", None)  # they are in the message already


def field_of(value: object, *path: str | int) -> Any:
    for name in path:
        if isinstance(value, list) and isinstance(name, int):
            value = value[name] if name < len(value) else None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value
