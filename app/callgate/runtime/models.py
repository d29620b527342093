"""The models of one config: looks one up, counts tokens, and adapts schemas to its provider."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import structlog

from callgate.config.schema import Config
from callgate.conversation.ports import Model, ModelRequest
from callgate.runtime.builders.models import model_client, model_entries, retry_policy_of
from callgate.schemas.adapted_model import AdaptedModel
from callgate.schemas.dialects import Dialect, dialect_of, portable
from callgate.telemetry.models import log_choice, log_cooldown
from callgate.tools.adapted_schemas import AdaptedSchemas
from callgate.upstream.catalogue import Catalogue, is_demo
from callgate.upstream.resolve import ModelConfig, lane_of, why_not_translated
from callgate.upstream.token_counts import count_tokens
from callgate.upstream.tool_calling import ToolCalling

TokenCounter: TypeAlias = Callable[[ModelRequest], Awaitable[tuple[int, bool]]]
"""Counts the tokens of a request; returns also whether the count is an estimate."""

audit = structlog.get_logger("callgate.audit")


class Models:
    """The catalogue, each of its deployments wrapped."""

    def __init__(self, config: Config, has_schema: Callable[[Any], bool], before: Catalogue | None = None) -> None:
        """`before`: the catalogue that this one replaces."""
        self.client = model_client(config)
        self._schemas = AdaptedSchemas(
            has_schema,
            lambda tool, dialect, losses: audit.info("schema_adapted", tool=tool, dialect=dialect, losses=list(losses)),
        )
        self._tool_calling = ToolCalling(
            lambda entry, found: log_choice(
                entry.model_name, entry.tool_calling, found.format, found.decided_by, found.detail
            ),
            config.limits.argument_bytes,
        )
        self.catalogue = Catalogue(
            model_entries(config),
            self.client,
            wrap=self._wrapped,
            policy=retry_policy_of(config),
            fetch=_fetched,
            cooldown_seconds=config.upstream.cooldown_seconds,
            on_cooldown=log_cooldown,
            known=() if before is None else before.handed_on(),
        )

    def deployments(self, name: str, *, with_hosts: bool) -> list[dict[str, Any]]:
        """Describe the deployments of a model."""
        shown: list[dict[str, Any]] = []
        for entry, deployment in zip(self.catalogue.entries(name), self.catalogue.deployments(name), strict=True):
            by, choice, lane = deployment.responder, self._tool_calling.choice(entry), lane_of(entry)
            each: dict[str, Any] = {
                "deployment": by.deployment,
                "lane": "demo" if is_demo(entry) else lane,
                "tool_calling": choice and {"format": choice.format, "decided_by": choice.decided_by},
                "cooldown_seconds": round(deployment.cooldown.seconds_left, 1),
            }
            if lane == "litellm" != entry.lane and not is_demo(entry):
                each["why"] = why_not_translated(entry)
            if with_hosts and by.host:
                each["host"] = by.host
            shown.append(each)
        return shown

    def schema_for(self, name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return a tool's schema in the dialect of a model's provider, and what that cannot express."""
        dialect = dialect_for(self.catalogue.entry(name))
        sent = portable(schema, dialect)
        return {"dialect": dialect, "parameters": sent.schema, "losses": list(sent.losses)}

    def count_tokens(self, entry: ModelConfig, ask: ModelRequest) -> Awaitable[tuple[int, bool]]:
        """Count the tokens of a request; return also whether the count is an estimate."""
        return count_tokens(entry, ask, self.client)

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
    return dialect_of(str(entry.litellm_params["model"]), str(base) if base else None)


async def _fetched(url: str, max_bytes: int) -> tuple[bytes, str]:
    from callgate.runtime.media import fetch_media  # what fetches takes half a second to load

    return await fetch_media(url, max_bytes)
