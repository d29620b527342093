"""Hooks beside all else that a chat has: other modes, other tools, what is kept, and what is said of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_durable_runs import waiting_for_approval
from tests.guardrails.test_three_ways import BLOCKS, MASKS, READ, asked, hook, text_in
from tests.harness import toolshed
from tests.harness.cards import CARD, shows_card
from tests.harness.clients import http_client
from tests.harness.configs import tool_entry
from tests.harness.served import served
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
ALL = ["request", "answer", "arguments", "result"]
OWN = {"type": "function", "function": {"name": "own", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(autouse=True)
def _no_steps() -> None:
    toolshed.steps.clear()


@BOTH
async def test_each_choice_is_judged(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text=f"one {CARD}"), Reply(text=f"two {CARD}")])
    async with served(upstream, guardrails=[hook(["answer"], MASKS)]) as url:
        answer = await asked(url, "chat", stream=stream, n=2)
    assert not shows_card(answer.text)
    assert answer.text.count("[CARD]") == 2 or stream


async def test_a_request_that_passes_through_is_masked_and_stays_passed_through(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text=CARD), Reply(text=CARD)])
    async with served(upstream, guardrails=[hook(["request"], MASKS)]) as url:
        answer = await asked(url, "chat", stream=False, text=f"{CARD}!", odd_field={"a": 1})
        plain = await asked(url, "chat", stream=False, text="hello", odd_field={"a": 1})
    assert upstream.requests[0].body["messages"] == [{"role": "user", "content": "[CARD]!"}]
    assert upstream.requests[0].body["odd_field"] == {"a": 1}
    assert "x_callgate" not in answer.json()  # the provider's own bytes
    assert "x_callgate" not in plain.json()


async def test_hooks_of_other_models_and_keys_leave_a_request_alone(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text=CARD)], repeat_last=True)
    upstream.script("other", [Reply(text=CARD)], repeat_last=True)
    hooks = [hook(["answer", "request"], {**BLOCKS, "models": ["oth*"], "keys": ["anonymous"]})]
    async with served(upstream, guardrails=hooks, models=["m", "other"]) as url:
        free = await asked(url, "chat", stream=False, text=CARD)
        blocked = await asked(url, "chat", stream=False, text=CARD, model="other")
    assert text_in(free, "chat", stream=False) == CARD
    assert "x_callgate" not in free.json()
    assert blocked.status_code == 400


async def test_hooks_of_other_tools_leave_a_result_alone(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[READ, Call("look", {"label": CARD}, id="l")]), Reply(text="done")])
    async with served(upstream, "echo", "look", guardrails=[hook(["result"], {**MASKS, "tools": ["loo*"]})]) as url:
        await asked(url, "chat", stream=False)
    echoed, looked = [message["content"] for message in upstream.requests[1].messages if message["role"] == "tool"]
    assert CARD in echoed
    assert looked == "[CARD]"


@pytest.mark.parametrize("text", ['{"a": "%s"}', '{"a": ["x", "%s"]}', '{"a\\"b": "%s"}'])
@BOTH
async def test_in_json_a_string_is_masked(upstream: Upstream, text: str, stream: bool) -> None:
    upstream.script("m", [Reply(text=text % CARD)])
    async with served(upstream, guardrails=[hook(["answer"], MASKS)]) as url:
        answer = await asked(url, "chat", stream=stream, response_format={"type": "json_object"})
    assert json.loads(text_in(answer, "chat", stream=stream)) == json.loads(text % "[CARD]")


@BOTH
async def test_in_json_a_number_blocks_because_nothing_can_stand_for_it(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text='{"a": 4111111111111111}')])
    async with served(upstream, guardrails=[hook(["answer"], MASKS)]) as url:
        answer = await asked(url, "chat", stream=stream, response_format={"type": "json_object"})
    assert not shows_card(answer.text)
    assert "content_filter" in answer.text


@BOTH
async def test_reasoning_is_judged_like_text(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(reasoning=f"I think of {CARD}.", text="done")])
    async with served(upstream, guardrails=[hook(["answer"], MASKS)]) as url:
        answer = await asked(url, "chat", stream=stream)
    assert not shows_card(answer.text)
    assert "I think of [CARD]." in answer.text or stream
    assert text_in(answer, "chat", stream=stream) == "done"


@BOTH
async def test_arguments_of_a_clients_call_are_masked_or_the_call_is_not_handed_out(
    upstream: Upstream, stream: bool
) -> None:
    tool = {"type": "function", "function": {"name": "own", "parameters": {"type": "object"}}}
    call = Call("own", {"card": CARD, "number": 4111111111111111}, id="call_own")
    upstream.script("m", [Reply(calls=[call])])
    async with served(upstream, guardrails=[hook(["arguments"], MASKS)]) as url:
        masked = await asked(url, "chat", stream=stream, tools=[tool])
    assert not shows_card(masked.text)
    assert masked.text.count("[CARD]") == 4  # in the call, and shown in x_callgate
    upstream.script("m", [Reply(calls=[call]), Reply(text="then not")])
    async with served(upstream, guardrails=[hook(["arguments"])]) as url:
        blocked = await asked(url, "chat", stream=stream, tools=[tool])
    assert text_in(blocked, "chat", stream=stream) == "then not"
    assert '"name":"own"' not in blocked.text.replace(" ", "") or "x_callgate" in blocked.text
    assert not shows_card(blocked.text)


async def test_masked_arguments_go_through_the_gate_again(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("add", {"a": 4111111111111111, "b": 1}, id="c")]), Reply(text="done")])
    async with served(upstream, "add", guardrails=[hook(["arguments"], MASKS)]) as url:
        answer = await asked(url, "chat", stream=False)
    [call] = answer.json()["x_callgate"]["turns"][0]["calls"]
    assert (call["verdict"], call["flaw"]) == ("broken", "schema_mismatch")
    assert not shows_card(json.dumps(upstream.requests[1].body))


async def test_who_approves_sees_what_runs(upstream: Upstream) -> None:
    import asyncio

    upstream.script("m", [Reply(calls=[Call("step", {"label": CARD}, id="c")]), Reply(text="done")])
    entry = {**tool_entry("step"), "require_approval": "always"}
    async with served(upstream, entry, guardrails=[hook(["arguments"], MASKS)]) as url, http_client(url) as client:
        asking = asyncio.create_task(asked(url, "chat", stream=False))
        waiting = await waiting_for_approval(url)
        assert waiting["arguments"] == {"label": "[CARD]"}
        await client.post(f"/v1/approvals/{waiting['id']}", json={"decision": "approve"})
        await asking
    assert toolshed.steps == ["+[CARD]", "-[CARD]"]


async def test_a_blocked_call_asks_nobody(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("step", {"label": CARD}, id="c")]), Reply(text="done")])
    entry = {**tool_entry("step"), "require_approval": "always"}
    async with served(upstream, entry, guardrails=[hook(["arguments"])]) as url:
        answer = await asked(url, "chat", stream=False)
    assert text_in(answer, "chat", stream=False) == "done"
    assert toolshed.steps == []


async def test_only_what_goes_on_is_recorded(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", [Reply(calls=[READ]), Reply(text=f"It is {CARD}.")])
    record = {"content": True}
    hooks = [hook(ALL, MASKS)]
    async with (
        served(upstream, "echo", guardrails=hooks, record=record, data_dir=str(tmp_path)) as url,
        http_client(url) as client,
    ):
        answer = await asked(url, "chat", stream=True, text=f"my card is {CARD}")
        run = (await client.get(f"/v1/runs/{answer.headers['x-callgate-run']}?content=1")).json()
    assert not shows_card(json.dumps(run))
    assert "[CARD]" in json.dumps(run["content"])
    judged = [event for event in run["events"] if event["kind"] == "guardrail_judged"]
    assert {(event["facts"]["point"], event["facts"]["verdict"]) for event in judged} >= {
        (point, "masked") for point in ALL[:3]
    }
    assert planted_in(tmp_path) == []


def planted_in(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and b"1111 1111" in file.read_bytes()]


async def test_a_blocked_request_has_a_run_and_none_of_its_words(upstream: Upstream) -> None:
    async with (
        served(upstream, guardrails=[hook(["request"])], record={"content": True, "runs": "all"}) as url,
        http_client(url) as client,
    ):
        answer = await asked(url, "chat", stream=False, text=f"my card is {CARD}")
        run = (await client.get(f"/v1/runs/{answer.headers['x-callgate-run']}?content=1")).json()
        metrics = (await client.get("/metrics")).text
    assert "my card" not in json.dumps(run)
    assert [event["facts"]["verdict"] for event in run["events"] if event["kind"] == "guardrail_judged"] == ["blocked"]
    assert 'callgate_guardrail_verdicts_total{hook="cards",point="request",verdict="blocked"} 1' in metrics


async def test_a_stored_response_has_the_masked_words(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text=f"It is {CARD}."), Reply(text="ok")])
    async with served(upstream, guardrails=[hook(["request", "answer"], MASKS)]) as url, http_client(url) as client:
        first = (await asked(url, "responses", stream=False, text=f"my card is {CARD}")).json()
        stored = (await client.get(f"/v1/responses/{first['id']}")).text
        items = (await client.get(f"/v1/responses/{first['id']}/input_items")).text
        await asked(url, "responses", stream=False, previous_response_id=first["id"])
    assert not shows_card(stored + items)
    assert not shows_card(json.dumps(upstream.requests[1].body))
    assert json.dumps(upstream.requests[1].body).count("[CARD]") == 2


@BOTH
async def test_a_run_that_outlives_its_process_keeps_the_masked_words(
    upstream: Upstream, tmp_path: Path, stream: bool
) -> None:
    upstream.script("m", [Reply(text=f"I look at {CARD}.", calls=[READ]), Reply(text=f"It is {CARD}.")])
    body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": f"my card is {CARD}"}]}
    key = {"idempotency-key": "k-1"}
    async with (
        served(upstream, "echo", guardrails=[hook(ALL, MASKS)], data_dir=str(tmp_path)) as url,
        http_client(url) as client,
    ):
        first = await client.post("/v1/chat/completions", json=body, headers=key)
        again = await client.post("/v1/chat/completions", json=body, headers=key)
    assert not shows_card(first.text)
    assert text_in(first, "chat", stream=stream) == text_in(again, "chat", stream=stream)
    assert len(upstream.requests) == 2


async def test_a_run_in_the_background_is_judged(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", [Reply(text=f"It is {CARD}.")])
    async with (
        served(upstream, guardrails=[hook(["answer"], MASKS)], data_dir=str(tmp_path)) as url,
        http_client(url) as client,
    ):
        begun = (await asked(url, "responses", stream=False, background=True)).json()
        async with client.stream("GET", f"/v1/responses/{begun['id']}?stream=true") as following:
            await following.aread()
        ended = await client.get(f"/v1/responses/{begun['id']}")
    assert "It is [CARD]." in ended.text


async def test_a_turn_that_was_kept_has_the_masked_results(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[READ, Call("own", {}, id="call_own")]), Reply(text="done")])
    async with served(upstream, "echo", guardrails=[hook(["result"], MASKS)]) as url, http_client(url) as client:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
        body = {"model": "m", "messages": messages, "tools": [OWN]}
        first = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
        messages += [first, {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "ok"}]
        await client.post("/v1/chat/completions", json=body)
    results = [message["content"] for message in upstream.requests[1].messages if message["role"] == "tool"]
    assert "card [CARD]." in results


async def test_what_is_read_on_in_a_long_result_is_masked_too(upstream: Upstream) -> None:
    import re

    def read_on(request: Any) -> Reply:
        turns = sum(message["role"] == "assistant" for message in request.messages)
        if turns == 0:
            return Reply(calls=[Call("echo", {"text": "x" * 3000 + CARD}, id="c")])
        if turns == 1:
            handle = re.search(r'"id": "(kept_[0-9a-f]+)"', request.messages[-1]["content"])
            assert handle is not None
            return Reply(calls=[Call("read_more", {"id": handle[1], "offset": 2000}, id="d")])
        return Reply(text="done")

    upstream.script("m", read_on)
    entry = {**tool_entry("echo"), "max_result_bytes": 1000}
    async with served(upstream, entry, guardrails=[hook(["result"], MASKS)]) as url:
        await asked(url, "chat", stream=False)
    results = [message["content"] for message in upstream.requests[2].messages if message["role"] == "tool"]
    assert not shows_card("".join(results))
    assert "[CARD]" in results[1]


async def test_tokens_are_counted_of_what_would_be_sent(upstream: Upstream) -> None:
    async with served(upstream, guardrails=[hook(["request"])]) as url, http_client(url) as client:
        body = {"model": "m", "messages": [{"role": "user", "content": CARD}]}
        answer = await client.post("/v1/messages/count_tokens", json=body)
    assert answer.status_code == 400
    assert "blocked by the guardrail" in answer.text


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": CARD}],
        [{"type": "text", "text": "a"}, {"type": "text", "text": f"b {CARD}"}],
    ],
)
async def test_all_texts_of_a_request_are_looked_at(upstream: Upstream, content: Any) -> None:
    upstream.script("m", [Reply(text="hello")], repeat_last=True)
    past = {
        "id": "c",
        "type": "function",
        "function": {"name": "own", "arguments": json.dumps({"card": CARD, "n": 4111111111111111})},
    }
    messages = [
        {"role": "system", "content": f"s {CARD}"},
        {"role": "user", "content": content},
        {"role": "assistant", "content": None, "tool_calls": [past]},
        {"role": "tool", "tool_call_id": "c", "content": f"t {CARD}"},
    ]
    async with served(upstream, guardrails=[hook(["request"], MASKS)]) as url, http_client(url) as client:
        answer = await client.post("/v1/chat/completions", json={"model": "m", "messages": messages, "tools": [OWN]})
    assert answer.status_code == 200
    sent = json.dumps(upstream.requests[0].body)
    assert not shows_card(sent)
    assert sent.count("[CARD]") == 5


async def test_what_hooks_did_is_in_the_answer(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[READ]), Reply(text=f"It is {CARD}.")])
    async with served(upstream, "echo", guardrails=[hook(["answer", "result"], MASKS)]) as url:
        answer = await asked(url, "chat", stream=False)
    rows = answer.json()["x_callgate"]["guardrails"]
    assert {
        "turn": 0,
        "hook": "cards",
        "point": "result",
        "verdict": "masked",
        "tool": "echo",
        "kinds": ["cards"],
    } in rows
    assert {"turn": 1, "hook": "cards", "point": "answer", "verdict": "masked", "kinds": ["cards"]} in rows


async def test_several_hooks_look_one_after_the_other(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text=f"{CARD} or ann@example.org")])
    emails = {"kind": "patterns", "find": ["emails"]}
    hooks = [
        hook(["answer"], MASKS),
        hook(["answer"], emails, "mails"),
        hook(["answer"], {"kind": "sizes", "max_bytes": 20}, "small"),
    ]
    async with served(upstream, guardrails=hooks) as url:
        answer = await asked(url, "chat", stream=True)
    assert text_in(answer, "chat", stream=True) == "[CARD] or [EMAIL]"


async def test_log_probabilities_do_not_spell_out_what_is_masked(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text=f"It is {CARD}.")])
    async with served(upstream, guardrails=[hook(["answer"], MASKS)]) as url:
        answer = await asked(url, "chat", stream=False, logprobs=True)
    assert not shows_card(answer.text)
    assert answer.json()["choices"][0]["logprobs"] is None


async def test_a_document_in_plain_text_is_read_and_one_in_base64_is_not(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="hello")], repeat_last=True)
    plain = {"type": "text", "media_type": "text/plain", "data": CARD}
    scan = {"type": "base64", "media_type": "application/pdf", "data": CARD.replace(" ", "")}
    async with served(upstream, guardrails=[hook(["request"])]) as url, http_client(url) as client:
        answers = [
            await client.post("/v1/messages", json={"model": "m", "max_tokens": 9, "messages": [
                {"role": "user", "content": [{"type": "document", "source": source}, {"type": "text", "text": "?"}]}
            ]})
            for source in (plain, scan)
        ]  # fmt: skip
    assert "blocked by the guardrail `cards`" in answers[0].text
    assert "guardrail" not in answers[1].text


async def test_what_is_put_into_a_conversation_is_judged_before_it_is_kept(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="hello")], repeat_last=True)
    said = {"items": [{"type": "message", "role": "user", "content": f"my card is {CARD}"}]}
    for how in (MASKS, BLOCKS):
        async with served(upstream, guardrails=[hook(["request"], how)]) as url, http_client(url) as client:
            begun = await client.post("/v1/conversations", json=said)
            empty = (await client.post("/v1/conversations", json={})).json()["id"]
            added = await client.post(f"/v1/conversations/{empty}/items", json=said)
            await client.post("/v1/responses", json={"model": "m", "input": "and now?", "conversation": empty})
            counted = await client.post("/v1/responses/input_tokens", json={"model": "m", "input": CARD})
        assert [begun.status_code, added.status_code] == ([200, 200] if how is MASKS else [400, 400])
        assert counted.status_code == (200 if how is MASKS else 400)
        asked_of_model = json.dumps(upstream.requests[-1].body)
        assert not shows_card(asked_of_model + begun.text + added.text)
        assert ("my card is [CARD]" in asked_of_model) == (how is MASKS)
