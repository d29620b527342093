"""Every kind of door with what is really in front of it, a socket or a pipe, flooded: between two turns of the event loop no more is
read than a stated number of texts and bytes. `make chaos` sends as much as is let through, and takes the time."""

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final

import pytest

from callgate.application import create_app
from callgate.config.schema.whole import Config
from callgate.http.event_stream import EVENT_BYTES
from callgate.models.direct.model import LITELLMS_PIECE, PIECE
from callgate.models.litellm_lane.stream_bounds import EVENT as LITELLMS_EVENT
from callgate.models.prices import price_of
from callgate.tools.kinds.mcp.wire import MESSAGE
from callgate.untrusted.doors import SMALL
from callgate.untrusted.work import TURN_BYTES, TURN_TEXTS
from tests.chaos.scale import LONG, held_to, report, scaled
from tests.e2e.test_large_answers import Provider, chunk, completion, encoded, ends_of_answer, stream
from tests.harness.configs import config_dict
from tests.harness.loop_probe import LoopProbe
from tests.harness.server import serve
from tests.harness.turns import turns_counted
from tests.harness.websocket import ENDS, TEXT, client_frame, websocket
from tests.models.through_litellm import MARKS
from tests.tools.kinds.mcp import test_http, test_stdio
from tests.tools.servers.http_mcp import Asked, HttpMcp

pytestmark = [
    *(mark for mark in MARKS if mark.name != "usefixtures"),  # the served process closes litellm
    pytest.mark.timeout(scaled(300, 900)),
]

MOST = 0.1
"""Seconds of the processor between two turns of the loop."""
MIB = 1024 * 1024
TRIES = scaled(1, 3)
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
FLOOD = scaled(150_000, 4 * MIB)
"""Bytes of a flood of small things."""
LINES = scaled(20_000, 600_000)
VALUES = 90_000
"""In a body of a client, of which 100,000 are read."""
HI = [{"role": "user", "content": "hi"}]

MODELS: Mapping[str, Mapping[str, Any]] = {
    "direct": {"provider": "openai"},
    "passed": {"provider": "openai", "tools": []},
    "responses": {"provider": "openai", "lane": "responses"},
    "claude": {"provider": "anthropic", "lane": "translated"},
    "gemini": {"provider": "gemini", "lane": "translated"},
    "cohere": {"provider": "cohere", "lane": "translated"},
    "prompted": {"provider": "hosted_vllm", "tool_calling": "hermes"},
    "tapped": {"provider": "openai", "lane": "litellm"},
    "unknown": {"provider": "ollama_chat", "lane": "litellm", "tools": []},
}


def config_of(url: str) -> Config:
    config = config_dict(url, tools=("get_time",), upstream={"retries": 0}, logging={"level": "error"})
    config["model_list"] = [
        {
            "model_name": name,
            "litellm_params": {"model": f"{entry['provider']}/m", "api_base": url, "api_key": "sk-upstream"},
            "lane": entry.get("lane", "direct"),
            "tools": entry.get("tools", ["*"]),
            "tool_calling": entry.get("tool_calling", "native"),
        }
        for name, entry in MODELS.items()
    ]
    return Config.model_validate(config)


def events(event: Mapping[str, Any], end: bytes = b"data: [DONE]\n\n") -> Callable[[], bytes]:
    """Return how a stream of the same small event is made."""

    def made() -> bytes:
        data = b"data: %b\n\n" % encoded(event)
        return data * (FLOOD // len(data)) + end

    return made


def just_below(event: Callable[[str], Mapping[str, Any]]) -> Callable[[], bytes]:
    """Return how a stream of one event just below the limit is made."""
    return lambda: stream(event("a" * (scaled(MIB, EVENT_BYTES) - 1000)))


def text_of_model(piece: str) -> Callable[[], bytes]:
    """Return how a stream is made whose text is the same again and again."""

    def made() -> bytes:
        part = piece * (4096 // len(piece))
        return stream(*[chunk({"content": part})] * (FLOOD // 4096), chunk({}, finish_reason="stop"))

    return made


@dataclass(frozen=True, kw_only=True)
class Flood:
    """What a provider sends, and what is the most that may be read of it in one turn."""

    model: str
    body: Callable[[], bytes]
    stream: bool = True
    piece: int = PIECE
    """Bytes of a stream that are read at once."""
    text: int = 0
    """Bytes of the longest text in it, which is read at once."""

    @property
    def texts(self) -> int:
        return 2 * self.piece // len(SMALLEST)

    @property
    def bytes(self) -> int:
        return 2 * (self.piece + self.text)


SMALLEST = b"data: {}"
WHOLE = scaled(MIB, 32 * MIB)
EVENT = scaled(MIB, EVENT_BYTES)
PARTS = scaled(3_000, 15_000)
DELTA = {"type": "content_block_delta", "index": 0}


def block(kind: str) -> bytes:
    content = {"type": kind, kind: ""}
    return b"data: %b\n\n" % encoded({"type": "content_block_start", "index": 0, "content_block": content})


def gemini(**part: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": [part]}}]}


def line(**fields: Any) -> bytes:
    return encoded({"model": "m", "message": {"role": "assistant", "content": "a"}, "done": False, **fields}) + b"\n"


def whole_message(count: int) -> dict[str, Any]:
    content = [{"type": "text", "text": "a"}] * count
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {"type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn", "usage": usage}


def of_one_event(model: str, event: Callable[[str], Mapping[str, Any]], **more: Any) -> Flood:
    return Flood(model=model, body=just_below(event), text=EVENT, **more)


def of_one_body(model: str, body: Callable[[], Mapping[str, Any]]) -> Flood:
    return Flood(model=model, body=lambda: encoded(body()), stream=False, text=WHOLE)


def on_direct_lanes(model: str) -> dict[str, Flood]:
    return {
        "small events": Flood(model=model, body=events(chunk({"content": "a"}))),
        "the smallest events": Flood(model=model, body=events({})),
        "usages": Flood(model=model, body=events({"usage": {"a": 1}})),
        "lines of one event": Flood(model=model, body=lambda: b"data: a\n" * LINES),
        "empty lines of one event": Flood(model=model, body=lambda: b"data:\n" * (LINES // 7) + b"data: {}\n\n"),
        "one event": of_one_event(model, lambda text: chunk({"content": text})),
        "a whole answer": of_one_body(model, lambda: completion({"content": "a" * (WHOLE - 1000)})),
        "a whole answer of values": of_one_body(model, lambda: completion({"foo": [{}] * (WHOLE // 4)})),
    }


LITELLMS: Final[Mapping[str, Any]] = {"piece": LITELLMS_PIECE}
FLOODS: Mapping[str, Mapping[str, Flood]] = {
    "direct": on_direct_lanes("direct"),
    "passed through": on_direct_lanes("passed"),
    "responses": {
        "small events": Flood(
            model="responses", body=events({"type": "response.output_text.delta", "output_index": 0, "delta": "a"})
        ),
        "one event": of_one_event("responses", lambda text: {"type": "response.output_text.delta", "delta": text}),
    },
    "claude": {
        "pings": Flood(model="claude", body=events({"type": "ping"}), **LITELLMS),
        "blocks": Flood(model="claude", body=lambda: block("thinking") * (FLOOD // 100), **LITELLMS),
        "thinking": Flood(
            model="claude",
            body=lambda: block("thinking") + events({**DELTA, "delta": {"type": "thinking_delta", "thinking": "a"}})(),
            **LITELLMS,
        ),
        "citations": Flood(
            model="claude",
            body=events({**DELTA, "delta": {"type": "citations_delta", "citation": {"cited_text": "a"}}}),
            **LITELLMS,
        ),
        "one event": of_one_event(
            "claude", lambda text: {**DELTA, "delta": {"type": "text_delta", "text": text}}, **LITELLMS
        ),
        "a whole answer": of_one_body("claude", lambda: whole_message(PARTS)),
    },
    "gemini": {
        "text": Flood(model="gemini", body=events(gemini(text="a")), **LITELLMS),
        "thoughts": Flood(model="gemini", body=events(gemini(text="a", thought=True)), **LITELLMS),
        "empty": Flood(model="gemini", body=events({"candidates": []}), **LITELLMS),
        "one event": of_one_event("gemini", lambda text: gemini(text=text), **LITELLMS),
        "a whole answer": of_one_body(
            "gemini",
            lambda: {"candidates": [{"content": {"parts": [{"text": "a"}] * PARTS}, "finishReason": "STOP"}]},
        ),
    },
    "cohere": {
        "text": Flood(
            model="cohere",
            body=events({"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "a"}}}}),
            **LITELLMS,
        ),
    },
    "prompted": {
        "tags": Flood(model="prompted", body=text_of_model("<tool_call>")),
        "newlines": Flood(model="prompted", body=text_of_model("\n")),
        "one event of tags": of_one_event(
            "prompted", lambda text: chunk({"content": "<tool_call>" * (len(text) // scaled(88, 11))})
        ),
        "a whole answer of tags": of_one_body(
            "prompted", lambda: completion({"content": "<tool_call>" * (EVENT // scaled(88, 22))})
        ),
    },
    "litellm's lane": {
        "small events": Flood(model="tapped", body=events(chunk({"content": "a"})), **LITELLMS),
        "a whole answer": of_one_body("tapped", lambda: completion({"content": "a" * (WHOLE - 1000)})),
        "lines that litellm parses": Flood(
            model="unknown", body=lambda: line() * scaled(1_000, 10_000), text=SMALL, **LITELLMS
        ),
        "one line": Flood(model="unknown", body=lambda: line(x="a" * (EVENT - 1000)), text=EVENT, **LITELLMS),
        "one line of values": Flood(model="unknown", body=lambda: line(x=[{}] * (EVENT // 4)), text=EVENT, **LITELLMS),
        "no line": Flood(model="unknown", body=lambda: b"a" * EVENT, text=EVENT, **LITELLMS),
    },
}

READ_AT_ONCE: Final = 256 * 1024
"""Bytes of a body that are read on the event loop. Longer ones are read in a thread."""
BODY = scaled(600_000, 9 * MIB)
KEYS = scaled(2_000, 199_000)
BODIES: Mapping[str, tuple[str, Callable[[], Mapping[str, Any]]]] = {
    "chat: a text": (CHAT, lambda: {"messages": [{"role": "user", "content": "a,\n" * (BODY // 4)}]}),
    "chat: values": (CHAT, lambda: {"messages": HI, "metadata": {f"k{place}": "v" for place in range(VALUES)}}),
    "chat: arguments of a history": (CHAT, lambda: {"messages": past_call(many_keys(KEYS))}),
    "messages: a text": (MESSAGES, lambda: {"messages": [{"role": "user", "content": "a,\n" * (BODY // 4)}]}),
    "messages: values": (MESSAGES, lambda: {"messages": HI, "x": [{}] * VALUES}),
    "responses: a text": (RESPONSES, lambda: {"input": "a,\n" * (BODY // 4)}),
    "responses: values": (RESPONSES, lambda: {"input": "hi", "x": [{}] * VALUES}),
    "responses: arguments of a history": (
        RESPONSES,
        lambda: {
            "input": [
                *HI,
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": many_keys(KEYS)},
                {"type": "function_call_output", "call_id": "c", "output": "ok"},
            ]
        },
    ),
}


def many_keys(count: int) -> str:
    return json.dumps({f"k{place}": place for place in range(count)})


def past_call(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [*HI, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "ok"}]


NOTICE = '{"jsonrpc":"2.0","method":"notifications/message","params":{}}'
RESULT = '{"jsonrpc":"2.0","id":"ID","result":{"content":['
SERVERS: Mapping[str, Mapping[str, Any]] = {
    "notifications": {"text": NOTICE + "\n", "times": scaled(3_000, 6_000)},
    "a large notification": {"text": "[[],[", "times": scaled(100_000, 1_500_000)},
    "empty lines": {"text": "\n", "times": scaled(100_000, 1_000_000)},
    "a result of values": {"start": RESULT, "text": "{},", "times": scaled(50_000, 2_500_000), "end": "{}]}}"},
    "a result of text": {
        "start": RESULT + '{"type":"text","text":"',
        "text": "aaaaaaaaaaaaaaa,",
        "times": scaled(20_000, 480_000),
        "end": '"}]}}',
    },
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def price_list() -> None:
    """It is read once, when the first answer ends."""
    price_of({"model": "ollama_chat/m"}, {})


class Holds:
    """What was read in the fullest turn of each flood; in a long run, how long the longest turn was."""

    def __init__(self) -> None:
        self._longest: dict[str, float] = {}

    async def compare(self, what: str, act: Callable[[], Awaitable[Any]], texts: int, size: int) -> None:
        if LONG:
            self._longest[what] = await self._longest_turn(act)
            return
        async with turns_counted() as turns:
            await act()
        assert (turns.texts <= texts, turns.bytes <= size) == (True, True), (what, turns.texts, turns.bytes)

    async def _longest_turn(self, act: Callable[[], Awaitable[Any]]) -> float:
        longest = inf
        for _ in range(TRIES):
            async with LoopProbe() as probe:
                await act()
            longest = min(longest, probe.longest)
            if longest <= MOST:
                break
        return longest

    def hold(self) -> None:
        """Compare the times of all."""
        for what, seconds in self._longest.items():
            report(f"a door keeps the loop: {what}", milliseconds=round(seconds * 1000))
        for what, seconds in self._longest.items():
            held_to(MOST, f"a door keeps the loop: {what}", seconds)


@pytest.mark.parametrize("lane", FLOODS)
async def test_what_a_provider_sends_is_read_in_shares(lane: str) -> None:
    holds = Holds()
    async with Provider() as provider, serve(create_app(config_of(provider.url))) as url:
        for name, flood in FLOODS[lane].items():
            provider.body = encoded(completion({}))
            asked = encoded({"model": flood.model, "stream": flood.stream, "messages": HI})
            await ends_of_answer(url, asked)  # what is loaded once is
            provider.body = flood.body()
            await holds.compare(f"{lane}, {name}", partial(ends_of_answer, url, asked), flood.texts, flood.bytes)
    holds.hold()


async def test_an_event_that_is_too_much_for_litellm_is_refused() -> None:
    async with Provider() as provider, serve(create_app(config_of(provider.url))) as url:
        provider.body = line(x=[{}] * LITELLMS_EVENT.values)
        answer = await ends_of_answer(url, encoded({"model": "unknown", "stream": True, "messages": HI}))
    assert f"more than {LITELLMS_EVENT.values} values in one event" in answer


async def test_what_a_client_sends_is_read_in_shares() -> None:
    holds = Holds()
    async with Provider() as provider, serve(create_app(config_of(provider.url))) as url:
        provider.body = encoded(completion({}))
        models = scaled(("direct",), ("direct", "passed", "claude", "gemini", "prompted", "tapped"))
        for model in models:
            await ends_of_answer(url, encoded({"model": model, "messages": HI}))
            for name, (path, fields) in BODIES.items():
                body = encoded({"model": model, "max_tokens": 9, **fields()})
                await holds.compare(f"{model}, {name}", partial(ends_of_answer, url, body, path), 50, 2 * READ_AT_ONCE)

        message = {"type": "response.create", "model": "direct", "input": "a,\n" * (BODY // 4)}
        frame = client_frame(TEXT, encoded(message))

        async def over_a_socket() -> None:
            async with websocket(url) as socket:
                await socket.send_raw(frame)
                while (await socket.message())["type"] not in ENDS:
                    pass

        await holds.compare("a message of a WebSocket", over_a_socket, 50, 2 * READ_AT_ONCE)
    holds.hold()


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_what_a_server_of_tools_sends_is_read_in_shares(transport: str) -> None:
    holds = Holds()
    names = [[name] for name in SERVERS] if LONG else [list(SERVERS)]  # what opens a server gives it a minute in all
    for floods in names:
        async with AsyncExitStack() as stack:
            if transport == "stdio":
                manager: Any = await stack.enter_async_context(test_stdio.opened_server())
            else:
                http = await stack.enter_async_context(HttpMcp(events=True).running())
                http.instead = in_events
                manager = await stack.enter_async_context(test_http.opened_server(http.url))
            for name in floods:
                writes = partial(manager.run, "raw_writes" if transport == "stdio" else "echo", **SERVERS[name])
                size = 2 * (TURN_BYTES + MESSAGE.bytes)
                await holds.compare(f"MCP over {transport}, {name}", writes, 3 * TURN_TEXTS, size)
    holds.hold()


def in_events(asked: Asked) -> bytes | None:
    """Return what `raw_writes` of the other server writes, each line in an event."""
    if asked.message.get("method") != "tools/call":
        return None
    arguments = asked.message["params"]["arguments"]
    start = arguments.get("start", "").replace("ID", str(asked.message["id"]))
    written = start + arguments["text"] * arguments["times"] + arguments.get("end", "")
    if not start:
        written += "\n" + RESULT.replace("ID", str(asked.message["id"])) + "]}}"
    body = "".join(f"data: {line}\n\n" for line in written.split("\n")).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + body


TOOLS: list[dict[str, Any]] = [
    {
        "kind": "command",
        "name": "writes",
        "description": "d",
        "argv": [sys.executable, "-S", "-c", f"print('[' + '{{}},' * {scaled(100_000, 3_000_000)} + '0]')"],
        "safety": "read_only",
    },
    {
        "kind": "http",
        "name": "rows",
        "description": "d",
        "url": "URL",
        "allow_private": True,
        "safety": "read_only",
    },
]


async def test_what_tools_return_is_read_in_shares() -> None:
    holds = Holds()
    async with Provider() as provider:
        provider.body = b"[" + b"{}," * scaled(100_000, 3_000_000) + b"0]"
        tools = [{name: provider.url if text == "URL" else text for name, text in tool.items()} for tool in TOOLS]
        config = Config.model_validate(config_dict(provider.url, tools=tools, logging={"level": "error"}))
        async with serve(create_app(config)) as url:
            for tool in tools:
                call = partial(ends_of_answer, url, b'{"arguments":{}}', f"/v1/tools/{tool['name']}/call")
                assert "returned" in await call()
                await holds.compare(f"{tool['kind']} tool", call, 50, READ_AT_ONCE)
    holds.hold()
