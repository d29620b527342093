"""Builds models: their entries, their HTTP client, and their retries."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from callgate.calls.search_setting import SearchSetting
from callgate.config.entry_errors import BadEntry, BadModel, raise_all
from callgate.config.files import read_regular
from callgate.config.schema.whole import Config
from callgate.conversation.finish_words import FinishClass
from callgate.http.client import HttpClient
from callgate.http.credentials import secrets_in
from callgate.http.interface import Deadlines
from callgate.http.proxies import Proxies
from callgate.models.provider_names import why_unknown
from callgate.models.providers import Provider
from callgate.models.resolve import LaneError, ModelConfig, body_of, check
from callgate.models.retry import RetryPolicy
from callgate.models.settings import FinishReasons, ProviderSection
from callgate.models.settings import ModelEntry as ModelSection


def retry_policy_of(config: Config) -> RetryPolicy:
    # Beyond `hold_back` the status of a stream was sent, and an error could only follow in the middle of the answer.
    wait = min(config.upstream.retry_wait_seconds, config.server.first_chunk_seconds)
    return RetryPolicy(tries=config.upstream.retries + 1, wait_in_all=wait)


def model_entries(config: Config) -> list[ModelConfig]:
    """Build the models. One that could never work is the operator's mistake and fails the start."""
    entries = [model_entry(section, config) for section in config.model_list]
    errors: list[BadEntry] = []
    for index, entry in enumerate(entries):
        path = ("model_list", index)
        if why := why_unknown(entry, config.providers):
            errors.append(BadModel((*path, "litellm_params", "model"), entry.model_name, why))
            continue
        try:
            check(entry)
        except LaneError as error:
            errors.append(BadModel(path, entry.model_name, str(error)))
            errors[-1].__cause__ = error
    raise_all(errors)
    return entries


def model_entry(section: ModelSection, config: Config) -> ModelConfig:
    upstream = config.upstream
    entry = ModelConfig(
        model_name=section.model_name,
        litellm_params=section.litellm_params.reveal(),
        tools=section.tools,
        fallbacks=section.fallbacks,
        tool_calling=section.tool_calling,
        calls_natively=_yes_or_no(section.model_info.get("supports_function_calling")),
        thinking=section.thinking,
        constrain_calls=section.constrain_calls,
        lane=section.lane,
        provider_selectors=section.provider_selectors,
        trust_litellm=section.trust_litellm,
        finish_reasons=_named_reasons(section.finish_reasons),
        schema_dialect=section.schema_dialect,
        sees_images=_yes_or_no(section.model_info.get("supports_vision")),
        reads_files=_yes_or_no(section.model_info.get("supports_pdf_input")),
        events=section.events,
        usage=section.usage,
        offer=section.offer,
        tool_search=SearchSetting(**section.tool_search.values()),
        max_input_tokens=_count_or_none(section.model_info.get("max_input_tokens")),
        context_tokens=section.context_tokens(),
        clear_results_above=_limit_of_context(section),
        hosted_tools=section.hosted_tools,
        format_with_tools=section.response_format_with_tools,
        answer_bytes=config.limits.answer_bytes,
        deadlines=Deadlines(
            connect=upstream.connect_seconds,
            first_byte=upstream.first_byte_seconds,
            idle=section.stream_timeout or upstream.idle_seconds,
            total=section.timeout or upstream.total_seconds,
        ),
    )
    name = defined_provider(section, config)
    if name is None:
        return entry
    return _of_defined_provider(entry, name, config.providers[name])


def defined_provider(section: ModelSection, config: Config) -> str | None:
    """Return the name of the entry of `providers` that a model belongs to, if any."""
    params = section.litellm_params.reveal()
    name = str(params.get("custom_llm_provider") or section.litellm_params.model.partition("/")[0])
    if name in config.providers:
        return name
    return None


def _of_defined_provider(entry: ModelConfig, name: str, section: ProviderSection) -> ModelConfig:
    """Return the entry with what its provider's section says. The entry's own settings win."""
    params: dict[str, Any] = {"api_base": section.base_url}
    if section.api_key is not None:
        params["api_key"] = section.api_key.get_secret_value()
    params |= entry.litellm_params
    headers = {header: value.get_secret_value() for header, value in section.headers.items()}
    if headers:
        params["extra_headers"] = {**headers, **(entry.litellm_params.get("extra_headers") or {})}
    model = str(params["model"]).removeprefix(f"{name}/")
    if section.wire == "anthropic":
        extra_body = {**section.body, **(entry.litellm_params.get("extra_body") or {})}
        params |= {"model": f"anthropic/{model}", "custom_llm_provider": "anthropic", "extra_body": extra_body}
        return replace(entry, litellm_params=params)
    params |= {"model": f"{name}/{model}", "custom_llm_provider": name}
    provider = Provider(
        name=name,
        wire="openai",
        body=section.body,
        knows_developers=section.developer_role,
        takes_stream_options=section.stream_options,
        reasoning_field=section.reasoning_field,
        is_local=section.open_models,
    )
    if entry.schema_dialect == "auto":
        entry = replace(entry, schema_dialect=section.schema_dialect)
    if entry.lane == "auto" and section.wire == "responses":
        entry = replace(entry, lane="responses")
    return replace(entry, litellm_params=params, provider=provider)


def _limit_of_context(section: ModelSection) -> int | None:
    share = section.context.clear_results_above
    tokens = section.context_tokens()
    if share is None or tokens is None:
        return None
    return int(share * tokens)


def _named_reasons(section: FinishReasons) -> dict[FinishClass, tuple[str, ...]]:
    named = {
        FinishClass.STOP: section.stop,
        FinishClass.TOOL_CALLS: section.tool_calls,
        FinishClass.LENGTH: section.length,
        FinishClass.CONTENT_FILTER: section.content_filter,
    }
    return {kind: words for kind, words in named.items() if words}


def _yes_or_no(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return None


def _count_or_none(value: Any) -> int | None:
    if type(value) is int and value > 0:
        return value
    return None


def concurrency_of(config: Config) -> dict[str, int]:
    """Return the concurrency limit of each model that has one. Entries that share a name add up."""
    limits: dict[str, list[int | None]] = {}
    for section in config.model_list:
        limits.setdefault(section.model_name, []).append(section.concurrency)
    return {name: sum(filter(None, places)) for name, places in limits.items() if None not in places}


def model_client(config: Config, entries: Sequence[ModelConfig] = ()) -> HttpClient:
    """Build the HTTP client for models, with the environment's proxies. `entries`: what its requests are made of, which no answer
    shows again."""
    in_bodies = secrets_in(b"".join(map(body_of, entries)))
    return HttpClient(tls=tls_of(config), proxies=Proxies.from_environment(), in_bodies=in_bodies)


def tls_of(config: Config) -> ssl.SSLContext | None:
    """Build the TLS context for providers: CA and client certificate; None for the system's."""
    upstream = config.upstream
    if upstream.ca_file is None and upstream.client_certificate is None:
        if upstream.client_key is not None:
            raise BadEntry(("upstream", "client_key"), None, "it goes with `client_certificate`")
        return None
    context = ssl.create_default_context()
    name = "ca_file"
    file = upstream.ca_file
    try:
        for name in ("ca_file", "client_certificate", "client_key"):
            file = getattr(upstream, name)
            if file is not None:
                read_regular(Path(file))  # OpenSSL would wait for the end of a pipe
        name = "ca_file"
        file = upstream.ca_file
        if upstream.ca_file is not None:
            context.load_verify_locations(upstream.ca_file)
        name = "client_certificate"
        file = upstream.client_certificate
        if upstream.client_certificate is not None:
            context.load_cert_chain(upstream.client_certificate, upstream.client_key, password=_no_password)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.strerror:
            why = error.strerror
        else:
            why = str(error)
        raise BadEntry(("upstream", name), None, f"{file} cannot be used, PEM is needed: {why}") from error
    return context


def _no_password() -> str:
    """Raise, because OpenSSL would ask for a password on the terminal."""
    raise ValueError("the private key is encrypted; write it out without a password, for Callgate alone to read")
