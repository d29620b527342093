"""Begins the trace of a request, and passes on that of its sender."""

from collections.abc import Mapping

from callgate.http.trace_context import Trace, parent_in
from callgate.records.ports import RequestTracer


class RequestTraces:
    """The traces of a runtime's requests."""

    def __init__(self) -> None:
        self.tracer: RequestTracer | None = None
        """None where spans of requests are not sent."""

    def begin(self, headers: Mapping[str, str], run_id: str) -> Trace | None:
        """Begin a request's trace in this context."""
        parent = parent_in(headers)
        trace: Trace | None = None
        if self.tracer is not None:
            trace = self.tracer.begin(run_id, parent)
        elif parent is not None:
            trace = Trace(parent)
        if trace is not None:
            trace.use()
        return trace

    def pass_on(self, headers: Mapping[str, str]) -> None:
        """Pass the incoming trace of a request on unchanged, from now on in this context."""
        if (parent := parent_in(headers)) is not None:
            Trace(parent).use()
