"""The whole `config.yaml`, and the rules between its parts."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, AliasChoices, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from callgate.access.oidc.settings import LETS_IN, Auth, AuthSection, Group
from callgate.access.settings import Key
from callgate.config.problems import near
from callgate.config.schema.faces import Compaction, Responses
from callgate.config.schema.guards import SAME, WAITS
from callgate.config.schema.hosted import HostedToolsSetting
from callgate.config.schema.limits import Limits, Loop, Upstream
from callgate.config.schema.process import LedgerSection, Logging, Reload, RunsSection, Store
from callgate.config.schema.server import Server
from callgate.config.schema.values import READ_LATE, BesideFile, Globs, Section
from callgate.fleet.settings import Pool, PoolName
from callgate.guardrails.settings import HOOKS, HookEntry
from callgate.mcp_server.settings import McpServing, McpSetting
from callgate.models.settings import ModelEntry, ProviderName, ProviderSection
from callgate.parsers.settings import Parsers
from callgate.recorder.settings import Record
from callgate.telemetry.settings import Traces
from callgate.tools.approvals.settings import ApprovalLists, Approvals, RequireApproval
from callgate.tools.kinds.mcp.settings import McpServer, ServerName
from callgate.tools.kinds.openapi.settings import OpenApiTool
from callgate.tools.kinds.settings import ToolEntry
from callgate.tools.settings import PlacedTool


def _at_least_one(models: tuple[ModelEntry, ...]) -> tuple[ModelEntry, ...]:
    """Require a model. Not by a minimal length, for which pydantic would not count invalid entries."""
    if not models:
        raise PydanticCustomError("no_models", "should name at least one model")
    return models


class Config(Section):
    """All of `config.yaml`."""

    version: Literal[1] = 1
    """The version of this file's format."""
    server: Annotated[Server, READ_LATE] = Server.by_default()
    """Where Callgate listens, and how it treats connections."""
    auth: Annotated[Auth, LETS_IN] = AuthSection.by_default()
    """Who is let in. `keys`: clients need one of `keys`; without any, only loopback is served. `off`: everyone is let in. A mapping
    with `oidc`: tokens of the company's issuer are taken beside keys."""
    keys: Annotated[tuple[Key, ...], READ_LATE] = ()
    """The clients' keys."""
    model_list: Annotated[
        tuple[ModelEntry, ...], AfterValidator(_at_least_one), Field(json_schema_extra={"minItems": 1})
    ]
    """The models, as litellm has them."""
    providers: Annotated[Mapping[ProviderName, ProviderSection], READ_LATE] = Field(default_factory=dict)
    """Providers by name, for those that litellm does not know; a name that it knows is asked as is said here."""
    data_dir: Annotated[BesideFile | None, SAME] = None
    """A folder for what has to survive the process: the ledger of tool runs, what keys have spent, and keys made by
    `callgate keys create`; from the folder this file is in. Without one nothing is written."""
    ledger: Annotated[LedgerSection, READ_LATE] = LedgerSection.by_default()
    """Where it is written down what was run."""
    runs: Annotated[RunsSection, READ_LATE] = RunsSection.by_default()
    """Requests that outlive the process that answers them."""
    pools: Annotated[Mapping[PoolName, Pool], READ_LATE] = Field(default_factory=dict)
    """Pools of workers that tools may run on, by name; they need `ledger.url` and `store.redis_url`."""
    tools: Annotated[tuple[ToolEntry, ...], READ_LATE] = ()
    """The tools that Callgate runs."""
    mcp_servers: Annotated[Mapping[ServerName, McpServer], READ_LATE] = Field(
        default_factory=dict, validation_alias=AliasChoices("mcp_servers", "mcpServers", "servers")
    )
    """MCP servers by name, as other programs write them; the block may also be called `mcpServers` or `servers`."""
    mcp_config: str | None = None
    """A file with such a block, for example `./mcp.json`; JSON, comments allowed."""
    mcp: McpSetting = McpServing.by_default()
    """How MCP clients are served at `/mcp`; `off` for not at all."""
    require_approval: Annotated[RequireApproval, WAITS] = ApprovalLists.by_default()
    """Which tools' calls wait for approval, where a tool's own entry does not say."""
    approvals: Annotated[Approvals, READ_LATE] = Approvals.by_default()
    """How calls wait for approval."""
    guardrails: Annotated[tuple[HookEntry, ...], READ_LATE, HOOKS] = ()
    """Hooks that look at requests, answers, calls, results and descriptions, and let them pass, mask them or block them, in this order."""
    loop: Annotated[Loop, READ_LATE] = Loop.by_default()
    """How long a chat may go on."""
    limits: Annotated[Limits, READ_LATE] = Limits.by_default()
    """What one request may cost."""
    upstream: Annotated[Upstream, READ_LATE] = Upstream.by_default()
    """How patient Callgate is with models."""
    parsers: Annotated[Parsers, READ_LATE] = Parsers.by_default()
    """Processes that read what others wrote, where that is much."""
    hosted_tools: HostedToolsSetting = Field(default_factory=dict)
    """Tools of this config that stand for tools which clients declare for a provider to run, by type: `web_search: search`; `off` leaves
    a type to the provider."""
    responses: Annotated[Responses, READ_LATE] = Responses.by_default()
    """How the Responses API is served."""
    compaction: Annotated[Compaction, READ_LATE] = Compaction.by_default()
    """How conversations are summarized."""
    store: Annotated[Store, READ_LATE] = Store.by_default()
    """Where what outlives a request is kept."""
    record: Annotated[Record, READ_LATE] = Record.by_default()
    """What is recorded of the requests that were answered."""
    traces: Annotated[Traces, READ_LATE] = Traces.by_default()
    """Where spans of requests are sent."""
    reload: Annotated[Reload, READ_LATE] = Reload.by_default()
    """Reading this file again while Callgate runs."""
    logging: Annotated[Logging, READ_LATE] = Logging.by_default()
    """What is written to standard error."""

    def groups(self) -> Mapping[str, Group]:
        """Return the groups of the issuer, if there is one."""
        if self.auth.oidc is None:
            return {}
        return self.auth.oidc.groups

    def keys_and_issuers(self) -> int:
        """Return how many there are by whom somebody may be let in, beside keys that are made while the server runs."""
        return len(self.keys) + (self.auth.oidc is not None)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "Config":
        mistakes = [
            *_repeated_keys(self),
            *_models_at_odds(self),
            *_lost_fallbacks(self),
            *_lost_compaction(self),
            *_repeated_tools(self),
            *_repeated_hooks(self),
        ]
        mistakes += [*_pools_without_stores(self), *_unknown_pools(self), *_workers_without_stores(self)]
        if mistakes:
            # Escaped, because braces are placeholders in pydantic's templates.
            errors = ((PydanticCustomError("config", "{message}", {"message": text}), loc) for loc, text in mistakes)
            details = [InitErrorDetails(type=error, loc=loc, input=None) for error, loc in errors]
            raise ValidationError.from_exception_data("Config", details)
        return self


Mistake: TypeAlias = tuple[tuple[str | int, ...], str]


def _repeated_keys(config: Config) -> Iterator[Mistake]:
    names: set[str] = set()
    hashes: set[str] = set()
    for index, key in enumerate(config.keys):
        if key.name in names:
            yield ("keys", index, "name"), f"another key is called `{key.name}`"
        names.add(key.name)
        for field, digest in (("hash", key.hash), ("old_hash", key.old_hash)):
            if digest is not None and digest in hashes:
                yield ("keys", index, field), "another entry has the same hash: two names for one key"
            if digest is not None:
                hashes.add(digest)


def _models_at_odds(config: Config) -> Iterator[Mistake]:
    """Check that the deployments of a name have the same tools."""
    tools: dict[str, Globs] = {}
    for index, entry in enumerate(config.model_list):
        if tools.setdefault(entry.model_name, entry.tools) != entry.tools:
            yield (
                ("model_list", index, "tools"),
                f"the entries of `{entry.model_name}` share its load and must name the same tools",
            )


def _lost_fallbacks(config: Config) -> Iterator[Mistake]:
    names = [entry.model_name for entry in config.model_list]
    for index, entry in enumerate(config.model_list):
        for at, fallback in enumerate(entry.fallbacks):
            loc = ("model_list", index, "fallbacks", at)
            if fallback == entry.model_name:
                yield loc, "a model cannot be its own fallback"
            elif not any(_matches(name, fallback) for name in names):
                yield loc, f"no model of `model_list` is called that{near(fallback, names)}"


def _lost_compaction(config: Config) -> Iterator[Mistake]:
    names = [entry.model_name for entry in config.model_list]
    model = config.compaction.model
    if model is not None and not any(_matches(name, model) for name in names):
        yield ("compaction", "model"), f"no model of `model_list` is called that{near(model, names)}"


def _matches(pattern: str, name: str) -> bool:
    """Return whether a model's name, which may have stars, stands for another."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name, re.DOTALL) is not None


def _repeated_tools(config: Config) -> Iterator[Mistake]:
    names: set[str] = set()
    for index, tool in enumerate(config.tools):
        if tool.name is None:
            continue
        if tool.name in names:
            yield ("tools", index, "name"), f"another tool is called `{tool.name}`"
        if isinstance(tool, OpenApiTool) and tool.name in config.mcp_servers:
            yield ("tools", index, "name"), f"an MCP server is called `{tool.name}`"
        names.add(tool.name)


def _repeated_hooks(config: Config) -> Iterator[Mistake]:
    names: set[str] = set()
    for index, hook in enumerate(config.guardrails):
        if hook.name in names:
            yield ("guardrails", index, "name"), f"another guardrail is called `{hook.name}`"
        names.add(hook.name)


def _pools_without_stores(config: Config) -> Iterator[Mistake]:
    if not config.pools:
        return
    if config.ledger.url is None:
        yield ("pools",), "needs `ledger.url`: a worker begins no call that does not stand in a ledger it shares"
    if config.store.redis_url is None:
        yield ("pools",), "needs `store.redis_url`: calls wait there for a worker"


def _workers_without_stores(config: Config) -> Iterator[Mistake]:
    """Several processes have to share what they keep: in a folder, or in a cluster in Redis."""
    if config.server.workers == 1 or config.store.redis_url is not None:
        return
    if config.ledger.url is not None:
        yield (
            ("server", "workers"),
            "several need `store.redis_url` beside `ledger.url`: limits and chats are shared there",
        )
    elif config.data_dir is None:
        yield (
            ("server", "workers"),
            "several need a `data_dir`, where they share limits, chats and answers: without it each would have its own",
        )


def _unknown_pools(config: Config) -> Iterator[Mistake]:
    for index, tool in enumerate(config.tools):
        if isinstance(tool, PlacedTool) and tool.run_on is not None and tool.run_on not in config.pools:
            yield (
                ("tools", index, "run_on"),
                f"no pool of `pools` is called that{near(tool.run_on, list(config.pools))}",
            )
