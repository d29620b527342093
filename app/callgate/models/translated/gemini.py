"""Gemini behind Google AI Studio's API, and on Vertex AI. litellm's provider class makes the request and reads the answer;
the finish reason is read here, as Google sent it.
"""

import asyncio
import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.conversation.events import CallDelta, CallNotRun, CallWritten, ModelEvent
from callgate.conversation.finish import finished
from callgate.conversation.finish_words import FinishClass, FinishWords
from callgate.conversation.ports import ModelRequest
from callgate.models import errors
from callgate.models import litellm_seam as seam
from callgate.models.direct.chunks import entries, read_completion, reason_in, whole_number
from callgate.models.litellm_model import as_dicts
from callgate.models.resolve import LiteLLMSettings
from callgate.models.translated.past_results import put_in_objects
from callgate.models.translated.same_calls import take_marks_out, tell_calls_apart
from callgate.models.translated.translation import (
    EventsBody,
    Fields,
    MessageBody,
    ProviderRequest,
    Report,
    Unanswerable,
    encode,
    field_of,
    mark_last_call,
    messages_of,
    tidy,
)
from callgate.models.translated.wording import Elsewhere

PROVIDER = "gemini"
FUNCTIONS = "functions"
"""The only field of a request by which litellm reads its answer otherwise."""
BLOCKED = "content_filter"
"""The finish reason for a blocked prompt: there is no candidate with a reason then."""
WORDS = FinishWords(
    {
        FinishClass.STOP: "STOP",
        FinishClass.LENGTH: "MAX_TOKENS",
        FinishClass.CONTENT_FILTER: (
            f"SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT"
            f" IMAGE_RECITATION MODEL_ARMOR {BLOCKED}"
        ),
        FinishClass.ERROR: (
            "MALFORMED_FUNCTION_CALL MALFORMED_RESPONSE UNEXPECTED_TOOL_CALL FINISH_REASON_UNSPECIFIED"
        ),
    },
    is_closed=True,
)
"""https://ai.google.dev/api/generate-content#FinishReason. Its other values (LANGUAGE, OTHER, TOO_MANY_TOOL_CALLS,
MISSING_THOUGHT_SIGNATURE, …) say neither that the turn ended in order nor that the deployment failed."""


async def translate(
    litellm: Any,
    settings: LiteLLMSettings,
    request: ModelRequest,
    translate_fields: Fields,
    elsewhere: Elsewhere | None,
) -> ProviderRequest:
    """Make the request for Google AI Studio, or for Gemini on Vertex AI."""
    own = settings.arguments
    base = own.get("api_base") or own.get("base_url")
    model, provider, _, _ = litellm.get_llm_provider(
        model=own["model"], custom_llm_provider=own.get("custom_llm_provider"), api_base=base
    )
    entry_headers = {**(own.get("headers") or {}), **(own.get("extra_headers") or {})}
    is_vertex = provider != PROVIDER
    key = own.get("api_key") or (None if is_vertex else seam.GEMINI_KEY.get()())
    if is_vertex:
        token, project = await vertex_access(own, entry_headers)
        config = seam.VERTEX_CONFIG.get()()
    else:
        if not key:
            raise errors.auth_failed("no key: set litellm_params.api_key or GEMINI_API_KEY")
        base = base or seam.SECRET.get()("GEMINI_API_BASE")
        token = None
        project = None
        config = seam.GEMINI_CONFIG.get()()
    worded: GeminiWording
    if elsewhere is None:
        worded = await word(settings, request, translate_fields, model=model, provider=provider)
    else:
        worded = await elsewhere.word("gemini", request, RawGeminiWording, model=model, provider=provider)
    signature, url = seam.gemini_address(
        model=model,
        auth_header=token,
        gemini_api_key=key,
        vertex_project=project,
        vertex_location=own.get("vertex_location") or own.get("vertex_ai_location"),
        vertex_credentials=None,
        stream=request.stream,
        custom_llm_provider=provider,
        api_base=base,
    )
    headers = config.validate_environment(
        api_key=signature,
        headers=entry_headers,
        model=model,
        messages=[],
        optional_params={},
        litellm_params={},
    )
    # The parts of the request that litellm needs to read the answer.
    request_fields = SimpleNamespace(optional_params=worded.fields)
    body = worded.body | (own.get("extra_body") or {})
    parser = parser_of(request_fields)
    return ProviderRequest(
        url=url,
        headers={str(name): str(value) for name, value in headers.items()},
        body=encode(body),
        secrets=(*settings.secrets, *(secret for secret in (key, token) if secret)),
        as_events=partial(GeminiEvents, parser),
        as_message=partial(GeminiMessage, model, request_fields),
    )


class GeminiWording(msgspec.Struct):
    """A request in Google's words, and the fields of it that litellm needs to read the answer."""

    body: dict[str, Any]
    fields: dict[str, Any]


class RawGeminiWording(GeminiWording):
    """The same as a child wrote it: the parts of the body are not decoded."""

    body: dict[str, msgspec.Raw]


async def word(
    settings: LiteLLMSettings, request: ModelRequest, translate_fields: Fields, *, model: str, provider: str
) -> GeminiWording:
    """Have litellm make the body."""
    messages = messages_of(settings, model, request)
    put_in_objects(messages)
    tell_calls_apart(messages)
    # Cache marks are removed: litellm would create a cache at Google with requests of its own.
    marked, unmarked = seam.CACHED_MESSAGES.get()(messages)
    messages = _unmarked(messages) if marked else unmarked
    if seam.GEMINI_ASKS_STORAGE.get()(messages):
        raise Unanswerable("A file at Google's storage needs its `format` beside its address.", "messages")
    fields = translate_fields.of(model, request)
    reading = {name: value for name, value in fields.items() if name == FUNCTIONS}
    body = seam.GEMINI_BODY.get()(
        messages=messages,
        model=model,
        cached_content=fields.pop("cached_content", None),
        optional_params=fields,
        custom_llm_provider=provider,
        litellm_params={},
    )
    take_marks_out(body)
    return GeminiWording(body, reading)


def parser_of(request_fields: Any) -> Any:
    """Return litellm's parser of events. `request_fields`: those of the request, which it needs."""
    return seam.GEMINI_EVENTS.get()(streaming_response=None, sync_stream=False, logging_obj=request_fields)


async def vertex_access(own: Mapping[str, Any], headers: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return a token for Vertex AI, and the project. Google's library looks for both in files and on the network, so it runs
    in a thread; with an `Authorization` header in the entry it is not needed."""
    project = own.get("vertex_project") or own.get("vertex_ai_project") or os.environ.get("VERTEXAI_PROJECT")
    if authorization := next((str(value) for name, value in headers.items() if name.lower() == "authorization"), None):
        return authorization.removeprefix("Bearer "), project
    credentials = own.get("vertex_credentials") or own.get("vertex_ai_credentials")
    credentials = credentials or os.environ.get("VERTEXAI_CREDENTIALS")
    base = _vertex_base.setdefault("base", seam.VERTEX_BASE.get()())
    try:
        return await asyncio.to_thread(
            base.get_access_token, credentials, project
        )  # the library caches the token until it expires
    except ImportError:
        raise errors.auth_failed("Vertex AI needs a package: pip install 'callgate[vertex]'") from None


_vertex_base: dict[str, Any] = {}


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unmarked(inner) for name, inner in value.items() if name != "cache_control"}
    if isinstance(value, list):
        return [_unmarked(inner) for inner in value]
    return value


class GeminiEvents(EventsBody):
    """Reads a stream. It has no end mark: an answer is whole if its body ended and it had a finish reason."""

    def __init__(self, parser: Any, report: Report) -> None:
        super().__init__(report)
        self._parser = parser
        self._is_finished = False
        self._calls_seen: set[str] = set()
        self._held: CallDelta | None = None
        """The arguments of the latest call, until something follows it."""

    def finish(self) -> Sequence[ModelEvent]:
        events = [*super().finish(), *self._held_back(at_once=True)]
        self.is_done = self._is_finished
        return events

    def _error(self, error: object) -> object:
        return _with_status(error)

    def _read_event(self, event: dict[str, Any]) -> list[ModelEvent]:
        if error := _answer(event).get("error"):
            return self._chunks.read({"error": _with_status(error)})
        try:
            chunk = as_dicts(self._parser.chunk_parser(_for_litellm(event)))
        except Exception as error:  # noqa: BLE001 -- a KeyError, a pydantic error: whatever an odd event makes it raise
            return self._untranslated(error)
        for choice in chunk.get("choices") or ():
            tidy(choice, choice.get("delta"))
        read = _as_written(event, self._chunks.read({**chunk, "id": event.get("responseId")}), self._calls_seen)
        if _said_last(event) is not None:
            events = self._held_back(at_once=False)
        else:
            events = []
        for read_event in read:
            if isinstance(read_event, CallDelta):
                events += [*self._held_back(at_once=False), replace(read_event, arguments=None)]
                self._held = CallDelta(read_event.index, arguments=read_event.arguments)
            else:
                events.append(read_event)
        if self._held is not None and _said_last(event) is False:
            events += self._held_back(at_once=False)
        if (reason := _reason(event)) is not None:
            self._is_finished = True
            events += [*self._held_back(at_once=True), finished(reason, WORDS)]
        return events

    def _held_back(self, *, at_once: bool) -> list[ModelEvent]:
        calls = self._held
        self._held = None
        if calls is None:
            return []
        return [replace(calls, at_once=at_once)]


class GeminiMessage(MessageBody):
    def __init__(self, model: str, request_fields: Any, report: Report) -> None:
        super().__init__(report)
        self._model = model
        self._asked = request_fields

    def _error(self, error: Any) -> object:
        return _with_status(error)

    def _read_message(self, body: dict[str, Any]) -> list[ModelEvent] | None:
        reason = _reason(body)
        if reason == BLOCKED and not body.get("candidates"):
            head: dict[str, Any] = {"id": body.get("responseId"), "model": self._model, "choices": []}
            return [*read_completion(head), finished(reason, WORDS)]
        if not isinstance(body.get("candidates"), list):
            return None
        readable = _for_litellm(body)
        try:
            completion = seam.GEMINI_ANSWER.get()(
                seam.GEMINI_CONFIG.get()(),
                # litellm replaces a flagged answer by an empty one, without the text before the flag.
                completion_response={
                    "usageMetadata": {},
                    **readable,
                    "candidates": [
                        ({**candidate, "finishReason": "STOP"} if isinstance(candidate, dict) else candidate)
                        for candidate in readable["candidates"]
                    ],
                },
                model_response=seam.MODEL_RESPONSE.get()(),
                model=self._model,
                logging_obj=self._asked,
                raw_response=SimpleNamespace(headers={}),
            )
        except Exception as error:  # noqa: BLE001 -- as over the events of a stream
            self._untranslated(error)
            return None
        completion = {**as_dicts(completion), "id": body.get("responseId")}
        if "usageMetadata" not in body:
            completion.pop("usage", None)
        for choice in completion.get("choices") or ():
            choice.pop("provider_specific_fields", None)  # repeats the reason
            tidy(choice, choice.get("message"))
        events = _as_written(body, read_completion(completion), set())
        if reason is not None:
            events.append(finished(reason, WORDS))
            if _said_last(body) is False:
                mark_last_call(events)
        return events


def _answer(response: dict[str, Any]) -> dict[str, Any]:
    """Return the candidate that is the answer: of several the one with index 0."""
    for place, candidate in enumerate(entries(response.get("candidates"))):
        index = whole_number(candidate.get("index"))
        if (place if index is None else index) == 0:
            return candidate
    return {}


def _said_last(response: dict[str, Any]) -> bool | None:
    """True if the last content is a call; None where there is none."""
    for part in reversed(entries(field_of(_answer(response), "content", "parts"))):
        if "functionCall" in part or part.get("text"):
            return "functionCall" in part
    return None


def _calls(candidate: dict[str, Any], *, thought: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the calls of a candidate, or those that are part of its thinking."""
    for part in entries(field_of(candidate, "content", "parts")):
        if isinstance(call := part.get("functionCall"), dict) and bool(part.get("thought")) is thought:
            yield call


def _for_litellm(response: dict[str, Any]) -> dict[str, Any]:
    """Return the response as litellm can read it. Google leaves `args` out where there are none, and litellm fails then; a call
    within thinking is no call, and litellm takes it for one."""
    candidates = entries(response.get("candidates"))
    have_arguments = all("args" in call for candidate in candidates for call in _calls(candidate))
    if have_arguments and not any(any(_calls(candidate, thought=True)) for candidate in candidates):
        return response
    response = copy.deepcopy(response)
    for candidate in entries(response.get("candidates")):
        for call in _calls(candidate):
            call.setdefault("args", {})
        for part in entries(field_of(candidate, "content", "parts")):
            if part.get("thought") and "functionCall" in part:
                del part["functionCall"]
                part.setdefault("text", "")
    return response


def _as_written(response: dict[str, Any], events: list[ModelEvent], known_ids: set[str]) -> list[ModelEvent]:
    """Return the events with calls as Google sent them: without arguments where there are none, for the gate to decide, and
    only once where a call is sent again under its id, for which litellm makes a new one. `known_ids`: the ids of the calls so
    far."""
    candidate = _answer(response)
    calls = iter(list(_calls(candidate)))
    written: list[ModelEvent] = [
        CallNotRun(str(call.get("name")), "thinking") for call in _calls(candidate, thought=True)
    ]
    for event in events:
        if not isinstance(event, CallDelta | CallWritten):
            written.append(event)
            continue
        call = next(calls, {"args": True})
        identity = f"{call.get('id')} {call.get('name')} {json.dumps(call.get('args'), sort_keys=True)}"
        if call.get("id") and identity in known_ids:
            continue
        known_ids.add(identity)
        written.append(replace(event, arguments=_arguments(event.arguments, call)))
    return written


def _arguments(parsed: Any, call: dict[str, Any]) -> Any:
    if call.get("willContinue") or call.get("partialArgs"):
        return "{"  # streamed in parts with paths, a mode that is never requested here: marked as incomplete
    args = call.get("args")
    if args is None or args in ({}, ""):
        return None
    if not args:
        return args
    return parsed


def _reason(response: dict[str, Any]) -> str | None:
    """Return the finish reason as Google wrote it, of the candidate that is the answer."""
    if field_of(response, "promptFeedback", "blockReason"):
        return BLOCKED
    return reason_in(_answer(response).get("finishReason"))


def _with_status(error: Any) -> object:
    """Add a status to an error: Google has a number in `code`, and a name of its own in `status`."""
    if not isinstance(error, dict):
        return error
    code = error.get("code")
    if isinstance(code, int):
        return {**error, "status": code}
    return error
