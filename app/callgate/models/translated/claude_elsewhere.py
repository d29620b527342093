"""Claude on Vertex AI and on Azure AI: Anthropic's wire with another address and another sign-in."""

from collections.abc import Mapping
from typing import Any, Final

from callgate.conversation.ports import ModelRequest
from callgate.models import errors
from callgate.models import litellm_seam as seam
from callgate.models.resolve import LiteLLMSettings, provider_of
from callgate.models.translated.claude import ClaudeAt, claude_request
from callgate.models.translated.gemini import vertex_access
from callgate.models.translated.translation import Fields, ProviderRequest, Unanswerable
from callgate.models.translated.wording import Elsewhere

AZURE: Final = "azure_ai"
VERTEX: Final = "vertex_ai"
VERTEX_FIELDS: Final[Mapping[str, Any]] = {"anthropic_version": "vertex-2023-10-16", "is_vertex_request": True}
"""What litellm's handler of Vertex AI adds to a request."""


async def translate(
    litellm: Any,
    settings: LiteLLMSettings,
    request: ModelRequest,
    translate_fields: Fields,
    elsewhere: Elsewhere | None,
) -> ProviderRequest:
    if provider_of(settings.arguments) == AZURE:
        place = _on_azure(litellm, settings)
    else:
        place = await _on_vertex(litellm, settings, stream=request.stream)
    return await claude_request(settings, request, translate_fields, place, elsewhere)


async def _on_vertex(litellm: Any, settings: LiteLLMSettings, *, stream: bool) -> ClaudeAt:
    own, model, base, headers = _parts(litellm, settings)
    token, project = await vertex_access(own, headers)
    location = own.get("vertex_location") or own.get("vertex_ai_location")
    if token is None or project is None:
        raise errors.auth_failed("Vertex AI: no token or no project; set vertex_project and vertex_credentials")
    url = seam.VERTEX_ADDRESS.get()(
        seam.VERTEX_BASE.get()(),
        custom_api_base=base,
        vertex_location=location,
        vertex_project=project,
        project_id=project,
        partner=seam.VERTEX_PARTNERS.get().claude,
        stream=stream,
        model=model,
    )
    return ClaudeAt(
        provider=VERTEX,
        model=model,
        url=url,
        base=base,
        key=token,
        headers={**headers, "Authorization": f"Bearer {token}"},
        own=own,
        fields=VERTEX_FIELDS,
    )


def _on_azure(litellm: Any, settings: LiteLLMSettings) -> ClaudeAt:
    own, model, base, headers = _parts(litellm, settings)
    base = seam.AZURE_INFO.get().get_api_base(base)
    if base is None:
        raise Unanswerable("The proxy's entry for this model does not say where it is.")
    key = seam.AZURE_INFO.get().get_api_key(own.get("api_key"))
    url = seam.azure_claude_address(api_base=base, api_key=key, model=model, optional_params={}, litellm_params={})
    return ClaudeAt(
        provider=AZURE,
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
