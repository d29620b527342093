"""`/v1beta/models/…:generateContent`: a reply as Google AI Studio words it, for the lanes that go through a translation.

Text, thoughts and function calls, whole and streamed, and the checks of their results; no images, no caching, no batches.
A call is always sent whole: its arguments are an object, in a stream too.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.scripted_upstream.faces import Asked, arguments_of, encode, finish_of, pieces, sse, usage_of
from tests.scripted_upstream.history import Rejection
from tests.scripted_upstream.script import Call, ErrorEvent, Reply, Shape

FINISH_REASONS = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
STATUSES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}
SIGNATURE = "c2lnbmVk"
Json = dict[str, Any]


class GeminiFace:
    def check(self, body: Mapping[str, Any], *, lax: bool) -> None:
        contents = body.get("contents")
        if not isinstance(contents, list) or not contents:
            raise Rejection("* GenerateContentRequest.contents: contents is not specified")
        if not lax:
            _check_responses(contents)

    def whole(self, reply: Reply, asked: Asked) -> Any:
        thought: list[Json] = [{"text": reply.reasoning, "thought": True}] if reply.reasoning else []
        text: list[Json] = [{"text": reply.text}] if reply.text else []
        parts = [*thought, *text, *(_call(call) for call in reply.calls)]
        return _chunk(asked, parts, _reason(reply), _usage(reply, asked))

    def events(self, reply: Reply, asked: Asked) -> list[bytes]:
        chunks = reply.chunks if reply.chunks is not None else _stream(reply, asked)
        return [sse(encode(chunk), reply.shape) for chunk in chunks]

    def end_mark(self, shape: Shape) -> bytes:
        return b""

    def error_event(self, fault: ErrorEvent, shape: Shape) -> bytes:
        return sse(encode(_error(503, fault.message)), shape)

    def error_body(self, error: Rejection) -> Any:
        return _error(error.status, error.message)


def _check_responses(contents: list[Any]) -> None:
    """The calls of a model's turn are answered in the very next content, each by one response, in the same order."""
    called: list[str] = []
    for content in contents:
        parts = [part for part in content.get("parts") or () if isinstance(part, dict)]
        answered = _names(parts, "functionResponse", "function_response")
        if answered != called:
            raise Rejection(
                "Please ensure that the number of function response parts is equal to the number of function call parts "
                "of the function call turn."
            )
        called = _names(parts, "functionCall", "function_call")
    if called:
        raise Rejection("Please ensure that function call turn comes immediately before a function response turn.")


def _names(parts: list[Json], *either: str) -> list[str]:
    """Google takes its fields in both spellings."""
    return [part[field]["name"] for part in parts for field in either if field in part]


def _stream(reply: Reply, asked: Asked) -> Iterator[Json]:
    size = reply.shape.piece
    for piece in pieces(reply.reasoning, size):
        yield _chunk(asked, [{"text": piece, "thought": True}])
    for piece in pieces(reply.text, size):
        yield _chunk(asked, [{"text": piece}])
    for call in reply.calls:
        yield _chunk(asked, [_call(call)])
    yield _chunk(asked, [{"text": ""}], _reason(reply), _usage(reply, asked))


def _chunk(asked: Asked, parts: list[Json], reason: str | None = None, usage: Json | None = None) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
    if reason is not None:
        candidate["finishReason"] = reason
    chunk = {"candidates": [candidate], "modelVersion": asked.request.model, "responseId": asked.answer_id}
    return chunk if usage is None else {**chunk, "usageMetadata": usage}


def _call(call: Call) -> Json:
    arguments = arguments_of(call)
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    named = {} if call.id is None else {"id": call.id}
    return {"functionCall": {**named, "name": call.name, "args": given}, **call.extras}


def _reason(reply: Reply) -> str | None:
    finish = finish_of(reply)
    return FINISH_REASONS.get(finish, finish) if finish else None


def _usage(reply: Reply, asked: Asked) -> Json:
    counts = usage_of(reply, asked) or {}
    prompt, said = counts.get("prompt_tokens", 0), counts.get("completion_tokens", 0)
    return {"promptTokenCount": prompt, "candidatesTokenCount": said, "totalTokenCount": prompt + said}


def _error(status: int, message: str) -> Json:
    word = STATUSES.get(status, "UNAVAILABLE" if status == 503 else "INTERNAL")
    return {"error": {"code": status, "message": message, "status": word}}
