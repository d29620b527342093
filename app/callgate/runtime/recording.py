"""What is recorded of requests, and which trace they belong to."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from callgate.config.schema import Config
from callgate.http.trace_context import Trace, parent_in
from callgate.recorder.recorder import RecordPolicy, RunRecording
from callgate.recorder.row import RunRow
from callgate.runtime.builders.stores import record_policy_of
from callgate.runtime.prices import Prices
from callgate.runtime.shared import SharedResources

if TYPE_CHECKING:
    from callgate.recorder.tracer import Tracer


class RuntimeRecording:
    """The part of a runtime that records."""

    prices: Prices

    def __init__(self, config: Config, shared: SharedResources) -> None:
        self.recorder = shared.recorder
        self._record_policy = record_policy_of(config)
        self.tracer: Tracer | None = None
        """Set where spans of requests are sent."""
        self._tracing = shared.tracing

    def _records(self, *, with_tools: bool) -> bool:
        """Whether runs are recorded from their beginning, or only when they fail."""
        policy = self._record_policy
        return policy.runs != "off" and (with_tools or policy.passed == "all")

    @property
    def records_errors(self) -> bool:
        return self._record_policy.runs != "off"

    def begin_trace(self, headers: Mapping[str, str], run_id: str) -> Trace | None:
        """What is passed on of a request's trace, from here on in this context."""
        parent = parent_in(headers)
        if self.tracer is not None:
            trace = self.tracer.begin(run_id, parent)
        else:
            trace = None if parent is None else Trace(parent)
        if trace is not None:
            trace.use()
        return trace

    def pass_trace_on(self, headers: Mapping[str, str]) -> None:
        """Pass the trace of a request on as it came, from here on in this context."""
        if (parent := parent_in(headers)) is not None:
            Trace(parent).use()

    def begin_recording(self, row: RunRow, trace: Trace | None = None, *, content: bool = True) -> RunRecording:
        """Record a run; `content` is false where its request wants nothing of it kept."""
        return self.recorder.begin(row, self._policy(content=content), self.prices.at_hand, trace)

    def list_run(self, recording: RunRecording, *, content: bool) -> None:
        """Have a run that is recorded for its spans alone kept as others are."""
        recording.is_listed, recording.policy = True, self._policy(content=content)

    def _policy(self, *, content: bool) -> RecordPolicy:
        return self._record_policy if content else msgspec.structs.replace(self._record_policy, content_bytes=None)
