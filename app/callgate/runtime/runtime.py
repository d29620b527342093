"""Everything that was built from one reading of the config, and moving from one reading to the next.

A request leases the `Runtime` it began with and keeps it to its end. `RuntimeManager` holds the current one; on a move the
new runtime is built and opened first, and if that fails the old one simply stays.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import structlog

from callgate.auth.admission import Place
from callgate.auth.key_store import KeyStore
from callgate.auth.keys import Caller, check_exposure, is_loopback
from callgate.auth.limits import Limiter, MemoryLimiter
from callgate.auth.meter import FREE, Meter, Price
from callgate.calls.outcome import Failed
from callgate.calls.states import ReadyCall
from callgate.config.load import Loaded
from callgate.config.problems import ConfigError, Problem, Spot
from callgate.config.schema import Config
from callgate.config.watch import changes
from callgate.conversation.errors import ChatError
from callgate.conversation.events import Ending
from callgate.conversation.ids import new_id
from callgate.conversation.listeners import Listener
from callgate.conversation.ports import Message, Model, Relay, Report, Toolbox
from callgate.ledger.entry import Ledger, NoLedger
from callgate.ledger.recorded import RecordedToolbox
from callgate.runtime import builders
from callgate.schemas.adapted_model import AdaptedModel
from callgate.schemas.dialects import Dialect, dialect_of
from callgate.stores.conversations import Conversations
from callgate.telemetry import logs
from callgate.telemetry.listeners import LogListener, MetricsListener, write_down_passage
from callgate.telemetry.metrics import Metrics
from callgate.telemetry.models import write_choice
from callgate.telemetry.tool_servers import ToolServers
from callgate.text_calls.calling_detection import CallingMode
from callgate.tools.adapted_schemas import AdaptedSchemas
from callgate.tools.approvals import ApprovalQueue, SettledApproval
from callgate.tools.clients_only import ClientsOnly
from callgate.tools.executor import Tool
from callgate.tools.listing import quarantined_facts, tool_facts
from callgate.tools.read_more import KeptResults, PagedToolbox, ResultPages
from callgate.tools.registry import RegisteredTool, Registry
from callgate.tools.source_pool import SourcePool
from callgate.tools.source_supervisor import SourceState, SourceStatus
from callgate.tools.tool_filter import ToolFilter, allowed_filter, narrowed, tool_filter
from callgate.tools.toolbox import Approve, RequestToolbox, ToolSet, only_named
from callgate.upstream import litellm_model
from callgate.upstream.catalogue import Catalogue
from callgate.upstream.prices import costs_of
from callgate.upstream.proxied_routes import Passage, model_in, passage_for
from callgate.upstream.resolve import ModelEntry
from callgate.upstream.retry import RetryingModel
from callgate.upstream.tool_calling import ToolCalling
from callgate.upstream.vision import sees_images

audit = structlog.get_logger("callgate.audit")

if TYPE_CHECKING:
    from callgate.tools.http_client import Web

REMEMBERED_SELECTIONS = 1024
"""Clients may ask for any names, so there must be a bound."""
WILDCARD = "wildcard"
"""What is counted for a model that only a wildcard names: the rest of the name is the client's."""


class SharedResources:
    """What outlives any one runtime: whoever waits, counts or remembers must not notice that the house moved."""

    def __init__(self, config: Config) -> None:
        self.metrics = Metrics()
        self.approvals = ApprovalQueue(audit=_write_down)
        self.admission = builders.admission_of(config)
        self.metrics.in_flight.set_function(lambda: self.admission.all.running)
        self.keys: KeyStore | None = None
        self.ledger: Ledger = NoLedger()
        self.limiter: Limiter = MemoryLimiter()
        self.servers = ToolServers(self.metrics)
        self.pins = builders.pins_of(config, self.servers)
        self.sources = SourcePool(functools.partial(_tell_of_source, self.servers))
        self.kept_results = KeptResults()
        self._web: Web | None = None
        self.threads = builders.threads_of(config)
        self.processes = builders.processes_of(config)
        self._config = config

    def web(self) -> "Web":
        """The HTTP clients of tools, made when the first tool wants one."""
        if self._web is None:
            from callgate.tools.http_client import Web

            self._web = Web()
        return self._web

    async def open(self) -> None:
        """Open what lies in files. Where that fails nothing is served: what was promised could not be kept."""
        ledger = builders.ledger_of(self._config)
        self.ledger = ledger or NoLedger()
        self.limiter = builders.limiter_of(self._config, ledger)
        self.keys = builders.key_store_of(self._config)
        if ledger is not None and ledger.found_unknown:
            audit.warning("runs of tools whose end nobody saw", count=ledger.found_unknown)

    async def close(self) -> None:
        if self._web is not None:
            await self._web.close()
        await self.processes.close()
        self.threads.close()
        await self.limiter.close()
        await self.ledger.close()
        if self.keys is not None:
            self.keys.close()


@dataclass(frozen=True, slots=True)
class Route:
    """Who is asked, and with what of the house: known before anything is made for one request."""

    name: str
    """What may be counted under: the configured name."""
    entry: ModelEntry
    model: RetryingModel
    house: ToolSet | None
    """The tools of the house that are on offer."""
    places: int | None
    """How many requests the model takes at once; None is any number."""

    def relay(self, *, with_tools: bool) -> Relay | None:
        """Where the request may pass straight through: there is no tool of the house in it, and nothing has to be read."""
        return self.model if not self.house and self.model.can_pass_on(with_tools=with_tools) else None


@dataclass(frozen=True, slots=True)
class ChatSetup:
    """What one chat was given: a model and a toolbox."""

    model: Model
    toolbox: Toolbox
    has_house_tools: bool
    sees_images: bool
    recall: Callable[[Sequence[Message]], None]
    """To be told of the history that was put back, which may name results that are kept."""
    format_with_tools: bool = True


class Runtime:
    """The rooms as one config has them, introduced to one another."""

    def __init__(self, config: Config, lasting: SharedResources, before: "Runtime | None" = None) -> None:
        """`before` is the runtime whose place it is to take."""
        self.config = config
        self.metrics = lasting.metrics
        self.approvals = lasting.approvals
        self.limits = config.limits
        self.rules = builders.rules_of(config)
        self.diagnostics = config.loop.diagnostics
        self.limiter = lasting.limiter
        self._admission = lasting.admission
        self._ledger = lasting.ledger
        self._kept_results = lasting.kept_results
        self._keyring = builders.keyring_of(config, lasting.keys)
        self._doorstep = builders.origin_guard_of(config, self._keyring)
        self.registry: Registry = builders.registry_of(
            config,
            lasting.web,
            lasting.threads,
            lasting.processes,
            pins=lasting.pins,
            pool=lasting.sources,
            limits=None if before is None else before.registry.limits.handed_on(),
        )
        self._client = builders.client_of(config)
        self._schemas = AdaptedSchemas(self.registry.has_schema, _write_losses)
        self._tool_calling = ToolCalling(_write_choice, config.limits.argument_bytes)
        self.catalogue = Catalogue(
            builders.model_entries(config),
            self._client,
            wrap=self._wrapped,
            policy=builders.retry_policy_of(config),
        )
        self._exact = frozenset(self.catalogue.names())
        self._known_tools: tuple[RegisteredTool, ...] = ()
        self._names: frozenset[str] = frozenset()
        self._narrowed: dict[Any, ToolSet] = {}
        self._chosen: dict[Any, Route] = {}
        self._places = builders.concurrency_of(config)
        self._prices: dict[str, Price] = {}
        self._infos = {section.model_name: section.model_info for section in config.model_list}

    def _wrapped(self, model: Model, entry: ModelEntry) -> Model:
        """A deployment as the house uses it: with schemas that its provider takes, asked as it can call."""
        dialect = dialect_for(entry)
        if dialect != "full":
            model = AdaptedModel(model, self._schemas.into(dialect))
        return self._tool_calling.wrap(model, entry)

    async def open(self) -> None:
        await self.registry.open()
        self._admission.change(self.limits.concurrent_requests, self.limits.queue_seconds)

    async def close(self) -> None:
        await self.registry.close()
        await self.catalogue.close()

    def admit(self, headers: Mapping[str, str]) -> Caller:
        """Who asks, or a refusal. The one way in for every route."""
        refusal = self._doorstep.refusal(headers.get("host"), headers.get("origin"))
        if refusal is not None:
            raise refusal
        return self._keyring.identify(headers)

    def may_administer(self, caller: Caller) -> bool:
        """Whether a caller may have the config read again. Without keys only this machine may."""
        return caller.admin or (caller.anonymous and is_loopback(self.config.server.host))

    def place(self, caller: Caller) -> Awaitable[Place]:
        """A place for one request, or a refusal: 429 when its key has too many under way, 503 when all have."""
        return self._admission.request(caller.name, caller.allowance.parallel)

    async def place_at(self, model: str) -> Place:
        """A place for one request to a model."""
        name = self.catalogue.entry(model).model_name
        return await self._admission.model(name, self._places.get(name))

    async def meter(self, caller: Caller, model: str, prompt_bytes: int, max_tokens: int | None, choices: int) -> Meter:
        """What holds one request to what its key may use."""
        priced = caller.allowance.budget_per_day is not None or caller.allowance.budget_per_month is not None
        price = await self._price(model) if priced else FREE
        return Meter(self.limiter, caller, price, prompt_bytes, max_tokens, choices)

    async def _price(self, model: str) -> Price:
        """Looked up once for each model, in a thread: it may load litellm."""
        if model not in self._prices:
            entry = self.catalogue.entry(model)
            info = self._infos.get(entry.model_name, {})
            costs = await asyncio.to_thread(costs_of, entry.litellm_params, info)
            if costs is None:
                audit.warning("no price is known; it costs nothing against budgets", model=entry.model_name)
            self._prices[model] = Price(*costs) if costs else FREE
        return self._prices[model]

    def model_names(self, caller: Caller) -> list[str]:
        return [name for name in self.catalogue.names() if caller.may_ask(name)]

    def tool_calling(self, name: str) -> list[CallingMode | None]:
        """How each deployment of a model is asked for its calls; None where nobody had to find out yet."""
        return [self._tool_calling.choice(entry) for entry in self.catalogue.entries(name)]

    def check_model(self, name: str, caller: Caller) -> None:
        """Refuse a model that is not there or not for this caller. A model one may not ask does not exist for one."""
        self._entry(name, caller)

    async def passage(self, model: str) -> Passage | None:
        """The way to a model's provider for what is no chat, or None when there is none."""
        return await passage_for(self.catalogue.entry(model), self._client)

    def model_in_form(self, body: bytes, content_type: str) -> str | None:
        return model_in(body, content_type)

    def counted_name(self, model: str) -> str:
        """What a model is counted under: the configured name, for the rest of a wildcard's name is the client's."""
        return model if model in self._exact else WILDCARD

    def tool_list(self, caller: Caller) -> list[dict[str, Any]]:
        """The tools a caller may use, for people; an operator also sees those that cannot be used, and why."""
        listed = [tool_facts(tool) for tool in narrowed(self.registry.tools(), [ToolFilter(caller.tools)])]
        if self.may_administer(caller):
            listed += map(quarantined_facts, self.registry.quarantined())
        return listed

    def choose(
        self,
        model: str,
        caller: Caller,
        *,
        wanted_tools: str | None = None,
        tool_choice: Any = None,
        allowed: frozenset[str] | None = None,
    ) -> Route:
        """Who answers a request of this caller's; `allowed` names the tools that it may use, whosever. Remembered until
        the tools change: requests of one client choose alike."""
        self._all_tools()
        asked = (model, caller.models, caller.tools, wanted_tools, tool_choice == "none", allowed)
        chosen = self._chosen.get(asked)
        if chosen is None:
            if len(self._chosen) >= REMEMBERED_SELECTIONS:
                self._chosen.clear()
            entry = self._entry(model, caller)
            house: ToolSet | None = None
            if tool_choice != "none" and entry.tools:
                house = self._tools_for(entry.tools, caller.tools, wanted_tools, allowed)
            name, places = self.counted_name(model), self._places.get(entry.model_name)
            chosen = self._chosen[asked] = Route(name, entry, self.catalogue.model(model), house, places)
        return chosen

    def engage(
        self,
        chosen: Route,
        caller: Caller,
        *,
        run_id: str,
        client_tools: Sequence[msgspec.Raw],
        allowed: frozenset[str] | None = None,
    ) -> ChatSetup:
        """The model and the tools for one chat of this caller's."""
        house = chosen.house
        toolbox: Toolbox
        pages = ResultPages(self._kept_results, caller.name, run_id)
        if house:
            toolbox = RequestToolbox(
                house,
                only_named(client_tools, allowed),
                run_id=run_id,
                limits=self.registry.limits,
                approve=self._asking(caller, run_id),
                on_cut=pages.keep,
            )
            toolbox = PagedToolbox(self._recorded(toolbox, caller, run_id), pages, self.config.limits.tool_result_bytes)
        else:
            toolbox = ClientsOnly(client_tools)
        return ChatSetup(
            model=chosen.model,
            toolbox=toolbox,
            has_house_tools=bool(house),
            recall=pages.recall,
            sees_images=bool(house) and all(map(sees_images, self.catalogue.entries(chosen.model.name))),
            format_with_tools=chosen.entry.format_with_tools or not house,
        )

    def write_down_passage(
        self, chosen: Route, run_id: str, ending: Ending, usage: Mapping[str, Any] | None, seconds: float
    ) -> None:
        """What a request that was passed through came to."""
        write_down_passage(self.metrics.model(chosen.name), run_id, ending, usage, seconds)

    def listeners(self, model_name: str, run_id: str) -> tuple[Listener, ...]:
        return (
            LogListener(run_id, content=self.config.logging.content),
            MetricsListener(self.metrics, model_name, self._names),  # as they were when the model was chosen
        )

    def _tools_for(
        self, entrys: tuple[str, ...], callers: tuple[str, ...], wanted: str | None, allowed: frozenset[str] | None
    ) -> ToolSet:
        """What is left of all tools, remembered until they change: requests of one client narrow them alike."""
        tools = self._all_tools()
        asked = (entrys, callers, wanted, allowed)
        found = self._narrowed.get(asked)
        if found is None:
            if len(self._narrowed) >= REMEMBERED_SELECTIONS:
                self._narrowed.clear()
            filters = [ToolFilter(entrys), ToolFilter(callers), tool_filter(wanted), allowed_filter(allowed)]
            found = self._narrowed[asked] = ToolSet(narrowed(tools, filters))
        return found

    def _all_tools(self) -> tuple[RegisteredTool, ...]:
        """All tools as they are now; what was worked out from them is forgotten when they have changed."""
        tools = self.registry.tools()
        if tools is not self._known_tools:
            self._known_tools = tools
            self._names = frozenset(tool.name for tool in tools)
            self._narrowed = {}
            self._chosen = {}
        return tools

    def _recorded(self, toolbox: Toolbox, caller: Caller, run_id: str) -> Toolbox:
        """Whatever is run stands in the ledger, if there is one."""
        if isinstance(self._ledger, NoLedger):
            return toolbox
        mask = logs.masked if self.config.logging.content else None
        return RecordedToolbox(toolbox, self._ledger, run_id=run_id, key_name=caller.name, mask=mask)

    def _asking(self, caller: Caller, run_id: str) -> Approve:
        """How the tools of this run ask for approval."""
        rules = self.config.approvals

        async def approve(tool: Tool, call: ReadyCall, report: Report) -> Failed | None:
            return await self.approvals.ask(
                tool,
                call,
                report,
                run_id=run_id,
                caller=caller.name,
                seconds=rules.timeout_seconds,
                max_waiting=rules.max_waiting,
            )

        return approve

    def _entry(self, name: str, caller: Caller) -> ModelEntry:
        entry = self.catalogue.entry(name)
        if not caller.may_ask(name):
            raise ChatError(
                404,
                f"The model `{name}` does not exist or this key may not ask it.",
                param="model",
                code="model_not_found",
            )
        return entry


@dataclass(frozen=True, slots=True)
class Reading:
    """How the config can be read again."""

    read: Callable[[], Loaded]
    files: Callable[[], Sequence[Path]] = tuple
    """The files whose change is a reason to."""
    learn: Callable[[Loaded], None] = lambda loaded: None
    """Hears of every config that was read, before it is used: its secrets must be known."""
    heed: Callable[[Loaded], None] = lambda loaded: None
    """Hears of a config that is in use from now on."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What a move to another config came to."""

    changed: tuple[str, ...]
    """The blocks of the config that are not as they were."""
    kept: tuple[str, ...]
    """Tool servers and documents that went on as they were."""
    opened: tuple[str, ...]
    needs_restart: tuple[str, ...]

    def facts(self) -> dict[str, list[str]]:
        return {
            "changed": list(self.changed),
            "kept": list(self.kept),
            "opened": list(self.opened),
            "needs_restart": list(self.needs_restart),
        }


class RuntimeManager:
    """The current runtime, and the requests that still live in older ones."""

    def __init__(self, config: Config, reading: Reading | None = None) -> None:
        """`reading` says how the config can be read again; without it the house stays as it is."""
        self._config = config
        self._first = config
        self._reading = reading
        self._moving = asyncio.Lock()
        self._reloading = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_reload = asyncio.Event()
        self._errands: set[asyncio.Task[Any]] = set()
        self.lasting = SharedResources(config)
        self.metrics = self.lasting.metrics
        self.opened_at = int(time.time())
        self.is_ready = False
        self.store = builders.store_of(config)
        """Of the house and not of a runtime: what is kept outlives a move."""
        self.conversations = Conversations(self.store, config.store.conversation_seconds, new_call_id)
        self._tenancy: _Tenancy | None = None
        self._minding: list[asyncio.Task[None]] = []

    @property
    def current(self) -> Runtime:
        assert self._tenancy is not None, "the house is not open"
        return self._tenancy.runtime

    async def __aenter__(self) -> Self:
        await self.lasting.open()
        self._tenancy = await _Tenancy.begin(Runtime(self._config, self.lasting))
        if self._reading is not None:
            self._loop = asyncio.get_running_loop()
            self._minding = [asyncio.create_task(self._reload_when_asked(self._reading), name="reloading")]
            if self._config.reload.watch and self._reading.files():
                self._minding.append(asyncio.create_task(self._watch(self._reading), name="watching the config"))
        self.is_ready = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_ready = False
        for task in self._minding:
            task.cancel()
        if self._minding:
            await asyncio.wait(self._minding)
        if self._tenancy is not None:
            await self._tenancy.end()
        if self._errands:
            await asyncio.wait(self._errands)
        await self.lasting.close()
        await self.store.close()
        await litellm_model.close()

    def lease(self) -> "_Lease":
        """The current runtime, to be used until the block ends even if the house moves meanwhile."""
        assert self._tenancy is not None, "the house is not open"
        return _Lease(self._tenancy)

    def ask_to_reload(self) -> None:
        """Have the config read again, soon. May be called from a signal handler or another thread."""
        if self._loop is None:  # not open yet; it is looked at once it is
            self._asked_to_reload.set()
        else:
            self._loop.call_soon_threadsafe(self._asked_to_reload.set)

    async def reload(self) -> Moved:
        """Read the config again and move. Raises `ConfigError`, and then nothing has changed."""
        if self._reading is None:
            raise ConfigError([Problem(Spot("config"), "", "it was not read from anywhere that could be read again")])
        # In a task of its own: whoever asked may leave half way.
        task = asyncio.create_task(self._reload(self._reading), name="reload")
        self._errands.add(task)
        task.add_done_callback(self._is_done)
        return await asyncio.shield(task)

    async def move(self, config: Config) -> Moved:
        """Live by another config from now on. What was leased before stays as it was until it is given back.

        The new runtime is built and opened first; where that fails the error is raised, and nothing has changed.
        """
        async with self._moving:
            assert self._tenancy is not None, "the house is not open"
            await asyncio.to_thread(builders.import_tools, config)  # modules of others may take their time
            runtime = Runtime(config, self.lasting, self._tenancy.runtime)
            kept = runtime.registry.handed_over()
            tenancy = await _Tenancy.begin(runtime)
            old, self._tenancy = self._tenancy, tenancy
            leaving = asyncio.create_task(old.end(), name="leaving a runtime")
            self._errands.add(leaving)
            leaving.add_done_callback(self._is_done)
            moved = Moved(
                changed=_changed(self._config, config),
                kept=kept,
                opened=tuple(sorted(it.name for it in runtime.registry.sources() if it.name not in kept)),
                needs_restart=_needs_restart(self._first, config),
            )
            self._config = config
            return moved

    async def _reload(self, reading: Reading) -> Moved:
        async with self._reloading:  # what is read last is what counts in the end
            return await self._reloaded(reading)

    async def _reloaded(self, reading: Reading) -> Moved:
        try:
            loaded = await asyncio.to_thread(reading.read)
            reading.learn(loaded)  # before anything is built from it: what goes wrong then is written down
            self._check_exposure(loaded)
            try:
                moved = await self.move(loaded.config)
            except builders.BadEntry as error:
                raise loaded.complaint(error.path, error.reason) from error
        except ConfigError as error:
            self.metrics.reloads.of("refused").inc()
            audit.error("config not reloaded", problems=[str(problem) for problem in error.problems])
            raise
        except Exception:
            self.metrics.reloads.of("failed").inc()
            audit.exception("config not reloaded")
            raise
        reading.heed(loaded)
        self.metrics.reloads.of("done").inc()
        audit.info("config reloaded", **moved.facts())
        return moved

    def _is_done(self, errand: "asyncio.Task[Any]") -> None:
        self._errands.discard(errand)
        if not errand.cancelled() and errand.exception() is not None and errand.get_name() != "reload":
            audit.error("an old runtime did not close in order", exc_info=errand.exception())

    def _check_exposure(self, loaded: Loaded) -> None:
        """A reload must not open to everyone what others can reach."""
        keys = len(loaded.config.keys) + (self.lasting.keys is not None and self.lasting.keys.in_use)
        mistake = check_exposure(self._first.server.host, loaded.config.auth, keys)
        if mistake is not None:
            raise loaded.complaint(("keys",), mistake)

    async def _reload_when_asked(self, reading: Reading) -> None:
        while True:
            await self._asked_to_reload.wait()
            self._asked_to_reload.clear()
            # It is written down where it happens, and the old runtime goes on; the next change is another chance.
            with contextlib.suppress(Exception):
                await self._reload(reading)

    async def _watch(self, reading: Reading) -> None:
        try:
            await self._notice(reading)
        except Exception:  # noqa: BLE001 - whatever the system's way of watching files fails with, requests go on
            audit.exception("the config file is not watched any more; SIGHUP still has it read again")

    async def _notice(self, reading: Reading) -> None:
        if await asyncio.to_thread(_reads_otherwise, reading, self._config):
            self._asked_to_reload.set()  # it changed while we were starting
        async for _ in changes(reading.files):
            if self._config.reload.watch:
                self._asked_to_reload.set()


def _reads_otherwise(reading: Reading, config: Config) -> bool:
    try:
        return reading.read().config != config
    except ConfigError:
        return True


def _changed(old: Config, new: Config) -> tuple[str, ...]:
    return tuple(name for name in Config.model_fields if getattr(old, name) != getattr(new, name))


OF_THE_SERVER = (
    "host",
    "port",
    "drain_seconds",
    "connections",
    "header_bytes",
    "header_seconds",
    "body_seconds",
    "idle_seconds",
)
OF_THE_HOUSE = ("data_dir", "store")
"""What is opened once, for the life of the process."""
OF_THE_POOLS = ("tool_threads", "child_processes")
"""Limits of what is made once and in use all the time."""


def _needs_restart(running: Config, wanted: Config) -> tuple[str, ...]:
    """Settings that were read and will only count after a restart."""
    of_server = (f"server.{it}" for it in OF_THE_SERVER if getattr(running.server, it) != getattr(wanted.server, it))
    of_pools = (f"limits.{it}" for it in OF_THE_POOLS if getattr(running.limits, it) != getattr(wanted.limits, it))
    return (*of_server, *of_pools, *(it for it in OF_THE_HOUSE if getattr(running, it) != getattr(wanted, it)))


def new_call_id() -> str:
    return new_id("call")


class _Lease:
    """One tenant of a runtime, while the block lasts."""

    __slots__ = ("_tenancy",)

    def __init__(self, tenancy: "_Tenancy") -> None:
        self._tenancy = tenancy

    def __enter__(self) -> Runtime:
        return self._tenancy.move_in()

    def __exit__(self, *_: object) -> None:
        self._tenancy.move_out()


class _Tenancy:
    """One runtime's life, opened and closed inside one task of its own, because tool servers insist on that."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._tenants = 0
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._life = asyncio.create_task(self._live(), name="runtime")

    @classmethod
    async def begin(cls, runtime: Runtime) -> "_Tenancy":
        tenancy = cls(runtime)
        try:
            await asyncio.shield(tenancy._opened)
        except asyncio.CancelledError:
            tenancy._life.cancel()
            await asyncio.wait([tenancy._life])
            raise
        return tenancy

    async def end(self) -> None:
        """Close once the last tenant has left."""
        self._leave.set()
        await self._life

    def move_in(self) -> Runtime:
        self._tenants += 1
        self._empty.clear()
        return self.runtime

    def move_out(self) -> None:
        self._tenants -= 1
        if not self._tenants:
            self._empty.set()

    async def _live(self) -> None:
        try:
            await self.runtime.open()
        except asyncio.CancelledError:
            await self.runtime.close()
            self._opened.cancel()
            raise
        except BaseException as failure:  # noqa: BLE001 - whoever waits for the opening is told, whatever it was
            await self.runtime.close()
            self._opened.set_exception(failure)
            return
        self._opened.set_result(None)
        await self._leave.wait()
        await self._empty.wait()
        await self.runtime.close()


def _tell_of_source(servers: ToolServers, status: SourceStatus) -> None:
    match status.state:
        case SourceState.READY:
            servers.ready(status.name, status.kind)
        case SourceState.DOWN:
            servers.down(status.name, status.kind, status.error, status.failures)
        case _:
            return


def _write_down(settled: SettledApproval) -> None:
    """One line for each call that waited for approval, whatever came of it. Its arguments are there as their hash."""
    asked = settled.asked
    audit.info(
        "approval settled",
        decision=str(settled.decision),
        by=settled.by or None,
        reason=settled.reason or None,
        approval=asked.id,
        tool=asked.tool.name,
        hash=asked.hash,
        caller=asked.caller,
        run_id=asked.run_id,
        call_id=asked.call.id,
    )


def dialect_for(entry: ModelEntry) -> Dialect:
    """What the provider of a model takes of JSON Schema."""
    if entry.schema_dialect != "auto":
        return entry.schema_dialect
    base = entry.litellm_params.get("api_base") or entry.litellm_params.get("base_url")
    return dialect_of(str(entry.litellm_params["model"]), str(base) if base else None)


def _write_losses(tool: str, dialect: Dialect, losses: Sequence[str]) -> None:
    audit.info("schema made portable", tool=tool, dialect=dialect, losses=list(losses))


def _write_choice(entry: ModelEntry, choice: CallingMode) -> None:
    write_choice(entry.model_name, entry.tool_calling, choice.format, choice.decided_by, choice.detail)
