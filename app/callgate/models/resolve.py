"""Chooses the lane for an entry by its `litellm_params`.

`direct` for providers with OpenAI's wire format, `responses` for models that have only OpenAI's Responses API, `translated`
for providers whose own wire format has a reader here, `litellm` for the rest.
The lane depends on the entry alone and not on litellm, so that it is known when the config is read and never changes. On
all lanes but `litellm` the end of an answer is read as the provider sent it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from callgate.calls.search_setting import NO_SEARCH, SearchSetting
from callgate.config.unprinted import Unprinted
from callgate.conversation.finish_words import FinishClass, further_words
from callgate.http.interface import Deadlines
from callgate.models.direct.model import ANSWER_BYTES, Endpoint, host_in
from callgate.models.params import COUNTS_COMPLETIONS, NAMED
from callgate.models.providers import (
    DEFAULT,
    DEMO,
    MODEL_PREFIXES,
    OPENAI_NAMES,
    OPENAI_WIRES,
    Dialect,
    Provider,
    Wire,
    provider_named,
)
from callgate.policy.litellm_settings import is_setting

Lane: TypeAlias = Literal["auto", "direct", "responses", "translated", "litellm"]


class ModelConfig(Unprinted, frozen=True):
    """One entry of `model_list`, with its variables replaced. Several entries with one name are its deployments."""

    unprinted = frozenset({"litellm_params"})

    model_name: str
    litellm_params: Mapping[str, Any]
    """In litellm's format; secrets are plain strings or have `get_secret_value`."""
    tools: tuple[str, ...] = ()
    """Names or globs of the server-side tools that the model is offered."""
    fallbacks: tuple[str, ...] = ()
    tool_calling: str = "auto"
    calls_natively: bool | None = None
    """The operator's `model_info`, which counts where `tool_calling` is `auto`."""
    thinking: Literal["auto", "prefilled", "none"] = "auto"
    """Whether its chat template opens the thinking block, where calls are read from its text."""
    constrain_calls: bool = False
    """Whether prompted calls may be enforced with `response_format`."""
    lane: Lane = "auto"
    schema_dialect: Dialect | Literal["auto"] = "auto"
    sees_images: bool | None = None
    reads_files: bool | None = None
    """The config's setting; None where it has none."""
    deadlines: Deadlines = msgspec.field(default_factory=Deadlines)
    answer_bytes: int = ANSWER_BYTES
    """The limit of one answer, in bytes as received."""
    include_usage: bool = True
    """Whether streams are asked for `stream_options.include_usage`."""
    format_with_tools: bool = True
    """Whether it takes a `response_format` beside tools."""
    provider_selectors: bool = False
    """Whether a request may choose among the provider's models and hosts."""
    trust_litellm: Literal["auto", "on", "off"] = "auto"
    """Whether calls may run on litellm's lane: where the provider's end was seen, always on litellm's word, or never."""
    finish_reasons: Mapping[FinishClass, Sequence[str]] = msgspec.field(default_factory=dict)
    """Further finish reasons of its server, by their class."""
    events: Literal["off", "x", "reasoning", "openwebui"] | None = None
    """How responses show that its tools run, unless the request or the key sets it."""
    offer: Literal["any", "with_client_tools"] = "any"
    """Which requests its tools are offered to, unless the key says."""
    hosted_tools: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The tools of the config that stand for those of a provider, by type, where the config says so of this entry."""
    usage: Literal["auto", "sum", "last_turn"] = "auto"
    """Which token counts answers report, unless the request or the key sets it."""
    tool_search: SearchSetting = NO_SEARCH
    """How its tools are kept out of its prompts."""
    max_input_tokens: int | None = None
    """The tokens that it takes, where its entry says."""
    context_tokens: int | None = None
    """The tokens of its context, where the config says them."""
    clear_results_above: int | None = None
    """The tokens of a prompt beyond which the oldest results of our tools are cleared; None for never."""
    provider: Provider | None = None
    """The provider of its model, where the config defines it."""
    pattern: str | None = None
    """The wildcard that matched this entry's name; limits and prices are those of the wildcard."""

    @property
    def configured_name(self) -> str:
        """The name in the config: the wildcard where one matched."""
        return self.pattern or self.model_name


class LaneError(ValueError):
    """Raised at load for an entry with impossible settings."""


RESPONSES_MARK = "responses/"
"""litellm's prefix for models on the Responses API."""
_CREDENTIALS = frozenset({"api_key", "api_base", "base_url", "organization", "extra_headers", "headers"})
_ROUTING = frozenset(
    """
    rpm tpm weight order max_parallel_requests max_retries num_retries timeout stream_timeout request_timeout
    model_info tags input_cost_per_token output_cost_per_token input_cost_per_second output_cost_per_second
    max_budget budget_duration cooldown_time use_in_pass_through drop_params stream
    """.split()
)
"""Settings of litellm's router, which do not change the request."""
_PLAIN = frozenset({"model", "custom_llm_provider", "extra_body", *_CREDENTIALS, *NAMED, *_ROUTING})
"""Settings that the direct lane supports without litellm."""
_MAPPED = _PLAIN | {"additional_drop_params", "allowed_openai_params", "cache_control_injection_points"}


class LiteLLMSettings(Unprinted, frozen=True):
    """The arguments of `acompletion` that are not from the request: the model, its address, its key and other settings."""

    unprinted = frozenset({"arguments", "secrets"})

    arguments: Mapping[str, Any]
    secrets: tuple[str, ...] = ()
    include_usage: bool = True


def known_endpoint(entry: ModelConfig) -> Endpoint | None:
    """Return the endpoint of an entry that is asked without litellm, or None. Does not load litellm."""
    params = revealed(entry.litellm_params)
    name, model = split_provider(params)
    provider = _provider_of(entry, name)
    if (
        provider is None
        or provider.wire != "openai"
        or (provider.own_options is not None and why_not_direct(entry) is not None)
    ):
        return None
    if entry.lane == "auto" and (not is_plain(params) or _is_no_chat(provider, model, params)):
        return None
    return _endpoint_of(entry, params, provider, model)


def responses_endpoint(entry: ModelConfig) -> Endpoint | None:
    """Return the Chat Completions endpoint of an entry on the lane `responses`; None where its address is not known."""
    params = revealed(entry.litellm_params)
    name, model = split_provider(params)
    provider = _provider_of(entry, name)
    if provider is None or provider.wire != "openai":
        provider = Provider(name=name or "", wire="openai", knows_developers=name is None)
    return _endpoint_of(entry, params, provider, model.removeprefix(RESPONSES_MARK))


def _provider_of(entry: ModelConfig, name: str | None) -> Provider | None:
    """Return what is known of an entry's provider: what its config says, or its row."""
    return entry.provider or provider_named(name)


def _endpoint_of(entry: ModelConfig, params: Mapping[str, Any], provider: Provider, model: str) -> Endpoint | None:
    base = _base(params) or address_of(provider)
    if base is None:
        return None
    if provider.path and not urlsplit(base).path.rstrip("/"):
        base = base.rstrip("/") + provider.path
    key = params.get("api_key") or os.environ.get(provider.key_variable)
    return endpoint_at(entry, params, model, base, key, provider)


def address_of(provider: Provider) -> str | None:
    """Return a provider's address: the environment's, or the usual one."""
    for variable in provider.base_variables:
        if address := os.environ.get(variable):
            return address
    return provider.base


def endpoint_at(
    entry: ModelConfig, params: Mapping[str, Any], model: str, base: str, key: str | None, provider: Provider
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
        defaults={**provider.body, **body_settings(params), **(extra if isinstance(extra, dict) else {})},
        include_usage=entry.include_usage if provider.takes_stream_options else False,
        knows_developers=provider.knows_developers,
        counts_completions=provider.counts_completions and COUNTS_COMPLETIONS.match(model) is not None,
        reasoning_field=provider.reasoning_field,
        # An address of the operator's own may be that of any server.
        forbids_calls=provider.forbids_calls and base.rstrip("/") == provider.base,
    )


def litellm_settings(entry: ModelConfig) -> LiteLLMSettings:
    params = revealed(entry.litellm_params)
    arguments = {name: value for name, value in params.items() if name not in _ROUTING or name == "drop_params"}
    # After one request with tools, litellm's `ollama` writes tools into the prompts of every provider in the process.
    prefix, slash, model = str(arguments["model"]).partition("/")
    named = provider_named(prefix)
    if slash and named is not None and named.litellm_name:
        arguments["model"] = f"{named.litellm_name}/{model}"
    explicit = provider_named(arguments.get("custom_llm_provider"))
    if explicit is not None and explicit.litellm_name:
        arguments["custom_llm_provider"] = explicit.litellm_name
    return LiteLLMSettings(arguments, secrets_in(params, None), entry.include_usage)


def check(entry: ModelConfig) -> None:
    """Raise `LaneError` for an entry that could never work."""
    if not isinstance(entry.litellm_params.get("model"), str) or not entry.litellm_params["model"]:
        raise LaneError("litellm_params.model is missing")
    params = revealed(entry.litellm_params)
    base = _base(params)
    if base is not None and urlsplit(base).scheme not in {"http", "https"}:
        raise LaneError(f"litellm_params.api_base is not an http address: {base!r}")
    provider, _ = split_provider(params)
    if entry.lane == "translated" and (why := why_not_translated(entry)) is not None:
        raise LaneError(f"lane is translated, and {why}: set lane: auto or litellm")
    row = _provider_of(entry, provider)
    if entry.provider is not None and entry.lane in {"translated", "litellm"}:
        raise LaneError(f"lane is {entry.lane}, and its provider is one of `providers`, which litellm does not know")
    if entry.provider is not None and (why := _only_litellm(params, _PLAIN)) is not None:
        raise LaneError(f"its provider is one of `providers`, and {why}")
    if entry.lane == "direct" and known_endpoint(entry) is None and base is None and not _is_openais(row):
        raise LaneError(
            "lane is direct, and where the model is cannot be known without litellm: set litellm_params.api_base"
            + (f" or {row.base_variables[0]}" if row is not None and row.base_variables else "")
        )
    if entry.lane == "responses" and responses_endpoint(entry) is None:
        raise LaneError("lane is responses, and where the model is cannot be known: set litellm_params.api_base")
    try:
        further_words(entry.finish_reasons)
    except ValueError as error:
        raise LaneError(str(error)) from None
    if entry.tools and (reason := why_end_is_unseen(entry)) is not None:
        raise LaneError(
            f"it may not have tools: {reason}. Leave out `tools`; or reach it on another lane: with `lane: auto` and a model of a "
            "provider that is read here, or at an OpenAI-shaped address (`lane: direct` and `litellm_params.api_base`); or "
            "say `trust_litellm: on`, and calls run on litellm's word"
        )


def why_end_is_unseen(entry: ModelConfig) -> str | None:
    """Return why the provider's own end of an answer is not seen, unless litellm is trusted; None where it is seen."""
    start = str(entry.litellm_params["model"]).partition("/")[0]
    if entry.trust_litellm == "on" or lane_of(entry) != "litellm" or start == DEMO or "*" in start:
        return None
    if entry.trust_litellm == "auto":
        provider = provider_named(str(entry.litellm_params.get("custom_llm_provider") or start))
        if provider is None or not provider.why_end_is_unseen:
            return None
        return f"{provider.why_end_is_unseen}, so that nobody sees how an answer ended, and half a call could run"
    why = "lane is litellm" if entry.lane == "litellm" else why_not_translated(entry)
    return f"{why}, and `trust_litellm` is off (with `auto` its calls run where the provider's own end was seen)"


def lane_of(entry: ModelConfig) -> Literal["direct", "responses", "translated", "litellm"]:
    """Return the lane of an entry."""
    if entry.lane != "auto":
        return entry.lane
    if entry.provider is not None:
        return "direct"
    params = revealed(entry.litellm_params)
    name, model = split_provider(params)
    if is_plain(params) and _is_no_chat(provider_named(name), model, params):
        return "responses"
    if why_not_direct(entry) is None:
        return "direct"
    if why_not_translated(entry) is None:
        return "translated"
    return "litellm"


def why_not_direct(entry: ModelConfig) -> str | None:
    """Return the reason against the direct lane for this entry, or None."""
    params = revealed(entry.litellm_params)
    name, model = split_provider(params)
    provider = _provider_of(entry, name)
    if provider is None or not _is_openais(provider):
        return "its wire is not known to be OpenAI's"
    if provider.own_options is not None:
        if options := provider.own_options.names & set(params):
            return provider.own_options.why.format(options=", ".join(sorted(options)))
        return _only_litellm(params, _PLAIN)
    if _is_no_chat(provider, model, params):
        return _only_litellm(params, _MAPPED | provider.settings) or "it answers on the Responses API alone"
    if provider.unread is not None and provider.unread.models.match(model.lower()):
        return provider.unread.why
    return _only_litellm(params, _MAPPED | provider.settings)


def why_not_translated(entry: ModelConfig) -> str | None:
    """Return the reason against the translated lane for this entry, or None."""
    params = revealed(entry.litellm_params)
    name, model = split_provider(params)
    provider = _provider_of(entry, name)
    if provider is not None and is_claude_elsewhere(params):
        return _only_litellm(params, _MAPPED | provider.settings)
    if _is_openais(provider):
        return why_not_direct(entry) or "it is reached directly"
    if name is None and "/" not in str(params.get("model", "")):
        return f"its name says no provider (as `openai/{model}` does)"
    if provider is None or provider.wire == "litellm":
        return "its provider is none that is read here"
    if provider.unread is not None and provider.unread.models.match(model):
        return provider.unread.why
    return _only_litellm(params, _MAPPED | provider.settings)


def is_claude_elsewhere(params: Mapping[str, Any]) -> bool:
    """True for Claude on Vertex AI or on Azure AI, which has Anthropic's wire."""
    name, model = split_provider(params)
    provider = provider_named(name)
    return provider is not None and provider.claude_models is not None and bool(provider.claude_models.match(model))


def takes_cache_marks(params: Mapping[str, Any]) -> bool:
    """True if an entry's provider takes Anthropic's cache marks in chats."""
    provider = provider_named(provider_of(params))
    return is_claude_elsewhere(params) or (provider is not None and provider.takes_cache_marks)


def has_messages_wire(entry: ModelConfig) -> bool:
    """True if an entry's provider has Anthropic's own API."""
    provider = _provider_of(entry, provider_of(entry.litellm_params))
    return provider is not None and provider.wire == "anthropic"


def _is_openais(provider: Provider | None) -> bool:
    return provider is not None and provider.wire in OPENAI_WIRES


def _only_litellm(params: Mapping[str, Any], supported: frozenset[str]) -> str | None:
    unknown = set(_litellms(params)) - supported
    if unknown:
        return f"only the litellm lane can honour {', '.join(sorted(unknown))}"
    return None


def _is_no_chat(provider: Provider | None, model: str, params: Mapping[str, Any]) -> bool:
    """True if a model has only the Responses API. With an `api_base` this is decided by names of OpenAI's only."""
    if provider is None or provider.responses_only is None or not provider.responses_only.match(model):
        return False
    is_openais = OPENAI_NAMES.fullmatch(model) is not None or model.startswith(RESPONSES_MARK)
    return is_openais or host_of(params) in ("", host_in(provider.base or ""))


def _litellms(params: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings that litellm would read itself. All others go into the provider's body."""
    return (name for name in params if name in NAMED or is_setting(name))


def is_plain(params: Mapping[str, Any]) -> bool:
    """True if every setting is supported without litellm."""
    return _PLAIN.issuperset(_litellms(params))


def body_settings(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that an entry sets in the bodies of its requests."""
    return {
        name: value for name, value in params.items() if name in NAMED or (name not in _PLAIN and not is_setting(name))
    }


def body_of(entry: ModelConfig) -> bytes:
    """Return what an entry has in the bodies of all its requests, as JSON."""
    params = revealed(entry.litellm_params)
    return msgspec.json.encode([body_settings(params), params.get("extra_body")], enc_hook=str)


def provider_of(params: Mapping[str, Any]) -> str | None:
    """Return the provider that an entry names, if any."""
    return split_provider(params)[0]


def wire_of(params: Mapping[str, Any]) -> Wire:
    """Return the wire of the provider that an entry names, OpenAI's where it names none."""
    provider = provider_named(provider_of(params))
    if provider is None:
        return "openai"
    return provider.wire


def split_provider(params: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the provider that litellm would find, as far as that is known without loading it, and the provider's model name."""
    model = str(params.get("model", ""))
    prefix, slash, own_name = model.partition("/")
    if explicit := params.get("custom_llm_provider"):
        return str(explicit), own_name if slash and prefix == explicit else model
    named = provider_named(prefix)
    if slash and named is not None and named.wire != "litellm":
        return prefix, own_name
    if not slash and OPENAI_NAMES.fullmatch(model):
        return DEFAULT, model
    if not slash:
        return next((name for prefix, name in MODEL_PREFIXES if model.startswith(prefix)), None), model
    return None, model


def revealed(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with secrets unwrapped, without unset ones."""
    return {name: _plain(value) for name, value in params.items() if value is not None}


def secrets_in(params: Mapping[str, Any], key: str | None) -> tuple[str, ...]:
    candidates = [
        key,
        *(
            value
            for name, value in params.items()
            if any(part in name for part in ("key", "token", "secret", "password", "credential"))
        ),
        *_headers(params).values(),
    ]
    return tuple({value for value in candidates if isinstance(value, str) and len(value) >= 4})


def host_of(params: Mapping[str, Any]) -> str:
    """Return the host that an entry names; empty where it names none."""
    return host_in(_base(params) or "")


def chat_url(base: str) -> str:
    base = base.rstrip("/")
    if base.endswith("/chat/completions"):
        return base
    return f"{base}/chat/completions"


def _base(params: Mapping[str, Any]) -> str | None:
    base = params.get("api_base") or params.get("base_url")
    if base is None:
        return None
    return str(base)


def _headers(params: Mapping[str, Any]) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    for name in ("headers", "extra_headers"):
        if isinstance(block := params.get(name), Mapping):
            headers |= block
    return headers


def _plain(value: Any) -> Any:
    if hasattr(value, "get_secret_value"):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return value
