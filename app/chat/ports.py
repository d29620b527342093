"""What the loop needs from the world, as protocols. Other rooms implement them; the core imports none of them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import msgspec

from app.calls.offer import Offer
from app.calls.outcome import Outcome
from app.calls.states import BrokenCall, Call, ReadyCall
from app.chat.events import ChatEvent, ModelEvent

Message: TypeAlias = msgspec.Raw | dict[str, Any]
"""One message of the history: JSON text as the client sent it, or a dict that we made."""

Tell: TypeAlias = Callable[[ChatEvent], Awaitable[None]]
"""Someone listening to a chat."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One question to a model: the history so far, the tools on offer, and the request's other fields."""

    messages: Sequence[Message]
    tools: Sequence[msgspec.Raw] = ()
    """Each tool's schema as encoded JSON (`{"type":"function",…}`)."""
    tool_choice: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    """Every other field of the request, values as msgspec.Raw or plain objects; never model, messages,
    tools, tool_choice or stream."""
    stream: bool = True


class Answer(Protocol):
    """A model's answer as it comes: batches of events, one batch for what one read brought.

    It ends normally when the body ended with its end mark, and raises `BrokenOff` when the body broke off.
    """

    reason_is_raw: bool

    def __aiter__(self) -> AsyncIterator[Sequence[ModelEvent]]: ...


class Model(Protocol):
    """Something that can be asked. Errors before the first batch are `ChatError`s."""

    @property
    def name(self) -> str: ...

    def ask(self, ask: Ask) -> AbstractAsyncContextManager[Answer]: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each settled call of a turn goes. Each lands in exactly one pile."""

    ours: tuple[ReadyCall, ...]
    theirs: tuple[Call, ...]
    """The client's own tools."""
    broken: tuple[BrokenCall, ...]


class Toolbox(Protocol):
    """The tools of one request."""

    offer: Offer
    """Every tool the gate may let through, the client's included."""
    schemas: Sequence[msgspec.Raw]
    """What the model is offered, encoded."""

    def plan(self, calls: Sequence[Call]) -> Plan: ...

    def is_clients(self, name: str | None) -> bool:
        """Whether a tool of this name came in the request."""
        ...

    def writes(self, call: ReadyCall) -> bool:
        """Whether the tool may change the world, so that nobody must repeat it lightly."""
        ...

    async def run(self, call: ReadyCall, report: "Report") -> Outcome:
        """Run one call and bound its result. Never raises for what a tool does; cancelling stops the tool."""
        ...


class Report(Protocol):
    """How a running tool says how far it is."""

    async def __call__(self, message: str, fraction: float | None = None) -> None: ...
