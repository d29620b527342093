"""Decides which requests are traced, and exports their spans."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.http.trace_context import Parent, Trace
from callgate.recorder.exporter import SpanExporter
from callgate.recorder.otlp import encoded_span, request_of
from callgate.recorder.spans import Span, SpanOptions, spans_of, trace_id_of
from callgate.records.row import RecordedRun

SPANS: Final = 512
"""About how many spans one request to the collector has, as in OpenTelemetry's SDKs."""


class Sampling(msgspec.Struct, frozen=True):
    """The settings of sampling."""

    share: float = 1.0
    """The share of requests without a trace that is sampled; of all requests if `parents_decide` is False."""
    parents_decide: bool = True
    """Follow the sampling decision of a request that has a trace."""

    def takes(self, parent: Parent | None, trace_id: str) -> bool:
        if parent is not None and self.parents_decide:
            return parent.is_sampled
        return int(trace_id[16:], 16) < round(self.share * (1 << 64))


class Tracer:
    """Traces the requests of a runtime."""

    def __init__(
        self,
        exporter: SpanExporter,
        sampling: Sampling,
        options: SpanOptions,
        resource: Mapping[str, Any],
        version: str,
    ) -> None:
        self._exporter = exporter
        self._sampling = sampling
        self._options = options
        self._resource = resource
        self._version = version

    def begin(self, run_id: str, parent: Parent | None) -> Trace | None:
        """Return the trace of a run; None if it is not sampled and has no parent to pass on."""
        trace = Trace(parent, run_id, is_exported=True)
        if self._sampling.takes(parent, trace.trace_id):
            return trace
        if parent is None:
            return None
        flags = parent.flags if self._sampling.parents_decide else 0
        return Trace(msgspec.structs.replace(parent, flags=flags))

    def export(self, traced: Sequence[tuple[RecordedRun, Trace]]) -> None:
        """Queue the spans of ended runs for sending. Called in the recorder's thread."""
        for runs in _in_parts(traced):
            if self._exporter.is_full:
                # They are not encoded, to save time, so the number of spans is an estimate.
                spans = sum(1 + recording.row.turns + recording.row.calls for recording, _ in runs)
                self._exporter.drop(spans, "backlog", "too many wait to be sent")
                continue
            encoded = [span for recording, trace in runs for span in self._encoded(recording, trace)]
            self._exporter.offer(request_of(encoded, self._resource, self._version), len(encoded))

    def _encoded(self, recording: RecordedRun, trace: Trace) -> Iterator[bytes]:
        trace_id = trace_id_of(recording)
        parent = trace.parent
        spans: list[Span] = spans_of(recording, trace, self._options)
        for span in spans:
            yield encoded_span(span, trace_id, "" if parent is None else parent.state)


def _in_parts(traced: Sequence[tuple[RecordedRun, Trace]]) -> Iterator[Sequence[tuple[RecordedRun, Trace]]]:
    part: list[tuple[RecordedRun, Trace]] = []
    size = 0
    for run in traced:
        part.append(run)
        size += 1 + len(run[0].events)
        if size >= SPANS:
            yield part
            part = []
            size = 0
    if part:
        yield part
