"""The fields with which a request would choose an address, a key, a header, a callback or a mock. They are left out of what goes on."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from callgate.conversation.ports import JudgedFields

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
GO_ON: Final = frozenset(
    """
    model messages tools tool_choice stream stream_options metadata reasoning_summary
    """.split()
)
"""Settings of litellm's that are fields of an API as well: harmless in a body that a lane writes itself."""

LONGEST_REMEMBERED: Final = 64
"""Characters of a name whose result is cached; clients choose the names, and the cache must stay small."""


def without_settings(fields: Mapping[str, Any]) -> JudgedFields:
    """Return the fields that may go on: all but settings, the same object where there are none."""
    others = fields.keys() - GO_ON
    if not others or not any(map(is_setting, others)):
        return fields  # type: ignore[return-value]  # made here alone; a call of the type costs each request
    return JudgedFields({name: value for name, value in fields.items() if name in GO_ON or not is_setting(name)})


def is_setting(name: str) -> bool:
    """Return whether litellm, or a server of litellm's, would take a field for a setting of its own."""
    if len(name) <= LONGEST_REMEMBERED:
        return _is_setting(name)
    return _is_setting.__wrapped__(name)


@lru_cache(maxsize=1024)
def _is_setting(name: str) -> bool:
    lower = name.lower()
    return lower in DENIED or lower.startswith(DENIED_STARTS) or lower.endswith(DENIED_ENDS)
