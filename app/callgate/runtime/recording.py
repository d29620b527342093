"""Decides what is recorded of requests, and begins their traces."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from callgate.config.schema import Config
from callgate.http.trace_context import Trace, parent_in
from callgate.recorder.recording import NOT_KEPT, RecordPolicy
from callgate.runtime.builders.stores import record_policy_of
from callgate.runtime.prices import Prices
from callgate.runtime.shared import SharedResources
from callgate.tools.tool_filter import glob_matches

if TYPE_CHECKING:
    from callgate.recorder.tracer import Tracer


class RuntimeRecording:
    """The part of a runtime that records."""

    prices: Prices

    def __init__(self, config: Config, shared: SharedResources) -> None:
        self.recorder = shared.recorder
        self._less = config.record.less
        self._record_as(record_policy_of(config))
        self.tracer: Tracer | None = None
        """Set where spans of requests are sent."""
        self._tracing = shared.tracing

    def _record_as(self, policy: RecordPolicy) -> None:
        self._record_policy = policy
        # The policy of all requests; None where it depends on the key, the model or the request.
        self.common_policy = None if self._less or policy.content_bytes is not None else policy

    def _records(self, *, with_tools: bool) -> bool:
        """True if runs are recorded, from the beginning or only when they fail."""
        policy = self._record_policy
        return policy.runs != "off" and (with_tools or policy.passed == "all")

    def record_policy(self, key: str, models: Sequence[str] = (), *, content: bool = True) -> RecordPolicy:
        """Return what is recorded of a request with this key. `models`: the names of its model, as the client and as the config
        write it. `content`: false where the request wants no content stored."""
        for less in self._less:
            if _fits(less.keys, (key,)) and _fits(less.models, models):
                if less.keep == "off":
                    return NOT_KEPT
                content = False
        return self._record_policy if content else msgspec.structs.replace(self._record_policy, content_bytes=None)

    def begin_trace(self, headers: Mapping[str, str], run_id: str) -> Trace | None:
        """Begin a request's trace in this context."""
        parent = parent_in(headers)
        if self.tracer is not None:
            trace = self.tracer.begin(run_id, parent)
        else:
            trace = None if parent is None else Trace(parent)
        if trace is not None:
            trace.use()
        return trace

    def pass_trace_on(self, headers: Mapping[str, str]) -> None:
        """Pass the incoming trace of a request on unchanged, from now on in this context."""
        if (parent := parent_in(headers)) is not None:
            Trace(parent).use()


def _fits(globs: Sequence[str], names: Sequence[str]) -> bool:
    return not globs or any(glob_matches(glob, name) for glob in globs for name in names)
