"""Which token counts an answer reports: the sum over its turns, or those of its last turn. What is counted is always the sum."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.access.keys import hash_key
from callgate.api.delivery import HEADER, usage_scope
from callgate.application import create_app
from callgate.conversation.errors import ChatError
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.messages import USAGE, put_together
from tests.harness.server import serve
from tests.harness.websocket import websocket
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

KEY = "a-key-of-somebody"
TURNS = [
    {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107, "prompt_tokens_details": {"cached_tokens": 64}},
    {"prompt_tokens": 130, "completion_tokens": 5, "total_tokens": 135, "prompt_tokens_details": {"cached_tokens": 96}},
    {
        "prompt_tokens": 150,
        "completion_tokens": 3,
        "total_tokens": 153,
        "prompt_tokens_details": {"cached_tokens": 128},
    },
]
SUM, LAST = (380, 15, 288), (150, 3, 128)
"""Tokens of prompts, of answers, and of prompts read from a cache."""
APIS = pytest.mark.parametrize("api", ["chat", "responses", "messages"])
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@dataclass(frozen=True, slots=True)
class Reported:
    """What an answer says was used."""

    usage: Mapping[str, Any]
    report: Mapping[str, Any] | None

    @property
    def counts(self) -> tuple[int, int, int]:
        usage = self.usage
        if "prompt_tokens" in usage:
            return usage["prompt_tokens"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        if "total_tokens" in usage:
            return usage["input_tokens"], usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"]
        read = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + read, usage["output_tokens"], read


def three_turns(upstream: Upstream) -> None:
    """Two turns that call a tool of ours, and one that answers."""
    calls = [[Call("add", {"a": 1, "b": 2})], [Call("add", {"a": 2, "b": 2})], []]

    def answer(request: Any) -> Reply:
        at = len(request.tool_results)
        return Reply(text="" if calls[at] else "Done.", calls=calls[at], usage=TURNS[at])

    upstream.script("m", answer)


def request_of(api: str, *, stream: bool, **more: Any) -> tuple[str, dict[str, Any]]:
    asked = [{"role": "user", "content": "hi"}]
    match api:
        case "chat":
            options = {"stream_options": {"include_usage": True}} if stream else {}
            return "/v1/chat/completions", {"model": "m", "messages": asked, "stream": stream, **options, **more}
        case "responses":
            return "/v1/responses", {"model": "m", "input": "hi", "stream": stream, **more}
        case _:
            return "/v1/messages", {"model": "m", "max_tokens": 99, "messages": asked, "stream": stream, **more}


def reported_usage(api: str, answer: httpx.Response) -> Reported:
    assert answer.status_code == 200, answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        body = answer.json()
        return Reported(body["usage"], body.get("x_callgate"))
    if api == "messages":
        message = put_together(answer.text)
        return Reported(message["usage"], message.get("x_callgate"))
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    last = json.loads(lines[-1])
    body = last["response"] if api == "responses" else last
    return Reported(body["usage"], body.get("x_callgate"))


async def ask(
    upstream: Upstream, api: str, *, stream: bool, headers: Mapping[str, str] | None = None, **options: Any
) -> Reported:
    three_turns(upstream)
    config = make_config(upstream.url, tools=["add"], **options)
    path, body = request_of(api, stream=stream)
    async with serve(create_app(config)) as url, http_client(url) as client:
        return reported_usage(
            api, await client.post(path, json=body, headers={"authorization": f"Bearer {KEY}"} | dict(headers or {}))
        )


def entry(usage: str | None) -> Mapping[str, Any]:
    return {} if usage is None else {"usage": usage}


@BOTH
@APIS
async def test_an_answer_reports_the_sum_and_x_callgate_says_so(upstream: Upstream, api: str, stream: bool) -> None:
    reported = await ask(upstream, api, stream=stream)
    assert reported.counts == SUM
    assert reported.report is not None
    assert reported.report["usage"]["given"] == "sum"
    assert reported.report["usage"]["sum"]["prompt_tokens"] == SUM[0]


@BOTH
async def test_a_message_with_the_sum_has_an_iteration_for_each_turn(upstream: Upstream, stream: bool) -> None:
    three_turns(upstream)
    path, body = request_of("messages", stream=stream)
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url, http_client(url) as client:
        answer = await client.post(path, json=body)
    message = put_together(answer.text) if stream else answer.json()
    usage = message["usage"]
    shape = {"type", "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"}
    assert all(each.keys() == shape | {"cache_creation"} for each in usage["iterations"])
    assert [(each["type"], each["input_tokens"], each["output_tokens"]) for each in usage["iterations"]] == [
        ("message", 36, 7),
        ("message", 34, 5),
        ("message", 22, 3),
    ]
    for name in USAGE:
        assert sum(each[name] for each in usage["iterations"]) == usage[name]


@BOTH
@APIS
@pytest.mark.parametrize("diagnostics", [True, False], ids=["diagnostics", "no diagnostics"])
async def test_the_last_turn_is_reported_where_it_is_asked_for_and_the_sum_beside_it(
    upstream: Upstream, api: str, stream: bool, diagnostics: bool
) -> None:
    header = {"x-callgate-usage": "last_turn"}
    reported = await ask(upstream, api, stream=stream, headers=header, loop={"diagnostics": diagnostics})
    assert reported.counts == LAST
    assert "iterations" not in reported.usage
    assert reported.report is not None
    assert reported.report["usage"]["given"] == "last_turn"
    total = reported.report["usage"]["sum"]
    assert (total["prompt_tokens"], total["completion_tokens"]) == SUM[:2]
    assert ("turns" in reported.report) is diagnostics


@APIS
async def test_with_the_sum_and_without_diagnostics_nothing_is_added(upstream: Upstream, api: str) -> None:
    reported = await ask(upstream, api, stream=False, loop={"diagnostics": False})
    assert (reported.counts, reported.report) == (SUM, None)


@APIS
@pytest.mark.parametrize(
    ("header", "of_key", "of_entry", "agent", "counts"),
    [
        (None, None, None, "OpenAI/Python 3.51.0", SUM),
        (None, None, "last_turn", "", LAST),
        (None, "last_turn", "sum", "", LAST),
        (None, "sum", "last_turn", "", SUM),
        ("sum", "last_turn", "last_turn", "", SUM),
        ("last_turn", "sum", "sum", "", LAST),
        (None, None, None, "codex_cli_rs/0.169.0 (Debian 12; x86_64) xterm", LAST),
        (None, None, None, "codex_exec/0.169.0 (Debian 12; x86_64) dumb", LAST),
        (None, None, None, "opencode/1.18.33 ai-sdk/provider-utils/3.0 runtime/bun/1.3", LAST),
        (None, None, None, "QwenCode/0.24.4 (linux; x64)", LAST),
        (None, None, "sum", "codex_cli_rs/0.169.0", SUM),
        (None, "sum", None, "codex_cli_rs/0.169.0", SUM),
        (None, "auto", "sum", "codex_cli_rs/0.169.0", LAST),
        ("auto", "sum", "sum", "opencode/1.18.33", LAST),
        ("auto", "last_turn", "last_turn", "curl/8", SUM),
        (None, None, None, "claude-cli/2.1.328 (external, cli)", SUM),
        (None, None, None, "claude-cli/2.1.290 (external, cli)", SUM),
        (None, None, None, "claude-cli/2.1.248 (external, cli)", LAST),
        (None, None, None, "claude-cli/0.24.4 (external, cli)", LAST),
        (None, None, None, "claude-cli/next", SUM),
    ],
)
async def test_the_header_counts_before_the_key_and_the_key_before_the_entry(
    upstream: Upstream, api: str, header: str | None, of_key: str | None, of_entry: str | None, agent: str, counts: Any
) -> None:
    keys = [{"name": "ada", "hash": hash_key(KEY), **entry(of_key)}]
    headers = {"user-agent": agent} | ({} if header is None else {"x-callgate-usage": header})
    config = make_config(upstream.url, tools=["add"], auth="keys", keys=keys)
    models = [model.model_copy(update=entry(of_entry)) for model in config.model_list]
    three_turns(upstream)
    path, body = request_of(api, stream=False)
    made = create_app(config.model_copy(update={"model_list": models}))
    async with serve(made) as url, http_client(url) as client:
        answer = await client.post(path, json=body, headers={"authorization": f"Bearer {KEY}"} | headers)
    assert reported_usage(api, answer).counts == counts


@APIS
async def test_an_unknown_value_of_the_header_is_refused_by_name(upstream: Upstream, api: str) -> None:
    path, body = request_of(api, stream=False)
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as client:
        answer = await client.post(path, json=body, headers={"x-callgate-usage": "total"})
    assert (answer.status_code, len(upstream.requests)) == (400, 0)
    assert "X-Callgate-Usage; use one of auto, sum, last_turn" in answer.json()["error"]["message"]


def test_the_refusal_names_the_header_and_a_client_without_a_name_gets_the_sum() -> None:
    with pytest.raises(ChatError, match=f"'{'x' * 40}'") as refused:
        usage_scope({HEADER: "x" * 41}, None, "auto")
    assert (refused.value.param, refused.value.code) == ("X-Callgate-Usage", "invalid_value")
    assert usage_scope({}, None, "auto") == "sum"


@BOTH
async def test_several_choices_report_the_last_turn_of_each(upstream: Upstream, stream: bool) -> None:
    three_turns(upstream)
    path, body = request_of("chat", stream=stream, n=2)
    headers = {"x-callgate-usage": "last_turn"}
    for diagnostics in (True, False):
        config = make_config(upstream.url, tools=["add"], loop={"diagnostics": diagnostics})
        async with serve(create_app(config)) as url, http_client(url) as client:
            reported = reported_usage("chat", await client.post(path, json=body, headers=headers))
        assert reported.counts == (300, 6, 256)
        assert reported.report is not None
        assert (reported.report["usage"]["given"], reported.report["usage"]["sum"]["prompt_tokens"]) == (
            "last_turn",
            760,
        )
        assert ("choices" in reported.report) is diagnostics


@BOTH
async def test_an_answer_that_is_passed_through_keeps_its_usage(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", lambda _: Reply(text="hi", usage=TURNS[0]))
    path, body = request_of("chat", stream=stream)
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as client:
        plain = await client.post(path, json=body)
        last = await client.post(path, json=body, headers={"x-callgate-usage": "last_turn"})
    assert reported_usage("chat", plain) == reported_usage("chat", last)
    assert reported_usage("chat", last).usage == TURNS[0]
    assert reported_usage("chat", last).report is None


@BOTH
@APIS
async def test_a_repeated_request_and_a_kept_run_say_the_same(
    upstream: Upstream, api: str, stream: bool, tmp_path: Path
) -> None:
    three_turns(upstream)
    headers = {"idempotency-key": "one", "user-agent": "opencode/1.18.33"}
    path, body = request_of(api, stream=stream)
    config = make_config(upstream.url, tools=["add"], data_dir=str(tmp_path))
    async with serve(create_app(config)) as url, http_client(url) as client:
        first = await client.post(path, json=body, headers=headers)
        again = await client.post(path, json=body, headers=headers)
        kept = await client.get(f"/v1/chat/completions/{first.headers['x-callgate-run']}")
    assert (reported_usage(api, first).counts, first.content) == (LAST, again.content)
    assert len(upstream.requests) == 3
    if api == "chat":
        assert (kept.json()["usage"]["prompt_tokens"], kept.json()["x_callgate"]["usage"]["given"]) == (
            150,
            "last_turn",
        )


async def test_a_response_in_the_background_and_one_on_a_socket_report_the_last_turn(
    upstream: Upstream, tmp_path: Path
) -> None:
    three_turns(upstream)
    config = make_config(upstream.url, tools=["add"], data_dir=str(tmp_path))
    async with serve(create_app(config)) as url, http_client(url) as client:
        headers = {"user-agent": "codex_cli_rs/0.169.0"}
        path, body = request_of("responses", stream=True, background=True)
        streamed = await client.post(path, json=body, headers=headers)
        assert reported_usage("responses", streamed).counts == LAST
        id = json.loads(streamed.text.split("data: ")[1].partition("\n")[0])["response"]["id"]
        kept = (await client.get(f"/v1/responses/{id}")).json()
        assert Reported(kept["usage"], None).counts == LAST
        async with websocket(url, user_agent="codex_cli_rs/0.169.0") as socket:
            events = await socket.turn({"model": "m", "input": "hi"})
        assert Reported(events[-1]["response"]["usage"], None).counts == LAST


@APIS
async def test_limits_and_records_count_the_sum(upstream: Upstream, api: str, tmp_path: Path) -> None:
    three_turns(upstream)
    key = {"name": "ada", "hash": hash_key(KEY), "usage": "last_turn", "tokens_per_minute": 100_000, "see": "own"}
    config = make_config(upstream.url, tools=["add"], auth="keys", keys=[key], data_dir=str(tmp_path))
    path, body = request_of(api, stream=False)
    app = create_app(config)
    async with serve(app) as url, http_client(url, headers={"authorization": f"Bearer {KEY}"}) as client:
        answer = await client.post(path, json=body)
        assert reported_usage(api, answer).counts == LAST
        used = (await client.get("/v1/usage?by=key")).json()["data"]
        run = (await client.get(f"/v1/runs/{answer.headers['x-callgate-run']}")).json()
        limited = await client.post(path, json=body)
    assert [(each["tokens_in"], each["tokens_out"]) for each in used] == [SUM[:2]]
    assert (run["tokens_in"], run["tokens_out"]) == SUM[:2]
    spent = 100_000 - int(limited.headers["x-ratelimit-remaining-tokens"])
    assert spent >= SUM[0] + SUM[1]
