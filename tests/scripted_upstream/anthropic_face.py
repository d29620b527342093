"""`/v1/messages`: a reply as Anthropic words it, for the lanes that go through a translation.

Text, thinking and tool_use, whole and streamed, and the checks of tool results; no images, no caching, no batches.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.scripted_upstream.faces import Asked, arguments_of, encode, finish_of, pieces, sse, usage_of
from tests.scripted_upstream.history import Rejection
from tests.scripted_upstream.script import Call, ErrorEvent, Reply, Shape

STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 529: "overloaded_error"}
Json = dict[str, Any]


class AnthropicFace:
    def check(self, body: Mapping[str, Any], *, lax: bool) -> None:
        messages = body.get("messages")
        if not isinstance(body.get("model"), str) or not isinstance(messages, list) or not messages:
            raise Rejection("messages: Field required")
        if not isinstance(body.get("max_tokens"), int):
            raise Rejection("max_tokens: Field required")
        if not lax:
            _check_results(messages)

    def whole(self, reply: Reply, asked: Asked) -> Any:
        blocks: list[Json] = []
        if reply.reasoning:
            blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": "c2lnbmVk"})
        if reply.text:
            blocks.append({"type": "text", "text": reply.text})
        blocks += [
            {"type": "tool_use", "id": _id(call, asked), "name": call.name, "input": _input(call)}
            for call in reply.calls
        ]
        return {**_meta(asked), "content": blocks, **_stop(reply), "usage": _usage(reply, asked)}

    def events(self, reply: Reply, asked: Asked) -> list[bytes]:
        if reply.chunks is not None:
            return [_event(chunk, reply.shape) for chunk in reply.chunks]
        return [_event(data, reply.shape) for data in _stream(reply, asked)]

    def end_mark(self, shape: Shape) -> bytes:
        return b""

    def error_event(self, fault: ErrorEvent, shape: Shape) -> bytes:
        return _event({"type": "error", "error": {"type": "overloaded_error", "message": fault.message}}, shape)

    def error_body(self, error: Rejection) -> Any:
        kind = ERROR_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": error.message}}


def _check_results(messages: list[Any]) -> None:
    """Each tool_use is answered by one tool_result in the very next message, and no other result is there."""
    asked: set[str] = set()
    for at, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if content in (None, [], ""):
            raise Rejection(f"messages.{at}: content must be non-empty")
        blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
        answered = [str(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"]
        if len(set(answered)) != len(answered) or not set(answered) <= asked:
            raise Rejection(f"messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks")
        if asked - set(answered):
            raise Rejection(f"messages.{at - 1}: `tool_use` ids were found without `tool_result` blocks after")
        asked = {str(block.get("id")) for block in blocks if block.get("type") == "tool_use"}
    if asked:
        raise Rejection("the last message's `tool_use` ids have no `tool_result` blocks after")


def _stream(reply: Reply, asked: Asked) -> Iterator[Json]:
    usage = _usage(reply, asked)
    opening = {**_meta(asked), "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**opening, "usage": {**usage, "output_tokens": 1}}}
    yield {"type": "ping"}
    for at, (block, deltas) in enumerate(_blocks(reply, asked)):
        yield {"type": "content_block_start", "index": at, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": at, "delta": delta}
        yield {"type": "content_block_stop", "index": at}
    yield {"type": "message_delta", "delta": _stop(reply), "usage": {"output_tokens": usage["output_tokens"]}}
    yield {"type": "message_stop"}


def _blocks(reply: Reply, asked: Asked) -> Iterator[tuple[Json, list[Json]]]:
    size = reply.shape.piece
    if reply.reasoning:
        thought: list[Json] = [{"type": "thinking_delta", "thinking": p} for p in pieces(reply.reasoning, size)]
        signed = [*thought, {"type": "signature_delta", "signature": "c2lnbmVk"}]
        yield {"type": "thinking", "thinking": "", "signature": ""}, signed
    if reply.text:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": p} for p in pieces(reply.text, size)]
    for call in reply.calls:
        block: Json = {"type": "tool_use", "id": _id(call, asked), "name": call.name, "input": {}}
        parts = pieces(str(arguments_of(call)), size)
        yield block, [{"type": "input_json_delta", "partial_json": p} for p in parts]


def _event(data: Mapping[str, Any], shape: Shape) -> bytes:
    return sse(encode(data), shape, str(data.get("type")))


def _meta(asked: Asked) -> Json:
    return {"id": asked.answer_id, "type": "message", "role": "assistant", "model": asked.request.model}


def _stop(reply: Reply) -> Json:
    finish = finish_of(reply)
    return {"stop_reason": STOP_REASONS.get(finish, finish) if finish else None, "stop_sequence": None}


def _usage(reply: Reply, asked: Asked) -> Json:
    counts = usage_of(reply, asked) or {}
    return {"input_tokens": counts.get("prompt_tokens", 0), "output_tokens": counts.get("completion_tokens", 0)}


def _id(call: Call, asked: Asked) -> str:
    return call.id if call.id is not None else "toolu_" + asked.new_call_id()


def _input(call: Call) -> Any:
    """Whole answers carry an object; text that is none goes out as a string, which no real provider sends."""
    arguments = arguments_of(call)
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
