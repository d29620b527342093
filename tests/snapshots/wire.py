"""The bodies that a recorded conversation has on the wire: what clients get in each API and mode, and what the model was sent."""

import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from callgate.application import create_app
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import RawAnswer, raw_post
from tests.models.wire import Request, Wire, raw_provider
from tests.recordings import Recording
from tests.scripted_upstream import Upstream

FOLDER = Path(__file__).parent / "wire"
Api = Literal["chat", "responses", "messages"]
PATHS: Mapping[Api, str] = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
OPEN = {"type": "object", "properties": {}}
"""What our tools take where they are the client's."""
UNUSED_TOOL = "search_docs"
"""On offer where a recording has no tool of ours, so that its answer is read and not passed through."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to ask for a conversation. Its name heads its part of the snapshot."""

    name: str
    api: Api
    stream: bool
    with_tools: bool
    """Our tools are on offer; else the answer is passed through, and all tools of the recording are the client's."""
    headers: Mapping[str, str] | None = None
    fields: Mapping[str, Any] | None = None
    other_shape: bool = False
    """The model streams an answer that was asked for whole, and the other way round."""


CHAT_STREAM = {"stream_options": {"include_usage": True}}
WAYS = (
    Way("chat, whole", "chat", stream=False, with_tools=True),
    Way("chat, streamed", "chat", stream=True, with_tools=True, fields=CHAT_STREAM),
    Way("chat, streamed without usage", "chat", stream=True, with_tools=True),
    *(
        Way(f"chat, streamed with events: {events}", "chat", True, True, {"x-callgate-events": events})
        for events in ("x", "reasoning", "openwebui")
    ),
    Way("responses, whole", "responses", stream=False, with_tools=True),
    Way("responses, streamed", "responses", stream=True, with_tools=True),
    Way("messages, whole", "messages", stream=False, with_tools=True),
    Way("messages, streamed", "messages", stream=True, with_tools=True),
    Way("chat, whole, passed", "chat", stream=False, with_tools=False),
    Way("chat, streamed, passed", "chat", stream=True, with_tools=False, fields=CHAT_STREAM),
    Way("chat, streamed without usage, passed", "chat", stream=True, with_tools=False),
    Way("chat, whole, passed, from a stream", "chat", stream=False, with_tools=False, other_shape=True),
    Way("chat, streamed, passed, from a whole answer", "chat", stream=True, with_tools=False, other_shape=True),
    Way("responses, whole, passed", "responses", stream=False, with_tools=False),
    Way("responses, streamed, passed", "responses", stream=True, with_tools=False),
    Way("messages, whole, passed", "messages", stream=False, with_tools=False),
    Way("messages, streamed, passed", "messages", stream=True, with_tools=False),
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one way put on the wire, without what no two runs share."""

    answer: str
    requests: tuple[str, ...]
    """The bodies that the model was sent."""


async def exchanges_of(recording: Recording) -> dict[str, Exchange]:
    """By the names of the ways."""
    exchanges = {}
    async with Upstream() as upstream, proxy_of(recording, upstream.url, with_tools=True) as url:
        for way in WAYS:
            if way.with_tools:
                recording.play_on(upstream, "m")
                before = len(upstream.requests)
                answer = await raw_post(url, request_body(recording, way), PATHS[way.api], way.headers)
                requests = [record.body for record in upstream.requests][before:]
                exchanges[way.name] = Exchange(normalised_answer(answer), tuple(map(normalised_request, requests)))
    return exchanges | await passed_through(recording, [way for way in WAYS if not way.with_tools])


async def passed_through(recording: Recording, ways: Sequence[Way]) -> dict[str, Exchange]:
    """The first answer of the conversation, where none of our tools is on offer."""
    reply = recording.replies[0]
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in reply["chunks"])
    streams = [way.stream is not way.other_shape for way in ways]
    exchanges = {}

    async def reply_once(request: Request, wire: Wire) -> None:
        if streams[len(provider.requests) - 1]:
            await wire.whole(f"{events}data: [DONE]\n\n", kind="text/event-stream")
        else:
            await wire.whole(reply["whole"])

    async with raw_provider(reply_once) as provider, proxy_of(recording, f"{provider.url}/v1", with_tools=False) as url:
        for way in ways:
            before = len(provider.requests)
            answer = await raw_post(url, request_body(recording, way), PATHS[way.api], way.headers)
            requests = [request.body for request in provider.requests[before:]]
            exchanges[way.name] = Exchange(normalised_answer(answer), tuple(map(normalised_request, requests)))
    return exchanges


@asynccontextmanager
async def proxy_of(recording: Recording, model_url: str, *, with_tools: bool) -> AsyncIterator[str]:
    tools = (recording.house_tools or [UNUSED_TOOL]) if with_tools else []
    async with serve(create_app(make_config(model_url, tools=tools))) as url:
        yield url


def request_body(recording: Recording, way: Way) -> dict[str, Any]:
    """The recording's request, as the API of this way has it."""
    request = {**recording.request}
    messages = request.pop("messages")
    tools = [*request.pop("tools", ())]
    if not way.with_tools:
        tools += [
            {"type": "function", "function": {"name": name, "parameters": OPEN}} for name in recording.house_tools
        ]
    limit = request.pop("max_tokens", None)
    body: dict[str, Any] = {"model": "m", **request, **(way.fields or {})}
    if way.stream:
        body["stream"] = True
    if way.api == "chat":
        body |= {"messages": messages, "max_tokens": limit}
    elif way.api == "responses":
        body |= {"input": messages, "max_output_tokens": limit, "reasoning": {"summary": "auto"}}
        tools = [{"type": "function", **tool["function"]} for tool in tools]
    else:
        body |= {"messages": messages, "max_tokens": limit or 1000, "thinking": {"type": "adaptive"}}
        tools = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in tools]
    if tools:
        body["tools"] = tools
    return {name: value for name, value in body.items() if value is not None}


# Without what no two runs share ---------------------------------------------------------------------------------------

HEADERS = ("content-type", "cache-control", "x-accel-buffering", "x-should-retry", "retry-after")
CHANGING = (
    (re.compile(r'"(created|created_at|completed_at)":\d+'), r'"\1":<time>'),
    (re.compile(r'"ms":[\d.]+'), '"ms":<ms>'),
    (re.compile(r'"since":"[\d-]+"'), '"since":<date>'),
    (re.compile(r"req_[a-p]{24}"), "req_<id>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<host>"),
)


def normalised_answer(answer: RawAnswer) -> str:
    """Status and the headers that say something about the body, in one line, and the body."""
    head = [str(answer.status), *(f"{name}: {answer.headers[name]}" for name in HEADERS if name in answer.headers)]
    return f"{', '.join(head)}\n\n{normalised(answer.body.decode(), answer.headers.get('x-callgate-run', ''))}"


def normalised(text: str, run: str) -> str:
    """A body without the id of its run, times and ports."""
    if run:
        text = text.replace(run.removeprefix("run_"), "<run>")
    for pattern, replacement in CHANGING:
        text = pattern.sub(replacement, text)
    return text


def normalised_request(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False)


# As a file -----------------------------------------------------------------------------------------------------------

GAP = "⋯"
SHORTEST_REPEAT = 24
"""Characters that a line has to share with the line before it, at its beginning or end, to be written without them."""
DIGEST_LENGTH = 12
KIND_LENGTH = 8
"""Characters by which whole bodies of one kind are known."""


def snapshot(exchanges: Mapping[str, Exchange]) -> str:
    """All ways of a conversation as one file: each under a digest of all that it put on the wire, with its lines shortened.

    What a line shares with the one before it of the same kind is a gap, and a line that stood in the file before is its
    digest: a difference shows where it is, and `python -m tests.snapshots print` shows it whole.
    """
    shortened = _Shortened()
    parts = []
    for name, exchange in exchanges.items():
        lines = [f"## {name}  {digest(whole(exchange))}"]
        lines += shortened.lines(exchange.answer)
        for request in exchange.requests:
            lines += [f"-> {line}" for line in shortened.lines(request)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def whole(exchange: Exchange) -> str:
    return "\n\n-> ".join([exchange.answer, *exchange.requests])


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]


class _Shortened:
    """Lines without what stood in the file before."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._latest: dict[str, str] = {}

    def lines(self, text: str) -> list[str]:
        """The lines of a text that are not empty; an event of a stream is one line."""
        shortened = []
        for line in text.replace("\ndata: ", " data: ").splitlines():
            if not line:
                continue
            kind = line.partition("data: ")[0] if "data: " in line else line[:KIND_LENGTH]
            if len(line) > 2 * SHORTEST_REPEAT and line in self._seen:
                shortened.append(f"{GAP} {digest(line)}")
            else:
                shortened.append(_without_repeats(line, self._latest.get(kind, "")))
            self._seen.add(line)
            self._latest[kind] = line
        return shortened


def _without_repeats(line: str, before: str) -> str:
    """The line without its beginning and end as far as the line before has the same."""
    shorter = min(len(line), len(before))
    start = 0
    while start < shorter and line[start] == before[start]:
        start += 1
    end = 0
    while end < shorter - start and line[-1 - end] == before[-1 - end]:
        end += 1
    if start < SHORTEST_REPEAT:
        start = 0
    if end < SHORTEST_REPEAT:
        end = 0
    return (GAP if start else "") + line[start : len(line) - end] + (GAP if end else "")
