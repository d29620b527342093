"""One model answer. A `TurnBuilder` folds its events while they come; `finish` settles its calls and gives the `Turn`.

`call_assembly` decides which fragment belongs to which call; `callgate.calls.gate` whether a call is whole.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, final

import msgspec
from msgspec.structs import replace

from callgate.calls.arguments import encode_arguments
from callgate.calls.gate import settle
from callgate.calls.json_text import LARGE, sound_text
from callgate.calls.offer import Offer
from callgate.calls.states import Call, Finding, Flaw, ReadyCall
from callgate.conversation.call_assembly import CallAssembler
from callgate.conversation.events import (
    FORBIDDEN,
    CallDelta,
    CallNotRun,
    CallsNotAlone,
    CallWritten,
    CharactersLost,
    ChoiceIgnored,
    EndNotSeen,
    ExtraField,
    Finished,
    Logprobs,
    ModelEvent,
    Passed,
    PromptedCalling,
    ProviderError,
    ProviderHead,
    ReasoningDelta,
    StreamEnd,
    TextDelta,
    ThinkingBlock,
)
from callgate.conversation.finish import Finish, finish_findings, judge_finish, meaning_if_said
from callgate.conversation.finish_words import FinishClass, Meaning
from callgate.conversation.response_items import ITEMS, without_run_by_provider
from callgate.conversation.usage import Usage

NATIVE_REASONING = ("reasoning_content", "reasoning", "thinking")
"""The fields in which providers send reasoning. The first one that has any counts."""
MAX_NAME = 64
"""Characters that providers allow for a function name in the history."""


@final
class Turn(msgspec.Struct, frozen=True, gc=False):
    """A finished model answer; each of its calls is settled."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    findings: tuple[Finding, ...] = ()
    reasons: tuple[str, ...] = ()
    """The finish reasons as the provider wrote them."""
    winner: FinishClass | None = None
    """The class that counts; None if there were no finish reasons."""
    failure: Flaw | None = None
    """The reason why no call of this turn may run, if there is one."""
    broke_off: bool = False
    """The provider did not finish the turn, so that it may be asked again."""
    unknown_reasons: tuple[str, ...] = ()
    """The finish reasons of which we do not know whether they are a good end."""
    usage: Usage | None = None
    head: ProviderHead | None = None
    logprobs: tuple[Mapping[str, Any], ...] = ()
    extra_fields: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Other fields of the message, joined over the stream; `thinking_blocks` among them."""
    error: ProviderError | None = None
    passed: bool = False
    """The answer went to the client as its provider's bytes; only its finish reasons and usage are known."""
    not_run: tuple[CallNotRun, ...] = ()
    """Calls in its text that were quoted, repeated or part of its reasoning, and calls where calls are forbidden."""
    prompted: PromptedCalling | None = None
    """Set where the tools were described in the prompt and calls were looked for in the text."""
    as_written: str = ""
    """The text with its calls as they were written, where it goes on behind them."""

    def without_calls(self) -> "Turn":
        """Return the turn as an answer that only shows its calls."""
        shown = tuple(CallNotRun(call.name, Flaw.NOT_ALONE) for call in self.calls if call.name)
        return replace(self, text=self.as_written, calls=(), as_written="", not_run=(*self.not_run, *shown))

    def without_forbidden_calls(self) -> "Turn":
        """Return the turn as an answer without its calls, where calls are forbidden."""
        left_out = tuple(CallNotRun(call.name or "", FORBIDDEN) for call in self.calls)
        return replace(self, calls=(), not_run=(*self.not_run, *left_out))

    def assistant_message(self) -> dict[str, Any]:
        """Return the message for the history. It is always well formed, and has all fields of the answer."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text or (None if self.calls else "")}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.extra_fields:
            # Audio goes back by its id; the provider keeps the data.
            message |= {
                name: ({"id": value["id"]} if name == "audio" and isinstance(value, dict) and "id" in value else value)
                for name, value in self.extra_fields.items()
                if name not in message
            }
        if ITEMS in message:
            message[ITEMS] = without_run_by_provider(message[ITEMS])
        if self.calls:
            message["tool_calls"] = [_call_in_history(call) for call in self.calls]
        return message


class TurnJudge(Protocol):
    """Judges the calls of a turn before anybody hears of them."""

    async def settled(self, turn: Turn, offer: Offer) -> Turn:
        """Return the turn with its calls as they may go on."""
        ...


class PassedTurn(msgspec.Struct, eq=False, kw_only=True):
    """Folds the finish reasons, usage and error of an answer that goes to the client as its provider's bytes."""

    _reasons: dict[str, Meaning] = {}
    _usage: Usage | None = None
    _error: ProviderError | None = None
    _not_run: tuple[CallNotRun, ...] = ()

    def feed(self, passed: Passed, events: Sequence[ModelEvent]) -> None:
        for event in passed.reasons:
            if (meaning := meaning_if_said(event)) is not None:
                self._reasons[event.reason] = meaning
        if passed.usage:
            self._usage = passed.usage
        if passed.left_out:
            self._not_run = passed.left_out
        if len(events) > 1:
            self._error = next((event for event in events if isinstance(event, ProviderError)), None)

    def finish(self, end: StreamEnd = StreamEnd.DONE) -> Turn:
        """Return the turn. One that ended in order has no failure, whatever its reasons: the client has all of it."""
        error = self._error
        finish = judge_finish(self._reasons, end, error=error is not None)
        turn = Turn(
            reasons=finish.reasons,
            winner=finish.winner,
            unknown_reasons=finish.unknown,
            usage=self._usage,
            passed=True,
            not_run=self._not_run,
        )
        if error is None and (finish.reasons or end is StreamEnd.DONE):
            return turn
        findings = finish_findings(finish, calls_found=False, from_text=True)
        return replace(turn, findings=tuple(findings), failure=finish.failure, broke_off=finish.broke_off, error=error)


class TurnBuilder(msgspec.Struct, eq=False, kw_only=True):
    """Folds the events of one answer. Each event costs the same however many came before; nothing is joined or parsed
    before the end."""

    offer: Offer
    ids: Callable[[], str]
    argument_bytes: int | None = None
    """The limit of one call's arguments; None for no limit."""
    as_written: str | None = None
    """The text so far with its calls as they were written, once they are known not to be alone."""

    _texts: list[str] = []
    _calls: CallAssembler | None = None
    """Made for the first call."""
    _reasons: dict[str, Meaning] = {}
    _noticed: dict[Finding, None] = {}
    """Each once, in their order."""
    _prompted: PromptedCalling | None = None
    _usage: Usage | None = None
    _head: ProviderHead | None = None
    _error: ProviderError | None = None
    _thinking: "ThinkingBlocks | None" = None
    _end_is_unseen: bool = False
    _not_run: list[CallNotRun] = []
    _reasoning: dict[str, list[str]] = {}
    _logprobs: list[Mapping[str, Any]] = []
    _extra_fields: dict[str, list[Any]] = {}

    def feed(self, events: Iterable[ModelEvent]) -> None:
        for event in events:
            if type(event) is TextDelta:
                self._texts.append(event.text)
            elif type(event) is CallDelta:
                (self._calls or self._assembler()).add(event)
            elif type(event) is ReasoningDelta:
                self._reasoning.setdefault(event.source, []).append(event.text)
            elif type(event) is Finished:  # the three above come by the thousand; these four with nearly every answer
                self._take_reason(event)
            elif type(event) is Usage:
                self._usage = event
            elif type(event) is ProviderHead:
                self._head = self._head or event
            elif type(event) is CallWritten:
                (self._calls or self._assembler()).add_written(event)
            else:
                self._take(event)

    def _take_reason(self, event: Finished) -> None:
        meaning = meaning_if_said(event)
        if meaning is not None:
            self._reasons[event.reason] = meaning
            if self._calls is not None:
                self._calls.note_reason(orderly=meaning.is_orderly)

    def _assembler(self) -> CallAssembler:
        """Return what assembles the calls. Of the reasons before the first of them it is told those that differ."""
        if self._calls is None:
            self._calls = CallAssembler(
                offer=self.offer, ids=self.ids, noticed=self._noticed, argument_bytes=self.argument_bytes
            )
            for meaning in self._reasons.values():
                self._calls.note_reason(orderly=meaning.is_orderly)
        return self._calls

    def _take(self, event: ModelEvent) -> None:
        match event:
            case ExtraField():
                self._extra_fields.setdefault(event.field, []).append(event.value)
            case ThinkingBlock():
                self._thinking = self._thinking or ThinkingBlocks()
                self._thinking.add(event.block)
            case Logprobs():
                self._logprobs.append(event.value)
            case PromptedCalling():
                self._prompted = event
            case CallNotRun():
                self._not_run.append(event)
            case CallsNotAlone():
                self.as_written = "".join(self._texts) + event.text
            case CharactersLost():
                self._assembler().text_is_damaged = True
            case ProviderError():
                self._error = self._error or event
            case ChoiceIgnored():
                self._noticed[Finding.EXTRA_CHOICES_IGNORED] = None
            case EndNotSeen():
                self._end_is_unseen = True
            case _:
                raise TypeError(f"an answer that is read has no {type(event).__name__}")

    def said(self) -> tuple[str, str]:
        """Return the text and the reasoning so far, as they came."""
        reasoning = ""
        if self._reasoning:
            reasoning = "".join(piece for pieces in self._reasoning.values() for piece in pieces)
        return "".join(self._texts), reasoning

    def is_large(self) -> bool:
        """True if parsing the arguments may block the event loop noticeably."""
        if self._extra_fields:
            return True
        return self._calls is not None and self._calls.size() > LARGE

    def finish(self, end: StreamEnd = StreamEnd.DONE) -> Turn:
        """Return the turn with its calls settled. `end` is how the body of the answer ended."""
        finish = judge_finish(self._reasons, end, error=self._error is not None)
        calls: tuple[Call, ...] = ()
        from_text = self._prompted is not None
        if self._calls is not None:
            calls = self._settled(self._calls, finish, in_order=end is StreamEnd.DONE)
            from_text = from_text or self._calls.read_from_text
        findings = finish_findings(finish, calls_found=bool(calls), from_text=from_text)
        findings += self._noticed
        if self._end_is_unseen and self.offer:
            findings.append(Finding.END_NOT_SEEN)
        for call in calls:
            if isinstance(call, ReadyCall):
                findings += call.findings
        return Turn(
            text=sound_text("".join(self._texts)),
            reasoning=self._joined_reasoning() if self._reasoning else "",
            calls=calls,
            findings=tuple(dict.fromkeys(findings)) if findings else (),
            reasons=finish.reasons,
            winner=finish.winner,
            failure=finish.failure,
            broke_off=finish.broke_off,
            unknown_reasons=finish.unknown,
            usage=self._usage,
            head=self._head,
            logprobs=tuple(self._logprobs),
            extra_fields=self._joined_fields() if self._extra_fields or self._thinking is not None else {},
            error=self._error,
            prompted=self._prompted,
            not_run=tuple(self._not_run),
            as_written="" if self.as_written is None else sound_text(self.as_written),
        )

    def _settled(self, assembled: CallAssembler, finish: Finish, *, in_order: bool) -> tuple[Call, ...]:
        """Return the calls, each of which is judged. `in_order`: the body of the answer ended with its end mark."""
        collected = assembled.collected(in_order=in_order)
        if not collected:
            return ()
        at_length = finish.winner is FinishClass.LENGTH and not assembled.ends_in_repetition
        failure = Flaw.UPSTREAM_ERROR if self._end_is_unseen else finish.failure
        return settle(collected, self.offer, failure=failure, at_length=at_length, new_id=assembled.new_id)

    def _joined_reasoning(self) -> str:
        """Return the reasoning. Some providers send the same under two names: one is kept. Reasoning out of the text is no such
        copy."""
        texts = {source: "".join(pieces) for source, pieces in self._reasoning.items()}
        native = next((texts[name] for name in NATIVE_REASONING if texts.get(name)), "")
        return sound_text(native + texts.get("text", ""))

    def _joined_fields(self) -> dict[str, Any]:
        """Return the other fields of the message, without lone surrogates, which cannot be encoded."""
        fields = {name: _folded(values) for name, values in self._extra_fields.items()}
        if self._thinking is not None:
            fields["thinking_blocks"] = self._thinking.blocks()
        with contextlib.suppress(RecursionError):  # too deep: they stay as they are
            return {sound_text(name): _sound_value(value) for name, value in fields.items()}
        return fields


class ThinkingBlocks:
    """Thinking blocks in their order. Pieces of one are joined until its signature comes."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._pieces: list[str] = []
        self._open = False

    def add(self, block: Mapping[str, Any]) -> None:
        piece = block.get("thinking")
        if block.get("type", "thinking") != "thinking" or not isinstance(piece, str | None):
            self._close()
            self._blocks.append(dict(block))
            return
        if not self._open:
            self._blocks.append({"type": "thinking"})
            self._open = True
        self._pieces.append(piece or "")
        self._blocks[-1] |= {key: value for key, value in block.items() if value or key not in self._blocks[-1]}
        if block.get("signature"):
            self._close()

    def blocks(self) -> list[dict[str, Any]]:
        self._close()
        return self._blocks

    def _close(self) -> None:
        if self._open:
            self._blocks[-1]["thinking"] = sound_text("".join(self._pieces))
            self._pieces.clear()
            self._open = False


def _sound_value(value: Any) -> Any:
    if isinstance(value, str):
        return sound_text(value)
    if isinstance(value, list):
        return [_sound_value(item) for item in value]
    if isinstance(value, dict):
        return {_sound_value(name): _sound_value(item) for name, item in value.items()}
    return value


def _folded(values: list[Any]) -> Any:
    """Join the deltas of one field: text and lists are concatenated, objects merged, anything else is replaced."""
    if all(isinstance(value, str) for value in values):
        return sound_text("".join(values))
    if all(isinstance(value, list) for value in values):
        return [item for value in values for item in value]
    if all(isinstance(value, dict) for value in values):
        return {key: item for value in values for key, item in value.items()}
    return values[-1]


# Going back to the model ---------------------------------------------------------------------------------------------


def _call_in_history(call: Call) -> dict[str, Any]:
    if type(call) is ReadyCall and call.custom:
        return {**call.extras, "id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.text}}
    if call.wrapping is not None:
        function = {"name": call.wrapping.name, "arguments": sound_text(call.wrapping.text)}
    elif type(call) is ReadyCall:
        function = {"name": call.name, "arguments": _arguments_in_history(call)}
    else:
        function = {"name": _legal_name(call.name), "arguments": call.text if call.flaw is Flaw.NOT_ALONE else "{}"}
    return {**call.extras, "id": call.id, "type": "function", "function": function}


def _legal_name(name: str | None) -> str:
    """Return a name that providers accept: a broken call may have any name, or none."""
    return _ILLEGAL.sub("_", name or "")[:MAX_NAME] or "unnamed"


_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


def _arguments_in_history(call: ReadyCall) -> str:
    """Return the model's own text if it is one JSON object, as providers require; else the arguments as one."""
    if Finding.ARGUMENTS_REPAIRED not in call.findings and call.text.lstrip().startswith("{"):
        return call.text
    return encode_arguments(call.arguments)
