"""Prometheus metrics in a registry of their own.

Labels are names that the operator chose or words of a closed list, never what a client or a model wrote; what is
counted under too many names all the same is counted as `other`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

OTHER: Final = "other"

_MAX_CHILDREN: Final = 2000
"""Time series of one metric. Beyond it something is named that should not be."""

_REQUEST_SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_CALL_SECONDS: Final = (0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60)

Metric = TypeVar("Metric", Counter, Histogram)


class Family(Generic[Metric]):
    """One metric and its children by label values; looking one up costs a dict, not a lock and a search."""

    __slots__ = ("_children", "_metric", "_others")

    def __init__(self, metric: Metric, labels: int) -> None:
        self._metric: Metric = metric
        self._children: dict[tuple[str, ...], Metric] = {}
        self._others = (OTHER,) * labels

    def of(self, *labels: str) -> Metric:
        child = self._children.get(labels)
        if child is None:
            child = self._add(labels)
        return child

    def _add(self, labels: tuple[str, ...]) -> Metric:
        if len(self._children) >= _MAX_CHILDREN and labels != self._others:
            return self.of(*self._others)
        child: Metric = self._metric.labels(*labels)
        self._children[labels] = child
        return child


class Metrics:
    """All that is counted."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
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

    def _counter(self, name: str, says: str, *labels: str) -> Family[Counter]:
        return Family(Counter(f"callgate_{name}", says, labels, registry=self.registry), len(labels))

    def _histogram(self, name: str, says: str, buckets: tuple[float, ...], *labels: str) -> Family[Histogram]:
        metric = Histogram(f"callgate_{name}", says, labels, buckets=buckets, registry=self.registry)
        return Family(metric, len(labels))


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
