"""The protocols that the loop depends on: models, toolboxes, listeners. Other packages implement them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal, NewType, Protocol, TypeAlias, final

import msgspec

from callgate.calls.offer import Offer
from callgate.calls.outcome import Outcome
from callgate.calls.states import BrokenCall, Call, ReadyCall
from callgate.conversation.attempts import Attempts
from callgate.conversation.events import ChatEvent, ModelEvent

Message: TypeAlias = msgspec.Raw | dict[str, Any]
"""One message of the history: JSON text as the client sent it, or a dict that we made."""

Emit: TypeAlias = Callable[[ChatEvent], Awaitable[None]]
"""A coroutine function that gets the events of a chat."""
TakeEvents: TypeAlias = Callable[[Sequence[ModelEvent]], Awaitable[None]]
"""Takes a batch of the events of an answer. What it returns has to be awaited before it gets the next one."""

RecordBody: TypeAlias = Callable[[], Callable[[bytes], None]]
"""Begins to record one body; returns the function that takes each read of it."""


JudgedFields = NewType("JudgedFields", Mapping[str, Any])
"""Fields of a request that names only what it may. Lanes take no others, and `callgate.policy` alone makes them."""
NO_FIELDS: Final = JudgedFields({})


LeaveOut: TypeAlias = Callable[[str], None]
"""Is told of a field of the request that a model's provider has no place for, before the answer begins."""


def tell_nobody(name: str) -> None:
    """Stands for whoever is told of fields that are left out, where there is nobody."""


class Original(Protocol):
    """A request in the format of the API it came by, for a model whose provider has that API."""

    @property
    def api(self) -> Literal["messages", "responses"]: ...

    @property
    def is_chat(self) -> bool:
        """Its messages and tools are those of a chat, beside which it has fields of its own."""
        ...

    @property
    def fields(self) -> JudgedFields:
        """The fields of the body, undecoded."""
        ...

    @property
    def betas(self) -> Sequence[str]:
        """The beta features that the client requests."""
        ...

    @property
    def foreign(self) -> Sequence[tuple[str, str]]:
        """Places and types of what Chat Completions cannot express."""
        ...

    @property
    def functions(self) -> Mapping[str, Mapping[str, Any]]:
        """What functions have that those of Chat Completions have not, by their names in the chat."""
        ...

    @property
    def native(self) -> Mapping[str, Mapping[str, Any]]:
        """The tools of its own API for which functions of the chat stand, by the names of those."""
        ...

    @property
    def unplaced(self) -> Sequence[str]:
        """The fields that only its own API has, and that are left out for any other."""
        ...

    def blocks_of(self, message: "Message") -> tuple[str, Sequence[Any]] | None:
        """Return the role and the blocks from which a message of the chat was made; None for one that is not the client's."""
        ...


class DeferredTools(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tools that the model searches for, for a provider that loads what was found itself. Any other is asked as if there were none."""

    find: str
    """The name of the tool that searches."""
    bridge: str
    """The name of the tool by which the model calls what it found, where its provider does not."""
    find_definition: msgspec.Raw
    """The tool that searches, as it is described where the provider loads what it finds."""
    names: frozenset[str]
    definitions: Sequence[msgspec.Raw] = ()
    """The schemas of the tools with these names."""


@final
class ModelRequest(msgspec.Struct, frozen=True, gc=False):
    """One request to a model: the history so far, the offered tools, and the other fields."""

    messages: Sequence[Message]
    tools: Sequence[msgspec.Raw] = ()
    """Each tool's schema as encoded JSON (`{"type":"function",…}`)."""
    tool_choice: Any = None
    params: JudgedFields = NO_FIELDS
    """Every other field of the request, values as msgspec.Raw or plain objects; never model, messages,
    tools, tool_choice or stream."""
    stream: bool = True
    original: Original | None = None
    """The client's own request, where it came by another API than Chat Completions."""
    takes_calls: bool = True
    """False where the client forbids calls (`tool_choice: none`): they are left out of the answer."""
    record_body: "RecordBody | None" = None
    """Records the body of each of its provider's responses, as received."""
    leave_out: LeaveOut = tell_nobody
    """Called by a lane for each field that it leaves out."""
    withheld: Sequence[msgspec.Raw] = ()
    """The tools of earlier turns that this one must not call. A provider that keeps prompts and forbids calls by `tool_choice: none`
    is sent them with that, so that the prompt stays the one that it keeps; any other is sent none."""
    deferred: DeferredTools | None = None
    """The tools that are searched for."""
    is_summary: bool = False
    """It asks for a summary of the conversation, which another model may write."""


@final
class Passthrough(msgspec.Struct, frozen=True, gc=False):
    """A request as the client's own bytes, where none of our tools is offered. A model with the same API sends it on unread,
    and answers with `Passed` where the response has the requested format. Any other model reads it with `as_model_request`."""

    fields: JudgedFields
    """The fields of the body, undecoded."""
    stream: bool
    include_usage: bool
    """Whether the client asked for the usage of a stream."""
    n: int
    """The number of requested choices."""
    has_tools: bool
    read: Callable[[], ModelRequest]
    original: Original | None = None
    """Set where the body is of another API than Chat Completions."""
    takes_calls: bool = True
    """Whether the answer may have calls, as in `ModelRequest`."""
    record_body: "RecordBody | None" = None
    """As in `ModelRequest`."""


class ModelAnswer(Protocol):
    """A model's answer: batches of events, one batch for each read from the connection.

    It ends normally when the body ended with its end mark, and raises `BrokenOff` when the body broke off.
    """

    @property
    def reason_is_raw(self) -> bool:
        """True if finish reasons are the provider's own. It may be known only at the end of the answer."""
        ...

    @property
    def lane(self) -> str:
        """The lane on which the model was reached, as the config names it: `direct`, `translated`, `litellm`."""
        ...

    def hand_to(self, take: TakeEvents) -> None:
        """Hand batches to `take` from within the reads that bring them, while the iteration waits for one, instead of waking it for
        each. An answer that cannot do so does nothing: it is iterated to its end."""
        ...

    def __aiter__(self) -> AsyncIterator[Sequence[ModelEvent]]: ...


def hand_nothing(answer: object, take: TakeEvents) -> None:
    """The `hand_to` of answers that are iterated to their end."""


class Model(Protocol):
    """A model that is asked once, without retries. Errors before the first batch are `ChatError`s."""

    @property
    def name(self) -> str: ...

    def send(self, request: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]: ...


class TurnModel(Protocol):
    """A model as the loop uses it: asked once for a turn, and again where an answer broke off."""

    @property
    def name(self) -> str: ...

    def send(
        self, request: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AbstractAsyncContextManager[ModelAnswer]:
        """Ask the model. `attempts` are those at this turn; with the same object it continues after the failed ones."""
        ...


class TurnTexts(Protocol):
    """Keeps what a model is sent and says, for whoever looks at the chat afterwards."""

    def begin(self, request: ModelRequest | Passthrough) -> ModelRequest | Passthrough:
        """Take a request that is about to be sent, and return it as it is sent. It may be sent again in the same turn."""
        ...

    def end(self, text: str, reasoning: str) -> None:
        """Take what the answer said, as far as it came."""
        ...


class Plan(msgspec.Struct, frozen=True, gc=False):
    """The destination of each settled call of a turn. Each call is in exactly one of the lists."""

    ours: tuple[ReadyCall, ...]
    theirs: tuple[Call, ...]
    """The client's own tools."""
    broken: tuple[BrokenCall, ...]
    postponed: tuple[Call, ...] = ()
    """Calls of either side that are answered instead of run, because only one call of a turn is done."""


class Toolbox(Protocol):
    """The tools of one request."""

    @property
    def offer(self) -> Offer:
        """Every tool the gate may let through, the client's included."""
        ...

    def definitions(self) -> Sequence[msgspec.Raw]:
        """The tools that the model is offered, as `{"type":"function",…}`, encoded."""
        ...

    def plan(self, calls: Sequence[Call]) -> Plan: ...

    def is_clients(self, name: str | None) -> bool:
        """True if a tool of this name came in the request."""
        ...

    def writes(self, call: ReadyCall) -> bool:
        """True if the tool may have side effects, so that the call must not be repeated without need."""
        ...

    def is_ordered(self, call: ReadyCall) -> bool:
        """True if the call waits for those before it in its turn, and those behind it wait for it."""
        ...

    async def run(self, call: ReadyCall, report: "Report", begin: "Begin") -> Outcome:
        """Run one call and bound its result. Never raises for what a tool does; cancelling stops the tool.

        `begin` is awaited once, after the call's approval and before its tool is reached: it waits for the calls before it.
        """
        ...


class ProgressReport(msgspec.Struct, frozen=True, gc=False):
    """How far a call is. Only approvals report what it waits for, and what a person said, never a tool."""

    message: str
    fraction: float | None = None
    waits_for: str = ""
    """The id of the approval that the call waits for."""
    approved: bool = False
    """A person approved the call."""
    decided_by: str = ""
    reason: str = ""
    asks: str = ""
    """The id of the question that the running call waits for an answer to."""
    answer: str = ""
    """What a person filled in, or a result has for the user alone: for the record, and nobody else."""


def waits_for_approval(id: str) -> ProgressReport:
    return ProgressReport(f"waiting for approval {id}", waits_for=id)


def waits_for_input(id: str) -> ProgressReport:
    return ProgressReport(f"waiting for input {id}", asks=id)


def approved_by(name: str, reason: str) -> ProgressReport:
    return ProgressReport("approved", approved=True, decided_by=name, reason=reason)


class Report(Protocol):
    """The function by which a running tool reports progress."""

    async def __call__(self, progress: ProgressReport) -> None: ...


Begin: TypeAlias = Callable[[], Awaitable[None]]
"""Waits until a call may begin."""


async def begin_at_once() -> None:
    """Begin a call that is alone."""


async def emit_nothing(event: object) -> None:
    """Discard an event."""


async def ignore_progress(progress: ProgressReport) -> None:
    """Discard a progress report."""
