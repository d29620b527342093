"""The API for authors of Python tools: `@tool`, `@start`, `@stop`, `Context`, `ToolError`. Imports nothing large, so that tools load fast."""

import inspect
from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from callgate.calls.json_text import sound_text
from callgate.calls.outcome import FailureKind
from callgate.calls.states import ReadyCall
from callgate.conversation.ports import ProgressReport, Report
from callgate.tools.executor import CallContext, Policy, Safety

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Event

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "__callgate_tool__"
_HOOK = "__callgate_hook__"
_PROGRESS_KEPT = 100
"""Queued progress messages; beyond that the oldest are dropped."""


class ToolError(Exception):
    """Raised by a tool with a message for the model."""

    def __init__(self, message: str, kind: FailureKind = FailureKind.RAISED) -> None:
        super().__init__(message)
        self.kind = kind


class Context:
    """The context of a tool's call, passed to a parameter annotated `Context`, which the model does not see."""

    def __init__(self, call: ReadyCall, call_context: CallContext) -> None:
        import asyncio  # slow to load, and loaded by the time that a tool runs

        from callgate.http.trace_context import trace_headers

        self.call_id = call.id
        self.run_id = call_context.run_id
        self.turn = call_context.turn
        self.idempotency_key = call_context.key
        """The same for all attempts of this call, and different for all other calls."""
        self.traceparent = trace_headers().get("traceparent", "")
        """The W3C `traceparent` of this call's span, for the tool's own requests; empty without a trace."""
        self._progress = _ToolProgress(asyncio.get_running_loop(), asyncio.Event())

    def progress(self, message: str | None = None, fraction: float | None = None) -> None:
        """Report progress as a message, as a fraction of 1, or both. Thread-safe, and never blocks."""
        self._progress.add("" if message is None else message, fraction)


class _ToolProgress:
    """The queue of a tool's progress messages."""

    def __init__(self, loop: "AbstractEventLoop", there_is_some: "Event") -> None:
        self._pending: deque[tuple[str, float | None]] = deque(maxlen=_PROGRESS_KEPT)
        self._loop = loop
        self._there_is_some = there_is_some
        self._closed = False

    def add(self, message: str, fraction: float | None) -> None:
        if self._closed:
            return
        self._pending.append((sound_text(str(message)), None if fraction is None else float(fraction)))
        try:
            self._loop.call_soon_threadsafe(self._there_is_some.set)
        except RuntimeError:
            self._closed = True  # the event loop is closed, and this is an abandoned thread

    async def forward(self, report: Report) -> None:
        """Report each message, until cancelled."""
        while True:
            await self._there_is_some.wait()
            self._there_is_some.clear()
            await self.flush(report)

    async def flush(self, report: Report) -> None:
        while self._pending:
            message, fraction = self._pending.popleft()
            await report(ProgressReport(message, fraction))

    def close(self) -> None:
        self._closed = True


def progress_of(context: Context) -> _ToolProgress:
    """Return the progress queue of a context, for the executor."""
    return context._progress  # noqa: SLF001 - the same module


class Mark(msgspec.Struct, frozen=True):
    """The arguments of `@tool`."""

    name: str | None = None
    description: str | None = None
    policy: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Fields of `Policy`."""


@overload
def tool(function: Function, /) -> Function: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    safety: Safety | str | None = None,
    timeout: float | None = None,
    concurrency: int | None = None,
    max_result_bytes: int | None = None,
    require_approval: bool | None = None,
    retries: int | None = None,
    in_order: bool | None = None,
    untrusted: bool | None = None,
) -> Callable[[Function], Function]: ...


def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    safety: Safety | str | None = None,
    **policy: Any,
) -> Function | Callable[[Function], Function]:
    """Mark a function as a tool. The function itself is not changed."""
    unknown = policy.keys() - _POLICY_FIELDS
    if unknown:
        raise TypeError(f"tool() knows no {', '.join(sorted(unknown))}")
    fields = {key: value for key, value in policy.items() if value is not None}
    if safety is not None:
        fields["safety"] = Safety(safety)
        fields["safety_is_given"] = True
    mark = Mark(name, description, fields)

    def marked(function: Function) -> Function:
        setattr(function, _MARK, mark)
        return function

    if function is None:
        return marked
    return marked(function)


_POLICY_FIELDS = frozenset(Policy.__struct_fields__) - {"safety_is_given"}


def mark_of(function: Any) -> Mark | None:
    mark = getattr(function, _MARK, None)
    if isinstance(mark, Mark):
        return mark
    return None


class Hook(StrEnum):
    """When a function of a module is run, beside its tools."""

    START = "start"
    STOP = "stop"


def start(function: Function) -> Function:
    """Have a function without parameters run before the first call of the tools of its module, once in each process."""
    return _hooked(function, Hook.START)


def stop(function: Function) -> Function:
    """Have a function without parameters run after the last call of the tools of its module, when the server ends."""
    return _hooked(function, Hook.STOP)


def _hooked(function: Function, hook: Hook) -> Function:
    if not inspect.isfunction(function):
        raise TypeError(f"@{hook} goes above a function, without parentheses")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__name__} is a generator, and @{hook} marks a function that ends")
    required = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    if required:
        raise TypeError(
            f"{function.__name__} takes {', '.join(required)}, and @{hook} marks a function without parameters"
        )
    setattr(function, _HOOK, hook)
    return function


def hook_of(function: Any) -> Hook | None:
    hook = getattr(function, _HOOK, None) if inspect.isfunction(function) else None
    if isinstance(hook, Hook):
        return hook
    return None
