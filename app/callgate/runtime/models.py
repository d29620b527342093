"""The models of one config: looks one up, counts tokens, and adapts schemas to its provider."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import structlog

from callgate.config.schema.whole import Config
from callgate.conversation.ports import Model, ModelRequest, TurnModel
from callgate.conversation.summary_model import SummaryModel
from callgate.models.building import model_client, model_entries, retry_policy_of
from callgate.models.catalogue import Catalogue, is_demo
from callgate.models.learnt_thinking import ThinkingNotes
from callgate.models.providers import dialect_of
from callgate.models.proxied_routes import ProviderProxy, provider_proxy_for
from callgate.models.resolve import ModelConfig, lane_of, why_not_translated
from callgate.models.token_counts import count_tokens
from callgate.models.tool_calling import ToolCalling
from callgate.parsers.pool import ParserPool
from callgate.schemas.adapted_model import AdaptedModel
from callgate.schemas.dialects import Dialect, portable
from callgate.telemetry.models import log_choice, log_cooldown
from callgate.tools.adapted_schemas import AdaptedSchemas

TokenCounter: TypeAlias = Callable[[ModelRequest], Awaitable[tuple[int, bool]]]
"""Counts the tokens of a request; returns also whether the count is an estimate."""

audit = structlog.get_logger("callgate.audit")


class Models:
    """The catalogue, each of its deployments wrapped."""

    def __init__(
        self,
        config: Config,
        is_ours: Callable[[Any], bool],
        parsers: ParserPool,
        before: Catalogue | None = None,
        *,
        thinking: ThinkingNotes | None = None,
    ) -> None:
        """`parsers` words long requests; `before`: the catalogue that this one replaces; `thinking`: what was learnt of it."""
        entries = model_entries(config)
        self._summary_model = config.compaction.model
        self.client = model_client(config, entries)
        self._schemas = AdaptedSchemas(
            is_ours,
            lambda tool, dialect, losses: audit.info("schema_adapted", tool=tool, dialect=dialect, losses=list(losses)),
        )
        self._tool_calling = ToolCalling(
            lambda entry, choice: log_choice(
                entry.model_name, entry.tool_calling, choice.format, choice.decided_by, choice.detail
            ),
            config.limits.argument_bytes,
            thinking,
        )
        self.catalogue = Catalogue(
            entries,
            self.client,
            wrap=self._wrapped,
            policy=retry_policy_of(config),
            fetch=_fetched,
            parsers=parsers,
            cooldown_seconds=config.upstream.cooldown_seconds,
            on_cooldown=log_cooldown,
            earlier_cooldowns=() if before is None else before.handed_on(),
        )

    def with_summaries(self, model: TurnModel) -> TurnModel:
        """Return a model whose summaries are written by the one that the config names, if it names one. Its operator names that
        for every key, whatever models the key may ask."""
        if self._summary_model is None:
            return model
        return SummaryModel(_model=model, _writer=self.catalogue.model(self._summary_model))

    def deployments(self, name: str, *, with_hosts: bool) -> list[dict[str, Any]]:
        """Describe the deployments of a model."""
        shown: list[dict[str, Any]] = []
        for entry, deployment in zip(self.catalogue.entries(name), self.catalogue.deployments(name), strict=True):
            by = deployment.responder
            choice = self._tool_calling.choice(entry)
            lane = lane_of(entry)
            facts: dict[str, Any] = {
                "deployment": by.deployment,
                "lane": "demo" if is_demo(entry) else lane,
                "tool_calling": None if choice is None else {"format": choice.format, "decided_by": choice.decided_by},
                "cooldown_seconds": round(deployment.cooldown.seconds_left(), 1),
            }
            if lane == "litellm" != entry.lane and not is_demo(entry):
                facts["why"] = why_not_translated(entry)
            if with_hosts and by.host:
                facts["host"] = by.host
            shown.append(facts)
        return shown

    async def proxy_to_provider(self, name: str) -> ProviderProxy | None:
        """Return what passes other requests than chats on to a model's provider, or None."""
        return await provider_proxy_for(self.catalogue.entry(name), self.client)

    def schema_for(self, name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return a tool's schema in the dialect of a model's provider, and what that cannot express."""
        dialect = dialect_for(self.catalogue.entry(name))
        portable_schema = portable(schema, dialect)
        return {"dialect": dialect, "parameters": portable_schema.schema, "losses": list(portable_schema.losses)}

    def count_tokens(self, entry: ModelConfig, request: ModelRequest) -> Awaitable[tuple[int, bool]]:
        """Count the tokens of a request; return also whether the count is an estimate."""
        return count_tokens(entry, request, self.client)

    def _wrapped(self, model: Model, entry: ModelConfig) -> Model:
        """Wrap a deployment to adapt schemas and tool calls to its provider."""
        dialect = dialect_for(entry)
        if dialect != "full":
            model = AdaptedModel(model, self._schemas.into(dialect))
        return self._tool_calling.wrap(model, entry)


def dialect_for(entry: ModelConfig) -> Dialect:
    """Return the dialect of JSON Schema that the provider of a model takes."""
    if entry.schema_dialect != "auto":
        return entry.schema_dialect
    base = entry.litellm_params.get("api_base") or entry.litellm_params.get("base_url")
    return dialect_of(str(entry.litellm_params["model"]), str(base) if base else None, entry.provider)


async def _fetched(url: str, max_bytes: int) -> tuple[bytes, str]:
    from callgate.runtime.media import fetch_media  # what fetches takes half a second to load

    return await fetch_media(url, max_bytes)
