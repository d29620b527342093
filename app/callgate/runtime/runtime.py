"""The runtime: all objects built from one reading of the config. `OpenRuntime` is closed after the last request that uses it."""

import asyncio
from collections.abc import Mapping
from functools import cache, partial
from types import TracebackType
from typing import Any

import structlog

from callgate.callers.admission import Place
from callgate.callers.caller import NOBODY, Caller, Principal, accounts_of
from callgate.callers.exposure import is_alone
from callgate.callers.metering import RequestMeter
from callgate.calls.search_setting import SearchPlan
from callgate.config.schema.whole import Config
from callgate.conversation.errors import ChatError
from callgate.conversation.listeners import Listener
from callgate.conversation.prices import FREE
from callgate.models.building import concurrency_of
from callgate.models.catalogue import Catalogue
from callgate.models.context import load_contexts, search_plan
from callgate.models.resolve import ModelConfig
from callgate.records.policy import RecordPolicy
from callgate.records.traces import RequestTraces
from callgate.runtime.chat_setup import Toolboxes, ToolsNow
from callgate.runtime.limits import rules_of
from callgate.runtime.models import Models
from callgate.runtime.prices import Prices
from callgate.runtime.route import EMPTY_TOOLS_LIST, ClientTools, Route, may_offer
from callgate.runtime.shared import SharedResources
from callgate.runtime.tool_patterns import check_patterns, pattern_problems, unknown_keys
from callgate.telemetry.listeners import LoggedWords, LogListener, MetricsListener, OnlyAnswers
from callgate.tools.building import registry_of
from callgate.tools.concurrency import ConcurrencyLimits
from callgate.tools.offered_tools import OfferedTools, Wanted, is_short
from callgate.tools.registry import Registry

audit = structlog.get_logger("callgate.audit")

REMEMBERED_ROUTES = 1024
"""Clients may send any names, so that there has to be a bound."""
REMEMBERED_CHARS = 512
"""The longest model name or list of tools whose route is cached."""


class Runtime:
    """The objects of one config."""

    def __init__(self, config: Config, shared: SharedResources, before: "Runtime | None" = None) -> None:
        """`before` is the runtime that it replaces."""
        self.config = config
        self.metrics = shared.metrics
        self.approvals = shared.approvals
        self.limits = config.limits
        self.rules = rules_of(config)
        self.diagnostics = config.loop.diagnostics
        self.admission = shared.control.admission
        self._notices = shared.approval_notices
        self._control = shared.control
        self.access = shared.control.access(config)
        server = config.server
        self.is_for_one_person = is_alone(server.host, config.auth.mode, server.public_url, server.allowed_hosts)
        """Whether callers without a key sit at this machine, and nobody else reaches the server."""
        self.registry: Registry = registry_of(
            config,
            shared.web,
            shared.threads,
            shared.processes,
            pins=shared.pins,
            pool=shared.sources,
            limits=ConcurrencyLimits(shared=shared.control.places)
            if before is None
            else before.registry.limits.handed_on(),
            fleet=shared.fleet,
            parsers=shared.parsers,
            logins=shared.logins,
        )
        self._logins = shared.logins
        self.knows_identities = self.registry.knows_identities
        """Whether servers are told on whose behalf their tools are called."""
        check_patterns(config, self.registry)
        self.models = Models(
            config,
            self.registry.defines,
            shared.parsers,
            None if before is None else before.catalogue,
            thinking=shared.thinking,
        )
        self.catalogue: Catalogue = self.models.catalogue
        self.offered = OfferedTools(self.registry)
        self.toolboxes = Toolboxes(config, shared, self.registry, self.catalogue)
        self.guarding = self.toolboxes.guarding
        self._routes: dict[Any, Route] = {}
        self._plain_routes: dict[tuple[str, str], tuple[Caller, Route, object]] = {}
        """By the names of model and caller, with the tools that there were."""
        self._routed_tools: object = None
        self._patterns_checked = False
        self._log_listener = partial(LogListener, content=config.logging.content, _logged_words=LoggedWords())
        self._of_model = cache(shared.metrics.model)
        self._places = concurrency_of(config)
        self.recorder = shared.recorder
        self.recording = shared.parts.recorder.rules(config, shared.recorder)
        self.traces = RequestTraces()
        self._tracing = shared.tracing
        self._tools_shown = {("key", key.name): key.responses.tools_shown for key in config.keys}
        self._tools_shown |= {("group", name): group.responses.tools_shown for name, group in config.groups().items()}
        self._tools_shown |= {("model", entry.model_name): entry.responses.tools_shown for entry in config.model_list}
        self.prices = Prices(
            self.catalogue,
            {entry_of_model.model_name: entry_of_model.model_info for entry_of_model in config.model_list},
        )
        self._metrics_listener = partial(MetricsListener, _metrics=shared.metrics, _price=self.prices.of_responder)
        self.only_answers = OnlyAnswers(self._log_listener, self._metrics_listener, self._of_model)

    async def open(self) -> None:
        modes = {entry.tool_search.mode for entry in self.config.model_list}
        modes |= {
            rights.tool_search.mode
            for rights in (*self.config.keys, *self.config.groups().values())
            if rights.tool_search is not None
        }
        if "auto" in modes:
            await asyncio.to_thread(load_contexts)
        await self.registry.open()
        if self.guarding is not None:
            await self.guarding.screen(self.registry)
        self._logins.use(self.config.mcp_servers)
        self._check_patterns()
        stored_keys = self._control.stored_keys()
        for index, less in enumerate(self.config.record.less):
            for _, pattern in unknown_keys(less.keys, self.config, stored_keys):
                audit.warning("record_rule_unmatched", where=f"record.less.{index}.keys", pattern=pattern)
        for index, hook in enumerate(self.config.guardrails):
            for _, pattern in unknown_keys(hook.keys or (), self.config, stored_keys):
                audit.warning("guardrail_rule_unmatched", where=f"guardrails.{index}.keys", pattern=pattern)
        self._notices.use(self.config.approvals.webhook)
        self.traces.tracer = self._tracing.use(self.config)
        self.metrics.watch_cooldowns(self.catalogue.known_deployments)
        self.admission.change(self.limits.concurrent_requests, self.limits.queue_seconds)

    async def servers(self) -> list[dict[str, Any]]:
        """Describe the sources of tools with their states, and who is logged in to them."""
        servers = self.offered.servers()
        logins = await self._logins.facts()
        for server in servers:
            if server["name"] in logins:
                server["logins"] = logins[server["name"]]
        return servers

    async def close(self) -> None:
        await self.offered.close()
        await self.toolboxes.close()
        await self.registry.close()
        await self.catalogue.close()

    def record_as(self, policy: RecordPolicy) -> None:
        """Change the recording policy."""
        self.recording.change(policy)
        self._routes.clear()
        self._plain_routes.clear()

    async def place_at(self, model: str) -> Place:
        """Take a place for a request to a model."""
        name = self.catalogue.entry(model).configured_name
        return await self.admission.model(name, self._places.get(name))

    def tools_shown(self, route: Route, caller: Caller) -> str:
        """Return how responses show calls of our tools, by the key's setting or else the model's."""
        if caller.person is None:
            of_key = self._tools_shown.get(("key", caller.name))
        else:
            of_key = self._tools_shown.get(("group", caller.person.group))
        of_model = self._tools_shown.get(("model", route.entry.configured_name))
        return of_key or of_model or self.config.responses.tools_shown

    def labels(self) -> frozenset[str]:
        """Return the names of the MCP servers."""
        return frozenset(source.name for source in self.registry.sources())

    def meter(
        self,
        caller: Caller,
        model: str,
        prompt_bytes: int,
        max_tokens: int | None,
        choices: int,
        *,
        hosted: bool = False,
    ) -> RequestMeter:
        """Return the meter that holds one request to the limits of its key. `hosted`: it names a tool that its provider runs."""
        priced = any(allowance.has_budget for _, allowance in accounts_of(caller))
        price = self.prices.for_budget(model) if priced else FREE
        price_of = self.prices.for_budget_of if priced else None
        return self._control.meter(caller, price, prompt_bytes, max_tokens, choices, price_of, hosted=hosted)

    def counting_meter(self, caller: Caller, prompt_bytes: int) -> RequestMeter:
        """Return the meter of a request that only counts tokens, which no provider charges for."""
        return self._control.meter(caller, FREE, prompt_bytes, max_tokens=0)

    def unlisted(self, principal: Principal) -> frozenset[str]:
        """Return the names of the tools that their servers do not list for who asks."""
        return frozenset() if principal is NOBODY else self.registry.unlisted(principal)

    def model_names(self, caller: Caller) -> list[str]:
        return [name for name in self.catalogue.names() if caller.may_ask(name)]

    def concurrency(self, model: str) -> dict[str, int] | None:
        """Return the concurrency limit of a model and its running requests in this process; None where there is no limit."""
        name = self.catalogue.entry(model).configured_name
        places = self._places.get(name)
        if places is None:
            return None
        return {"places": places, "running": self.admission.at_model(name)}

    def choose_plain(self, model: str, caller: Caller) -> Route:
        """Return the route of a request that says nothing of tools, as `choose` does."""
        remembered = self._plain_routes.get((model, caller.name))
        if remembered is not None and remembered[0] is caller:
            route = remembered[1]
            if not route.may_offer_tools or self.offered.all() is remembered[2]:
                return route
        route = self.choose(model, caller)
        is_few = not route.may_offer_tools or route.name == model  # clients choose the names that a wildcard stands for
        if is_few and not route.warnings and len(model) <= REMEMBERED_CHARS:
            if len(self._plain_routes) >= REMEMBERED_ROUTES:
                self._plain_routes.clear()
            self._plain_routes[model, caller.name] = (caller, route, self._routed_tools)
        return route

    def choose(
        self,
        model: str,
        caller: Caller,
        *,
        wanted_tools: Wanted = None,
        tool_choice: Any = None,
        allowed: frozenset[str] | None = None,
        client_tools: ClientTools = "absent",
        declared: frozenset[str] = frozenset(),
        unlisted: frozenset[str] = frozenset(),
    ) -> Route:
        """Return the route of a caller's request; `allowed` names the tools that it may use, the client's and ours, `declared` those of
        ours that stand for tools which it declares, `unlisted` those that their servers do not list for who asks. Cached until the tools
        change."""
        rights = caller.models, caller.tools, caller.offer, caller.tool_search
        demanded = declared
        if isinstance(tool_choice, dict):
            demanded |= _demanded(tool_choice)
        place = (model, rights, wanted_tools, tool_choice == "none", allowed, client_tools, demanded, unlisted)
        route = self._routes.get(place)
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
            place = (model, rights, wanted_tools, tool_choice == "none", allowed, client_tools, demanded, unlisted)
            route = self._routes.get(place)
        if route is None:
            if len(self._routes) >= REMEMBERED_ROUTES:
                self._routes.clear()
            entry = self.check_model(model, caller)
            may_offer_tools = tool_choice != "none" and bool(entry.tools)
            offered = None
            if may_offer_tools:
                plan = self._search_plan(entry, caller)
                offered = self.offered.narrowed(
                    entry.tools, caller.tools, wanted_tools, allowed, plan, demanded, unlisted
                )
            server_tools = offered if offered is not None and offered.by_name else None
            warnings: tuple[str, ...] = ()
            if server_tools is not None and not may_offer(client_tools, caller.offer or entry.offer):
                server_tools = None
                if client_tools == "empty":
                    warnings = (EMPTY_TOOLS_LIST,)
            name = entry.configured_name
            places = self._places.get(entry.configured_name)
            unmatched = self.offered.unmatched(entry.tools, caller.tools, wanted_tools)
            for problem in unmatched:
                audit.warning("tool_pattern_unmatched", where="request", model=entry.model_name, detail=str(problem))
            warnings += tuple(map(str, unmatched))
            recorded = self.recording.records(with_tools=server_tools is not None)
            route = Route(
                name,
                entry,
                self.catalogue.model(model),
                server_tools,
                places,
                recorded,
                warnings,
                may_offer_tools,
                None if server_tools is None or server_tools.search is None else server_tools.search.counts(),
                server_tools is not None and server_tools.search is None and entry.clear_results_above is None,
            )
            if len(model) <= REMEMBERED_CHARS and is_short(wanted_tools):
                self._routes[place] = route
        return route

    def _search_plan(self, entry: ModelConfig, caller: Caller) -> SearchPlan | None:
        """Return how the tools of a caller's requests to a model are searched; None where they are not."""
        if (caller.tool_search or entry.tool_search).mode == "off":
            return None
        return search_plan(entry.tool_search.joined(caller.tool_search), entry)

    def tool_costs(self, model: str, caller: Caller) -> dict[str, Any]:
        """Say how many tools a model is offered where a caller asks it, about how many tokens of every prompt they cost, and what
        searching saves, or would."""
        entry = self.catalogue.entry(model)
        setting = entry.tool_search.joined(caller.tool_search)
        return self.offered.cost(
            entry.tools,
            caller.tools,
            self._search_plan(entry, caller),
            search_plan(setting.automatic(), entry),
        )

    def _check_patterns(self) -> None:
        """Log once, when all sources are open, the patterns of the config that match no tool."""
        if not self._patterns_checked and self.registry.is_complete():
            self._patterns_checked = True
            for problem in pattern_problems(self.config, self.registry):
                audit.warning(
                    "tool_pattern_unmatched", where=".".join(map(str, problem.path)), detail=str(problem.unmatched)
                )

    def listeners(self, model_name: str, run_id: str, caller: Caller) -> tuple[Listener, ...]:
        counted_as = caller.name if caller.person is None else caller.person.account
        return (
            self._log_listener(_run_id=run_id),
            # The tools at the time when the route was chosen.
            self._metrics_listener(_of_model=self._of_model(model_name, counted_as), _tools=self.offered.names),
        )

    def log_listener(self, run_id: str) -> Listener:
        return self._log_listener(_run_id=run_id)

    def tools_now(self, caller: Caller, model: str | None) -> ToolsNow:
        """Return the tools that a caller may use with a model. Raises `ChatError` where it may not ask that model."""
        by_entry: tuple[str, ...] = ("*",)
        if model is not None:
            by_entry = self.check_model(model, caller).tools
        return ToolsNow(self.offered.narrowed(by_entry, caller.tools, None, None), caller)

    def check_model(self, name: str, caller: Caller) -> ModelConfig:
        """Return the entry of a model. Raises the same error whether it does not exist or the caller may not use it."""
        entry = self.catalogue.entry(name)
        if not caller.may_ask(name):
            raise ChatError(
                404,
                f"The model `{name}` does not exist or this key may not ask it.",
                param="model",
                code="model_not_found",
            )
        return entry


def _demanded(tool_choice: Mapping[str, Any]) -> frozenset[str]:
    """Return the name of the function that a model has to call, if any."""
    function = tool_choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if isinstance(name, str) and len(name) <= REMEMBERED_CHARS:
        return frozenset((name,))
    return frozenset()


class OpenRuntime:
    """One runtime, opened and closed inside one task of its own, as tool servers require.

    A request that has entered it uses the runtime to its end, even if another one becomes current meanwhile.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.leases = 0
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.Event()
        self._last_left: asyncio.Event | None = None
        """Set by the last request; None until the end is waited for."""
        self._task = asyncio.create_task(self._run(), name="runtime")

    @classmethod
    async def begin(cls, runtime: Runtime) -> "OpenRuntime":
        open_runtime = cls(runtime)
        try:
            await asyncio.shield(open_runtime._opened)
        except asyncio.CancelledError:
            open_runtime._task.cancel()
            await asyncio.wait([open_runtime._task])
            raise
        return open_runtime

    async def end(self) -> None:
        """Close the runtime once the last request has left it."""
        self._ending.set()
        await self._task

    def __enter__(self) -> Runtime:
        self.leases += 1
        return self.runtime

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leases -= 1
        if self._last_left is not None and not self.leases:
            self._last_left.set()

    async def _run(self) -> None:
        try:
            await self.runtime.open()
        except asyncio.CancelledError:
            await self.runtime.close()
            self._opened.cancel()
            raise
        except BaseException as failure:  # noqa: BLE001 - raised by `begin`, whatever it was
            await self.runtime.close()
            self._opened.set_exception(failure)
            return
        self._opened.set_result(None)
        await self._ending.wait()
        if self.leases:
            self._last_left = asyncio.Event()
            await self._last_left.wait()
        await self.runtime.close()
