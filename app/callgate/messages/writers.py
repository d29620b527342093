"""Writes chat events in Anthropic's format: `MessageStreamWriter` for streams, `MessageWriter` for whole answers.

Both make the blocks of an answer with `_Blocks`, and differ only in its sink. Blocks never overlap, their indexes are
consecutive from 0, and each is closed before the next is opened.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

import msgspec

from callgate.api.anthropic_errors import error_shape
from callgate.calls.json_text import ARGUMENTS
from callgate.calls.outcome import Failed
from callgate.calls.states import BrokenCall, Call, Flaw, ReadyCall
from callgate.chat.writers import Joiner
from callgate.conversation import messages_api
from callgate.conversation.context import SUMMARIZED
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError
from callgate.conversation.events import (
    Attempt,
    CallEnded,
    CallsHandedBack,
    CallStarted,
    ChatEnded,
    ChatEvent,
    ContextChanged,
    ExtraField,
    Finished,
    ModelEvent,
    ModelOutput,
    Passed,
    ReasoningDelta,
    TextDelta,
    ThinkingBlock,
    ToolsListed,
)
from callgate.conversation.listeners import Handlers, handles
from callgate.conversation.messages_api import COMPACTED, CONTEXT, STOP_REASONS, STOP_SEQUENCE
from callgate.conversation.usage import NO_USAGE, UsageScope, add_usage
from callgate.hosted.declared import HostedTool
from callgate.hosted.rows import ROWS
from callgate.messages import hosted_blocks
from callgate.messages.context_edits import applied_edits, summary_in
from callgate.messages.history import OUR_CALL, OUR_SERVER, unsigned
from callgate.models.direct.model import TEXT_OF_A_MODEL
from callgate.untrusted.doors import TooMuch, Untrusted, open_text
from callgate.untrusted.readers import json_reader, read_value

encode = msgspec.json.Encoder().encode
_object = json_reader(dict[str, Any])


NOT_COUNTED: Final = dict.fromkeys(
    ("cache_creation", "inference_geo", "output_tokens_details", "server_tool_use", "service_tier")
)
"""Fields of `usage` that only Anthropic has."""
NOT_STOPPED: Final = {"stop_reason": None, "stop_sequence": None, "stop_details": None}


class MessageHead(msgspec.Struct, frozen=True, gc=False):
    """The head of an answer, and what its client is shown."""

    run_id: str
    request_id: str
    model: str
    shows_thinking: bool = False
    shows_calls: bool = False
    usage_scope: UsageScope = "sum"
    """Which token counts the answer reports."""
    says_edits: bool = False
    """Whether the answer says what of its context was edited here."""
    hosted: Mapping[str, HostedTool] = {}
    """The tools that the client declares for a provider to run, by the names of those that stand for them."""
    shown_as: Callable[[str], tuple[str, str]] | None = None
    """Returns the server and the name by which the client knows one of our tools; None where all are of `callgate`."""
    tells_lists: bool = False
    """Whether the client takes the lists of servers' tools."""

    def shows(self, event: CallStarted | CallEnded) -> bool:
        """Whether the client is shown a call of ours: not one that runs again because its result is lost."""
        if event.call.name in self.hosted:
            return event.turn >= 0
        return self.shows_calls

    @property
    def id(self) -> str:
        return f"msg_{self.run_id[4:]}"

    def usage(self, ended: ChatEnded) -> dict[str, Any]:
        """Return the usage of an answer. With the sum it has `iterations`, an entry for each turn, because clients calculate the
        size of their context from the last entry; without, because clients would add them up."""
        whole = ended.usage_in(self.usage_scope)
        if self.usage_scope == "sum" and ended.summary_usages:  # which are told apart, and are no part of the sum
            turns = enumerate(ended.turn_usages)
            whole = add_usage(turn for place, turn in turns if place not in ended.summary_usages)
        usage: dict[str, Any] = {**(whole or NO_USAGE).in_messages()}
        if self.usage_scope == "sum" and ended.turn_usages:
            usage["iterations"] = [
                {
                    "type": "compaction" if place in ended.summary_usages else "message",
                    **turn.in_messages(),
                    "cache_creation": None,
                }
                for place, turn in enumerate(ended.turn_usages)
            ]
        return usage

    def edits(self, blocks: "_Blocks") -> dict[str, Any]:
        """Return the field that says what of the context was edited, here or by the provider."""
        if self.says_edits:
            return {CONTEXT: {"applied_edits": applied_edits(blocks.changes)}}
        if blocks.edits_of_provider is not None:
            return {CONTEXT: {"applied_edits": blocks.edits_of_provider}}
        return {}

    def message(
        self, content: Sequence[Any], extra_fields: Mapping[str, Any], usage: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "container": None,
            **extra_fields,
            "usage": {**NOT_COUNTED, **usage},
        }


class _Sink(Protocol):
    """Takes the steps of an answer, and returns the bytes to send."""

    def start(self, index: int, block: Mapping[str, Any]) -> bytes: ...

    def delta(self, index: int, kind: str, field: str, value: Any) -> bytes: ...

    def stop(self, index: int) -> bytes: ...


class _Blocks:
    """Makes the blocks of an answer from the events of its chat."""

    def __init__(self, sink: _Sink, head: MessageHead) -> None:
        self._sink = sink
        self._head = head
        self._index = -1
        self._open = ""
        """The type of the block that is open."""
        self._thought: list[str] = []
        """The text of the open thinking block."""
        self._text = Joiner()
        self._turn = -1
        self._is_last_reason_sequence = False
        self._is_paused = False
        """Its provider paused after compaction."""
        self._is_refused = False
        self._has_calls = False
        self._uses: Counter[str] = Counter()
        """The calls of declared tools that succeeded, by the names of their counts."""

        self._lists: list[ToolsListed] = []
        self.changes: list[ContextChanged] = []
        """What was edited of the context here."""
        self.edits_of_provider: list[Any] | None = None
        """The same as the provider said it; None where it said nothing."""

    def context_changed(self, change: ContextChanged) -> bytes:
        """Write the summary of a conversation, if it is one."""
        self.changes.append(change)
        if not change.summary:
            return b""
        text = summary_in(change)
        written = self._close()
        self._index += 1
        start = {"type": "compaction", "content": None, "encrypted_content": None, "signature": unsigned(text)}
        return b"".join(
            (
                written,
                self._sink.start(self._index, start),
                self._sink.delta(self._index, "compaction_delta", "content", text),
                self._sink.stop(self._index),
            )
        )

    def listed(self, event: ToolsListed) -> None:
        """Take what a server was listed with, to be written before the first block: a failure before it has its own status."""
        if event.is_told and not event.error and self._head.tells_lists:
            self._lists.append(event)

    def _lists_so_far(self) -> bytes:
        lists = self._lists
        self._lists = []
        return b"".join(
            self._whole(
                {
                    "type": "mcp_tool_listing",
                    "mcp_server_name": event.server,
                    "tools": [
                        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
                        for tool in event.tools
                    ],
                }
            )
            for event in lists
        )

    def uses(self) -> dict[str, Any]:
        """Return the usage of declared tools; nothing where there are none."""
        counts = [tool.row.count for tool in self._head.hosted.values() if tool.row.count]
        if not counts:
            return {}
        every = {row.count: self._uses[row.count] for row in ROWS if row.count}
        return {"server_tool_use": every}

    def write_output(self, turn: int, events: Sequence[ModelEvent]) -> bytes:
        written: list[bytes] = []
        if turn != self._turn:
            self._turn = turn
            self._is_last_reason_sequence = False
            if self._open == "thinking":
                written.append(self._close())
        is_signed = ThinkingBlock in map(type, events)
        for event in events if is_signed else _thoughts_first(events):
            if type(event) is TextDelta:
                written.append(self._say(turn, event.text))
            elif not (is_signed and isinstance(event, ReasoningDelta)):  # which repeats the signed thinking
                written.append(self._besides(turn, event))
        return b"".join(written)

    def _say(self, turn: int, text: str) -> bytes:
        text = self._text.feed(turn, text)
        if text:
            return self._in("text", "text_delta", "text", text)
        return b""

    def _besides(self, turn: int, event: ModelEvent) -> bytes:
        """Write an event other than text."""
        match event:
            case ReasoningDelta() if self._head.shows_thinking:
                return self._think(event.text)
            case ThinkingBlock() if self._head.shows_thinking:
                if event.block.get("type") == "redacted_thinking":
                    return self._whole({"type": "redacted_thinking", "data": event.block.get("data") or ""})
                if isinstance(text := event.block.get("thinking"), str) and text:
                    written = self._think(text)
                else:
                    written = b""
                if not (signature := event.block.get("signature")):
                    return written
                if self._open != "thinking":  # a signature without its thinking
                    written += self._in("thinking", "thinking_delta", "thinking", "")
                return written + self._close(str(signature))
            case Finished():
                self._is_last_reason_sequence = event.reason == STOP_SEQUENCE
                self._is_paused = event.reason == COMPACTED
            case ExtraField(field="refusal", value=str() as refusal):
                self._is_refused = True
                return self._say(turn, refusal)
            case ExtraField(field=messages_api.CONTEXT):
                self.edits_of_provider = [*(self.edits_of_provider or ()), *event.value]
            case ExtraField(field=messages_api.BLOCKS):
                # Blocks of the provider's own tools.
                return b"".join(self._whole(block) for block in event.value if block.get("type") not in _READ)
        return b""

    def call_started(self, event: CallStarted) -> bytes:
        if not self._head.shows(event):
            return b""
        if (hosted := self._head.hosted.get(event.call.name)) is not None:
            return self._with_input(*hosted_blocks.use(hosted, event.call, self._head.run_id))
        server = OUR_SERVER
        name = event.call.name
        if self._head.shown_as is not None:
            server, name = self._head.shown_as(name)
        block = {"type": "mcp_tool_use", "id": OUR_CALL + event.call.id, "name": name, "server_name": server}
        return self._with_input(block, event.call.arguments)

    def call_ended(self, event: CallEnded) -> bytes:
        if not self._head.shows(event):
            return b""
        if (hosted := self._head.hosted.get(event.call.name)) is not None:
            if hosted.row.count and not isinstance(event.outcome, Failed):
                self._uses[hosted.row.count] += 1
            return self._whole(hosted_blocks.result(hosted, event.call, event.outcome, self._head.run_id))
        block = {
            "type": "mcp_tool_result",
            "tool_use_id": OUR_CALL + event.call.id,
            "is_error": isinstance(event.outcome, Failed),
            "content": [{"type": "text", "text": event.outcome.text}],
        }
        return self._whole(block)

    def handed_back(self, calls: Sequence[Call]) -> bytes:
        """Write the client's calls. Broken ones without an object for their input are left out."""
        written: list[bytes] = []
        for call in calls:
            if (arguments := _arguments(call)) is None:
                continue
            self._has_calls = True
            block = {"type": "tool_use", "id": call.id, "name": call.name or "", "caller": {"type": "direct"}}
            written.append(self._with_input(block, arguments))
        return b"".join(written)

    def finish(self, ended: ChatEnded) -> tuple[bytes, dict[str, Any]]:
        """Return what is still to be written, and the stop reason."""
        held_text = self._text.finish()
        if held_text.strip():
            written = self._in("text", "text_delta", "text", held_text)
        else:
            written = b""
        reason = STOP_REASONS[ended.ending.finish_reason]
        if reason == "tool_use" and not self._has_calls:
            reason = "max_tokens"  # all its calls were broken and left out
        if reason == "end_turn" and (self._is_last_reason_sequence or self._is_refused):
            reason = "refusal" if self._is_refused else STOP_SEQUENCE
        if self._is_paused or ended.ending.note == SUMMARIZED:
            reason = COMPACTED
        return written + self._close(), {**NOT_STOPPED, "stop_reason": reason}

    # -- blocks

    def _in(self, block: str, kind: str, field: str, value: str) -> bytes:
        """Write a piece of a block, which is opened if necessary."""
        if self._open == block:
            return self._sink.delta(self._index, kind, field, value)
        written = self._close()
        self._open = block
        self._index += 1
        start: dict[str, Any] = {"type": "text", "text": "", "citations": None}
        if block == "thinking":
            start = {"type": block, "thinking": "", "signature": ""}
        return written + self._sink.start(self._index, start) + self._sink.delta(self._index, kind, field, value)

    def _think(self, text: str) -> bytes:
        written = self._in("thinking", "thinking_delta", "thinking", text)
        self._thought.append(text)
        return written

    def _with_input(self, block: Mapping[str, Any], arguments: Mapping[str, Any]) -> bytes:
        written = self._close()
        self._index += 1
        return b"".join(
            (
                written,
                self._sink.start(self._index, {**block, "input": {}}),
                self._sink.delta(self._index, "input_json_delta", "partial_json", encode(arguments).decode()),
                self._sink.stop(self._index),
            )
        )

    def _whole(self, block: Mapping[str, Any]) -> bytes:
        written = self._close()
        self._index += 1
        return written + self._sink.start(self._index, block) + self._sink.stop(self._index)

    def _close(self, signature: str = "") -> bytes:
        if not self._open:
            return self._lists_so_far() if self._lists else b""
        written = b""
        if self._open == "thinking":
            signature = signature or unsigned("".join(self._thought))
            written = self._sink.delta(self._index, "signature_delta", "signature", signature)
            self._thought = []
        self._open = ""
        return written + self._sink.stop(self._index)


_READ: Final = ("text", "thinking", "redacted_thinking", "tool_use")
"""Types of blocks that have model events."""


def _thoughts_first(events: Sequence[ModelEvent]) -> Sequence[ModelEvent]:
    """Return the events with thinking first, because the fields of a whole message come in any order."""
    if len(events) < 2 or ReasoningDelta not in map(type, events):
        return events
    return sorted(events, key=lambda event: not isinstance(event, ReasoningDelta))


def _arguments(call: Call) -> Mapping[str, Any] | None:
    """Return the arguments of a call for the client; None where it did not come whole. Schema errors do not matter here."""
    if isinstance(call, ReadyCall):
        return call.arguments
    assert isinstance(call, BrokenCall)
    if call.flaw not in (Flaw.SCHEMA_MISMATCH, Flaw.UNKNOWN_TOOL) or not call.name:
        return None
    try:
        return _object(open_text(call.text or "{}", ARGUMENTS))
    except (TooMuch, msgspec.DecodeError):
        return None


# A stream --------------------------------------------------------------------------------------------------------------


class _Events:
    """Writes each step as an event."""

    def __init__(self) -> None:
        self._text = (-1, b"")

    def start(self, index: int, block: Mapping[str, Any]) -> bytes:
        return event_of({"type": "content_block_start", "index": index, "content_block": block})

    def delta(self, index: int, kind: str, field: str, value: Any) -> bytes:
        if kind == "text_delta":  # most events of a stream
            if self._text[0] != index:
                before = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":'
                self._text = index, before % index
            return self._text[1] + encode(value) + b"}}\n\n"
        return event_of({"type": "content_block_delta", "index": index, "delta": {"type": kind, field: value}})

    def stop(self, index: int) -> bytes:
        return event_of({"type": "content_block_stop", "index": index})


class MessageStreamWriter:
    """Writes the events of a streamed message."""

    def __init__(self, head: MessageHead, diagnosis: Diagnosis | None) -> None:
        self._head = head
        self._diagnosis = diagnosis
        self._blocks = _Blocks(_Events(), head)
        self._opened = False
        self._passed = False
        self._held = b""
        """The end of a passed-through answer of which calls were left out."""

    def write(self, event: ChatEvent) -> bytes:
        if isinstance(event, ModelOutput):
            written = self._blocks.write_output(event.turn, event.events)
            # Until there is content, an error can have its own status.
            if self._opened or not written:
                return written
            return self._opening() + written
        match event:
            case Passed():
                self._opened = self._passed = True
                if event.left_out:
                    self._held += event.data
                    return b""
                return event.data
            case ToolsListed():
                self._blocks.listed(event)
                return b""
            case ContextChanged():
                written = self._blocks.context_changed(event)
                return self._opening() + written if written else b""
            case CallStarted() if self._head.shows(event):
                return self._opening() + self._blocks.call_started(event)
            case CallEnded() if self._head.shows(event):
                return self._opening() + self._blocks.call_ended(event)
            case CallsHandedBack():
                return self._opening() + self._blocks.handed_back(event.calls)
            case ChatEnded() if not self._passed:
                return self._opening() + self._end(event)
            case ChatEnded():
                return self._end_of_passed()
            case _:
                return b""

    def heartbeat(self) -> bytes:
        return PING  # without the opening events, because the answer may still be passed through

    def error(self, error: ChatError) -> bytes:
        return self._held + event_of(error_shape(error, self._head.request_id))

    def _end_of_passed(self) -> bytes:
        """Return the end of a passed-through answer of which calls were left out, with the report."""
        events = self._held.split(b"\n\n")
        for at, event in enumerate(events):
            if event.startswith(b"event: message_delta\n") and self._diagnosis is not None:
                last = read_value(Untrusted(event.partition(b"\ndata: ")[2], TEXT_OF_A_MODEL).open())
                events[at] = event_of({**last, "x_callgate": self._diagnosis.report()}).removesuffix(b"\n\n")
        return b"\n\n".join(events)

    def _opening(self) -> bytes:
        """Return the first events of a stream, once."""
        if self._opened:
            return b""
        self._opened = True
        message = self._head.message((), NOT_STOPPED, NO_USAGE.in_messages())
        return event_of({"type": "message_start", "message": message}) + PING

    def _end(self, ended: ChatEnded) -> bytes:
        written, why = self._blocks.finish(ended)
        last: dict[str, Any] = {"type": "message_delta", "delta": {**why, "container": None}}
        last["usage"] = self._head.usage(ended) | self._blocks.uses()
        last |= self._head.edits(self._blocks)
        if self._diagnosis is not None:
            last["x_callgate"] = self._diagnosis.report()
        return written + event_of(last) + STOP


def event_of(data: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), encode(data))


PING: Final = event_of({"type": "ping"})
STOP: Final = event_of({"type": "message_stop"})


# A whole answer --------------------------------------------------------------------------------------------------------


class _Gathered:
    """Gathers the steps of a whole answer."""

    def __init__(self) -> None:
        self.content: list[dict[str, Any]] = []
        self._pieces: list[str] = []
        self._field = ""

    def start(self, index: int, block: Mapping[str, Any]) -> bytes:
        self.content.append(dict(block))
        return b""

    def delta(self, index: int, kind: str, field: str, value: Any) -> bytes:
        if field == "partial_json":
            self.content[-1]["input"] = msgspec.Raw(value.encode())
        elif field == self._field:
            self._pieces.append(value)
        else:
            self._join()
            self._field = field
            self._pieces = [value]
        return b""

    def stop(self, index: int) -> bytes:
        self._join()
        return b""

    def _join(self) -> None:
        if self._field:
            self.content[-1][self._field] = "".join(self._pieces)
            self._field = ""
            self._pieces = []


class MessageWriter:
    """Gathers one message."""

    _takes: ClassVar[Handlers] = {}

    def __init__(self, head: MessageHead, diagnosis: Diagnosis | None) -> None:
        self._head = head
        self._diagnosis = diagnosis
        self._events: list[ChatEvent] = []
        self._ended: ChatEnded | None = None
        self._passed = b""

    def write(self, event: ChatEvent) -> None:
        if (take := self._takes.get(type(event))) is not None:
            take(self, event)

    @handles(_takes, ModelOutput, CallStarted, CallEnded, CallsHandedBack, ContextChanged, ToolsListed)
    def _keep(self, event: ChatEvent) -> None:
        self._events.append(event)

    @handles(_takes, Attempt)
    def _forget(self, event: Attempt) -> None:
        self._events = [
            other
            for other in self._events
            if isinstance(other, ContextChanged | ToolsListed) or getattr(other, "turn", None) != event.turn
        ]

    @handles(_takes, Passed)
    def _pass(self, event: Passed) -> None:
        self._passed = event.data

    @handles(_takes, ChatEnded)
    def _end(self, event: ChatEnded) -> None:
        self._ended = event

    def body(self) -> Any:
        """Return the whole answer, after the chat has ended."""
        if self._passed:
            return msgspec.Raw(self._passed)
        assert self._ended is not None
        gathered = _Gathered()
        blocks = _Blocks(gathered, self._head)
        for event in self._events:
            match event:
                case ModelOutput():
                    blocks.write_output(event.turn, event.events)
                case ToolsListed():
                    blocks.listed(event)
                case ContextChanged():
                    blocks.context_changed(event)
                case CallStarted():
                    blocks.call_started(event)
                case CallEnded():
                    blocks.call_ended(event)
                case CallsHandedBack():
                    blocks.handed_back(event.calls)
        _, why = blocks.finish(self._ended)
        usage = self._head.usage(self._ended) | blocks.uses()
        body = self._head.message(gathered.content, why, usage) | self._head.edits(blocks)
        if self._diagnosis is not None:
            body["x_callgate"] = self._diagnosis.report()
        return body
