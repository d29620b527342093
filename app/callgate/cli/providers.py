"""The providers and local servers that the command line offers, and what their keys are called."""

import os
from collections.abc import Mapping

import msgspec

from callgate.models.providers import DEFAULT, ROWS, provider_named


class OfferedProvider(msgspec.Struct, frozen=True):
    """A provider, for configs written by `callgate init` and `serve --model`."""

    title: str
    prefix: str
    """The prefix of a model's name in `litellm_params.model`."""
    key: str
    """The variable that holds its key; empty where it needs none."""
    example: str
    """A model to begin with."""
    port: int | None
    """The default port of a local server."""
    path: str
    """What its address needs beyond what `api_base` has."""

    def local_url(self) -> str | None:
        """Return the usual address of the API of a local server."""
        if self.port:
            return f"http://127.0.0.1:{self.port}/v1"
        return None

    def base_of(self, url: str) -> str:
        """Return the `api_base` for an address of its API."""
        if self.path:
            return url.removesuffix(self.path)
        return url


PROVIDERS: Mapping[str, OfferedProvider] = {
    row.offer.name: OfferedProvider(
        title=row.offer.title,
        prefix=row.name,
        key="" if row.key_is_optional else row.key_variable,
        example=row.offer.example,
        port=row.offer.port,
        path=row.path,
    )
    for row in ROWS
    if row.offer is not None
}
_ELSEWHERE = frozenset({"api_key", "api_base", "base_url", "headers", "extra_headers"})
"""Parameters with which a key is given, or may not be needed: one's own server often takes none."""


def missing_key(params: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """Return the provider of a model's entry and the variable of its key, where neither the entry nor the environment has one.
    None for providers of which it is not known."""
    model = str(params["model"])
    prefix, slash, _ = model.partition("/")
    provider = provider_named(str(params.get("custom_llm_provider") or (prefix if slash else DEFAULT)))
    if provider is None or not provider.key_variable or provider.key_is_optional or not _ELSEWHERE.isdisjoint(params):
        return None
    variables = (provider.key_variable, *provider.other_key_variables, *provider.base_variables)
    if any(environ.get(variable) for variable in variables):
        return None
    return provider.name, provider.key_variable


def litellm_params(model: str, base_url: str | None = None) -> dict[str, str]:
    """Return the `litellm_params` for a model named as `provider/model`, perhaps at an address of its own."""
    prefix = model.partition("/")[0]
    row = provider_named(prefix)
    if row is not None and not row.key_is_optional:
        variable = row.key_variable
    else:
        variable = ""
    params = {"model": model}
    if base_url:
        params["api_base"] = base_url
        if not os.environ.get(variable):
            return params  # the operator's own server often needs no key
    for offered in PROVIDERS.values():
        if not base_url and offered.prefix == prefix and (local := offered.local_url()) is not None:
            return {**params, "api_base": offered.base_of(local)}
    if variable:
        params["api_key"] = f"os.environ/{variable}"
    return params
