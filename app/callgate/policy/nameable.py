"""What a request may name that reaches beyond it, and what comes of it: one row for each kind, the same on every API."""

from typing import Final, Literal, TypeAlias

import msgspec

Consent: TypeAlias = Literal["", "provider_selectors", "tools"]
"""The setting that lets a request name something: of a model's entry, or of a key."""

SELECTORS: Final = frozenset(
    """
    models fallback_models route provider preset user_config fallbacks user_profile_id workspace_id
    """.split()
)
"""Fields with which a request chooses another model, host or workspace than the name that its key may ask."""
SWITCHES: Final = frozenset(
    """
    web_search_options search_parameters search_options search_settings enable_search plugins connectors compound_custom
    """.split()
)
"""Fields that switch on tools of a provider: OpenAI's and Perplexity's, xAI's, Qwen's (two), OpenRouter's, Cohere's, Groq's."""
SWITCHES_IN_TOOLS: Final = frozenset(
    """
    googleSearch google_search googleSearchRetrieval google_search_retrieval enterpriseWebSearch enterprise_web_search
    urlContext url_context codeExecution code_execution googleMaps google_maps computerUse computer_use fileSearch
    """.split()
)
"""The same as fields of a tool, which litellm reads for Google's models whatever the tool's type is."""
CALLED_BY_PROVIDERS: Final = frozenset({"url", "mcp_toolset"})
"""Types of tools in which some providers, or litellm in front of them, take a server's address."""


MCP: Final = "mcp"
RUN_ELSEWHERE: Final = frozenset({"function", "custom", MCP, "mcp_toolset"})
"""Types of tools that the client runs, or we."""
OPERATORS_BLOCKS: Final = frozenset({"file", "container_upload"})
"""Types of content that the operator keeps at the provider."""


PLAIN: Final = frozenset(
    """
    model messages tools tool_choice stream stream_options metadata temperature top_p max_tokens max_completion_tokens n stop user
    seed presence_penalty frequency_penalty logit_bias logprobs top_logprobs parallel_tool_calls response_format reasoning_effort
    """.split()
)
"""Fields of a chat that name nothing but in what its reader has judged: messages and tools."""
PLAIN_IN_TOOLS: Final = frozenset("type name description input_schema strict function custom cache_control".split())
PLAIN_TOOLS: Final = frozenset({None, "function", "custom"})
"""Fields and types of tools that name nothing."""


class Rule(msgspec.Struct, frozen=True):
    """What comes of naming one kind of thing."""

    what: str
    by: str
    """How a request names it."""
    status: int
    code: str
    consent: Consent
    """Without it the answer is an error with this status and code."""
    type: str = "invalid_request_error"


OTHER_MODEL: Final = Rule(
    "another model, host or workspace of the provider",
    " ".join(f"`{name}`" for name in sorted(SELECTORS)),
    400,
    "unsupported_parameter",
    "provider_selectors",
)
OPERATORS: Final = Rule(
    "something in the account of the provider",
    "ids of files, stores, containers, prompts, voices, conversations, responses, at any depth; addresses of media with another "
    "scheme than `https`, `http` and `data` (`gs://`, `s3://`, `file://`), and those of Google's Files API",
    400,
    "unsupported_parameter",
    "provider_selectors",
)
ADDRESS: Final = Rule(
    "a server for the provider to call",
    "tools of type `mcp`, `url` or `mcp_toolset` that are no entry about a server of ours, and `server_url`, "
    "`connector_id`, `tunnel_id` in any tool",
    400,
    "unsupported_value",
    "",
)
HOSTED_TOOL: Final = Rule(
    "a tool that the provider runs and bills",
    "types of tools other than the client's own, and "
    + " ".join(f"`{name}`" for name in sorted(SWITCHES))
    + ", and in a tool "
    + " ".join(f"`{name}`" for name in sorted(SWITCHES_IN_TOOLS)),
    403,
    "tool_not_allowed",
    "tools",
    "permission_error",
)
RULES: Final = (OTHER_MODEL, OPERATORS, ADDRESS, HOSTED_TOOL)
