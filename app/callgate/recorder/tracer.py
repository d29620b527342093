"""Decides which requests are traced, and makes spans of those that were."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.http.trace_context import Parent, Trace
from callgate.recorder.exporter import SpanExporter
from callgate.recorder.otlp import encoded_span, request_of
from callgate.recorder.row import Recording
from callgate.recorder.spans import Shown, Span, spans_of, trace_id_of

SPANS: Final = 512
"""Spans of one request to the collector, about, as SDKs have it."""


class Sampling(msgspec.Struct, frozen=True):
    """The settings of sampling."""

    share: float = 1.0
    """Of those that begin a trace; of all, where parents do not decide."""
    parents_decide: bool = True
    """A request that comes with a trace is sampled as that says."""

    def takes(self, parent: Parent | None, trace_id: str) -> bool:
        if parent is not None and self.parents_decide:
            return parent.is_sampled
        return int(trace_id[16:], 16) < round(self.share * (1 << 64))


class Tracer:
    """The port by which a runtime has its requests traced."""

    def __init__(
        self, exporter: SpanExporter, sampling: Sampling, shown: Shown, resource: Mapping[str, Any], version: str
    ) -> None:
        self._exporter = exporter
        self._sampling = sampling
        self._shown = shown
        self._resource = resource
        self._version = version

    def begin(self, run_id: str, parent: Parent | None) -> Trace | None:
        """The trace of a run; None where nothing is to be said of it."""
        trace = Trace(parent, run_id, is_exported=True)
        if self._sampling.takes(parent, trace.trace_id):
            return trace
        if parent is None:
            return None
        flags = parent.flags if self._sampling.parents_decide else 0
        return Trace(msgspec.structs.replace(parent, flags=flags))

    def export(self, traced: Sequence[tuple[Recording, Trace]]) -> None:
        """Have the spans of runs that ended sent. For the recorder's thread."""
        for runs in _in_parts(traced):
            if self._exporter.is_full:
                # Without encoding them: what cannot be sent is not to cost anything. A run is counted as one span at least.
                spans = sum(1 + recording.row.turns + recording.row.calls for recording, _ in runs)
                self._exporter.drop(spans, "backlog", "too many wait to be sent")
                continue
            encoded = [each for recording, trace in runs for each in self._encoded(recording, trace)]
            self._exporter.offer(request_of(encoded, self._resource, self._version), len(encoded))

    def _encoded(self, recording: Recording, trace: Trace) -> Iterator[bytes]:
        trace_id, parent = trace_id_of(recording), trace.parent
        spans: list[Span] = spans_of(recording, trace, self._shown)
        for span in spans:
            yield encoded_span(span, trace_id, "" if parent is None else parent.state)


def _in_parts(traced: Sequence[tuple[Recording, Trace]]) -> Iterator[Sequence[tuple[Recording, Trace]]]:
    part: list[tuple[Recording, Trace]] = []
    size = 0
    for run in traced:
        part.append(run)
        size += 1 + len(run[0].events)
        if size >= SPANS:
            yield part
            part, size = [], 0
    if part:
        yield part
