"""The kinds of request that are measured, and what the model says to each."""

import json
from dataclasses import dataclass
from typing import Any

CHUNKS = 50
"""Chunks of text in an answer that comes chunk by chunk."""
DELTAS = 5000
"""Deltas in which long arguments come, of twenty bytes each."""
TOOLS = 200

CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21}
TEXT = 'The quick brown fox said "jump" over the lazy dog;\nit costs 12.50 EUR. '


@dataclass(frozen=True)
class Work:
    """One kind of request, made by so many clients at once."""

    name: str
    body: dict[str, Any]
    at_once: int = 16
    expect: bytes = b"BENCH_OK"
    """What the last answer has to hold."""
    per: int = 1
    """What the cost is divided by: the chunks of one answer, where they are what counts."""
    floor: bool = False
    """Whether handing bytes on is all there is to do."""
    path: str = "/v1/chat/completions"
    like: str = ""
    """The chat that does the same work, where another API is asked for it."""

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def bytes(self) -> bytes:
        return json.dumps(self.body, separators=(",", ":")).encode()


def question(model: str, text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def _schema(number: int) -> dict[str, Any]:
    fields = {name: {"type": "string", "description": f"What to look for in {name}"} for name in ("a", "b", "c")}
    parameters = {"type": "object", "properties": {**fields, "limit": {"type": "integer", "minimum": 1}}}
    return {
        "type": "function",
        "function": {"name": f"tool_{number}", "description": "Looks up.", "parameters": parameters},
    }


HISTORY = [{"role": "user" if n % 2 == 0 else "assistant", "content": TEXT * 70} for n in range(21)]
DONE = b"[DONE]"
MESSAGES, STOP = "/v1/messages", b"message_stop"
RESPONSES = "/v1/responses"

WORKS = (
    Work("small, passed on", question("plain"), floor=True),
    Work("small, read", question("tools")),
    Work("100 KB, passed on", {"model": "plain", "messages": HISTORY}, floor=True),
    Work("200 tools, passed on", question("plain", tools=[_schema(n) for n in range(TOOLS)]), floor=True),
    Work("paced chunk, passed on", question("plain", "paced", stream=True), 32, DONE, per=CHUNKS, floor=True),
    Work("paced chunk, read", question("tools", "paced", stream=True), 32, DONE, per=CHUNKS),
    Work("tool turn", question("tools", "call")),
    Work("tool turn, streamed", question("tools", "call", stream=True), expect=DONE),
    Work("tool turn over MCP", question("mcp", "call over MCP")),
    Work("100 KB of arguments", question("tools", "write", stream=True), 1, DONE),
    Work("small message", question("tools", max_tokens=9), path=MESSAGES, like="small, read"),
    Work(
        "paced chunk of a message",
        question("tools", "paced", stream=True, max_tokens=9),
        32,
        STOP,
        CHUNKS,
        path=MESSAGES,
        like="paced chunk, read",
    ),
    Work("tool turn of a message", question("tools", "call", max_tokens=9), path=MESSAGES, like="tool turn"),
    Work("small response", {"model": "tools", "input": "hi"}, path=RESPONSES, like="small, read"),
    Work(
        "paced chunk of a response",
        {"model": "tools", "input": "paced", "stream": True},
        32,
        DONE,
        CHUNKS,
        path=RESPONSES,
        like="paced chunk, read",
    ),
    Work("tool turn of a response", {"model": "tools", "input": "call"}, path=RESPONSES, like="tool turn"),
)


UNKEPT = (
    Work("response, not kept", {"model": "tools", "input": "hi", "store": False}, path=RESPONSES),
    Work("its tool turn, not kept", {"model": "tools", "input": "call", "store": False}, path=RESPONSES),
)
"""What a response costs without what a chat does not do either. Measured by `bench/inside.py` where they are named."""


# What the model says --------------------------------------------------------------------------------------------------


def whole(message: dict[str, Any], reason: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}
    return answer(json.dumps(body).encode())


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def event(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return framed(b"data: " + json.dumps({**CHUNK, "choices": [choice]}).encode() + b"\n\n")


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _arguments(text: str) -> bytes:
    return event({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})


ECHO = {"name": "echo", "arguments": '{"text":"x"}'}
CALLED = {"id": "call_1", "type": "function", "function": ECHO}
OPENED = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "echo", "arguments": ""}}
FIRST = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + event(
    {"role": "assistant", "content": ""}
)
WORD = event({"content": "a word or two "})
COUNTED = framed(b"data: " + json.dumps({**CHUNK, "choices": [], "usage": USAGE}).encode() + b"\n\n")
END = framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"

ANSWER = whole({"content": "BENCH_OK"}, "stop")
CALL = whole({"content": None, "tool_calls": [CALLED]}, "tool_calls")
OVER_MCP = whole({"content": None, "tool_calls": [{**CALLED, "function": {**ECHO, "name": "far_echo"}}]}, "tool_calls")
STREAMED_ANSWER = FIRST + WORD + event({}, "stop") + COUNTED + END
STREAMED_CALL = b"".join(
    (
        FIRST,
        event({"tool_calls": [OPENED]}),
        _arguments('{"text":'),
        _arguments('"x"}'),
        event({}, "tool_calls"),
        END,
    )
)
LONG_CALL = b"".join(
    (
        FIRST,
        event({"tool_calls": [OPENED]}),
        _arguments('{"text":"'),
        _arguments("0123456789abcdefghij") * DELTAS,
        _arguments('"}'),
        event({}, "tool_calls"),
        END,
    )
)
PACED = (FIRST, *[WORD] * CHUNKS, event({}, "stop") + COUNTED + END)
PACED_AGAIN = (FIRST, *[WORD] * 2 * CHUNKS, event({}, "stop") + COUNTED + END)


def said_to(body: bytes) -> bytes | tuple[bytes, ...]:
    """What a model answers; a tuple comes piece by piece."""
    # The same in the words of the Responses API, for what clients and model cost alone.
    body = body.replace(b'"input":', b'"content":')
    answered = b'"role":"tool"' in body
    if b'"content":"paced"' in body:
        return PACED
    if b'"content":"paced, and again"' in body:
        return PACED_AGAIN
    if b'"content":"write"' in body and not answered:
        return LONG_CALL
    if b'"content":"call over MCP"' in body and not answered:
        return OVER_MCP
    if b'"content":"call"' in body and not answered:
        return STREAMED_CALL if b'"stream":true' in body else CALL
    return STREAMED_ANSWER if b'"stream":true' in body else ANSWER
