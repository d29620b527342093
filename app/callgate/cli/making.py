"""Builds what a config names, to report all that cannot be built at once, each with its place."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from callgate.cli.shared import give_up
from callgate.config.entry_errors import BadEntry
from callgate.config.load import Loaded
from callgate.config.schema.whole import Config
from callgate.models.building import model_entries, tls_of
from callgate.models.resolve import ModelConfig
from callgate.parsers.building import parsers_of
from callgate.runtime.limits import processes_of, threads_of
from callgate.runtime.tool_patterns import check_patterns
from callgate.state.building import check_secret_file, store_of
from callgate.tools.building import registry_of
from callgate.tools.registry import Registry

if TYPE_CHECKING:
    from callgate.tools.kinds.http.client import Web

Mistake = tuple[tuple[str | int, ...], str]
T = TypeVar("T")


def made(loaded: Loaded) -> tuple[list[ModelConfig], Registry]:
    """Build the models and the tools, without network access; exits with all mistakes: a missing module, an impossible model,
    a pattern that matches nothing."""
    mistakes, models, registry = _tried(loaded)
    if not mistakes and registry is not None:
        try:
            check_patterns(loaded.config, registry)
        except BadEntry as error:
            mistakes = error.mistakes()
    if mistakes or models is None or registry is None:
        raise give_up(loaded.complaint(*mistakes))
    return models, registry


def _hooks_of(config: Config) -> object:
    from callgate.guardrails.building import guardrails_of
    from callgate.tools.kinds.http.client import Web

    return guardrails_of(config, Web, threads_of(config), lambda judged: None)


def mistakes_in(loaded: Loaded) -> list[Mistake]:
    """Return the entries of an incomplete config that cannot be built."""
    return _tried(loaded)[0]


def registry_or_none(loaded: Loaded) -> Registry | None:
    """Build the registry; None if that fails."""
    return _tried(loaded)[2]


def _tried(loaded: Loaded) -> tuple[list[Mistake], list[ModelConfig] | None, Registry | None]:
    config = loaded.config
    mistakes: list[Mistake] = []

    def tried(make: Callable[[], T]) -> T | None:
        try:
            return make()
        except BadEntry as error:
            mistakes.extend(error.mistakes())
            return None

    if config.guardrails:
        tried(lambda: _hooks_of(config))
    models = tried(lambda: model_entries(config))
    registry = tried(
        lambda: registry_of(config, _web, threads_of(config), processes_of(config), parsers=parsers_of(config))
    )
    tried(lambda: store_of(config))
    tried(lambda: tls_of(config))
    tried(lambda: check_secret_file(config))
    tried(lambda: _check_issuer(config))
    return mistakes, models, registry


def _check_issuer(config: Config) -> None:
    if config.auth.oidc is not None:
        from callgate.access.oidc.building import check_addresses

        check_addresses(config.auth.oidc)


def _web() -> "Web":
    from callgate.tools.kinds.http.client import Web

    return Web()
