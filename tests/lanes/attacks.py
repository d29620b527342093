"""Answers that providers, gateways and networks have damaged, made at random: whatever was done to one, only calls run that
its model wrote whole, with exactly the arguments it wrote, once, and only in a turn that its provider ended in order.

An answer is planned first, so that what may run of it is known without reading it. It is worded on one of the wires, then
damaged; each kind of damage says what it takes from what may run.
"""

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from callgate.calls.states import ReadyCall
from callgate.conversation.errors import AnswerTooLarge
from callgate.conversation.events import ModelEvent, ProviderError, StreamEnd
from callgate.conversation.finish_words import OPEN, FinishWords
from callgate.conversation.turn import Turn, TurnBuilder
from callgate.models.direct.model import Body, StreamedBody, WholeBody
from callgate.models.retry import first_content_event
from callgate.models.translated import bedrock, claude, cohere, gemini, messages_lane
from callgate.models.translated.responses_answer import ResponseEvents, ResponseObject
from tests.corpus.judge import offer_of
from tests.lanes.wires import frame_of

Json = dict[str, Any]
Path = tuple[str | int, ...]


def _tool(name: str, *names: str) -> Json:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


OFFER = offer_of(
    [_tool("write_file", "path", "content", "mode"), _tool("delete_all", "confirm", "where"), _tool("now")]
)
"""Nothing is required of any of them: what is lost of a call's arguments makes another call, not a broken one."""
NAMES = tuple(OFFER)


class Pairs(list[tuple[str, Any]]):
    """An object that may have a name twice."""


@dataclass(slots=True)
class Planned:
    """A call as its model meant it."""

    id: str
    name: str
    value: Json
    text: str
    pieces: list[str]
    text_is_lost: bool = False
    """Its wire has one way to write no arguments and an empty object."""


@dataclass(slots=True)
class Plan:
    """An answer as its model and its provider meant it, and what may run of it."""

    words: list[str]
    calls: list[Planned]
    reason: str
    stream: bool
    may_run: list[int] = field(default_factory=list)
    """How often each call may run."""
    copies: list[int] = field(default_factory=list)
    """How often each was sent once more, whole."""
    done_to_it: list[str] = field(default_factory=list)

    def forbid(self, call: int | None = None) -> None:
        """Nothing may run, or not this call; what was sent of it once more, before it was damaged, still may."""
        if call is None:
            self.may_run = [0 for _ in self.calls]
        elif self.may_run[call]:
            self.may_run[call] = self.copies[call]

    def forbid_blank(self) -> None:
        """No call without arguments may run: whether it has none is not known."""
        for place, call in enumerate(self.calls):
            if call.name == "now":
                continue
            if not call.text.strip() or (not call.value and call.text_is_lost):
                self.may_run[place] = 0

    @property
    def allowed(self) -> Counter[str]:
        return sum(
            (Counter({announced_call(c.name, c.value): n}) for c, n in zip(self.calls, self.may_run, strict=True)),
            Counter(),
        )


def announced_call(name: str, value: Mapping[str, Any]) -> str:
    return f"{name} {json.dumps(value, sort_keys=True)}"


def plan(chance: random.Random) -> Plan:
    calls = []
    for at in range(chance.randint(1, 3)):
        name = chance.choice(NAMES)
        declared = list(OFFER[name].parameters["properties"])
        names = chance.sample(declared, chance.randint(0, len(declared)))
        value = {one: _value(chance, at) for one in names}
        text = json.dumps(value, ensure_ascii=chance.random() < 0.5) if value or chance.random() < 0.5 else ""
        calls.append(Planned(f"call_{at}_{chance.randrange(10**6)}", name, value, text, _cut(text, chance)))
    words = [chance.choice(("I look.", "", "{}", "So: 🌤", '{"path": "/"}')) for _ in range(len(calls) + 1)]
    found = Plan(words, calls, "tool_calls", chance.random() < 0.6)
    found.may_run, found.copies = [1] * len(calls), [0] * len(calls)
    return found


def _value(chance: random.Random, at: int) -> str:
    return f"v{at}-{chance.randrange(10**9)}" + chance.choice(("", "é", '"}', "\\", "\n", "{}", "🌤", "}}"))


def _cut(text: str, chance: random.Random) -> list[str]:
    places = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randint(0, 4)))
    return [text[start:end] for start, end in itertools.pairwise([0, *places, len(text)])]


# The wires -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Event:
    """One event of a stream, and what it is about."""

    body: Any
    kind: str = ""
    call: int | None = None
    bare: bytes | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """A wire: how it words an answer, and where things stand in it."""

    events: Callable[[Plan], list[Event]]
    whole: Callable[[Plan], tuple[Json, list[Path]]]
    """The body, and where its calls stand, from which the other places go on."""
    stream_body: Callable[[], Body]
    whole_body: Callable[[], Body]
    reasons: Mapping[str, str]
    index: Path | None
    piece: Path
    """In an event."""
    open_name: Path
    open_id: Path
    reason: Path
    whole_name: Path
    whole_id: Path
    whole_arguments: Path
    whole_reason: Path
    objects: bool
    """Whole answers have objects for arguments."""
    calls_at: Path = ()
    encode: Callable[[Event], bytes] = lambda event: b"data: " + dump(event.body) + b"\n\n"


def dump(value: Any) -> bytes:
    """JSON, in which an object may have a name twice and bytes stand for themselves."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, Pairs | dict):
        pairs = value if isinstance(value, Pairs) else value.items()
        return b"{" + b", ".join(json.dumps(name).encode() + b": " + dump(item) for name, item in pairs) + b"}"
    if isinstance(value, list):
        return b"[" + b", ".join(map(dump, value)) + b"]"
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")


def _openai_events(found: Plan) -> list[Event]:
    def chunk(delta: Json, reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}

    events = [Event(chunk({"role": "assistant", "content": ""}))]
    for at, (word, call) in enumerate(itertools.zip_longest(found.words, found.calls)):
        events.append(Event(chunk({"content": word}), "text"))
        if call is not None:
            opened = {"index": at, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
            events.append(Event(chunk({"tool_calls": [opened]}), "open", at))
            for piece in call.pieces:
                entry = {"index": at, "function": {"arguments": piece}}
                events.append(Event(chunk({"tool_calls": [entry]}), "piece", at))
    return [*events, Event(chunk({}, found.reason), "reason"), Event(b"[DONE]", "end")]


def _openai_whole(found: Plan) -> tuple[Json, list[Path]]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
        for call in found.calls
    ]
    message = {"role": "assistant", "content": "".join(found.words), "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": found.reason}
    body = {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}
    return body, [("choices", 0, "message", "tool_calls", at) for at in range(len(calls))]


def _claude_events(found: Plan) -> list[Event]:
    usage = {"input_tokens": 9, "output_tokens": 9}
    head = {"id": "msg", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    events, place = [Event({"type": "message_start", "message": head})], 0
    for at, (word, call) in enumerate(itertools.zip_longest(found.words, found.calls)):
        start: Json = {"type": "text", "text": ""}
        events.append(Event({"type": "content_block_start", "index": place, "content_block": start}, "text"))
        said = {"type": "text_delta", "text": word}
        events.append(Event({"type": "content_block_delta", "index": place, "delta": said}, "text"))
        events.append(Event({"type": "content_block_stop", "index": place}, "text"))
        place += 1
        if call is not None:
            start = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            events.append(Event({"type": "content_block_start", "index": place, "content_block": start}, "open", at))
            for piece in call.pieces:
                said = {"type": "input_json_delta", "partial_json": piece}
                events.append(Event({"type": "content_block_delta", "index": place, "delta": said}, "piece", at))
            events.append(Event({"type": "content_block_stop", "index": place}, "close", at))
            place += 1
    last = {"type": "message_delta", "delta": {"stop_reason": found.reason}, "usage": usage}
    return [*events, Event(last, "reason"), Event({"type": "message_stop"}, "end")]


def _claude_whole(found: Plan) -> tuple[Json, list[Path]]:
    content: list[Any] = []
    paths: list[Path] = []
    for word, call in itertools.zip_longest(found.words, found.calls):
        if word:
            content.append({"type": "text", "text": word})
        if call is not None:
            paths.append(("content", len(content)))
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.value})
    usage = {"input_tokens": 9, "output_tokens": 9}
    head = {"id": "msg", "type": "message", "role": "assistant", "model": "m"}
    return {**head, "content": content, "stop_reason": found.reason, "usage": usage}, paths


def _google(parts: list[Json], reason: str | None) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
    if reason is not None:
        candidate["finishReason"] = reason
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 9, "totalTokenCount": 18}
    return {"candidates": [candidate], "usageMetadata": usage, "responseId": "r", "modelVersion": "m"}


def _google_events(found: Plan) -> list[Event]:
    events: list[Event] = []
    for at, (word, call) in enumerate(itertools.zip_longest(found.words, found.calls)):
        events.append(Event(_google([{"text": word}], None), "text"))
        if call is not None:
            part = {"functionCall": {"id": call.id, "name": call.name, "args": call.value}}
            events.append(Event(_google([part], None), "piece", at))
    return [*events, Event(_google([], found.reason), "reason")]


def _google_whole(found: Plan) -> tuple[Json, list[Path]]:
    parts: list[Json] = []
    paths: list[Path] = []
    for word, call in itertools.zip_longest(found.words, found.calls):
        parts.append({"text": word})
        if call is not None:
            paths.append(("candidates", 0, "content", "parts", len(parts)))
            parts.append({"functionCall": {"id": call.id, "name": call.name, "args": call.value}})
    return _google(parts, found.reason), paths


def _bedrock_events(found: Plan) -> list[Event]:
    events, place = [Event(("messageStart", {"role": "assistant"}))], 0
    for at, (word, call) in enumerate(itertools.zip_longest(found.words, found.calls)):
        delta: Json = {"text": word}
        events.append(Event(("contentBlockDelta", {"contentBlockIndex": place, "delta": delta}), "text"))
        events.append(Event(("contentBlockStop", {"contentBlockIndex": place}), "text"))
        place += 1
        if call is not None:
            start = {"toolUse": {"toolUseId": call.id, "name": call.name}}
            events.append(Event(("contentBlockStart", {"contentBlockIndex": place, "start": start}), "open", at))
            for piece in call.pieces:
                delta = {"toolUse": {"input": piece}}
                events.append(Event(("contentBlockDelta", {"contentBlockIndex": place, "delta": delta}), "piece", at))
            events.append(Event(("contentBlockStop", {"contentBlockIndex": place}), "close", at))
            place += 1
    usage = {"inputTokens": 9, "outputTokens": 9, "totalTokens": 18}
    return [
        *events,
        Event(("messageStop", {"stopReason": found.reason}), "reason"),
        Event(("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}), "end"),
    ]


def _bedrock_whole(found: Plan) -> tuple[Json, list[Path]]:
    content: list[Json] = []
    paths: list[Path] = []
    for word, call in itertools.zip_longest(found.words, found.calls):
        content.append({"text": word})
        if call is not None:
            paths.append(("output", "message", "content", len(content)))
            content.append({"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.value}})
    message = {"role": "assistant", "content": content}
    usage = {"inputTokens": 9, "outputTokens": 9, "totalTokens": 18}
    return {"output": {"message": message}, "stopReason": found.reason, "usage": usage}, paths


COHERE_USAGE = {"billed_units": {}, "tokens": {"input_tokens": 9, "output_tokens": 9}}


def _cohere_events(found: Plan) -> list[Event]:
    events = [Event({"type": "message-start", "id": "c1", "delta": {"message": {"role": "assistant"}}})]
    for at, (word, call) in enumerate(itertools.zip_longest(found.words, found.calls)):
        message: Json = {"content": {"text": word}}
        events.append(Event({"type": "content-delta", "index": at, "delta": {"message": message}}, "text"))
        if call is not None:
            entry = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
            message = {"tool_calls": entry}
            events.append(Event({"type": "tool-call-start", "index": at, "delta": {"message": message}}, "open", at))
            for piece in call.pieces:
                message = {"tool_calls": {"function": {"arguments": piece}}}
                said = {"type": "tool-call-delta", "index": at, "delta": {"message": message}}
                events.append(Event(said, "piece", at))
            events.append(Event({"type": "tool-call-end", "index": at}, "close", at))
    last = {"type": "message-end", "delta": {"finish_reason": found.reason, "usage": COHERE_USAGE}}
    return [*events, Event(last, "reason")]


def _cohere_whole(found: Plan) -> tuple[Json, list[Path]]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
        for call in found.calls
    ]
    content = [{"type": "text", "text": word} for word in found.words]
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    body = {"id": "c1", "finish_reason": found.reason, "message": message, "usage": COHERE_USAGE}
    return body, [("message", "tool_calls", at) for at in range(len(calls))]


def _response_events(found: Plan) -> list[Event]:
    output, _ = _response_output(found)
    events = [Event({"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}})]
    calls = iter(range(len(found.calls)))
    for place, item in enumerate(output):
        if item["type"] == "message":
            said = {"type": "response.output_text.delta", "output_index": place, "content_index": 0}
            events.append(Event({**said, "delta": item["content"][0]["text"]}, "text"))
            continue
        at, about = next(calls), "response.function_call_arguments"
        begun = {**item, "arguments": "", "status": "in_progress"}
        added = {"type": "response.output_item.added", "output_index": place, "item": begun}
        events.append(Event(added, "open", at))
        events += [
            Event({"type": f"{about}.delta", "output_index": place, "delta": piece}, "piece", at)
            for piece in found.calls[at].pieces
        ]
        done = {"type": f"{about}.done", "output_index": place, "arguments": item["arguments"]}
        events.append(Event(done, "close", at))
        events.append(Event({"type": "response.output_item.done", "output_index": place, "item": item}, "close", at))
    response = {"id": "r", "object": "response", "model": "m", "status": found.reason, "output": output}
    return [*events, Event({"type": "response.completed", "response": response}, "reason")]


def _response_output(found: Plan) -> tuple[list[Json], list[Path]]:
    output: list[Json] = []
    paths: list[Path] = []
    for word, call in itertools.zip_longest(found.words, found.calls):
        if word:
            content: list[Json] = [{"type": "output_text", "text": word, "annotations": []}]
            output.append({"type": "message", "role": "assistant", "status": "completed", "content": content})
        if call is not None:
            paths.append(("output", len(output)))
            made = {"call_id": call.id, "name": call.name, "arguments": call.text}
            output.append({"type": "function_call", "id": f"fc_{call.id}", "status": "completed", **made})
    return output, paths


def _response_whole(found: Plan) -> tuple[Json, list[Path]]:
    output, paths = _response_output(found)
    return {"id": "r", "object": "response", "model": "m", "status": found.reason, "output": output}, paths


def _unread(error: Exception) -> None:
    """What cannot be read is broken off by its reader."""


@cache
def _litellm() -> Any:
    from callgate.models.litellm_model import _load

    return _load()


def _claude_parser() -> Any:
    _litellm()
    from litellm.llms.anthropic.chat.handler import ModelResponseIterator

    return ModelResponseIterator(streaming_response=None, sync_stream=False, json_mode=False)


def _claude_message() -> Body:
    litellm = _litellm()
    whole = claude._Whole(litellm.AnthropicConfig(), litellm.ModelResponse(), None, _claude_parser())
    return claude.MessageReader(whole, _unread)


def _google_parser() -> Any:
    _litellm()
    from litellm.llms.vertex_ai.gemini.vertex_and_google_ai_studio_gemini import ModelResponseIterator

    return ModelResponseIterator(
        streaming_response=None, sync_stream=False, logging_obj=SimpleNamespace(optional_params={})
    )


def _google_message() -> Body:
    return gemini.GeminiMessage("m", SimpleNamespace(optional_params={}), _unread)


def _named(event: Event) -> bytes:
    kind = event.body.get("type") if isinstance(event.body, dict) else None
    return (f"event: {kind}\n".encode() if isinstance(kind, str) else b"") + b"data: " + dump(event.body) + b"\n\n"


def _framed(event: Event) -> bytes:
    kind, payload = event.body
    return frame_of(kind, dump(payload), "exception" if "xception" in kind else "event")


_CALL: Path = ("choices", 0, "delta", "tool_calls", 0)
CLAUDE_REASONS = {
    "tool_calls": "tool_use",
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "refusal",
    "error": "error",
}
_CLAUDE = partial(
    Shape, _claude_events, _claude_whole, reasons=CLAUDE_REASONS, index=("index",), piece=("delta", "partial_json"),
    open_name=("content_block", "name"), open_id=("content_block", "id"), reason=("delta", "stop_reason"),
    whole_name=("name",), whole_id=("id",), whole_arguments=("input",), whole_reason=("stop_reason",), objects=True,
    calls_at=("content",), encode=_named,
)  # fmt: skip
SHAPES: Mapping[str, Shape] = {
    "openai": Shape(
        _openai_events, _openai_whole, StreamedBody, WholeBody,
        {"tool_calls": "tool_calls", "stop": "stop", "length": "length", "content_filter": "content_filter", "error": "error"},
        (*_CALL, "index"), (*_CALL, "function", "arguments"), (*_CALL, "function", "name"), (*_CALL, "id"),
        ("choices", 0, "finish_reason"), ("function", "name"), ("id",), ("function", "arguments"),
        ("choices", 0, "finish_reason"), objects=False, calls_at=("choices", 0, "message", "tool_calls"),
    ),
    "anthropic": _CLAUDE(
        stream_body=lambda: claude.EventsReader(_claude_parser(), False, _unread), whole_body=_claude_message
    ),
    "messages": _CLAUDE(
        stream_body=lambda: messages_lane.MessageEventsReader(_unread), whole_body=lambda: messages_lane._ClaudeMessage(_unread)
    ),
    "gemini": Shape(
        _google_events, _google_whole, lambda: gemini.GeminiEvents(_google_parser(), _unread), _google_message,
        {"tool_calls": "STOP", "stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY", "error": "MALFORMED_FUNCTION_CALL"},
        None, ("candidates", 0, "content", "parts", 0, "functionCall", "args"),
        ("candidates", 0, "content", "parts", 0, "functionCall", "name"),
        ("candidates", 0, "content", "parts", 0, "functionCall", "id"), ("candidates", 0, "finishReason"),
        ("functionCall", "name"), ("functionCall", "id"), ("functionCall", "args"), ("candidates", 0, "finishReason"),
        objects=True, calls_at=("candidates", 0, "content", "parts"),
    ),
    "bedrock": Shape(
        _bedrock_events, _bedrock_whole, lambda: bedrock.Frames({}, _unread), lambda: bedrock.BedrockMessage({}, _unread),
        {**CLAUDE_REASONS, "content_filter": "guardrail_intervened"}, ("contentBlockIndex",), ("delta", "toolUse", "input"),
        ("start", "toolUse", "name"), ("start", "toolUse", "toolUseId"), ("stopReason",), ("toolUse", "name"),
        ("toolUse", "toolUseId"), ("toolUse", "input"), ("stopReason",), objects=True,
        calls_at=("output", "message", "content"), encode=_framed,
    ),
    "responses": Shape(
        _response_events, _response_whole, lambda: ResponseEvents("m"), lambda: ResponseObject("m"),
        {"tool_calls": "completed", "stop": "completed", "length": "incomplete", "content_filter": "failed", "error": "failed"},
        ("output_index",), ("delta",), ("item", "name"), ("item", "call_id"), ("response", "status"), ("name",), ("call_id",),
        ("arguments",), ("status",), objects=False, calls_at=("output",), encode=_named,
    ),
    "cohere": Shape(
        _cohere_events, _cohere_whole, lambda: cohere.CohereEvents("m", _unread), lambda: cohere.CohereMessage("m", _unread),
        {"tool_calls": "TOOL_CALL", "stop": "COMPLETE", "length": "MAX_TOKENS", "content_filter": "ERROR_TOXIC", "error": "ERROR"},
        ("index",), ("delta", "message", "tool_calls", "function", "arguments"),
        ("delta", "message", "tool_calls", "function", "name"), ("delta", "message", "tool_calls", "id"),
        ("delta", "finish_reason"), ("function", "name"), ("id",), ("function", "arguments"), ("finish_reason",),
        objects=False, calls_at=("message", "tool_calls"), encode=_named,
    ),
}  # fmt: skip


# Damage ----------------------------------------------------------------------------------------------------------------


def at(body: Any, path: Path) -> Any:
    for step in path:
        body = (body[1] if isinstance(body, tuple) else body)[step]
    return body


def _holder(event: Event) -> Any:
    return event.body[1] if isinstance(event.body, tuple) else event.body


def put(body: Any, path: Path, value: Any) -> None:
    holder = at(body[1] if isinstance(body, tuple) else body, path[:-1])
    holder[path[-1]] = value


def _twice(holder: Any, path: Path, other: Any, chance: random.Random) -> Any:
    """The same with the last name of the path twice in its object."""
    if len(path) > 1:
        inner = holder[path[0]]
        changed = _twice(inner, path[1:], other, chance)
        if isinstance(holder, list):
            return [changed if place == path[0] else one for place, one in enumerate(holder)]
        return {**holder, path[0]: changed}
    pairs = Pairs(holder.items())
    pairs.insert(chance.choice((0, len(pairs))), (str(path[0]), other))
    return pairs


ERRORS: Sequence[Any] = (
    {"error": {"message": "overloaded", "code": 529}}, {"error": "boom"}, {"error": 1}, {"error": ["x"]},
    {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, {"object": "error", "message": "x"},
    {"detail": "Internal"}, {"detail": [{"msg": "x"}]}, {"code": 500, "message": "x"}, {"type": "server_error"},
    {"code": "bad", "message": "x", "choices": []}, {"errors": [{"message": "x"}]}, {"event": "error", "data": "x"},
    {"status": 500, "title": "x"}, {"error_message": "x"}, {"base_resp": {"status_code": 1002, "status_msg": "x"}},
)  # fmt: skip
MARKS_BEHIND_REASONS = frozenset({"openai", "anthropic", "messages"})
"""Wires with an end mark in an event of its own."""
FINISH_WORDS: Mapping[str, FinishWords] = {
    "openai": OPEN,
    "anthropic": claude.WORDS,
    "messages": claude.WORDS,
    "gemini": gemini.WORDS,
    "bedrock": bedrock.WORDS,
    "cohere": cohere.WORDS,
}
"""The finish reasons that each wire has; the Responses API has a status instead."""
WORDS: Mapping[str, Sequence[str]] = {
    "stop": ("stop", "STOP", "end-turn", "eos", "done", "whatever", "tool_use", "FUNCTION_CALL"),
    "length": ("length", "MAX_TOKENS", "max_output_tokens", "context-overflow", "truncated", "token_limit"),
    "content_filter": ("SAFETY", "content-filter", "SPII", "BLOCKLIST", "refusal", "guardrail_x", "RECITATION", "policy"),
    "error": ("error", "MALFORMED_FUNCTION_CALL", "abort", "cancelled", "UnavailableX", "insufficient_quota", "ERROR_LIMIT",
              "max_retries_error", "requestTimeout", "malformed_model_output"),
}  # fmt: skip


class Attack:
    """One planned answer on one wire, damaged."""

    def __init__(self, wire: str, seed: int) -> None:
        self.chance = random.Random(f"{wire} {seed}")
        self.wire, self.shape, self.plan = wire, SHAPES[wire], plan(self.chance)
        self.names = [call.name for call in self.plan.calls]
        self.worst = "tool_calls"
        self.plan.reason = self.shape.reasons[self.chance.choice(("tool_calls", "tool_calls", "stop"))]
        self.end = "whole"
        self.reason_damaged = self.pieces_damaged = False
        for call in self.plan.calls:
            call.text_is_lost = self.wire == "gemini" or (self.shape.objects and not self.plan.stream)
        self.body = self._streamed() if self.plan.stream else self._whole()

    # -- streams

    def _streamed(self) -> bytes:
        self.events = self.shape.events(self.plan)
        for damage in self.chance.sample(STREAM_DAMAGE, self.chance.randint(0, 3)):
            before = len(self.plan.done_to_it)
            damage(self)
            assert len(self.plan.done_to_it) <= before + 1
        data = [event.bare if event.bare is not None else self.shape.encode(event) for event in self.events]
        if self.end == "cut":
            whole = b"".join(data)
            return whole[: self.chance.randrange(len(whole))] if self.chance.random() < 0.5 else whole
        return b"".join(data)

    def _of(self, *kinds: str) -> list[int]:
        return [place for place, event in enumerate(self.events) if event.kind in kinds and event.bare is None]

    def _note(self, what: str) -> None:
        self.plan.done_to_it.append(what)

    def cut_body(self) -> None:
        """The body ends before the provider gave its reason."""
        last = self._of("reason")
        if not last:
            return
        self._note("cut body")
        del self.events[self.chance.randrange(1, last[0] + 1) :]
        self.end = "cut"
        self.plan.forbid()

    def lose_the_end(self) -> None:
        """The reason was given; the end mark never comes, and the body ends in order. Where the end mark has the reason, calls
        without arguments are not known to have none."""
        ends = self._of("end")
        if ends and self.wire != "bedrock":
            self._note("no end mark")
            del self.events[ends[0] :]
            if self.wire not in MARKS_BEHIND_REASONS:
                self.plan.forbid_blank()

    def lose_the_reason(self) -> None:
        found = self._of("reason")
        if found and self.wire != "gemini" and self._may_change_reason():
            self._note("no reason")
            put(self.events[found[0]].body, self.shape.reason, None)
            self.plan.forbid_blank()

    def _may_change_reason(self) -> bool:
        """Once: what a second change would take back the first has taken from what may run."""
        before, self.reason_damaged = self.reason_damaged, True
        return not before

    def _may_change_pieces(self) -> bool:
        """Once: of a call that is sent twice, all that one of the two loses may be all that it had."""
        before, self.pieces_damaged = self.pieces_damaged, True
        return not before

    def another_reason(self) -> None:
        kind = self.chance.choice(tuple(WORDS))
        word = self.chance.choice(WORDS[kind])
        found = self._of("reason")
        if not found or not self._may_change_reason():
            return
        self._note(f"reason {word}")
        beside = False
        if self.chance.random() < 0.3 and self.wire not in {
            "cohere",
            "gemini",
            "responses",
        }:  # beside the one there was
            beside = True
            extra = deepcopy(self.events[found[0]])
            put(extra.body, self.shape.reason, word)
            self.events.insert(found[0] + self.chance.randint(0, 1), extra)
        else:
            put(self.events[found[0]].body, self.shape.reason, word)
        self._reasoned(kind, beside=beside)
        if self.wire in FINISH_WORDS and not FINISH_WORDS[self.wire].judge(word).is_known:
            self.plan.forbid()

    def _reasoned(self, kind: str, *, beside: bool = False) -> None:
        if kind in ("error", "content_filter"):
            self.plan.forbid()
        if kind == "length":
            last = len(self.plan.calls) - 1
            call = self.plan.calls[last]
            may_be_cut = call.text_is_lost and not self.plan.words[-1]  # else what follows shows that it was over
            has_no_order = not self.plan.stream and self.wire in {"openai", "cohere", "responses"}
            if may_be_cut or has_no_order or (not call.value and call.name != "now"):
                self.plan.may_run[last] = 0
            if not beside:  # else one of the two says that the turn ended in order
                self.plan.forbid_blank()

    def report_an_error(self) -> None:
        error = deepcopy(self.chance.choice(ERRORS))
        ends = self._of("end") or ([len(self.events)] if self.wire == "gemini" else self._of("reason"))
        if not ends:
            return
        self._note(f"error {error}")
        where = self.chance.randrange(1, ends[0] + 1)
        if self.wire == "bedrock":
            kind = self.chance.choice(
                ("throttlingException", "modelStreamErrorException", "internalServerException", "", "error")
            )
            event = Event((kind or "contentBlockDelta", error if kind == "" else {"message": "x"}), "error")
        elif self.chance.random() < 0.3:
            text = self.chance.choice((b"boom", b'{"message": "x"}', dump(error), b""))
            event = Event(None, "error", bare=b"event: error\ndata: " + text + b"\n\n")
        else:
            event = Event(error, "error")
        self.events.insert(where, event)
        self.plan.forbid()

    def lose_pieces(self) -> None:
        """The first or the last words of a call's arguments do not come."""
        calls = [place for place, call in enumerate(self.plan.calls) if call.text.strip() and call.value]
        if not calls:
            return
        call = self.chance.choice(calls)
        pieces = [p for p in self._of("piece") if self.events[p].call == call]
        words = (
            [p for p in pieces if str(at(self.events[p].body, self.shape.piece) or "").strip()]
            if self.wire != "gemini"
            else []
        )
        if not words:
            return
        if len(words) < 2 or not self._may_change_pieces():
            return  # that there was anything shows in nothing
        self._note(f"lost pieces of {call}")
        count = self.chance.randint(1, len(words) - 1)
        lost = words[:count] if self.chance.random() < 0.4 else words[-count:]
        for place in reversed(lost):
            del self.events[place]
        self.plan.forbid(call)

    def twice_a_name(self) -> None:
        """A field of an event stands twice in it, with two values."""
        choices = []
        if found := self._of("piece"):
            choices.append(
                (
                    self.chance.choice(found),
                    self.shape.piece,
                    self.chance.choice(('{"path": "other"}', "{}", "", "}", {"path": "other"})),
                )
            )
        if found := self._of("open"):
            choices.append((self.chance.choice(found), self.shape.open_name, self.chance.choice(NAMES)))
        if found := self._of("reason"):
            choices.append(
                (found[0], self.shape.reason, self.shape.reasons[self.chance.choice(("error", "content_filter"))])
            )
        if not choices:
            return
        place, path, other = self.chance.choice(choices)
        event = self.events[place]
        if at(event.body, path) == other or (isinstance(other, str) and other == "" == at(event.body, path)):
            return
        self._note(f"twice {path[-1]}")
        holder = _twice(_holder(event), path, other, self.chance)
        event.bare = self.shape.encode(Event((event.body[0], holder) if isinstance(event.body, tuple) else holder))
        self.plan.forbid(event.call)

    def damage_bytes(self) -> None:
        """Bytes that are no UTF-8 in a call's arguments."""
        found = [
            p
            for p in self._of("piece")
            if isinstance(at(self.events[p].body, self.shape.piece), str) and at(self.events[p].body, self.shape.piece)
        ]
        if not found:
            return
        event = self.events[self.chance.choice(found)]
        if not self._may_change_pieces():
            return
        self._note("no UTF-8")
        piece = json.dumps(at(event.body, self.shape.piece), ensure_ascii=False).encode()
        where = self.chance.randrange(1, len(piece))
        while piece[where - 1 : where] == b"\\" or (len(piece) > where and piece[where] & 0xC0 == 0x80):
            where -= 1
            if where < 1:
                return
        put(
            event.body,
            self.shape.piece,
            piece[:where] + self.chance.choice((b"\xff", b"\xc3", b"\xed\xa0\x80")) + piece[where:],
        )
        assert event.call is not None
        self.plan.forbid(event.call)

    def odd_piece(self) -> None:
        """Something else than text in the place of a piece."""
        found = self._of("piece")
        if not found:
            return
        event = self.events[self.chance.choice(found)]
        alone = (
            self.wire != "gemini" and sum(bool(piece.strip()) for piece in self.plan.calls[event.call or 0].pieces) < 2
        )
        odd: Any = self.chance.choice(([1], 7, True, {"path": "x"}, [{}], 0.5))
        if isinstance(odd, dict) and (self.wire == "gemini" or alone or not self.plan.calls[event.call or 0].value):
            return  # for all that shows, the call's own arguments
        if not self._may_change_pieces():
            return
        self._note(f"piece {odd}")
        put(event.body, self.shape.piece, odd)
        assert event.call is not None
        self.plan.forbid(event.call)

    def other_index(self) -> None:
        """Indexes of another type, or one piece of a call with another index."""
        if self.shape.index is None:
            return
        kind = self.chance.choice(("text", "float", "text-float", "none", "shift"))
        found = self._of("open", "piece", "close")
        if not found or (kind == "none" and "interleaved" in self.plan.done_to_it):
            return
        if kind in ("none", "shift") and not self._may_change_pieces():
            return
        self._note(f"index {kind}")
        if kind == "shift":
            calls = sorted({self.events[p].call or 0 for p in found})
            call = self.chance.choice(calls)
            pieces = [p for p in self._of("piece") if self.events[p].call == call]
            pieces = [p for p in pieces if at(self.events[p].body, self.shape.piece)]
            if pieces:
                opened = self._of("open")
                indexes = {at(self.events[p].body, self.shape.index): self.events[p].call or 0 for p in opened}
                other = self.chance.choice(
                    [i for i in (0, 1, 2, 3, 9, -1) if i not in indexes or self.plan.calls[indexes[i]].value]
                )
                # In another call it may stand as well as in its own, unless it has the beginning or the end of its object.
                place = self.chance.choice((pieces[0], pieces[-1]) if other in indexes else pieces)
                put(self.events[place].body, self.shape.index, other)
            return
        form: Any = {"text": str, "float": float, "text-float": lambda i: f"{i}.0", "none": lambda i: None}[kind]
        for place in found:
            index = at(self.events[place].body, self.shape.index)
            if isinstance(index, int):
                put(self.events[place].body, self.shape.index, form(index))

    def send_again(self) -> None:
        """All that was said of a call once more, at its place or at another, under its id or another."""
        call = self.chance.randrange(len(self.plan.calls))
        found = [deepcopy(e) for e in self.events if e.call == call and e.bare is None]
        last = self._of("reason")
        if not found or not last or not self._may_change_reason() or not self._may_change_pieces():
            return
        kind = self.chance.choice(("same", "index", "id"))
        self._note(f"again {kind} {call}")
        for event in found:
            if kind != "same" and self.shape.index is not None:
                put(event.body, self.shape.index, 17)
            if kind == "id" and event.kind == "open":
                put(event.body, self.shape.open_id, "call_other")
            if kind == "id" and self.wire == "gemini":
                put(event.body, self.shape.open_id, "call_other")
        self.events[last[0] : last[0]] = found
        self.plan.copies[call] = self.plan.may_run[call]
        if kind == "id":
            self.plan.may_run[call] *= 2

    def repeat_an_event(self) -> None:
        found = self._of("open", "piece", "close", "reason")
        if found and self._may_change_pieces() and self._may_change_reason():
            place = self.chance.choice(found)
            piece = at(self.events[place].body, self.shape.piece) if self.events[place].kind == "piece" else None
            if piece not in (None, "", self.plan.calls[self.events[place].call or 0].text):
                return  # whether the model wrote it twice shows in nothing
            self._note(f"repeated {self.events[place].kind} {place}")
            self.events.insert(place, deepcopy(self.events[place]))

    def interleave(self) -> None:
        """Pieces of calls between one another, each in its order behind its opening."""
        last = self._of("reason")
        if not last or self.wire == "gemini" or "index none" in self.plan.done_to_it or not self._may_change_reason():
            return
        self._note("interleaved")
        head, body, tail = self.events[:1], self.events[1 : last[0]], self.events[last[0] :]
        queues = [[e for e in body if e.call == call] for call in (None, *range(len(self.plan.calls)))]
        mixed = []
        while any(queues):
            queue = self.chance.choice([q for q in queues if q])
            mixed.append(queue.pop(0))
        self.events = [*head, *mixed, *tail]

    def rename_ids(self) -> None:
        """Ids that change with every piece, as on some servers of OpenAI's shape."""
        if self.wire != "openai" or self.plan.done_to_it or not self._may_change_pieces():
            return  # a piece that is a whole call under its own id may be one
        self._note("ids renamed")
        names = self.chance.random() < 0.5
        for place in self._of("piece"):
            entry = at(self.events[place].body, _CALL)
            entry["id"] = f"call_{self.chance.randrange(10**6)}"
            if names:
                entry["function"]["name"] = self.plan.calls[self.events[place].call or 0].name

    def lose_the_opening(self) -> None:
        found = self._of("open")
        if found and self._may_change_pieces():
            place = self.chance.choice(found)
            call = self.events[place].call
            assert call is not None
            what = self.chance.choice(("event", "name", "id"))
            self._note(f"opening without {what} {call}")
            if what == "event":
                del self.events[place]
                self.plan.forbid(call)
            elif what == "name":
                put(self.events[place].body, self.shape.open_name, self.chance.choice((None, "", 5)))
                self.plan.forbid(call)
            else:
                put(self.events[place].body, self.shape.open_id, self.chance.choice((None, "", 7, "same")))

    def lose_closings(self) -> None:
        self._note("closings lost")
        self.events = [e for e in self.events if e.kind != "close" or self.chance.random() < 0.5]

    def put_in_noise(self) -> None:
        if self.wire == "bedrock":
            noise = Event((self.chance.choice(("ping", "futureEvent")), {"p": "abcd"}))
        else:
            noise = Event(
                None,
                bare=self.chance.choice(
                    (
                        b": ping\n\n",
                        b'event: ping\ndata: {"type": "ping"}\n\n',
                        b"data: : keepalive\n\n",
                        b"data: {}\n\n",
                        b"\n\n",
                        b'data: {"type": "vendor.note", "x": 1}\n\n',
                    )
                ),
            )
        self._note("noise")
        self.events.insert(self.chance.randrange(1, len(self.events) + 1), noise)

    # -- whole answers

    def _whole(self) -> bytes:
        self.tree, self.paths = self.shape.whole(self.plan)
        self.raw = b""
        for damage in self.chance.sample(WHOLE_DAMAGE, self.chance.randint(0, 2)):
            if not self.raw:
                damage(self)
        data = self.raw or dump(self.tree)
        if self.chance.random() < 0.1:
            self._note("cut")
            self.plan.forbid()
            data = data[: self.chance.randrange(1, len(data))]
        return data

    def whole_reason(self) -> None:
        kind = self.chance.choice(tuple(WORDS))
        word = self.chance.choice(WORDS[kind])
        if not self._may_change_reason():
            return
        self._note(f"reason {word}")
        put(self.tree, self.shape.whole_reason, word)
        self._reasoned(kind)

    def whole_without_reason(self) -> None:
        if not self._may_change_reason():
            return
        self._note("no reason")
        put(self.tree, self.shape.whole_reason, None)
        self.plan.forbid_blank()

    def whole_error(self) -> None:
        self._note("error")
        self.tree |= {"error": self.chance.choice(({"message": "x"}, "x", 5, ["x"]))}
        self.plan.forbid()

    def whole_twice(self) -> None:
        call = self.chance.randrange(len(self.paths))
        path, other = self.chance.choice((
            (self.shape.whole_arguments, self.chance.choice(('{"path": "o"}', {"path": "o"}))),
            (self.shape.whole_name, "other"),
            (None, self.shape.reasons[self.chance.choice(("error", "content_filter"))]),
        ))  # fmt: skip
        self._note(f"twice {path[-1] if path else 'reason'}")
        full = (*self.paths[call], *path) if path else self.shape.whole_reason
        self.raw = dump(_twice(self.tree, full, other, self.chance))
        self.plan.forbid(call if path else None)

    def whole_odd_arguments(self) -> None:
        call = self.chance.randrange(len(self.paths))
        odd: Any = self.chance.choice(
            (
                [1],
                7,
                True,
                False,
                0,
                [],
                [{}],
                0.5,
                "x",
                "[]",
                '{"path": "',
                '{"path": "o"',
                b'"\xff"',
                b'{"path": "\xff"}',
            )
        )
        self._note(f"arguments {odd!r}")
        put(self.tree, (*self.paths[call], *self.shape.whole_arguments), odd)
        self.plan.forbid(call)

    def whole_again(self) -> None:
        call = self.chance.randrange(len(self.paths))
        entry = deepcopy(at(self.tree, self.paths[call]))
        if not self._may_change_reason():
            return  # which of them is the last
        other = self.chance.random() < 0.3
        self._note(f"again {call} {other}")
        self.plan.copies[call] = self.plan.may_run[call]
        if other:
            put(entry, self.shape.whole_id, "call_other")
            self.plan.may_run[call] *= 2
        at(self.tree, self.shape.calls_at).append(entry)

    def whole_odd_name(self) -> None:
        call = self.chance.randrange(len(self.paths))
        odd: Any = self.chance.choice((None, "", 5, ["write_file"], {}))
        self._note(f"name {odd!r}")
        put(self.tree, (*self.paths[call], *self.shape.whole_name), odd)
        self.plan.forbid(call)

    def whole_other_entries(self) -> None:
        if not self._may_change_reason():
            return  # which of them is the last
        self._note("other entries")
        holder = at(self.tree, self.shape.calls_at)
        if self.wire in ("openai", "cohere"):
            holder.append(self.chance.choice((None, 5, "x", {}, {"function": None}, [])))
        else:
            holder.append(self.chance.choice((None, 5, "x", {}, {"type": "text", "text": ""}, {"text": ""}, [])))


STREAM_DAMAGE = (
    Attack.cut_body, Attack.lose_the_end, Attack.lose_the_reason, Attack.another_reason, Attack.report_an_error,
    Attack.lose_pieces, Attack.twice_a_name, Attack.damage_bytes, Attack.odd_piece, Attack.other_index, Attack.send_again,
    Attack.repeat_an_event, Attack.interleave, Attack.rename_ids, Attack.lose_the_opening, Attack.lose_closings,
    Attack.put_in_noise,
)  # fmt: skip
WHOLE_DAMAGE = (
    Attack.whole_reason, Attack.whole_without_reason, Attack.whole_error, Attack.whole_twice, Attack.whole_odd_arguments,
    Attack.whole_again, Attack.whole_odd_name, Attack.whole_other_entries,
)  # fmt: skip


# What runs of it -------------------------------------------------------------------------------------------------------


def turn_of_reads(body: Body, reads: Iterable[bytes]) -> Turn | None:
    """The turn that comes of a body; None where it is refused before it has begun. As `HttpAnswer` reads it."""
    building, begun = TurnBuilder(offer=OFFER, ids=map("made_{}".format, itertools.count()).__next__), False

    def took(batch: Sequence[ModelEvent]) -> bool:
        nonlocal begun
        if batch and not begun:
            first = first_content_event(batch)
            if isinstance(first, ProviderError):
                return False
            begun = first is not None
        building.feed(batch)
        return True

    try:
        for data in reads:
            if not took(body.feed(data)):
                return None
            if body.is_done or body.fault is not None:
                break
        else:
            if not took(body.finish()):
                return None
    except AnswerTooLarge:
        return None
    if not begun:
        return None
    end = (
        StreamEnd.ERROR
        if body.fault is not None
        else StreamEnd.DONE
        if body.is_done or body.has_ended
        else StreamEnd.EOF
    )
    return building.finish(end)


def executed(turn: Turn | None) -> Counter[str]:
    calls = turn.calls if turn is not None else ()
    return Counter(announced_call(call.name, call.arguments) for call in calls if isinstance(call, ReadyCall))


def outcome(wire: str, seed: int) -> tuple[Attack, Counter[str], Counter[str]]:
    """An attack, what ran of it, and what ran that must not."""
    attack = Attack(wire, seed)
    make = attack.shape.stream_body if attack.plan.stream else attack.shape.whole_body
    ran = executed(turn_of_reads(make(), [attack.body]))
    chance = random.Random(seed)
    places = sorted(chance.randrange(len(attack.body) + 1) for _ in range(chance.randint(0, 6)))
    reads = [attack.body[a:b] for a, b in itertools.pairwise([0, *places, len(attack.body)])]
    again = executed(turn_of_reads(make(), [read for read in reads if read]))
    if again != ran:
        attack.plan.done_to_it.append("cut on its way, and that makes a difference")
        return attack, ran, (ran - again) + (again - ran)
    return attack, ran, ran - attack.plan.allowed


@dataclass(slots=True)
class AttackFigures:
    """What became of the attacks on one wire."""

    wire: str
    tried: int = 0
    ran: int = 0
    possible: int = 0
    """How many calls may have run."""
    wrong: list[str] = field(default_factory=list)
    """What ran and must not have: the seed, what was done to the answer, the calls."""

    def line(self) -> str:
        counts = f"{self.ran:6} calls ran of {self.possible:6} that were whole, {len(self.wrong)} answers ran more"
        return f"{self.wire:10} {self.tried:6} damaged answers, {counts}"


def search(wire: str, seeds: Iterable[int]) -> AttackFigures:
    figures = AttackFigures(wire)
    for seed in seeds:
        attack, ran, wrong = outcome(wire, seed)
        figures.tried += 1
        figures.ran += ran.total()
        figures.possible += attack.plan.allowed.total()
        if wrong:
            figures.wrong.append(f"{wire} {seed}, {', '.join(attack.plan.done_to_it)}: {dict(wrong)}")
    return figures
