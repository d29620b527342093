"""What a call of `/mcp` waits for: its own client, where that may decide, and else a person elsewhere."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from callgate.access.keys import mint_key
from callgate.config.schema.whole import Config
from tests.harness import toolshed
from tests.harness.configs import config_dict
from tests.harness.issuer import TestIssuer, auth_of
from tests.mcp_server.mcp_client import McpClient, served_mcp
from tests.tools.servers import asking_mcp
from tests.tools.servers.asking_mcp import AskingMcp, answered, elicitation, input_required, page

pytestmark = pytest.mark.anyio

NOWHERE = "http://127.0.0.1:9"
ALICE, ALICE_HASH = mint_key()
BOB, BOB_HASH = mint_key()
STEP = {"name": "step", "arguments": {"label": "a"}}
YES = {"action": "accept", "content": {"approve": True}}
NO = {"action": "accept", "content": {"approve": False, "reason": "not today"}}


def config_of(*tools: str, **sections: Any) -> Config:
    keys = [
        {"name": "alice", "hash": ALICE_HASH, "approve": True},
        {"name": "bob", "hash": BOB_HASH},
    ]
    return Config.model_validate(
        config_dict(NOWHERE, tools=tools, **{"auth": "keys", "keys": keys, "require_approval": "always", **sections})
    )


@pytest.fixture(autouse=True)
def no_steps() -> None:
    toolshed.steps.clear()


async def waiting(client: McpClient) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {ALICE}"}
    return list((await client.http.get("/v1/approvals", headers=headers)).json()["data"])


async def until_one_waits(client: McpClient) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while not (found := await waiting(client)):  # noqa: ASYNC110 - as in the tests of approvals
            await asyncio.sleep(0.01)
    return found[0]


async def decide(client: McpClient, id: str, decision: str) -> int:
    headers = {"authorization": f"Bearer {ALICE}"}
    answer = await client.http.post(f"/v1/approvals/{id}", json={"decision": decision}, headers=headers)
    return answer.status_code


def retried(asked: dict[str, Any], said: Any, call: dict[str, Any] = STEP) -> dict[str, Any]:
    [key] = asked["inputRequests"]
    return {**call, "inputResponses": {key: said}, "requestState": asked["requestState"]}


async def test_a_client_that_may_approve_is_shown_the_call_and_its_answer_counts() -> None:
    async with served_mcp(config_of("step")) as client:
        alice = client.as_key(ALICE).that_asks()
        asked = await alice.result("tools/call", STEP)
        rows = await waiting(client)
        result = await alice.result("tools/call", retried(asked, YES))
        rows_after = await waiting(client)
        run = result["_meta"]["io.callgate/run"]
        row = (await client.http.get(f"/v1/runs/{run}", headers={"authorization": f"Bearer {ALICE}"})).status_code
    request = asked["inputRequests"]["approval"]
    assert asked["resultType"] == "input_required"
    assert request["method"] == "elicitation/create"
    assert "step" in request["params"]["message"]
    assert '"label": "a"' in request["params"]["message"]
    assert list(request["params"]["requestedSchema"]["properties"]) == ["approve", "reason"]
    assert [row["tool"] for row in rows] == ["step"]
    assert rows_after == []
    assert result["content"][0]["text"] == "a"
    assert toolshed.steps == ["+a", "-a"]
    assert row in {200, 403}


@pytest.mark.parametrize("said", [NO, {"action": "decline"}, {"action": "cancel"}], ids=["no", "decline", "cancel"])
async def test_what_its_user_does_not_approve_is_not_run(said: dict[str, Any]) -> None:
    async with served_mcp(config_of("step")) as client:
        alice = client.as_key(ALICE).that_asks()
        asked = await alice.result("tools/call", STEP)
        result = await alice.result("tools/call", retried(asked, said))
    assert result["isError"]
    assert "refused" in result["content"][0]["text"]
    assert toolshed.steps == []


async def test_a_retry_with_other_arguments_or_of_another_key_or_another_tool_is_refused() -> None:
    async with served_mcp(config_of("step", "echo", keys=[
        {"name": "alice", "hash": ALICE_HASH, "approve": True}, {"name": "bob", "hash": BOB_HASH, "approve": True}
    ])) as client:  # fmt: skip
        alice = client.as_key(ALICE).that_asks()
        bob = client.as_key(BOB).that_asks()
        asked = await alice.result("tools/call", STEP)
        retry = retried(asked, YES)
        errors = [
            await alice.error("tools/call", {**retry, "arguments": {"label": "b"}}),
            await alice.error("tools/call", {**retry, "name": "echo"}),
            await bob.error("tools/call", retry),
            await alice.error("tools/call", {**retry, "requestState": retry["requestState"] + "x"}),
            await alice.error("tools/call", {**retry, "requestState": "cg2.AAAA"}),
            await alice.error("tools/call", {**retry, "inputResponses": {"approval": 7}}),
            await alice.error("tools/call", {**retry, "inputResponses": {"approval": {"action": "accept"}}}),
            await alice.error("tools/call", {**retry, "inputResponses": None}),
        ]
        assert toolshed.steps == []
        result = await alice.result("tools/call", retry)
        again = await alice.error("tools/call", retry)
    assert {error["code"] for error in [*errors, again]} == {-32602}
    assert not result["isError"]
    assert toolshed.steps == ["+a", "-a"]


async def test_a_retry_without_an_answer_is_asked_again() -> None:
    async with served_mcp(config_of("step")) as client:
        alice = client.as_key(ALICE).that_asks()
        asked = await alice.result("tools/call", STEP)
        again = await alice.result("tools/call", {**STEP, "requestState": asked["requestState"]})
        result = await alice.result("tools/call", retried(again, YES))
    assert again["resultType"] == "input_required"
    assert again["inputRequests"] == asked["inputRequests"]
    assert not result["isError"]


async def test_who_decides_first_counts_and_the_call_runs_only_with_its_client() -> None:
    async with served_mcp(config_of("step")) as client:
        alice = client.as_key(ALICE).that_asks()
        asked = await alice.result("tools/call", STEP)
        [row] = await waiting(client)
        assert await decide(client, row["id"], "approve") == 200
        before = list(toolshed.steps)
        result = await alice.result("tools/call", retried(asked, NO))
    assert before == []
    assert not result["isError"]
    assert toolshed.steps == ["+a", "-a"]


async def test_an_approval_from_elsewhere_runs_nothing_while_its_client_stays_away() -> None:
    async with served_mcp(config_of("step", approvals={"timeout_seconds": 0.2})) as client:
        alice = client.as_key(ALICE).that_asks()
        asked = await alice.result("tools/call", STEP)
        async with asyncio.timeout(30):
            while await waiting(client):  # noqa: ASYNC110 - until it has expired
                await asyncio.sleep(0.01)
        result = await alice.result("tools/call", retried(asked, YES))
    assert result["isError"]
    assert "nobody gave it" in result["content"][0]["text"]
    assert toolshed.steps == []


@pytest.mark.parametrize("whose", ["approvers", "own"])
async def test_a_client_whose_key_may_not_approve_waits_for_a_person_elsewhere(whose: str) -> None:
    """Also one that may answer what tools ask in its own calls."""
    async with served_mcp(config_of("step", approvals={"input": whose})) as client:
        bob = client.as_key(BOB).that_asks()
        async with bob.streamed("tools/call", STEP, {"progressToken": 7}) as messages:
            first = await anext(messages)
            row = await until_one_waits(client)
            assert await decide(client, row["id"], "approve") == 200
            others = [message async for message in messages]
    assert first["method"] == "notifications/progress"
    assert first["params"]["progressToken"] == 7
    assert row["id"] in first["params"]["message"]
    assert others[-1]["result"]["content"][0]["text"] == "a"


async def test_a_client_that_cannot_ask_waits_for_a_person_elsewhere() -> None:
    async with served_mcp(config_of("step")) as client:
        for one in (client.as_key(ALICE), client.as_key(ALICE).older()):
            calling = asyncio.create_task(one.result("tools/call", STEP))
            row = await until_one_waits(client)
            assert await decide(client, row["id"], "deny") == 200
            assert (await calling)["isError"]
    assert toolshed.steps == []


async def test_a_client_that_leaves_while_its_call_waits_takes_the_call_with_it() -> None:
    async with served_mcp(config_of("step")) as client:
        for one in (client.as_key(BOB), client.as_key(BOB).older()):
            calling = asyncio.create_task(one.result("tools/call", STEP))
            await until_one_waits(client)
            calling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await calling
            async with asyncio.timeout(30):
                while await waiting(client):  # noqa: ASYNC110 - until it is withdrawn
                    await asyncio.sleep(0.01)
    assert toolshed.steps == []


async def test_an_idempotency_key_holds_over_the_question() -> None:
    meta = {"io.callgate/idempotency-key": "k"}
    async with served_mcp(config_of("step")) as client:
        alice = client.as_key(ALICE).that_asks()
        asked = await alice.result("tools/call", STEP, meta)
        result = await alice.result("tools/call", retried(asked, YES), meta)
        again = await alice.result("tools/call", STEP, meta)
    assert again == result
    assert toolshed.steps == ["+a", "-a"]


async def test_a_retry_whose_answer_was_lost_gets_it_again_and_runs_nothing() -> None:
    meta = {"io.callgate/idempotency-key": "k"}
    async with served_mcp(config_of("step")) as client:
        alice = client.as_key(ALICE).that_asks()
        asked = await alice.result("tools/call", STEP, meta)
        retry = retried(asked, YES)
        results = [await alice.result("tools/call", retry, meta) for _ in range(3)]
        afresh = await alice.result("tools/call", STEP, meta)
    assert [*results, afresh] == [results[0]] * 4
    assert toolshed.steps == ["+a", "-a"]


async def test_a_state_that_is_refused_gives_nobody_elses_idempotency_key_free() -> None:
    meta = {"io.callgate/idempotency-key": "k"}
    async with toolshed.held() as running, served_mcp(config_of("wait_for_gate")) as client:
        alice = client.as_key(ALICE).that_asks()
        call = {"name": "wait_for_gate", "arguments": {}}
        asked = await alice.result("tools/call", call, meta)
        retry = retried(asked, YES, call)
        running_call = asyncio.create_task(alice.result("tools/call", retry, meta))
        await running.started.wait()
        refused = await alice.error("tools/call", retry, meta)
        forged = await alice.error("tools/call", {**retry, "requestState": "cg2.AAAA"}, meta)
        afresh = asyncio.create_task(alice.result("tools/call", call, meta))
        running.gate.set()
        results = await asyncio.gather(running_call, afresh)
    assert {refused["code"], forged["code"]} == {-32602}
    assert results[0] == results[1]
    assert not results[0]["isError"]


async def test_a_tool_that_was_stopped_after_its_approval_is_not_run_again_by_its_idempotency_key() -> None:
    meta = {"io.callgate/idempotency-key": "k"}
    async with toolshed.held() as running, served_mcp(config_of("wait_for_gate")) as client:
        alice = client.as_key(ALICE).that_asks()
        call = {"name": "wait_for_gate", "arguments": {}}
        asked = await alice.result("tools/call", call, meta)
        leaving = asyncio.create_task(alice.post("tools/call", retried(asked, YES, call), meta))
        await running.started.wait()
        leaving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaving
        await running.cancelled.wait()
        afresh = await alice.error("tools/call", call, meta)
    assert afresh["data"]["error_code"] == "idempotency_key_interrupted"


# -- what tools ask while they run


@contextlib.asynccontextmanager
async def asking(server: AskingMcp, **sections: Any) -> AsyncIterator[McpClient]:
    async with server.running():
        entry = {
            "url": server.url,
            "prefix": "",
            "allow_private": True,
            "elicitation": "both",
            "require_approval": "never",
        }
        config = config_of(mcp_servers={"issues": entry}, **{"require_approval": "never", **sections})
        async with served_mcp(config) as client:
            yield client


def asks_for_a_title(params: dict[str, Any]) -> dict[str, Any]:
    responses = params.get("inputResponses")
    if not responses:
        return input_required(elicitation())
    return answered(responses["q0"]["content"]["title"] if responses["q0"]["action"] == "accept" else "nothing")


ISSUE = {"name": "create_issue", "arguments": {}}


async def test_what_a_running_tool_asks_its_client_is_asked() -> None:
    async with asking(AskingMcp(does=asks_for_a_title)) as client:
        alice = client.as_key(ALICE).that_asks()
        asked = await alice.result("tools/call", ISSUE)
        params = asked["inputRequests"]["q0"]["params"]
        wrong = await alice.error("tools/call", retried(asked, {"action": "accept", "content": {"title": 1}}, ISSUE))
        said = {"action": "accept", "content": {"title": "Broken"}}
        result = await alice.result("tools/call", retried(asked, said, ISSUE))
        second = await alice.result("tools/call", ISSUE)
        declined = await alice.result("tools/call", retried(second, {"action": "decline"}, ISSUE))
    assert params["message"] == "issues asks: Which issue?"
    assert params["requestedSchema"]["required"] == asking_mcp.FORM["required"]
    assert wrong["code"] == -32602
    assert result["content"][0]["text"] == "Broken"
    assert declined["content"][0]["text"] == "nothing"


async def test_a_question_is_for_its_own_caller_where_the_operator_says_so() -> None:
    for whose, kind in (("own", "input_required"), ("approvers", None)):
        async with asking(AskingMcp(does=asks_for_a_title), approvals={"input": whose}) as client:
            bob = client.as_key(BOB).that_asks()
            calling = asyncio.create_task(bob.result("tools/call", ISSUE))
            if kind is None:
                row = await until_one_waits(client)
                assert await decide(client, row["id"], "decline") == 200
                assert (await calling)["content"][0]["text"] == "nothing"
            else:
                assert (await calling)["resultType"] == kind


async def test_a_page_is_only_opened_by_a_client_that_can() -> None:
    def does(params: dict[str, Any]) -> dict[str, Any]:
        return answered("in") if params.get("inputResponses") else input_required(page())

    async with asking(AskingMcp(does=does)) as client:
        able = client.as_key(ALICE).that_asks({"elicitation": {"form": {}, "url": {}}})
        asked = await able.result("tools/call", ISSUE)
        result = await able.result("tools/call", retried(asked, {"action": "accept"}, ISSUE))
        calling = asyncio.create_task(client.as_key(ALICE).that_asks().result("tools/call", ISSUE))
        row = await until_one_waits(client)
        assert await decide(client, row["id"], "cancel") == 200
        await calling
    assert asked["inputRequests"]["q0"]["params"]["url"].startswith("https://login.example.com/")
    assert result["content"][0]["text"] == "in"


async def test_a_server_cannot_name_its_question_an_approval() -> None:
    def does(params: dict[str, Any]) -> dict[str, Any]:
        if params.get("inputResponses"):
            return answered("done")
        return {**input_required(), "inputRequests": {"approval": elicitation()}}

    async with asking(AskingMcp(does=does)) as client:
        asked = await client.as_key(ALICE).that_asks().result("tools/call", ISSUE)
    assert [*asked["inputRequests"]] == ["question_approval"]


async def test_sounds_resources_and_what_is_structured_reach_the_client_as_they_are() -> None:
    content = [
        {"type": "text", "text": "All:"},
        {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "test://one", "mimeType": "text/plain", "text": "one"}},
        {"type": "resource_link", "uri": "test://two", "name": "two"},
    ]

    def does(params: dict[str, Any]) -> dict[str, Any]:
        return {"resultType": "complete", "content": content, "structuredContent": {"n": 1}}

    async with asking(AskingMcp(does=does)) as client:
        result = await client.as_key(ALICE).result("tools/call", ISSUE)
    assert result["content"] == content
    assert result["structuredContent"] == {"n": 1}


async def test_a_long_resource_is_held_to_the_limit_of_its_tool() -> None:
    def does(params: dict[str, Any]) -> dict[str, Any]:
        long = {"uri": "test://long", "mimeType": "text/plain", "text": "x" * 200_000}
        return {"resultType": "complete", "content": [{"type": "resource", "resource": long}]}

    async with asking(AskingMcp(does=does)) as client:
        result = await client.as_key(ALICE).result("tools/call", ISSUE)
    assert [part["type"] for part in result["content"]] == ["text", "resource_link"]
    assert len(result["content"][0]["text"]) <= 65_536


async def test_who_approved_by_his_form_is_named_as_everywhere() -> None:
    async with TestIssuer().served() as issuer:
        auth = auth_of(issuer, {"dev": {"approve": True}})
        async with served_mcp(config_of("step", auth=auth, keys=[])) as client:
            ada = client.as_key(issuer.token("ada", name="Ada Lovelace")).that_asks()
            asked = await ada.result("tools/call", STEP)
            await ada.result("tools/call", retried(asked, YES))
            headers = {"authorization": f"Bearer {ada.key}"}
            history = (await client.http.get("/v1/approvals/history", headers=headers)).json()["data"]
    assert history[0]["by"] == f"Ada Lovelace (ada@{issuer.url})"
