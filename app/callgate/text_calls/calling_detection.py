"""Finds out how a model calls tools when they are first offered to it, and keeps the result.

`CallingDetector` decides for one deployment: by what is known about the model, by its family, or else by a probe, a request to
call a tool (`families`). `DetectingModel` wraps the deployment and asks it accordingly. If the probe got no answer the result
is not kept, and the request uses native calls.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import msgspec

from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import ModelEvent
from callgate.conversation.ports import Model, ModelAnswer, ModelRequest, Passthrough
from callgate.text_calls.families import (
    NATIVE,
    PROBE,
    control_request,
    format_for,
    judge_probe,
    probe_request,
    tool_calling_for,
)

REFUSED = frozenset({400, 404, 415, 422, 501, 502})
"""Statuses of servers that refuse tools. llama.cpp sends 500, which becomes 502 here, as do lost connections."""


class CallingMode(msgspec.Struct, frozen=True):
    """How a model is asked for calls, and how that was decided."""

    format: str
    """`native`, or a text format that is described in a prompt."""
    decided_by: str
    """`config`, `model_info`, `litellm`, `family`, `provider` or `probe`; `nobody` where it is unknown."""
    detail: str = ""


UNDECIDED = CallingMode(NATIVE, "nobody")

SupportLookup: TypeAlias = Callable[[], Awaitable[bool | None]]
"""Looks up native calls of this model in litellm's list; None if it is not listed."""


class CallingDetector:
    """Decides how one deployment is asked. `on_decided` is called with each decision, failed ones included."""

    def __init__(
        self,
        model_name: str,
        look_up_support: SupportLookup,
        on_decided: Callable[[CallingMode], None],
        *,
        format: str | None = None,
        may_be_probed: bool = True,
    ) -> None:
        """`format`: the text format if it has no native calls; by default that of its family. Without `may_be_probed` native
        calls are assumed, as its provider documents."""
        self.choice: CallingMode | None = None
        self._model_name = model_name
        self._format = format or format_for(model_name)
        self._may_be_probed = may_be_probed
        self._look_up_support = look_up_support
        self._on_decided = on_decided
        self._lock = asyncio.Lock()
        self._failures = 0

    async def predict(self) -> CallingMode | None:
        """Return the choice that is made without a probe; None where the model will be probed."""
        if self.choice is None:
            await self._look_up()
        return self.choice

    async def choose(self, model: Model, *, may_probe: bool) -> CallingMode:
        """Return the choice. Requests during a probe wait for it, and share its result, also a failure; those that may not
        probe do not wait."""
        if self.choice is None:
            await self._look_up()
        if self.choice is None and may_probe:
            failures = self._failures
            async with self._lock:
                # A cancelled probe has decided nothing; the next request probes.
                if not self._is_answered(failures):
                    try:
                        can = await _calls_natively(model)
                    except (ChatError, BrokenOff) as failure:
                        self._failures += 1
                        self._on_decided(CallingMode(NATIVE, "nobody", str(failure)))
                    else:
                        self._settle(CallingMode(NATIVE if can else self._format, "probe"))
        return self.choice or UNDECIDED

    def _is_answered(self, failures: int) -> bool:
        """True if another probe has failed since this number was read."""
        return self.choice is not None or self._failures != failures

    async def _look_up(self) -> None:
        supports = await self._look_up_support()
        calling = tool_calling_for(self._model_name, supports)
        if calling == PROBE and not self._may_be_probed:
            self._settle(CallingMode(NATIVE, "provider"))
        elif calling != PROBE:
            format = NATIVE if calling == NATIVE else self._format
            self._settle(CallingMode(format, "family" if supports is None else "litellm"))

    def _settle(self, choice: CallingMode) -> None:
        if self.choice is None:
            self.choice = choice
            self._on_decided(choice)


class DetectingModel:
    """A model that is asked natively or in a prompt, by its detector. `prompted` wraps it in a prompted model."""

    def __init__(self, model: Model, detector: CallingDetector, prompted: Callable[[Model, str], Model]) -> None:
        self.name = model.name
        self.detector = detector
        self._model = model
        self._prompted = prompted
        self._settled: Model | None = None

    def send(self, request: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]:
        if self._settled is not None:
            return self._settled.send(request)
        if type(request) is Passthrough and not request.has_tools:
            return self._model.send(request)  # there are no tools, so that no decision is needed
        return self._send(request)

    @asynccontextmanager
    async def _send(self, request: ModelRequest | Passthrough) -> AsyncIterator[ModelAnswer]:
        if type(request) is Passthrough:
            has_tools = request.has_tools
        else:
            has_tools = bool(request.tools)
        choice = await self.detector.choose(self._model, may_probe=has_tools)
        if choice.format == NATIVE:
            model = self._model
        else:
            model = self._prompted(self._model, choice.format)
        if self.detector.choice is not None:
            self._settled = model
        async with model.send(request) as answer:
            yield answer


# The probe ------------------------------------------------------------------------------------------------------------


async def _calls_natively(model: Model) -> bool:
    """True if the model answers the probe with a native call. Raises its error where that is not about tools."""
    try:
        return judge_probe(await _answer(model, probe_request()))
    except ChatError as refusal:
        if refusal.status not in REFUSED:
            raise
    # To find out whether the tools were refused, the same request is sent without them. If that is answered and the first
    # one is refused a second time, it was the tools.
    await _answer(model, control_request())
    try:
        return judge_probe(await _answer(model, probe_request()))
    except ChatError as refusal:
        if refusal.status not in REFUSED:
            raise
    return False


async def _answer(model: Model, request: ModelRequest) -> Sequence[ModelEvent]:
    async with model.send(request) as answer:
        return [event async for batch in answer for event in batch]
