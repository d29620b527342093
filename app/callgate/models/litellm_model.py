"""The import of litellm, its errors and objects as ours, and look-ups of what it knows about providers and models.

What it changes for the whole process is undone here; `tests/models/test_litellm_model.py` has a test for each of these
behaviours, to notice when a new litellm differs.
"""

import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from callgate.conversation import raw_json
from callgate.conversation.errors import ChatError
from callgate.models import errors, resolve
from callgate.models import litellm_seam as seam
from callgate.models.direct.model import Endpoint
from callgate.models.providers import UNNAMED, Provider, provider_named
from callgate.models.resolve import ModelConfig
from callgate.untrusted.doors import open_text
from callgate.untrusted.readers import value_at

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
    if _library is not None:
        return _library
    return await asyncio.to_thread(_load)


def loaded_at_once() -> Any:
    """Return litellm, imported on first use on this thread: for reading a config."""
    if _library is not None:
        return _library
    return _load()


def _load() -> Any:
    global _library  # noqa: PLW0603 -- a module is one per process, like the library it stands for
    # At import litellm fetches its price list from the network, with three attempts where there is none.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with _all_that_stays():
        litellm = seam.library()
        from callgate.models.litellm_lane import tap  # it needs httpx, which is loaded with litellm only

    seam.set_switches()
    seam.send_questions_as_they_are()
    _forbid_fetching()
    tap.install()
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # its log lines contain requests and keys
    _library = litellm
    return litellm


@contextlib.contextmanager
def _all_that_stays() -> Iterator[None]:
    """Make objects that are not looked through for garbage: of the library's half a million a look takes 0.2 s, during which the
    event loop stands still."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _forbid_fetching() -> None:
    """Keep litellm from fetching the URLs in messages: it does so on the event loop, and without bounds."""
    url_utils = seam.URL_UTILS.get()

    def refuse(*_: Any, **__: Any) -> Any:
        raise seam.FETCH_ERROR.get()("addresses in messages are not fetched by litellm here")

    async def refuse_later(*_: Any, **__: Any) -> Any:
        refuse()

    for name, refusal in {"safe_get": refuse, "async_safe_get": refuse_later}.items():
        original = getattr(url_utils, name)
        for key, module in sys.modules.copy().items():  # which other threads add to meanwhile
            if key.startswith("litellm") and module.__dict__.get(name) is original:
                setattr(module, name, refusal)


async def close() -> None:
    """Stop litellm's background task and close its connections, at the end of the process."""
    if _library is not None:
        await seam.close_connections()


async def vouched_endpoint(entry: ModelConfig) -> Endpoint | None:
    """Return the endpoint of an entry whose provider litellm knows and does not translate; None for all others."""
    litellm = await loaded()
    params = resolve.revealed(entry.litellm_params)
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
            return resolve.endpoint_at(entry, params, params["model"], base, params.get("api_key"), UNNAMED)
        return None
    if base is None or (entry.lane != "direct" and not _is_untouched(litellm, provider, model)):
        return None
    row = provider_named(provider) or Provider(name=provider, wire="openai")
    return resolve.endpoint_at(entry, params, model, base, params.get("api_key") or key, row)


async def can_call_functions(entry: ModelConfig) -> bool | None:
    """Look up native tool calling in litellm's model list; None where the list does not say.

    litellm takes a missing field for a no, but 766 of its 3014 chat models lack it, `azure/o3-mini` among them.
    """
    litellm = await loaded()
    model = str(entry.litellm_params["model"])
    facts = litellm.model_cost.get(model) or litellm.model_cost.get(model.partition("/")[2]) or {}
    error_body = facts.get("supports_function_calling")
    if isinstance(error_body, bool):
        return error_body
    return None


def listed(model: str, word: str) -> bool | None:
    """Return litellm's entry for a model, where litellm is loaded anyway; None where it has none."""
    if _library is None:
        return None
    facts = _library.model_cost.get(model) or _library.model_cost.get(model.partition("/")[2]) or {}
    error_body = facts.get(word)
    if isinstance(error_body, bool):
        return error_body
    return None


def supported_params(litellm: Any, arguments: Mapping[str, Any]) -> Sequence[str]:
    """Return the fields of OpenAI's that litellm knows of an entry's model; none where it does not know the model."""
    try:
        model, provider, _, _ = litellm.get_llm_provider(
            model=arguments["model"],
            custom_llm_provider=arguments.get("custom_llm_provider"),
            api_base=arguments.get("api_base"),
            api_key=arguments.get("api_key"),
        )
    except litellm.exceptions.BadRequestError:
        return ()
    return litellm.get_supported_openai_params(model=model, custom_llm_provider=provider) or ()


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
    raw_headers = getattr(error, "litellm_response_headers", None) or getattr(
        getattr(error, "response", None), "headers", None
    )
    headers = {str(name).lower(): str(value) for name, value in (raw_headers or {}).items()}
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


def as_dicts(value: Any) -> Any:
    """Convert litellm's response objects to dicts as the provider sent them; None stands for a missing field."""
    if type(value) in _LEAVES:
        return value
    if hasattr(value, "__pydantic_extra__"):
        if value.__pydantic_extra__:
            value = {**value.__dict__, **value.__pydantic_extra__}
        else:
            value = value.__dict__
    if isinstance(value, dict):
        return {
            name: inner if type(inner) in _LEAVES else as_dicts(inner)
            for name, inner in value.items()
            if inner is not None
        }
    if isinstance(value, (list, tuple)):
        return [as_dicts(inner) for inner in value]
    return value


_LEAVES = frozenset({str, int, float, bool, type(None)})


def decoded(value: Any) -> Any:
    """Decode raw bytes in a value, for litellm, which reads messages."""
    return raw_json.read(value)


def _is_untouched(litellm: Any, provider: str, model: str) -> bool:
    names = seam.PROVIDER_NAMES.get()
    openais = seam.OPENAI_CONFIG.get()
    if litellm.model_cost.get(model, {}).get("mode", "chat") != "chat" or provider not in set(names):
        return False
    config = seam.CHAT_CONFIG.get()(model, names(provider))
    return isinstance(config, openais) and all(
        getattr(type(config), name, None) is getattr(openais, name, None) for name in SHAPING
    )


def _said(error: Exception, text: str) -> errors.ErrorBody:
    if (error_body := errors.read_error(getattr(error, "body", None))).message:
        return error_body
    if (start := text.find("{")) >= 0:
        try:
            body, _ = value_at(open_text(text[start : start + errors.ERROR.bytes], errors.ERROR), 0)
        except (ValueError, RecursionError):
            body = None
        if (error_body := errors.read_error(body)).message:
            return error_body
    # litellm writes "litellm.BadRequestError: OpenAIException - what the provider said".
    return errors.ErrorBody(
        message=text.rpartition("Exception - ")[2].removeprefix(f"litellm.{type(error).__name__}: ")
    )
