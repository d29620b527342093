"""Writes chat events in OpenAI's format: `ChunkWriter` for streams, `CompletionWriter` for whole answers.

Both get the same events and must write the same answer, which `tests/test_one_path.py` checks. The format is strict, because
clients are: constant id, created and model; role and empty content first; `index` on every tool call, its name and id once;
`arguments` a string; one of OpenAI's five finish reasons.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from callgate.api.choices import ForChoice
from callgate.api.errors import DONE, encode, openai_stream_end
from callgate.calls.states import Call, ReadyCall
from callgate.chat.progress import Progress, ToolEvent
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError
from callgate.conversation.events import (
    Attempt,
    CallEnded,
    CallProgress,
    CallsHandedBack,
    CallStarted,
    CallWritten,
    ChatEnded,
    ChatEvent,
    ExtraField,
    Finished,
    Logprobs,
    ModelEvent,
    ModelOutput,
    Passed,
    ProviderHead,
    ReasoningDelta,
    TextDelta,
)
from callgate.conversation.listeners import Handlers, handles
from callgate.conversation.messages_api import BLOCKS
from callgate.conversation.response_items import ITEMS
from callgate.conversation.usage import NO_USAGE, Usage, UsageScope, add_usage
from callgate.models.direct.model import TEXT_OF_A_MODEL
from callgate.untrusted.doors import TooMuch, Untrusted
from callgate.untrusted.readers import json_reader

EVENT_END = b"\n\n"
PART_BREAK = "\n\n"
"""The separator between a model's text before and after a call."""
INNER_ASIDES = frozenset({"provider_specific_fields", "thinking_blocks", BLOCKS, ITEMS})
"""Fields of single turns that the loop sends back to the model; clients do not need them."""

NOT_IN_A_MESSAGE = frozenset({ProviderHead, Finished, Usage, CallWritten})
"""Events that are not part of the message, but of the body around it, and calls, of which only those are that are handed back."""

_TOOL_EVENTS = (CallStarted, CallProgress, CallEnded)

_MARK = "\x00"
"""A placeholder for the text of a chunk, which does not occur after it."""

_objects = json_reader(dict[str, Any])


def completion_id(run_id: str) -> str:
    return f"chatcmpl-{run_id[4:]}"


class AnswerHead(msgspec.Struct, frozen=True, gc=False):
    """The common fields of all parts of an answer, and the format that its client wants."""

    run_id: str
    created: int
    model: str
    progress: Progress | None = None
    """Shows calls of our tools, where the client wants to see them."""
    legacy: bool = False
    """The request has `functions`, so that calls are sent as `function_call`."""
    usage_scope: UsageScope = "sum"
    """Which token counts the answer reports."""


class Joiner(msgspec.Struct, eq=False, gc=False, kw_only=True):
    """Joins the text of several turns, with blank lines between them.

    White space at the beginning of a turn is held back until text follows, because many models write newlines before a
    call.
    """

    _turn: int = -1
    _open: bool = False
    _held: str = ""
    has_text: bool = False

    def feed(self, turn: int, text: str) -> str:
        if turn != self._turn:
            self._turn = turn
            self._open = False
            if self.has_text:
                self._held = ""
        if self._open:
            return text
        text = self._held + text
        if not text or text.isspace():
            self._held = text
            return ""
        self._held = ""
        self._open = True
        if self.has_text:
            return PART_BREAK + text.lstrip()
        self.has_text = True
        return text

    def line(self, text: str) -> str:
        """Return a line of ours, separated from the model's text."""
        start = PART_BREAK if self.has_text else ""
        # Further text of the turn is separated as if it were of another turn.
        self.has_text = True
        self._open = False
        self._held = ""
        return start + text

    def finish(self) -> str:
        """Return white space that is held back, if there was no text at all."""
        if self.has_text:
            return ""
        return self._held


class ChunkWriter:
    """Writes chat.completion.chunk events."""

    def __init__(self, head: AnswerHead, diagnosis: Diagnosis | None, include_usage: bool, index: int = 0) -> None:
        self._head = head
        self._index = index
        self._diagnosis = diagnosis
        self._include_usage = include_usage
        self._text = Joiner()
        self._reasoning = Joiner()
        self._opened = False
        self._usage_field: dict[str, Any] = {"usage": None} if include_usage else {}
        self._more: dict[str, Any] = {}
        self.passed = b""
        """The bytes of a passed-through answer that were written last; it has its own end."""
        self._held = b""
        """The end of a passed-through answer of which calls were left out."""

    def write(self, event: ChatEvent) -> bytes:
        if type(event) is Passed:
            self._opened = True  # the provider's own first chunk
            if data := event.data:
                self.passed = data
            if event.left_out:
                self._held += data
                return b""
            return data
        if type(event) is ModelOutput:
            return self._output(event.turn, event.events)
        if isinstance(event, _TOOL_EVENTS):
            if (progress := self._head.progress) is None:
                return b""
            return self._progress(progress, event)
        if isinstance(event, CallsHandedBack):
            return self.opening() + b"".join(map(self._chunk, self._handed(event.calls)))
        if isinstance(event, ChatEnded):
            return b"".join(self._end(event))
        return b""

    def heartbeat(self, extra_fields: Mapping[str, Any] | None = None) -> bytes:
        """Return an empty chunk. All clients accept it, and it resets timers that comments do not."""
        return self.opening() + self._chunk({"content": ""}, **(extra_fields or {}))

    def error(self, error: ChatError) -> bytes:
        """Return the end of a stream that failed after it had begun."""
        return self._held + openai_stream_end(error)

    def _output(self, turn: int, events: Sequence[ModelEvent]) -> bytes:
        if self._opened and len(events) == 1 and type(events[0]) is TextDelta:  # as in most of a stream
            text = self._text.feed(turn, events[0].text)
            return b"".join((self._before, encode(text), self._after)) if text else b""
        written: list[bytes] = []
        if not self._opened and events:
            # The provider's head is part of every chunk, so that the template is made only after it.
            head = next((event for event in events if isinstance(event, ProviderHead)), None)
            if head is not None and head.system_fingerprint is not None:
                self._more["system_fingerprint"] = head.system_fingerprint
            if head is not None and head.service_tier is not None:
                self._more["service_tier"] = head.service_tier
            written.append(self.opening())
        last = len(events) - 1
        for at, event in enumerate(events):
            if type(event) is TextDelta:
                text = self._text.feed(turn, event.text)
                after = events[at + 1] if at < last else None
                if type(after) is Logprobs:
                    written.append(self._chunk({"content": text}, logprobs=after.value))
                elif text:
                    written += (self._before, encode(text), self._after)
            elif type(event) is ReasoningDelta:
                text = self._reasoning.feed(turn, event.text)
                if text:
                    written.append(self._chunk({"reasoning_content": text}))
            elif type(event) is ExtraField and event.field not in INNER_ASIDES:
                written.append(self._chunk({event.field: event.value}))
        return b"".join(written)

    def _handed(self, calls: Sequence[Call]) -> Iterator[dict[str, Any]]:
        if self._head.legacy:
            yield {"function_call": function_body(calls[0])}
            return
        for index, call in enumerate(calls):
            yield {"tool_calls": [{"index": index, **call_body(call)}]}

    def _progress(self, progress: Progress, event: ToolEvent) -> bytes:
        if (line := progress.line(event)) is not None:
            return self.opening() + self._chunk({"reasoning_content": self._reasoning.line(line)})
        shown = progress.fields(event)
        if shown:
            return self.heartbeat(shown)
        return b""

    def _end(self, ended: ChatEnded) -> Iterator[bytes]:
        if self.passed:
            yield self.end_of_passed(self._report)
            return
        report = self._report()
        if self._include_usage:
            yield self.finish(ended)
            yield self.tail(ended.usage_in(self._head.usage_scope), report)
        else:
            yield self.finish(ended, report)
        yield DONE

    def _report(self) -> Mapping[str, Any]:
        if self._diagnosis:
            return {"x_callgate": self._diagnosis.report()}
        return {}

    def end_of_passed(self, report: Callable[[], Mapping[str, Any]]) -> bytes:
        """Return the end of a passed-through answer. The last chunk of one of which calls were left out has the report."""
        if not self._held:
            if self.passed.endswith(DONE):
                return b""
            return DONE
        *earlier, last = self._held.removesuffix(DONE).removesuffix(EVENT_END).split(EVENT_END)
        with contextlib.suppress(
            TooMuch, msgspec.DecodeError
        ):  # not a chunk, but something else that the provider sends
            last = b"data: " + encode(
                {**_objects(Untrusted(last.partition(b"data:")[2], TEXT_OF_A_MODEL).open()), **report()}
            )
        return EVENT_END.join((*earlier, last)) + EVENT_END + DONE

    def finish(self, ended: ChatEnded, extra_fields: Mapping[str, Any] | None = None) -> bytes:
        """Return the last chunk of this choice, and what has to precede it."""
        held_text = self._text.finish()
        last_chunk = self._chunk({"content": held_text}) if held_text else b""
        reason = client_finish_reason(ended, legacy=self._head.legacy)
        return self.opening() + last_chunk + self._chunk({}, finish_reason=reason, **(extra_fields or {}))

    def tail(self, usage: Usage | None, extra_fields: Mapping[str, Any]) -> bytes:
        """Return the chunk after all choices, for a client that requested usage."""
        return self._data({"choices": [], "usage": (usage or NO_USAGE).whole(), **extra_fields})

    def opening(self) -> bytes:
        """Return the first chunk of a choice, once."""
        if self._opened:
            return b""
        self._opened = True
        # The bytes around the text of a plain chunk are encoded once, because most chunks of a stream are plain.
        self._before, _, self._after = self._chunk({"content": _MARK}).rpartition(encode(_MARK))
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def _chunk(
        self,
        delta: Mapping[str, Any],
        *,
        finish_reason: str | None = None,
        logprobs: Mapping[str, Any] | None = None,
        **extra_fields: Any,
    ) -> bytes:
        choice = {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._data({"choices": [choice], **self._usage_field, **extra_fields})

    def _data(self, fields: Mapping[str, Any]) -> bytes:
        head = self._head
        chunk = {
            "id": completion_id(head.run_id),
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
            **self._more,
            **fields,
        }
        return b"data: " + encode(chunk) + b"\n\n"


class ChoicesChunkWriter:
    """Writes the chunks of several concurrent chats, one choice each."""

    def __init__(self, head: AnswerHead, diagnoses: Sequence[Diagnosis] | None, include_usage: bool, n: int) -> None:
        self._usage_scope = head.usage_scope
        self._writers = [ChunkWriter(head, None, include_usage, index) for index in range(n)]
        self._diagnoses = diagnoses
        self._include_usage = include_usage
        self._ended: dict[int, ChatEnded] = {}

    def write(self, chosen: ForChoice) -> bytes:
        writer = self._writers[chosen.choice]
        if not isinstance(chosen.event, ChatEnded):
            return self._in_order(chosen.choice, writer.write(chosen.event))
        if writer.passed:
            return self._in_order(chosen.choice, writer.end_of_passed(lambda: choices_report(self._diagnoses)))
        self._ended[chosen.choice] = chosen.event
        if len(self._ended) < len(self._writers):
            return self._in_order(chosen.choice, writer.finish(chosen.event))
        report = choices_report(self._diagnoses)
        if not self._include_usage:
            return self._in_order(chosen.choice, writer.finish(chosen.event, report)) + DONE
        return (
            self._in_order(chosen.choice, writer.finish(chosen.event))
            + writer.tail(usage_of(self._ended, self._usage_scope), report)
            + DONE
        )

    def heartbeat(self) -> bytes:
        return self._writers[0].heartbeat()

    def _in_order(self, choice: int, data: bytes) -> bytes:
        """Open choices in order, because OpenAI's client puts the first one that it receives at the head of a list."""
        if data:
            return b"".join(writer.opening() for writer in self._writers[:choice]) + data
        return data

    def error(self, error: ChatError) -> bytes:
        return self._writers[0].error(error)


class CompletionWriter(msgspec.Struct, eq=False, kw_only=True):
    """Gathers one chat.completion."""

    _head: AnswerHead
    _diagnosis: Diagnosis | None
    _batches: dict[int, list[ModelEvent]] = {}
    _lines: dict[int, list[str]] = {}
    _calls: tuple[Call, ...] = ()
    _ended: ChatEnded | None = None
    passed: bytes = b""
    """The body of a passed-through answer."""

    _takes: ClassVar[Handlers] = {}

    def write(self, event: ChatEvent) -> None:
        if (take := self._takes.get(type(event))) is not None:
            take(self, event)

    @handles(_takes, ModelOutput)
    def _take_output(self, event: ModelOutput) -> None:
        self._batches.setdefault(event.turn, []).extend(event.events)

    @handles(_takes, Passed)
    def _take_passed(self, event: Passed) -> None:
        self.passed = event.data

    @handles(_takes, Attempt)
    def _forget(self, event: Attempt) -> None:
        self._batches.pop(event.turn, None)

    @handles(_takes, CallStarted, CallProgress, CallEnded)
    def _show(self, event: ToolEvent) -> None:
        if (progress := self._head.progress) is None:
            line = None
        else:
            line = progress.line(event)
        if line is not None:
            self._lines.setdefault(event.turn, []).append(line)

    @handles(_takes, CallsHandedBack)
    def _take_calls(self, event: CallsHandedBack) -> None:
        self._calls = event.calls

    @handles(_takes, ChatEnded)
    def _end(self, event: ChatEnded) -> None:
        self._ended = event

    def body(self) -> Any:
        """Return the whole answer, after the chat has ended."""
        assert self._ended is not None
        if self.passed:
            return msgspec.Raw(self.passed)
        usage = self._ended.usage
        if self._head.usage_scope != "sum":
            usage = self._ended.usage_in(self._head.usage_scope)
        return self.around([self.choice()], usage, self._diagnosis.report() if self._diagnosis else None)

    def around(
        self, choices: Sequence[Mapping[str, Any]], usage: Usage | None, report: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return the body around the choices, with the provider's head of this choice."""
        head = self._head
        body: dict[str, Any] = {
            "id": completion_id(head.run_id),
            "object": "chat.completion",
            "created": head.created,
            "model": head.model,
            "choices": choices,
            "usage": (usage or NO_USAGE).whole(),
        }
        if (first := self._first_head()) is not None:
            if first.system_fingerprint is not None:
                body["system_fingerprint"] = first.system_fingerprint
            if first.service_tier is not None:
                body["service_tier"] = first.service_tier
        if report is not None:
            body["x_callgate"] = report
        return body

    def choice(self, index: int = 0) -> dict[str, Any]:
        assert self._ended is not None
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "annotations": []}
        reasoning = ""
        logprobs = None
        text = self._text_fast()
        if text is None:
            text, reasoning, logprobs = self._gather(message)
        # As OpenAI has it: null where the message has other content.
        message["content"] = text or (None if self._calls or message["refusal"] or message.get("audio") else "")
        if reasoning:
            message["reasoning_content"] = reasoning
        if self._calls and self._head.legacy:
            message["function_call"] = function_body(self._calls[0])
        elif self._calls:
            message["tool_calls"] = [call_body(call) for call in self._calls]
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": client_finish_reason(self._ended, legacy=self._head.legacy),
        }

    def _text_fast(self) -> str | None:
        """Return the text of an answer of which one turn has text, and which says nothing else. Equals what `_gather` makes of it, or
        returns None."""
        if self._lines:
            return None
        text = ""
        turn_of_text = 0
        for turn, events in self._batches.items():
            for event in events:
                if type(event) is TextDelta:
                    if text and turn != turn_of_text:
                        return None
                    text += event.text
                    turn_of_text = turn
                elif type(event) not in NOT_IN_A_MESSAGE:
                    return None
        return text

    def _gather(self, message: dict[str, Any]) -> tuple[str, str, dict[str, Any] | None]:
        """Join text and reasoning as in streams; other fields are added to the message."""
        text_joiner = Joiner()
        thought = Joiner()
        text: list[str] = []
        reasoning: list[str] = []
        logprobs: dict[str, list[Any]] = {}
        fields: dict[str, list[Any]] = {}
        for turn, events in self._batches.items():
            for event in events:
                if type(event) is TextDelta:
                    text.append(text_joiner.feed(turn, event.text))
                elif type(event) in NOT_IN_A_MESSAGE:
                    continue
                elif type(event) is ReasoningDelta:
                    reasoning.append(thought.feed(turn, event.text))
                elif type(event) is Logprobs:
                    for name, value in event.value.items():
                        logprobs.setdefault(name, []).append(value)
                elif type(event) is ExtraField and event.field not in INNER_ASIDES:
                    fields.setdefault(event.field, []).append(event.value)
            if self._lines:
                reasoning += map(thought.line, self._lines.get(turn, ()))
        text.append(text_joiner.finish())
        for name, values in fields.items():
            message[name] = _joined(values)
        return (
            "".join(text),
            "".join(reasoning),
            {name: _joined(values) for name, values in logprobs.items()} if logprobs else None,
        )

    def _first_head(self) -> ProviderHead | None:
        for events in self._batches.values():
            for event in events:
                if isinstance(event, ProviderHead):
                    return event
        return None


class ChoicesWriter:
    """Gathers one chat.completion out of several chats, one choice each."""

    def __init__(self, head: AnswerHead, diagnoses: Sequence[Diagnosis] | None, n: int) -> None:
        self._usage_scope = head.usage_scope
        self._writers = [CompletionWriter(_head=head, _diagnosis=None) for _ in range(n)]
        self._diagnoses = diagnoses
        self._ended: dict[int, ChatEnded] = {}

    def write(self, chosen: ForChoice) -> None:
        if isinstance(chosen.event, ChatEnded):
            self._ended[chosen.choice] = chosen.event
        self._writers[chosen.choice].write(chosen.event)

    def body(self) -> Any:
        if self._writers[0].passed:
            return self._writers[0].body()
        choices = [writer.choice(index) for index, writer in enumerate(self._writers)]
        report = choices_report(self._diagnoses).get("x_callgate")
        return self._writers[0].around(choices, usage_of(self._ended, self._usage_scope), report)


def choices_report(diagnoses: Sequence[Diagnosis] | None) -> dict[str, Any]:
    if not diagnoses:
        return {}
    usage = diagnoses[0].usage_facts(add_usage(diagnosis.total_usage() for diagnosis in diagnoses))
    if diagnoses[0].is_usage_only:
        return {"x_callgate": {"usage": usage}}
    choices = [{**diagnosis.report(), "index": at} for at, diagnosis in enumerate(diagnoses)]
    return {"x_callgate": {"run": diagnoses[0].run_id, "choices": choices, "usage": usage}}


def usage_of(ended: Mapping[int, ChatEnded], scope: UsageScope) -> Usage | None:
    """Return the usage of all choices together."""
    return add_usage(ended[choice].usage_in(scope) for choice in sorted(ended))


def client_finish_reason(ended: ChatEnded, *, legacy: bool) -> str:
    reason = ended.ending.finish_reason
    if legacy and reason == "tool_calls":
        return "function_call"
    return reason


def function_body(call: Call) -> dict[str, Any]:
    """Return a call in the format of `function_call`."""
    return {"name": call.name or "", "arguments": call.text or "{}"}


def call_body(call: Call) -> dict[str, Any]:
    """Return a call in the format of `tool_calls`."""
    if isinstance(call, ReadyCall) and call.custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.text}, **call.extras}
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name or "", "arguments": call.text or "{}"},
        **call.extras,
    }


def _joined(values: Sequence[Any]) -> Any:
    """Join the pieces of one field: text and lists are concatenated, anything else is replaced."""
    pieces: list[Any] = []
    for value in values:
        if value is None:
            continue
        if pieces and not (isinstance(value, str | list) and type(value) is type(pieces[0])):
            pieces.clear()
        pieces.append(value)
    if not pieces:
        return None
    if isinstance(pieces[0], str):
        return "".join(pieces)
    if isinstance(pieces[0], list):
        return [item for piece in pieces for item in piece]
    return pieces[-1]
