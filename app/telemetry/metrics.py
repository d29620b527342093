"""Prometheus metrics in a registry of their own.

Labels are names that the operator chose or words of a closed list, never what a client or a model wrote; what is
counted under too many names all the same is counted as `other`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder

OTHER: Final = "other"

_MAX_CHILDREN: Final = 2000
"""Time series of one metric. Beyond it something is named that should not be."""

_MAX_WAITING: Final = 1000

_REQUEST_SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_CALL_SECONDS: Final = (0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60)


class Count:
    """What was counted since the last scrape. The library's own counters take a lock for every step."""

    __slots__ = ("_counter", "_waiting")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._waiting = 0.0

    def inc(self, amount: float = 1) -> None:
        self._waiting += amount

    def hand_over(self) -> None:
        waiting, self._waiting = self._waiting, 0.0
        if waiting:
            self._counter.inc(waiting)


class Times:
    """What was timed since the last scrape."""

    __slots__ = ("_histogram", "_waiting")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._waiting: list[float] = []

    def observe(self, seconds: float) -> None:
        self._waiting.append(seconds)
        if len(self._waiting) >= _MAX_WAITING:  # nobody may ever scrape
            self.hand_over()

    def hand_over(self) -> None:
        waiting, self._waiting = self._waiting, []
        for seconds in waiting:
            self._histogram.observe(seconds)


Part = TypeVar("Part", Count, Times)


class Family(Generic[Part]):
    """One metric and its parts by label values; looking one up costs a dict, not a lock and a search.

    Counting happens on the event loop alone; what was counted reaches the library when somebody scrapes.
    """

    __slots__ = ("_make", "_others", "_parts")

    def __init__(self, make: Callable[[tuple[str, ...]], Part], labels: int) -> None:
        self._make: Callable[[tuple[str, ...]], Part] = make
        self._parts: dict[tuple[str, ...], Part] = {}
        self._others = (OTHER,) * labels
        if not labels:
            self.of()  # a metric without labels is there from the start

    def of(self, *labels: str) -> Part:
        part = self._parts.get(labels)
        if part is None:
            part = self._add(labels)
        return part

    def hand_over(self) -> None:
        for part in self._parts.values():
            part.hand_over()

    def _add(self, labels: tuple[str, ...]) -> Part:
        if len(self._parts) >= _MAX_CHILDREN and labels != self._others:
            return self.of(*self._others)
        part: Part = self._make(labels)
        self._parts[labels] = part
        return part


class _HandingOver:
    """Asked first of all collectors, so that the others have everything that was counted."""

    def __init__(self, families: Sequence[Family[Any]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        for family in self._families:
            family.hand_over()
        return ()


class Metrics:
    """All that is counted."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._families: list[Family[Any]] = []
        self.registry.register(_HandingOver(self._families))
        ProcessCollector(registry=self.registry)
        self.requests = self._counter("requests", "Requests answered.", "route", "status", "model")
        self.request_seconds = self._histogram(
            "request_seconds", "From a request to the end of its answer.", _REQUEST_SECONDS, "route", "model"
        )
        self.in_flight = Gauge("callgate_requests_in_flight", "Requests being answered.", registry=self.registry)
        self.turns = self._counter("turns", "Turns of models.", "model")
        self.turn_seconds = self._histogram("turn_seconds", "One turn of a model.", _REQUEST_SECONDS, "model")
        self.retries = self._counter("model_retries", "Turns that failed and were asked again.", "model")
        self.chats = self._counter("chats", "Chats that ended, by how.", "model", "ending", "finish_reason")
        self.calls = self._counter(
            "calls", "Tool calls, by the flaw that kept them from running or the outcome of running.", "tool", "verdict"
        )
        self.call_seconds = self._histogram("call_seconds", "One run of a tool.", _CALL_SECONDS, "tool")
        self.findings = self._counter("findings", "What was noticed about turns and calls.", "model", "finding")
        self.prompt_tokens_added = self._counter(
            "prompt_tokens_added", "Tokens, estimated, that describing tools in prompts added.", "model", "format"
        )
        self.server_failures = self._counter(
            "tool_server_failures", "Tool servers that were lost or could not be opened.", "server"
        )
        self.tool_changes = self._counter(
            "tool_changes", "Tools whose server changed their description or schema.", "server"
        )
        self.reloads = self._counter("config_reloads", "Times the config was read again, by what came of it.", "result")
        self.tokens = self._counter("tokens", "Tokens that providers reported.", "model", "kind")

    def request(self, route: str, status: int, model: str, seconds: float) -> None:
        """A request was answered. `route` is a template, `model` a configured name or empty."""
        self.requests.of(route, str(status), model).inc()
        self.request_seconds.of(route, model).observe(seconds)

    def spent(self, model: str, usage: Mapping[str, Any]) -> None:
        """A chat's token counts, as providers report them."""
        for kind, count in _token_counts(usage):
            self.tokens.of(model, kind).inc(count)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """What a scraper gets, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _counter(self, name: str, says: str, *labels: str) -> Family[Count]:
        counter = Counter(f"callgate_{name}", says, labels, registry=self.registry)
        family = Family(lambda values: Count(counter.labels(*values) if values else counter), len(labels))
        self._families.append(family)
        return family

    def _histogram(self, name: str, says: str, buckets: tuple[float, ...], *labels: str) -> Family[Times]:
        histogram = Histogram(f"callgate_{name}", says, labels, buckets=buckets, registry=self.registry)
        family = Family(lambda values: Times(histogram.labels(*values) if values else histogram), len(labels))
        self._families.append(family)
        return family


_COUNTS: Final = (
    ("prompt", ("prompt_tokens",)),
    ("completion", ("completion_tokens",)),
    ("cached", ("prompt_tokens_details", "cached_tokens")),
    ("reasoning", ("completion_tokens_details", "reasoning_tokens")),
)


def _token_counts(usage: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    for kind, path in _COUNTS:
        value: Any = usage
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            yield kind, value
