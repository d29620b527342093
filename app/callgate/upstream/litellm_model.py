"""The import of litellm, its errors and objects as ours, and look-ups of what it knows about providers and models.

What it changes for the whole process is undone here; `tests/upstream/test_litellm_model.py` has a test for each of these
behaviours, to notice when a new litellm differs.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from callgate.conversation import raw_json
from callgate.conversation.errors import ChatError
from callgate.upstream import errors, resolve
from callgate.upstream.direct_model import Endpoint
from callgate.upstream.resolve import ModelConfig

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

    from callgate.upstream import tap  # it needs httpx, which is loaded with litellm only

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.set_verbose = False
    # It raises for a hundred equal chunks in a row, which a long line or an empty table may have.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize
    # Bedrock refuses a history with tool calls where no tools are offered, as in the last turn of a loop.
    litellm.modify_params = True
    _forbid_fetching(litellm)
    tap.install()
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
