"""The providers and local servers that the command line knows: their litellm names, variables and ports."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider, for configs written by `callgate init` and `serve --model`."""

    title: str
    prefix: str
    """The prefix of a model's name in `litellm_params.model`."""
    key: str = ""
    """The variable that holds its key; empty for none."""
    example: str = ""
    """A model to begin with."""
    port: int | None = None
    """The default port of its local server."""

    @property
    def local_url(self) -> str | None:
        return f"http://127.0.0.1:{self.port}/v1" if self.port else None


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("OpenAI", "openai", "OPENAI_API_KEY", "gpt-5-mini"),
    "anthropic": Provider("Anthropic", "anthropic", "ANTHROPIC_API_KEY", "claude-sonnet-4-5"),
    "gemini": Provider("Google Gemini", "gemini", "GEMINI_API_KEY", "gemini-2.5-flash"),
    "openrouter": Provider("OpenRouter", "openrouter", "OPENROUTER_API_KEY", "openai/gpt-5-mini"),
    "ollama": Provider("Ollama", "ollama_chat", example="qwen3", port=11434),
    "lmstudio": Provider("LM Studio", "lm_studio", example="qwen3-8b", port=1234),
    "llamacpp": Provider("llama.cpp", "llamafile", example="default", port=8080),
    "vllm": Provider("vLLM", "hosted_vllm", example="Qwen/Qwen3-8B", port=8000),
}
KEY_VARIABLES: Mapping[str, str] = {
    **{each.prefix: each.key for each in PROVIDERS.values() if each.key},
    "baseten": "BASETEN_API_KEY",
    "cerebras": "CEREBRAS_API_KEY",
    "chutes": "CHUTES_API_KEY",
    "codestral": "CODESTRAL_API_KEY",
    "cohere": "COHERE_API_KEY",
    "dashscope": "DASHSCOPE_API_KEY",
    "deepinfra": "DEEPINFRA_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "featherless_ai": "FEATHERLESS_AI_API_KEY",
    "fireworks_ai": "FIREWORKS_API_KEY",
    "github": "GITHUB_API_KEY",
    "groq": "GROQ_API_KEY",
    "hyperbolic": "HYPERBOLIC_API_KEY",
    "inception": "INCEPTION_API_KEY",
    "lambda_ai": "LAMBDA_API_KEY",
    "meta_llama": "LLAMA_API_KEY",
    "mistral": "MISTRAL_API_KEY",
    "moonshot": "MOONSHOT_API_KEY",
    "nebius": "NEBIUS_API_KEY",
    "novita": "NOVITA_API_KEY",
    "nscale": "NSCALE_API_KEY",
    "nvidia_nim": "NVIDIA_NIM_API_KEY",
    "parasail": "PARASAIL_API_KEY",
    "perplexity": "PERPLEXITYAI_API_KEY",
    "poe": "POE_API_KEY",
    "sambanova": "SAMBANOVA_API_KEY",
    "together_ai": "TOGETHERAI_API_KEY",
    "v0": "V0_API_KEY",
    "vercel_ai_gateway": "VERCEL_AI_GATEWAY_API_KEY",
    "wandb": "WANDB_API_KEY",
    "xai": "XAI_API_KEY",
    "zai": "ZAI_API_KEY",
}
"""The variables of providers' keys, by the prefix of a model. Other providers find credentials by themselves."""


OTHER_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_TOKEN"),
    "cohere": ("CO_API_KEY",),
    "fireworks_ai": ("FIREWORKS_AI_API_KEY", "FIREWORKSAI_API_KEY", "FIREWORKS_AI_TOKEN"),
    "gemini": ("GOOGLE_API_KEY",),
    "openrouter": ("OR_API_KEY",),
    "perplexity": ("PERPLEXITY_API_KEY",),
    "together_ai": ("TOGETHER_API_KEY", "TOGETHER_AI_API_KEY", "TOGETHER_AI_TOKEN"),
}
"""Further variables of providers' keys that litellm reads."""
_ELSEWHERE = frozenset({"api_key", "api_base", "base_url", "headers", "extra_headers"})
"""Parameters with which a key is given, or may not be needed: one's own server often takes none."""


def missing_key(params: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """Return the provider of a model's entry and the variable of its key, where neither the entry nor the environment has one.
    None for providers of which it is not known."""
    model = str(params["model"])
    provider = str(params.get("custom_llm_provider") or (model.partition("/")[0] if "/" in model else "openai"))
    variable = KEY_VARIABLES.get(provider)
    if variable is None or not _ELSEWHERE.isdisjoint(params):
        return None
    own_address = ("OPENAI_BASE_URL", "OPENAI_API_BASE") if provider == "openai" else ()
    known = (variable, *OTHER_VARIABLES.get(provider, ()), *own_address)
    return None if any(environ.get(name) for name in known) else (provider, variable)


def litellm_params(model: str, base_url: str | None = None) -> dict[str, str]:
    """Return the `litellm_params` for a model named as `provider/model`, perhaps at an address of its own."""
    prefix = model.partition("/")[0]
    variable = KEY_VARIABLES.get(prefix)
    params = {"model": model}
    if base_url:
        params["api_base"] = base_url
        if variable and not os.environ.get(variable):
            return params  # the operator's own server often needs no key
    elif local := next((each.local_url for each in PROVIDERS.values() if each.prefix == prefix and each.port), None):
        return {**params, "api_base": local.removesuffix("/v1") if prefix == "ollama_chat" else local}
    return {**params, "api_key": f"os.environ/{variable}"} if variable else params
