"""The events of a chat, as values.

`ModelEvent`s are what a model just did; `upstream` and `dialects` make them out of whatever a provider
sent, and beyond those packages nobody looks at a provider's shapes again. The loop folds them into a `Turn`
and emits `ChatEvent`s to its listeners.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from callgate.calls.outcome import Outcome
from callgate.calls.states import BrokenCall, Call, Finding, Flaw, ReadyCall

# What a model does ------------------------------------------------------------------------------


class ProviderHead(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The provider's fields of the answer as a whole; the first one of a turn counts. Recorded as it is."""

    id: str | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


class PromptedCalling(msgspec.Struct, frozen=True, gc=False):
    """The model was asked for its calls in a prompt, and they are read out of its text: what its finish reason says of
    calls means nothing. No part of the answer itself."""

    format: str
    extra_tokens: int = 0
    """About how many tokens the description of the tools added to the prompt."""


class Passed(msgspec.Struct, frozen=True, gc=False):
    """A piece of the answer in its provider's own bytes, which go to the client as they are: the one body, or whole events
    of a stream. An answer that begins with one has one in every batch, and beside it at most the error that ends it."""

    data: bytes
    reasons: tuple[str, ...] = ()
    """The finish reasons that were noticed in these bytes."""
    usage: Mapping[str, Any] | None = None


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    text: str


class CharactersLost(msgspec.Struct, frozen=True, gc=False):
    """Some of the text that came before this could not be read, and stands in it as U+FFFD. No part of the answer itself."""


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    text: str
    source: Literal["reasoning_content", "reasoning", "thinking", "text"] = "reasoning_content"
    """Where it was found. A turn that has reasoning_content keeps only that (some send both)."""


class CallDelta(msgspec.Struct, frozen=True, gc=False):
    """One fragment of a native tool call, as the provider sent it. Which call it belongs to is the turn's business."""

    index: int | None = None
    id: str | int | float | None = None
    name: str | None = None
    arguments: Any = None
    """Usually a piece of JSON text; some providers send the object itself, or a list, or a number."""
    extras: Mapping[str, Any] = msgspec.field(default_factory=dict)
    legacy: bool = False
    """It came as `function_call`."""
    custom: bool = False
    """A call of a custom tool: what it has for arguments is free text."""


class CallWritten(msgspec.Struct, frozen=True, gc=False):
    """One call that came in one piece: an entry of a whole message, or read out of text."""

    name: str | None
    arguments: Any = None
    id: str | int | float | None = None
    flaw: Flaw | None = None
    """What the reader of the text already knows to be wrong; the gate may find a more precise one."""
    repaired: bool = False
    """The reader took something harmless away (a code fence)."""
    only_text: bool = False
    """The format can carry nothing but text, so turning "5" into 5 is reading and not repair."""
    undeclared_json: bool = False
    """Text that is JSON is meant as JSON in parameters of which the schema says nothing."""
    from_text: bool = False
    """Read out of the model's text: its id is made up unless the format has one."""
    extras: Mapping[str, Any] = msgspec.field(default_factory=dict)
    legacy: bool = False
    custom: bool = False


class CallNotRun(msgspec.Struct, frozen=True, gc=False):
    """A call that stands in the model's text and is none, because it is quoted, repeated or only considered."""

    name: str
    reason: str


NOT_RUN_SHOWN = 20
"""How many of these a log line or an account names; a text may hold thousands."""


class ThinkingBlock(msgspec.Struct, frozen=True, gc=False):
    """A piece of a thinking block (or a whole redacted one); pieces are joined until a signature comes."""

    block: Mapping[str, Any]


class ExtraField(msgspec.Struct, frozen=True, gc=False):
    """A field of the assistant message that we do not read but that belongs to it (refusal, annotations,
    reasoning_details, audio, provider_specific_fields, …). Strings and lists of one field are joined."""

    field: str
    value: Any


class Logprobs(msgspec.Struct, frozen=True, gc=False):
    value: Mapping[str, Any]


class Finished(msgspec.Struct, frozen=True, gc=False):
    """A finish reason as the provider wrote it. A turn may carry several, or none."""

    reason: str


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts as the provider reported them (its own dict, details included)."""

    counts: Mapping[str, Any]


class ProviderError(msgspec.Struct, frozen=True, gc=False):
    """The provider reported an error inside its answer."""

    message: str
    body: Any = None


class ChoiceIgnored(msgspec.Struct, frozen=True, gc=False):
    """Something came for a choice that nobody asked for."""

    index: int


ModelEvent: TypeAlias = (
    ProviderHead
    | PromptedCalling
    | Passed
    | TextDelta
    | CharactersLost
    | ReasoningDelta
    | CallDelta
    | CallWritten
    | CallNotRun
    | ThinkingBlock
    | ExtraField
    | Logprobs
    | Finished
    | Usage
    | ProviderError
    | ChoiceIgnored
)


class StreamEnd(StrEnum):
    """The end of an answer's body, whatever its finish reasons."""

    DONE = "done"
    EOF = "eof"
    ERROR = "error"


# What happens in a chat -------------------------------------------------------------------------


class EndingKind(StrEnum):
    ANSWERED = "answered"
    HANDED_BACK = "handed_back"
    TURN_LIMIT = "turn_limit"
    GAVE_UP = "gave_up"


FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class Ending(msgspec.Struct, frozen=True, gc=False):
    """Why a chat is over, and the one finish reason the client gets."""

    kind: EndingKind
    finish_reason: FinishReason
    note: str = ""


class TurnStarted(msgspec.Struct, frozen=True, gc=False):
    """A model is about to be asked."""

    index: int


class ModelOutput(msgspec.Struct, frozen=True, gc=False):
    """The events of one read of the model's answer, in order."""

    turn: int
    events: Sequence[ModelEvent]


def is_for_listeners(events: Sequence[ModelEvent]) -> bool:
    """True if listeners may need these events, beside the turn. Fragments of calls are shown to nobody, and there may
    be thousands of them."""
    for event in events:  # noqa: SIM110 - a generator would cost more than all the rest that is done with a chunk
        if type(event) is not CallDelta:
            return True
    return False


class Responder(msgspec.Struct, frozen=True, gc=False):
    """The deployment that answers a model request."""

    model: str = ""
    """The name in the config: the model that was asked for, or a fallback of its."""
    deployment: str = ""
    """What litellm calls it: `provider/model`."""
    host: str = ""
    """Where it is; empty where only a library between us and the provider knows."""
    counted_model: str = ""
    counted_as: str = ""
    """What model and deployment may be counted under: of the many that a wildcard stands for, one."""


NOBODY = Responder()


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """A deployment was asked for a turn, and failed; or answered after others had failed, or in the place of one that is
    left alone, or although it was to be left alone itself. Of any other answer at the first attempt there is none: its turn
    says who gave it.

    With a failure, nothing of the turn has been passed on, or nothing more of it will be.
    """

    turn: int
    number: int
    """1 for the first of its turn."""
    by: Responder
    seconds: float
    """Until it failed, or until its first words; without the wait."""
    wait: float = 0.0
    """Seconds that were waited before it."""
    status: int = 0
    """The HTTP status of its answer; 0 where there was none."""
    reason: str = ""
    """The code of the error; empty where it answered."""
    detail: str = ""
    """What the operator should know of the failure."""
    is_refusal: bool = False
    """The deployment did its part: the request was at fault."""
    anyway: bool = False
    """It was to be left alone for having failed, and was asked because there was nobody else."""
    instead_of: str = ""
    """The deployment whose turn it was, and which is left alone."""


class TurnEnded(msgspec.Struct, frozen=True, gc=False):
    """A model's answer is whole and its calls are settled; each call lies in exactly one pile."""

    turn: int
    answer: "TurnAccount"


class TurnAccount(msgspec.Struct, frozen=True, gc=False):
    """The facts of a finished turn for listeners; the turn itself stays with the loop."""

    reasons: tuple[str, ...]
    """The finish reasons as the provider wrote them."""
    findings: tuple[Finding, ...]
    run: tuple[ReadyCall, ...]
    handed_back: tuple[Call, ...]
    broken: tuple[BrokenCall, ...]
    usage: Mapping[str, Any] | None
    seconds: float
    reason_is_raw: bool = True
    """False where a library between us and the provider may have rewritten the finish reason."""
    prompted: PromptedCalling | None = None
    """How the model was asked for calls, where it was asked in its prompt."""
    not_run: tuple[CallNotRun, ...] = ()
    """Calls in the model's text that were quoted, repeated or only considered."""
    lane: str = ""
    """Which way the model was reached; nothing where none was."""
    by: Responder = NOBODY
    """Who answered."""
    attempts: int = 1
    """How often somebody was asked for it."""
    first_seconds: float = 0.0
    """Until the first words, failed attempts and waits included."""
    head: ProviderHead | None = None
    """What the provider says of its answer as a whole."""


BEFORE_ALL_TURNS = -1
"""The turn of calls that are run again because their results are gone."""


class CallStarted(msgspec.Struct, frozen=True, gc=False):
    turn: int
    call: ReadyCall
    writes: bool = True
    """The tool may change the world."""


class CallProgress(msgspec.Struct, frozen=True, gc=False):
    turn: int
    call: ReadyCall
    message: str
    fraction: float | None = None
    waits_for: str = ""
    """The id of the approval that it waits for now."""
    approved: bool = False
    """A person let it run. Who that was stays with the operator."""


class CallEnded(msgspec.Struct, frozen=True, gc=False):
    turn: int
    call: ReadyCall
    outcome: Outcome
    seconds: float


class HiddenTurns(msgspec.Struct, frozen=True, gc=False):
    """The part of a history that its client was not shown."""

    before: tuple[dict[str, Any], ...]
    """Whole turns since the client's last message."""
    assistant: dict[str, Any]
    """The message with the calls that were handed back, as the model wrote it: all calls, reasoning, signatures."""
    results: dict[str, dict[str, Any]]
    """The answers to those of its calls that are not the client's, by id."""
    after: tuple[dict[str, Any], ...] = ()
    """What follows the answers: images, which no tool message can hold."""
    ran: tuple[str, ...] = ()
    """Those of the answered calls that came whole; the others were broken, and their answers say so."""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    """Ids under which the client knows calls, where they are not the model's own."""


class CallsHandedBack(msgspec.Struct, frozen=True, gc=False):
    """The client's own calls of the last turn, as the model sent them."""

    calls: tuple[Call, ...]
    hidden: HiddenTurns | None = None
    """What has to be put back when the client returns with its answers; None when it has seen all there is."""


class LastTurn(Protocol):
    """The turn that a chat ended with."""

    def assistant_message(self) -> dict[str, Any]: ...


class ChatEnded(msgspec.Struct, frozen=True, gc=False):
    ending: Ending
    usage: Mapping[str, Any] | None
    history: Sequence[Any] = ()
    """Every message that led to the last turn: the client's, and those that we made."""
    last: LastTurn | None = None
    """Its message stands in no history yet."""


CANCELLED = "cancelled"


class ChatFailed(msgspec.Struct, frozen=True, gc=False):
    """A chat came to no ending: an error, or nobody waits for it any more. Emitted to listeners alone."""

    reason: str
    """The code of the error, or `cancelled`: its client left, its time was over, or the server stops."""


ChatEvent: TypeAlias = (
    TurnStarted
    | Passed
    | ModelOutput
    | TurnEnded
    | CallStarted
    | CallProgress
    | CallEnded
    | Attempt
    | CallsHandedBack
    | ChatEnded
    | ChatFailed
)
