"""W3C Trace Context of a request: read from its headers, and added to outgoing requests. Span ids are derived from the run and
its steps, so that outgoing requests and exported spans have the same ones.
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Final

import msgspec

SAMPLED: Final = 1
"""The flag of a sampled trace."""
MOST_STATE: Final = 512
"""Characters of `tracestate` that are passed on, as many as the standard requires; a longer one is dropped."""

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(r"[ -~\t]*")


class Parent(msgspec.Struct, frozen=True):
    """The span that a request was sent from."""

    trace_id: str
    """32 hex digits."""
    span_id: str
    """16 of them."""
    flags: int
    state: str = ""

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & SAMPLED)


def parent_in(headers: Mapping[str, str]) -> Parent | None:
    """Read the trace context in the headers of a request; None where there is no valid one."""
    match = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    if match is None:
        return None
    version, trace_id, span_id, flags, further = match.groups()
    if version == "ff" or (version == "00" and further) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    state = headers.get("tracestate", "")
    readable = len(state) <= MOST_STATE and _STATE.fullmatch(state) is not None
    return Parent(trace_id, span_id, int(flags, 16), state.strip() if readable else "")


def trace_id_for(run_id: str) -> str:
    """Return the trace id for a run without a trace context."""
    return sha256(run_id.encode()).hexdigest()[:32]


def span_id_for(run_id: str, *parts: object) -> str:
    return sha256("\0".join(map(str, (run_id, *parts))).encode()).hexdigest()[:16]


class Trace:
    """The trace context for outgoing requests of this asyncio context.

    For an exported run it names the current span; otherwise the incoming context is passed on unchanged.
    """

    __slots__ = (
        "_choice",
        "headers",
        "is_exported",
        "notes",
        "parent",
        "request",
        "run_id",
        "span_id",
        "trace_id",
    )

    def __init__(self, parent: Parent | None, run_id: str = "", *, is_exported: bool = False) -> None:
        self.parent = parent
        self.run_id = run_id
        self.is_exported = is_exported
        if parent is None:
            self.trace_id = trace_id_for(run_id)
        else:
            self.trace_id = parent.trace_id
        self.request: dict[str, Any] = {}
        """Attributes of the spans of all model requests."""
        self.notes: dict[str, dict[str, Any]] = {}
        """Additional attributes of spans, by span id."""
        self._choice = 0
        self._in_span("" if parent is None else parent.span_id)

    def use(self, choice: int = 0) -> None:
        """Use it for outgoing requests of this context from now on."""
        TRACE.set(self if not (choice and self.is_exported) else self._copy(choice, self.span_id))

    def attempt(self, turn: int, number: int) -> None:
        """Enter the span of a request to a deployment in this context."""
        self._enter("attempt", self._choice, turn, number)

    def call(self, id: str, about: Mapping[str, Any]) -> None:
        """Enter the span of a call in this context; `about` are attributes of it."""
        self._enter("call", self._choice, id).note(about)

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Add to the attributes of the span of this context."""
        if self.is_exported:
            self.notes.setdefault(self.span_id, {}).update(attributes)

    def _enter(self, *parts: object) -> "Trace":
        if not self.is_exported:
            return self
        entered = self._copy(self._choice, span_id_for(self.run_id, *parts))
        TRACE.set(entered)
        return entered

    def _copy(self, choice: int, span_id: str) -> "Trace":
        copy: Trace = Trace.__new__(Trace)
        for name in ("parent", "run_id", "is_exported", "trace_id", "request", "notes"):
            setattr(copy, name, getattr(self, name))
        copy._choice = choice
        copy._in_span(span_id)
        return copy

    def _in_span(self, span_id: str) -> None:
        self.span_id = span_id
        parent = self.parent
        if self.is_exported:
            flags = SAMPLED
        elif parent is None:
            flags = 0
        else:
            flags = parent.flags
        if span_id:
            self.headers = {"traceparent": f"00-{self.trace_id}-{span_id}-{flags:02x}"}
        else:
            self.headers = {}
        if parent is not None and parent.state:
            self.headers["tracestate"] = parent.state


TRACE: Final[ContextVar[Trace | None]] = ContextVar("trace", default=None)
"""The trace of this context."""


def trace_headers() -> Mapping[str, str]:
    """Return the trace headers for a request of this context."""
    trace = TRACE.get()
    if trace is None:
        return {}
    return trace.headers
