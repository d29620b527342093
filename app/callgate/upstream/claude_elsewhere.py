"""Claude on Vertex AI and on Azure AI: Anthropic's wire with another address and another sign-in."""

from collections.abc import Mapping
from typing import Any, Final

from callgate.conversation.ports import ModelRequest
from callgate.upstream import errors
from callgate.upstream.claude import ClaudeAt, worded
from callgate.upstream.gemini import vertex_access
from callgate.upstream.resolve import LiteLLMSettings, provider_of
from callgate.upstream.translation import Fields, Question, Unanswerable

VERTEX_FIELDS: Final[Mapping[str, Any]] = {"anthropic_version": "vertex-2023-10-16", "is_vertex_request": True}
"""What litellm's handler of Vertex AI adds to a request."""


async def question(litellm: Any, settings: LiteLLMSettings, ask: ModelRequest, translate_fields: Fields) -> Question:
    if provider_of(settings.arguments) == "azure_ai":
        place = _on_azure(litellm, settings)
    else:
        place = await _on_vertex(litellm, settings, stream=ask.stream)
    return await worded(litellm, settings, ask, translate_fields, place)


async def _on_vertex(litellm: Any, settings: LiteLLMSettings, *, stream: bool) -> ClaudeAt:
    from litellm.llms.vertex_ai.vertex_ai_partner_models.anthropic.transformation import VertexAIAnthropicConfig
    from litellm.llms.vertex_ai.vertex_llm_base import VertexBase
    from litellm.types.llms.vertex_ai import VertexPartnerProvider

    own, model, base, headers = _parts(litellm, settings)
    token, project = await vertex_access(own, headers)
    location = own.get("vertex_location") or own.get("vertex_ai_location")
    if token is None or project is None:
        raise errors.auth_failed("Vertex AI: no token or no project; set vertex_project and vertex_credentials")
    url = VertexBase().get_complete_vertex_url(
        custom_api_base=base,
        vertex_location=location,
        vertex_project=project,
        project_id=project,
        partner=VertexPartnerProvider.claude,
        stream=stream,
        model=model,
    )
    return ClaudeAt(
        config=VertexAIAnthropicConfig(),
        provider="vertex_ai",
        model=model,
        url=url,
        base=base,
        key=token,
        headers={**headers, "Authorization": f"Bearer {token}"},
        own=own,
        fields=VERTEX_FIELDS,
    )


def _on_azure(litellm: Any, settings: LiteLLMSettings) -> ClaudeAt:
    from litellm.llms.azure_ai.anthropic.messages_transformation import AzureAnthropicMessagesConfig
    from litellm.llms.azure_ai.anthropic.transformation import AzureAnthropicConfig
    from litellm.llms.azure_ai.common_utils import AzureFoundryModelInfo

    own, model, base, headers = _parts(litellm, settings)
    base = AzureFoundryModelInfo.get_api_base(base)
    if base is None:
        raise Unanswerable("The proxy's entry for this model does not say where it is.")
    key = AzureFoundryModelInfo.get_api_key(own.get("api_key"))
    url = AzureAnthropicMessagesConfig().get_complete_url(
        api_base=base, api_key=key, model=model, optional_params={}, litellm_params={}
    )
    return ClaudeAt(
        config=AzureAnthropicConfig(),
        provider="azure_ai",
        model=model,
        url=url,
        base=base,
        key=key,
        headers=headers,
        own=own,
        fields={},
        may_block=True,
    )


def _parts(litellm: Any, settings: LiteLLMSettings) -> tuple[dict[str, Any], str, str | None, dict[str, Any]]:
    """Return an entry's settings, its model, its address and its headers."""
    own = dict(settings.arguments)
    base = own.get("api_base") or own.get("base_url")
    model, _, _, _ = litellm.get_llm_provider(
        model=own["model"], custom_llm_provider=own.get("custom_llm_provider"), api_base=base, api_key="none"
    )
    return own, model, base, {**(own.get("headers") or {}), **(own.get("extra_headers") or {})}
