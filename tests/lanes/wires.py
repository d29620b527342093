"""A case of the corpus as other providers would have sent it: the same text, calls, pieces, reason and end on their wires.

Cases whose quirk only OpenAI's shape can have (no index, an object for arguments, growing names) have no other form and raise
`Inexpressible`; the providers whose wire is OpenAI's are played those as well.
"""

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from callgate.conversation.finish import classify
from callgate.conversation.finish_words import OPEN, FinishClass

Json = dict[str, Any]
VERBATIM = "\u2603verbatim\u2603"


class Inexpressible(Exception):
    """This wire has no form for what the case is about."""


@dataclass(slots=True)
class Call:
    id: str
    name: str
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> Any:
        """What a wire that sends objects would carry, to be written by `_text`; text that is none stays text, which no
        provider sends."""
        text = "".join(self.pieces).strip()
        if not text:
            return {}
        try:
            json.loads(text)
        except ValueError:
            return text
        return f"{VERBATIM}{text}{VERBATIM}"


@dataclass(slots=True)
class WireEvent:
    """What a case says, without the shape it says it in: text and pieces of calls in order, the reason, the end."""

    steps: list[str | tuple[Call, str]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    reason: str | None = None
    is_verbatim: bool = False
    """The reason is a word of this very wire."""
    end: str = "done"


def wire_event(case: Mapping[str, Any]) -> WireEvent:
    return _of_stream(case) if "chunks" in case else _of_message(case)


def _of_stream(case: Mapping[str, Any]) -> WireEvent:
    found, by_index = WireEvent(end=case.get("end", "done")), dict[int, Call]()
    for chunk in case["chunks"]:
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        if not isinstance(choices, list) or set(chunk) & {"error", "detail", "code", "message"}:
            raise Inexpressible("an error or no choices")
        for choice in choices:
            delta = choice.get("delta")
            if choice.get("index", 0) != 0 or not isinstance(delta, dict) or choice.get("error"):
                raise Inexpressible("several choices, or no delta")
            if set(delta) - {"role", "content", "tool_calls"}:
                raise Inexpressible("more than text and calls")
            if found.reason is not None and (delta.get("content") or delta.get("tool_calls")):
                raise Inexpressible("a reason before the end")
            if isinstance(delta.get("content"), str):
                found.steps.append(delta["content"])
            elif delta.get("content"):
                raise Inexpressible("content in parts")
            for entry in delta.get("tool_calls") or ():
                found.steps.append(_piece(entry, by_index, found))
            if (reason := choice.get("finish_reason")) is not None:
                if not isinstance(reason, str) or found.reason not in (None, reason):
                    raise Inexpressible("several reasons")
                found.reason = reason
    return found


def _piece(entry: Any, by_index: dict[int, Call], found: WireEvent) -> tuple[Call, str]:
    index = entry.get("index") if isinstance(entry, dict) else None
    function = entry.get("function") if isinstance(entry, dict) else None
    if type(index) is not int or not isinstance(function, dict) or set(entry) - {"index", "id", "type", "function"}:
        raise Inexpressible("a call without an index, or with more")
    arguments = function.get("arguments")
    if arguments is None:
        arguments = ""
    if not isinstance(arguments, str):
        raise Inexpressible("arguments that are no text")
    call = by_index.get(index)
    if call is None:
        if not (entry.get("id") and isinstance(entry["id"], str) and function.get("name")):
            raise Inexpressible("a call that opens without id or name")
        call = by_index[index] = Call(entry["id"], function["name"])
        found.calls.append(call)
    elif function.get("name") or entry.get("id") not in (None, "", call.id):
        raise Inexpressible("a call that is opened twice")
    call.pieces.append(arguments)
    return call, arguments


def _of_message(case: Mapping[str, Any]) -> WireEvent:
    message, found = case["message"], WireEvent(reason=case.get("finish_reason"))
    if not isinstance(message, dict) or set(message) - {"role", "content", "tool_calls", "refusal", "annotations"}:
        raise Inexpressible("more than text and calls")
    if isinstance(message.get("content"), str):
        found.steps.append(message["content"])
    elif message.get("content"):
        raise Inexpressible("content in parts")
    for entry in message.get("tool_calls") or ():
        function = entry.get("function") if isinstance(entry, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("arguments"), str) or not function.get("name"):
            raise Inexpressible("a call without a name, or arguments that are no text")
        call = Call(str(entry.get("id") or f"call_{len(found.calls)}"), function["name"], [function["arguments"]])
        found.calls.append(call)
        found.steps.append((call, function["arguments"]))
    return found


def _text(value: Json) -> bytes:
    """JSON with each call's object as the very text it was, double keys and odd escapes included."""
    first, *others = json.dumps(value).split(json.dumps(VERBATIM)[1:-1])
    text = first
    for at, other in enumerate(others):
        text = text.removesuffix('"') + json.loads(f'"{other}"') if at % 2 == 0 else text + other.removeprefix('"')
    return text.encode(errors="surrogatepass")


# The wires ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wire:
    """How a provider words an answer, as the bytes of a body; None where OpenAI's is its own."""

    stream: Callable[[WireEvent], bytes]
    whole: Callable[[WireEvent], bytes]
    kind: str = "text/event-stream"


def _sse(event: Json, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: ".encode() + _text(event) + b"\n\n"


def _reason(words: Mapping[str, str], found: WireEvent) -> str | None:
    """The provider's own word for what the reason means, or the reason where that is no word of the four."""
    if not found.reason or found.is_verbatim:
        return found.reason
    meaning = OPEN.judge(found.reason)
    return words.get(meaning.kind.name.lower(), found.reason) if meaning.is_known else found.reason


def _blocks(found: WireEvent) -> Iterator[tuple[int, str | Call, list[str]]]:
    """The steps as content blocks: text as it comes, each call with its pieces behind one another."""
    at, seen = 0, set[int]()
    for step in found.steps:
        if isinstance(step, str):
            if step:
                yield at, step, [step]
                at += 1
        elif id(step[0]) not in seen:
            seen.add(id(step[0]))
            yield at, step[0], step[0].pieces
            at += 1


CLAUDE = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


def _claude_stream(found: WireEvent) -> bytes:
    usage = {"input_tokens": 9, "output_tokens": 9}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    events: list[Json] = [{"type": "message_start", "message": head}]
    for at, block, pieces in _blocks(found):
        content = (
            {"type": "text", "text": ""}
            if isinstance(block, str)
            else {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
        )
        events.append({"type": "content_block_start", "index": at, "content_block": content})
        key, kind = ("text", "text_delta") if isinstance(block, str) else ("partial_json", "input_json_delta")
        events += [{"type": "content_block_delta", "index": at, "delta": {"type": kind, key: it}} for it in pieces]
        events.append({"type": "content_block_stop", "index": at})
    if (reason := _reason(CLAUDE, found)) is not None:
        events.append({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage})
    if found.end == "done":
        events.append({"type": "message_stop"})
    return b"".join(_sse(event, event["type"]) for event in events)


def _claude_whole(found: WireEvent) -> bytes:
    content = [
        {"type": "text", "text": block}
        if isinstance(block, str)
        else {"type": "tool_use", "id": block.id, "name": block.name, "input": block.arguments}
        for _, block, _ in _blocks(found)
    ]
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content,
        "stop_reason": _reason(CLAUDE, found), "usage": {"input_tokens": 9, "output_tokens": 9},
    }  # fmt: skip
    return _text(message)


GOOGLE = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}


def _google_chunk(parts: list[Json], reason: str | None) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
    if reason is not None:
        candidate["finishReason"] = reason
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 9, "totalTokenCount": 18}
    return {"candidates": [candidate], "usageMetadata": usage, "responseId": "r", "modelVersion": "m"}


def _google_parts(found: WireEvent) -> list[Json]:
    return [
        {"text": block}
        if isinstance(block, str)
        else {
            "functionCall": {"id": block.id, "name": block.name}
            | ({"args": block.arguments} if "".join(block.pieces) else {})
        }
        for _, block, _ in _blocks(found)
    ]


def _google_stream(found: WireEvent) -> bytes:
    # Google sends each call whole and has no mark for the end: what is cut is cut before the reason.
    chunks = [_google_chunk([part], None) for part in _google_parts(found)]
    if found.reason is not None and found.end == "done":
        chunks.append(_google_chunk([], _reason(GOOGLE, found)))
    return b"".join(map(_sse, chunks))


def _google_whole(found: WireEvent) -> bytes:
    return _text(_google_chunk(_google_parts(found), _reason(GOOGLE, found)))


BEDROCK = {**CLAUDE, "content_filter": "guardrail_intervened"}


def frame(kind: str, payload: Json, message_type: str = "event") -> bytes:
    """An event of AWS's event streams."""
    return frame_of(kind, json.dumps(payload).encode(), message_type)


def frame_of(kind: str, body: bytes, message_type: str = "event") -> bytes:
    """One binary frame of AWS's event streams: lengths, a sum over them, headers, payload, a sum over all."""
    key = ":event-type" if message_type == "event" else ":exception-type"
    named = {key: kind, ":content-type": "application/json", ":message-type": message_type}
    headers = b"".join(
        struct.pack("!B", len(name)) + name.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode()
        for name, value in named.items()
    )
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    start = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + body
    return start + struct.pack("!I", zlib.crc32(start))


def _bedrock_stream(found: WireEvent) -> bytes:
    frames = [frame("messageStart", {"role": "assistant"})]
    for at, block, pieces in _blocks(found):
        if not isinstance(block, str):
            start = {"toolUse": {"toolUseId": block.id, "name": block.name}}
            frames.append(frame("contentBlockStart", {"contentBlockIndex": at, "start": start}))
        for piece in pieces:
            delta = {"text": piece} if isinstance(block, str) else {"toolUse": {"input": piece}}
            frames.append(frame("contentBlockDelta", {"contentBlockIndex": at, "delta": delta}))
        frames.append(frame("contentBlockStop", {"contentBlockIndex": at}))
    if found.reason is not None and found.end == "done":
        frames.append(frame("messageStop", {"stopReason": _reason(BEDROCK, found)}))
        usage = {"inputTokens": 9, "outputTokens": 9, "totalTokens": 18}
        frames.append(frame("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}))
    return b"".join(frames)


def _bedrock_whole(found: WireEvent) -> bytes:
    content = [
        {"text": block}
        if isinstance(block, str)
        else {"toolUse": {"toolUseId": block.id, "name": block.name, "input": block.arguments}}
        for _, block, _ in _blocks(found)
    ]
    body = {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": _reason(BEDROCK, found),
        "usage": {"inputTokens": 9, "outputTokens": 9, "totalTokens": 18},
    }
    return _text(body)


COHERE = {"stop": "COMPLETE", "tool_calls": "TOOL_CALL", "length": "MAX_TOKENS", "content_filter": "ERROR_TOXIC"}
COHERE_USAGE = {"billed_units": {}, "tokens": {"input_tokens": 9, "output_tokens": 9}}


def _cohere_stream(found: WireEvent) -> bytes:
    events: list[Json] = [{"type": "message-start", "id": "c1", "delta": {"message": {"role": "assistant"}}}]
    for at, block, pieces in _blocks(found):
        if isinstance(block, str):
            message: Json = {"content": {"text": block}}
            events.append({"type": "content-delta", "index": at, "delta": {"message": message}})
            continue
        opened = {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": ""}}
        events.append({"type": "tool-call-start", "index": at, "delta": {"message": {"tool_calls": opened}}})
        for piece in pieces:
            message = {"tool_calls": {"function": {"arguments": piece}}}
            events.append({"type": "tool-call-delta", "index": at, "delta": {"message": message}})
        events.append({"type": "tool-call-end", "index": at})
    if found.end == "done":
        delta = {"finish_reason": _reason(COHERE, found), "usage": COHERE_USAGE}
        events.append({"type": "message-end", "delta": delta})
    return b"".join(_sse(event, event["type"]) for event in events)


def _cohere_whole(found: WireEvent) -> bytes:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "".join(call.pieces)}}
        for call in found.calls
    ]
    text = [{"type": "text", "text": step} for step in found.steps if isinstance(step, str) and step]
    message = {"role": "assistant", "content": text, "tool_calls": calls}
    body = {"id": "c1", "finish_reason": _reason(COHERE, found), "message": message, "usage": COHERE_USAGE}
    return json.dumps(body).encode()


def _response_status(reason: str | None) -> Json:
    """This API has two words for how an answer ended, and a reason beside the second."""
    if not reason:
        return {}
    if classify(reason) < FinishClass.LENGTH:
        return {"status": "completed"}
    known = {"length": "max_output_tokens"}.get(reason, reason)
    return {"status": "incomplete", "incomplete_details": {"reason": known}}


def _response(found: WireEvent, output: list[Json]) -> Json:
    usage = {"input_tokens": 9, "output_tokens": 9, "total_tokens": 18}
    head = {"id": "resp_1", "object": "response", "model": "m", "output": output, "usage": usage}
    if found.is_verbatim:
        return head | {"status": "incomplete", "incomplete_details": {"reason": found.reason}}
    return head | _response_status(found.reason)


def _response_item(at: int, block: str | Call, status: str = "completed") -> Json:
    if isinstance(block, str):
        part = {"type": "output_text", "text": block, "annotations": []}
        return {"type": "message", "id": f"msg_{at}", "role": "assistant", "status": status, "content": [part]}
    made = {"call_id": block.id, "name": block.name, "arguments": "".join(block.pieces)}
    return {"type": "function_call", "id": f"fc_{at}", "status": status, **made}


def _responses_stream(found: WireEvent) -> bytes:
    events: list[Json] = [{"type": "response.created", "response": _response(WireEvent(reason=None), [])}]
    for at, block, pieces in _blocks(found):
        item = _response_item(at, block)
        where: Json = {"output_index": at, "item_id": item["id"]}
        empty: Json = {"content": []} if isinstance(block, str) else {"arguments": ""}
        events.append(
            {"type": "response.output_item.added", **where, "item": {**item, "status": "in_progress", **empty}}
        )
        kind = "output_text" if isinstance(block, str) else "function_call_arguments"
        events += [{"type": f"response.{kind}.delta", **where, "delta": piece} for piece in pieces]
        if found.end == "done":
            key, text = ("text" if isinstance(block, str) else "arguments"), "".join(pieces)
            events.append({"type": f"response.{kind}.done", **where, key: text})
            events.append({"type": "response.output_item.done", **where, "item": item})
    if found.end == "done":
        output = [_response_item(at, block) for at, block, _ in _blocks(found)]
        response = _response(found, output)
        events.append({"type": f"response.{response.get('status', 'completed')}", "response": response})
    return b"".join(_sse(event, event["type"]) for event in events)


def _responses_whole(found: WireEvent) -> bytes:
    return _text(_response(found, [_response_item(at, block) for at, block, _ in _blocks(found)]))


ANTHROPIC = Wire(_claude_stream, _claude_whole)
GOOGLES = Wire(_google_stream, _google_whole)
WIRES: dict[str, Wire] = {
    "anthropic": ANTHROPIC,
    "messages": ANTHROPIC,
    "claude_on_vertex": ANTHROPIC,
    "claude_on_azure": ANTHROPIC,
    "responses": Wire(_responses_stream, _responses_whole),
    "gemini": GOOGLES,
    "vertex_ai": GOOGLES,
    "bedrock": Wire(_bedrock_stream, _bedrock_whole, "application/vnd.amazon.eventstream"),
    "cohere": Wire(_cohere_stream, _cohere_whole),
}
WIRES |= {f"tapped_{name}": WIRES[name] for name in ("anthropic", "gemini", "bedrock", "cohere")}


def openai_stream(case: Mapping[str, Any]) -> bytes:
    events = b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in case["chunks"])
    return events + (b"data: [DONE]\n\n" if case.get("end", "done") == "done" else b"")


def openai_whole(case: Mapping[str, Any]) -> bytes:
    choice = {"index": 0, "message": case["message"], "finish_reason": case.get("finish_reason")}
    return json.dumps({"id": "c1", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()
