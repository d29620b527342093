"""Sends a request for each declared place through every API and lane, and sees what becomes of it.

One application, called in the process; one provider on loopback, which answers in the words of whichever API it is asked. What
came of a place is told from what the provider was sent, beside what it is sent without that field.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.configs import tool_entry
from tests.hosted.stand_ins import entry as entry_of
from tests.models.wire import Request, Server, Wire, raw_provider
from tests.parameters.bodies import CALL, body_for
from tests.parameters.done_here import why_here
from tests.parameters.places import Place, places_of

AWS: Mapping[str, str] = {
    "aws_access_key_id": "AKIDEXAMPLE",
    "aws_secret_access_key": "secret",
    "aws_region_name": "us-east-1",
}
LANES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "passed": ("openai/m", "/v1", {"tools": []}),
    "direct": ("openai/m", "/v1", {}),
    "text": ("openai/m", "/v1", {"tool_calling": "json"}),
    "responses": ("openai/m", "/v1", {"lane": "responses"}),
    "claude": ("anthropic/claude-sonnet-4-5", "", {}),
    "gemini": ("gemini/gemini-2.5-flash", "/v1beta", {}),
    "bedrock": ("bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0", "", {}),
    "cohere": ("cohere/command-r-plus", "", {}),
    "mistral": ("mistral/mistral-large-latest", "/v1", {}),
    "litellm": ("openai/m", "/v1", {"lane": "litellm"}),
}
"""A model of each lane: where it is, and what its entry says. All but `passed` have a tool of the config, so that the loop runs."""
MAPPED = "mapped"
"""The lane `direct` where tools of the config stand for those that clients declare."""
DECLARED = re.compile(
    r"web_search_options.*|tools\[(web_search|web_fetch|code_execution|code_interpreter|file_search|image_generation)\w*\].*"
)
"""The places that are walked on it."""
STAND_INS = {
    "web_search": "find_within",
    "web_fetch": "get_page",
    "code_interpreter": "run_code",
    "file_search": "search_files",
    "image_generation": "draw",
}
PATHS: Mapping[str, str] = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
MARKER = re.compile(r"m\d{5,}")
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer of Callgate's, and what the provider was sent for it."""

    status: int
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    upstream: Sequence[Any]

    @property
    def warnings(self) -> str:
        report = self.body.get("x_callgate") or {}
        return " ".join([self.headers.get("x-callgate-warning", ""), *report.get("warnings", ())])

    @property
    def error(self) -> str:
        """What is said of a refusal: its field and its words."""
        error = self.body.get("error") or {}
        return f"{error.get('param')} {error.get('message')}"


@dataclass
class Walker:
    """Asks one application."""

    app: Any
    provider: Server
    previous: dict[str, Answered] = field(default_factory=dict)

    async def ask(self, api: str, lane: str, body: Mapping[str, Any]) -> Answered:
        whole = {**body, "model": lane}
        if api == "messages":
            whole.setdefault("max_tokens", 64)
        key = json.dumps([api, whole], sort_keys=True)
        if key not in self.previous:
            self.previous[key] = await self._ask(PATHS[api], whole)
        return self.previous[key]

    async def _ask(self, path: str, body: Mapping[str, Any]) -> Answered:
        self.provider.requests.clear()
        start, data = await call(self.app, path, json.dumps(body).encode())
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        if headers["content-type"].startswith("text/event-stream"):
            told = last_report(data.decode())
        else:
            told = json.loads(data)
        return Answered(start["status"], headers, told, [request.body for request in self.provider.requests])


async def call(app: Any, path: str, data: bytes) -> tuple[dict[str, Any], bytes]:
    """Call the application as a server does; return the start of its answer, and its body."""
    messages: list[dict[str, Any]] = []
    coming = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if coming:
            return coming.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    headers = {"host": "127.0.0.1", "content-type": "application/json", "content-length": str(len(data))}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "root_path": "",
    }
    await app(scope, receive, send)
    return messages[0], b"".join(message.get("body", b"") for message in messages)


def last_report(text: str) -> dict[str, Any]:
    """Return what a stream says of itself: its last report, or its error."""
    told: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            for part in (event, event.get("response") or {}):
                told |= {name: part[name] for name in ("x_callgate", "error") if part.get(name)}
    return told


async def answer(request: Request, wire: Wire) -> None:
    """Answer "ok" in the words of the API that is asked."""
    streams = request.body.get("stream") is True or "stream" in request.target.lower()
    kind, whole, events = _worded(request.target)
    if not streams or kind == "bedrock":
        await wire.whole(whole)
        return
    lines = [
        (f"event: {event['type']}\n" if "type" in event else "") + f"data: {json.dumps(event)}\n\n" for event in events
    ]
    if kind == "chat":
        lines.append("data: [DONE]\n\n")
    text = "".join(lines)
    await wire.send(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(text)}\r\n\r\n{text}")


def _worded(target: str) -> tuple[str, dict[str, Any], Sequence[dict[str, Any]]]:
    if "/messages" in target:
        usage: Any = {"input_tokens": 3, "output_tokens": 2}
        message: Any = {"id": "msg_1", "type": "message", "role": "assistant", "model": "c", "usage": usage}
        text: Any = {"type": "text", "text": "ok"}
        whole: Any = {**message, "content": [text], "stop_reason": "end_turn", "stop_sequence": None}
        ending: Any = {"stop_reason": "end_turn", "stop_sequence": None}
        return (
            "messages",
            whole,
            [
                {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ok"}},
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": ending, "usage": usage},
                {"type": "message_stop"},
            ],
        )
    if "/responses" in target:
        part: Any = {"type": "output_text", "text": "ok", "annotations": []}
        item: Any = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
        usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
        response: Any = {"id": "resp_1", "object": "response", "model": "m", "status": "completed", "usage": usage}
        whole = {**response, "output": [item]}
        return (
            "responses",
            whole,
            [
                {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
                {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
                {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "ok"},
                {"type": "response.output_item.done", "output_index": 0, "item": item},
                {"type": "response.completed", "response": whole},
            ],
        )
    if "enerateContent" in target:
        candidate: Any = {"content": {"role": "model", "parts": [{"text": "ok"}]}, "finishReason": "STOP", "index": 0}
        whole = {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 3, "totalTokenCount": 5}}
        return "gemini", whole, [whole]
    if "/converse" in target:
        message = {"role": "assistant", "content": [{"text": "ok"}]}
        usage = {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5}
        return "bedrock", {"output": {"message": message}, "stopReason": "end_turn", "usage": usage}, []
    if "/chat/completions" not in target:  # Cohere's own
        text = {"type": "text", "text": "ok"}
        message = {"role": "assistant", "content": [text]}
        return (
            "cohere",
            {"id": "1", "finish_reason": "COMPLETE", "message": message, "usage": {}},
            [
                {"type": "message-start", "id": "1", "delta": {"message": {"role": "assistant", "content": []}}},
                {"type": "content-start", "index": 0, "delta": {"message": {"content": {**text, "text": ""}}}},
                {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "ok"}}}},
                {"type": "content-end", "index": 0},
                {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": {}}},
            ],
        )
    head: Any = {"id": "c1", "created": 1, "model": "m"}
    choice: Any = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    piece: Any = {"index": 0, "delta": {"role": "assistant", "content": "ok"}, "finish_reason": None}
    end: Any = {"index": 0, "delta": {}, "finish_reason": "stop"}
    whole = {**head, "object": "chat.completion", "choices": [choice], "usage": USAGE}
    chunk: Any = {**head, "object": "chat.completion.chunk"}
    return "chat", whole, [{**chunk, "choices": [piece]}, {**chunk, "choices": [end], "usage": USAGE}]


def config_at(url: str) -> Config:
    entries = []
    mapped: dict[str, Any] = {"tools": [*STAND_INS.values()], "hosted_tools": STAND_INS}
    for name, (model, path, entry) in {**LANES, MAPPED: ("openai/m", "/v1", mapped)}.items():
        params: dict[str, Any] = {"model": model, "api_base": url + path}
        if model.startswith("bedrock/"):
            params |= {**AWS, "aws_bedrock_runtime_endpoint": url}
            del params["api_base"]
        else:
            params["api_key"] = "sk-upstream"
        entries.append(
            {"model_name": name, "litellm_params": params, "tools": ["get_time"], "tool_calling": "native", **entry}
        )
    tools = [tool_entry("get_time"), *map(entry_of, STAND_INS.values())]
    return Config.model_validate({"auth": "off", "model_list": entries, "tools": tools})


@asynccontextmanager
async def walking() -> AsyncIterator[Walker]:
    async with raw_provider(answer) as provider:
        app = create_app(config_at(provider.url))
        coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        going: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        outermost: Any = getattr(app, "outermost", app)
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        running = asyncio.create_task(outermost(scope, coming.get, going.put), name="the app's lifespan")
        await coming.put({"type": "lifespan.startup"})
        assert (await going.get())["type"] == "lifespan.startup.complete"
        try:
            yield Walker(outermost, provider)
        finally:
            await coming.put({"type": "lifespan.shutdown"})
            await going.get()
            await running


# What came of it --------------------------------------------------------------------------------------------------------

PASSED = "passed on"
WORDED = "worded"
REFUSED = "refused"
NAMED = "named"
HERE = "done here"
GAP = "**gap**"
PART = ""
"""Of a place that is no more than a part of the one above it, or has nothing in it."""
LANES_OF_PARTS: Mapping[str, Sequence[str]] = {
    "chat": list(LANES),
    "responses": ["direct", "responses", "claude"],
    "messages": ["direct", "responses", "claude"],
}
"""Lanes for what is inside of a field: a request of the two other APIs becomes a chat, whose fields are walked on all of them."""
STREAMED = ("passed", "direct", "responses", "claude")
ALIASES = {
    ("responses", "include"): ["logprobs", "top_logprobs"],
    ("messages", "messages[assistant].content[thinking]"): ["reasoning_content"],
    ("responses", "input[reasoning].summary[summary_text]"): ["reasoning_content"],
    ("responses", "input[reasoning].content[reasoning_text]"): ["reasoning_content"],
    ("responses", "text.format[json_object]"): ["response_format"],
}
"""The names by which some places are refused or named, which are those of the chat that they become."""
OF_EARLIER = {
    ("responses", "background"),
    ("responses", "previous_response_id"),
    ("responses", "input[]"),
    ("responses", "input[mcp_approval_response]"),
}
"""Places that are about another response, or about another time; they have tests of their own."""
PART_OF_CONTENT = re.compile(r"\.content\[\w+\]$")
Outcomes = dict[tuple[str, str], dict[str, str]]
"""What came of each place, by API and place, then by lane."""


async def outcomes(walker: Walker) -> Outcomes:
    seen: Outcomes = {}
    for place in places_of():
        row = seen.setdefault((place.api, place.path), {})
        above = seen.get((place.api, place.parent), {})
        lanes = [*(LANES_OF_PARTS[place.api] if place.parent else LANES)]
        if DECLARED.fullmatch(place.path):
            lanes.append(MAPPED)
        for lane in lanes:
            if place.parent and above.get(lane, GAP) in (REFUSED, NAMED, GAP):
                continue  # as the whole that it is a part of
            row[lane] = await outcome(walker, place, lane)
            if row[lane] == GAP and why_here(place.api, place.path, lane):
                row[lane] = HERE
    return seen


async def streamed_differently(walker: Walker, whole: Outcomes) -> list[str]:
    """Return the fields of a body of which something else comes in a stream."""
    different = []
    for place in places_of():
        if place.parent or place.field in ("stream_options", "input", "messages"):
            continue
        for lane in STREAMED:
            streamed = await outcome(walker, place, lane, stream=True)
            if streamed == GAP and why_here(place.api, place.path, lane):
                streamed = HERE
            if streamed != whole[place.api, place.path][lane]:
                different.append(
                    f"{place.api} {place.path} {lane}: {streamed}, not {whole[place.api, place.path][lane]}"
                )
    return different


async def outcome(walker: Walker, place: Place, lane: str, *, stream: bool = False) -> str:
    if (place.api, place.path) in OF_EARLIER:
        return GAP  # says nothing by itself
    extra = {"stream": True} if stream else {}
    answered = await walker.ask(place.api, lane, body_for(place.api, place.path, place.body) | extra)
    names = {*place.names, *ALIASES.get((place.api, place.path), ())}
    if answered.status >= 400:
        said = _words_in(answered.error)
        if names & said or place.field in said:
            return REFUSED
        return GAP  # refused, and not by its name
    if names & _words_in(answered.warnings):
        return NAMED
    if place.is_required:
        return _of_required(place, answered)
    without = await walker.ask(place.api, lane, body_for(place.api, place.path, place.parent_body) | extra)
    if PART_OF_CONTENT.search(place.path) and not _holds_some(answered.upstream, place.value):
        return GAP  # the message that it is in goes on without it
    if without.status < 400 and without.upstream != answered.upstream:
        return PASSED if _has(answered.upstream, place.leaf, place.value) else WORDED
    return PART if place.value in ({}, [], [{}], CALL) else GAP


def _of_required(place: Place, answered: Answered) -> str:
    """The outcome for a field without which the object above it is none: its value has to be somewhere."""
    if not (isinstance(place.value, str) and MARKER.fullmatch(place.value)):
        return PART
    return PASSED if place.value in json.dumps(answered.upstream) else GAP


def _words_in(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z0-9_]+", text))


def _has(value: Any, name: str, wanted: Any) -> bool:
    """Return whether a field with this name and value is anywhere in a body."""
    if isinstance(value, dict):
        if name in value and value[name] == wanted:
            return True
        return any(_has(inner, name, wanted) for inner in value.values())
    return isinstance(value, list) and any(_has(inner, name, wanted) for inner in value)


def _holds_some(upstream: Sequence[Any], value: Any) -> bool:
    """Return whether any text of a value is in what was sent, in whatever words."""
    sent = json.dumps(upstream)
    texts = list(_texts_in(value))
    return not texts or any(text in sent for text in texts)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in ("type", "id", "role"):
                yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)
    elif isinstance(value, str) and len(value) >= 8:
        yield json.dumps(value.rpartition("base64,")[2])[1:-1]
