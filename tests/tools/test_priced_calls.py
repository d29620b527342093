from typing import Any

import httpx
import pytest

from callgate.access.keys import hash_key
from callgate.access.limits import MemoryLimiter
from callgate.access.meter import Meter
from callgate.callers.allowance import Allowance
from callgate.callers.caller import Caller
from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.conversation.prices import FREE
from callgate.tools.executor import CallContext
from callgate.tools.priced_calls import PricedTool
from tests.fakes import AnsweringTool, ready, silent
from tests.harness.configs import tool_entry
from tests.harness.served import served_to_http
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

CENT = 10_000_000
KEY = {"Authorization": "Bearer cg-ann"}
KEYS = [{"name": "ann", "hash": hash_key("cg-ann"), "see": "all", "budget_per_day": 0.015}]


async def called(tool: PricedTool, meter: Meter | None, key: str = "k") -> Outcome:
    charge = None if meter is None else meter.charge
    context = CallContext(run_id="r", turn=0, key=key, report=silent, max_bytes=100, charge=charge)
    return await tool.execute(ready("t"), context)


def a_meter(allowance: Allowance, limiter: MemoryLimiter | None = None) -> Meter:
    return Meter(limiter or MemoryLimiter(), Caller("ann", allowance=allowance), FREE, 100, 10)


async def test_a_call_runs_while_its_price_is_left_of_the_budget():
    tool = PricedTool(AnsweringTool("done"), CENT)
    meter = a_meter(Allowance(budget_per_day=0.025))
    async with meter:
        outcomes = [await called(tool, meter, key=f"call {number}") for number in range(4)]
    assert [type(outcome) for outcome in outcomes] == [Returned, Returned, Failed, Failed]
    assert isinstance(outcomes[2], Failed)
    assert outcomes[2].kind is FailureKind.REFUSED
    assert "budget" in outcomes[2].text
    assert isinstance(outcomes[0], Returned)
    assert outcomes[0].facts is not None
    assert outcomes[0].facts.shown() == {"price": 0.01}


async def test_a_call_is_charged_once_however_often_it_is_tried():
    meter = a_meter(Allowance(budget_per_month=0.015))
    tool = PricedTool(AnsweringTool("done"), CENT)
    async with meter:
        outcomes = [await called(tool, meter, key="the same") for _ in range(5)]
    assert all(isinstance(outcome, Returned) for outcome in outcomes)


async def test_what_calls_cost_is_spent_when_the_request_has_ended():
    limiter = MemoryLimiter()
    meter = a_meter(Allowance(budget_per_day=1), limiter)
    async with meter:
        await called(PricedTool(AnsweringTool("done"), CENT), meter)
    assert await limiter.spent("ann") == (CENT, CENT)


@pytest.mark.parametrize("allowance", [Allowance(), Allowance(requests_per_minute=1)], ids=["none", "rate"])
async def test_a_key_without_a_budget_is_not_charged(allowance: Allowance):
    meter = a_meter(allowance)
    async with meter:
        for number in range(5):
            assert isinstance(await called(PricedTool(AnsweringTool("x"), CENT), meter, key=str(number)), Returned)
    assert isinstance(await called(PricedTool(AnsweringTool("x"), CENT), None), Returned)


async def test_a_failure_stays_as_it_is():
    assert await called(PricedTool(AnsweringTool(Failed("no")), CENT), None) == Failed("no")


async def test_the_model_is_told_that_a_call_is_too_dear_and_answers_without(upstream: Upstream):
    def model(request: Any) -> Reply:
        last = request.body["messages"][-1]
        return Reply(calls=[Call("echo", {"text": "hi"})]) if last["role"] == "user" else Reply(text=last["content"])

    upstream.script("m", model)
    priced = {**tool_entry("echo"), "price": 0.01}
    free = {"model_info": {"input_cost_per_token": 0, "output_cost_per_token": 0}}
    async with served_to_http(upstream, priced, keys=KEYS, auth="keys", entry=free) as client:
        first = await asked(client)
        second = await asked(client)
        run = (await client.get(f"/v1/runs/{first['x_callgate']['run']}", headers=KEY)).json()
        metrics = (await client.get("/metrics", headers=KEY)).text
    assert first["choices"][0]["message"]["content"] == "hi"
    assert first["x_callgate"]["turns"][0]["calls"][0]["price"] == 0.01
    assert "budget" in second["choices"][0]["message"]["content"]
    assert second["x_callgate"]["turns"][0]["calls"][0]["outcome"] == "refused"
    assert run["cost"] == 0.01
    assert 'callgate_tool_cost_dollars_total{tool="echo"} 0.01' in metrics


async def asked(client: httpx.AsyncClient) -> Any:
    question = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
    answer = await client.post("/v1/chat/completions", json=question, headers=KEY)
    assert answer.status_code == 200, answer.text
    return answer.json()
