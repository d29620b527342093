"""`/v1/chat/completions`: a reply as a chat completion, whole or in chunks."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from tests.scripted_upstream.faces import Asked, arguments_of, encode, finish_of, pieces, sse, usage_of
from tests.scripted_upstream.history import Rejection, check_request
from tests.scripted_upstream.script import Call, ErrorEvent, Reply, Shape

CREATED = 1_763_400_000
FINGERPRINT = "fp_scripted"
Json = dict[str, Any]


class OpenAIFace:
    def check(self, body: Mapping[str, Any], *, lax: bool) -> None:
        check_request(body, lax=lax)

    def whole(self, reply: Reply, asked: Asked) -> Any:
        answer = _meta(asked, "chat.completion")
        answer["choices"] = [
            {"index": index, "message": _message(reply, asked), "logprobs": None, "finish_reason": finish_of(reply)}
            for index in range(asked.choices)
        ]
        usage = usage_of(reply, asked)
        return answer if usage is None else {**answer, "usage": usage}

    def events(self, reply: Reply, asked: Asked) -> list[bytes]:
        chunks = reply.chunks if reply.chunks is not None else _chunks(reply, asked)
        return [sse(encode(chunk), reply.shape) for chunk in chunks]

    def end_mark(self, shape: Shape) -> bytes:
        return sse(b"[DONE]", shape)

    def error_event(self, fault: ErrorEvent, shape: Shape) -> bytes:
        error = {"message": fault.message, "type": fault.type, "param": None, "code": fault.code}
        return sse(encode({"error": error}), shape, "error" if fault.named else None)

    def error_body(self, error: Rejection) -> Any:
        return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def _meta(asked: Asked, kind: str) -> Json:
    return {
        "id": asked.answer_id,
        "object": kind,
        "created": CREATED,
        "model": asked.request.model,
        "system_fingerprint": FINGERPRINT,
    }


def _message(reply: Reply, asked: Asked) -> Json:
    message: Json = {"role": "assistant", "content": reply.text, "refusal": reply.refusal, **reply.extras}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {
                **call.extras,
                "id": call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_of(call)},
            }
            for call, call_id in zip(reply.calls, _ids(reply, asked), strict=True)
        ]
    return message


def _chunks(reply: Reply, asked: Asked) -> list[Json]:
    shape, usage = reply.shape, usage_of(reply, asked)
    stream_usage = usage if shape.usage_everywhere else None
    head = _meta(asked, "chat.completion.chunk")

    def chunk(choices: list[Json], counts: Mapping[str, Any] | None = stream_usage) -> Json:
        made = {**head, "choices": choices}
        return {**made, "usage": counts} if asked.wants_usage or counts else made

    per_choice = [list(_choice_steps(reply, asked, index)) for index in range(asked.choices)]
    side_by_side = [step for steps in zip_longest(*per_choice) for step in steps if step is not None]
    made = [chunk([])] if shape.empty_choices else []
    made += [chunk([step]) for step in side_by_side]
    if usage is not None and (asked.wants_usage or shape.usage_unasked):
        made.append(chunk([], usage))
    return made


def _choice_steps(reply: Reply, asked: Asked, index: int) -> Iterator[Json]:
    """One choice as the entries of its chunks' `choices`, the finish reason last."""
    shape, finish = reply.shape, finish_of(reply)
    deltas = [_single(reply, asked)] if shape.all_in_one else list(_deltas(reply, asked))
    if shape.role_everywhere:
        deltas = [{"role": "assistant", **delta} for delta in deltas]
    steps: list[Json] = [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas]
    if finish is not None and (shape.all_in_one or shape.finish_on_last):
        steps[-1]["finish_reason"] = finish
    elif finish is not None:
        steps.append({"index": index, "delta": {}, "logprobs": None, "finish_reason": finish})
    yield from steps


def _deltas(reply: Reply, asked: Asked) -> Iterator[Json]:
    size = reply.shape.piece
    silent = reply.text is None and bool(reply.calls)
    yield {"role": "assistant", "content": None if silent else "", **reply.extras}
    for piece in pieces(reply.reasoning, size):
        yield {"reasoning_content": piece}
    for piece in pieces(reply.refusal, size):
        yield {"refusal": piece}
    for piece in pieces(reply.text, size):
        yield {"content": piece}
    fragments = [
        list(_fragments(call, call_id, at, reply.shape))
        for at, (call, call_id) in enumerate(zip(reply.calls, _ids(reply, asked), strict=True))
    ]
    if reply.shape.interleave:
        fragments = [[one for one in turn if one is not None] for turn in zip_longest(*fragments)]
    for fragment in (one for call in fragments for one in call):
        yield {"tool_calls": [fragment]}


def _fragments(call: Call, call_id: str | None, at: int, shape: Shape) -> Iterator[Json]:
    index: Json = {"own": {"index": at}, "zero": {"index": 0}, "none": {}}[shape.index]
    head: Json = {**index, **call.extras, "id": call_id, "type": "function"}
    arguments = arguments_of(call)
    if shape.one_chunk or not isinstance(arguments, str):
        yield {**head, "function": {"name": call.name, "arguments": arguments}}
        return
    if shape.name_split and call.name:
        middle = max(1, len(call.name) // 2)
        yield {**head, "function": {"name": call.name[:middle], "arguments": ""}}
        yield {**index, "function": {"name": call.name[middle:]}}
    else:
        yield {**head, "function": {"name": call.name, "arguments": ""}}
    for piece in pieces(arguments, shape.piece):
        if shape.head_everywhere:
            yield {**head, "function": {"name": call.name, "arguments": piece}}
        else:
            yield {**index, "function": {"arguments": piece}}


def _ids(reply: Reply, asked: Asked) -> list[str | None]:
    match reply.shape.ids:
        case "none":
            return [None for _ in reply.calls]
        case "empty":
            return ["" for _ in reply.calls]
        case "same":
            return ["call_same" for _ in reply.calls]
        case "own":
            return [call.id if call.id is not None else asked.new_call_id() for call in reply.calls]


def _single(reply: Reply, asked: Asked) -> Json:
    """The whole message as one delta."""
    delta: Json = {"role": "assistant", "content": reply.text, **reply.extras}
    for key, said in (("reasoning_content", reply.reasoning), ("refusal", reply.refusal)):
        if said is not None:
            delta[key] = said
    shape = replace(reply.shape, one_chunk=True)
    numbered = enumerate(zip(reply.calls, _ids(reply, asked), strict=True))
    calls = [one for at, (call, call_id) in numbered for one in _fragments(call, call_id, at, shape)]
    return {**delta, "tool_calls": calls} if calls else delta
