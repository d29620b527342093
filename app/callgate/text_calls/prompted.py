"""Wraps a model: describes tools in the prompt, and reads calls from the text of the answer.

`PromptedModel` wraps any model. Its requests have no `tools`: they are described in the system prompt, and earlier calls and
results are written as text. Calls in the answer become events.

Without offered tools (also with `tool_choice: none`) nothing is described. If the conversation has no calls either, request
and answer are not changed. If it has, as in the last turn of a chat that reached its limit, the model may write another call
in the format of its history. It is read as well, so that the user does not see markup, and the gate refuses it.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from callgate.calls.states import Flaw
from callgate.conversation import raw_json
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import (
    CallsNotAlone,
    CallWritten,
    Finished,
    ModelEvent,
    PromptedCalling,
    ReasoningDelta,
    TextDelta,
)
from callgate.conversation.finish import meaning_of
from callgate.conversation.model_requests import as_model_request
from callgate.conversation.ports import Message, Model, ModelAnswer, ModelRequest, Passthrough, hand_nothing
from callgate.conversation.readable_content import with_readable_results
from callgate.conversation.request_checks import check_request
from callgate.text_calls import prompts
from callgate.text_calls.echoes import RequestEchoes
from callgate.text_calls.history import PromptedHistory
from callgate.text_calls.listings import ToolSpec
from callgate.text_calls.prompts import Style, style_for
from callgate.text_calls.reader import TextReader, reader_for
from callgate.text_calls.result_tags import WithoutResultTags
from callgate.text_calls.thinking import ThinkingMemory

CHARACTERS_A_TOKEN = 4
"""A rough estimate for English and JSON."""
MARKUP = 65_536
"""The limit of a call's characters beyond its arguments."""
PARAGRAPH = "\n\n"
SLICE = 16_384
"""Characters that are read at a time: the hardest text of this size takes about 30 ms."""
LARGE = 65_536
"""Characters of a text whose end is read in a thread, because all of it is checked again."""


@dataclass(frozen=True, slots=True)
class PromptCost:
    """The tokens that the description of tools adds to a prompt."""

    characters: int

    @property
    def tokens(self) -> int:
        return -(-self.characters // CHARACTERS_A_TOKEN)


class PromptedModel:
    """Wraps a model, which is asked for calls in the given format.

    With `constrain` the server enforces the format of a call when one is required; this needs a format whose call is bare
    JSON (`json`, `llama3_json`) and a server with `response_format: json_schema`. The client's own `response_format` is then
    an alternative in the schema. Without `constrain` it is described in the prompt while tools are offered, because a server
    that enforced it would prevent calls.
    """

    def __init__(
        self,
        model: Model,
        format: str,
        *,
        constrain: bool = False,
        argument_bytes: int | None = None,
        thinking: ThinkingMemory | None = None,
    ) -> None:
        """`argument_bytes`: the limit of one call's arguments; None for no limit. `thinking`: what is known of the model's
        thinking."""
        self.name = model.name
        self._model = model
        self._style = style_for(format)
        self._constrain = constrain and self._style.arguments_key is not None
        self._argument_bytes = argument_bytes
        self._thinking = thinking or ThinkingMemory(setting="auto", model_name="llama-3")

    @property
    def format(self) -> str:
        return self._style.format

    @asynccontextmanager
    async def send(self, request: ModelRequest | Passthrough) -> AsyncIterator[ModelAnswer]:
        asked = as_model_request(request)
        if _size(asked) > LARGE:
            prompted = await asyncio.to_thread(self._prompted, asked)
        else:
            prompted = self._prompted(asked)
        answering = self._send_prompted(prompted) if prompted.readable else self._model.send(prompted.request)
        async with answering as answer:
            yield answer

    @asynccontextmanager
    async def _send_prompted(self, prompted: "_PromptedRequest") -> AsyncIterator[ModelAnswer]:
        reader = reader_for(
            self._style.format,
            prompted.readable,
            thinking=self._thinking.mode(streams=prompted.request.stream),
            echoes=RequestEchoes(prompted.original),
            is_demanded=prompted.is_demanded,
        )
        async with self._model.send(prompted.request) as answer:
            calling = PromptedCalling(self._style.format, prompted.cost.tokens)
            bounded = _BoundedReader(reader, self._argument_bytes)
            tags = None
            if prompted.has_results:
                tags = WithoutResultTags(self._style.format)
            yield PromptedAnswer(answer, bounded, calling, tags)
        if bounded.has_finished:
            self._thinking.note_answer(had_lone_end=reader.had_lone_end)

    def _prompted(self, request: ModelRequest) -> "_PromptedRequest":
        request = with_readable_results(request)
        check_request(request)
        return _prompted_request(request, self._style, constrain=self._constrain)


def _size(request: ModelRequest) -> int:
    return sum(memoryview(message).nbytes for message in request.messages if isinstance(message, msgspec.Raw))


# Asking ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PromptedRequest:
    """A request with its tools described in the prompt."""

    request: ModelRequest
    readable: Mapping[str, Collection[str]]
    """The tools whose calls the answer may have, with their parameters; empty where it is not read."""
    original: Sequence[Message] = ()
    """The original messages."""
    cost: PromptCost = PromptCost(0)
    is_demanded: bool = False
    """The request demands a call."""
    has_results: bool = False
    """Results of earlier calls are shown to the model, with tags around them."""


def _prompted_request(request: ModelRequest, style: Style, *, constrain: bool) -> _PromptedRequest:
    choice = _choice(request.tool_choice)
    tools = [_tool(schema) for schema in request.tools]
    if choice.mode == "named" and choice.name not in {tool.name for tool in tools}:
        raise ChatError(400, "tool_choice names a tool that is not offered.", param="tool_choice")
    if choice.mode == "none":
        tools = []
    else:
        tools = [tool for tool in tools if choice.allowed is None or tool.name in choice.allowed]
    history = PromptedHistory(style)
    history.add(request.messages)
    if not tools and not history.called:
        return _PromptedRequest(_without_tools(request) if request.tools or request.withheld else request, {})
    form = _answer_format(request) if tools else None
    described = _description(request, style, tools, every_example=constrain)
    demand = _demand(choice, tools)
    if form is not None and not constrain and not choice.is_demand:
        described += f"\n\n{prompts.answer_form(form.schema)}"
    if described:
        history.add_to_system_message(described)
    if demand:
        history.add_to_last_user_message(demand)
    rewritten = replace(_without_tools(request), messages=tuple(history.messages))
    if style.stop:
        rewritten = replace(rewritten, params={"stop": list(style.stop), **rewritten.params})
    if form is not None:
        if form.is_described:
            request.leave_out("response_format.json_schema.description")
        rewritten = replace(
            rewritten, params={name: value for name, value in rewritten.params.items() if name != "response_format"}
        )
    if constrain and (shapes := _shapes(style, choice, tools, form)):
        rewritten = replace(rewritten, params={**rewritten.params, "response_format": shapes})
    properties = {tool.name: tool.parameters.get("properties") for tool in tools}
    readable: dict[str, Collection[str]] = {
        name: frozenset(schemas) if isinstance(schemas, Mapping) else () for name, schemas in properties.items()
    }
    readable = readable or dict.fromkeys(history.called, ())
    cost = PromptCost(len(described) + len(demand))
    return _PromptedRequest(
        rewritten,
        readable,
        request.messages,
        cost,
        is_demanded=choice.is_demand if tools else False,
        has_results=bool(history.called),
    )


def _without_tools(request: ModelRequest) -> ModelRequest:
    params = {key: value for key, value in request.params.items() if key != "parallel_tool_calls"}
    return replace(request, tools=(), tool_choice=None, params=params, withheld=())


def _tool(schema: msgspec.Raw) -> ToolSpec:
    entry = _plain(schema)
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ChatError(
            400,
            "This model is asked for tool calls in a prompt: only function tools can be offered to it.",
            param="tools",
        )
    return ToolSpec(function["name"], function.get("description") or "", function.get("parameters") or {})


def _description(request: ModelRequest, style: Style, tools: Sequence[ToolSpec], *, every_example: bool) -> str:
    if not tools:
        return ""
    described = prompts.describe(style, tools, every_example=every_example)
    one_at_a_time = _plain(request.params.get("parallel_tool_calls")) is False
    if one_at_a_time:
        return f"{described}\n\n{prompts.ONE_AT_A_TIME}"
    return described


def _demand(choice: "_ToolChoice", tools: Sequence[ToolSpec]) -> str:
    """Return the instruction for this turn only, which is the last message, so that the prompt before it stays cached."""
    if not tools:
        return prompts.NO_TOOLS_NOW
    if choice.mode == "named":
        return prompts.MUST_CALL_ONE.format(name=choice.name)
    if choice.is_demand:
        return prompts.MUST_CALL
    return ""


@dataclass(frozen=True, slots=True)
class _AnswerFormat:
    """The JSON format that the client wants for the answer; without a schema any object."""

    schema: Mapping[str, Any] | None
    is_described: bool = False


def _answer_format(request: ModelRequest) -> _AnswerFormat | None:
    match _plain(request.params.get("response_format")):
        case {"type": "json_schema", "json_schema": {"schema": dict(schema), **more}}:
            return _AnswerFormat(schema, bool(more.get("description")))
        case {"type": "json_object" | "json_schema"}:
            return _AnswerFormat(None)
        case _:
            return None


def _shapes(
    style: Style, choice: "_ToolChoice", tools: Sequence[ToolSpec], form: _AnswerFormat | None
) -> Mapping[str, Any] | None:
    """Return the schema that the server enforces: a call where one is required, else a call or the client's format."""
    if choice.is_demand and tools:
        return prompts.call_schema(style, choice.among(tools))
    if form is not None:
        return prompts.call_schema(style, tools, form.schema or {"type": "object"})
    return None


def _plain(value: Any) -> Any:
    return raw_json.read(value)


@dataclass(frozen=True, slots=True)
class _ToolChoice:
    """`tool_choice`, read."""

    mode: Literal["auto", "none", "required", "named"]
    name: str = ""
    allowed: frozenset[str] | None = None

    @property
    def is_demand(self) -> bool:
        return self.mode in ("required", "named")

    def among(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        return [tool for tool in tools if self.mode != "named" or tool.name == self.name]


def _choice(value: Any) -> _ToolChoice:
    match _plain(value):
        case None | "auto":
            return _ToolChoice("auto")
        case "none":
            return _ToolChoice("none")
        case "required" | "any":
            return _ToolChoice("required")
        case {"type": "function", "function": {"name": str(name)}}:
            return _ToolChoice("named", name)
        case {"type": "allowed_tools", "allowed_tools": {"tools": [*tools], **rest}}:
            allowed = frozenset(_tool(tool).name for tool in tools)
            return _ToolChoice("required" if rest.get("mode") == "required" else "auto", allowed=allowed)
        case _:
            raise ChatError(400, "tool_choice is not understood.", param="tool_choice")


# Reading --------------------------------------------------------------------------------------------------------------


class PromptedAnswer:
    """The inner answer with its text read, batch by batch. Empty batches are left out.

    Its first batch begins with a `PromptedCalling` event.
    """

    def __init__(
        self,
        answer: ModelAnswer,
        reader: "_BoundedReader",
        calling: PromptedCalling,
        result_tags: WithoutResultTags | None = None,
    ) -> None:
        """`result_tags`: takes the tags of results out of the answer, where the model was shown any."""
        self._asked: PromptedCalling | None = calling
        self.reason_is_raw = answer.reason_is_raw
        self.lane = answer.lane
        self._answer = answer
        self._batches = aiter(answer)
        self._reader = reader
        self._result_tags = result_tags
        self._blank_filter = _BlankFilter()
        self._over = False
        self._broke_off: BrokenOff | None = None
        self._ended_in_order = False
        self._size = 0
        self._finished: list[ModelEvent] = []

    hand_to = hand_nothing

    def __aiter__(self) -> "PromptedAnswer":
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:
        while not self._over:
            if events := await self._next_batch():
                calling = self._asked
                self._asked = None
                if calling:
                    return [calling, *events]
                return events
        if self._broke_off is not None:
            raise self._broke_off
        raise StopAsyncIteration

    async def _next_batch(self) -> list[ModelEvent]:
        try:
            batch = await anext(self._batches)
        except StopAsyncIteration:
            pass
        except BrokenOff as broke_off:
            # Emit what the reader has held back, calls that are being written included.
            self._broke_off = broke_off
        else:
            size = sum(len(event.text) for event in batch if isinstance(event, TextDelta))
            self._size += size
            if size > SLICE:
                return await self._read_in_slices(batch)
            return [produced for event in batch for produced in self._read(event)]
        self._over = True
        self.reason_is_raw = self._answer.reason_is_raw
        if self._size > LARGE:
            events = await asyncio.to_thread(self._reader.finish, in_order=self._ended_in_order)
        else:
            events = self._reader.finish(in_order=self._ended_in_order)
        if self._broke_off is not None and not self._blank_filter.has_text:
            # Nothing of the answer was shown yet, so that the model can be asked again.
            return [event for event in events if not isinstance(event, TextDelta | CallsNotAlone)]
        return [
            *self._filtered(events),
            *self._rest(),
            *self._finished,
        ]

    async def _read_in_slices(self, batch: Sequence[ModelEvent]) -> list[ModelEvent]:
        """Read a large text in slices, between which the event loop runs."""
        events: list[ModelEvent] = []
        for event in batch:
            if not isinstance(event, TextDelta):
                events += self._read(event)
                continue
            for start in range(0, len(event.text), SLICE):
                events += self._read(TextDelta(event.text[start : start + SLICE]))
                await asyncio.sleep(0)
        return events

    def _read(self, event: ModelEvent) -> Sequence[ModelEvent]:
        if isinstance(event, TextDelta):
            return self._filtered(self._reader.feed(event.text))
        if isinstance(event, ReasoningDelta):
            self._reader.end_hold()
        if isinstance(event, Finished):
            # Emitted after the calls, because a finish reason before a call does not count for it.
            self._ended_in_order = meaning_of(event).is_orderly
            self._finished.append(event)
            return ()
        return (event,)

    def _filtered(self, events: Sequence[ModelEvent]) -> Sequence[ModelEvent]:
        if self._result_tags is not None:
            events = self._result_tags.filtered(events)
        return self._blank_filter.filtered(events)

    def _rest(self) -> Sequence[ModelEvent]:
        left_over: Sequence[ModelEvent] = ()
        if self._result_tags is not None:
            left_over = self._blank_filter.filtered(self._result_tags.rest())
        return [*left_over, *self._blank_filter.rest()]


class _BoundedReader:
    """A reader with a limit on the size of one call. Beyond it the call is broken, and the rest of the text is dropped,
    because it may be part of the call."""

    def __init__(self, reader: TextReader, limit: int | None) -> None:
        self._reader = reader
        self._is_too_much = False
        self._limit = sys.maxsize if limit is None else limit + MARKUP
        self.has_finished = False

    def feed(self, text: str) -> list[ModelEvent]:
        if self._is_too_much:
            return []
        events = self._reader.feed(text)
        self._is_too_much = self._reader.unread_size > self._limit
        return events

    def end_hold(self) -> None:
        self._reader.end_hold()

    def finish(self, *, in_order: bool) -> list[ModelEvent]:
        self.has_finished = True
        if self._is_too_much:
            return self._reader.break_off(Flaw.ARGUMENTS_TOO_LARGE)
        return self._reader.finish(in_order=in_order)


class _BlankFilter:
    """Drops the blanks around calls, which would be blank lines at the beginning or end of the text.

    Text after a call begins a new paragraph.
    """

    def __init__(self) -> None:
        self._blanks = ""
        """Blanks that count as prose only if more prose follows."""
        self.has_text = False
        self._after_call = False

    def filtered(self, events: Sequence[ModelEvent]) -> list[ModelEvent]:
        return [emitted for event in events for emitted in self._kept(event)]

    def rest(self) -> list[ModelEvent]:
        blanks = self._blanks
        self._blanks = ""
        if blanks and not self._after_call:
            return [TextDelta(blanks)]
        return []

    def _kept(self, event: ModelEvent) -> Sequence[ModelEvent]:
        if isinstance(event, TextDelta):
            text = self._blanks + event.text
            shown = text.rstrip()
            self._blanks = text[len(shown) :]
            if not shown:
                return ()
            if self._after_call:
                shown = f"{PARAGRAPH if self.has_text else ''}{shown.lstrip()}"
            self.has_text = True
            self._after_call = False
            return (TextDelta(shown),)
        if isinstance(event, CallsNotAlone):
            text = f"{self._blanks}{event.text}".rstrip()
            return (CallsNotAlone(text if self.has_text else text.lstrip()),)
        if isinstance(event, CallWritten):
            self._blanks = ""
            self._after_call = True
        return (event,)
