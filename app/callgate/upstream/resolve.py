"""Chooses the lane for an entry by its `litellm_params`.

`direct` for providers with OpenAI's wire format, `responses` for models that have only OpenAI's Responses API, `translated`
for providers whose own wire format has a reader here, `litellm` for the rest.
The lane depends on the entry alone and not on litellm, so that it is known when the config is read and never changes. On
all lanes but `litellm` the end of an answer is read as the provider sent it.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from callgate.conversation.finish_words import FinishClass, further_words
from callgate.http.interface import Deadlines
from callgate.upstream.direct_model import ANSWER_BYTES, Endpoint, host_in
from callgate.upstream.params import COUNTS_COMPLETIONS, NAMED, is_denied

Lane: TypeAlias = Literal["auto", "direct", "responses", "translated", "litellm"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One entry of `model_list`, with its variables replaced. Several entries with one name are its deployments."""

    model_name: str
    litellm_params: Mapping[str, Any] = field(repr=False)
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
    schema_dialect: Literal["auto", "full", "openai", "gemini", "anthropic", "llama_cpp"] = "auto"
    sees_images: bool | None = None
    reads_files: bool | None = None
    """The config's setting; None where it has none."""
    deadlines: Deadlines = field(default_factory=Deadlines)
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
    finish_reasons: Mapping[FinishClass, Sequence[str]] = field(default_factory=dict)
    """Further finish reasons of its server, by their class."""
    events: Literal["off", "x", "reasoning", "openwebui"] | None = None
    """How responses show that its tools run, unless the request or the key sets it."""
    offer: Literal["any", "with_client_tools"] = "any"
    """Which requests its tools are offered to, unless the key says."""
    usage: Literal["auto", "sum", "last_turn"] = "auto"
    """Which token counts answers report, unless the request or the key sets it."""
    pattern: str | None = None
    """The wildcard that matched this entry's name; limits and prices are those of the wildcard."""

    @property
    def configured_name(self) -> str:
        """The name in the config: the wildcard where one matched."""
        return self.pattern or self.model_name


class LaneError(ValueError):
    """Raised at load for an entry with impossible settings."""


@dataclass(frozen=True, slots=True)
class KnownApi:
    """An OpenAI-compatible provider as litellm defines it: its default address, and the variables that override it."""

    base: str | None
    base_variables: tuple[str, ...]
    key_variable: str


PROVIDERS: Mapping[str, KnownApi] = {
    "openai": KnownApi("https://api.openai.com/v1", ("OPENAI_BASE_URL", "OPENAI_API_BASE"), "OPENAI_API_KEY"),
    "hosted_vllm": KnownApi(None, ("HOSTED_VLLM_API_BASE",), "HOSTED_VLLM_API_KEY"),
    "lm_studio": KnownApi(None, ("LM_STUDIO_API_BASE",), "LM_STUDIO_API_KEY"),
    "openai_like": KnownApi(None, ("OPENAI_LIKE_API_BASE",), "OPENAI_LIKE_API_KEY"),
    "custom_openai": KnownApi(None, (), "CUSTOM_OPENAI_API_KEY"),
    "llamafile": KnownApi("http://127.0.0.1:8080/v1", ("LLAMAFILE_API_BASE",), "LLAMAFILE_API_KEY"),
}
OLLAMA = KnownApi("http://localhost:11434", ("OLLAMA_API_BASE",), "OLLAMA_API_KEY")
"""Ollama's OpenAI API is below `/v1`. It does not take these options of its own API:"""
OLLAMA_OPTIONS = frozenset(
    """
    format keep_alive min_p mirostat mirostat_eta mirostat_tau num_ctx num_gpu num_predict num_thread options repeat_last_n
    repeat_penalty system template tfs_z think top_k
    """.split()
)
OLLAMAS = frozenset({"ollama", "ollama_chat"})
OPENAI_NAMES = re.compile(r"(?:gpt-|chatgpt-|o[1-9](?:-|$)|ft:gpt-)[A-Za-z0-9.:_-]*")
"""Names that litellm takes for OpenAI's without a prefix."""
NOT_CHAT = re.compile(r"responses/|.*(?:-pro(?:-\d|$)|codex|deep-research)")
"""OpenAI models that have only the Responses API, or a name with `responses/`."""
RESPONSES_MARK = "responses/"
"""litellm's prefix for models on the Responses API."""

KNOW_DEVELOPERS = frozenset({"openai", "azure", None})
"""Providers that know the role `developer`; None stands for an address without a named provider."""

OPENAI_SHAPED = frozenset(
    """
    abliteration ai21 ai21_chat aihubmix aiml amazon_nova apertis assemblyai azure azure_ai baseten bedrock_mantle cerebras
    charity_engine chutes cloudflare codestral cognition cometapi compactifai cortecs crusoe darkbloom dashscope databricks
    datarobot deepinfra deepseek docker_model_runner edenai empiriolabs empower featherless_ai fireworks_ai friendliai
    galadriel github github_copilot gmi gradient_ai groq helicone heroku huggingface hyperbolic inception lambda_ai lemonade
    libertai litellm_proxy llamagate maritalk meta meta_llama minimax mistral modelscope moonshot morph nadir nano-gpt nebius
    neosantara novita nscale nvidia_nim openrouter ovhcloud parasail perplexity pinstripes poe prism publicai
    qwen_ai_platform qwencloud reka sail sambanova sarvam scaleway scx-ai synthetic tencent tensormesh together_ai v0
    veniceai vercel_ai_gateway volcengine wandb xai xiaomi_mimo xinference zai
    """.split()
) | set(PROVIDERS)
"""litellm's providers with OpenAI's wire format: litellm knows their addresses and translates their parameters; the answer is
read here. `tests/upstream/test_openai_shaped.py` compares each name with litellm's class for it."""
WITHOUT_HTTP: Mapping[str, str] = {
    "petals": "its model runs in this process or in a swarm",
    "vllm": "its model runs in this process",
}
"""Providers whose answers do not come by litellm's HTTP client, and why."""
TRANSLATED = ("anthropic", "bedrock", "cohere", "cohere_chat", "gemini", "vertex_ai", "vertex_ai_beta")
"""Providers with wire formats of their own that are read here."""

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
_AWS = frozenset(
    """
    aws_access_key_id aws_secret_access_key aws_session_token aws_region_name aws_session_name aws_profile_name
    aws_role_name aws_web_identity_token aws_sts_endpoint aws_external_id aws_session_tags
    """.split()
)
OF_PROVIDERS: Mapping[str, frozenset[str]] = {
    "azure": frozenset(
        """
        api_version azure_ad_token azure_scope azure_username azure_password base_model client_id client_secret tenant_id
        """.split()
    ),
    "azure_ai": frozenset({"api_version"}),
    "bedrock": _AWS | {"aws_bedrock_runtime_endpoint", "model_id"},
    "bedrock_mantle": _AWS | {"aws_bedrock_project_id"},
    "vertex_ai": frozenset(
        {
            "vertex_project",
            "vertex_location",
            "vertex_credentials",
            "vertex_ai_project",
            "vertex_ai_location",
            "vertex_ai_credentials",
        }
    ),
}
"""Settings for the address and authentication of one provider."""
_NOT_CONVERSE = re.compile(
    r"(?:bedrock/)?(?:invoke|converse_like|agent|agentcore|async_invoke|openai|mantle|chat_completions|claude_platform)/"
)
"""litellm's routes to Bedrock's other APIs."""
OTHER_WIRES: Mapping[str, re.Pattern[str]] = {
    "azure_ai": re.compile(r".*claude|agents/"),
    "bedrock_mantle": re.compile(r"(?:[a-z]+(?:-[a-z]+)+-\d/)?(?:openai\.gpt-(?:\d|daybreak)|.*claude)"),
    "github_copilot": re.compile(r"gpt-5\.[3-9]|gpt-[6-9]|mai-code|.*codex"),
}
"""The models of these providers that have Anthropic's wire, or the Responses API alone."""
_UNPREFIXED: Sequence[tuple[str, str]] = (
    ("claude-", "anthropic"),
    ("command-", "cohere_chat"),
    ("gemini-", "vertex_ai"),
)
"""Providers that litellm finds by the prefix of a model's name."""


@dataclass(frozen=True, slots=True)
class LiteLLMSettings:
    """The arguments of `acompletion` that are not from the request: the model, its address, its key and other settings."""

    arguments: Mapping[str, Any] = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    include_usage: bool = True


def known_endpoint(entry: ModelConfig) -> Endpoint | None:
    """Return the endpoint of an entry whose provider is in the table, or None. Does not load litellm."""
    params = opened(entry.litellm_params)
    provider, model = split_provider(params)
    known = OLLAMA if provider in OLLAMAS else PROVIDERS.get(provider or "")
    if known is None or (provider in OLLAMAS and why_not_direct(entry) is not None):
        return None
    if entry.lane == "auto" and (not is_plain(params) or _is_no_chat(provider, model, params)):
        return None
    return _endpoint_of(entry, params, provider, model, known)


def responses_endpoint(entry: ModelConfig) -> Endpoint | None:
    """Return the Chat Completions endpoint of an entry on the lane `responses`; None where its address is not known."""
    params = opened(entry.litellm_params)
    provider, model = split_provider(params)
    known = PROVIDERS.get(provider or "", KnownApi(None, (), ""))
    return _endpoint_of(entry, params, provider, model.removeprefix(RESPONSES_MARK), known)


def _endpoint_of(
    entry: ModelConfig, params: Mapping[str, Any], provider: str | None, model: str, known: KnownApi
) -> Endpoint | None:
    base = _base(params) or next(
        (found for name in known.base_variables if (found := os.environ.get(name))), known.base
    )
    if base is None:
        return None
    if provider in OLLAMAS and not urlsplit(base).path.rstrip("/"):
        base = f"{base.rstrip('/')}/v1"
    key = params.get("api_key") or os.environ.get(known.key_variable)
    return endpoint_at(entry, params, model, base, key, provider)


def endpoint_at(
    entry: ModelConfig, params: Mapping[str, Any], model: str, base: str, key: str | None, provider: str | None
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
        defaults=body_settings(params) | (extra if isinstance(extra, dict) else {}),
        include_usage=entry.include_usage,
        knows_developers=provider in KNOW_DEVELOPERS,
        counts_completions=provider == "openai" and COUNTS_COMPLETIONS.match(model) is not None,
    )


def litellm_settings(entry: ModelConfig) -> LiteLLMSettings:
    params = opened(entry.litellm_params)
    arguments = {name: value for name, value in params.items() if name not in _ROUTING or name == "drop_params"}
    # After one request with tools, litellm's `ollama` writes tools into the prompts of every provider in the process.
    if str(arguments["model"]).startswith("ollama/"):
        arguments["model"] = "ollama_chat/" + str(arguments["model"]).removeprefix("ollama/")
    if arguments.get("custom_llm_provider") == "ollama":
        arguments["custom_llm_provider"] = "ollama_chat"
    return LiteLLMSettings(arguments, secrets_in(params, None), entry.include_usage)


def check(entry: ModelConfig) -> None:
    """Raise `LaneError` for an entry that could never work."""
    if not isinstance(entry.litellm_params.get("model"), str) or not entry.litellm_params["model"]:
        raise LaneError("litellm_params.model is missing")
    params = opened(entry.litellm_params)
    base = _base(params)
    if base is not None and urlsplit(base).scheme not in {"http", "https"}:
        raise LaneError(f"litellm_params.api_base is not an http address: {base!r}")
    provider, _ = split_provider(params)
    if entry.lane == "translated" and (why := why_not_translated(entry)) is not None:
        raise LaneError(f"lane is translated, and {why}: set lane: auto or litellm")
    if entry.lane == "direct" and known_endpoint(entry) is None and base is None and provider not in OPENAI_SHAPED:
        needed = PROVIDERS.get(provider or "")
        raise LaneError(
            "lane is direct, and where the model is cannot be known without litellm: set litellm_params.api_base"
            + (f" or {needed.base_variables[0]}" if needed and needed.base_variables else "")
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
    if entry.trust_litellm == "on" or lane_of(entry) != "litellm" or start == "demo" or "*" in start:
        return None
    if entry.trust_litellm == "auto":
        provider = str(entry.litellm_params.get("custom_llm_provider") or start)
        why = WITHOUT_HTTP.get(provider)
        return None if why is None else f"{why}, so that nobody sees how an answer ended, and half a call could run"
    why = "lane is litellm" if entry.lane == "litellm" else why_not_translated(entry)
    return f"{why}, and `trust_litellm` is off (with `auto` its calls run where the provider's own end was seen)"


def lane_of(entry: ModelConfig) -> Literal["direct", "responses", "translated", "litellm"]:
    """Return the lane of an entry."""
    if entry.lane != "auto":
        return entry.lane
    params = opened(entry.litellm_params)
    if is_plain(params) and _is_no_chat(*split_provider(params), params):
        return "responses"
    if why_not_direct(entry) is None:
        return "direct"
    return "translated" if why_not_translated(entry) is None else "litellm"


def why_not_direct(entry: ModelConfig) -> str | None:
    """Return the reason against the direct lane for this entry, or None."""
    params = opened(entry.litellm_params)
    provider, model = split_provider(params)
    if provider in OLLAMAS:
        if options := OLLAMA_OPTIONS & set(params):
            return f"only Ollama's own API takes {', '.join(sorted(options))} (a Modelfile can set them, too)"
        unknown = set(_litellms(params)) - _PLAIN
        return f"only the litellm lane can honour {', '.join(sorted(unknown))}" if unknown else None
    if provider not in OPENAI_SHAPED:
        return "its wire is not known to be OpenAI's"
    if _is_no_chat(provider, model, params):
        return _only_litellm(params, provider or "") or "it answers on the Responses API alone"
    if (others := OTHER_WIRES.get(provider)) is not None and others.match(model.lower()):
        return "this model of its provider has another wire than OpenAI's chat completions"
    return _only_litellm(params, provider or "")


def why_not_translated(entry: ModelConfig) -> str | None:
    """Return the reason against the translated lane for this entry, or None."""
    params = opened(entry.litellm_params)
    provider, model = split_provider(params)
    if is_claude_elsewhere(params):
        return _only_litellm(params, provider or "")
    if provider in OPENAI_SHAPED or provider in OLLAMAS:
        return why_not_direct(entry) or "it is reached directly"
    if provider is None and "/" not in str(params.get("model", "")):
        return f"its name says no provider (as `openai/{model}` does)"
    if provider not in TRANSLATED:
        return "its provider is none that is read here"
    if provider == "bedrock" and _NOT_CONVERSE.match(model):
        return "only Bedrock's Converse API is read here"
    if provider.startswith("vertex_ai") and not re.match(r"(?:gemini/)?gemini-|.*gemini", model):
        return "of Vertex AI only Gemini and Claude are read here"
    if provider.startswith("cohere") and "v1/" in model:
        return "only Cohere's v2 API is read here"
    return _only_litellm(params, provider)


def is_claude_elsewhere(params: Mapping[str, Any]) -> bool:
    """True for Claude on Vertex AI or on Azure AI, which has Anthropic's wire."""
    provider, model = split_provider(params)
    return (provider == "vertex_ai" and model.startswith("claude")) or (
        provider == "azure_ai" and "claude" in model.lower() and not model.startswith("agents/")
    )


def _only_litellm(params: Mapping[str, Any], provider: str) -> str | None:
    allowed = _MAPPED | OF_PROVIDERS.get(provider.removesuffix("_beta"), frozenset())
    unknown = set(_litellms(params)) - allowed
    return f"only the litellm lane can honour {', '.join(sorted(unknown))}" if unknown else None


def _is_no_chat(provider: str | None, model: str, params: Mapping[str, Any]) -> bool:
    """True if a model has only the Responses API. With an `api_base` this is decided by names of OpenAI's only."""
    if provider != "openai" or not NOT_CHAT.match(model):
        return False
    is_openais = OPENAI_NAMES.fullmatch(model) is not None or model.startswith(RESPONSES_MARK)
    return is_openais or host_of(params) in ("", "api.openai.com")


def _litellms(params: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings that litellm would read itself. All others go into the provider's body."""
    return (name for name in params if name in NAMED or is_denied(name))


def is_plain(params: Mapping[str, Any]) -> bool:
    """True if every setting is supported without litellm."""
    return _PLAIN.issuperset(_litellms(params))


def body_settings(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that an entry sets in the bodies of its requests."""
    return {
        name: value for name, value in params.items() if name in NAMED or (name not in _PLAIN and not is_denied(name))
    }


def provider_of(params: Mapping[str, Any]) -> str | None:
    """Return the provider that an entry names, if any."""
    return split_provider(params)[0]


def split_provider(params: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the provider that litellm would find, as far as that is known without loading it, and the provider's model name."""
    model = str(params.get("model", ""))
    prefix, slash, rest = model.partition("/")
    if given := params.get("custom_llm_provider"):
        return str(given), rest if slash and prefix == given else model
    if slash and (prefix in OPENAI_SHAPED or prefix in TRANSLATED or prefix in OLLAMAS):
        return prefix, rest
    if not slash and OPENAI_NAMES.fullmatch(model):
        return "openai", model
    if not slash:
        return next((provider for start, provider in _UNPREFIXED if model.startswith(start)), None), model
    return None, model


def opened(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with secrets unwrapped, without unset ones."""
    return {name: _plain(value) for name, value in params.items() if value is not None}


def secrets_in(params: Mapping[str, Any], key: str | None) -> tuple[str, ...]:
    found = [
        key,
        *(
            value
            for name, value in params.items()
            if any(part in name for part in ("key", "token", "secret", "password", "credential"))
        ),
        *_headers(params).values(),
    ]
    return tuple({value for value in found if isinstance(value, str) and len(value) >= 4})


def host_of(params: Mapping[str, Any]) -> str:
    """Return the host that an entry names; empty where it names none."""
    return host_in(_base(params) or "")


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
