"""What is known of each provider: one row, from which everything else here follows.

A provider with OpenAI's wire is added by its row alone, whether litellm knows it or not. CONTRIBUTING.md says how.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

Wire: TypeAlias = Literal["openai", "near_openai", "anthropic", "bedrock", "cohere", "gemini", "litellm"]
"""`openai`: OpenAI's Chat Completions, asked and read here without litellm. `near_openai`: answers are OpenAI's and are read
here; litellm translates the parameters and finds the address. The next four are read here too. `litellm`: only litellm knows it."""
Access: TypeAlias = Literal["key", "azure_deployment", "aws_signature", "copilot_token"]
Dialect: TypeAlias = Literal["full", "openai", "gemini", "anthropic", "llama_cpp"]
"""What a provider takes of JSON Schema."""


class Unread(msgspec.Struct, frozen=True):
    """The models of a provider that have another wire than the rest, and the reason for the operator."""

    models: re.Pattern[str]
    why: str


class OwnOptions(msgspec.Struct, frozen=True):
    """Options that only a provider's own API takes, through litellm, and the reason for the operator."""

    names: frozenset[str]
    why: str


class Offer(msgspec.Struct, frozen=True):
    """How `callgate init` offers a provider."""

    name: str
    title: str
    example: str
    """A model to begin with."""
    port: int | None = None
    """The default port of a local server."""
    owned_by: str = ""
    """The `owned_by` of its models, where servers share a usual port."""


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """One provider, under litellm's name where litellm knows it."""

    name: str
    wire: Wire

    # Where it is, and who may ask.
    base: str | None = None
    """The usual address of its API; None where the entry, the environment or litellm has it."""
    base_variables: tuple[str, ...] = ()
    """Environment variables that replace the address."""
    path: str = ""
    """What is added to an address without a path."""
    key_variable: str = ""
    other_key_variables: tuple[str, ...] = ()
    """Further variables of the key, which litellm reads."""
    key_is_optional: bool = False
    """Whether it can be used without a key, so that nobody is warned of a missing one."""
    access: Access = "key"
    """How requests are signed and addressed, for the lane through litellm's classes."""
    settings: frozenset[str] = frozenset()
    """Settings of an entry's `litellm_params` that only this provider has."""

    # How it is asked.
    knows_developers: bool = False
    """Whether it knows the role `developer`; others are sent `system`."""
    takes_stream_options: bool = True
    """Whether streams may be asked for their usage with `stream_options`."""
    names_messages: bool = True
    """Whether it is sent the `name` of messages."""
    counts_completions: bool = False
    """Whether its newer models refuse `max_tokens` for `max_completion_tokens`."""
    body: Mapping[str, object] = {}
    """Fields that every request to it has, unless the entry or the request sets them."""
    dialect: Dialect = "full"
    dialect_elsewhere: Dialect | None = None
    """The dialect at an address of the operator's; None where it is the same."""
    forbids_calls: bool = False
    """Whether it keeps prompts, tools included, and heeds `tool_choice: none` beside them."""
    takes_cache_marks: bool = False
    """Whether it takes Anthropic's cache marks (`cache_control`) in chats, or litellm words them for it."""
    is_local: bool = False
    """Whether native calls depend on the model and its chat template, so that a model may be probed. All others have an API with
    native calls and are never probed."""

    # How it answers.
    reasoning_field: str = ""
    """The field of messages that holds reasoning, where it is another than `reasoning_content` and `reasoning`."""
    unread: Unread | None = None
    responses_only: re.Pattern[str] | None = None
    """The models that have only the Responses API."""
    claude_models: re.Pattern[str] | None = None
    """The models that have Anthropic's wire at another address, with another sign-in."""
    why_end_is_unseen: str = ""
    """Why nobody sees how an answer ended, where it does not come by HTTP."""

    # How litellm has it.
    litellm_name: str = ""
    """The provider that litellm is asked for instead."""
    own_options: OwnOptions | None = None
    litellm_finds_address: bool = False
    """Whether litellm's class finds the address, in the environment or in the model's name."""
    litellm_may_block: bool = False
    """Whether litellm reads files or asks the network for a sign-in or an address, so that it runs in a thread."""
    model_prefix: str = ""
    """The beginning of model names that litellm takes for this provider's without its prefix."""

    # How people and others call it.
    span_name: str = ""
    """Its name in OpenTelemetry's conventions, if that is another."""
    other_names: tuple[str, ...] = ()
    """Names for which this one is suggested."""
    offer: Offer | None = None


OLLAMA_OPTIONS: Final = OwnOptions(
    frozenset(
        """
    format keep_alive min_p mirostat mirostat_eta mirostat_tau num_ctx num_gpu num_predict num_thread options repeat_last_n
    repeat_penalty system template tfs_z think top_k
    """.split()
    ),
    "only Ollama's own API takes {options} (a Modelfile can set them, too)",
)
AZURE_SETTINGS: Final = frozenset(
    """
    api_version azure_ad_token azure_scope azure_username azure_password base_model client_id client_secret tenant_id
    """.split()
)
AWS_SETTINGS: Final = frozenset(
    """
    aws_access_key_id aws_secret_access_key aws_session_token aws_region_name aws_session_name aws_profile_name
    aws_role_name aws_web_identity_token aws_sts_endpoint aws_external_id aws_session_tags
    """.split()
)
VERTEX_SETTINGS: Final = frozenset(
    """
    vertex_project vertex_location vertex_credentials vertex_ai_project vertex_ai_location vertex_ai_credentials
    """.split()
)
RESPONSES_ONLY: Final = re.compile(r"responses/|.*(?:-pro(?:-\d|$)|codex|deep-research)")
"""OpenAI models that have only the Responses API, or a name with `responses/`."""
NOT_CONVERSE: Final = re.compile(
    r"(?:bedrock/)?(?:invoke|converse_like|agent|agentcore|async_invoke|openai|mantle|chat_completions|claude_platform)/"
)
"""litellm's routes to Bedrock's other APIs."""
ANOTHER_WIRE: Final = "this model of its provider has another wire than OpenAI's chat completions"
NO_GEMINI: Final = Unread(re.compile(r"(?!.*gemini)"), "of Vertex AI only Gemini and Claude are read here")
COHERE_V1: Final = Unread(re.compile(r".*v1/"), "only Cohere's v2 API is read here")

ROWS: Final = (
    Provider(name="abliteration", wire="near_openai"),
    Provider(name="ai21", wire="near_openai"),
    Provider(name="ai21_chat", wire="near_openai"),
    Provider(name="aihubmix", wire="near_openai"),
    Provider(name="aiml", wire="near_openai"),
    Provider(
        name="amazon_nova",
        wire="near_openai",
        base="https://api.nova.amazon.com/v1",
        base_variables=("AMAZON_NOVA_API_BASE",),
        key_variable="AMAZON_NOVA_API_KEY",
        key_is_optional=True,
    ),
    Provider(
        name="anthropic",
        wire="anthropic",
        takes_cache_marks=True,
        key_variable="ANTHROPIC_API_KEY",
        other_key_variables=("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_TOKEN"),
        other_names=("claude",),
        dialect="anthropic",
        model_prefix="claude-",
        offer=Offer("anthropic", "Anthropic", "claude-sonnet-4-5"),
    ),
    Provider(name="apertis", wire="near_openai"),
    Provider(name="assemblyai", wire="near_openai"),
    Provider(
        name="azure",
        wire="near_openai",
        knows_developers=True,
        span_name="azure.ai.openai",
        dialect="openai",
        settings=AZURE_SETTINGS,
        counts_completions=True,
        access="azure_deployment",
    ),
    Provider(
        name="azure_ai",
        wire="near_openai",
        span_name="azure.ai.inference",
        dialect="openai",
        settings=frozenset({"api_version"}),
        unread=Unread(re.compile(r".*claude|agents/"), ANOTHER_WIRE),
        claude_models=re.compile("(?i)(?!agents/).*claude"),
    ),
    Provider(name="baseten", wire="near_openai", key_variable="BASETEN_API_KEY"),
    Provider(
        name="bedrock",
        wire="bedrock",
        takes_cache_marks=True,
        span_name="aws.bedrock",
        settings=AWS_SETTINGS | {"aws_bedrock_runtime_endpoint", "model_id"},
        unread=Unread(NOT_CONVERSE, "only Bedrock's Converse API is read here"),
    ),
    Provider(
        name="bedrock_mantle",
        wire="near_openai",
        litellm_may_block=True,
        settings=AWS_SETTINGS | {"aws_bedrock_project_id"},
        unread=Unread(re.compile(r"(?:[a-z]+(?:-[a-z]+)+-\d/)?(?:openai\.gpt-(?:\d|daybreak)|.*claude)"), ANOTHER_WIRE),
        access="aws_signature",
    ),
    Provider(name="cerebras", wire="near_openai", key_variable="CEREBRAS_API_KEY"),
    Provider(name="charity_engine", wire="near_openai"),
    Provider(name="chutes", wire="near_openai", key_variable="CHUTES_API_KEY"),
    Provider(
        name="cloudflare",
        wire="near_openai",
        base_variables=("CLOUDFLARE_API_BASE",),
        key_variable="CLOUDFLARE_API_KEY",
        key_is_optional=True,
        litellm_finds_address=True,
    ),
    Provider(name="codestral", wire="near_openai", key_variable="CODESTRAL_API_KEY"),
    Provider(name="cognition", wire="near_openai"),
    Provider(
        name="cohere",
        wire="cohere",
        key_variable="COHERE_API_KEY",
        other_key_variables=("CO_API_KEY",),
        unread=COHERE_V1,
    ),
    Provider(name="cohere_chat", wire="cohere", model_prefix="command-", unread=COHERE_V1),
    Provider(
        name="cometapi",
        wire="near_openai",
        base="https://api.cometapi.com/v1",
        base_variables=("COMETAPI_API_BASE",),
        key_variable="COMETAPI_KEY",
        key_is_optional=True,
        litellm_finds_address=True,
    ),
    Provider(
        name="compactifai",
        wire="near_openai",
        base="https://api.compactif.ai/v1",
        key_variable="COMPACTIFAI_API_KEY",
        key_is_optional=True,
    ),
    Provider(name="cortecs", wire="near_openai"),
    Provider(name="crusoe", wire="near_openai"),
    Provider(name="custom_openai", wire="openai", key_variable="CUSTOM_OPENAI_API_KEY", key_is_optional=True),
    Provider(name="darkbloom", wire="near_openai"),
    Provider(
        name="dashscope",
        wire="near_openai",
        takes_cache_marks=True,
        key_variable="DASHSCOPE_API_KEY",
        other_names=("qwen",),
    ),
    Provider(
        name="databricks",
        wire="near_openai",
        takes_cache_marks=True,
        base_variables=("DATABRICKS_API_BASE",),
        key_variable="DATABRICKS_API_KEY",
        key_is_optional=True,
        litellm_may_block=True,
    ),
    Provider(name="datarobot", wire="near_openai"),
    Provider(name="deepinfra", wire="near_openai", key_variable="DEEPINFRA_API_KEY"),
    Provider(name="deepseek", wire="near_openai", key_variable="DEEPSEEK_API_KEY"),
    Provider(name="docker_model_runner", wire="near_openai", is_local=True),
    Provider(name="edenai", wire="near_openai"),
    Provider(name="empiriolabs", wire="near_openai"),
    Provider(name="empower", wire="near_openai"),
    Provider(name="featherless_ai", wire="near_openai", key_variable="FEATHERLESS_AI_API_KEY"),
    Provider(
        name="fireworks_ai",
        wire="near_openai",
        key_variable="FIREWORKS_API_KEY",
        other_key_variables=("FIREWORKS_AI_API_KEY", "FIREWORKSAI_API_KEY", "FIREWORKS_AI_TOKEN"),
    ),
    Provider(name="friendliai", wire="near_openai"),
    Provider(name="galadriel", wire="near_openai"),
    Provider(
        name="gemini",
        wire="gemini",
        key_variable="GEMINI_API_KEY",
        other_key_variables=("GOOGLE_API_KEY",),
        span_name="gcp.gemini",
        other_names=("google",),
        dialect="gemini",
        offer=Offer("gemini", "Google Gemini", "gemini-2.5-flash"),
    ),
    Provider(name="github", wire="near_openai", key_variable="GITHUB_API_KEY"),
    Provider(
        name="github_copilot",
        wire="near_openai",
        litellm_may_block=True,
        unread=Unread(re.compile(r"gpt-5\.[3-9]|gpt-[6-9]|mai-code|.*codex"), ANOTHER_WIRE),
        access="copilot_token",
    ),
    Provider(name="gmi", wire="near_openai"),
    Provider(name="gradient_ai", wire="near_openai"),
    Provider(name="groq", wire="near_openai", key_variable="GROQ_API_KEY"),
    Provider(name="helicone", wire="near_openai"),
    Provider(name="heroku", wire="near_openai"),
    Provider(
        name="hosted_vllm",
        wire="openai",
        base_variables=("HOSTED_VLLM_API_BASE",),
        key_variable="HOSTED_VLLM_API_KEY",
        key_is_optional=True,
        is_local=True,
        other_names=("vllm",),
        offer=Offer("vllm", "vLLM", "Qwen/Qwen3-8B", port=8000, owned_by="vllm"),
    ),
    Provider(
        name="huggingface",
        wire="near_openai",
        key_variable="HF_TOKEN",
        key_is_optional=True,
        litellm_finds_address=True,
        litellm_may_block=True,
    ),
    Provider(name="hyperbolic", wire="near_openai", key_variable="HYPERBOLIC_API_KEY"),
    Provider(name="inception", wire="near_openai", key_variable="INCEPTION_API_KEY"),
    Provider(name="lambda_ai", wire="near_openai", key_variable="LAMBDA_API_KEY"),
    Provider(name="lemonade", wire="near_openai"),
    Provider(name="libertai", wire="near_openai"),
    Provider(name="litellm_proxy", wire="near_openai", takes_cache_marks=True),
    Provider(
        name="llamafile",
        wire="openai",
        base="http://127.0.0.1:8080/v1",
        base_variables=("LLAMAFILE_API_BASE",),
        key_variable="LLAMAFILE_API_KEY",
        key_is_optional=True,
        is_local=True,
        dialect="llama_cpp",
        offer=Offer("llamacpp", "llama.cpp", "default", port=8080, owned_by="llamacpp"),
    ),
    Provider(name="llamagate", wire="near_openai"),
    Provider(
        name="lm_studio",
        wire="openai",
        base_variables=("LM_STUDIO_API_BASE",),
        key_variable="LM_STUDIO_API_KEY",
        key_is_optional=True,
        is_local=True,
        other_names=("lmstudio",),
        dialect="llama_cpp",
        offer=Offer("lmstudio", "LM Studio", "qwen3-8b", port=1234),
    ),
    Provider(
        name="maritalk",
        wire="near_openai",
        base="https://chat.maritaca.ai/api",
        base_variables=("MARITALK_API_BASE",),
        key_variable="MARITALK_API_KEY",
        key_is_optional=True,
    ),
    Provider(name="meta", wire="near_openai"),
    Provider(name="meta_llama", wire="near_openai", key_variable="LLAMA_API_KEY"),
    Provider(
        name="minimax",
        wire="near_openai",
        takes_cache_marks=True,
        base="https://api.minimax.io/v1",
        base_variables=("MINIMAX_API_BASE",),
        key_variable="MINIMAX_API_KEY",
        key_is_optional=True,
    ),
    Provider(
        name="mistral",
        wire="near_openai",
        key_variable="MISTRAL_API_KEY",
        names_messages=False,
        span_name="mistral_ai",
    ),
    Provider(name="modelscope", wire="near_openai"),
    Provider(name="moonshot", wire="near_openai", key_variable="MOONSHOT_API_KEY", other_names=("kimi",)),
    Provider(name="morph", wire="near_openai"),
    Provider(name="nadir", wire="near_openai"),
    Provider(name="nano-gpt", wire="near_openai"),
    Provider(name="nebius", wire="near_openai", key_variable="NEBIUS_API_KEY"),
    Provider(name="neosantara", wire="near_openai"),
    Provider(name="novita", wire="near_openai", key_variable="NOVITA_API_KEY"),
    Provider(name="nscale", wire="near_openai", key_variable="NSCALE_API_KEY"),
    Provider(name="nvidia_nim", wire="near_openai", key_variable="NVIDIA_NIM_API_KEY"),
    Provider(
        name="ollama",
        wire="openai",
        base="http://localhost:11434",
        base_variables=("OLLAMA_API_BASE",),
        key_variable="OLLAMA_API_KEY",
        key_is_optional=True,
        is_local=True,
        dialect="llama_cpp",
        path="/v1",
        litellm_name="ollama_chat",
        own_options=OLLAMA_OPTIONS,
    ),
    Provider(
        name="ollama_chat",
        wire="openai",
        base="http://localhost:11434",
        base_variables=("OLLAMA_API_BASE",),
        key_variable="OLLAMA_API_KEY",
        key_is_optional=True,
        is_local=True,
        dialect="llama_cpp",
        offer=Offer("ollama", "Ollama", "qwen3", port=11434),
        path="/v1",
        own_options=OLLAMA_OPTIONS,
    ),
    Provider(
        name="openai",
        wire="openai",
        base="https://api.openai.com/v1",
        base_variables=("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        key_variable="OPENAI_API_KEY",
        knows_developers=True,
        forbids_calls=True,
        other_names=("gpt", "llamacpp", "llama.cpp"),
        offer=Offer("openai", "OpenAI", "gpt-5-mini"),
        counts_completions=True,
        responses_only=RESPONSES_ONLY,
        dialect="openai",
        dialect_elsewhere="full",
    ),
    Provider(
        name="openai_like",
        wire="openai",
        base_variables=("OPENAI_LIKE_API_BASE",),
        key_variable="OPENAI_LIKE_API_KEY",
        key_is_optional=True,
    ),
    Provider(
        name="openrouter",
        wire="near_openai",
        takes_cache_marks=True,
        base="https://openrouter.ai/api/v1",
        base_variables=("OPENROUTER_API_BASE",),
        key_variable="OPENROUTER_API_KEY",
        other_key_variables=("OR_API_KEY",),
        offer=Offer("openrouter", "OpenRouter", "openai/gpt-5-mini"),
    ),
    Provider(
        name="ovhcloud",
        wire="near_openai",
        base="https://oai.endpoints.kepler.ai.cloud.ovh.net/v1",
        base_variables=("OVHCLOUD_API_BASE",),
        key_variable="OVHCLOUD_API_KEY",
        key_is_optional=True,
    ),
    Provider(name="parasail", wire="near_openai", key_variable="PARASAIL_API_KEY"),
    Provider(
        name="perplexity",
        wire="near_openai",
        key_variable="PERPLEXITYAI_API_KEY",
        other_key_variables=("PERPLEXITY_API_KEY",),
    ),
    Provider(name="petals", wire="litellm", why_end_is_unseen="its model runs in this process or in a swarm"),
    Provider(name="pinstripes", wire="near_openai"),
    Provider(name="poe", wire="near_openai", key_variable="POE_API_KEY"),
    Provider(name="prism", wire="near_openai"),
    Provider(name="publicai", wire="near_openai"),
    Provider(name="qwen_ai_platform", wire="near_openai"),
    Provider(name="qwencloud", wire="near_openai"),
    Provider(name="reka", wire="near_openai"),
    Provider(name="sail", wire="near_openai"),
    Provider(name="sambanova", wire="near_openai", key_variable="SAMBANOVA_API_KEY"),
    Provider(name="sarvam", wire="near_openai"),
    Provider(name="scaleway", wire="near_openai"),
    Provider(name="scx-ai", wire="near_openai"),
    Provider(name="synthetic", wire="near_openai"),
    Provider(name="tencent", wire="near_openai"),
    Provider(name="tensormesh", wire="near_openai"),
    Provider(
        name="together_ai",
        wire="near_openai",
        key_variable="TOGETHERAI_API_KEY",
        other_key_variables=("TOGETHER_API_KEY", "TOGETHER_AI_API_KEY", "TOGETHER_AI_TOKEN"),
        other_names=("togetherai",),
    ),
    Provider(name="v0", wire="near_openai", key_variable="V0_API_KEY"),
    Provider(name="veniceai", wire="near_openai"),
    Provider(
        name="vercel_ai_gateway", wire="near_openai", takes_cache_marks=True, key_variable="VERCEL_AI_GATEWAY_API_KEY"
    ),
    Provider(
        name="vertex_ai",
        wire="gemini",
        span_name="gcp.vertex_ai",
        settings=VERTEX_SETTINGS,
        model_prefix="gemini-",
        unread=NO_GEMINI,
        claude_models=re.compile("claude"),
    ),
    Provider(name="vertex_ai_beta", wire="gemini", unread=NO_GEMINI, settings=VERTEX_SETTINGS),
    Provider(name="vllm", wire="litellm", is_local=True, why_end_is_unseen="its model runs in this process"),
    Provider(name="volcengine", wire="near_openai"),
    Provider(name="wandb", wire="near_openai", key_variable="WANDB_API_KEY"),
    Provider(name="watsonx", wire="litellm", span_name="ibm.watsonx.ai"),
    Provider(name="xai", wire="near_openai", key_variable="XAI_API_KEY", span_name="x_ai", other_names=("grok",)),
    Provider(name="xiaomi_mimo", wire="near_openai"),
    Provider(
        name="xinference",
        wire="near_openai",
        base_variables=("XINFERENCE_API_BASE",),
        key_variable="XINFERENCE_API_KEY",
        key_is_optional=True,
        is_local=True,
    ),
    Provider(name="zai", wire="near_openai", takes_cache_marks=True, key_variable="ZAI_API_KEY"),
)

# Only litellm speaks to these. They are listed so that checking a name need not load litellm.
LITELLMS_OWN: Final = """
    a2a a2a_agent aiohttp_openai anthropic_text auto_router aws_polly aws_textract azure_speech azure_text
    black_forest_labs bytez chatgpt clarifai cursor custom deepgram dotprompt elevenlabs fal_ai gdc gigachat humanloop
    infinity jina_ai langflow langfuse langgraph litellm_agent manus milvus mongodb nlp_cloud nvidia_riva oci
    oobabooga pg_vector predibase ragflow recraft reducto replicate runwayml s3_vectors sagemaker sagemaker_chat
    sagemaker_nova sap snowflake soniox stability strands_decider text-completion-codestral text-completion-inception
    text-completion-openai topaz transcribe triton typesafe valkey voyage watsonx_text
"""

PROVIDERS: Final[Mapping[str, Provider]] = {
    provider.name: provider
    for provider in (*ROWS, *(Provider(name=name, wire="litellm") for name in LITELLMS_OWN.split()))
}


class Unplaced(msgspec.Struct, frozen=True, kw_only=True):
    """What litellm leaves out of a request that it words for a wire; it refuses all else that it has no words for."""

    fields: frozenset[str] = frozenset()
    """Fields of OpenAI's."""
    names: bool = True
    """The names and refusals of messages."""
    thoughts: bool = False
    """What an earlier turn thought, where nobody signed it."""
    sound: bool = False
    """Parts with sound or film; a request with one is refused instead."""
    json_object: bool = False
    """A `response_format` of this type."""
    search_options: bool = False
    """What is in `web_search_options`, and the switch itself where nothing is in it."""


UNPLACED: Final[Mapping[str, Unplaced]] = {
    "anthropic": Unplaced(thoughts=True, sound=True, json_object=True),
    "bedrock": Unplaced(fields=frozenset({"user", "service_tier"}), sound=True, json_object=True),
    "cohere": Unplaced(fields=frozenset({"user"}), names=False),
    "gemini": Unplaced(fields=frozenset({"user"}), search_options=True),
}
"""By wire; of an OpenAI-shaped one nothing is left out."""
CLAUDE_WIRE: Final = "anthropic"
OPENAI_WIRES: Final = frozenset({"openai", "near_openai"})
OWN_WIRES: Final = frozenset({"anthropic", "bedrock", "cohere", "gemini"})
MODEL_PREFIXES: Final = tuple((row.model_prefix, row.name) for row in ROWS if row.model_prefix)
"""The beginnings of model names by which litellm finds a provider, and the providers."""
ALL_SETTINGS: Final = frozenset().union(*(row.settings for row in ROWS))
"""Settings of entries for the address and authentication of one provider."""
OFFERED: Final = {row.offer.name: row for row in ROWS if row.offer is not None}
"""The providers that `callgate init` offers, by their names there."""
OPENAIS_OWN: Final = frozenset({"openai", "azure"})
"""The providers of OpenAI's own models."""
DEFAULT: Final = "openai"
"""The provider of a model's name without a prefix, on the command line."""
DEMO: Final = "demo"
"""The prefix of the built-in demo model, which no provider has."""
OPENAI_NAMES: Final = re.compile(r"(?:gpt-|chatgpt-|o[1-9](?:-|$)|ft:gpt-)[A-Za-z0-9.:_-]*")
"""Names that litellm takes for OpenAI's without a prefix."""
UNNAMED: Final = Provider(name="", wire="openai", knows_developers=True)
"""A server with OpenAI's wire, of which only the address is known."""
FAMILY_DIALECTS: Final[Mapping[str, Dialect]] = {"gemini": "gemini", "claude": "anthropic"}
"""The dialects of models that several providers have, by a part of their names."""


def provider_named(name: str | None) -> Provider | None:
    """Return a provider by litellm's name."""
    if name:
        return PROVIDERS.get(name)
    return None


def suggestions() -> Mapping[str, str]:
    """Return other names of providers with the names that are meant."""
    return {other: provider.name for provider in ROWS for other in provider.other_names}


def span_name_of(deployment: str) -> str | None:
    """Return the name that OpenTelemetry has for the provider in litellm's name of a deployment."""
    name, separator, _ = deployment.partition("/")
    if not separator:
        return None
    provider = PROVIDERS.get(name)
    if provider is None or not provider.span_name:
        return name
    return provider.span_name


def dialect_of(model: str, api_base: str | None = None, provider: Provider | None = None) -> Dialect:
    """Return the dialect of a model by its litellm name, where the config does not set it."""
    prefix, _, own_name = model.lower().partition("/")
    name = own_name or prefix
    last_part = name.rpartition("/")[2]
    row = provider or PROVIDERS.get(prefix) or OFFERED.get(prefix)
    if row is not None and row.dialect in FAMILY_DIALECTS.values():
        return row.dialect
    if "gemini" in last_part:
        return "gemini"
    if "claude" in name:
        return "anthropic"
    if row is not None and row.dialect == "llama_cpp":
        return "llama_cpp"
    if name.startswith("gpt-"):
        return "openai"
    if row is None:
        return "full"
    if api_base and row.dialect_elsewhere is not None:
        return row.dialect_elsewhere
    return row.dialect
