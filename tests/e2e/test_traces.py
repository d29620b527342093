"""Spans of requests: what a collector gets, which trace headers go upstream, and what an unreachable collector costs."""

import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from structlog.testing import capture_logs

from callgate import Context
from callgate.application import create_app
from callgate.config import redaction
from callgate.config.redaction import Redactor
from callgate.config.schema.whole import Config
from tests.chaos.scale import held_to
from tests.harness.clients import http_client
from tests.harness.collector import Collector, attributes, collecting
from tests.harness.configs import as_yaml, config_dict
from tests.harness.needs import needs
from tests.harness.process import serving_command as serving_process
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.servers.http_mcp import HttpMcp

pytestmark = [pytest.mark.anyio, needs("environment:otlp")]

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "temperature": 0.5}
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
ADD = Reply(calls=[Call("add", {"a": 2, "b": 3}, id="call_add")])
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def traceparent(context: Context) -> str:
    """Says which trace it runs in."""
    return context.traceparent


@contextlib.asynccontextmanager
async def served_and_traced(
    model: Upstream, collector: Collector | None, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    traces = {} if collector is None else {"traces": {"endpoint": collector.url, **options.pop("traces", {})}}
    given: dict[str, Any] = {"tools": ["add"], **options, **traces}
    config = config_dict(model.url, **given)
    async with serve(create_app(Config.model_validate(config))) as url, http_client(url) as client:
        yield client


async def post_chat(client: httpx.AsyncClient, **more: Any) -> httpx.Response:
    answer = await client.post("/v1/chat/completions", json={**ASK, **more})
    assert answer.status_code == 200, answer.text
    return answer


async def metric(client: httpx.AsyncClient, name: str) -> dict[str, float]:
    lines = (await client.get("/metrics")).text.splitlines()
    found = {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith(name)}
    return {name: value for name, value in found.items() if not name.partition("{")[0].endswith("_created")}


def named(spans: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [span for span in spans if span["name"] == name]


@BOTH
async def test_a_run_is_exported_with_its_turns_attempts_and_calls(upstream: Upstream, stream: bool) -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    upstream.script("m", [Reply(status=503), Reply(calls=ADD.calls, usage=usage), Reply(text="5", usage=usage)])
    async with collecting() as collector:
        async with served_and_traced(upstream, collector) as client:
            await post_chat(client, stream=stream)
        [request] = collector.requests()
        spans = collector.spans()
    resource = attributes(request["resourceSpans"][0]["resource"]["attributes"])
    [run], [call] = named(spans, "invoke_agent callgate"), named(spans, "execute_tool add")
    first, second = named(spans, "chat m")
    attempts = named(spans, "POST")
    assert collector.posted[0].path == "/v1/traces"
    assert collector.posted[0].headers["content-type"] == "application/x-protobuf"
    assert resource["service.name"] == "callgate"
    assert len({span["traceId"] for span in spans}) == 1
    assert len({span["spanId"] for span in spans}) == len(spans) == 7
    assert (run["parentSpanId"], run["kind"]) == ("", "SPAN_KIND_INTERNAL")
    assert {span["parentSpanId"] for span in (first, second, call)} == {run["spanId"]}
    assert sorted(span["parentSpanId"] for span in attempts) == sorted(
        [first["spanId"], first["spanId"], second["spanId"]]
    )
    said = first["attributes"]
    assert said["gen_ai.provider.name"] == "openai"
    assert said["gen_ai.request.temperature"] == 0.5
    assert said["gen_ai.usage.cache_read.input_tokens"] == 4
    assert said["server.address"] == "127.0.0.1"
    assert said["server.port"] == int(upstream.root.rpartition(":")[2])
    assert said["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert said["gen_ai.response.model"] == "m"
    assert said["gen_ai.response.id"]
    assert [event["name"] for event in first["events"]] == ["callgate.attempt.failed"]
    assert [span.get("status", {}).get("code") for span in attempts].count("STATUS_CODE_ERROR") == 1
    assert (call["attributes"]["gen_ai.tool.name"], call["attributes"]["gen_ai.tool.call.id"]) == ("add", "call_add")
    assert int(run["startTimeUnixNano"]) <= int(first["startTimeUnixNano"]) <= int(call["startTimeUnixNano"])


async def test_a_call_says_which_tool_it_was_of_and_what_that_may_do(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[*ADD.calls, Call("send_mail", {"to": "bob", "text": "hi"})]), Reply(text="5")])
    async with collecting() as collector:
        async with served_and_traced(upstream, collector, tools=["add", "send_mail"]) as client:
            await post_chat(client)
        [add], [mail] = (named(collector.spans(), f"execute_tool {name}") for name in ("add", "send_mail"))
    assert add["attributes"]["gen_ai.tool.description"].startswith("Adds two whole numbers.")
    assert add["attributes"]["callgate.call.safety"] == "read_only"
    assert mail["attributes"]["callgate.call.safety"] == "write"
    assert "callgate.call.writes" not in mail["attributes"]


async def test_a_conversation_is_named_as_its_client_names_it_and_no_name_is_made_up(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="1")], repeat_last=True)
    thread = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
    beta = {"anthropic-beta": "message-threads-2026-08-12"}

    async def respond(client: httpx.AsyncClient, **more: Any) -> str:
        return str((await client.post("/v1/responses", json={"model": "m", "input": "hello", **more})).json()["id"])

    async with collecting() as collector:
        async with served_and_traced(upstream, collector) as client:
            await post_chat(client)
            await post_chat(client, metadata={"session_id": "s-1", "topic": "t"})
            first = await respond(client)
            second = await respond(client, previous_response_id=first)
            await respond(client, previous_response_id=second)
            begun = await client.post("/v1/messages", json={**thread, "thread": {"type": "create"}}, headers=beta)
            went_on = {"type": "continue", "previous_message_id": (message := begun.json()["id"])}
            assert (await client.post("/v1/messages", json={**thread, "thread": went_on}, headers=beta)).is_success
        spans = collector.spans()
    for name in ("invoke_agent callgate", "chat m"):
        said = [span["attributes"].get("gen_ai.conversation.id") for span in named(spans, name)]
        assert said == [None, "s-1", None, first, first, None, message]


@BOTH
async def test_upstream_requests_carry_the_exported_span_as_traceparent(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(status=503), ADD, Reply(text="5")])
    async with collecting() as collector:
        async with served_and_traced(upstream, collector) as client:
            client.headers.update({"traceparent": PARENT, "tracestate": "vendor=1"})
            await post_chat(client, stream=stream)
        spans = collector.spans()
    [run] = named(spans, "invoke_agent callgate")
    attempts = {span["spanId"] for span in named(spans, "POST")}
    said = [request.headers["traceparent"].split("-") for request in upstream.requests]
    assert {(version, trace, flags) for version, trace, _, flags in said} == {("00", TRACE, "01")}
    assert {span for _, _, span, _ in said} == attempts
    assert len(attempts) == 3
    assert {request.headers["tracestate"] for request in upstream.requests} == {"vendor=1"}
    assert (run["traceId"], run["parentSpanId"], run["traceState"]) == (TRACE, SPAN, "vendor=1")


async def test_every_kind_of_tool_gets_the_span_of_its_call(upstream: Upstream) -> None:
    api, seen = FastAPI(), {}

    @api.get("/where")
    async def where(request: Request) -> str:
        seen["http"] = request.headers["traceparent"]
        return "here"

    calls = [
        Call("where", {}, id="call_http"),
        Call("shown", {}, id="call_command"),
        Call("traceparent", {}, id="call_python"),
        Call("docs_answers", {"city": "Rome"}, id="call_mcp"),
    ]
    upstream.script("m", [Reply(calls=calls), Reply(text="done")])
    code = "import os; print(os.environ['TRACEPARENT'])"
    tools = [
        {"kind": "command", "name": "shown", "description": "-", "argv": [sys.executable, "-c", code]},
        {"kind": "python", "function": f"{__name__}:traceparent"},
    ]
    async with collecting() as collector, serve(api) as url, HttpMcp().running() as mcp:
        tools.append(
            {"kind": "http", "name": "where", "description": "-", "url": f"{url}/where", "allow_private": True}
        )
        servers = {"docs": {"url": mcp.url}}
        async with served_and_traced(upstream, collector, tools=tools, mcp_servers=servers) as client:
            await post_chat(client)
        spans = collector.spans()
        [called] = mcp.calls()
    results = upstream.requests[-1].tool_results
    by_call = {
        span["attributes"]["gen_ai.tool.call.id"]: span for span in spans if span["name"].startswith("execute_tool")
    }
    expected = {id: f"00-{span['traceId']}-{span['spanId']}-01" for id, span in by_call.items()}
    assert seen["http"] == expected["call_http"]
    assert results["call_command"].strip() == expected["call_command"]
    assert results["call_python"].strip() == expected["call_python"]
    assert called.headers["traceparent"] == called.message["params"]["_meta"]["traceparent"] == expected["call_mcp"]
    said = by_call["call_mcp"]["attributes"]
    assert (said["mcp.method.name"], said["mcp.protocol.version"], said["network.transport"]) == (
        "tools/call",
        "2025-06-18",
        "tcp",
    )
    assert said["mcp.session.id"] in mcp.sessions | {called.headers["mcp-session-id"]}


async def test_a_trace_is_passed_on_as_it_came_where_none_are_exported(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="5")], repeat_last=True)
    async with served_and_traced(upstream, None) as client:
        await post_chat(client)
        await post_chat(client)
        client.headers.update({"traceparent": PARENT, "tracestate": "vendor=1"})
        await post_chat(client)
        client.headers["traceparent"] = f"00-{TRACE}-{'0' * 16}-01"
        await post_chat(client)
    said = [(request.headers.get("traceparent"), request.headers.get("tracestate")) for request in upstream.requests]
    assert said == [(None, None), (None, None), (PARENT, "vendor=1"), (None, None)]


async def test_a_request_that_is_passed_through_is_exported_and_not_listed_as_a_run(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="5"), Reply(status=400)])
    async with collecting() as collector:
        async with served_and_traced(upstream, collector, tools=[]) as client:
            answer = await post_chat(client)
            listed = (await client.get("/v1/runs")).json()["data"]
            failed = await client.post("/v1/chat/completions", json=ASK)
            after = (await client.get("/v1/runs")).json()["data"]
        spans = collector.spans()
    runs = {span["attributes"]["callgate.run.id"]: span for span in named(spans, "invoke_agent callgate")}
    assert listed == []
    assert [run["id"] for run in after] == [failed.headers["x-callgate-run"]]
    assert set(runs) == {answer.headers["x-callgate-run"], failed.headers["x-callgate-run"]}
    assert runs[failed.headers["x-callgate-run"]]["status"]["code"] == "STATUS_CODE_ERROR"
    assert len(named(spans, "chat m")) == 2
    assert {request.headers["traceparent"].split("-")[2] for request in upstream.requests} == {
        span["spanId"] for span in named(spans, "POST")
    }


async def test_runs_are_exported_where_none_are_kept(upstream: Upstream) -> None:
    upstream.script("m", [ADD, Reply(text="5")])
    async with collecting() as collector:
        async with served_and_traced(upstream, collector, record={"runs": "off"}) as client:
            await post_chat(client)
            assert (await client.get("/v1/runs")).json()["data"] == []
        assert len(collector.spans()) == 6


async def test_what_is_not_sampled_is_not_exported_and_parents_decide(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="5")], repeat_last=True)
    async with collecting() as collector:
        async with served_and_traced(upstream, collector, traces={"sample": 0}) as client:
            await post_chat(client)
            await client.post("/v1/chat/completions", json=ASK, headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
            await client.post("/v1/chat/completions", json=ASK, headers={"traceparent": PARENT})
        spans = collector.spans()
    assert {span["traceId"] for span in spans} == {TRACE}
    assert len(named(spans, "invoke_agent callgate")) == 1
    said = [request.headers.get("traceparent") for request in upstream.requests]
    assert said[:2] == [None, f"00-{TRACE}-{SPAN}-00"]


async def test_choices_have_attempts_of_their_own(upstream: Upstream) -> None:
    upstream.script("m", lambda seen: ADD if not seen.tool_results else Reply(text="5"))
    async with collecting() as collector:
        async with served_and_traced(upstream, collector) as client:
            await post_chat(client, n=2)
        spans = collector.spans()
    assert len({span["spanId"] for span in spans}) == len(spans)
    assert {request.headers["traceparent"].split("-")[2] for request in upstream.requests} == {
        span["spanId"] for span in named(spans, "POST")
    }


async def test_no_span_holds_a_secret_of_the_process(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "planted-secret-0123456789"
    monkeypatch.setattr(redaction, "current", Redactor([secret]))
    upstream.script("m", [Reply(text=f"it is {secret}")])
    async with collecting() as collector:
        traces = {"content": "span_and_event", "resource": {"team": secret}}
        async with served_and_traced(upstream, collector, traces=traces, record={"content": True}) as client:
            await post_chat(client)
        exported = json.dumps(collector.requests())
    assert "*" * len(secret) in exported, "the resource, which is of the config"
    assert secret not in exported


async def test_content_is_exported_only_where_both_settings_ask_for_it(upstream: Upstream) -> None:
    upstream.script("m", lambda seen: ADD if not seen.tool_results else Reply(text="planted-answer"))
    shown: dict[tuple[str, bool], str] = {}
    for content, kept in (("no_content", True), ("span_and_event", False), ("span_and_event", True)):
        async with collecting() as collector:
            record = {"content": kept}
            async with served_and_traced(upstream, collector, traces={"content": content}, record=record) as client:
                await post_chat(client, messages=[{"role": "user", "content": "planted-question"}])
            shown[content, kept] = json.dumps(collector.requests())
            spans = collector.spans()
    assert "planted" not in shown["no_content", True] + shown["span_and_event", False]
    last = next(span for span in named(spans, "chat m") if "planted-answer" in json.dumps(span["attributes"]))
    [asking] = json.loads(last["attributes"]["gen_ai.input.messages"])[:1]
    assert asking == {"role": "user", "parts": [{"type": "text", "content": "planted-question"}]}
    assert [event["name"] for event in last["events"]] == ["gen_ai.client.inference.operation.details"]
    assert json.loads(named(spans, "execute_tool add")[0]["attributes"]["gen_ai.tool.call.arguments"]) == {
        "a": 2,
        "b": 3,
    }


async def test_a_collector_that_is_busy_is_asked_again_and_all_is_compressed(upstream: Upstream) -> None:
    upstream.script("m", [ADD, Reply(text="5")])
    async with collecting((503, {"retry-after": "0"}, b""), (429, {"retry-after": "0"}, b"")) as collector:
        traces = {"compression": "gzip", "headers": {"x-project": "callgate-1"}}
        async with served_and_traced(upstream, collector, traces=traces) as client:
            await post_chat(client)
            await collector.until(taken=1)
            counts = await metric(client, "callgate_spans_")
    assert len(collector.posted) == 3
    assert len({each.body for each in collector.posted}) == 1
    assert {each.headers["x-project"] for each in collector.posted} == {"callgate-1"}
    assert counts.pop("callgate_spans_exported_total") == 6
    assert not any(counts.values())


async def test_what_a_collector_does_not_take_is_counted_and_logged(upstream: Upstream) -> None:
    upstream.script("m", lambda seen: ADD if not seen.tool_results else Reply(text="5"))
    partial = bytes.fromhex("0a06") + b"\x08\x02\x12\x02no"
    async with collecting((400, {}, b""), (200, {}, partial)) as collector:
        with capture_logs() as lines:
            async with served_and_traced(upstream, collector) as client:
                await post_chat(client)
                await collector.until(posted=1)
                await post_chat(client)
                await collector.until(taken=1)
            # counted when the answer was read, which is before the server ended
        logged = [line["reason"] for line in lines if line["event"] == "traces_not_exported"]
    assert logged == ["HTTP 400 Bad Request", "the collector did not take all of them: no"]


async def test_a_collector_that_is_gone_costs_requests_nothing_and_its_spans_are_counted(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("m", lambda seen: ADD if not seen.tool_results else Reply(text="5"))
    async with collecting() as collector:
        pass
    with capture_logs() as lines:
        async with served_and_traced(upstream, collector, data_dir=str(tmp_path)) as client:
            run = (await post_chat(client)).headers["x-callgate-run"]
            assert (await client.get(f"/v1/runs/{run}")).json()["state"] == "answered"
    logged = [line for line in lines if line["event"] == "traces_not_exported"]
    assert [line["log_level"] for line in logged] == ["warning"]
    assert sum(line["spans"] for line in logged) == 6


async def test_a_collector_that_never_answers_keeps_nothing_from_being_written_at_the_end(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("m", lambda seen: ADD if not seen.tool_results else Reply(text="5"))
    config = tmp_path / "config.yaml"
    async with collecting() as collector:
        collector.hold.clear()
        options: dict[str, Any] = {"traces": {"endpoint": collector.url}, "data_dir": str(tmp_path / "data")}
        config.write_text(as_yaml(config_dict(upstream.url, tools=["add"], **options)), encoding="utf-8")
        async with serving_process(config) as child:
            async with http_client(child.url) as client:
                await post_chat(client)
            await collector.until(posted=1)
            began = time.monotonic()
            child.signal(signal.SIGTERM)
            code, took = await child.ended(), time.monotonic() - began
        collector.hold.set()
        said = [json.loads(line) for line in child.lines if line.startswith("{")]

    assert code == 0, child.log
    held_to(4.0, "a server ends whose collector never answers", took)
    assert [line for line in said if line["level"] == "error"] == []
    assert [(line["spans"], line["reason"]) for line in said if line["event"] == "traces_not_exported"] == [
        (6, "the server ended before they were sent")
    ]
