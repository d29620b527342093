"""The names of litellm's insides that are used here, all of them: only this module imports litellm.

Its documentation promises none of them, so that any release may change one. `tests/models/test_litellm_seam.py` checks each,
with the arguments it is called with, and says which version broke which.
"""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec


class Inside(msgspec.Struct, frozen=True):
    """A name inside litellm."""

    module: str
    path: str
    """The name in the module, with attributes: `BaseAWSLLM.get_runtime_endpoint`."""
    arguments: tuple[str, ...] = ()
    """The arguments that it is called with by name."""
    attributes: tuple[str, ...] = ()
    """The methods and attributes that are used of it."""

    def get(self) -> Any:
        """Import it, which loads litellm."""
        value: Any = sys.modules.get(self.module) or importlib.import_module(self.module)
        for name in self.path.split("."):
            value = getattr(value, name)
        return value


def library() -> Any:
    """Import litellm itself. What it documents is used through the module: `acompletion`, `get_llm_provider`, …"""
    import litellm

    return litellm


PUBLIC: Final = frozenset(
    """
    acompletion exceptions get_llm_provider get_supported_openai_params token_counter model_cost BadRequestError
    """.split()
)
"""What is used of litellm's documented surface, by its own name, outside this module."""

# Every provider ---------------------------------------------------------------------------------------------------------

_QUESTION = ("model", "messages", "optional_params", "litellm_params", "headers")
_SIGN_IN = ("headers", "model", "messages", "optional_params", "litellm_params", "api_key")

RESPONSE_FORMAT_TOOL_NAME = Inside("litellm.constants", "RESPONSE_FORMAT_TOOL_NAME")
"""The name of the call by which litellm asks for a response format where a provider has none."""
GET_OPTIONAL_PARAMS = Inside("litellm", "get_optional_params", ("model", "custom_llm_provider"))
FIX_MESSAGES = Inside("litellm.utils", "validate_and_fix_openai_messages", ("messages",))
FIX_TOOLS = Inside("litellm.utils", "validate_and_fix_openai_tools", ("tools",))
FIX_THINKING = Inside("litellm.utils", "validate_and_fix_thinking_param", ("thinking",))
FIX_STOP = Inside("litellm.utils", "validate_openai_optional_params", ("stop",))
CHECK_TOOL_CHOICE = Inside("litellm.utils", "validate_chat_completion_tool_choice", ("tool_choice", "model"))
CACHE_MARKS = Inside(
    "litellm.integrations.anthropic_cache_control_hook",
    "AnthropicCacheControlHook.get_chat_completion_prompt",
    ("model", "messages", "non_default_params", "prompt_id", "prompt_variables", "dynamic_callback_params"),
)
MODEL_RESPONSE = Inside("litellm", "ModelResponse")
PARAMS = Inside("litellm.types.router", "GenericLiteLLMParams")
PROVIDER_NAMES = Inside("litellm.types.utils", "LlmProviders")
CHAT_CONFIG = Inside("litellm.utils", "ProviderConfigManager.get_provider_chat_config")
OPENAI_COMPATIBLE = Inside("litellm", "openai_compatible_providers")
HTTP_HANDLER = Inside(
    "litellm.llms.custom_httpx.http_handler", "AsyncHTTPHandler", attributes=("create_async_transport",)
)

# Anthropic --------------------------------------------------------------------------------------------------------------

ANTHROPIC_CONFIG = Inside(
    "litellm",
    "AnthropicConfig",
    attributes=(
        "async_transform_request",
        "get_prefix_prompt",
        "transform_parsed_response",
        "translate_developer_role_to_system_role",
        "validate_environment",
    ),
)
ANTHROPIC_REQUEST = Inside("litellm", "AnthropicConfig.async_transform_request", _QUESTION)
ANTHROPIC_HEADERS = Inside("litellm", "AnthropicConfig.validate_environment", (*_SIGN_IN, "api_base"))
ANTHROPIC_INFO = Inside(
    "litellm.llms.anthropic.common_utils",
    "AnthropicModelInfo",
    attributes=("get_api_base", "get_api_key", "get_auth_token"),
)
ANTHROPIC_EVENTS = Inside(
    "litellm.llms.anthropic.chat.handler",
    "ModelResponseIterator",
    ("streaming_response", "sync_stream", "json_mode", "speed", "tool_name_reverse_map"),
    ("chunk_parser",),
)
ANTHROPIC_NAMES = Inside("litellm", "AnthropicConfig._build_request_tool_name_maps", ("tools",))
"""The names that it sends for those of the tools, and the other way round."""
ANTHROPIC_BETAS = Inside(
    "litellm.anthropic_beta_headers_manager",
    "update_request_with_filtered_beta",
    ("headers", "request_data", "provider"),
)
VERTEX_CLAUDE = Inside(
    "litellm.llms.vertex_ai.vertex_ai_partner_models.anthropic.transformation", "VertexAIAnthropicConfig"
)
VERTEX_PARTNERS = Inside("litellm.types.llms.vertex_ai", "VertexPartnerProvider", attributes=("claude",))
VERTEX_ADDRESS = Inside(
    "litellm.llms.vertex_ai.vertex_llm_base",
    "VertexBase.get_complete_vertex_url",
    ("custom_api_base", "vertex_location", "vertex_project", "project_id", "partner", "stream", "model"),
)
AZURE_CLAUDE = Inside("litellm.llms.azure_ai.anthropic.transformation", "AzureAnthropicConfig")
AZURE_CLAUDE_ADDRESS = Inside(
    "litellm.llms.azure_ai.anthropic.messages_transformation",
    "AzureAnthropicMessagesConfig.get_complete_url",
    ("api_base", "api_key", "model", "optional_params", "litellm_params"),
)
AZURE_INFO = Inside(
    "litellm.llms.azure_ai.common_utils", "AzureFoundryModelInfo", attributes=("get_api_base", "get_api_key")
)

# Gemini -----------------------------------------------------------------------------------------------------------------

GEMINI_CONFIG = Inside("litellm", "GoogleAIStudioGeminiConfig", attributes=("validate_environment",))
VERTEX_CONFIG = Inside("litellm", "VertexGeminiConfig", attributes=("validate_environment",))
GEMINI_HEADERS = Inside("litellm", "VertexGeminiConfig.validate_environment", _SIGN_IN)
GEMINI_KEY = Inside("litellm.llms.gemini.common_utils", "get_api_key_from_env")
SECRET = Inside("litellm.secret_managers.main", "get_secret_str")
CACHED_MESSAGES = Inside("litellm.llms.vertex_ai.context_caching.transformation", "separate_cached_messages")
GEMINI_BODY = Inside(
    "litellm.llms.vertex_ai.gemini.transformation",
    "transform_request_body",
    ("messages", "model", "cached_content", "optional_params", "custom_llm_provider", "litellm_params"),
)
GEMINI_ASKS_STORAGE = Inside(
    "litellm.llms.vertex_ai.gemini.transformation", "_openai_messages_may_need_sync_gcs_metadata_fetch"
)
"""Whether litellm would ask Google's storage for the type of a file, on the event loop. Nothing public says so."""
GEMINI_ADDRESS = Inside(
    "litellm.llms.vertex_ai.gemini.vertex_and_google_ai_studio_gemini",
    "VertexLLM._get_token_and_url",
    (
        "model",
        "auth_header",
        "gemini_api_key",
        "vertex_project",
        "vertex_location",
        "vertex_credentials",
        "stream",
        "custom_llm_provider",
        "api_base",
    ),
)
"""What makes litellm's own address."""
GEMINI_EVENTS = Inside(
    "litellm.llms.vertex_ai.gemini.vertex_and_google_ai_studio_gemini",
    "ModelResponseIterator",
    ("streaming_response", "sync_stream", "logging_obj"),
    ("chunk_parser",),
)
GEMINI_ANSWER = Inside(
    "litellm",
    "GoogleAIStudioGeminiConfig._transform_google_generate_content_to_openai_model_response",
    ("completion_response", "model_response", "model", "logging_obj", "raw_response"),
)
VERTEX_BASE = Inside("litellm.llms.vertex_ai.vertex_llm_base", "VertexBase", attributes=("get_access_token",))

# Bedrock ----------------------------------------------------------------------------------------------------------------

CONVERSE_CONFIG = Inside("litellm", "AmazonConverseConfig")
CONVERSE_FAKES_STREAM = Inside(
    "litellm",
    "AmazonConverseConfig.should_fake_stream",
    ("fake_stream", "model", "stream", "custom_llm_provider"),
)
CONVERSE_REQUEST = Inside("litellm", "AmazonConverseConfig._async_transform_request", _QUESTION)
"""The public one is not asynchronous."""
BEDROCK_TOOL_NAME = Inside("litellm.litellm_core_utils.prompt_templates.factory", "make_valid_bedrock_tool_name")
AWS = Inside("litellm.llms.bedrock.base_aws_llm", "BaseAWSLLM", attributes=("encode_model_id", "resolve_credentials"))
AWS_REGION = Inside(
    "litellm.llms.bedrock.base_aws_llm",
    "BaseAWSLLM._get_aws_region_name",
    ("optional_params", "model", "model_id"),
)
AWS_ENDPOINT = Inside(
    "litellm.llms.bedrock.base_aws_llm",
    "BaseAWSLLM.get_runtime_endpoint",
    ("api_base", "aws_bedrock_runtime_endpoint", "aws_region_name"),
)
AWS_HEADERS = Inside(
    "litellm.llms.bedrock.base_aws_llm",
    "BaseAWSLLM.get_request_headers",
    ("credentials", "aws_region_name", "extra_headers", "endpoint_url", "data", "headers", "api_key"),
)
AWS_TOKEN = Inside("litellm.llms.bedrock.base_aws_llm", "bedrock_bearer_token")
AWS_SIGN_IN = Inside("litellm.llms.bedrock.base_aws_llm", "pop_aws_auth_params")
AWS_REGIONS = Inside("litellm.llms.bedrock.common_utils", "get_all_bedrock_regions")

# Cohere -----------------------------------------------------------------------------------------------------------------

COHERE_CONFIG = Inside(
    "litellm", "CohereV2ChatConfig", attributes=("translate_developer_role_to_system_role", "validate_environment")
)
COHERE_REQUEST = Inside("litellm", "CohereV2ChatConfig.transform_request", _QUESTION)

# Providers with OpenAI's wire -------------------------------------------------------------------------------------------

OPENAI_CONFIG = Inside(
    "litellm.llms.openai.chat.gpt_transformation",
    "OpenAIGPTConfig",
    attributes=(
        "get_complete_url",
        "sign_request",
        "translate_developer_role_to_system_role",
        "transform_request",
        "validate_environment",
    ),
)
JSON_PROVIDERS = Inside("litellm.llms.openai_like.json_loader", "JSONProviderRegistry", attributes=("exists", "get"))
JSON_CONFIG = Inside("litellm.llms.openai_like.dynamic_config", "create_config_class")
AZURE_TOKEN = Inside("litellm.llms.azure.common_utils", "get_azure_ad_token")
AZURE_VERSION = Inside("litellm", "AZURE_DEFAULT_API_VERSION")

# The whole process ------------------------------------------------------------------------------------------------------

URL_UTILS = Inside("litellm.litellm_core_utils", "url_utils", attributes=("safe_get", "async_safe_get"))
FETCH_ERROR = Inside("litellm", "ImageFetchError")
IS_INTERNAL_CALL = Inside("litellm._internal_context", "is_internal_call", attributes=("set", "reset"))
"""The context variable under which it logs nothing of a request."""
LOGGING_WORKER = Inside("litellm.litellm_core_utils.logging_worker", "GLOBAL_LOGGING_WORKER", attributes=("stop",))
CLOSE_CLIENTS = Inside("litellm", "close_litellm_async_clients")
CLIENTS = Inside("litellm", "in_memory_llm_clients_cache", attributes=("flush_cache",))
SDK_QUESTIONS = Inside(
    "openai.resources.chat.completions", "completions", attributes=("AsyncCompletions", "async_maybe_transform")
)
SDK_GIVEN = Inside("openai._utils", "is_given")
SWITCHES: Final[Mapping[str, Any]] = {
    "telemetry": False,
    "suppress_debug_info": True,
    "set_verbose": False,
    # It raises for a hundred equal chunks in a row, which a long line or an empty table may have.
    "REPEATED_STREAMING_CHUNK_LIMIT": sys.maxsize,
    # Bedrock refuses a history with tool calls where no tools are offered, as in the last turn of a loop.
    "modify_params": True,
}
"""Settings of the process."""

INSIDES: Final = tuple((name, inside) for name, inside in sorted(globals().items()) if isinstance(inside, Inside))


def set_switches() -> None:
    for name, value in SWITCHES.items():
        setattr(library(), name, value)


def send_questions_as_they_are() -> None:
    """Have OpenAI's SDK, which litellm asks with, leave out its walk through a question. It renames fields by their types, of which
    none of a question has another name, and holds the event loop: for two seconds where there are 24,000 parts."""
    is_given = SDK_GIVEN.get()

    async def as_it_is(data: Mapping[str, Any], expected_type: object) -> Mapping[str, Any]:
        return {name: value for name, value in data.items() if is_given(value)}

    SDK_QUESTIONS.get().async_maybe_transform = as_it_is


@contextmanager
def nothing_logged() -> Iterator[None]:
    """Have litellm log nothing of the requests within this context: it would work out a price and a record of each, for
    callbacks, of which there are none."""
    is_internal_call = IS_INTERNAL_CALL.get()
    token = is_internal_call.set(True)
    try:
        yield
    finally:
        is_internal_call.reset(token)


def gemini_address(**arguments: Any) -> tuple[str | None, str]:
    """Return the signature and the address of a request to Gemini."""
    module = importlib.import_module(GEMINI_ADDRESS.module)
    signature, url = GEMINI_ADDRESS.get()(module.VertexLLM(), **arguments)
    return signature, url


def azure_claude_address(**arguments: Any) -> str:
    module = importlib.import_module(AZURE_CLAUDE_ADDRESS.module)
    return str(AZURE_CLAUDE_ADDRESS.get()(module.AzureAnthropicMessagesConfig(), **arguments))


def with_cache_marks(**arguments: Any) -> Any:
    """Return the messages with the marks that an entry asks for."""
    module = importlib.import_module(CACHE_MARKS.module)
    _, messages, _ = CACHE_MARKS.get()(module.AnthropicCacheControlHook(), **arguments)
    return messages


async def close_connections() -> None:
    """Stop litellm's background task and close its connections, at the end of the process."""
    await LOGGING_WORKER.get().stop()
    await CLOSE_CLIENTS.get()()
    CLIENTS.get().flush_cache()  # or closed clients would be used again
    # The client outside its caches reconnects where it is used again; it is made when it is first asked for.
    if (shared := vars(library()).get("module_level_aclient")) is not None:
        await shared.client._transport.aclose()  # noqa: SLF001 - closing the client itself would be for ever
