"""Selects the fields of a request that are sent on to a provider.

A client must not choose an address, a key, a header, a callback or a mock. In the direct lane the request only becomes a
body, so every field that is not denied may be in it. litellm takes its own settings as keyword arguments beside the
model's, so only listed names become arguments and the rest goes into `extra_body`.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from callgate.conversation.ports import ModelRequest

# Names that litellm 1.106, or a litellm server behind us, reads as its own settings.
DENIED = frozenset(
    """
    acompletion allowed_model_region allowed_openai_params api_base api_key api_type api_version atext_completion
    auth azure azure_ad_token azure_ad_token_provider azure_password azure_username base_model base_url batch_write
    bucket_name budget_duration cache caching callbacks client client_id client_secret complete_response
    completion_call_id configurable_clientside_auth_params context_window_fallback_dict cooldown_time
    custom_llm_provider custom_prompt_dict debug default_api_key_rpm_limit default_api_key_tpm_limit
    default_headers default_query deployment_id disable_add_transform_inline_image_block drop_params
    enable_json_schema_validation ensure_alternating_roles extra_body extra_headers extra_query fallbacks
    fallback_depth fastest_response final_prompt_value force_timeout guardrails headers hf_model_name
    http_client id initial_prompt_value input_cost_per_second input_cost_per_token langsmith_api_key langfuse_host
    langfuse_public_key langfuse_secret litellm_call_id litellm_credential_name litellm_logging_obj
    litellm_metadata litellm_params litellm_session_id litellm_trace_id logger_fn logging_obj max_budget
    max_fallbacks max_parallel_requests max_retries merge_reasoning_content_in_choices messages
    metadata mock_delay mock_response mock_timeout mock_tool_calls model model_config model_file_id_mapping
    model_info model_list no-log no_log num_retries order organization original_function output_cost_per_second
    output_cost_per_token preset_cache_key project prompt_id prompt_label prompt_variables prompt_version
    provider_budget_config proxy proxy_server_request ratelimit_per_model region_name request_timeout
    retry_policy retry_strategy roles rpm s3_bucket_name s3_encryption_key_id secret_fields shared_session
    specific_deployment ssl_verify stream stream_response stream_timeout supports_system_message swagger
    tags text_completion timeout tool_choice tools tpm ttl turn_off_message_logging use_chat_completions_api
    use_in_pass_through use_litellm_proxy use_xai_oauth user_continue_message verbose vertex_ai_credentials
    vertex_ai_location vertex_ai_project vertex_credentials vertex_location vertex_project watsonx_region_name
    assistant_continue_message base64_source bitbucket_config dotprompt_config gitlab_config
    """.split()
)
DENIED |= {"reasoning_summary"}
"""Fields that only the Responses API has."""
DENIED |= {"mcp_servers"}
"""Addresses that a provider would call with what the operator's key may do. In Messages it names servers of ours."""
DENIED_STARTS = (
    "mock_",
    "litellm",
    "aws_",
    "azure_",
    "vertex_",
    "langfuse_",
    "api_",
    "s3_",
    "gcs_",
    "ssl_",
    "oci_",
    "sagemaker_",
)
DENIED_ENDS = ("_callback", "_callbacks", "_api_key", "_api_base", "_base_url", "_headers", "_client", "_credentials")
IN_BODY = frozenset({"metadata"})
"""A setting of litellm's, and a field of OpenAI's: harmless in a body that we write ourselves."""

NAMED = frozenset(
    """
    functions function_call temperature top_p n stop max_tokens max_completion_tokens modalities prediction audio
    presence_penalty frequency_penalty logit_bias user response_format seed parallel_tool_calls logprobs
    top_logprobs reasoning_effort verbosity safety_identifier service_tier store prompt_cache_key thinking
    web_search_options
    """.split()
)
"""Named parameters of `acompletion`, which it translates for every provider."""


ALWAYS_PASSED = frozenset({"model", "messages", "tools", "tool_choice", "stream", "stream_options"}) | IN_BODY
"""The main fields of a request; denied only as extra parameters."""


LONGEST_REMEMBERED = 64
"""Characters of a name whose result is cached; clients choose the names, and the cache must stay small."""


SELECTORS = frozenset({"models", "fallback_models", "route", "provider", "preset", "user_config"})
"""Fields with which a request chooses another model or host than the name that its key may ask."""


COUNTS_COMPLETIONS = re.compile(r"(?:o[1-9]|gpt-[5-9]|codex)(?![a-z\d])")
"""Prefixes of OpenAI's models that refuse `max_tokens` and require `max_completion_tokens`, which includes reasoning."""


def with_completion_limit(fields: dict[str, Any]) -> dict[str, Any]:
    """Rename the token limit as OpenAI's newer models require."""
    limit = fields.pop("max_tokens", None)
    if limit is not None:
        fields.setdefault("max_completion_tokens", limit)
    return fields


def is_denied(name: str) -> bool:
    return _is_denied(name) if len(name) <= LONGEST_REMEMBERED else _is_denied.__wrapped__(name)


@lru_cache(maxsize=1024)
def _is_denied(name: str) -> bool:
    lower = name.lower()
    return lower in DENIED or lower.startswith(DENIED_STARTS) or lower.endswith(DENIED_ENDS)


def for_body(ask: ModelRequest, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the body: the request's, and the operator's defaults."""
    asked = {name: value for name, value in ask.params.items() if name in IN_BODY or not is_denied(name)}
    fields = _fitting(ask, {**defaults, **asked})
    fields.pop("stream_options", None)
    return fields


def for_litellm(ask: ModelRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the request's fields as arguments for litellm, and those for `extra_body`."""
    named: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    for name, value in _fitting(ask, dict(ask.params)).items():
        if is_denied(name) or name == "stream_options":
            continue
        (named if name in NAMED else beside)[name] = value
    return named, beside


def _fitting(ask: ModelRequest, fields: dict[str, Any]) -> dict[str, Any]:
    # OpenAI refuses these two without tools, and the last turn of a loop has none.
    if ask.tools or "functions" in fields:
        return fields
    return {name: value for name, value in fields.items() if name not in {"parallel_tool_calls", "function_call"}}
