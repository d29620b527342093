"""The events of a chat, as values.

`ModelEvent`s are the parts of a model's answer. `upstream` and `text_calls` make them out of what a provider sent; other
packages never see a provider's formats. The loop folds them into a `Turn` and emits `ChatEvent`s to its listeners.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias, final

import msgspec

from callgate.calls.outcome import Outcome
from callgate.calls.states import BrokenCall, Call, Finding, Flaw, ReadyCall
from callgate.conversation.finish_words import Meaning
from callgate.conversation.usage import TokenCounts, Usage, UsageScope

# What a model does ------------------------------------------------------------------------------


class ProviderHead(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The provider's fields of the answer as a whole; the first one of a turn counts. The recorder stores it unchanged."""

    id: str | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


class PromptedCalling(msgspec.Struct, frozen=True, gc=False):
    """The tools were described in the prompt, and calls are read out of the model's text, so that the finish reason says
    nothing about calls. Not part of the answer itself."""

    format: str
    extra_tokens: int = 0
    """About how many tokens the description of the tools added to the prompt."""


class Passed(msgspec.Struct, frozen=True, gc=False):
    """A piece of the answer as its provider's bytes, which go to the client unchanged: the whole body, or whole events of a
    stream. An answer that begins with one has one in every batch, and besides it at most the error that ends it."""

    data: bytes
    reasons: "tuple[Finished, ...]" = ()
    """The finish reasons that were noticed in these bytes."""
    usage: Usage | None = None
    left_out: "tuple[CallNotRun, ...]" = ()
    """All calls so far that were left out of the stream because calls are forbidden. With the first of them the bytes are no
    longer the provider's own."""


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    text: str


class CharactersLost(msgspec.Struct, frozen=True, gc=False):
    """Some of the text before this could not be decoded and was replaced by U+FFFD. Not part of the answer itself."""


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    text: str
    source: Literal["reasoning_content", "reasoning", "thinking", "text"] = "reasoning_content"
    """The field it came in. A turn with reasoning_content keeps only that (some providers send both)."""


class CallDelta(msgspec.Struct, frozen=True, gc=False):
    """One fragment of a native tool call, as the provider sent it. `call_assembly` decides which call it belongs to."""

    index: int | None = None
    id: str | int | float | None = None
    name: str | None = None
    arguments: Any = None
    """Usually a piece of JSON text; some providers send the object itself, or a list, or a number."""
    extras: Mapping[str, Any] = msgspec.field(default_factory=dict)
    legacy: bool = False
    """It came as `function_call`."""
    custom: bool = False
    """A call of a custom tool: its arguments are free text."""
    at_once: bool = False
    """Its arguments came as an object, which does not show whether they were cut, and nothing came behind them."""


class CallWritten(msgspec.Struct, frozen=True, gc=False):
    """One call that came in one piece: an entry of a whole message, or read out of text."""

    name: str | None
    arguments: Any = None
    id: str | int | float | None = None
    flaw: Flaw | None = None
    """The flaw that the reader of the text found; the gate may find a more precise one."""
    repaired: bool = False
    """The reader removed something harmless (a code fence)."""
    only_text: bool = False
    """The format has no types but text, so that converting "5" to 5 is no repair."""
    undeclared_json: bool = False
    """JSON text is parsed in parameters without a schema."""
    from_text: bool = False
    """Read out of the model's text: its id is generated unless the format has ids."""
    is_alone: bool = True
    """No prose stands behind the calls of the text."""
    extras: Mapping[str, Any] = msgspec.field(default_factory=dict)
    legacy: bool = False
    custom: bool = False
    at_once: bool = True
    """Nothing shows whether its arguments were cut. False where something came behind it."""


class CallNotRun(msgspec.Struct, frozen=True, gc=False):
    """A call that was left out: text that looks like one and is quoted, repeated or part of the model's reasoning, or a call
    where calls are forbidden."""

    name: str
    reason: str


class CallsNotAlone(msgspec.Struct, frozen=True, gc=False):
    """The text goes on behind its last call. This is all that comes after this event as it was written, with the calls: the
    text of the answer if they were only shown."""

    text: str


FORBIDDEN = "forbidden"
"""The reason of a `CallNotRun` for a call where calls are forbidden."""
NOT_RUN_SHOWN = 20
"""How many of these a log line or a report names; a text may hold thousands."""


class ThinkingBlock(msgspec.Struct, frozen=True, gc=False):
    """A piece of a thinking block (or a whole redacted one); pieces are joined until a signature comes."""

    block: Mapping[str, Any]


class ExtraField(msgspec.Struct, frozen=True, gc=False):
    """A field of the assistant message that is only passed along (refusal, annotations, reasoning_details, audio,
    provider_specific_fields, …). Strings and lists of one field are joined."""

    field: str
    value: Any


class Logprobs(msgspec.Struct, frozen=True, gc=False):
    value: Mapping[str, Any]


class Finished(msgspec.Struct, frozen=True, gc=False):
    """A finish reason as the provider wrote it. A turn may carry several, or none."""

    reason: str
    meaning: Meaning | None = None
    """Its meaning by the list of its provider or of the operator; None where it is that of OpenAI-shaped APIs."""


class ProviderError(msgspec.Struct, frozen=True, gc=False):
    """The provider reported an error inside its answer."""

    message: str
    body: Any = None


class EndNotSeen(msgspec.Struct, frozen=True, gc=False):
    """Nobody saw how the provider ended the answer, so that no call of it may run. Not part of the answer itself."""


class ChoiceIgnored(msgspec.Struct, frozen=True, gc=False):
    """The provider sent a choice that was not requested."""

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
    | CallsNotAlone
    | ThinkingBlock
    | ExtraField
    | Logprobs
    | Finished
    | Usage
    | ProviderError
    | ChoiceIgnored
    | EndNotSeen
)


class StreamEnd(StrEnum):
    """How an answer's body ended, independent of its finish reasons."""

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
    """True if listeners may need these events before the turn ends. Fragments of calls are not shown, and there may be
    thousands of them."""
    for event in events:  # noqa: SIM110 - a generator would cost more than all the rest that is done with a chunk
        if type(event) is not CallDelta:
            return True
    return False


class Responder(msgspec.Struct, frozen=True, gc=False):
    """The deployment that answers a model request."""

    model: str = ""
    """The name in the config: the requested model, or one of its fallbacks."""
    deployment: str = ""
    """Its name for litellm: `provider/model`."""
    host: str = ""
    """Its host; empty where only litellm knows it."""
    counted_model: str = ""
    counted_as: str = ""
    """The labels of model and deployment in metrics: one for all models that a wildcard matches."""


NO_RESPONDER = Responder()


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """A deployment was asked for a turn, and failed; or it answered after others had failed, or instead of one that is
    cooling down, or while cooling down itself. Any other answer at the first attempt has none: the turn names its
    deployment.

    With a failure, nothing of the turn was sent to the client, or nothing more of it will be.
    """

    turn: int
    number: int
    """1 for the first of its turn."""
    by: Responder
    seconds: float
    """Until it failed, or until its first content; without the wait."""
    wait: float = 0.0
    """The wait before it, in seconds."""
    status: int = 0
    """The HTTP status of its answer; 0 where there was none."""
    reason: str = ""
    """The code of the error; empty where it answered."""
    detail: str = ""
    """Details of the failure for the operator."""
    is_refusal: bool = False
    """The request was at fault, not the deployment."""
    anyway: bool = False
    """It was cooling down after failures, and was asked because there was no other."""
    instead_of: str = ""
    """The deployment that would have been asked, but is cooling down."""


@final
class TurnEnded(msgspec.Struct, frozen=True, gc=False):
    """A model's answer is whole and its calls are settled; each call is in exactly one of the lists."""

    turn: int
    answer: "TurnAccount"


POSTPONED = "one_at_a_time"
"""The reason for which a whole call is answered without being run, where only the first call of a turn is done."""


class TurnAccount(msgspec.Struct, frozen=True, gc=False):
    """The facts of a finished turn for listeners; the turn itself stays with the loop."""

    reasons: tuple[str, ...]
    """The finish reasons as the provider wrote them."""
    findings: tuple[Finding, ...]
    run: tuple[ReadyCall, ...]
    handed_back: tuple[Call, ...]
    broken: tuple[BrokenCall, ...]
    usage: Usage | None
    seconds: float
    reason_is_raw: bool = True
    """False where litellm may have rewritten the finish reason."""
    prompted: PromptedCalling | None = None
    """Set where the tools were described in the prompt."""
    not_run: tuple[CallNotRun, ...] = ()
    """Calls in the model's text that were quoted, repeated or part of its reasoning."""
    lane: str = ""
    """The lane on which the model was reached; empty where none was."""
    by: Responder = NO_RESPONDER
    """The deployment that answered."""
    postponed: tuple[Call, ...] = ()
    """Calls that are answered instead of run or handed back, because only one call of a turn is done."""
    attempts: int = 1
    """How many requests it took."""
    first_seconds: float = 0.0
    """Until the first content, failed attempts and waits included."""
    head: ProviderHead | None = None
    """The provider's fields of the answer as a whole."""
    unknown_reasons: tuple[str, ...] = ()
    """Those of the finish reasons of which it is not known whether they are a good end."""
    calls: tuple[Call, ...] = ()
    """All calls, in the model's order."""
    is_cut: bool = False
    """Something of it is missing: it was cut off, or nobody knows how it ended and its calls were left out."""
    counts: TokenCounts | None = None
    """The counts of its usage, which several listeners need; None without usage."""
    is_summary: bool = False
    """It summarized the conversation; nothing of it is part of the answer."""


BEFORE_ALL_TURNS = -1
"""The turn of calls that are run again because their results are no longer stored."""


class CallStarted(msgspec.Struct, frozen=True, gc=False):
    turn: int
    call: ReadyCall
    writes: bool = True
    """The tool may have side effects."""


class CallProgress(msgspec.Struct, frozen=True, gc=False):
    turn: int
    call: ReadyCall
    message: str
    fraction: float | None = None
    waits_for: str = ""
    """The id of the approval that it is waiting for."""
    approved: bool = False
    """A person approved it."""
    decided_by: str = ""
    """Who approved it or answered, for the operator: clients are not told, as of the next."""
    reason: str = ""
    asks: str = ""
    """The id of the question that it is waiting for an answer to, while it runs."""
    answer: str = ""
    """What a person filled in, or a result has for the user alone, which only a recorder of texts may keep."""


class CallEnded(msgspec.Struct, frozen=True, gc=False):
    turn: int
    call: ReadyCall
    outcome: Outcome
    seconds: float


class ContextChanged(msgspec.Struct, frozen=True, gc=False):
    """The history was made smaller before a turn."""

    turn: int
    kind: str
    """The type of the rule in its API; `clear_results` for the operator's, `compaction` for a summary."""
    count: int = 0
    """How many results, or turns with thinking, were cleared, or how many messages were summarized."""
    tokens: int = 0
    """About how many tokens the prompt has fewer."""
    failure: str = ""
    """Why there is no summary, where one was wanted and the chat goes on without."""
    summary: str = ""
    """The summary as the model wrote it."""
    stands_for: str = ""
    """The text that stands for the summarized messages from now on."""
    is_cut: bool = False
    """The summary was cut off at its length."""


Judgement: TypeAlias = Literal["passed", "masked", "blocked", "failed_open", "failed_closed"]
"""What came of a guardrail's look; the last two where it could give no verdict."""


class GuardrailJudged(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A guardrail has looked at something. Of what it saw there is nothing here."""

    turn: int
    hook: str
    """The guardrail's name."""
    point: str
    """Where it looked: `request`, `answer`, `arguments`, `result`, `description`."""
    verdict: Judgement
    tool: str = ""
    call_id: str = ""
    reason: str = ""
    """Why it blocked, in its own words."""
    kinds: tuple[str, ...] = ()
    """What it noticed, where it says so: the names of patterns."""


class ToolAsListed(msgspec.Struct, frozen=True, gc=False):
    """A tool of a server, by the server's own name for it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    annotations: Mapping[str, Any] | None = None


class ToolsListed(msgspec.Struct, frozen=True, gc=False):
    """The tools of a server that the request names were listed, or could not be."""

    server: str
    """Its label."""
    tools: Sequence[ToolAsListed] = ()
    """Those that are on offer."""
    error: str = ""
    """Why there are none; empty where they were listed."""
    is_told: bool = True
    """Its client is to be told. False where the list came from it."""


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
    """The ids of the answered calls that were run; the others were broken, or answered without being run."""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    """The client's ids of calls, where they differ from the model's."""


class CallsHandedBack(msgspec.Struct, frozen=True, gc=False):
    """The client's own calls of the last turn, as the model sent them."""

    calls: tuple[Call, ...]
    hidden: HiddenTurns | None = None
    """What is restored when the client returns with its answers; None when it was shown everything."""


class LastTurn(Protocol):
    """The turn that a chat ended with."""

    def assistant_message(self) -> dict[str, Any]: ...


@final
class ChatEnded(msgspec.Struct, frozen=True, gc=False):
    ending: Ending
    usage: Usage | None
    """The sum over all turns."""
    history: Sequence[Any] = ()
    """All messages before the last turn: the client's, and ours."""
    last: LastTurn | None = None
    """Its message is not in the history yet."""
    turn_usages: tuple[Usage, ...] = ()
    """The usage of each turn that reported it; empty for a passed-through answer."""
    summary_usages: frozenset[int] = frozenset()
    """Which of these are of summaries, by their places."""

    def usage_in(self, scope: UsageScope) -> Usage | None:
        """Return the usage for the client. The last turn is the last one that reported any."""
        if scope == "last_turn" and self.turn_usages:
            return self.turn_usages[-1]
        return self.usage


@final
class AnswerPassed(msgspec.Struct, frozen=True, gc=False):
    """A whole answer goes to the client as its provider's bytes, and its chat has ended with that. It stands for `TurnStarted`, `Passed`,
    `TurnEnded` and `ChatEnded` of the only turn."""

    data: bytes
    ending: Ending
    reasons: tuple[str, ...]
    unknown_reasons: tuple[str, ...]
    is_cut: bool
    usage: Usage | None
    counts: TokenCounts | None
    seconds: float
    first_seconds: float
    lane: str
    by: Responder
    attempts: int

    def turn_ended(self) -> TurnEnded:
        """Return the end of its turn, as it is emitted for any other answer."""
        account = TurnAccount(
            reasons=self.reasons,
            findings=(),
            run=(),
            handed_back=(),
            broken=(),
            usage=self.usage,
            seconds=self.seconds,
            lane=self.lane,
            by=self.by,
            attempts=self.attempts,
            first_seconds=self.first_seconds,
            unknown_reasons=self.unknown_reasons,
            is_cut=self.is_cut,
            counts=self.counts,
        )
        return TurnEnded(0, account)

    def chat_ended(self) -> ChatEnded:
        """Return the end of its chat, as it is emitted for any other answer."""
        return ChatEnded(self.ending, self.usage)


CANCELLED = "cancelled"


class ChatFailed(msgspec.Struct, frozen=True, gc=False):
    """A chat ended with an error, or was cancelled. Emitted to listeners only."""

    reason: str
    """The code of the error, or `cancelled`: the client disconnected, the deadline passed, or the server stops."""


ChatEvent: TypeAlias = (
    TurnStarted
    | Passed
    | ModelOutput
    | TurnEnded
    | CallStarted
    | CallProgress
    | CallEnded
    | Attempt
    | ContextChanged
    | GuardrailJudged
    | ToolsListed
    | CallsHandedBack
    | AnswerPassed
    | ChatEnded
    | ChatFailed
)
