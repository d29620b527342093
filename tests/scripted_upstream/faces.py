"""The APIs the upstream can be taken for, as one protocol, and what a face needs to know of a request."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tests.scripted_upstream.history import Rejection
from tests.scripted_upstream.records import RequestRecord, text_of
from tests.scripted_upstream.script import DERIVED, Call, ErrorEvent, Reply, Shape, Verbatim


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer has to fit to, of the request it answers."""

    request: RequestRecord
    answer_id: str
    new_call_id: Callable[[], str]

    @property
    def choices(self) -> int:
        n = self.request.body.get("n")
        return n if isinstance(n, int) and n > 0 else 1

    @property
    def wants_usage(self) -> bool:
        return bool((self.request.body.get("stream_options") or {}).get("include_usage"))


class Face(Protocol):
    """How one API words an answer. Pure: it makes bytes and objects, and sends nothing."""

    def check(self, body: Mapping[str, Any], *, lax: bool) -> None: ...

    def whole(self, reply: Reply, asked: Asked) -> Any: ...

    def events(self, reply: Reply, asked: Asked) -> list[bytes]:
        """Every event of the streamed answer, without the mark that ends it."""
        ...

    def end_mark(self, shape: Shape) -> bytes:
        """The last event of a stream, b"" where the API has none."""
        ...

    def error_event(self, fault: ErrorEvent, shape: Shape) -> bytes: ...

    def error_body(self, error: Rejection) -> Any: ...


def encode(value: Any) -> bytes:
    """JSON as it goes on the wire: characters as they are, but lone surrogates, which UTF-8 cannot carry, escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def sse(data: bytes, shape: Shape, name: str | None = None) -> bytes:
    """One server-sent event."""
    newline = b"\r\n" if shape.crlf else b"\n"
    lines = [b": keep-alive", b""] if shape.comments else []
    if name is not None or shape.fields:
        lines.append(b"event: " + (name or "message").encode())
    if shape.fields:
        lines += [b"id: 7", b"retry: 3000"]
    lines.append((b"data:" if shape.bare_colon else b"data: ") + data)
    return newline.join(lines) + newline + newline


def arguments_of(call: Call) -> Any:
    match call.arguments:
        case Verbatim(value):
            return value
        case str(text):
            return text
        case given:
            return json.dumps(given, ensure_ascii=False, separators=(",", ":"))


def pieces(text: str | None, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)] if text else []


def finish_of(reply: Reply) -> str | None:
    if reply.finish is not DERIVED:
        return reply.finish
    return "tool_calls" if reply.calls else "stop"


def usage_of(reply: Reply, asked: Asked) -> Mapping[str, Any] | None:
    """Token counts; where the reply names none, a quarter of the characters, so that a test can work them out."""
    if reply.usage is not DERIVED:
        return reply.usage
    prompt = sum(len(text_of(message.get("content"))) for message in asked.request.messages) // 4 + 1
    said = len(reply.text or "") + len(reply.reasoning or "")
    said += sum(len(str(arguments_of(call))) for call in reply.calls)
    completion = said // 4 + 1
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
