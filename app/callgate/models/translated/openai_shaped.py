"""Providers with OpenAI's wire format and parameters, addresses or authentication of their own: Groq, DeepSeek, OpenRouter,
Mistral, Together, Fireworks, xAI, Azure and the like. litellm's provider class translates the parameters and messages; the
answer is read as on the direct lane.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from callgate.conversation.events import CallDelta, CallWritten, Finished, ModelEvent, TextDelta
from callgate.conversation.finish import meaning_of
from callgate.conversation.finish_words import FinishClass
from callgate.conversation.ports import ModelRequest
from callgate.models import errors
from callgate.models import litellm_seam as seam
from callgate.models.direct.model import Body, StreamedBody, WholeBody
from callgate.models.litellm_model import decoded
from callgate.models.params import COUNTS_COMPLETIONS, for_litellm, with_completion_limit
from callgate.models.providers import UNNAMED, Provider, provider_named
from callgate.models.resolve import LiteLLMSettings, address_of, chat_url, provider_of
from callgate.models.translated.translation import Fields, ProviderRequest, Unanswerable, encode, messages_of
from callgate.models.translated.wording import Elsewhere

AZURE_VERSIONS_WITHOUT_DEPLOYMENTS = frozenset({"v1", "latest", "preview"})
_R = TypeVar("_R")


async def translate(
    litellm: Any,
    settings: LiteLLMSettings,
    request: ModelRequest,
    translate_fields: Fields,
    elsewhere: Elsewhere | None,
) -> ProviderRequest:
    own = settings.arguments
    model, provider, key, base = await _located(litellm, own)
    row = provider_named(provider) or Provider(name=provider, wire="near_openai")
    if row.access != "copilot_token":
        key = own.get("api_key") or key
    config = class_for(provider, model)
    litellm_params = {"custom_llm_provider": provider, "api_base": base, "api_version": own.get("api_version")}
    litellm_params |= {name: own[name] for name in row.settings if own.get(name)}
    if elsewhere is None:
        prepared = _prepared(config, settings, request, translate_fields, model, row)
    else:
        prepared = _Prepared(outlines([decoded(message) for message in request.messages]), {}, {}, as_call=False)
    if row.access == "azure_deployment":
        url, headers, secrets = await _azure(settings, model)
    else:
        if base is None:
            base = address_of(row)
            key = key or os.environ.get(row.key_variable)
        url, headers = await _signed_in(config, row, prepared, model, base, key, litellm_params, stream=request.stream)
        secrets = _secrets(key)
    worded: ShapedWording
    if elsewhere is None:
        worded = await _transformed(config, prepared, model, row, litellm_params, headers)
    else:
        worded = await elsewhere.word("openai_shaped", request, RawShapedWording, model=model, provider=provider)
    body = _completed(litellm, worded.body, settings, request, row, model, provider)
    if row.access == "aws_signature":
        headers, data, secrets = await _signed(config, row, own, url, headers, body, model, key)
    else:
        data = encode(body)
    headers |= {**(own.get("headers") or {}), **(own.get("extra_headers") or {})}
    return ProviderRequest(
        url=url,
        headers={str(name): str(value) for name, value in headers.items() if str(name).lower() not in NOT_OURS},
        body=data,
        secrets=(*settings.secrets, *secrets),
        as_events=_reader(StreamedBody, as_call=worded.as_call),
        as_message=_reader(WholeBody, as_call=worded.as_call),
        lane="direct",
    )


async def _signed_in(
    config: Any,
    row: Provider,
    prepared: "_Prepared",
    model: str,
    base: str | None,
    key: str | None,
    litellm_params: dict[str, Any],
    *,
    stream: bool,
) -> tuple[str, dict[str, Any]]:
    """Return the address of a request, and its headers."""
    if base is None and not row.litellm_finds_address:
        raise Unanswerable("The proxy's entry for this model does not say where it is.")
    headers = await _called(
        row,
        config.validate_environment,
        headers={},
        model=model,
        messages=prepared.messages,
        optional_params=prepared.fields,
        litellm_params=litellm_params,
        api_key=key,
        api_base=base,
    )
    url = config.get_complete_url(
        api_base=base,
        api_key=key,
        model=model,
        optional_params=prepared.fields,
        litellm_params=litellm_params,
        stream=stream,
    )
    if "/chat/completions" in url:
        return url, headers
    return chat_url(url), headers


def _completed(
    litellm: Any,
    body: dict[str, Any],
    settings: LiteLLMSettings,
    request: ModelRequest,
    row: Provider,
    model: str,
    provider: str,
) -> dict[str, Any]:
    """Return the body with what litellm leaves out of it."""
    own = settings.arguments
    body |= own.get("extra_body") or {}
    _, beside = for_litellm(request)
    body |= {name: decoded(value) for name, value in beside.items()}
    if row.counts_completions and COUNTS_COMPLETIONS.match(str(own.get("base_model") or model)):
        body = with_completion_limit(body)  # litellm does not see the model in a deployment's name
    body["stream"] = request.stream
    takes = litellm.get_supported_openai_params(model=model, custom_llm_provider=provider) or ()
    if request.stream and settings.include_usage and row.takes_stream_options and "stream_options" in takes:
        body["stream_options"] = {"include_usage": True}
    return body


class ShapedWording(msgspec.Struct):
    """A request in a provider's words, and what is needed to read the answer."""

    body: dict[str, Any]
    as_call: bool
    """Whether a response format is requested as a call."""


class RawShapedWording(ShapedWording):
    """The same as a child wrote it: the parts of the body are not decoded."""

    body: dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Messages and fields as litellm's class takes them."""

    messages: Any
    fields: dict[str, Any]
    extra_body: dict[str, Any]
    as_call: bool


async def _signed(
    config: Any,
    row: Provider,
    own: Mapping[str, Any],
    url: str,
    headers: dict[str, Any],
    body: dict[str, Any],
    model: str,
    key: str | None,
) -> tuple[dict[str, Any], bytes, tuple[str, ...]]:
    """Return the headers with AWS's signature, the body that it is of, and the secrets among them."""
    headers, signed = await _called(
        row,
        config.sign_request,
        headers=headers,
        optional_params={name: own[name] for name in row.settings if own.get(name)},
        request_data=await asyncio.to_thread(lambda: {name: decoded(value) for name, value in body.items()}),
        api_base=url,
        api_key=key,
        model=model,
        stream=body["stream"],
    )
    headers = {name: value.decode() if isinstance(value, bytes) else value for name, value in headers.items()}
    signatures = (value for name, value in headers.items() if name.lower() in SIGNATURES)
    return headers, signed or encode(body), (*_secrets(key), *signatures)


_IMAGE: Final = {"type": "image_url", "image_url": {"url": "data:,"}}


def outlines(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return as few messages as sign in like these: GitHub Copilot's headers say which roles there are, and whether images."""
    roles = {message.get("role"): {"role": message.get("role"), "content": ""} for message in messages}
    outlined: list[dict[str, Any]] = list(roles.values())
    if any(_has_image(message.get("content")) for message in messages):
        outlined.append({"role": "user", "content": [_IMAGE]})
    return outlined


def _has_image(content: Any) -> bool:
    return isinstance(content, list) and any(isinstance(part, dict) and "image_url" in part for part in content)


async def word(
    settings: LiteLLMSettings, request: ModelRequest, translate_fields: Fields, *, model: str, provider: str
) -> ShapedWording:
    """Have litellm make the body."""
    row = provider_named(provider) or Provider(name=provider, wire="near_openai")
    config = class_for(provider, model)
    prepared = _prepared(config, settings, request, translate_fields, model, row)
    params = {"custom_llm_provider": provider, "api_version": settings.arguments.get("api_version")}
    return await _transformed(config, prepared, model, row, params, {})


def _prepared(
    config: Any,
    settings: LiteLLMSettings,
    request: ModelRequest,
    translate_fields: Fields,
    model: str,
    row: Provider,
) -> _Prepared:
    messages = messages_of(settings, model, request)
    if not row.knows_developers:
        messages = config.translate_developer_role_to_system_role(messages=messages)
    taken = OF_CALLS if is_in_json(row.name) else ()
    fields = translate_fields.of(model, request, extras=frozenset(), taken=taken)
    extra_body = fields.pop("extra_body", None) or {}
    as_call = bool(fields.pop("json_mode", False))
    for name in ("fake_stream", "stream", "stream_options", "max_retries", "extra_headers"):
        fields.pop(name, None)
    return _Prepared(messages, fields, extra_body, as_call)


async def _transformed(
    config: Any, prepared: _Prepared, model: str, row: Provider, litellm_params: dict[str, Any], headers: Any
) -> ShapedWording:
    body = await _called(
        row,
        config.transform_request,
        model=model,
        messages=prepared.messages,
        optional_params=prepared.fields,
        litellm_params=litellm_params,
        headers=headers,
    )
    return ShapedWording(body | prepared.extra_body, prepared.as_call)


async def _located(litellm: Any, own: Mapping[str, Any]) -> tuple[str, str, str | None, str | None]:
    """Return the provider's name for the model, the provider, its key and its address."""
    row = provider_named(provider_of(own)) or UNNAMED
    further: dict[str, Any] = {}
    if row.access == "aws_signature":
        settings = {name: own[name] for name in row.settings if own.get(name)}
        further["litellm_params"] = seam.PARAMS.get()(**settings)
    try:
        location: tuple[str, str, str | None, str | None] = await _called(
            row,
            litellm.get_llm_provider,
            model=own["model"],
            custom_llm_provider=own.get("custom_llm_provider"),
            api_base=own.get("api_base") or own.get("base_url"),
            api_key=own.get("api_key"),
            **further,
        )
    except Exception as error:
        if row.access != "copilot_token":
            raise
        raise errors.auth_failed(f"not signed in to GitHub Copilot; {SIGN_IN}: {error}") from error
    return location


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
    return bool(seam.JSON_PROVIDERS.get().exists(provider))


def class_for(provider: str, model: str) -> Any:
    """Return litellm's class for a provider. Those that it defines in JSON are not all in its list of providers."""
    names = seam.PROVIDER_NAMES.get()
    if provider in set(names):
        return seam.CHAT_CONFIG.get()(model, names(provider)) or seam.OPENAI_CONFIG.get()()
    definition = seam.JSON_PROVIDERS.get().get(provider)
    if definition is None:
        return seam.OPENAI_CONFIG.get()()
    return seam.JSON_CONFIG.get()(definition)()


async def _called(provider: Provider, function: Callable[..., _R], **arguments: Any) -> _R:
    """Call a function of litellm, in a thread where it may block."""
    if provider.litellm_may_block:
        return await asyncio.to_thread(function, **arguments)
    return function(**arguments)


async def _azure(settings: LiteLLMSettings, model: str) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Return the address, headers and secrets of an Azure deployment."""
    own = settings.arguments
    env = os.environ
    base = own.get("api_base") or own.get("base_url") or env.get("AZURE_API_BASE")
    if base is None:
        raise Unanswerable("The proxy's entry for this model does not say where it is.")
    version = own.get("api_version") or env.get("AZURE_API_VERSION") or seam.AZURE_VERSION.get()
    key = own.get("api_key") or env.get("AZURE_OPENAI_API_KEY") or env.get("AZURE_API_KEY")
    headers: dict[str, Any] = {"Content-Type": "application/json"}
    if key:
        headers["api-key"] = key
    else:  # may request a token from Entra ID
        params = seam.PARAMS.get()(**{name: value for name, value in own.items() if name not in {"model", "timeout"}})
        key = await asyncio.to_thread(seam.AZURE_TOKEN.get(), params)
        if key:
            headers["Authorization"] = f"Bearer {key}"
    return azure_url(base, model, version), headers, _secrets(key)


def _secrets(key: str | None) -> tuple[str, ...]:
    return (key,) if key else ()


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
        self._inner = inner
        self._name = seam.RESPONSE_FORMAT_TOOL_NAME.get()
        self._latest: int | None = None
        self._formats: dict[int | None, bool] = {}
        """Whether a call is that of the format, by index."""
        self._has_calls = False

    @property
    def is_done(self) -> bool:
        return self._inner.is_done

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
                if isinstance(text, str):
                    return TextDelta(text)
                return TextDelta(encode(text).decode() if text else "")
        if isinstance(event, Finished) and self._formats and not self._has_calls:
            if meaning_of(event).kind is FinishClass.TOOL_CALLS:
                return Finished("stop")
            return event
        return event
