"""Providers with OpenAI's wire format and parameters, addresses or authentication of their own: Groq, DeepSeek, OpenRouter,
Mistral, Together, Fireworks, xAI, Azure and the like. litellm's provider class translates the parameters and messages; the
answer is read as on the direct lane.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

from callgate.conversation.events import CallDelta, CallWritten, Finished, ModelEvent, TextDelta
from callgate.conversation.finish import meaning_of
from callgate.conversation.finish_words import FinishClass
from callgate.conversation.ports import ModelRequest
from callgate.upstream import errors
from callgate.upstream.direct_model import Body, StreamedBody, WholeBody
from callgate.upstream.litellm_model import decoded
from callgate.upstream.params import COUNTS_COMPLETIONS, for_litellm, with_completion_limit
from callgate.upstream.resolve import KNOW_DEVELOPERS, OF_PROVIDERS, KnownApi, LiteLLMSettings, chat_url, provider_of
from callgate.upstream.translation import Fields, Question, Unanswerable, encode, messages_of

ADDRESSES: Mapping[str, KnownApi] = {
    "cloudflare": KnownApi(None, ("CLOUDFLARE_API_BASE",), "CLOUDFLARE_API_KEY"),
    "databricks": KnownApi(None, ("DATABRICKS_API_BASE",), "DATABRICKS_API_KEY"),
    "huggingface": KnownApi(None, (), "HF_TOKEN"),
    "amazon_nova": KnownApi("https://api.nova.amazon.com/v1", ("AMAZON_NOVA_API_BASE",), "AMAZON_NOVA_API_KEY"),
    "cometapi": KnownApi("https://api.cometapi.com/v1", ("COMETAPI_API_BASE",), "COMETAPI_KEY"),
    "compactifai": KnownApi("https://api.compactif.ai/v1", (), "COMPACTIFAI_API_KEY"),
    "maritalk": KnownApi("https://chat.maritaca.ai/api", ("MARITALK_API_BASE",), "MARITALK_API_KEY"),
    "minimax": KnownApi("https://api.minimax.io/v1", ("MINIMAX_API_BASE",), "MINIMAX_API_KEY"),
    "openrouter": KnownApi("https://openrouter.ai/api/v1", ("OPENROUTER_API_BASE",), "OPENROUTER_API_KEY"),
    "ovhcloud": KnownApi(
        "https://oai.endpoints.kepler.ai.cloud.ovh.net/v1", ("OVHCLOUD_API_BASE",), "OVHCLOUD_API_KEY"
    ),
    "xinference": KnownApi(None, ("XINFERENCE_API_BASE",), "XINFERENCE_API_KEY"),
}
"""Providers whose addresses litellm's `get_llm_provider` does not return."""
AZURE_VERSIONS_WITHOUT_DEPLOYMENTS = frozenset({"v1", "latest", "preview"})


FIND_THEMSELVES = frozenset({"cloudflare", "cometapi", "huggingface"})
"""Providers whose class in litellm finds the address, out of the environment or the model's name."""
MAY_BLOCK = frozenset({"bedrock_mantle", "databricks", "github_copilot", "huggingface"})
"""Providers for which litellm reads files or asks the network for a sign-in or an address, so that it runs in a thread."""
_R = TypeVar("_R")


async def question(litellm: Any, settings: LiteLLMSettings, ask: ModelRequest, translate_fields: Fields) -> Question:
    own = settings.arguments
    model, provider, key, base = await _located(litellm, own)
    key = key if provider == SIGNED_IN else own.get("api_key") or key
    config = class_for(litellm, provider, model)
    messages = messages_of(litellm, settings, model, ask)
    if provider not in KNOW_DEVELOPERS:
        messages = config.translate_developer_role_to_system_role(messages=messages)
    taken = OF_CALLS if is_in_json(provider) else ()
    fields = translate_fields.of(litellm, model, ask, extras=frozenset(), taken=taken)
    extra_body = fields.pop("extra_body", None) or {}
    as_call = bool(fields.pop("json_mode", False))
    for name in ("fake_stream", "stream", "stream_options", "max_retries", "extra_headers"):
        fields.pop(name, None)
    given = {"custom_llm_provider": provider, "api_base": base, "api_version": own.get("api_version")}
    given |= {name: own[name] for name in OF_PROVIDERS.get(provider, ()) if own.get(name)}
    if provider == "azure":
        url, headers, secrets = await _azure(litellm, settings, model)
    else:
        if base is None and (known := ADDRESSES.get(provider)) is not None:
            base = next((found for name in known.base_variables if (found := os.environ.get(name))), known.base)
            key = key or os.environ.get(known.key_variable)
        if base is None and provider not in FIND_THEMSELVES:
            raise Unanswerable("The proxy's entry for this model does not say where it is.")
        headers = await _called(
            provider,
            config.validate_environment,
            headers={},
            model=model,
            messages=messages,
            optional_params=fields,
            litellm_params=given,
            api_key=key,
            api_base=base,
        )
        url = config.get_complete_url(
            api_base=base, api_key=key, model=model, optional_params=fields, litellm_params=given, stream=ask.stream
        )
        url = url if "/chat/completions" in url else chat_url(url)
        secrets = (key,) if key else ()
    body = await _called(
        provider,
        config.transform_request,
        model=model,
        messages=messages,
        optional_params=fields,
        litellm_params=given,
        headers=headers,
    )
    _, beside = for_litellm(ask)
    body |= extra_body
    body |= own.get("extra_body") or {}
    body |= {name: decoded(value) for name, value in beside.items()}
    if provider in {"openai", "azure"} and COUNTS_COMPLETIONS.match(str(own.get("base_model") or model)):
        body = with_completion_limit(body)  # litellm does not see the model in a deployment's name
    body["stream"] = ask.stream
    takes = litellm.get_supported_openai_params(model=model, custom_llm_provider=provider) or ()
    if ask.stream and settings.include_usage and "stream_options" in takes:
        body["stream_options"] = {"include_usage": True}
    data = encode(body)
    if provider == "bedrock_mantle":
        aws = {name: own[name] for name in OF_PROVIDERS[provider] if own.get(name)}
        headers, signed = await _called(
            provider,
            config.sign_request,
            headers=headers,
            optional_params=aws,
            request_data=body,
            api_base=url,
            api_key=key,
            model=model,
            stream=ask.stream,
        )
        data = signed or data
        headers = {name: value.decode() if isinstance(value, bytes) else value for name, value in headers.items()}
        secrets = (*secrets, *(value for name, value in headers.items() if name.lower() in SIGNATURES))
    headers |= {**(own.get("headers") or {}), **(own.get("extra_headers") or {})}
    return Question(
        url=url,
        headers={str(name): str(value) for name, value in headers.items() if str(name).lower() not in NOT_OURS},
        body=data,
        secrets=(*settings.secrets, *secrets),
        as_events=_reader(StreamedBody, as_call=as_call),
        as_message=_reader(WholeBody, as_call=as_call),
        lane="direct",
    )


async def _located(litellm: Any, own: Mapping[str, Any]) -> tuple[str, str, str | None, str | None]:
    """Return the provider's name for the model, the provider, its key and its address."""
    from litellm.types.router import GenericLiteLLMParams

    provider = provider_of(own) or ""
    aws = {name: own[name] for name in OF_PROVIDERS.get(provider, ()) if own.get(name)}
    try:
        found: tuple[str, str, str | None, str | None] = await _called(
            provider,
            litellm.get_llm_provider,
            model=own["model"],
            custom_llm_provider=own.get("custom_llm_provider"),
            api_base=own.get("api_base") or own.get("base_url"),
            api_key=own.get("api_key"),
            **({"litellm_params": GenericLiteLLMParams(**aws)} if provider == "bedrock_mantle" else {}),
        )
    except Exception as error:
        if provider != SIGNED_IN:
            raise
        raise errors.auth_failed(f"not signed in to GitHub Copilot; {SIGN_IN}: {error}") from error
    return found


SIGNED_IN: Final = "github_copilot"
SIGN_IN: Final = (
    'sign in once with `python -c "from litellm.llms.github_copilot.authenticator import Authenticator; '
    'Authenticator().get_access_token()"` as the user that serves, or set GITHUB_COPILOT_TOKEN_DIR to a directory with its tokens'
)
SIGNATURES: Final = frozenset({"authorization", "x-amz-security-token"})
NOT_OURS: Final = frozenset({"content-length", "host", "accept-encoding", "connection"})
"""Headers of litellm's that are of the connection, which our client has its own of."""


OF_CALLS: Final = ("tools", "tool_choice", "parallel_tool_calls")
"""Fields that litellm refuses for a provider it defines in JSON where its list does not know the model."""


def is_in_json(provider: str) -> bool:
    """True for a provider that litellm defines in JSON."""
    from litellm.llms.openai_like.json_loader import JSONProviderRegistry

    return bool(JSONProviderRegistry.exists(provider))


def class_for(litellm: Any, provider: str, model: str) -> Any:
    """Return litellm's class for a provider. Those that it defines in JSON are not all in its list of providers."""
    from litellm.llms.openai.chat.gpt_transformation import OpenAIGPTConfig
    from litellm.llms.openai_like.dynamic_config import create_config_class
    from litellm.llms.openai_like.json_loader import JSONProviderRegistry
    from litellm.types.utils import LlmProviders
    from litellm.utils import ProviderConfigManager

    if provider in set(LlmProviders):
        return ProviderConfigManager.get_provider_chat_config(model, LlmProviders(provider)) or OpenAIGPTConfig()
    known = JSONProviderRegistry.get(provider)
    return OpenAIGPTConfig() if known is None else create_config_class(known)()


async def _called(provider: str, function: Callable[..., _R], **arguments: Any) -> _R:
    """Call a function of litellm, in a thread where it may block."""
    if provider in MAY_BLOCK:
        return await asyncio.to_thread(function, **arguments)
    return function(**arguments)


async def _azure(litellm: Any, settings: LiteLLMSettings, model: str) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Return the address, headers and secrets of an Azure deployment."""
    from litellm.llms.azure.common_utils import get_azure_ad_token
    from litellm.types.router import GenericLiteLLMParams

    own, env = settings.arguments, os.environ
    base = own.get("api_base") or own.get("base_url") or env.get("AZURE_API_BASE")
    if base is None:
        raise Unanswerable("The proxy's entry for this model does not say where it is.")
    version = own.get("api_version") or env.get("AZURE_API_VERSION") or litellm.AZURE_DEFAULT_API_VERSION
    key = own.get("api_key") or env.get("AZURE_OPENAI_API_KEY") or env.get("AZURE_API_KEY")
    headers: dict[str, Any] = {"Content-Type": "application/json"}
    if key:
        headers["api-key"] = key
    else:  # may request a token from Entra ID
        params = GenericLiteLLMParams(
            **{name: value for name, value in own.items() if name not in {"model", "timeout"}}
        )
        key = await asyncio.to_thread(get_azure_ad_token, params)
        if key:
            headers["Authorization"] = f"Bearer {key}"
    return azure_url(base, model, version), headers, (key,) if key else ()


def azure_url(base: str, model: str, version: str) -> str:
    """Return the URL of a deployment of Azure OpenAI: below `/openai/v1` for its newest API, else below its own
    path."""
    root, _, query = base.partition("?")
    path = urlsplit(root).path.rstrip("/")
    if path.endswith("/openai/v1") or version in AZURE_VERSIONS_WITHOUT_DEPLOYMENTS:
        root = root.rstrip("/").removesuffix("/openai/v1") + "/openai/v1"
        query = query or ("" if version not in {"preview", "latest"} else f"api-version={version}")
    elif "/openai/deployments/" not in path:
        root = f"{root.rstrip('/').removesuffix('/openai')}/openai/deployments/{quote(model, safe='')}"
    if "api-version=" not in query and not root.endswith("/openai/v1"):
        query = f"{query}&api-version={version}".lstrip("&")
    return chat_url(root) + (f"?{query}" if query else "")


def _reader(body: Callable[[], Body], *, as_call: bool) -> Callable[[Any], Body]:
    return lambda _: FormatBody(body()) if as_call else body()


class FormatBody:
    """Wraps a reader: converts the call by which litellm requested a response format to text."""

    def __init__(self, inner: Body) -> None:
        from litellm.constants import RESPONSE_FORMAT_TOOL_NAME

        self._inner = inner
        self._name = RESPONSE_FORMAT_TOOL_NAME
        self._latest: int | None = None
        self._formats: dict[int | None, bool] = {}
        """Whether a call is that of the format, by index."""
        self._has_calls = False

    @property
    def done(self) -> bool:
        return self._inner.done

    @property
    def has_ended(self) -> bool:
        return self._inner.has_ended

    @property
    def fault(self) -> str | None:
        return self._inner.fault

    def feed(self, data: bytes) -> Sequence[ModelEvent]:
        return list(map(self._converted_event, self._inner.feed(data)))

    def finish(self) -> Sequence[ModelEvent]:
        return list(map(self._converted_event, self._inner.finish()))

    def _converted_event(self, event: ModelEvent) -> ModelEvent:
        if isinstance(event, CallDelta | CallWritten):
            index = None
            if isinstance(event, CallDelta):
                index = self._latest if event.index is None else event.index
                self._latest = index
            if event.name:
                self._formats[index] = self._formats.get(index, True) and event.name == self._name
                self._has_calls = self._has_calls or event.name != self._name
            if event.name == self._name or (not event.name and self._formats.get(index)):
                text = event.arguments
                return TextDelta(text if isinstance(text, str) else encode(text).decode() if text else "")
        if isinstance(event, Finished) and self._formats and not self._has_calls:
            return Finished("stop") if meaning_of(event).kind is FinishClass.TOOL_CALLS else event
        return event
