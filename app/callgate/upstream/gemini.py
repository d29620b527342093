"""Gemini behind Google AI Studio's API. litellm's provider class words the request and reads the answer; the finish reason
is Google's own.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

from callgate.conversation.events import Finished, ModelEvent
from callgate.conversation.ports import ModelRequest
from callgate.upstream.chunks import read_completion
from callgate.upstream.litellm_model import plain
from callgate.upstream.resolve import ThroughLiteLLM
from callgate.upstream.translation import (
    EventsBody,
    Fields,
    Lost,
    MessageBody,
    Question,
    Untranslatable,
    encode,
    field_of,
    messages_of,
    tidy,
)

PROVIDER = "gemini"
BLOCKED = "content_filter"
"""For a prompt that Google would not have answered: there is no candidate then, and so no reason of its own."""


async def question(litellm: Any, way: ThroughLiteLLM, ask: ModelRequest, in_its_words: Fields) -> Question:
    from litellm.llms.gemini.common_utils import get_api_key_from_env
    from litellm.llms.vertex_ai.gemini import transformation
    from litellm.llms.vertex_ai.gemini.vertex_and_google_ai_studio_gemini import ModelResponseIterator, VertexLLM
    from litellm.secret_managers.main import get_secret_str

    own = way.arguments
    key = own.get("api_key") or get_api_key_from_env()
    if not key:
        raise Untranslatable("without a key")
    base = own.get("api_base") or own.get("base_url") or get_secret_str("GEMINI_API_BASE")
    model, provider, _, _ = litellm.get_llm_provider(
        model=own["model"], custom_llm_provider=own.get("custom_llm_provider"), api_base=base
    )
    if provider != PROVIDER:
        raise Untranslatable(provider)
    messages = messages_of(ask.messages)
    if _is_cached(messages):
        raise Untranslatable("litellm makes the cache with requests of its own")
    if transformation._openai_messages_may_need_sync_gcs_metadata_fetch(messages):  # noqa: SLF001 -- nothing else tells
        raise Untranslatable("litellm asks Google's storage what a file is")
    fields = in_its_words.of(litellm, model, ask)
    if "cached_content" in fields:
        raise Untranslatable("a cache of the provider's")
    signature, url = VertexLLM()._get_token_and_url(  # noqa: SLF001 -- what makes litellm's own address
        model=model,
        auth_header=None,
        gemini_api_key=key,
        vertex_project=None,
        vertex_location=None,
        vertex_credentials=None,
        stream=ask.stream,
        custom_llm_provider=PROVIDER,
        api_base=base,
    )
    config = litellm.GoogleAIStudioGeminiConfig()
    headers = config.validate_environment(
        api_key=signature,
        headers={**(own.get("headers") or {}), **(own.get("extra_headers") or {})},
        model=model,
        messages=messages,
        optional_params=fields,
        litellm_params={},
    )
    inlined = await transformation.async_inline_remote_media(
        messages, should_inline=transformation.should_inline_remote_media(PROVIDER)
    )
    # What litellm asks of the request again when it reads the answer.
    asked = SimpleNamespace(optional_params=dict(fields))
    body = transformation.transform_request_body(
        messages=inlined,
        model=model,
        optional_params=fields,
        custom_llm_provider=PROVIDER,
        litellm_params={},
        cached_content=None,
    )
    parser = ModelResponseIterator(streaming_response=None, sync_stream=False, logging_obj=asked)
    return Question(
        url=url,
        headers={str(name): str(value) for name, value in headers.items()},
        body=encode(body),
        secrets=(*way.secrets, str(key)),
        as_events=partial(_Events, parser),
        as_message=partial(_Message, litellm, model, asked),
    )


def _is_cached(messages: Any) -> bool:
    from litellm.llms.vertex_ai.context_caching.transformation import separate_cached_messages

    return bool(separate_cached_messages(messages)[0])


class _Events(EventsBody):
    """There is no end mark: an answer is over when its body is, if it named a reason."""

    def __init__(self, parser: Any, lost: Lost) -> None:
        super().__init__(lost)
        self._parser = parser
        self._is_finished = False

    def finish(self) -> list[ModelEvent]:
        events = [*super().finish()]
        self.done = self._is_finished
        return events

    def _told(self, event: dict[str, Any]) -> list[ModelEvent]:
        if event.get("error"):
            return self._chunks.read({"error": _with_status(event["error"])})
        try:
            chunk = plain(self._parser.chunk_parser(event))
        except Exception as error:  # noqa: BLE001 -- a KeyError, a pydantic error: whatever an odd event makes it raise
            return self._untranslated(error)
        for choice in chunk.get("choices") or ():
            tidy(choice, choice.get("delta"))
        found = self._chunks.read({**chunk, "id": event.get("responseId")})
        if (reason := _reason(event)) is not None:
            self._is_finished = True
            found.append(Finished(reason))
        return found


class _Message(MessageBody):
    def __init__(self, litellm: Any, model: str, asked: Any, lost: Lost) -> None:
        super().__init__(lost)
        self._litellm = litellm
        self._model = model
        self._asked = asked

    def _error(self, error: Any) -> object:
        return _with_status(error)

    def _told(self, body: dict[str, Any]) -> list[ModelEvent] | None:
        reason = _reason(body)
        if reason == BLOCKED and not body.get("candidates"):
            head: dict[str, Any] = {"id": body.get("responseId"), "model": self._model, "choices": []}
            return [*read_completion(head), Finished(reason)]
        if not isinstance(body.get("candidates"), list):
            return None
        try:
            completion = (
                self._litellm.GoogleAIStudioGeminiConfig()._transform_google_generate_content_to_openai_model_response(  # noqa: SLF001 -- its name
                    # A flagged answer litellm replaces by an empty one; what was said before the flag is lost with it.
                    completion_response={
                        **body,
                        "candidates": [_unflagged(each) for each in body["candidates"]],
                    },
                    model_response=self._litellm.ModelResponse(),
                    model=self._model,
                    logging_obj=self._asked,
                    raw_response=SimpleNamespace(headers={}),
                )
            )
        except Exception as error:  # noqa: BLE001 -- as over the events of a stream
            self._untranslated(error)
            return None
        completion = {**plain(completion), "id": body.get("responseId")}
        for choice in completion.get("choices") or ():
            choice.pop("provider_specific_fields", None)  # the reason once more
            tidy(choice, choice.get("message"))
        events = read_completion(completion)
        if reason is not None:
            events.append(Finished(reason))
        return events


def _unflagged(candidate: Any) -> Any:
    return {**candidate, "finishReason": "STOP"} if isinstance(candidate, dict) else candidate


def _reason(said: dict[str, Any]) -> str | None:
    """Why an answer ended, in the provider's own word; of several candidates the first is the answer."""
    if field_of(said, "promptFeedback", "blockReason"):
        return BLOCKED
    reason = field_of(said, "candidates", 0, "finishReason")
    return reason if isinstance(reason, str) else None


def _with_status(error: Any) -> object:
    """Google has a number in `code`, and in `status` a word of its own."""
    if not isinstance(error, dict):
        return error
    code = error.get("code")
    return {**error, "status": code} if isinstance(code, int) else error
