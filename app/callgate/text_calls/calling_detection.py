"""Finds out how a model calls tools when they are first offered to it, and remembers it.

`CallingDetector` decides for one deployment: by what is known of the model, by its family, or else by asking it to call a tool
once (`families`). `DetectingModel` goes around the deployment and asks it in that way from then on. A decision that could
not be made, because the model did not answer, is not remembered; such a request goes on with native calls.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import ModelEvent
from callgate.conversation.ports import Model, ModelAnswer, ModelRequest, Passthrough
from callgate.text_calls.families import (
    NATIVE,
    PROBE,
    control_ask,
    format_for,
    judge_probe,
    probe_ask,
    tool_calling_for,
)

REFUSED = frozenset({400, 404, 415, 422, 501, 502})
"""How a server may answer that takes no tools. llama.cpp says 500, which reaches us as 502; so do lost connections."""


@dataclass(frozen=True, slots=True)
class CallingMode:
    """The way in which a model is asked for its calls, and where that was decided."""

    format: str
    """`native`, or the text format it is asked for in a prompt."""
    decided_by: str
    """`config`, `model_info`, `litellm`, `family`, `provider` or `probe`; `nobody` where it could not be found out."""
    detail: str = ""


UNDECIDED = CallingMode(NATIVE, "nobody")

SupportLookup: TypeAlias = Callable[[], Awaitable[bool | None]]
"""What a library knows of native calls of this very model; None if it does not know the model."""


class CallingDetector:
    """Decides how one deployment is asked. `on_decided` is called with the decision, and each time that none could be made."""

    def __init__(
        self,
        model_name: str,
        look_up_support: SupportLookup,
        on_decided: Callable[[CallingMode], None],
        *,
        format: str | None = None,
        may_be_probed: bool = True,
    ) -> None:
        """`format` is what it is asked in should it have no native calls; its family's own if not given. One that may
        not be probed is taken at its provider's word, which is that it calls natively."""
        self.choice: CallingMode | None = None
        self._model_name = model_name
        self._format = format or format_for(model_name)
        self._may_be_probed = may_be_probed
        self._look_up_support = look_up_support
        self._on_decided = on_decided
        self._lock = asyncio.Lock()
        self._failures = 0

    async def foresee(self) -> CallingMode | None:
        """The choice as far as it can be made without asking the model; None where it will be asked."""
        if self.choice is None:
            await self._look_up()
        return self.choice

    async def choose(self, model: Model, *, may_probe: bool) -> CallingMode:
        """The choice. Requests that come while the model is probed wait for it, and share it even where it failed;
        those that may not probe do not need it badly enough to wait."""
        if self.choice is None:
            await self._look_up()
        if self.choice is None and may_probe:
            failures = self._failures
            async with self._lock:
                # One that was cancelled while it asked has decided nothing; the next in line then asks.
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
        """True if another probe has ended since this number was read."""
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
    """A model that is asked natively or in a prompt, as its detector says. `prompted` makes a prompted model of it."""

    def __init__(self, model: Model, detector: CallingDetector, prompted: Callable[[Model, str], Model]) -> None:
        self.name = model.name
        self.detector = detector
        self._model = model
        self._prompted = prompted
        self._settled: Model | None = None

    def ask(self, ask: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]:
        if self._settled is not None:
            return self._settled.ask(ask)
        if isinstance(ask, Passthrough) and not ask.has_tools:
            return self._model.ask(ask)  # there is nothing to call, so that nothing has to be decided for it
        return self._ask(ask)

    @asynccontextmanager
    async def _ask(self, ask: ModelRequest | Passthrough) -> AsyncIterator[ModelAnswer]:
        has_tools = ask.has_tools if isinstance(ask, Passthrough) else bool(ask.tools)
        choice = await self.detector.choose(self._model, may_probe=has_tools)
        model = self._model if choice.format == NATIVE else self._prompted(self._model, choice.format)
        if self.detector.choice is not None:
            self._settled = model
        async with model.ask(ask) as answer:
            yield answer


# The probe ------------------------------------------------------------------------------------------------------------


async def _calls_natively(model: Model) -> bool:
    """True if the model answers an offer of a tool with a native call. Raises what it failed with where that says
    nothing about tools."""
    try:
        return judge_probe(await _answer(model, probe_ask()))
    except ChatError as refusal:
        if refusal.status not in REFUSED:
            raise
    # It may be the tools that were refused, or anything else: the same question without them tells. If that is
    # answered and the first one is refused a second time, it was no passing trouble either.
    await _answer(model, control_ask())
    try:
        return judge_probe(await _answer(model, probe_ask()))
    except ChatError as refusal:
        if refusal.status not in REFUSED:
            raise
    return False


async def _answer(model: Model, ask: ModelRequest) -> Sequence[ModelEvent]:
    async with model.ask(ask) as answer:
        return [event async for batch in answer for event in batch]
