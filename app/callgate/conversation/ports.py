"""The protocols that the loop depends on: models, toolboxes, listeners. Other packages implement them; the core imports
none of them."""

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
"""Someone listening to a chat."""


class Original(Protocol):
    """A question in the words of the API that it came by, for a model whose provider has that API."""

    @property
    def api(self) -> Literal["messages"]: ...

    @property
    def fields(self) -> Mapping[str, msgspec.Raw]:
        """The body as it came, field by field."""
        ...

    @property
    def betas(self) -> Sequence[str]:
        """The features that the client switches on for its provider."""
        ...

    @property
    def foreign(self) -> Sequence[tuple[str, str]]:
        """Places and types of what a chat has no words for."""
        ...

    def blocks_of(self, message: "Message") -> tuple[str, Sequence[Any]] | None:
        """The role and the blocks that a message of the chat was made from; None for one that was not the client's."""
        ...


class ModelRequest(msgspec.Struct, frozen=True, gc=False):
    """One question to a model: the history so far, the tools on offer, and the request's other fields."""

    messages: Sequence[Message]
    tools: Sequence[msgspec.Raw] = ()
    """Each tool's schema as encoded JSON (`{"type":"function",…}`)."""
    tool_choice: Any = None
    params: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Every other field of the request, values as msgspec.Raw or plain objects; never model, messages,
    tools, tool_choice or stream."""
    stream: bool = True
    original: Original | None = None
    """The same as it came, where it came by another API than chat completions."""


class Passthrough(msgspec.Struct, frozen=True, gc=False):
    """A question in the client's own bytes, asked where none of our tools is on offer. A model whose API has the same shape
    sends it on unread, and answers with `Passed` where what comes back has the shape that was asked for. Any other model
    reads it: `as_read`."""

    fields: Mapping[str, msgspec.Raw]
    """The body, field by field."""
    stream: bool
    include_usage: bool
    """Whether the client asked for the usage of a stream."""
    n: int
    """How many choices it asked for."""
    has_tools: bool
    read: Callable[[], ModelRequest]
    original: Original | None = None
    """Where the body is of another API than chat completions."""


class ModelAnswer(Protocol):
    """A model's answer as it comes: batches of events, one batch for what one read brought.

    It ends normally when the body ended with its end mark, and raises `BrokenOff` when the body broke off.
    """

    @property
    def reason_is_raw(self) -> bool:
        """True if finish reasons are the provider's own. To be asked at the end, which may be when it is known."""
        ...

    @property
    def lane(self) -> str:
        """The lane on which the model was reached, as the config names it: `direct`, `translated`, `litellm`."""
        ...

    def __aiter__(self) -> AsyncIterator[Sequence[ModelEvent]]: ...


class Model(Protocol):
    """Something that can be asked once. Errors before the first batch are `ChatError`s."""

    @property
    def name(self) -> str: ...

    def ask(self, ask: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]: ...


class TurnModel(Protocol):
    """A model as a conversation asks it: once for a turn, and again where an answer broke off."""

    @property
    def name(self) -> str: ...

    def ask(
        self, ask: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AbstractAsyncContextManager[ModelAnswer]:
        """`attempts` are those at this turn; asked with the same ones again, it goes on from where they are."""
        ...


def as_read(question: ModelRequest | Passthrough, api: str = "chat", *, signed: bool = True) -> ModelRequest:
    """The question for a model that reads it and answers with one choice. Raises `SeparateChoices` where more are wanted.

    What came by another API than the model's comes as a chat, if a chat can say it. `signed`: whether the model's provider
    knows thinking with signatures.
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
    """Without what only Anthropic's API knows. Signatures hold for the model alone that made them."""
    if isinstance(message, dict):
        dropped = {BLOCKS, SIGNED} if BLOCKS in message or not signed else {BLOCKS}
        return {name: value for name, value in message.items() if name not in dropped}
    if signed or SIGNED.encode() not in bytes(message):
        return message
    fields = msgspec.json.decode(message, type=dict[str, msgspec.Raw])
    return msgspec.Raw(msgspec.json.encode({name: value for name, value in fields.items() if name != SIGNED}))


class Plan(msgspec.Struct, frozen=True, gc=False):
    """The destination of each settled call of a turn. Each lands in exactly one pile."""

    ours: tuple[ReadyCall, ...]
    theirs: tuple[Call, ...]
    """The client's own tools."""
    broken: tuple[BrokenCall, ...]


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
        """True if the tool may change the world, so that nobody must repeat it lightly."""
        ...

    async def run(self, call: ReadyCall, report: "Report") -> Outcome:
        """Run one call and bound its result. Never raises for what a tool does; cancelling stops the tool."""
        ...


class ApprovalNotice(str):
    """What is reported of a call while a person is asked, and once it may run. The words of a tool are never one."""

    __slots__ = ()

    @property
    def wanted(self) -> str:
        """The id of the question; nothing once the call may run."""
        return self.removeprefix(APPROVAL_WANTED) if self.startswith(APPROVAL_WANTED) else ""


APPROVAL_WANTED = "waiting for approval "
APPROVAL_GIVEN = ApprovalNotice("approved")


class Report(Protocol):
    """The function by which a running tool reports progress."""

    async def __call__(self, message: str, fraction: float | None = None) -> None: ...


async def emit_nothing(event: object) -> None:
    """Take an event that no client is sent."""


async def ignore_progress(message: str, fraction: float | None = None) -> None:
    """Take progress that nobody is sent."""
