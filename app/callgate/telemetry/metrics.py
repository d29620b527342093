"""Prometheus metrics in a registry of their own.

Labels are names that the operator chose or values of closed lists, never text of clients or models. Beyond a limit of label
values the rest is counted as `other`.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import add, sub
from typing import Final, Generic, Protocol, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Gauge, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from callgate.conversation.events import NO_RESPONDER, Ending, Responder
from callgate.conversation.prices import Price
from callgate.conversation.usage import METRICS, TokenCounts, Usage
from callgate.telemetry.logs import TROUBLE, lost_lines

OTHER: Final = "other"

_MAX_CHILDREN: Final = 2000
"""The limit of time series of one metric."""

_MAX_KEYS: Final = 500
"""Keys that are shown by name; the others together."""

NO_TOKENS: Final = TokenCounts()
PROMPT, COMPLETION, CACHED, CACHE_WRITTEN = map(
    TokenCounts._fields.index, ("prompt", "completion", "cached", "cache_written")
)
"""The places of counts in `TokenCounts`."""
ANSWERED: Final = "answered"
_USED: Final = ("requests", "failed", "calls", "tokens_in", "tokens_out")

_REQUEST_SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_CALL_SECONDS: Final = (0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60)


class Count:
    """A counter. The library's own counters take a lock for every step."""

    __slots__ = ("amount", "created")

    def __init__(self) -> None:
        self.amount = 0.0
        self.created = time.time()

    def inc(self, amount: float = 1) -> None:
        self.amount += amount


class Times:
    """A histogram of durations: a count for each bucket and one beyond all of them, and the sum."""

    __slots__ = ("_bounds", "counts", "created", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.created = time.time()

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds


Part = TypeVar("Part", Count, Times)


class Family(Generic[Part]):
    """One metric and its parts by label values, found by a dict lookup without a lock.

    Counts only on the event loop. The library collects the counts at a scrape.
    """

    def __init__(self, name: str, help: str, labels: Sequence[str], make: Callable[[], Part]) -> None:
        self.name = name
        self._help = help
        self._labels = labels
        self._make: Callable[[], Part] = make
        self._parts: dict[tuple[str, ...], Part] = {}
        self._others = (OTHER,) * len(labels)
        if not labels:
            self.of()  # a metric without labels is there from the start

    def of(self, *labels: str) -> Part:
        part = self._parts.get(labels)
        if part is None:
            part = self._add(labels)
        return part

    def _add(self, labels: tuple[str, ...]) -> Part:
        if len(self._parts) >= _MAX_CHILDREN and labels != self._others:
            return self.of(*self._others)
        part: Part = self._make()
        self._parts[labels] = part
        return part


class Counts(Family[Count]):
    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:
        super().__init__(name, help, labels, Count)

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self.name, self._help, labels=self._labels)
        for labels, part in self._parts.items():
            family.add_metric(labels, part.amount, created=part.created)
        yield family


class ReportedTokens(Counts):
    """Counts tokens by what models have been reported to it until a scrape."""

    def __init__(self, name: str, help: str, labels: Sequence[str], models: "Callable[[], Iterable[OfModel]]") -> None:
        super().__init__(name, help, labels)
        self._models = models

    def collect(self) -> Iterable[Metric]:
        for model in self._models():
            for kind, tokens in model.take_reported():
                self.of(model.name, kind).inc(tokens)
        return super().collect()


class Histograms(Family[Times]):
    def __init__(self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(name, help, labels, lambda: Times(bounds))
        self._shown = [*map(floatToGoString, bounds), "+Inf"]

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self.name, self._help, labels=self._labels)
        for labels, part in self._parts.items():
            family.add_metric(labels, list(zip(self._shown, accumulate(part.counts), strict=True)), part.sum)
            family.add_sample(f"{self.name}_created", dict(zip(self._labels, labels, strict=True)), part.created)
        yield family


class DeploymentCooldown(Protocol):
    """A deployment with its cooldown."""

    @property
    def responder(self) -> Responder: ...

    def seconds_left(self) -> float: ...


class Cooldowns:
    """Collects the cooldowns of deployments at a scrape."""

    def __init__(self) -> None:
        self.deployments: Callable[[], Iterable[DeploymentCooldown]] = tuple

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "callgate_upstream_cooldown_seconds",
            "How long a deployment that keeps failing cools down from now on; 0 where it is in use.",
            labels=("model", "deployment", "host"),
        )
        seconds_left: dict[tuple[str, str, str], float] = {}
        for deployment in self.deployments():
            by = deployment.responder
            place = (by.counted_model, by.counted_as, by.host)
            seconds_left[place] = max(deployment.seconds_left(), seconds_left.get(place, 0.0))
        for place, seconds in seconds_left.items():
            family.add_metric(place, seconds)
        yield family


class StoresAway:
    """Collects at a scrape which stores cannot be used."""

    def __init__(self) -> None:
        self.stores: Callable[[], Iterable[tuple[str, bool]]] = tuple

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "callgate_store_away",
            "Whether a store cannot be used at the moment, so that what needs it is refused.",
            labels=("store",),
        )
        for store, is_away in self.stores():
            family.add_metric((store,), is_away)
        yield family


class KeyUse:
    """Collects the usage of each key at a scrape."""

    def __init__(self, used: "Callable[[], Iterable[OfModel]]") -> None:
        self._used = used

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "callgate_key_used",
            "What each key used: requests, failed ones, tool calls, tokens.",
            labels=("key", "what"),
        )
        sums: dict[str, dict[str, int]] = {}
        for used in self._used():
            if used.key in sums or len(sums) < _MAX_KEYS:
                key = used.key
            else:
                key = OTHER
            of_key = sums.setdefault(key, dict.fromkeys(_USED, 0))
            for what in _USED:
                of_key[what] += getattr(used, what)
        for key, of_key in sums.items():
            for what, amount in of_key.items():
                family.add_metric((key, what), amount)
        yield family


class LoggedTrouble:
    """Collects the logged warnings and errors of this process by name at a scrape."""

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "callgate_log_events", "Warnings and errors that were logged, by their names.", labels=("level", "event")
        )
        for place, amount in TROUBLE.items():
            family.add_metric(place, amount)
        yield family
        yield CounterMetricFamily(
            "callgate_log_lines_lost", "Lines of the log that could not be written.", lost_lines()
        )


class Metrics:
    """All metrics of the process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._models: dict[tuple[str, str], OfModel] = {}
        self._requests: dict[tuple[str, int, str], tuple[Count, Times]] = {}
        """Cached for each kind of request."""
        ProcessCollector(registry=self.registry)
        self.requests = self._counter("requests", "Requests answered.", "route", "status", "model")
        self.request_seconds = self._histogram(
            "request_seconds", "From a request to the end of its answer.", _REQUEST_SECONDS, "route", "model"
        )
        self.in_flight = Gauge("callgate_requests_in_flight", "Requests being answered.", registry=self.registry)
        self.turns = self._counter("turns", "Turns of models.", "model")
        self.turn_seconds = self._histogram("turn_seconds", "One turn of a model.", _REQUEST_SECONDS, "model")
        self.attempts = self._counter(
            "upstream_attempts", "Deployments asked, by what came of it.", "model", "deployment", "host", "result"
        )
        self._cooldowns = Cooldowns()
        self.registry.register(self._cooldowns)
        self._stores_away = StoresAway()
        self.registry.register(self._stores_away)
        self.registry.register(KeyUse(self.used))
        self.registry.register(LoggedTrouble())
        self.chats = self._counter("chats", "Chats that ended, by how.", "model", "ending", "finish_reason")
        self.calls = self._counter(
            "calls", "Tool calls, by the flaw that kept them from running or the outcome of running.", "tool", "verdict"
        )
        self.call_seconds = self._histogram("call_seconds", "One run of a tool.", _CALL_SECONDS, "tool")
        self.findings = self._counter("findings", "What was noticed about turns and calls.", "model", "finding")
        self.prompt_tokens_added = self._counter(
            "prompt_tokens_added", "Tokens, estimated, that describing tools in prompts added.", "model", "format"
        )
        self.tool_searches = self._counter(
            "tool_searches", "Searches of models for tools, by whether any was found.", "result"
        )
        self.tool_cache = self._counter(
            "tool_cache", "Calls of tools whose results are kept, by where theirs were from.", "result"
        )
        self.client_servers = self._counter(
            "client_servers", "MCP servers that requests named by their addresses.", "result"
        )
        self.context_changes = self._counter(
            "context_changes", "Times the history of a chat was made smaller.", "model", "kind", "result"
        )
        self.context_tokens = self._counter(
            "context_tokens", "Tokens, estimated, that prompts had fewer by that.", "model", "kind"
        )
        self.guardrail_verdicts = self._counter(
            "guardrail_verdicts", "What guardrails looked at, by what came of it.", "hook", "point", "verdict"
        )
        self.tool_cost = self._counter("tool_cost_dollars", "What calls of tools with a price cost.", "tool")
        self.server_failures = self._counter(
            "tool_server_failures", "Tool servers that were lost or could not be opened.", "server"
        )
        self.tool_changes = self._counter(
            "tool_changes", "Tools whose server changed their description or schema.", "server"
        )
        self.tools_held = Gauge(
            "callgate_tools_held",
            "Tools of servers that are not on offer until somebody accepts what they say of themselves.",
            ["server"],
            registry=self.registry,
        )
        self.logins_lacking = Gauge(
            "callgate_mcp_logins_lacking",
            "Identities whose requests to an MCP server wait for a login, or for one with more rights.",
            ["server"],
            registry=self.registry,
        )
        self.parser_failures = self._counter(
            "parser_failures", "Jobs of processes that read for the server and gave no result.", "kind", "reason"
        )
        self.approvals = self._counter("approvals", "Calls that waited for approval, by what came of it.", "decision")
        self.approvals_waiting = Gauge(
            "callgate_approvals_waiting", "Calls that wait for approval.", registry=self.registry
        )
        self.approval_webhooks = self._counter(
            "approval_webhooks", "Messages of calls that wait, by what became of them.", "result"
        )
        self.reloads = self._counter("config_reloads", "Times the config was read again, by what came of it.", "result")
        self.sign_ins = self._counter(
            "sign_ins", "Tokens of the issuer that were verified, by what came of it.", "outcome"
        )
        self.issuer_looks = self._counter("issuer_looks", "Times the keys of the issuer were asked for.", "result")
        self.widened = self._counter(
            "authority_widened", "What allows more: by a reload that was told to, a restart, or a key made with rights."
        ).of()
        self.config_refused = Gauge(
            "callgate_config_refused",
            "Whether the config on disk was refused, so that an older one is in use.",
            registry=self.registry,
        )
        self.runs_dropped = self._counter("runs_dropped", "Runs that were not recorded.").of()
        self.spans_exported = self._counter("spans_exported", "Spans that a collector took.").of()
        self.spans_dropped = self._counter("spans_dropped", "Spans that were not sent, or not taken.", "reason")
        self.tokens = ReportedTokens(
            "callgate_tokens", "Tokens that providers reported.", ("model", "kind"), self._models.values
        )
        self.registry.register(self.tokens)

    def watch_stores(self, stores: Callable[[], Iterable[tuple[str, bool]]]) -> None:
        """Set what returns the stores, and whether each is away."""
        self._stores_away.stores = stores

    def watch_cooldowns(self, deployments: Callable[[], Iterable[DeploymentCooldown]]) -> None:
        """Set the deployments whose cooldowns are shown."""
        self._cooldowns.deployments = deployments

    def request(self, route: str, status: int, model: str, seconds: float) -> None:
        """Count an answered request. `route` is a template, `model` a configured name or empty."""
        counted = self._requests.get((route, status, model))
        if counted is None:
            counted = self.requests.of(route, str(status), model), self.request_seconds.of(route, model)
            if len(self._requests) < _MAX_CHILDREN:
                self._requests[route, status, model] = counted
        count, times = counted
        count.amount += 1
        times.observe(seconds)

    def model(self, name: str, key: str = "") -> "OfModel":
        """Return the metrics of one configured model name, for one key."""
        counted = self._models.get((name, key))
        if counted is None:
            counted = self._models[name, key] = OfModel(self, name, key)
        return counted

    def used(self) -> "list[OfModel]":
        """Return the usage of every key and model since the process began."""
        return list(self._models.values())

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page of metrics, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _counter(self, name: str, help: str, *labels: str) -> Counts:
        family = Counts(f"callgate_{name}", help, labels)
        self.registry.register(family)
        return family

    def _histogram(self, name: str, help: str, buckets: Sequence[float], *labels: str) -> Histograms:
        family = Histograms(f"callgate_{name}", help, labels, buckets)
        self.registry.register(family)
        return family


def added_up(expositions: Sequence[bytes], accept: str = "", *, ended: Sequence[bytes] = ()) -> tuple[bytes, str]:
    """Return the summed metrics of several processes, and their content type. Times of creation are left out.

    The counters of processes that have ended are included, because a sum must not go down. Their gauges are not."""
    from prometheus_client.parser import text_string_to_metric_families

    families: dict[str, Metric] = {}
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    family_of: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}
    for at, exposition in enumerate((*expositions, *ended)):
        for family in text_string_to_metric_families(exposition.decode()):
            if family.name.endswith("_created") or (at >= len(expositions) and family.type not in _SUMS):
                continue
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                if key not in samples:
                    samples[key] = sample.value
                elif sample.name.endswith("_start_time_seconds"):
                    samples[key] = min(samples[key], sample.value)
                else:
                    samples[key] += sample.value
                family_of[key] = family.name
    for (name, labels), value in samples.items():
        families[family_of[name, labels]].add_sample(name, dict(labels), value)
    encode, content_type = choose_encoder(accept)
    return encode(_Collected(families.values())), content_type


_SUMS: Final = frozenset({"counter", "histogram", "summary"})


class _Collected(CollectorRegistry):
    """A registry of metrics that were collected elsewhere."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class Spending(msgspec.Struct, frozen=True, gc=False):
    """The tokens of one or more turns, and their price."""

    counts: TokenCounts
    price: Price | None = None
    answering: "OfModel | None" = None
    """The counters of another model that answered instead, whose tokens they are in the metrics."""


class OnlyTurn(msgspec.Struct, frozen=True, gc=False):
    """The counters of chats that one deployment answered in one turn, and that ended alike."""

    by: Responder
    ending: Ending
    turns: Count
    seconds: Times
    answers: Count | None
    chats: Count


class OfModel:
    """The metrics of one model's chats, with cached parts."""

    __slots__ = (
        "_answers",
        "_by",
        "_ends",
        "_metrics",
        "_only_turn",
        "_others",
        "_own",
        "_own_shown",
        "_reported",
        "_turn",
        "calls",
        "failed",
        "key",
        "name",
        "nano",
        "priced_in",
        "priced_out",
        "requests",
        "unpriced",
        "unpriced_elsewhere",
    )

    def __init__(self, metrics: Metrics, name: str, key: str) -> None:
        self._metrics = metrics
        self.name = name
        self.key = key
        self.requests = self.failed = self.calls = 0
        self.nano = 0
        """The known cost, in billionths of a dollar."""
        self.unpriced = 0
        """The requests with tokens of this model, whose price is not known."""
        self.unpriced_elsewhere = 0
        """The requests with tokens of a fallback whose price is not known."""
        self.priced_in = self.priced_out = 0
        """All tokens but those of this model without a price."""
        self._turn: tuple[Count, Times] | None = None
        self._by: Responder | None = None
        self._answers: Count | None = None
        self._ends: dict[tuple[str, str], Count] = {}
        self._only_turn: OnlyTurn | None = None
        """The counters of the last chat that ended with its only turn."""
        self._own: Sequence[int] = NO_TOKENS
        """The tokens of its requests that it answered itself."""
        self._own_shown: Sequence[int] = NO_TOKENS
        """Those of them that a scrape has shown."""
        self._others: Sequence[int] = NO_TOKENS
        """The tokens of its requests that others answered."""
        self._reported: Sequence[int] = NO_TOKENS
        """The tokens of its answers to the requests of others, since the last scrape."""

    @property
    def tokens_in(self) -> int:
        return self._own[PROMPT] + self._others[PROMPT]

    @property
    def tokens_out(self) -> int:
        return self._own[COMPLETION] + self._others[COMPLETION]

    @property
    def tokens_cached(self) -> int:
        return self._own[CACHED] + self._others[CACHED]

    @property
    def tokens_cache_written(self) -> int:
        return self._own[CACHE_WRITTEN] + self._others[CACHE_WRITTEN]

    def only_turn(self, by: Responder, ending: Ending, seconds: float) -> None:
        """Count a chat that ended with its only turn. Equals `turn`, `answered_by` and `ended`. The counters of the last one are cached."""
        counters = self._only_turn
        if counters is None or counters.by is not by or counters.ending is not ending:
            counters = self._only_turn = self._counters(by, ending)
        counters.turns.amount += 1
        counters.seconds.observe(seconds)
        if counters.answers is not None:
            counters.answers.amount += 1
        counters.chats.amount += 1
        self.requests += 1

    def _counters(self, by: Responder, ending: Ending) -> "OnlyTurn":
        answers = None
        if by is not NO_RESPONDER:
            answers = self._metrics.attempts.of(self.name, by.counted_as, by.host, ANSWERED)
        return OnlyTurn(
            by,
            ending,
            self._metrics.turns.of(self.name),
            self._metrics.turn_seconds.of(self.name),
            answers,
            self._metrics.chats.of(self.name, str(ending.kind), str(ending.finish_reason)),
        )

    def turn(self, seconds: float) -> None:
        """Count a turn."""
        if self._turn is None:
            self._turn = self._metrics.turns.of(self.name), self._metrics.turn_seconds.of(self.name)
        count, times = self._turn
        count.amount += 1
        times.observe(seconds)

    def answered_by(self, by: Responder) -> None:
        """Count a turn for the deployment that answered it. The last deployment's counter is cached."""
        if by is not self._by or self._answers is None:
            self._by = by
            self._answers = self._metrics.attempts.of(self.name, by.counted_as, by.host, ANSWERED)
        self._answers.amount += 1

    def ended(self, ending: Ending) -> None:
        """Count the end of a chat."""
        place = (ending.kind, ending.finish_reason)
        counted = self._ends.get(place)
        if counted is None:
            counted = self._ends[place] = self._metrics.chats.of(self.name, *map(str, place))
        counted.amount += 1
        self.requests += 1

    def failed_request(self) -> None:
        """Count a failed request."""
        self.requests += 1
        self.failed += 1

    def passed_on(self, usage: Usage | None, price: Price | None) -> None:
        """Count a proxied request."""
        self.requests += 1
        if usage is not None:
            self.spent(usage.counts(), price)

    def spent(self, counts: TokenCounts, price: Price | None) -> None:
        """Count the tokens of a chat that this model alone answered, as its provider reports them, and their cost where it is
        known."""
        self._own = (*map(add, self._own, counts),)
        if price is None:
            self.unpriced += bool(counts.prompt or counts.completion)
            return
        self.nano += price.of(counts)
        self.priced_in += counts.prompt
        self.priced_out += counts.completion

    def spent_by_several(self, spendings: Iterable["Spending"]) -> None:
        """Count the tokens of a chat that several deployments answered, or another model. It counts once as one without a price."""
        is_unpriced = False
        is_unpriced_elsewhere = False
        for spending in spendings:
            answering = spending.answering
            price = spending.price
            counts = spending.counts
            if answering is None:
                self._own = (*map(add, self._own, counts),)
            else:
                answering.reported(counts)
                self._others = (*map(add, self._others, counts),)
            if price is not None:
                self.nano += price.of(counts)
            elif answering is not None:
                is_unpriced_elsewhere = is_unpriced_elsewhere or bool(counts.prompt or counts.completion)
            else:
                is_unpriced = is_unpriced or bool(counts.prompt or counts.completion)
                continue
            self.priced_in += counts.prompt
            self.priced_out += counts.completion
        self.unpriced += is_unpriced
        self.unpriced_elsewhere += is_unpriced_elsewhere and not is_unpriced

    def reported(self, counts: TokenCounts) -> None:
        """Count tokens of its answers to the requests of another model."""
        self._reported = (*map(add, self._reported, counts),)

    def take_reported(self) -> Iterable[tuple[str, int]]:
        """Return the tokens of its answers since the last call, by their kinds in the metrics."""
        own = map(sub, self._own, self._own_shown)
        reported = zip(METRICS, map(add, own, self._reported), strict=True)
        amounts = [(kind, tokens) for kind, tokens in reported if kind and tokens]
        self._own_shown = self._own
        self._reported = NO_TOKENS
        return amounts
