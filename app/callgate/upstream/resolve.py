"""From one entry's `litellm_params` to the way its model is reached: an endpoint of our own, or litellm.

The common OpenAI-shaped providers are known here by a table, so that reaching them loads nothing. For any other name
litellm is asked where it leads and whether its provider class leaves OpenAI's shapes untouched; only then is the direct
lane taken. What cannot be vouched for goes through litellm.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from callgate.http.interface import Deadlines
from callgate.upstream.direct_model import ANSWER_BYTES, Endpoint
from callgate.upstream.params import NAMED

Lane: TypeAlias = Literal["auto", "direct", "translated", "litellm"]


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One entry of `model_list`, its variables already replaced. Several entries with one name are its deployments."""

    model_name: str
    litellm_params: Mapping[str, Any] = field(repr=False)
    """As litellm takes them; secrets are plain strings or have `get_secret_value`."""
    tools: tuple[str, ...] = ()
    """Names or globs of house tools that the model is offered."""
    fallbacks: tuple[str, ...] = ()
    tool_calling: str = "auto"
    calls_natively: bool | None = None
    """What the operator's `model_info` says of it; asked where `tool_calling` is `auto`."""
    constrain_calls: bool = False
    """Whether calls that are asked for in a prompt may be enforced with `response_format`."""
    lane: Lane = "auto"
    schema_dialect: Literal["auto", "full", "openai", "gemini", "anthropic", "llama_cpp"] = "auto"
    sees_images: bool | None = None
    """What the config says of it; None where it says nothing."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    answer_bytes: int = ANSWER_BYTES
    """How long one answer may be. Kept where we read the wire ourselves; litellm gives no bytes to count."""
    include_usage: bool = True
    """Whether streams are asked for `stream_options.include_usage`."""
    format_with_tools: bool = True
    """Whether it takes a `response_format` beside tools."""


class LaneError(ValueError):
    """An entry that asks for something it cannot have; said at load."""


@dataclass(frozen=True, slots=True)
class Provider:
    """An OpenAI-shaped provider as litellm knows it: where it is by default, and the variables that say otherwise."""

    base: str | None
    base_variables: tuple[str, ...]
    key_variable: str


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("https://api.openai.com/v1", ("OPENAI_BASE_URL", "OPENAI_API_BASE"), "OPENAI_API_KEY"),
    "hosted_vllm": Provider(None, ("HOSTED_VLLM_API_BASE",), "HOSTED_VLLM_API_KEY"),
    "lm_studio": Provider(None, ("LM_STUDIO_API_BASE",), "LM_STUDIO_API_KEY"),
    "openai_like": Provider(None, ("OPENAI_LIKE_API_BASE",), "OPENAI_LIKE_API_KEY"),
    "custom_openai": Provider(None, (), "CUSTOM_OPENAI_API_KEY"),
    "llamafile": Provider("http://127.0.0.1:8080/v1", ("LLAMAFILE_API_BASE",), "LLAMAFILE_API_KEY"),
}
OPENAI_NAMES = re.compile(r"(?:gpt-|chatgpt-|o[1-9](?:-|$)|ft:gpt-)[A-Za-z0-9.:_-]*")
"""Names that litellm takes for OpenAI's without a prefix."""
NOT_CHAT = re.compile(r"responses/|.*(?:-pro(?:-\d|$)|codex|deep-research)")
"""OpenAI models that answer on the Responses API alone; litellm has a bridge to it and we have not."""

KNOW_DEVELOPERS = frozenset({"openai", "azure", None})
"""Providers to whom the role `developer` goes as it is, and those of whom only the operator knows."""

_CREDENTIALS = frozenset({"api_key", "api_base", "base_url", "organization", "extra_headers", "headers"})
_UNDERSTOOD = frozenset({"model", "custom_llm_provider", "extra_body", *_CREDENTIALS, *NAMED})
_ROUTING = frozenset(
    """
    rpm tpm weight order max_parallel_requests max_retries num_retries timeout stream_timeout request_timeout
    model_info tags input_cost_per_token output_cost_per_token input_cost_per_second output_cost_per_second
    max_budget budget_duration cooldown_time use_in_pass_through drop_params stream
    """.split()
)
"""Settings of litellm's router: they change when a deployment is asked and not what it is asked."""
TRANSLATED = ("anthropic", "gemini")
"""Providers whose translation is vouched for: it was compared with the litellm lane, answer by answer."""
_TRANSLATABLE = frozenset({"model", "custom_llm_provider", "top_k", "cache_control", *_CREDENTIALS, *NAMED}) - {
    "organization"
}


@dataclass(frozen=True, slots=True)
class ThroughLiteLLM:
    """Everything that goes to `acompletion` beside the request: the model, its address, its key and other settings."""

    arguments: Mapping[str, Any] = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    include_usage: bool = True


def known_endpoint(entry: ModelEntry) -> Endpoint | None:
    """The endpoint of an entry that the table vouches for, or None. Loads nothing."""
    params = opened(entry.litellm_params)
    provider, model = split_provider(params)
    known = PROVIDERS.get(provider or "")
    if known is None:
        return None
    if entry.lane == "auto" and (not is_understood(params) or (provider == "openai" and NOT_CHAT.match(model))):
        return None
    base = _base(params) or next(
        (found for name in known.base_variables if (found := os.environ.get(name))), known.base
    )
    if base is None:
        return None
    key = params.get("api_key") or os.environ.get(known.key_variable)
    return endpoint_at(entry, params, model, base, key, provider)


def endpoint_at(
    entry: ModelEntry, params: Mapping[str, Any], model: str, base: str, key: str | None, provider: str | None
) -> Endpoint:
    headers = {str(name): str(value) for name, value in _headers(params).items()}
    if key:
        headers.setdefault("Authorization", f"Bearer {key}")
    if organization := params.get("organization"):
        headers.setdefault("OpenAI-Organization", str(organization))
    extra = params.get("extra_body")
    return Endpoint(
        url=chat_url(base),
        model=model,
        headers=headers,
        secrets=secrets_in(params, key),
        defaults={name: value for name, value in params.items() if name in NAMED}
        | (extra if isinstance(extra, dict) else {}),
        include_usage=entry.include_usage,
        knows_developers=provider in KNOW_DEVELOPERS,
    )


def through_litellm(entry: ModelEntry) -> ThroughLiteLLM:
    params = opened(entry.litellm_params)
    arguments = {name: value for name, value in params.items() if name not in _ROUTING or name == "drop_params"}
    # Asked for tools once, litellm's `ollama` writes them into the prompts of every provider in the process from then on.
    if str(arguments["model"]).startswith("ollama/"):
        arguments["model"] = "ollama_chat/" + str(arguments["model"]).removeprefix("ollama/")
    if arguments.get("custom_llm_provider") == "ollama":
        arguments["custom_llm_provider"] = "ollama_chat"
    return ThroughLiteLLM(arguments, secrets_in(params, None), entry.include_usage)


def check(entry: ModelEntry) -> None:
    """Refuse, at load, what could never work."""
    if not isinstance(entry.litellm_params.get("model"), str) or not entry.litellm_params["model"]:
        raise LaneError("litellm_params.model is missing")
    params = opened(entry.litellm_params)
    base = _base(params)
    if base is not None and urlsplit(base).scheme not in {"http", "https"}:
        raise LaneError(f"litellm_params.api_base is not an http address: {base!r}")
    provider, _ = split_provider(params)
    if entry.lane == "translated" and (why := why_not_translated(entry)) is not None:
        raise LaneError(f"lane is translated, and {why}: set lane: auto or litellm")
    if entry.lane == "direct" and known_endpoint(entry) is None and base is None:
        needed = PROVIDERS.get(provider or "")
        raise LaneError(
            "lane is direct, and where the model is cannot be told without litellm: set litellm_params.api_base"
            + (f" or {needed.base_variables[0]}" if needed and needed.base_variables else "")
        )


def why_not_translated(entry: ModelEntry) -> str | None:
    """What speaks against the translated lane for this entry, or None."""
    params = opened(entry.litellm_params)
    if provider_of(params) not in TRANSLATED:
        vouched = ", ".join(f"{name}/" for name in TRANSLATED)
        return f"that is vouched for with {vouched} models only"
    if unknown := set(params) - _TRANSLATABLE - _ROUTING:
        return f"only the litellm lane can honour {', '.join(sorted(unknown))}"
    return None


def provider_of(params: Mapping[str, Any]) -> str | None:
    """The provider that an entry names, if it names one."""
    prefix, slash, _ = str(params.get("model", "")).partition("/")
    given = params.get("custom_llm_provider")
    return str(given) if given else (prefix if slash else None)


def split_provider(params: Mapping[str, Any]) -> tuple[str | None, str]:
    """The provider litellm would find, as far as that can be said without it, and the name the provider knows."""
    model = str(params.get("model", ""))
    prefix, slash, rest = model.partition("/")
    if given := params.get("custom_llm_provider"):
        return str(given), rest if slash and prefix == given else model
    if slash and prefix in PROVIDERS:
        return prefix, rest
    if not slash and OPENAI_NAMES.fullmatch(model):
        return "openai", model
    return None, model


def is_understood(params: Mapping[str, Any]) -> bool:
    """Whether the direct lane can honour every setting; one that only litellm knows needs litellm."""
    return not set(params) - _UNDERSTOOD - _ROUTING


def opened(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with wrapped secrets taken out of their wrapping; unset ones left out."""
    return {name: _plain(value) for name, value in params.items() if value is not None}


def secrets_in(params: Mapping[str, Any], key: str | None) -> tuple[str, ...]:
    found = [key, *(value for name, value in params.items() if _is_secret(name)), *_headers(params).values()]
    return tuple({value for value in found if isinstance(value, str) and len(value) >= 4})


def chat_url(base: str) -> str:
    base = base.rstrip("/")
    return base if base.endswith("/chat/completions") else f"{base}/chat/completions"


def _base(params: Mapping[str, Any]) -> str | None:
    base = params.get("api_base") or params.get("base_url")
    return None if base is None else str(base)


def _headers(params: Mapping[str, Any]) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    for name in ("headers", "extra_headers"):
        if isinstance(found := params.get(name), Mapping):
            headers |= found
    return headers


def _plain(value: Any) -> Any:
    if hasattr(value, "get_secret_value"):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return value


def _is_secret(name: str) -> bool:
    return any(part in name for part in ("key", "token", "secret", "password", "credential"))
