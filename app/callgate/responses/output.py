"""Writes chat events as the items of a response and the events of its stream.

`ResponseWriter` gathers items and writes events meanwhile, `ResponseBody` returns the items at the end. Clients require more of
streams than is documented: one id, constant ids of items, contiguous indexes, an end of every item, and all items in the last
response.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from callgate.api.errors import SAFE_AFTER_WRITE
from callgate.calls.json_text import ARGUMENTS
from callgate.calls.outcome import Failed, Outcome, Returned
from callgate.calls.states import Call, Flaw, ReadyCall
from callgate.conversation.client_run_items import ClientRunItem
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError
from callgate.conversation.events import (
    BEFORE_ALL_TURNS,
    Attempt,
    CallEnded,
    CallProgress,
    CallsHandedBack,
    CallStarted,
    ChatEnded,
    ChatEvent,
    ContextChanged,
    ExtraField,
    Logprobs,
    ModelOutput,
    ProviderHead,
    ReasoningDelta,
    TextDelta,
    ThinkingBlock,
    ToolAsListed,
    ToolsListed,
    TurnEnded,
)
from callgate.conversation.listeners import Handlers, handles
from callgate.conversation.response_items import ITEMS, OF_PROVIDERS, compactions_in, run_by_provider, thoughts_in
from callgate.conversation.usage import NO_USAGE, UsageScope
from callgate.hosted.declared import HostedTool
from callgate.hosted.returned import digest_of
from callgate.hosted.sources import NamedPage, citations, sources_in
from callgate.responses import hosted_items
from callgate.responses.offered import ClientTool
from callgate.untrusted.doors import TooMuch, open_text
from callgate.untrusted.readers import read_value

DONE: Final = b"data: [DONE]\n\n"
CAME_WHOLE: Final = frozenset({Flaw.SCHEMA_MISMATCH, Flaw.UNKNOWN_TOOL})
"""Flaws of calls with complete arguments, which are sent to the client."""
ITEM_DIGITS: Final = 4
"""Digits of an item's place, at the end of its id."""

_encode = msgspec.json.Encoder().encode
_decode = read_value


OF_RESULTS: Final = frozenset({"result", "results", "outputs"})
"""The fields of items of tools that a provider ran which they have when these have ended."""


class _CallForm(msgspec.Struct, frozen=True, gc=False):
    """How a call of the client is written."""

    id_prefix: str
    type: str
    field: str
    """Has the call's text."""
    events: str


FUNCTION_CALL: Final = _CallForm("fc", "function_call", "arguments", "function_call_arguments")
CUSTOM_CALL: Final = _CallForm("ctc", "custom_tool_call", "input", "custom_tool_call_input")


class ResponseHead(msgspec.Struct, frozen=True, gc=False):
    """The parts of a response that are known from its beginning."""

    run_id: str
    created: int
    fields: Mapping[str, Any]
    """The fields of the request that it repeats."""
    clients: Mapping[str, ClientTool]
    """The client's custom tools, and those with a namespace, by their names in the chat."""
    label: Callable[[str], str]
    """Returns the server label of one of our tools."""
    wrote: Callable[[], bool]
    """Whether a tool with side effects was started."""
    tool_name: Callable[[str], str] = str
    """Returns the name by which a client knows one of our tools: at its server, where the client named that by its address."""
    asks: Callable[[str], bool] | None = None
    """Whether calls of a tool need the client's approval; None if no tool's do."""
    decided: Mapping[str, str] = {}
    """The ids of approval requests, by the calls that were approved."""
    shows_calls: bool = True
    """Whether calls of ours are shown."""
    shows_thinking: bool = False
    usage_scope: UsageScope = "sum"
    """Which token counts the response reports."""
    seal: Callable[[Sequence[Mapping[str, Any]], str], str] | None = None
    """Packs the reasoning of a turn, where the client wants to send it back."""
    seal_summary: Callable[[ContextChanged], str] | None = None
    """Packs a summary of the conversation, where the client asked for one."""
    seal_foreign: Callable[[Sequence[Mapping[str, Any]]], str] | None = None
    """Packs what a provider made of its own compaction."""
    hosted: Mapping[str, HostedTool] = {}
    """The tools that the client declares for a provider to run, by the names of those that stand for them."""
    includes: frozenset[str] = frozenset()
    """What the request wants to see beyond the usual."""
    lists: Sequence[ToolsListed] = ()
    """The tools of the config's servers that the request names."""
    is_known: Callable[[ToolsListed], bool] | None = None
    """Whether the client has this very list by now; None if it has none."""

    @property
    def id(self) -> str:
        return f"resp_{self.run_id[4:]}"

    def item_id(self, kind: str, place: int) -> str:
        return f"{kind}_{self.run_id[4:]}{place:0{ITEM_DIGITS}x}"


class ResponseItems:
    """Gathers the items of one response, and emits the events about them."""

    is_streamed = False

    _handlers: ClassVar[Handlers] = {}

    def __init__(self, head: ResponseHead, diagnosis: Diagnosis | None) -> None:
        self.head = head
        self._diagnosis = diagnosis
        self.response: dict[str, Any] | None = None
        """The response, once it has ended."""
        self.encoded: msgspec.Raw | None = None
        """The same as JSON, where it was encoded already."""
        self._items: list[dict[str, Any]] = []
        self._turns: list[int] = []
        """The turn of each item."""
        self._turn = 0
        self._held = ""
        self._said_before = False
        self._message: OpenOutput | None = None
        self._thought: OpenOutput | None = None
        self._blocks: list[Mapping[str, Any]] = []
        self._running: dict[str, int] = {}
        self._lists: list[ToolsListed] = []
        """Lists of servers' tools that are to be written."""
        for listed in head.lists:
            self._tools_listed(listed)
        self._sources: dict[str, NamedPage] = {}
        """The pages that results of declared tools named, by their addresses."""
        self._unfinished = False
        """A call of the client was broken, and was not sent."""
        self.handed_back: CallsHandedBack | None = None
        """The calls that go back to the client, with the hidden turns before them."""
        self._handed = False
        self.approvals: dict[str, str] = {}
        """The calls that wait for the client's approval, by the ids of the approval requests."""
        self._tier: str | None = None

    # -- overridden by the writer of a stream

    def emit(self, type: str, fields: Mapping[str, Any]) -> None:
        """Called with events; ignored for a whole answer, for which those of every message are not even made."""

    def emit_text(self, message: "OpenOutput", text: str) -> None:
        """Called with every piece of text."""

    # -- what happens

    def take(self, event: ChatEvent) -> None:
        if (handle := self._handlers.get(type(event))) is not None:
            handle(self, event)

    @handles(_handlers, ModelOutput)
    def _model_output(self, output: ModelOutput) -> None:
        if output.turn != self._turn:
            self._turn = output.turn
            if self._said_before:
                self._held = ""
        events = output.events
        if not _THOUGHTS.isdisjoint(map(type, events)):
            # A whole message has its fields in any order; reasoning comes first.
            events = sorted(events, key=lambda event: type(event) not in _THOUGHTS)
        for at, event in enumerate(events):
            kind = type(event)
            if kind not in _SHOWN:
                continue
            if kind is TextDelta:
                self._say(event.text, events[at + 1] if at + 1 < len(events) else None)  # type: ignore[union-attr]
            elif kind is ReasoningDelta:
                self._think(event.text)  # type: ignore[union-attr]
            elif kind is ThinkingBlock:
                self._blocks.append(event.block)  # type: ignore[union-attr]
                self._think("")
            elif kind is ExtraField:
                self._other(event)  # type: ignore[arg-type]
            elif kind is ProviderHead:
                self._tier = self._tier or event.service_tier  # type: ignore[union-attr]

    def _say(self, text: str, after: Any) -> None:
        message = self._message
        if message is None:
            # White space before the first text is held back, because many models write newlines before a call.
            text = self._held + text
            if not text or text.isspace():
                self._held = text
                return
            if self._said_before:
                text = text.lstrip()
            message = self._open_message()
        if message.text_at is None:
            self._open_text(message)
        message.pieces.append(text)
        if isinstance(after, Logprobs):
            logprobs = [*(after.value.get("content") or ())]
            message.logprobs += logprobs
            self.emit(
                "response.output_text.delta",
                {**message.where, "content_index": message.text_at, "delta": text, "logprobs": logprobs},
            )
        elif text:
            self.emit_text(message, text)

    def _open_message(self) -> "OpenOutput":
        self._close_thought()
        self._said_before = True
        self._held = ""
        item = {"type": "message", "status": "in_progress", "role": "assistant", "content": []}
        message = self._message = self._open("msg", item)
        return message

    def _open_text(self, message: "OpenOutput") -> None:
        message.text_at = 0 if message.refusal_at is None else 1
        if self.is_streamed:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self.emit("response.content_part.added", {**message.where, "content_index": message.text_at, "part": part})

    def _think(self, text: str) -> None:
        thought = self._thought
        if thought is None:
            thought = self._thought = self._open("rs", {"type": "reasoning", "summary": []})
        if not text:
            return
        if self.head.shows_thinking:
            if not thought.pieces:
                part = {"type": "summary_text", "text": ""}
                self.emit("response.reasoning_summary_part.added", {**thought.where, "summary_index": 0, "part": part})
            self.emit("response.reasoning_summary_text.delta", {**thought.where, "summary_index": 0, "delta": text})
        thought.pieces.append(text)

    def _other(self, event: ExtraField) -> None:
        if event.field == "refusal" and isinstance(event.value, str) and event.value:
            message = self._message or self._open_message()
            if message.refusal_at is None:
                # Without an empty text before it, which a client that requested JSON would parse.
                message.refusal_at = 0 if message.text_at is None else 1
                place = {**message.where, "content_index": message.refusal_at}
                self.emit("response.content_part.added", {**place, "part": {"type": "refusal", "refusal": ""}})
            message.refusal += event.value
            place = {**message.where, "content_index": message.refusal_at}
            self.emit("response.refusal.delta", {**place, "delta": event.value})
        elif event.field == ITEMS:
            # Reasoning items only; we make those for text and calls.
            if thoughts := thoughts_in(event.value):
                self._blocks += thoughts
                self._think("")
            if self.head.seal_foreign is not None and (compactions := compactions_in(event.value)):
                self._add_compaction(self.head.seal_foreign(compactions))
            for item in run_by_provider(event.value):
                self._show(item)
        elif event.field == "annotations" and isinstance(event.value, list):
            message = self._message or self._open_message()
            if message.text_at is None:
                self._open_text(message)
            self._annotate(message, filter(None, map(_annotation, event.value)))

    def _annotate(self, message: "OpenOutput", annotations: Iterable[Mapping[str, Any]]) -> None:
        for annotation in annotations:
            place = {"content_index": message.text_at, "annotation_index": len(message.annotations)}
            message.annotations.append(annotation)
            self.emit("response.output_text.annotation.added", {**message.where, **place, "annotation": annotation})

    @handles(_handlers, ToolsListed)
    def _tools_listed(self, event: ToolsListed) -> None:
        if not event.is_told or not self.head.shows_calls:
            return
        if self.head.is_known is None or not self.head.is_known(event):
            self._lists.append(event)

    @handles(_handlers, ContextChanged)
    def _context_changed(self, event: ContextChanged) -> None:
        if event.summary and self.head.seal_summary is not None:
            self._add_compaction(self.head.seal_summary(event))
            self._turns[-1] = event.turn  # not of the turn behind it, which may be asked again

    def _add_compaction(self, sealed: str) -> None:
        output = self._open("cmp", {"type": "compaction", "encrypted_content": sealed})
        self._done(output.index)

    @handles(_handlers, TurnEnded)
    def _turn_ended(self, ended: TurnEnded) -> None:
        self._close_thought()
        account = ended.answer
        if account.is_cut and not account.run:
            self._close_message("incomplete")
        else:
            self._close_message("completed")
        self._turn = ended.turn + 1

    @handles(_handlers, Attempt)
    def _attempted(self, event: Attempt) -> None:
        """Drop the items of a turn that is asked again, of which nothing was sent."""
        if self.is_streamed or not event.reason:
            return
        while self._turns and self._turns[-1] == event.turn:
            self._turns.pop()
            self._items.pop()
        self._message = self._thought = None
        self._blocks = []

    def _show(self, ran: Mapping[str, Any]) -> None:
        """Show the item of a tool that the provider ran, as it was when that had ended."""
        kind = ran["type"]
        self._close_thought()
        self._close_message()
        fields = {name: value for name, value in ran.items() if name not in ("id", "status")}
        status = ran.get("status")
        begun = {name: None if name in OF_RESULTS else value for name, value in fields.items()}
        output = self._open(OF_PROVIDERS[kind], {**begun, "status": "in_progress"})
        self.emit(f"response.{kind}.in_progress", output.where)
        output.item |= {**fields, "status": status if isinstance(status, str) else "completed"}
        if output.item["status"] == "completed":
            self.emit(f"response.{kind}.completed", output.where)
        self._done(output.index)

    # -- calls

    @handles(_handlers, CallStarted)
    def _call_started(self, event: CallStarted) -> None:
        if not self._is_shown(event):
            return
        call = event.call
        if (hosted := self.head.hosted.get(call.name)) is not None:
            self._hosted_started(hosted, call)
            return
        shown = {
            "server_label": self.head.label(call.name),
            "name": self.head.tool_name(call.name),
            "arguments": "",
        }
        none = {"output": None, "error": None, "approval_request_id": self.head.decided.get(call.id)}
        output = self._open("mcp", {"type": "mcp_call", "status": "in_progress", **shown, **none})
        self._running[call.id] = output.index
        output.item["arguments"] = call.text or "{}"
        self.emit("response.mcp_call.in_progress", output.where)
        self.emit("response.mcp_call_arguments.delta", {**output.where, "delta": output.item["arguments"]})
        self.emit("response.mcp_call_arguments.done", {**output.where, "arguments": output.item["arguments"]})

    @handles(_handlers, CallEnded)
    def _call_ended(self, event: CallEnded) -> None:
        if not self._is_shown(event):
            return
        index = self._running.pop(event.call.id)
        item = self._items[index]
        outcome = event.outcome
        where = {"item_id": item["id"], "output_index": index}
        if (hosted := self.head.hosted.get(event.call.name)) is not None:
            self._hosted_ended(hosted, item, where, outcome)
            self._done(index)
            return
        if isinstance(outcome, Failed):
            content = [{"type": "text", "text": outcome.text}]
            item |= {"status": "failed", "error": {"type": "mcp_tool_execution_error", "content": content}}
            self.emit("response.mcp_call.failed", where)
        else:
            item |= {"status": "completed", "output": outcome.text}
            self.emit("response.mcp_call.completed", where)
        self._done(index)

    def _hosted_started(self, hosted: HostedTool, call: ReadyCall) -> None:
        """Open the item that a declared tool has."""
        row = hosted.row
        fields = hosted_items.beginning(hosted, call)
        kind = fields.pop("type")
        output = self._open(row.prefix, {"type": kind, "status": "in_progress", **fields}, digest_of(call.id))
        self._running[call.id] = output.index
        self.emit(f"response.{row.item}.in_progress", output.where)
        if row.item == "code_interpreter_call":
            self.emit(f"response.{row.item}_code.delta", {**output.where, "delta": output.item["code"]})
            self.emit(f"response.{row.item}_code.done", {**output.where, "code": output.item["code"]})
        self.emit(f"response.{row.item}.{row.working}", output.where)

    def _hosted_ended(
        self, hosted: HostedTool, item: dict[str, Any], where: Mapping[str, Any], outcome: Outcome
    ) -> None:
        if isinstance(outcome, Returned):
            self._sources |= {source.url: source for source in sources_in(outcome.text)}
        item |= hosted_items.end(hosted, outcome, self.head.includes)
        if "action" in item and hosted_items.SOURCES in self.head.includes and hosted.row.family == "web_search":
            item["action"] = hosted_items.with_sources(item["action"], outcome)
        if item["status"] == "completed":
            self.emit(f"response.{hosted.row.item}.completed", where)

    def _is_shown(self, event: CallStarted | CallEnded) -> bool:
        """True if a call is shown: not one that runs again because its result is lost; an approved one is."""
        return self.head.shows_calls and (event.turn >= 0 or event.call.id in self.head.decided)

    @handles(_handlers, CallsHandedBack)
    def _handed_back(self, handed: CallsHandedBack) -> None:
        self.handed_back = handed
        for call in handed.calls:
            if self.head.asks is not None and self.head.asks(call.name or ""):
                self._handed = True
                name = call.name or ""
                shown = {
                    "server_label": self.head.label(name),
                    "name": self.head.tool_name(name),
                    "arguments": call.text or "{}",
                }
                output = self._open("mcpr", {"type": "mcp_approval_request", **shown})
                self.approvals[output.item["id"]] = call.id
                self._done(output.index)
            elif (own := self._own_item_of(call)) is not None:
                self._hand_out_own(call, own)
            elif isinstance(call, ReadyCall) or call.flaw in CAME_WHOLE:
                self._hand_out(call)
            else:
                self._unfinished = True

    def _own_item_of(self, call: Call) -> ClientRunItem | None:
        tool = self.head.clients.get(call.name or "")
        return None if tool is None else tool.own

    def _hand_out_own(self, call: Call, own: ClientRunItem) -> None:
        """Hand out a call that has an item of its own. Such an item has fields that its client reads unasked, so that a call with
        other arguments is none."""
        if not isinstance(call, ReadyCall) or not isinstance(call.arguments, Mapping):
            self._unfinished = True
            return
        self._handed = True
        item = own.item_of(call.arguments)
        kind = item.pop("type")
        output = self._open(own.prefix, {"type": kind, "status": "in_progress", "call_id": call.id, **item})
        output.item["status"] = "completed"
        self._done(output.index)

    def _hand_out(self, call: Call) -> None:
        self._handed = True
        tool = self.head.clients.get(call.name or "")
        named: dict[str, Any] = {"call_id": call.id, "name": tool.name if tool else call.name}
        if tool is not None and tool.namespace is not None:
            named["namespace"] = tool.namespace
        if tool is not None and tool.custom:
            self._write_call(CUSTOM_CALL, named, {}, _input_of(call))
        else:
            # OpenAI's client requires the name at the end too, although OpenAI's server leaves it out.
            self._write_call(FUNCTION_CALL, named, {"name": named["name"]}, call.text or "{}")

    def _write_call(self, form: _CallForm, named: Mapping[str, Any], at_end: Mapping[str, Any], text: str) -> None:
        item = {"type": form.type, "status": "in_progress", **named, form.field: ""}
        output = self._open(form.id_prefix, item)
        self.emit(f"response.{form.events}.delta", {**output.where, "delta": text})
        self.emit(f"response.{form.events}.done", {**output.where, **at_end, form.field: text})
        output.item |= {form.field: text, "status": "completed"}
        self._done(output.index)

    # -- items

    def _open(self, kind: str, item: dict[str, Any], more: str = "") -> "OpenOutput":
        """`more`: what stands behind the usual id of an item."""
        if self._lists:
            self._write_lists()
        index = len(self._items)
        item = {"id": self.head.item_id(kind, index) + more, **item}
        self._items.append(item)
        self._turns.append(self._turn)
        if self.is_streamed:
            self.emit("response.output_item.added", {"output_index": index, "item": {**item}})
        return OpenOutput(item, index)

    def _write_lists(self) -> None:
        """Write what servers were listed with. Held back until there is another item, so that a failure before has its own status."""
        lists = self._lists
        self._lists = []
        turn = self._turn
        self._turn = BEFORE_ALL_TURNS  # they stay, also where the first turn is asked again
        for event in lists:
            output = self._open("mcpl", {"type": "mcp_list_tools", "server_label": event.server, "tools": []})
            self.emit("response.mcp_list_tools.in_progress", output.where)
            output.item["tools"] = list(map(listed_tool, event.tools))
            if event.error:  # and no null for none, which Vercel's SDK refuses
                output.item["error"] = event.error
            self.emit(f"response.mcp_list_tools.{'failed' if event.error else 'completed'}", output.where)
            self._done(output.index)
        self._turn = turn

    def _done(self, index: int) -> None:
        if self.is_streamed:
            self.emit("response.output_item.done", {"output_index": index, "item": self._items[index]})

    def _close_thought(self) -> None:
        thought = self._thought
        self._thought = None
        if thought is None:
            return
        text = "".join(thought.pieces)
        if self.head.shows_thinking and text:
            part = {"type": "summary_text", "text": text}
            self.emit("response.reasoning_summary_text.done", {**thought.where, "summary_index": 0, "text": text})
            self.emit("response.reasoning_summary_part.done", {**thought.where, "summary_index": 0, "part": part})
            thought.item["summary"] = [part]
        blocks = self._blocks
        self._blocks = []
        if self.head.seal is not None:
            thought.item["encrypted_content"] = self.head.seal(blocks, text)
        self._done(thought.index)

    def _close_message(self, status: str = "completed") -> None:
        message = self._message
        self._message = None
        if message is None:
            return
        parts: list[dict[str, Any]] = []
        if message.text_at is not None:
            parts.append(self._closed_text(message))
        if message.refusal_at is not None:
            refusal = {"type": "refusal", "refusal": message.refusal}
            place = {**message.where, "content_index": message.refusal_at}
            self.emit("response.refusal.done", {**place, "refusal": message.refusal})
            self.emit("response.content_part.done", {**place, "part": refusal})
            parts.insert(message.refusal_at, refusal)
        message.item |= {"content": parts, "status": status}
        self._done(message.index)

    def _closed_text(self, message: "OpenOutput") -> dict[str, Any]:
        text = "".join(message.pieces)
        if self._sources:
            self._annotate(
                message, [{"type": "url_citation", **cited.fields()} for cited in citations(text, self._sources)]
            )
        part = {
            "type": "output_text",
            "text": text,
            "annotations": message.annotations,
            "logprobs": message.logprobs,
        }
        if self.is_streamed:
            place = {**message.where, "content_index": message.text_at}
            self.emit("response.output_text.done", {**place, "text": text, "logprobs": message.logprobs})
            self.emit("response.content_part.done", {**place, "part": part})
        return part

    # -- the end

    def end(self, ended: ChatEnded) -> dict[str, Any]:
        """Return the response with all items done."""
        if self.response is None:
            if self._held and not self._said_before and not self._handed:
                # the only text
                held_text = self._held
                message = self._open_message()
                self._open_text(message)
                message.pieces.append(held_text)
            self._close_thought()
            self._close_message()
            if self._lists:
                self._write_lists()
            self.response = self._ended(ended)
        return self.response

    def _ended(self, ended: ChatEnded) -> dict[str, Any]:
        reason = ended.ending.finish_reason
        status = "completed"
        details = None
        error = None
        if reason in ("length", "content_filter"):
            status = "incomplete"
            details = {"reason": "max_output_tokens" if reason == "length" else "content_filter"}
        elif self._unfinished and not self._handed:
            status = "failed"
            wrote = self.head.wrote()
            message = "The model wrote a call that is not whole" + ("." if wrote else "; ask again.")
            error = {"code": NOT_REPEATED if wrote else "server_error", "message": message}
        if self._diagnosis is None:
            report = {}
        else:
            report = {"x_callgate": self._diagnosis.report()}
        now = int(time.time())
        usage = (ended.usage_in(self.head.usage_scope) or NO_USAGE).in_responses()
        return self.resource(status, usage, details, error, now) | report

    def failed(self, error: ChatError) -> dict[str, Any]:
        """Return the response after an error."""
        shown = {"code": self.failure_code(error), "message": error.message, **error.report_field()}
        return self.resource("failed", None, None, shown)

    def failure_code(self, error: ChatError) -> str:
        """Return the code of a failure, one that clients do not retry where a retry could repeat side effects."""
        if error.code in SAFE_AFTER_WRITE:
            return error.code
        if self.head.wrote():
            return NOT_REPEATED
        return FAILURE_CODES.get(error.status, "server_error" if error.status >= 500 else error.code or "server_error")

    def resource(
        self,
        status: str,
        usage: Mapping[str, Any] | None = None,
        incomplete: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
        completed_at: int | None = None,
    ) -> dict[str, Any]:
        """Return the response object with all fields."""
        head = self.head
        resource = {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "completed_at": completed_at,
            "status": status,
            "incomplete_details": incomplete,
            "error": error,
            "output": [item for item in self._items if item.get("status") != "in_progress"]
            if status != "in_progress"
            else [],
            "usage": usage,
            **head.fields,
        }
        if self._tier is not None:
            resource["service_tier"] = self._tier
        return resource


_THOUGHTS = frozenset({ReasoningDelta, ThinkingBlock})
_SHOWN = _THOUGHTS | {TextDelta, ExtraField, ProviderHead}
"""What a model's answer is read for here."""


class OpenOutput:
    """An unfinished item."""

    __slots__ = (
        "annotations", "index", "item", "logprobs", "pieces", "refusal", "refusal_at", "template", "text_at", "where",
    )  # fmt: skip

    def __init__(self, item: dict[str, Any], index: int) -> None:
        self.item = item
        self.index = index
        self.where = {"item_id": item["id"], "output_index": index}
        self.pieces: list[str] = []
        self.logprobs: list[Any] = []
        self.annotations: list[Any] = []
        self.refusal = ""
        self.text_at: int | None = None
        self.refusal_at: int | None = None
        """The indexes of its parts in a message, once there are any."""
        self.template: tuple[bytes, bytes] | None = None


class ResponseBody:
    """Gathers one response."""

    def __init__(self, items: ResponseItems) -> None:
        self._items = items

    def write(self, event: ChatEvent) -> None:
        if type(event) is ChatEnded:
            self._items.end(event)
        else:
            self._items.take(event)

    def body(self) -> Any:
        return self._items.encoded or self._items.response


class ResponseWriter(ResponseItems):
    """Writes the events of a response."""

    is_streamed = True

    def __init__(self, head: ResponseHead, diagnosis: Diagnosis | None) -> None:
        super().__init__(head, diagnosis)
        self.begins_at_once = False
        """The status may be sent: content has come."""
        self._number = 0
        self._written: list[bytes] = []

    def write(self, event: ChatEvent) -> bytes:
        if type(event) is ChatEnded:
            response = self.end(event)
            self.emit(f"response.{response['status']}", {"response": self.encoded or response})
            self._written.append(DONE)
        elif type(event) is CallProgress:
            return self.heartbeat()
        else:
            if not self._number and (self.begins_at_once or type(event) in _BEGINNINGS):
                self._begin()
            self.take(event)
        return self._taken()

    def heartbeat(self) -> bytes:
        """Return an event of the one type that resets the timers of all clients."""
        if self._number:
            self.emit("response.in_progress", {"response": self.resource("in_progress")})
        else:
            self._begin()
        return self._taken()

    def error(self, error: ChatError) -> bytes:
        self.emit("error", error_fields(error, self.failure_code(error)))
        self.emit("response.failed", {"response": self.failed(error)})
        self._written.append(DONE)
        return self._taken()

    def emit(self, type: str, fields: Mapping[str, Any]) -> None:
        if not self._number and type != "response.created":
            self._begin()
        self._written.append(event_of(type, self._number, fields))
        self._number += 1

    def emit_text(self, message: OpenOutput, text: str) -> None:
        """Write a text event from a template, because most events differ only in a number and a text."""
        if message.template is None:
            fields = {**message.where, "content_index": message.text_at, "logprobs": []}
            encoded_fields = _encode(fields)[1:-1]
            message.template = (
                b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",%b,"sequence_number":'
                % encoded_fields,
                b',"delta":',
            )
        before, between = message.template
        self._written.append(b"%b%d%b%b}\n\n" % (before, self._number, between, _encode(text)))
        self._number += 1

    def _begin(self) -> None:
        """Write the first two events."""
        response = self.resource("in_progress")
        self._number = 0
        self.emit("response.created", {"response": response})
        self.emit("response.in_progress", {"response": response})

    def _taken(self) -> bytes:
        written = b"".join(self._written)
        self._written.clear()
        return written


_BEGINNINGS = frozenset({ModelOutput, CallStarted, CallsHandedBack, ContextChanged})
"""The events with which a response begins. The HTTP status is held back until then."""


def listed_tool(tool: ToolAsListed) -> dict[str, Any]:
    """Return a tool as the list of a server shows it."""
    listed = {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
    if tool.annotations is None:  # and no null for none, as above
        return listed
    return {**listed, "annotations": tool.annotations}


def _annotation(annotation: Any) -> dict[str, Any] | None:
    """Convert an annotation, which is flat here and nested in Chat Completions. Only URL citations."""
    if not isinstance(annotation, dict) or annotation.get("type") != "url_citation":
        return None
    return {"type": "url_citation", "title": "", "url": "", "start_index": 0, "end_index": 0} | (
        annotation["url_citation"] if isinstance(annotation.get("url_citation"), dict) else annotation
    )


def _input_of(call: Call) -> str:
    """Return the free text of a custom tool's call, which is the only parameter of a function in the chat."""
    try:
        arguments = call.arguments if isinstance(call, ReadyCall) else _decode(open_text(call.text, ARGUMENTS))
    except (TooMuch, msgspec.DecodeError, RecursionError):
        return call.text
    input = arguments.get("input") if isinstance(arguments, dict) else None
    if isinstance(input, str):
        return input
    return call.text


FAILURE_CODES: Final = {429: "rate_limit_exceeded"}
NOT_REPEATED: Final = "invalid_prompt"
"""A code that clients do not retry."""


def event_of(type: str, number: int, fields: Mapping[str, Any]) -> bytes:
    """Return an event with its line in the stream."""
    data = _encode({"type": type, "sequence_number": number, **fields})
    return b"event: %b\ndata: %b\n\n" % (type.encode(), data)


def error_fields(error: ChatError, code: str) -> dict[str, Any]:
    """Return the fields of an `error` event, in both formats, because clients read one or the other: flat as documented, and an
    object as OpenAI's server sends."""
    flat = {"code": code, "message": error.message, "param": error.param}
    return {**flat, "error": {"type": error.type, **flat, **error.report_field()}}


def stream_end(error: ChatError, written: bytes) -> bytes:
    """Return the end of a stream of which this was sent, where nothing more is known of its response."""
    number = written.count(b"\n\nevent: ") + written.startswith(b"event: ")
    return event_of("error", number, error_fields(error, error.code or "server_error")) + DONE
