"""Checks that an entry names a known provider, so that a misspelt one is an error when the config is read."""

import difflib
from collections.abc import Mapping
from typing import Any

from callgate.upstream import litellm_model
from callgate.upstream.resolve import OLLAMAS, OPENAI_SHAPED, TRANSLATED, ModelConfig, opened, split_provider

LITELLMS_OWN = frozenset(
    """
    a2a a2a_agent aiohttp_openai anthropic_text auto_router aws_polly aws_textract azure_speech
    azure_text black_forest_labs bytez chatgpt clarifai cursor custom deepgram
    dotprompt elevenlabs fal_ai gdc gigachat humanloop infinity jina_ai langflow langfuse
    langgraph litellm_agent manus milvus mongodb nlp_cloud nvidia_riva oci oobabooga petals pg_vector predibase
    ragflow recraft reducto replicate runwayml s3_vectors sagemaker sagemaker_chat sagemaker_nova sap snowflake
    soniox stability strands_decider text-completion-codestral text-completion-inception text-completion-openai
    topaz transcribe triton typesafe valkey vllm voyage watsonx watsonx_text
    """.split()
)
"""The providers that only litellm supports, listed so that checking a name need not load it."""
KNOWN = frozenset({*OPENAI_SHAPED, *TRANSLATED, *OLLAMAS, *LITELLMS_OWN})
OTHER_WORDS: Mapping[str, str] = {
    "claude": "anthropic",
    "google": "gemini",
    "gpt": "openai",
    "grok": "xai",
    "lmstudio": "lm_studio",
    "kimi": "moonshot",
    "qwen": "dashscope",
    "togetherai": "together_ai",
    "vllm": "hosted_vllm",
    "llamacpp": "openai",
    "llama.cpp": "openai",
}
"""Common names of providers, and litellm's names for them."""
NEAR = 0.6


def why_unknown(entry: ModelConfig) -> str | None:
    """Return why no provider is found for an entry's model, or None. Loads litellm for a name that is not listed here, because
    a newer litellm may know it."""
    params = opened(entry.litellm_params)
    model = str(params["model"])
    prefix, slash, rest = model.partition("/")
    if entry.lane in {"direct", "responses"} or prefix == "demo" or "*" in prefix or (slash and prefix in KNOWN):
        return None
    if split_provider(params)[0] is not None or _litellm_knows(params):
        return None
    if not slash:
        return f"the name {model!r} says no provider: write `openai/{model}`, or `ollama/{model}`, or whose it is"
    known = OTHER_WORDS.get(prefix.lower()) or next(
        iter(difflib.get_close_matches(prefix.lower(), KNOWN, 1, NEAR)), None
    )
    hint = f"; did you mean `{known}/{rest}`?" if known else ""
    if params.get("api_base") or params.get("base_url"):
        hint = f"; for a server with OpenAI's API at `api_base` write `openai/{model}`"
    return f"no provider is called {prefix!r}{hint or '; see https://docs.litellm.ai/docs/providers for their names'}"


def _litellm_knows(params: Mapping[str, Any]) -> bool:
    litellm = litellm_model.loaded_at_once()
    try:
        litellm.get_llm_provider(
            model=params["model"],
            api_base=params.get("api_base") or params.get("base_url"),
            api_key=params.get("api_key"),
        )
    except litellm.exceptions.BadRequestError:
        return False
    return True
