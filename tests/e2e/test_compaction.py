"""Compaction in the Responses API: by its route, by an item, and by a threshold, behind a model that has none itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from structlog.testing import capture_logs

from callgate.access.keys import hash_key
from callgate.application import create_app
from callgate.conversation.context import PROMPT
from tests.harness.clients import http_client, openai_client
from tests.harness.configs import make_config
from tests.harness.responses import responded
from tests.harness.served import served_to_http, served_to_openai
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
SUMMARY = "They agreed on Tuesday; the code word is slate."
TALK: list[Any] = [
    {"role": "user", "content": "The code word is slate."},
    {"role": "assistant", "content": "Noted: slate. " + "A long aside. " * 400},
    {"role": "user", "content": "And the launch is on Tuesday."},
    {"role": "assistant", "content": "Noted: Tuesday."},
]
NEXT: Any = {"role": "user", "content": "What is the code word?"}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
KEYS: list[dict[str, Any]] = [
    {"name": "alice", "hash": hash_key("cg-alice"), "models": ["m"]},
    {"name": "bob", "hash": hash_key("cg-bob")},
]
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def is_asked_for_summary(request: RequestRecord) -> bool:
    return PROMPT in str(request.messages[-1]["content"])


def said(text: str = "It is slate.") -> Callable[[RequestRecord], Reply]:
    def answer(request: RequestRecord) -> Reply:
        return Reply(text=SUMMARY if is_asked_for_summary(request) else text, usage=USAGE)

    return answer


def texts(request: RequestRecord) -> list[tuple[str, str]]:
    return [(message["role"], str(message["content"])) for message in request.messages]


async def test_the_route_returns_the_users_words_and_one_item_for_all_else(upstream: Upstream) -> None:
    upstream.script("m", said())
    async with served_to_openai(upstream, "get_time") as client:
        compacted = await client.responses.compact(model="m", input=TALK, instructions="Be kind.")
        output = [item.to_dict(warnings=False) for item in compacted.output]
        answer = await client.responses.create(model="m", input=[*output, NEXT], store=False)
    assert compacted.object == "response.compaction"
    assert [item["type"] for item in output] == ["message", "message", "compaction"]
    assert [item["role"] for item in output[:2]] == ["user", "user"]
    assert all(item["id"] for item in output)
    assert SUMMARY not in str(output)
    assert (compacted.usage.input_tokens, compacted.usage.output_tokens) == (100, 10)
    asked, answered = upstream.requests
    assert texts(asked)[0] == ("system", "Be kind.")
    assert "tools" not in asked.body
    assert texts(asked)[1:-1] == [(message["role"], message["content"]) for message in TALK]
    roles = [role for role, _ in texts(answered)]
    assert roles == ["user", "user", "user", "user"]
    assert SUMMARY in texts(answered)[2][1]
    assert "A long aside." not in str(answered.messages)
    assert answer.output_text == "It is slate."


async def test_a_stored_response_is_compacted_by_its_id(upstream: Upstream) -> None:
    upstream.script("m", said())
    async with served_to_openai(upstream) as client:
        first = await client.responses.create(model="m", input=TALK)
        compacted = await client.responses.compact(model="m", previous_response_id=first.id)
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    assert "The code word is slate." in str(upstream.requests[-1].messages)


@BOTH
async def test_an_item_at_the_end_asks_for_compaction_alone(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", said())
    async with served_to_openai(upstream) as client:
        asked = [*TALK, {"type": "compaction_trigger"}]
        response = await responded(client, stream=stream, model="m", input=asked)
        [item] = [item.to_dict() for item in response.output]
        await responded(client, stream=stream, model="m", input=[*TALK, item, NEXT])
        await responded(client, stream=stream, model="m", input=[NEXT], previous_response_id=response.id)
    assert (response.status, item["type"]) == ("completed", "compaction")
    _, sent_back, continued = upstream.requests
    assert "A long aside." not in str(sent_back.messages)
    assert [role for role, _ in texts(sent_back)] == ["user", "user", "user", "user"]
    assert [role for role, _ in texts(continued)] == ["user", "user"]
    assert SUMMARY in texts(continued)[0][1]


@BOTH
async def test_beyond_its_threshold_a_conversation_is_summarized_and_goes_on(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", said())
    management = [{"type": "compaction", "compact_threshold": 1000}]
    async with served_to_openai(upstream) as client:
        asked: Any = {"model": "m", "context_management": management}
        response = await responded(client, stream=stream, input=[*TALK, NEXT], **asked)
        output = [item.to_dict() for item in response.output]
        await responded(client, stream=stream, input=[*TALK, NEXT, *output, NEXT], **asked)
        await responded(client, stream=stream, input=[NEXT], previous_response_id=response.id, **asked)
    assert [item["type"] for item in output] == ["compaction", "message"]
    summarizing, answering, sent_back, continued = upstream.requests
    assert [is_asked_for_summary(request) for request in upstream.requests] == [True, False, False, False]
    assert NEXT["content"] not in str(summarizing.messages), "it is answered, and not summarized"
    [(role, text)] = texts(answering)
    assert role == "user"
    assert SUMMARY in text
    assert text.endswith(NEXT["content"])
    assert [role for role, _ in texts(sent_back)] == ["user", "assistant", "user"]
    assert texts(sent_back)[0] == texts(answering)[0]
    assert texts(continued)[:2] == texts(sent_back)[:2]
    assert response.usage.input_tokens == 200
    [change] = response.x_callgate["context"]
    assert (change["kind"], change["turn"]) == ("compaction", 0)
    assert [turn.get("summary", False) for turn in response.x_callgate["turns"]] == [True, False]


async def test_below_its_threshold_nothing_happens(upstream: Upstream) -> None:
    upstream.script("m", said())
    async with served_to_openai(upstream) as client:
        management: Any = [{"type": "compaction", "compact_threshold": 100_000}]
        response = await client.responses.create(model="m", input=[*TALK, NEXT], context_management=management)
    assert [item.type for item in response.output] == ["message"]
    assert len(upstream.requests) == 1


async def test_it_is_summarized_between_the_turns_of_our_tools(upstream: Upstream) -> None:
    def answer(request: RequestRecord) -> Reply:
        if is_asked_for_summary(request):
            return Reply(text=SUMMARY)
        if SUMMARY not in str(request.messages):
            return Reply(calls=[Call("report", {"number": 1})])
        return Reply(text="Done.")

    upstream.script("m", answer)
    async with served_to_openai(upstream, "report") as client:
        management: Any = [{"type": "compaction", "compact_threshold": 5000}]
        asked: Any = {"model": "m", "tools": [LOOK]}
        response = await client.responses.create(input=[NEXT], context_management=management, **asked)
        output = [item.to_dict() for item in response.output]
        await client.responses.create(input=[NEXT, *output, NEXT], **asked)
    assert [item["type"] for item in output] == ["mcp_call", "compaction", "message"]
    last = upstream.requests[-2]
    [(_, text)] = texts(last)
    assert SUMMARY in text
    assert NEXT["content"] in text, "the question is known although it was summarized"
    assert [role for role, _ in texts(upstream.requests[-1])] == ["user", "assistant", "user"]


async def test_the_operator_names_the_model_and_the_words(upstream: Upstream) -> None:
    upstream.script("m", said("Hello."))
    upstream.script("small", [Reply(text=SUMMARY, usage=USAGE)])
    options: Any = {"models": ["m", "small"], "auth": "keys", "keys": KEYS}
    config = make_config(upstream.url, compaction={"model": "small", "prompt": "Sum it up."}, **options)
    async with serve(create_app(config)) as url, openai_client(url, api_key="cg-alice") as alice:
        compacted = await alice.responses.compact(model="m", input=TALK)
        with pytest.raises(openai.NotFoundError):
            await alice.responses.compact(model="small", input=TALK)
    assert compacted.output[-1].type == "compaction"
    [request] = upstream.requests
    assert (request.body["model"], texts(request)[-1]) == ("small", ("user", "Sum it up."))


async def test_a_summary_of_another_key_is_refused(upstream: Upstream) -> None:
    upstream.script("m", said())
    config = make_config(upstream.url, auth="keys", keys=KEYS)
    async with (
        serve(create_app(config)) as url,
        openai_client(url, api_key="cg-alice") as alice,
        openai_client(url, api_key="cg-bob") as bob,
    ):
        item: Any = (await alice.responses.compact(model="m", input=TALK)).output[-1].to_dict()
        with pytest.raises(openai.BadRequestError) as refused:
            await bob.responses.create(model="m", input=[item, NEXT])
        with pytest.raises(openai.BadRequestError):
            await bob.responses.compact(model="m", input=[item, NEXT])
        forged: Any = {**item, "encrypted_content": item["encrypted_content"][:-4] + "AAAA"}
        with pytest.raises(openai.BadRequestError):
            await alice.responses.create(model="m", input=[forged, NEXT])
    assert (refused.value.code, refused.value.param) == ("compaction_not_opened", "input[0].encrypted_content")
    assert len(upstream.requests) == 1


async def test_its_tokens_are_charged_to_the_key(upstream: Upstream) -> None:
    upstream.script("m", said())
    keys = [{**KEYS[0], "tokens_per_minute": 2000, "admin": True}]
    config = make_config(upstream.url, auth="keys", keys=keys)
    async with serve(create_app(config)) as url, http_client(url) as client:
        client.headers["authorization"] = "Bearer cg-alice"
        answer = await client.post("/v1/responses/compact", json={"model": "m", "input": TALK})
        assert answer.status_code == 200, answer.text
        refused = await client.post("/v1/responses/compact", json={"model": "m", "input": TALK * 2})
        metrics = (await client.get("/metrics")).text
    assert refused.status_code == 429
    assert 'callgate_key_used_total{key="alice",what="tokens_in"} 100.0' in metrics
    assert 'callgate_context_changes_total{kind="compaction",model="m",result="done"} 1.0' in metrics


async def test_a_summary_that_was_cut_off_says_so(upstream: Upstream) -> None:
    def answer(request: RequestRecord) -> Reply:
        if is_asked_for_summary(request):
            return Reply(text=SUMMARY[:20], finish="length")
        return Reply(text="It is slate.")

    upstream.script("m", answer)
    management = [{"type": "compaction", "compact_threshold": 1000}]
    async with served_to_http(upstream) as client:
        body: Any = {"model": "m", "input": [*TALK, NEXT], "context_management": management}
        with capture_logs() as lines:
            answered = (await client.post("/v1/responses", json=body)).json()
    [change] = answered["x_callgate"]["context"]
    assert (change["kind"], change["cut"]) == ("compaction", True)
    assert [line["log_level"] for line in lines if line["event"] == "context_summary_cut"] == ["warning"]


async def test_a_summary_that_fails_leaves_the_conversation_as_it_is(upstream: Upstream) -> None:
    def answer(request: RequestRecord) -> Reply:
        if is_asked_for_summary(request):
            return Reply(status=400, body={"error": {"message": "no"}})
        return Reply(text="Still here.")

    upstream.script("m", answer)
    management = [{"type": "compaction", "compact_threshold": 1000}]
    async with served_to_http(upstream) as client:
        body: Any = {"model": "m", "input": [*TALK, NEXT], "context_management": management}
        answered = (await client.post("/v1/responses", json=body)).json()
        failed = await client.post("/v1/responses/compact", json={"model": "m", "input": TALK})
    assert [item["type"] for item in answered["output"]] == ["message"]
    assert "A long aside." in str(upstream.requests[1].messages)
    [change] = answered["x_callgate"]["context"]
    assert change["failure"]
    assert failed.status_code == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"context_management": [{"type": "compaction", "compact_threshold": 10}]}, "context_management[0].compact_threshold"),
        ({"context_management": [{"type": "compaction"}]}, "context_management[0].compact_threshold"),
        ({"context_management": [{"type": "other"}]}, "context_management[0].type"),
        ({"context_management": {"type": "compaction"}}, "context_management"),
        ({"input": [{"type": "compaction_trigger"}, NEXT]}, "input[0]"),
        ({"input": [{"type": "compaction"}]}, "input[0].encrypted_content"),
    ],
)  # fmt: skip
async def test_what_cannot_be_done_is_refused_by_its_place(
    upstream: Upstream, fields: dict[str, Any], param: str
) -> None:
    async with served_to_http(upstream) as client:
        answer = await client.post("/v1/responses", json={"model": "m", "input": "hi", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("item", "param"), [(5, "input[0]"), (None, "input[0]"), ([], "input[0]"), ({"type": []}, "input[0].type")], ids=str
)
async def test_what_is_no_item_is_refused_even_where_a_summary_stands_for_it(
    upstream: Upstream, item: Any, param: str
) -> None:
    upstream.script("m", said())
    async with served_to_http(upstream) as client:
        compacted = (await client.post("/v1/responses/compact", json={"model": "m", "input": TALK})).json()
        summary = compacted["output"][-1]
        answer = await client.post("/v1/responses", json={"model": "m", "input": [item, summary, NEXT]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("fields", [{"stream": True}, {"background": True}, {"conversation": "conv_1"}], ids=str)
async def test_the_route_refuses_by_name_what_it_does_not_do(upstream: Upstream, fields: dict[str, Any]) -> None:
    async with served_to_http(upstream) as client:
        for path in ("/v1/responses/compact", "/responses/compact"):
            answer = await client.post(path, json={"model": "m", "input": TALK, **fields})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(fields)))


async def test_a_repeated_key_gets_the_same_summary(upstream: Upstream) -> None:
    upstream.script("m", said())
    async with served_to_http(upstream) as client:
        answers = [
            await client.post(
                "/v1/responses/compact", json={"model": "m", "input": TALK}, headers={"idempotency-key": "k"}
            )
            for _ in range(2)
        ]
    assert answers[0].status_code == 200
    assert answers[0].content == answers[1].content
    assert len(upstream.requests) == 1


async def test_a_recorded_run_has_the_summary_as_a_turn(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", said())
    record = {"content": "on"}
    async with served_to_http(upstream, "get_time", data_dir=str(tmp_path), record=record) as client:
        answer = await client.post("/v1/responses/compact", json={"model": "m", "input": TALK})
        run = answer.headers["x-callgate-run"]
        recorded = (await client.get(f"/v1/runs/{run}?content=1")).json()
    kinds = [event["kind"] for event in recorded["events"]]
    assert kinds == ["turn_started", "turn_ended", "context_changed", "ended"]
    assert recorded["tokens_in"] == 100
    assert recorded["content"]["turn.0.text"] == SUMMARY
