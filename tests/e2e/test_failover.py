"""A provider that fails, seen from all sides: the answer, its diagnostics, the log, the metrics and the recorded run."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from callgate.access.keys import mint_key
from callgate.application import create_app
from callgate.config.schema.whole import Config
from callgate.recorder.commands.run_story import story
from callgate.records.row import RecordedRun, RunEvent, RunRow
from tests.harness.clients import http_client
from tests.harness.configs import config_dict
from tests.harness.ports import free_port
from tests.harness.server import serve
from tests.scripted_upstream import (
    Call,
    Cut,
    Empty,
    ErrorEvent,
    Hold,
    Html,
    Malformed,
    Misframed,
    Pace,
    Reply,
    Reset,
    Upstream,
)

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
ADD = Reply(calls=[Call("add", {"a": 2, "b": 3}, id="call_add")])


@contextlib.asynccontextmanager
async def served_with_fallback(model: Upstream, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A model `m` that falls back to `good`."""
    config = config_dict(model.url, models=("m", "good"), tools=["add"], **options)
    config["model_list"][0]["fallbacks"] = ["good"]
    async with serve(create_app(Config.model_validate(config))) as url, http_client(url) as client:
        yield client


async def report_of(client: httpx.AsyncClient, **more: Any) -> dict[str, Any]:
    """The diagnostics of one answer."""
    answer = await client.post("/v1/chat/completions", json={**ASK, **more})
    assert answer.status_code == 200, answer.text
    if not more.get("stream"):
        return dict(answer.json()["x_callgate"])
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    assert not any("error" in json.loads(event) for event in events)
    return next(found for event in events if (found := json.loads(event).get("x_callgate")))


async def counted(client: httpx.AsyncClient, name: str) -> dict[tuple[str, str, str], float]:
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    return {
        (sample.labels["model"], sample.labels["deployment"], sample.labels["result"]): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


FAILURES = {
    "401": Reply(status=401),
    "404": Reply(status=404),
    "429": Reply(status=429),
    "500": Reply(status=500),
    "503": Reply(status=503),
    "cut before content": Reply(text="lost", fault=Cut()),
    "reset before content": Reply(text="lost", fault=Reset()),
    "broken JSON": Reply(text="lost", fault=Malformed()),
    "broken framing": Reply(text="lost", fault=Misframed()),
    "an error event": Reply(text="lost", fault=ErrorEvent()),
    "nothing": Reply(fault=Empty()),
    "a web page": Reply(fault=Html()),
}
"""What a deployment may do instead of answering."""


def of_two(upstream: Upstream, lane: str) -> dict[str, Any]:
    """A config whose model `m` falls back to `good`, without retries."""
    translated = lane == "translated"
    config = config_dict(
        upstream.root if translated else upstream.url,
        models=("m", "good"),
        tools=() if lane == "passed through" else ["add"],
        lane={"passed through": "direct"}.get(lane, lane),
        provider="anthropic" if translated else "openai",
        upstream={"retries": 0, "cooldown_seconds": 0, "retry_wait_seconds": 0.0},
    )
    config["model_list"][0]["fallbacks"] = ["good"]
    return config


@BOTH
@pytest.mark.parametrize("lane", ["direct", "passed through", "translated", "litellm"])
async def test_no_failure_before_content_is_a_failure_of_a_request_with_a_living_second_deployment(
    upstream: Upstream, lane: str, stream: bool
) -> None:
    config = of_two(upstream, lane)
    [first, _] = config["model_list"]
    elsewhere = {**first, "model_name": "away", "litellm_params": {**first["litellm_params"]}}
    elsewhere["litellm_params"]["api_base"] = f"http://127.0.0.1:{free_port()}"
    config["model_list"].append(elsewhere)
    upstream.script("m", list(FAILURES.values()))
    upstream.script("good", [Reply(text="whole")], repeat_last=True)
    outcomes = {}
    async with serve(create_app(Config.model_validate(config))) as served, http_client(served) as client:
        for failure in (*FAILURES, "refused"):
            body = {**ASK, "model": "away" if failure == "refused" else "m", "stream": stream, "max_tokens": 9}
            answer = await client.post("/v1/chat/completions", json=body)
            outcomes[failure] = (answer.status_code, "lost" in answer.text, '"error"' in answer.text)
    assert outcomes == dict.fromkeys(outcomes, (200, False, False))


# On a busy machine the time may pass before litellm has awaited its own coroutine.
@pytest.mark.filterwarnings("ignore:.*OpenAIChatCompletion:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:.*OpenAIChatCompletion:RuntimeWarning")
@BOTH
@pytest.mark.parametrize("lane", ["direct", "passed through", "translated", "litellm"])
async def test_a_deployment_that_hangs_before_content_is_left_for_the_next_after_its_time(
    upstream: Upstream, lane: str, stream: bool
) -> None:
    gate = asyncio.Event()
    config = of_two(upstream, lane)
    # Only the one that hangs has so little time; the other has a minute, on any machine.
    config["model_list"][0] |= {"timeout": 0.2, "stream_timeout": 0.2}
    hangs = [
        Reply(text="lost", pace=Pace(hold=Hold(gate, after=None))),  # not even a head
        Reply(text="lost", pace=Pace(hold=Hold(gate, after=0))),  # a head, and nothing after it
    ]
    upstream.script("m", hangs)
    upstream.script("good", [Reply(text="whole")], repeat_last=True)
    outcomes = []
    async with serve(create_app(Config.model_validate(config))) as served, http_client(served) as client:
        await client.post("/v1/chat/completions", json={**ASK, "model": "good", "max_tokens": 9})  # loads litellm
        for _ in hangs:
            answer = await client.post("/v1/chat/completions", json={**ASK, "stream": stream, "max_tokens": 9})
            outcomes.append(
                (answer.status_code, "whole" in answer.text, "lost" in answer.text, '"error"' in answer.text)
            )
        gate.set()
    assert outcomes == [(200, True, False, False)] * 2
    assert [request.body["model"] for request in upstream.requests].count("good") == 3


@BOTH
async def test_an_outage_that_a_fallback_survived_is_seen_everywhere(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(status=500)], repeat_last=True)
    upstream.script("good", [ADD, Reply(text="5")])
    host = upstream.root.removeprefix("http://")
    with capture_logs() as lines:
        async with served_with_fallback(upstream, upstream={"retry_wait_seconds": 0.0}) as client:
            report = await report_of(client, stream=stream)
            run = (await client.get(f"/v1/runs/{report['run']}")).json()
            attempts = await counted(client, "callgate_upstream_attempts_total")

    assert [turn["deployment"] for turn in report["turns"]] == ["openai/good"] * 2
    failed = [attempt for attempt in report["attempts"] if "reason" in attempt]
    assert [(each["deployment"], each["status"], each["reason"], each["host"]) for each in failed] == [
        ("openai/m", 500, "upstream_error", host)
    ] * len(failed)
    assert len(failed) == len([line for line in lines if line["event"] == "upstream_attempt_failed"]) > 0
    assert all(line["log_level"] == "warning" for line in lines if line["event"] == "upstream_attempt_failed")
    assert attempts["m", "openai/m", "upstream_error"] == len(failed)
    assert attempts["m", "openai/good", "answered"] == 2
    assert (run["deployment"], run["attempts"]) == ("openai/good", len(failed) + 2)
    assert [event["facts"]["deployment"] for event in run["events"] if event["kind"] == "turn_ended"] == [
        "openai/good"
    ] * 2
    assert run["first_seconds"] > 0


async def test_a_dead_model_is_not_asked_in_every_turn(upstream: Upstream) -> None:
    dead = upstream.script("m", [Reply(status=500)], repeat_last=True)
    upstream.script("good", lambda asked: ADD if asked.turn == 0 else Reply(text="5"))
    with capture_logs() as lines:
        async with served_with_fallback(
            upstream, upstream={"retry_wait_seconds": 60.0, "cooldown_seconds": 60}
        ) as client:
            for _ in range(4):
                await report_of(client)
    assert dead.played == 3
    assert [line["event"] for line in lines].count("upstream_left_alone") == 1


@BOTH
async def test_a_call_that_is_cut_off_every_time_is_asked_of_the_fallback(upstream: Upstream, stream: bool) -> None:
    cut = upstream.script("m", [Reply(calls=ADD.calls, fault=Cut(after=2))], repeat_last=True)
    upstream.script("good", [ADD, Reply(text="5")])
    async with served_with_fallback(upstream) as client:
        report = await report_of(client, stream=stream)
    assert cut.played == 3
    assert [attempt["reason"] for attempt in report["attempts"] if "reason" in attempt] == [
        "upstream_broke_off" if stream else "upstream_error"
    ] * 3
    assert [call["outcome"] for call in report["turns"][0]["calls"]] == ["returned"]


async def test_all_that_fail_are_asked_all_the_same_and_aloud(upstream: Upstream) -> None:
    upstream.script("m", [Reply(status=401)], repeat_last=True)
    good = upstream.script("good", [Reply(status=401)] * 3 + [Reply(text="back")])
    with capture_logs() as lines:
        async with served_with_fallback(upstream) as client:
            failed = [await client.post("/v1/chat/completions", json=ASK) for _ in range(3)]
            report = await report_of(client)
    assert {answer.status_code for answer in failed} == {502}
    assert good.played == 4
    assert report["turns"][0]["deployment"] == "openai/good"
    assert "asked_although_left_alone" in {line["event"] for line in lines if line["log_level"] == "warning"}


@BOTH
async def test_who_answers_for_a_deployment_that_is_left_alone_says_for_whom(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(status=500)], repeat_last=True)
    upstream.script("good", lambda seen: ADD if not seen.tool_results else Reply(text="5"))
    with capture_logs() as lines:
        async with served_with_fallback(upstream, upstream={"cooldown_seconds": 60}) as client:
            await report_of(client)
            report = await report_of(client, stream=stream)
            run = (await client.get(f"/v1/runs/{report['run']}")).json()
            await client.post("/v1/chat/completions", json={**ASK, "tool_choice": "none"})
            runs = (await client.get("/v1/runs")).json()["data"]
    who = {"deployment": "openai/good", "instead_of": "openai/m"}
    assert [{name: attempt.get(name) for name in who} for attempt in report["attempts"]] == [who, who]
    recorded = [event["facts"] for event in run["events"] if event["kind"] == "attempt"]
    assert [{name: facts.get(name) for name in who} for facts in recorded] == [who, who]
    answered = [line for line in lines if line["event"] == "upstream_answered" and line.get("instead_of")]
    assert {(line["log_level"], line["deployment"], line["instead_of"]) for line in answered} == {
        ("info", "openai/good", "openai/m")
    }
    assert (len(runs), run["odd"]) == (2, False)  # what is passed on is as usual
    assert "answered for openai/m, which is cooling down" in "\n".join(
        story(
            RecordedRun(RunRow("r", 1.0), [RunEvent(0.0, "attempt", facts=facts) for facts in recorded]),
            [],
            content=False,
        )
    )


async def test_a_deployment_that_is_asked_during_its_cooldown_is_noted_once_however_it_ends(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="hello there", fault=Cut(after=2))], repeat_last=True)
    upstream.script("good", [Reply(status=401)], repeat_last=True)
    async with served_with_fallback(upstream, upstream={"cooldown_seconds": 60, "retries": 0}) as client:
        for _ in range(3):
            await client.post("/v1/chat/completions", json={**ASK, "stream": True})
        with capture_logs() as lines:
            await client.post("/v1/chat/completions", json={**ASK, "stream": True})
    asked = [line["deployment"] for line in lines if line["event"] == "asked_although_left_alone"]
    assert len(asked) == len(set(asked)) > 0


async def test_failures_of_requests_that_pass_through_are_seen_too(upstream: Upstream) -> None:
    upstream.script("m", [Reply(status=503)], repeat_last=True)
    upstream.script("good", [Reply(text="hi")])
    with capture_logs() as lines:
        async with served_with_fallback(upstream, upstream={"retries": 0}) as client:
            answer = await client.post("/v1/chat/completions", json={**ASK, "tool_choice": "none"})
            attempts = await counted(client, "callgate_upstream_attempts_total")
    assert answer.json()["choices"][0]["message"]["content"] == "hi"
    assert [line["deployment"] for line in lines if line["event"] == "upstream_attempt_failed"] == ["openai/m"]
    assert attempts == {
        ("m", "openai/m", "upstream_overloaded"): 1,
        ("m", "openai/good", "answered"): 1,
    }


async def test_a_model_says_which_of_its_deployments_are_left_alone_and_so_do_the_metrics(upstream: Upstream) -> None:
    upstream.script("m", [Reply(status=500)], repeat_last=True)
    upstream.script("good", [Reply(text="hi")])
    async with served_with_fallback(upstream, upstream={"cooldown_seconds": 60}) as client:
        before = (await client.get("/v1/models/m")).json()["x_callgate"]["deployments"]
        await report_of(client)
        [dead] = (await client.get("/v1/models/m")).json()["x_callgate"]["deployments"]
        metrics = (await client.get("/metrics")).text
    left = [line for line in metrics.splitlines() if line.startswith("callgate_upstream_cooldown_seconds{")]
    assert [each["cooldown_seconds"] for each in before] == [0]
    assert (dead["deployment"], dead["lane"], dead["host"]) == (
        "openai/m",
        "direct",
        upstream.root.removeprefix("http://"),
    )
    assert 0 < dead["cooldown_seconds"] <= 60
    assert {'model="m"' in line: float(line.rpartition(" ")[2]) > 0 for line in left} == {True: True, False: False}


@BOTH
@pytest.mark.parametrize("passed", [False, True], ids=["with tools", "passed on"])
async def test_the_row_of_a_model_has_the_tokens_of_its_fallback_at_their_price(
    upstream: Upstream, stream: bool, passed: bool
) -> None:
    upstream.script("m", [Reply(status=500)], repeat_last=True)
    upstream.script("good", [Reply(text="hi", usage=SPENT)])
    more = {"tool_choice": "none"} if passed else {}
    async with served_with_fallback(upstream, upstream={"retries": 0}, entry=PRICED) as client:
        await client.post("/v1/chat/completions", json={**ASK, "stream": stream, **more})
        [row] = (await client.get("/v1/usage", params={"by": "model"})).json()["data"]
        metrics = (await client.get("/metrics")).text

    assert (row["name"], row["requests"], row["tokens_in"], row["tokens_out"]) == ("m", 1, 10, 5)
    assert (row["cost"], row["unpriced_requests"]) == (pytest.approx(10 * 1e-6 + 5 * 2e-6), 0)
    assert 'callgate_tokens_total{kind="prompt",model="good"} 10.0' in metrics, "there it is the one that answered"
    assert 'callgate_tokens_total{kind="prompt",model="m"}' not in metrics


PRICED = {"model_info": {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}}
SPENT = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@BOTH
async def test_the_diagnostics_say_what_was_asked_and_what_it_cost(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=ADD.calls, usage=SPENT), Reply(text="5", usage=SPENT)])
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    async with served_with_fallback(upstream, entry=PRICED) as client:
        client.headers["traceparent"] = f"00-{trace}-00f067aa0ba902b7-01"
        report = await report_of(client, stream=stream)
        run = (await client.get(f"/v1/runs/{report['run']}")).json()
    assert [turn["cost"] for turn in report["turns"]] == [0.00002] * 2
    assert [turn["usage"]["total_tokens"] for turn in report["turns"]] == [15, 15]
    [call] = report["turns"][0]["calls"]
    assert json.loads(call["arguments"]) == {"a": 2, "b": 3}
    assert report["ms"] >= sum(turn["ms"] for turn in report["turns"])
    assert (run["cost"], run["tokens_in"], run["tokens_out"], run["trace_id"]) == (0.00004, 20, 10, trace)
    assert run["process"]


async def test_a_key_that_may_not_see_runs_is_not_shown_what_was_asked_nor_where(upstream: Upstream) -> None:
    upstream.script("m", [ADD, Reply(text="5")])
    key, hashed = mint_key()
    async with served_with_fallback(upstream, auth="keys", keys=[{"name": "alice", "hash": hashed}]) as client:
        client.headers["authorization"] = f"Bearer {key}"
        report = await report_of(client)
        model = (await client.get("/v1/models/m")).json()["x_callgate"]
    assert "arguments" not in report["turns"][0]["calls"][0]
    assert upstream.root.removeprefix("http://") not in json.dumps([report, model])


async def test_what_a_failed_chat_used_is_counted_and_its_end_too(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=ADD.calls, usage=SPENT), Reply(status=400)])
    async with served_with_fallback(upstream) as client:
        failed = await client.post("/v1/chat/completions", json=ASK)
        [run] = (await client.get("/v1/runs")).json()["data"]
        whole = (await client.get(f"/v1/runs/{run['id']}")).json()
        metrics = (await client.get("/metrics")).text
    assert failed.status_code == 400
    assert (run["state"], run["tokens_in"]) == ("failed", 10)
    assert whole["events"][-1]["kind"] == "failed"
    assert 'callgate_tokens_total{kind="prompt",model="m"} 10.0' in metrics
    assert 'callgate_chats_total{ending="failed",finish_reason="",model="m"} 1.0' in metrics


@BOTH
@pytest.mark.parametrize(
    "reply",
    [Reply(status=401), Reply(status=500), Reply(text="Once upon a time", fault=Cut(after=3))],
    ids=["refused key", "server error", "broken off"],
)
async def test_an_outage_is_no_silence_at_level_warning(upstream: Upstream, reply: Reply, stream: bool) -> None:
    upstream.script("m", [reply], repeat_last=True)
    upstream.script("good", [reply], repeat_last=True)
    with capture_logs() as lines:
        async with served_with_fallback(upstream, upstream={"retries": 0}, logging={"level": "warning"}) as client:
            await client.post("/v1/chat/completions", json={**ASK, "stream": stream})
    warned = {line["event"]: line for line in lines if line["log_level"] in {"warning", "error"}}
    assert warned["request"]["error"]
    assert "upstream_attempt_failed" in warned


async def test_a_mistake_of_a_clients_is_no_warning(upstream: Upstream) -> None:
    upstream.script("m", [Reply(status=400)])
    with capture_logs() as lines:
        async with served_with_fallback(upstream) as client:
            answer = await client.post("/v1/chat/completions", json=ASK)
    assert answer.status_code == 400
    assert [line["event"] for line in lines if line["log_level"] != "info"] == []
