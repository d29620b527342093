"""The protocols that the loop depends on: models, toolboxes, listeners. Other packages implement them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from callgate.calls.offer import Offer
from callgate.calls.outcome import Outcome
from callgate.calls.states import BrokenCall, Call, ReadyCall
from callgate.conversation.attempts import Attempts
from callgate.conversation.errors import ChatError, SeparateChoices
from callgate.conversation.events import ChatEvent, ModelEvent
from callgate.conversation.messages_api import BLOCKS, SIGNED

Message: TypeAlias = msgspec.Raw | dict[str, Any]
"""One message of the history: JSON text as the client sent it, or a dict that we made."""

Emit: TypeAlias = Callable[[ChatEvent], Awaitable[None]]
"""A coroutine function that gets the events of a chat."""


class Original(Protocol):
    """A request in the format of the API it came by, for a model whose provider has that API."""

    @property
    def api(self) -> Literal["messages"]: ...

    @property
    def fields(self) -> Mapping[str, msgspec.Raw]:
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

    def blocks_of(self, message: "Message") -> tuple[str, Sequence[Any]] | None:
        """Return the role and the blocks from which a message of the chat was made; None for one that is not the client's."""
        ...


class ModelRequest(msgspec.Struct, frozen=True, gc=False):
    """One request to a model: the history so far, the offered tools, and the other fields."""

    messages: Sequence[Message]
    tools: Sequence[msgspec.Raw] = ()
    """Each tool's schema as encoded JSON (`{"type":"function",…}`)."""
    tool_choice: Any = None
    params: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Every other field of the request, values as msgspec.Raw or plain objects; never model, messages,
    tools, tool_choice or stream."""
    stream: bool = True
    original: Original | None = None
    """The client's own request, where it came by another API than Chat Completions."""
    takes_calls: bool = True
    """False where the client forbids calls (`tool_choice: none`): they are left out of the answer."""


class Passthrough(msgspec.Struct, frozen=True, gc=False):
    """A request as the client's own bytes, where none of our tools is offered. A model with the same API sends it on unread,
    and answers with `Passed` where the response has the requested format. Any other model reads it with `as_read`."""

    fields: Mapping[str, msgspec.Raw]
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

    def __aiter__(self) -> AsyncIterator[Sequence[ModelEvent]]: ...


class Model(Protocol):
    """A model that is asked once, without retries. Errors before the first batch are `ChatError`s."""

    @property
    def name(self) -> str: ...

    def ask(self, ask: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]: ...


class TurnModel(Protocol):
    """A model as the loop uses it: asked once for a turn, and again where an answer broke off."""

    @property
    def name(self) -> str: ...

    def ask(
        self, ask: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AbstractAsyncContextManager[ModelAnswer]:
        """Ask the model. `attempts` are those at this turn; with the same object it continues after the failed ones."""
        ...


def as_read(question: ModelRequest | Passthrough, api: str = "chat", *, signed: bool = True) -> ModelRequest:
    """Return the request for a model that reads it and answers with one choice. Raises `SeparateChoices` where more are
    requested.

    A request of another API than the model's is converted to Chat Completions, or refused where that cannot express it.
    `signed`: whether the model's provider takes thinking with signatures.
    """
    if not isinstance(question, ModelRequest):
        if question.n > 1:
            raise SeparateChoices
        question = question.read()
    if question.original is None or question.original.api == api:
        return question
    for where, kind in question.original.foreign:
        message = f"{where}: only a model behind Anthropic's own API understands `{kind[:64]}`, and this one is not"
        raise ChatError(400, message, param=where, code="unsupported_content")
    messages = [_fit_for_chats(message, signed=signed) for message in question.messages]
    return replace(question, messages=messages, original=None)


def _fit_for_chats(message: Message, *, signed: bool) -> Message:
    """Remove what only Anthropic's API has. Signatures are valid only for the model that made them."""
    if isinstance(message, dict):
        dropped = {BLOCKS, SIGNED} if BLOCKS in message or not signed else {BLOCKS}
        return {name: value for name, value in message.items() if name not in dropped}
    if signed or SIGNED.encode() not in bytes(message):
        return message
    fields = msgspec.json.decode(message, type=dict[str, msgspec.Raw])
    return msgspec.Raw(msgspec.json.encode({name: value for name, value in fields.items() if name != SIGNED}))


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

    @property
    def schemas(self) -> Sequence[msgspec.Raw]:
        """The schemas of the tools that the model is offered, encoded."""
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


class ApprovalNotice(str):
    """The progress message of a call that waits for approval, and once it is approved. A tool's own message never has this
    type."""

    __slots__ = ()

    @property
    def wanted(self) -> str:
        """The id of the approval; empty once the call is approved."""
        return self.removeprefix(APPROVAL_WANTED) if self.startswith(APPROVAL_WANTED) else ""


APPROVAL_WANTED = "waiting for approval "
APPROVAL_GIVEN = ApprovalNotice("approved")


class Report(Protocol):
    """The function by which a running tool reports progress."""

    async def __call__(self, message: str, fraction: float | None = None) -> None: ...


Begin: TypeAlias = Callable[[], Awaitable[None]]
"""Waits until a call may begin."""


async def begin_at_once() -> None:
    """Begin a call that is alone."""


async def emit_nothing(event: object) -> None:
    """Discard an event."""


async def ignore_progress(message: str, fraction: float | None = None) -> None:
    """Discard a progress report."""
