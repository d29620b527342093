"""The litellm lane, the import of litellm, and look-ups of what it knows about providers and models.

litellm supports providers that have no other lane. It also invents finish reasons, retries by itself, lets a request's
fields choose addresses and keys, and puts the provider's body into its errors. These changes are undone here as far as
possible; `tests/upstream/test_litellm_model.py` has a test for each of these behaviours, to notice when a new litellm
differs.
"""

import asyncio
import copy
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from math import inf
from typing import Any

from callgate.conversation import raw_json
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import Finished, ModelEvent, ProviderError
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough, as_read
from callgate.conversation.request_checks import check_request
from callgate.conversation.response_items import without_items
from callgate.http.interface import Deadlines
from callgate.upstream import errors, resolve
from callgate.upstream.bounds import check_schemas
from callgate.upstream.chunks import ChunkReader, read_completion
from callgate.upstream.direct_model import Endpoint
from callgate.upstream.first_content import has_begun
from callgate.upstream.media import Fetch, put_in
from callgate.upstream.params import for_litellm
from callgate.upstream.resolve import LiteLLMSettings, ModelConfig

COMMON_EXTRAS = frozenset(
    {"top_k", "min_p", "top_a", "repetition_penalty", "cache_control", "safety_settings", "extra_content"}
)
"""Fields outside OpenAI's that providers with their own APIs share. Those APIs have no `extra_body` for others."""
SHAPING = (
    "transform_request",
    "async_transform_request",
    "transform_response",
    "map_openai_params",
    "validate_environment",
    "get_complete_url",
    "get_model_response_iterator",
    "_transform_messages",
)
"""The methods by which a provider class of litellm changes OpenAI's formats, if it does."""


def refuse_hosted_tools(ask: ModelRequest) -> None:
    """Refuse tools of the type `mcp`: litellm would run them itself, on servers that the request names."""
    for place, tool in enumerate(map(raw_json.read, ask.tools)):
        if isinstance(tool, dict) and str(tool.get("type")).strip().lower() == "mcp":
            message = "Tools of type 'mcp' are not taken for this model. Add the server to Callgate's config instead."
            raise ChatError(400, message, param=f"tools[{place}].type", code="unsupported_value")


class LiteLLMModel:
    def __init__(self, name: str, settings: LiteLLMSettings, deadlines: Deadlines, fetch: Fetch | None = None) -> None:
        self.name = name
        self.host = resolve.host_of(settings.arguments)
        self._fetch = fetch
        self._settings = settings
        self._deadlines = deadlines

    @asynccontextmanager
    async def ask(self, ask: ModelRequest | Passthrough) -> AsyncIterator[ModelAnswer]:
        ask = as_read(ask)
        refuse_hosted_tools(ask)
        check_request(ask, plain_names=False)
        check_schemas(ask)
        litellm = await loaded()
        clock = _Clock(self._deadlines)
        messages = await put_in(
            [copy.deepcopy(without_items(decoded(message))) for message in ask.messages], self._fetch
        )
        arguments = self._arguments(litellm, ask, messages)
        try:
            async with asyncio.timeout(clock.until_first()):
                answer = await litellm.acompletion(**arguments)
        except TimeoutError:
            raise clock.passed("first_byte") from None
        except Exception as error:  # litellm's errors, openai's, and IndexErrors for an odd answer
            raise from_exception(error, self._settings.secrets) from error
        if not hasattr(answer, "aclose"):
            yield _WholeAnswer(answer, self._settings.secrets)
            return
        # litellm's reader of Anthropic's streams closes nothing itself, and the wrapper around it holds on to it.
        lines = getattr(answer.completion_stream, "streaming_response", None)
        try:
            async with aclosing(answer):
                yield _StreamedAnswer(answer, clock, self._settings.secrets)
        finally:
            clock.stop()
            if lines is not None and hasattr(lines, "aclose"):
                await lines.aclose()

    def _arguments(self, litellm: Any, ask: ModelRequest, messages: Sequence[Any]) -> dict[str, Any]:
        named, beside = for_litellm(ask)
        own = dict(self._settings.arguments)
        arguments: dict[str, Any] = {
            **own,
            **{name: decoded(value) for name, value in named.items()},
            "messages": messages,
            "stream": ask.stream,
            # No retries, and a timeout: we retry ourselves, and litellm's default timeout is 6000 seconds.
            "max_retries": 0,
            "num_retries": 0,
            "timeout": self._deadlines.total,
        }
        if ask.tools:
            arguments["tools"] = [decoded(tool) for tool in ask.tools]
            if ask.tool_choice is not None:
                arguments["tool_choice"] = decoded(ask.tool_choice)
        if ask.stream and self._settings.include_usage:
            arguments["stream_options"] = {"include_usage": True}
        extras = {name: decoded(value) for name, value in beside.items()}
        if _takes_extra_body(litellm, own):
            arguments["extra_body"] = {**(own.get("extra_body") or {}), **extras}
        else:
            arguments |= {name: value for name, value in extras.items() if name in COMMON_EXTRAS}
        return arguments


class _WholeAnswer:
    """One completion. litellm replaces a missing finish reason by `stop`, and keeps those that it rewrote in another field."""

    reason_is_raw = False
    lane = "litellm"

    def __init__(self, completion: Any, secrets: Sequence[str]) -> None:
        self._completion: Any = completion
        self._secrets = secrets

    def __aiter__(self) -> "_WholeAnswer":
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:
        if self._completion is None:
            raise StopAsyncIteration
        completion, self._completion = plain(self._completion), None
        for choice in completion.get("choices") or ():
            fields = choice.get("provider_specific_fields")
            if isinstance(fields, dict) and isinstance(native := fields.get("native_finish_reason"), str):
                choice["finish_reason"] = native
        events = read_completion(completion)
        if (failed := next((event for event in events if isinstance(event, ProviderError)), None)) is not None:
            raise errors.reported(failed.message, failed.body, {}, secrets=self._secrets)
        if not has_begun(events):
            raise errors.bad_answer("The model's provider sent an empty answer.")
        return events


class _StreamedAnswer:
    reason_is_raw = False
    lane = "litellm"

    def __init__(self, stream: Any, clock: "_Clock", secrets: Sequence[str]) -> None:
        self._stream = stream
        self._clock = clock
        self._secrets = secrets
        self._chunks = ChunkReader()
        self._begun = False
        self._reason = ""
        self._over = False

    def __aiter__(self) -> "_StreamedAnswer":
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:
        while not self._over:
            batch = await self._next_batch()
            if batch:
                self._begun = self._begun or has_begun(batch)
                return batch
        raise StopAsyncIteration

    async def _next_batch(self) -> Sequence[ModelEvent]:
        if self._stream.sent_stream_usage:
            # Its last chunk. To read on would make litellm build the whole answer a second time.
            return self._ended()
        try:
            self._clock.wait(begun=self._begun)
            chunk = await anext(self._stream)
        except StopAsyncIteration:
            return self._ended()
        except asyncio.CancelledError:
            if not self._clock.gave_up():
                raise
            return self._failed(self._clock.passed("idle" if self._begun else "first_byte"))
        except Exception as error:
            if (report := _report_in(error)) is not None:
                # The provider reported an error in its stream; finish reasons before it still count.
                self._over = True
                error_body = errors.read_error(report)
                if not self._begun:
                    raise errors.reported(error_body.message, {"error": report}, {}, secrets=self._secrets) from error
                return (ProviderError(errors.redact(error_body.message, self._secrets)[: errors.MESSAGE_CHARS]),)
            return self._failed(from_exception(error, self._secrets))
        finally:
            self._clock.rest()
        read = plain(chunk)
        for choice in read.get("choices") or ():
            choice.pop("finish_reason", None)
        return [*self._chunks.read(read), *self._received()]

    def _received(self) -> Sequence[ModelEvent]:
        """Return the finish reasons as they were received. Those in the chunks were mapped to OpenAI's five, a failed turn to
        `stop`, or invented."""
        received = self._stream.received_finish_reason or self._stream.intermittent_finish_reason
        if not isinstance(received, str) or received == self._reason:
            return ()
        self._reason = received
        return (Finished(received),)

    def _ended(self) -> Sequence[ModelEvent]:
        self._over = True
        reasons = self._received()
        if self._reason:
            return [*reasons, *self._chunks.finish()]
        if not self._begun:
            raise errors.bad_answer("The model's provider sent an empty answer.")
        # A body without an end mark and a whole one without a finish reason cannot be distinguished here.
        raise BrokenOff("the stream ended without a finish reason", transport_error=False)

    def _failed(self, error: ChatError) -> Sequence[ModelEvent]:
        self._over = True
        reasons = self._received()
        if self._reason:
            return reasons  # litellm also raises for what follows a finished answer
        if not self._begun:
            raise error
        raise BrokenOff(error.detail or error.message, transport_error=True) from error


class _Clock:
    """The deadlines of one request; litellm's own `timeout` bounds single reads only."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._now = asyncio.get_running_loop().time
        self._end = self._now() + deadlines.total
        self._first = self._now() + deadlines.first_byte
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf
        self._waits = False
        self._gave_up = False
        self._cancelled_before = 0

    def until_first(self) -> float:
        return max(0.0, min(self._first, self._end) - self._now())

    # One timer per stream, rescheduled only when it fires: each chunk costs two assignments.

    def wait(self, *, begun: bool) -> None:
        """Begin to wait for a chunk; if none comes in time, the task is cancelled, and `gave_up` is true."""
        self._task = asyncio.current_task()
        self._due = min(self._end, self._now() + self._deadlines.idle) if begun else min(self._first, self._end)
        self._waits = True
        if self._timer is None or self._timer.when() > self._due:
            self.stop()
            self._timer = asyncio.get_running_loop().call_at(self._due, self._look)

    def rest(self) -> None:
        self._waits = False

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def gave_up(self) -> bool:
        """True if only we cancelled the task."""
        return self._gave_up and self._task is not None and self._task.uncancel() <= self._cancelled_before

    def _look(self) -> None:
        self._timer = None
        if not self._waits or self._task is None:
            return
        if self._now() < self._due:
            self._timer = asyncio.get_running_loop().call_at(self._due, self._look)
        else:
            self._gave_up = True
            self._cancelled_before = self._task.cancelling()  # libraries do not always call `uncancel`
            self._task.cancel()

    def passed(self, which: str) -> errors.UpstreamError:
        if self._now() >= self._end:
            return errors.timed_out(
                "The model took longer than the time allowed.", "total", again=False, elsewhere=False
            )
        return errors.timed_out("The model's provider did not answer in time.", which, again=False)


_library: Any = None


async def loaded() -> Any:
    """Return litellm, imported on first use in a thread, because it takes seconds."""
    return _library if _library is not None else await asyncio.to_thread(_load)


def loaded_at_once() -> Any:
    """Return litellm, imported on first use on this thread: for reading a config."""
    return _library if _library is not None else _load()


def _load() -> Any:
    global _library  # noqa: PLW0603 -- a module is one per process, like the library it stands for
    # At import litellm fetches its price list from the network, with three attempts where there is none.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.set_verbose = False
    # It raises for a hundred equal chunks in a row, which a long line or an empty table may have.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize
    # Bedrock refuses a history with tool calls where no tools are offered, as in the last turn of a loop.
    litellm.modify_params = True
    _forbid_fetching(litellm)
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # its log lines contain requests and keys
    _library = litellm
    return litellm


def _forbid_fetching(litellm: Any) -> None:
    """Keep litellm from fetching the URLs in messages: it does so on the event loop, and without bounds."""
    from litellm.litellm_core_utils import url_utils

    def refuse(*_: Any, **__: Any) -> Any:
        raise litellm.ImageFetchError("addresses in messages are not fetched by litellm here")

    async def refuse_later(*_: Any, **__: Any) -> Any:
        refuse()

    for name, refusal in {"safe_get": refuse, "async_safe_get": refuse_later}.items():
        original = getattr(url_utils, name)
        for key, module in sys.modules.copy().items():  # which other threads add to meanwhile
            if key.startswith("litellm") and module.__dict__.get(name) is original:
                setattr(module, name, refusal)


async def close() -> None:
    """Stop litellm's background task and close its connections, at the end of the process."""
    if _library is None:
        return
    from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER

    await GLOBAL_LOGGING_WORKER.stop()
    await _library.close_litellm_async_clients()
    _library.in_memory_llm_clients_cache.flush_cache()  # or closed clients would be used again
    # The client outside its caches reconnects where it is used again.
    if (shared := vars(_library).get("module_level_aclient")) is not None:
        await shared.client._transport.aclose()  # noqa: SLF001 - closing the client itself would be for ever


async def vouched_endpoint(entry: ModelConfig) -> Endpoint | None:
    """Return the endpoint of an entry whose provider litellm knows and does not translate; None for all others."""
    litellm = await loaded()
    params = resolve.opened(entry.litellm_params)
    if entry.lane != "direct" and not resolve.is_plain(params):
        return None
    base = params.get("api_base") or params.get("base_url")
    try:
        model, provider, key, base = litellm.get_llm_provider(
            model=params["model"],
            custom_llm_provider=params.get("custom_llm_provider"),
            api_base=base,
            api_key=params.get("api_key"),
        )
    except litellm.exceptions.BadRequestError:
        if entry.lane == "direct" and base:  # the operator's choice; the name may hold slashes
            return resolve.endpoint_at(entry, params, params["model"], base, params.get("api_key"), None)
        return None
    if base is None or (entry.lane != "direct" and not _is_untouched(litellm, provider, model)):
        return None
    return resolve.endpoint_at(entry, params, model, base, params.get("api_key") or key, provider)


async def can_call_functions(entry: ModelConfig) -> bool | None:
    """Look up native tool calling in litellm's model list; None where the list does not say.

    litellm takes a missing field for a no, but 766 of its 3014 chat models lack it, `azure/o3-mini` among them.
    """
    litellm = await loaded()
    model = str(entry.litellm_params["model"])
    known = litellm.model_cost.get(model) or litellm.model_cost.get(model.partition("/")[2]) or {}
    error_body = known.get("supports_function_calling")
    return error_body if isinstance(error_body, bool) else None


def listed(model: str, word: str) -> bool | None:
    """Return litellm's entry for a model, where litellm is loaded anyway; None where it has none."""
    if _library is None:
        return None
    known = _library.model_cost.get(model) or _library.model_cost.get(model.partition("/")[2]) or {}
    error_body = known.get(word)
    return error_body if isinstance(error_body, bool) else None


def is_loaded() -> bool:
    return _library is not None


def from_exception(error: Exception, secrets: Sequence[str] = ()) -> errors.UpstreamError:
    """Return our error for what litellm raised. Its text holds the provider's body, so that it is not passed on as it is."""
    while isinstance(inner := getattr(error, "original_exception", None), Exception):
        error = inner
    kind = type(error).__name__
    text = str(getattr(error, "message", None) or error)
    detail = errors.redact(f"{kind}: {text}", secrets)[: errors.DETAIL_CHARS]
    status = getattr(error, "status_code", None)
    error_body = _said(error, text)
    # The provider's headers are a separate field; the response in litellm's errors is one that litellm made.
    found = getattr(error, "litellm_response_headers", None) or getattr(
        getattr(error, "response", None), "headers", None
    )
    headers = {str(name).lower(): str(value) for name, value in (found or {}).items()}
    if kind in {"Timeout", "APITimeoutError"}:
        return errors.timed_out("The model's provider did not answer in time.", detail, again=False)
    if kind == "APIConnectionError":
        return errors.bad_answer("The connection to the model's provider was lost.", detail)
    if kind == "LiteLLMUnknownProvider" or "LLM Provider NOT provided" in text:
        return errors.bad_answer("The proxy's entry for this model names no known provider.", detail, again=False)
    if kind == "ContextWindowExceededError":
        return errors.client_mistake(400, errors.replaced(error_body, code="context_length_exceeded"), detail, secrets)
    if kind == "ContentPolicyViolationError":
        return errors.client_mistake(400, errors.replaced(error_body, code="content_filter"), detail, secrets)
    if not isinstance(status, int) or status < 400 or (status == 422 and not headers):
        # litellm makes a 422 without headers for a 200 that it could not read.
        return errors.bad_answer("The model's provider sent something that is not an answer.", detail)
    return errors.from_status(status, headers, error_body, secrets=secrets)


def from_request(error: Exception, secrets: Sequence[str] = ()) -> ChatError:
    """Return our error for what litellm raised while it translated a request: a client error unless it has another status."""
    if isinstance(getattr(error, "status_code", None), int):
        return from_exception(error, secrets)
    detail = errors.redact(f"{type(error).__name__}: {error}", secrets)[: errors.DETAIL_CHARS]
    return ChatError(400, "The request cannot be put into the words of this model's provider.", detail=detail)


def _report_in(error: BaseException | None) -> object | None:
    """Return the error object of a stream, which the SDK has on an `APIError` among the causes of what litellm raises."""
    while error is not None:
        body = getattr(error, "body", None)
        if type(error).__name__ == "APIError" and isinstance(body, (dict, str)) and body:
            return body
        error = getattr(error, "original_exception", None) or error.__cause__ or error.__context__
    return None


def plain(value: Any) -> Any:
    """Convert litellm's response objects to dicts as the provider sent them; None stands for a missing field."""
    if type(value) in _LEAVES:
        return value
    if hasattr(value, "__pydantic_extra__"):
        value = {**value.__dict__, **value.__pydantic_extra__} if value.__pydantic_extra__ else value.__dict__
    if isinstance(value, dict):
        return {
            name: inner if type(inner) in _LEAVES else plain(inner)
            for name, inner in value.items()
            if inner is not None
        }
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


_LEAVES = frozenset({str, int, float, bool, type(None)})


def decoded(value: Any) -> Any:
    """Decode raw bytes in a value, for litellm, which reads messages."""
    return raw_json.read(value)


def _takes_extra_body(litellm: Any, arguments: Mapping[str, Any]) -> bool:
    try:
        _, provider, _, _ = litellm.get_llm_provider(
            model=arguments["model"],
            custom_llm_provider=arguments.get("custom_llm_provider"),
            api_base=arguments.get("api_base"),
        )
    except litellm.exceptions.BadRequestError:
        return False
    return provider in {"openai", "azure", *litellm.openai_compatible_providers}


def _is_untouched(litellm: Any, provider: str, model: str) -> bool:
    from litellm.llms.openai.chat.gpt_transformation import OpenAIGPTConfig
    from litellm.types.utils import LlmProviders
    from litellm.utils import ProviderConfigManager

    if litellm.model_cost.get(model, {}).get("mode", "chat") != "chat" or provider not in set(LlmProviders):
        return False
    config = ProviderConfigManager.get_provider_chat_config(model, LlmProviders(provider))
    return isinstance(config, OpenAIGPTConfig) and all(
        getattr(type(config), name, None) is getattr(OpenAIGPTConfig, name, None) for name in SHAPING
    )


def _said(error: Exception, text: str) -> errors.ErrorBody:
    if (error_body := errors.read_error(getattr(error, "body", None))).message:
        return error_body
    if (start := text.find("{")) >= 0:
        try:
            body, _ = json.JSONDecoder().raw_decode(text[start:])
        except (ValueError, RecursionError):
            body = None
        if (error_body := errors.read_error(body)).message:
            return error_body
    # litellm writes "litellm.BadRequestError: OpenAIException - what the provider said".
    return errors.ErrorBody(
        message=text.rpartition("Exception - ")[2].removeprefix(f"litellm.{type(error).__name__}: ")
    )
