"""The bodies that clients get where something is wrong, with their request or with the answer of the provider, and what is
recorded of a request."""

import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import raw_post
from tests.recordings import load_all
from tests.scripted_upstream import Call, Cut, Empty, ErrorEvent, Html, Malformed, Misframed, Reply, Reset, Upstream
from tests.snapshots.wire import PATHS, UNUSED_TOOL, Api, Exchange, normalised, normalised_answer

FOLDER = Path(__file__).parent / "served"
TOOL = {"name": "lookup", "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}}}
CHAT_TOOL = {"type": "function", "function": TOOL}


# Requests that are refused --------------------------------------------------------------------------------------------

HELLO = [{"role": "user", "content": "hello"}]
BODIES: Mapping[str, Any] = {
    "no JSON": b'{"model": "m", ',
    "no object": [1],
    "not UTF-8": b'{"model": "m\xff"}',
    "NaN": b'{"model": "m", "temperature": NaN}',
    "a key twice": b'{"model": "m", "model": "m"}',
    "deep": b'{"model": "m", "metadata": ' + b"[" * 300 + b"]" * 300 + b"}",
    "empty": {},
    "no model": {"messages": HELLO, "input": HELLO, "max_tokens": 10},
    "another model": {"model": "n", "messages": HELLO},
    "another model for responses": {"model": "n", "input": "hello"},
    "another model for messages": {"model": "n", "messages": HELLO, "max_tokens": 10},
    "a model that is a number": {"model": 1, "messages": HELLO},
    "no messages": {"model": "m"},
    "empty messages": {"model": "m", "messages": [], "input": [], "max_tokens": 10},
    "a role that is none": {"model": "m", "messages": [{"role": "wizard", "content": "x"}], "max_tokens": 10},
    "content that is a number": {"model": "m", "messages": [{"role": "user", "content": 1}], "max_tokens": 10},
    "a part that is none": {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "smell"}]}],
        "input": [{"role": "user", "content": [{"type": "smell"}]}],
        "max_tokens": 10,
    },
    "a result without a call": {"model": "m", "messages": [{"role": "tool", "tool_call_id": "a", "content": "x"}]},
    "a call without a result": {
        "model": "m",
        "messages": [
            {
                "role": "assistant",
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "b", "arguments": "{}"}}],
            },
            *HELLO,
        ],
    },
    "an output without a call": {
        "model": "m",
        "input": [{"type": "function_call_output", "call_id": "a", "output": "x"}],
    },
    "a tool result without a use": {
        "model": "m",
        "max_tokens": 10,
        "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]}],
    },
    "a tool without a name": {
        "model": "m",
        "messages": HELLO,
        "input": "hello",
        "max_tokens": 10,
        "tools": [{"type": "function", "function": {}}],
    },
    "a schema that is none": {
        "model": "m",
        "messages": HELLO,
        "tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": 1}}}],
    },
    "the same tool twice": {"model": "m", "messages": HELLO, "tools": [CHAT_TOOL, CHAT_TOOL]},
    "a choice of no tool": {
        "model": "m",
        "messages": HELLO,
        "tools": [CHAT_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "other"}},
    },
    "a choice without tools": {"model": "m", "messages": HELLO, "tool_choice": "required"},
    "no choices": {"model": "m", "messages": HELLO, "n": 0},
    "a temperature in words": {
        "model": "m",
        "messages": HELLO,
        "input": "hello",
        "max_tokens": 10,
        "temperature": "hot",
    },
    "fewer than no tokens": {
        "model": "m",
        "messages": HELLO,
        "input": "hello",
        "max_tokens": -1,
        "max_output_tokens": -1,
    },
    "a stream in words": {"model": "m", "messages": HELLO, "input": "hello", "max_tokens": 10, "stream": "yes"},
    "a format that is none": {"model": "m", "messages": HELLO, "response_format": {"type": "poem"}},
    "metadata that is a list": {"model": "m", "messages": HELLO, "input": "hello", "max_tokens": 10, "metadata": [1]},
    "a response that is not there": {"model": "m", "input": "hello", "previous_response_id": "resp_none"},
}
HEADERS: Mapping[str, Mapping[str, str]] = {
    "tools that are not there": {"x-callgate-tools": "nothing"},
    "events that are none": {"x-callgate-events": "loud"},
    "a long key": {"idempotency-key": "k" * 300},
}
QUESTIONS: Mapping[Api, Mapping[str, Any]] = {
    "chat": {"model": "m", "messages": HELLO},
    "responses": {"model": "m", "input": "hello"},
    "messages": {"model": "m", "messages": HELLO, "max_tokens": 100},
}
OTHER_REQUESTS = (
    ("GET", "/v1/models"),
    ("GET", "/v1/models/m"),
    ("GET", "/v1/models/n"),
    ("GET", "/v1/nothing"),
    ("GET", "/v1/chat/completions"),
    ("GET", "/v1/chat/completions/chatcmpl-none"),
    ("GET", "/v1/responses/resp_none"),
    ("DELETE", "/v1/responses/resp_none"),
    ("POST", "/v1/responses/resp_none/cancel"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/moderations"),
    ("GET", "/v1/runs"),
    ("GET", "/v1/runs/run_none"),
    ("POST", "/v1/runs/run_none/cancel"),
    ("GET", "/v1/tools"),
    ("POST", "/v1/tools/get_time/call"),
    ("GET", "/v1/approvals"),
    ("POST", "/v1/approvals/none"),
    ("GET", "/v1/usage"),
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
)


async def refused() -> dict[str, Exchange]:
    """What each request gets that nothing can be done with, of each API."""
    exchanges: dict[str, Exchange] = {}
    async with Upstream() as upstream:
        upstream.script("m", lambda _: Reply(text="hello"), lax=True)
        config = make_config(upstream.url, tools=["get_time"])
        rejections = upstream.rejections_expected()  # of what is passed on for the provider to judge
        async with serve(create_app(config)) as url:
            with rejections:
                for api, path in PATHS.items():
                    for name, body in BODIES.items():
                        answer = await raw_post(url, body, path)
                        exchanges[f"{api}, {name}"] = Exchange(normalised_answer(answer), ())
            for api, path in PATHS.items():
                for name, headers in HEADERS.items():
                    answer = await raw_post(url, QUESTIONS[api], path, headers)
                    exchanges[f"{api}, {name}"] = Exchange(normalised_answer(answer), ())
        async with serve(create_app(config)) as url, http_client(url) as client:
            for method, path in OTHER_REQUESTS:
                response = await client.request(method, path)
                text = normalised(response.text, response.headers.get("x-callgate-run", ""))
                exchanges[f"{method} {path}"] = Exchange(f"{response.status_code}\n\n{text}", ())
    return exchanges


# Answers that fail ----------------------------------------------------------------------------------------------------

TEXT = "Hello there, you who ask."
CALLS = [Call("get_time", id="call_1")]
FAILURES: Mapping[str, Reply] = {
    **{
        f"status {status}": Reply(status=status, body={"error": {"message": "scripted", "type": "t", "code": "c"}})
        for status in (400, 401, 403, 404, 408, 413, 422, 429, 500, 502, 503, 529)
    },
    "status 429, later": Reply(status=429, headers={"retry-after": "7"}, body={"error": {"message": "slow down"}}),
    "status 500, a web page": Reply(status=500, body="<html>oops</html>"),
    "a context that is too long": Reply(
        status=400, body={"error": {"message": "too long", "code": "context_length_exceeded", "param": "messages"}}
    ),
    "nothing": Reply(fault=Empty()),
    "a web page": Reply(fault=Html()),
    "cut at once": Reply(text=TEXT, fault=Cut()),
    "cut later": Reply(text=TEXT, fault=Cut(after=2)),
    "cut in a call": Reply(calls=CALLS, fault=Cut(after=1)),
    "reset later": Reply(text=TEXT, fault=Reset(after=2)),
    "broken JSON": Reply(text=TEXT, fault=Malformed(after=2)),
    "broken framing": Reply(text=TEXT, fault=Misframed(after=2)),
    "an error event at once": Reply(text=TEXT, fault=ErrorEvent()),
    "an error event later": Reply(text=TEXT, fault=ErrorEvent(after=2)),
    "an error event with a name": Reply(text=TEXT, fault=ErrorEvent(after=2, named=True)),
    "no end": Reply(text=TEXT, end="no_done"),
    "an end that nobody knows": Reply(calls=CALLS, finish="exploded"),
    "no end word": Reply(text=TEXT, finish=None),
}


async def failed() -> dict[str, Exchange]:
    """What clients get of each answer that fails, in each API and mode, with a tool of ours on offer and without."""
    exchanges: dict[str, Exchange] = {}
    async with Upstream() as upstream:
        for tools in (["get_time"], []):
            config = make_config(upstream.url, tools=tools, upstream={"retries": 0, "cooldown_seconds": 0})
            async with serve(create_app(config)) as url:
                for name, reply in FAILURES.items():
                    for api, path in PATHS.items():
                        for stream in (False, True):
                            upstream.script("m", [reply, Reply(text="after")])
                            answer = await raw_post(url, {**QUESTIONS[api], "stream": stream}, path)
                            mode = "streamed" if stream else "whole"
                            way = f"{name}: {api}, {mode}" if tools else f"{name}: {api}, {mode}, passed"
                            exchanges[way] = Exchange(normalised_answer(answer), ())
    return exchanges


# What is recorded -----------------------------------------------------------------------------------------------------

CHANGING_IN_RUNS = (
    (re.compile(r'"(began|at|seconds|first_seconds|ms|p50|p95|first_p50|first_p95)":[\d.e-]+'), r'"\1":<time>'),
    (re.compile(r'"process":"[^"]*"'), '"process":<process>'),
    (re.compile(r'"(arguments_hash|hash)":"[^"]*"'), r'"\1":<hash>'),
)


async def recorded() -> dict[str, Exchange]:
    """What `/v1/runs/{id}` says of each recorded conversation, with its texts and without."""
    exchanges: dict[str, Exchange] = {}
    for texts in (False, True):
        for recording in load_all():
            async with Upstream() as upstream:
                recording.play_on(upstream, "m")
                tools = recording.house_tools or [UNUSED_TOOL]
                config = make_config(upstream.url, tools=tools, record={"content": texts})
                async with serve(create_app(config)) as url, http_client(url) as client:
                    answer = await raw_post(url, {"model": "m", **recording.request})
                    run = answer.headers["x-callgate-run"]
                    response = await client.get(f"/v1/runs/{run}", params={"content": "yes"} if texts else {})
                    usage = await client.get("/v1/usage")
            text = f"{response.text}\n\n{usage.text}"
            for pattern, replacement in CHANGING_IN_RUNS:
                text = pattern.sub(replacement, text)
            name = f"{recording.name}, with texts" if texts else recording.name
            exchanges[name] = Exchange(normalised(text, run), ())
    return exchanges


SNAPSHOTS: Mapping[str, Callable[[], Awaitable[dict[str, Exchange]]]] = {
    "refused": refused,
    "failed": failed,
    "recorded": recorded,
}
"""How each file is made."""
