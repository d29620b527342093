"""The runtime: all objects built from one reading of the config."""

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

import structlog

from callgate.auth.admission import Place
from callgate.auth.keys import Caller, is_loopback
from callgate.auth.meter import Meter
from callgate.config.schema import Config
from callgate.conversation.errors import ChatError
from callgate.conversation.listeners import Listener
from callgate.conversation.prices import FREE
from callgate.runtime.builders.access import keyring_of, origin_guard_of
from callgate.runtime.builders.limits import rules_of
from callgate.runtime.builders.models import concurrency_of
from callgate.runtime.builders.tools import registry_of
from callgate.runtime.chat_setup import Toolboxes
from callgate.runtime.models import Models, TokenCounter
from callgate.runtime.offered_tools import OfferedTools, Wanted, is_short
from callgate.runtime.prices import Prices
from callgate.runtime.recording import RuntimeRecording
from callgate.runtime.route import EMPTY_TOOLS_LIST, ClientTools, Route, may_offer
from callgate.runtime.shared import SharedResources
from callgate.runtime.tool_patterns import check_patterns, pattern_problems, unknown_keys
from callgate.telemetry.listeners import LoggedWords, LogListener, MetricsListener
from callgate.tools.concurrency import ConcurrencyLimits
from callgate.tools.registry import Registry
from callgate.upstream.catalogue import Catalogue
from callgate.upstream.proxied_routes import Form, ProviderProxy, provider_proxy_for
from callgate.upstream.resolve import ModelConfig

audit = structlog.get_logger("callgate.audit")

REMEMBERED_ROUTES = 1024
"""Clients may send any names, so that there has to be a bound."""
REMEMBERED_CHARS = 512
"""The longest model name or list of tools whose route is cached."""


class Runtime(RuntimeRecording):
    """The objects of one config."""

    def __init__(self, config: Config, shared: SharedResources, before: "Runtime | None" = None) -> None:
        """`before` is the runtime that it replaces."""
        self.config = config
        self.metrics = shared.metrics
        self.approvals = shared.approvals
        self.limits = config.limits
        self.rules = rules_of(config)
        self.diagnostics = config.loop.diagnostics
        self.limiter = shared.limiter
        self._admission = shared.admission
        self._notices = shared.approval_notices
        self._keys = shared.keys
        self._keyring = keyring_of(config, shared.keys)
        self._origins = origin_guard_of(config, self._keyring)
        self.registry: Registry = registry_of(
            config,
            shared.web,
            shared.threads,
            shared.processes,
            pins=shared.pins,
            pool=shared.sources,
            limits=ConcurrencyLimits(shared=shared.places) if before is None else before.registry.limits.handed_on(),
            fleet=shared.fleet,
        )
        check_patterns(config, self.registry)
        self._models = Models(config, self.registry.has_schema, None if before is None else before.catalogue)
        self.catalogue: Catalogue = self._models.catalogue
        self.offered = OfferedTools(self.registry)
        self.toolboxes = Toolboxes(config, shared, self.registry, self.catalogue)
        self._routes: dict[Any, Route] = {}
        self._routed_tools: object = None
        self._patterns_checked = False
        self._logged_words = LoggedWords()
        self._places = concurrency_of(config)
        super().__init__(config, shared)
        self._tools_shown = {("key", key.name): key.responses.tools_shown for key in config.keys}
        self._tools_shown |= {("model", it.model_name): it.responses.tools_shown for it in config.model_list}
        self.prices = Prices(self.catalogue, {each.model_name: each.model_info for each in config.model_list})

    async def open(self) -> None:
        await self.registry.open()
        self._check_patterns()
        stored = () if self._keys is None else [key.entry.name for key in self._keys.all()]
        for index, less in enumerate(self.config.record.less):
            for _, pattern in unknown_keys(less.keys, self.config, stored):
                audit.warning("record_rule_unmatched", where=f"record.less.{index}.keys", pattern=pattern)
        self._notices.use(self.config.approvals.webhook)
        self.tracer = self._tracing.use(self.config)
        self.metrics.watch_cooldowns(self.catalogue.known_deployments)
        self._admission.change(self.limits.concurrent_requests, self.limits.queue_seconds)

    async def close(self) -> None:
        await self.registry.close()
        await self.catalogue.close()

    @property
    def is_keyless(self) -> bool:
        """True if no key is required."""
        return self._keyring.open

    def admit(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller of a request, or raise an error. Every route calls this."""
        self.check_origin(headers)
        return self._keyring.identify(headers)

    def caller_named(self, owner: str) -> Caller | None:
        """Return the caller for an owner's name, if its key is still valid."""
        return self._keyring.known(owner)

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse requests of foreign web pages."""
        if (refusal := self._origins.refusal(headers)) is not None:
            raise refusal

    def may_administer(self, caller: Caller) -> bool:
        """True if a caller may reload the config. Without keys only requests from this machine may."""
        return caller.admin or (caller.anonymous and is_loopback(self.config.server.host))

    def may_approve(self, caller: Caller) -> bool:
        """True if a caller may decide about approvals. Without keys only requests from this machine may."""
        return caller.approve or (caller.anonymous and is_loopback(self.config.server.host))

    def may_see_metrics(self, caller: Caller) -> bool:
        """True if a caller may see all models and tools, and their usage."""
        return self.may_see_all(caller) or ("*" in caller.models and "*" in caller.tools)

    def may_see(self, caller: Caller) -> bool:
        """True if a caller may see its own runs."""
        return caller.see != "none" or self.may_see_all(caller)

    def may_see_all(self, caller: Caller) -> bool:
        """True if a caller may see the runs of all keys."""
        return caller.see == "all" or self.may_administer(caller)

    def record_as(self, policy: Any) -> None:
        """Change the recording policy."""
        self._record_as(policy)
        self._routes.clear()

    def place(self, caller: Caller) -> Awaitable[Place]:
        """Take a place for a request. Raises `ChatError`: 429 when its key has too many, 503 when the server has."""
        return self._admission.request(caller.name, caller.allowance.parallel)

    async def place_at(self, model: str) -> Place:
        """Take a place for a request to a model."""
        name = self.catalogue.entry(model).configured_name
        return await self._admission.model(name, self._places.get(name))

    def tools_shown(self, route: Route, caller: Caller) -> str:
        """Return how responses show calls of our tools, by the key's setting or else the model's."""
        of_key = self._tools_shown.get(("key", caller.name))
        of_model = self._tools_shown.get(("model", route.entry.configured_name))
        return of_key or of_model or self.config.responses.tools_shown

    def labels(self) -> frozenset[str]:
        """Return the names of the MCP servers."""
        return frozenset(source.name for source in self.registry.sources())

    def meter(self, caller: Caller, model: str, prompt_bytes: int, max_tokens: int | None, choices: int) -> Meter:
        """Return the meter that holds one request to the limits of its key."""
        priced = caller.allowance.budget_per_day is not None or caller.allowance.budget_per_month is not None
        price = self.prices.for_budget(model) if priced else FREE
        price_of = self.prices.for_budget_of if priced else None
        return Meter(self.limiter, caller, price, prompt_bytes, max_tokens, choices, price_of)

    def counting_meter(self, caller: Caller, prompt_bytes: int) -> Meter:
        """Return the meter of a request that only counts tokens, which no provider charges for."""
        return Meter(self.limiter, caller, FREE, prompt_bytes, max_tokens=0)

    def model_names(self, caller: Caller) -> list[str]:
        return [name for name in self.catalogue.names() if caller.may_ask(name)]

    def concurrency(self, model: str) -> dict[str, int] | None:
        """Return the concurrency limit of a model and its running requests in this process; None where there is no limit."""
        name = self.catalogue.entry(model).configured_name
        places = self._places.get(name)
        return None if places is None else {"places": places, "running": self._admission.at_model(name)}

    def deployments(self, name: str, *, with_hosts: bool) -> list[dict[str, Any]]:
        """Describe the deployments of a model: lane, calling mode, and cooldown."""
        return self._models.deployments(name, with_hosts=with_hosts)

    def reads_files(self, model: str) -> bool:
        """Return whether a model takes PDFs; False for one that does not exist."""
        return self.toolboxes.reads_files(model)

    def check_model(self, name: str, caller: Caller) -> ModelConfig:
        """Return the entry of a model. Raises the same error whether it does not exist or the caller may not use it."""
        return self._entry(name, caller)

    def price_of(self, model: str) -> dict[str, float | None] | None:
        """Return the price of a million tokens of a model in US dollars; None where it is unknown."""
        price = self.prices.of(model)
        if price is None:
            return None
        each = {"prompt": price.prompt, "completion": price.completion, "cached": price.cached}
        return {name: None if value is None else round(value * 1_000_000, 6) for name, value in each.items()}

    def token_counter(self, route: Route) -> TokenCounter:
        return partial(self._models.count_tokens, route.entry)

    async def passage(self, model: str) -> ProviderProxy | None:
        """Return the passage to a model's provider for other requests than chats, or None."""
        return await provider_proxy_for(self.catalogue.entry(model), self._models.client)

    def read_form(self, body: bytes, content_type: str) -> Form:
        return Form.read(body, content_type)

    def counted_name(self, model: str) -> str:
        """Return the configured name of a model, for metrics: for a wildcard not the client's text."""
        return self.catalogue.entry(model).configured_name

    def tool_list(self, caller: Caller) -> list[dict[str, Any]]:
        """Describe the tools that a caller may use; for an operator also those that cannot be used, and why."""
        return self.offered.listed(caller.tools, with_quarantined=self.may_administer(caller))

    def tools_by_model(self, caller: Caller) -> list[dict[str, Any]]:
        """How many tools each model is offered where a caller asks it, and about how many tokens of every prompt they cost."""
        names = self.model_names(caller)
        return [{"id": name, **self.offered.cost(self.catalogue.entry(name).tools, caller.tools)} for name in names]

    def rights(self, caller: Caller) -> dict[str, Any]:
        """What a caller may, whether its key says so or the server has no keys."""
        see = "all" if self.may_see_all(caller) else caller.see
        may = {"see": see, "approve": self.may_approve(caller), "admin": self.may_administer(caller)}
        return {
            "name": caller.name,
            "anonymous": caller.anonymous,
            **may,
            "models": caller.models,
            "tools": caller.tools,
        }

    def tool_for(self, name: str, model: str | None, caller: Caller) -> dict[str, Any] | None:
        """Describe one tool; with a model also how that is sent it. None where there is no such tool."""
        found = next((each for each in self.tool_list(caller) if each["name"] == name), None)
        if found is None or model is None or "parameters" not in found:
            return found
        self.check_model(model, caller)
        return {**found, "sent": {"model": model, **self._models.schema_for(model, found["parameters"])}}

    def server_list(self, caller: Caller) -> list[dict[str, Any]]:
        """Describe the servers of tools; their states only for an operator."""
        return self.offered.servers() if self.may_administer(caller) else []

    def choose(
        self,
        model: str,
        caller: Caller,
        *,
        wanted_tools: Wanted = None,
        tool_choice: Any = None,
        allowed: frozenset[str] | None = None,
        client_tools: ClientTools = "absent",
    ) -> Route:
        """Return the route of a caller's request; `allowed` names the tools that it may use, the client's and ours. Cached
        until the tools change."""
        rights = caller.models, caller.tools, caller.offer
        asked = (model, rights, wanted_tools, tool_choice == "none", allowed, client_tools)
        route = self._routes.get(asked)
        if route is not None and not route.may_offer_tools and not route.warnings:
            return route  # also if our tools have changed
        tools = self.offered.all()
        if tools is not self._routed_tools:
            self._routed_tools = tools
            self._routes = {}
            self._check_patterns()
            route = None
        if allowed is not None:
            allowed &= self.offered.names  # a client may send any number of other names
            asked = (model, rights, wanted_tools, tool_choice == "none", allowed, client_tools)
            route = self._routes.get(asked)
        if route is None:
            if len(self._routes) >= REMEMBERED_ROUTES:
                self._routes.clear()
            entry = self._entry(model, caller)
            may_offer_tools = tool_choice != "none" and bool(entry.tools)
            offered = (
                self.offered.narrowed(entry.tools, caller.tools, wanted_tools, allowed) if may_offer_tools else None
            )
            server_tools = offered if offered is not None and offered.by_name else None
            warnings: tuple[str, ...] = ()
            if server_tools is not None and not may_offer(client_tools, caller.offer or entry.offer):
                server_tools = None
                if client_tools == "empty":
                    warnings = (EMPTY_TOOLS_LIST,)
            name, places = entry.configured_name, self._places.get(entry.configured_name)
            found = self.offered.unmatched(entry.tools, caller.tools, wanted_tools)
            for each in found:
                audit.warning("tool_pattern_unmatched", where="request", model=entry.model_name, detail=str(each))
            warnings += tuple(map(str, found))
            recorded = self._records(with_tools=server_tools is not None)
            route = Route(
                name, entry, self.catalogue.model(model), server_tools, places, recorded, warnings, may_offer_tools
            )
            if len(model) <= REMEMBERED_CHARS and is_short(wanted_tools):
                self._routes[asked] = route
        return route

    def _check_patterns(self) -> None:
        """Log once, when all sources are open, the patterns of the config that match no tool."""
        if not self._patterns_checked and self.registry.is_complete:
            self._patterns_checked = True
            for problem in pattern_problems(self.config, self.registry):
                audit.warning(
                    "tool_pattern_unmatched", where=".".join(map(str, problem.path)), detail=str(problem.found)
                )

    def listeners(self, model_name: str, run_id: str, caller: Caller) -> tuple[Listener, ...]:
        return (
            self.log_listener(run_id),
            # The tools at the time when the route was chosen.
            MetricsListener(
                self.metrics,
                self.metrics.model(model_name, caller.name),
                self.offered.names,
                self.prices.of_responder,
            ),
        )

    def log_listener(self, run_id: str) -> Listener:
        return LogListener(run_id, self.config.logging.content, self._logged_words)

    def _entry(self, name: str, caller: Caller) -> ModelConfig:
        entry = self.catalogue.entry(name)
        if not caller.may_ask(name):
            raise ChatError(
                404,
                f"The model `{name}` does not exist or this key may not ask it.",
                param="model",
                code="model_not_found",
            )
        return entry
