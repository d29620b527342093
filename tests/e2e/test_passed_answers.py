"""An answer that is passed on whole is told in one event. What anybody sees of it is what the loop would have told."""

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from callgate.api.conversation import Conversation
from callgate.application import create_app
from callgate.config.schema.whole import Config
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.events import TurnStarted
from callgate.models import retry
from callgate.telemetry.listeners import LogListener, MetricsListener
from tests.harness.clients import http_client
from tests.harness.configs import config_dict, make_config
from tests.harness.server import serve
from tests.models.wire import Request, Wire, chunk, closing, completion, raw_provider, tool

pytestmark = pytest.mark.anyio

Serve = Callable[[Request, Wire], Awaitable[None]]

CALLED = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PRICE = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.002, "cache_read_input_token_cost": 0.0005}


def whole(body: Any, status: int = 200, *headers: str) -> Serve:
    async def serve_whole(request: Request, wire: Wire) -> None:
        await wire.whole(body, status, *headers)

    return serve_whole


def streamed(*events: Any) -> Serve:
    async def serve_stream(request: Request, wire: Wire) -> None:
        await wire.head()
        for event in events:
            await wire.event(event)

    return closing(serve_stream)


async def reset(request: Request, wire: Wire) -> None:
    wire.reset()


def answer(finish: Any = "stop", usage: Any = None, **message: Any) -> dict[str, Any]:
    return {**completion(finish=finish, **message), "usage": usage}


@dataclass(frozen=True)
class Case:
    """A request, and the answers of its provider, one after the other."""

    name: str
    serves: Sequence[Serve]
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    entry: Mapping[str, Any] = field(default_factory=dict)


COUNTED = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}
WEATHER = {"tools": [tool("look")]}
FALLBACK = Case(
    "comes by a fallback",
    [whole({"error": {"message": "oh"}}, 401), whole(completion())],
    entry={"fallbacks": ["other"]},
)
OTHER = Case("other", ())
CASES = [
    Case("usual", [whole(completion())]),
    *(Case(f"ends as {word}", [whole(completion(finish=word))]) for word in ("length", "content_filter", "tool_calls")),
    *(
        Case(f"ends as {word}", [whole(completion(finish=word))])
        for word in ("error", "aborted", "STOP", " ", "ready_now")
    ),
    Case("has no reason", [whole(answer(None))]),
    Case("has no reason though others had", [whole(completion()), whole(answer(None))]),
    Case("has a reason that is a number", [whole(answer(7))]),
    Case("has no usage", [whole(answer())]),
    Case("has an empty usage", [whole(answer(usage={}))]),
    Case("has a cached prompt", [whole(answer(usage=COUNTED))], entry={"model_info": PRICE}),
    Case("has an odd usage", [whole(answer(usage={"prompt_tokens": "many", "x": [1], "completion_tokens": 3.0}))]),
    Case("has two choices", [whole({**completion(), "choices": completion()["choices"] * 2})]),
    Case("has no choices", [whole({**completion(), "choices": []})]),
    Case("is padded", [whole("\ufeff  " + json.dumps(completion()) + "\n ")]),
    Case("is cut off", [whole(json.dumps(completion())[:-30])]),
    Case("is empty", [whole("")]),
    Case("is an error", [whole({"error": {"message": "no", "code": "x"}})]),
    Case("is refused", [whole({"error": {"message": "bad field", "param": "top_k"}}, 400)]),
    Case("is refused by limits", [whole({"error": {"message": "later"}}, 429, "retry-after: 30")]),
    Case("comes after a failure", [whole({"error": {"message": "oh"}}, 500, "retry-after: 0"), whole(completion())]),
    Case("comes after a reset", [reset, whole(completion())]),
    FALLBACK,
    Case("comes as a stream", [streamed(chunk({"content": "Hello"}), chunk(finish="stop"), "[DONE]")]),
    Case("comes as a stream that breaks off", [streamed(chunk({"content": "Hello"}))]),
    Case("has calls of the client", [whole(answer("tool_calls", tool_calls=[CALLED], content=None))], body=WEATHER),
    Case(
        "has forbidden calls",
        [whole(answer("tool_calls", tool_calls=[CALLED], content=None))],
        body={**WEATHER, "tool_choice": "none"},
    ),
    Case(
        "has calls in its text",
        [whole(completion('<tool_call>{"name": "look", "arguments": {}}</tool_call>'))],
        body=WEATHER,
        entry={"tool_calling": "hermes"},
    ),
    Case("to many fields", [whole(completion())], body={"top_k": 3, "metadata": {"tools": "none", "a": "b"}, "n": 1}),
    Case("in a trace", [whole(completion())], headers={"traceparent": TRACEPARENT}),
    Case("that is recorded", [whole(completion())], headers={"x-callgate-record": "own"}),
    Case("of a known agent", [whole(completion())], headers={"user-agent": "codex/1.0"}),
    Case("to a model with places", [whole(completion())], entry={"concurrency": 1}),
]


@pytest.mark.parametrize("sections", [{}, {"loop": {"diagnostics": False}}], ids=["usual", "without diagnostics"])
async def test_what_is_seen_of_an_answer_equals_what_the_loop_tells(
    sections: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "full_jitter", lambda *_, **__: 0.0)
    fast = await seen(sections)
    monkeypatch.setattr(Conversation, "_is_plain", lambda conversation: False)
    looped = await seen(sections)
    for name, told in looped.items():
        assert fast[name] == told, name


async def test_a_client_that_leaves_is_counted_and_logged_as_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await seen_of_leaving() == (await seen_of_leaving(monkeypatch))


def test_the_usual_listeners_wait_for_nothing_before_the_end_of_a_turn() -> None:
    for listener in (Diagnosis, LogListener, MetricsListener):
        assert TurnStarted not in listener.handlers


async def seen(
    sections: Mapping[str, Any],
    cases: Sequence[Case] = tuple(CASES),
    tools: Sequence[str] = (),
    path: str = "/v1/chat/completions",
) -> dict[str, Any]:
    """Return what anybody sees of each case: its client, its provider, and who reads the log, the runs or the metrics."""
    seen_of: dict[str, Any] = {}
    async with contextlib.AsyncExitStack() as stack:
        providers = {case.name: await stack.enter_async_context(raw_provider(*case.serves)) for case in cases}
        config = config_dict("", models=[*providers, "other"], tools=tools, **sections)
        for entry, case in zip(config["model_list"], [*cases, OTHER], strict=True):
            entry.update(case.entry)
            provider = providers.get(case.name) or providers.get(FALLBACK.name)
            if provider is not None:
                entry["litellm_params"]["api_base"] = provider.url
        log = stack.enter_context(capture_logs())
        url = await stack.enter_async_context(serve(create_app(Config.model_validate(config))))
        client = await stack.enter_async_context(http_client(url))
        for case in cases:
            log.clear()
            body = {**hello(case.name, path), **case.body}
            answers = []
            for _ in case.serves:
                answered = await client.post(path, json=body, headers=case.headers)
                answers.append((answered.status_code, dict(answered.headers), answered.text))
            asked = [(request.headers, request.raw) for request in providers[case.name].requests]
            seen_of[case.name] = steady([answers, asked, log])
        runs = (await client.get("/v1/runs?limit=100")).json()["data"]
        seen_of["runs"] = steady([(await client.get(f"/v1/runs/{run['id']}?content=1")).json() for run in runs])
        seen_of["metrics"] = counted((await client.get("/metrics")).text)
    return seen_of


async def seen_of_leaving(monkeypatch: pytest.MonkeyPatch | None = None) -> tuple[Any, list[str]]:
    if monkeypatch is not None:
        monkeypatch.setattr(Conversation, "_is_plain", lambda conversation: False)
    was_asked = asyncio.Event()
    has_left = asyncio.Event()

    async def hang(request: Request, wire: Wire) -> None:
        was_asked.set()
        await wire.peer_left()
        has_left.set()

    async with raw_provider(hang) as provider:
        with capture_logs() as log:
            async with serve(create_app(make_config(provider.url))) as url, http_client(url) as client:
                asking = asyncio.create_task(client.post("/v1/chat/completions", json=hello()))
                await was_asked.wait()
                asking.cancel()
                await asyncio.wait([asking])
                await has_left.wait()
                metrics = ""
                while 'ending="cancelled"' not in metrics:
                    metrics = (await client.get("/metrics")).text
    return steady([line for line in log if line["event"] == "request" and line["method"] == "POST"]), [
        line for line in counted(metrics) if "_requests" not in line
    ]


def hello(model: str = "m", path: str = "/v1/chat/completions") -> dict[str, Any]:
    if path.endswith("responses"):
        return {"model": model, "input": "hi"}
    question = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    if path.endswith("messages"):
        return {**question, "max_tokens": 9}
    return question


TIMES_OF_METRICS = re.compile("_created|cooldown|_seconds_(sum|bucket)")
CHANGES = frozenset(
    {"ms", "seconds", "first_seconds", "began", "created_at", "at", "ended", "date", "waited", "wait", "content-length"}
)
_NAMES = re.compile(
    r"(run|req|chatcmpl|call|appr|msg|resp|rs|mcpl)[_-][0-9a-z]{8,}|127\.0\.0\.1:\d+|-[0-9a-f]{16}-0[01]"
)
_SECONDS = re.compile(r'"(?:ms|seconds|first_seconds|created|created_at|completed_at|waited_ms|s|at)":\s*[\d.]+')


def steady(value: Any) -> Any:
    """Return a value without names, addresses and times."""
    if isinstance(value, Mapping):
        return {name: steady(inner) for name, inner in value.items() if name not in CHANGES}
    if isinstance(value, list | tuple):
        return [steady(inner) for inner in value]
    if isinstance(value, bytes):
        return steady(value.decode("utf-8", "replace"))
    if isinstance(value, str):
        return _SECONDS.sub("…", _NAMES.sub("…", value))
    if isinstance(value, float) and not value.is_integer():
        return "…"
    return value


def counted(exposition: str) -> list[str]:
    """Return the counts of a page of metrics."""
    lines = [line for line in exposition.splitlines() if line.startswith("callgate_")]
    return [steady(line) for line in lines if not TIMES_OF_METRICS.search(line)]
