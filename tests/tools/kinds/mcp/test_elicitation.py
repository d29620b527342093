"""Servers that ask a person while a tool runs, and the person: over the wire, for every API."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from callgate.access.keys import mint_key
from callgate.application import create_app
from callgate.state.sealing import Sealer
from callgate.tools.approvals.queue import ApprovalQueue
from callgate.tools.approvals.shared_approvals import SEALED_FOR, SharedApprovals
from callgate.tools.kinds.mcp.rounds import MAX_ROUNDS
from callgate.tools.questions import PersonsAnswer, Question, form_of
from tests.fakes import EchoTool, ready, silent, tool
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.approvals.test_routes import tool_result, waiting
from tests.tools.servers.asking_mcp import AskingMcp, answered, elicitation, input_required, page

pytestmark = pytest.mark.anyio

ISSUE = Call("tracker_create_issue", {"repo": "r"}, id="call_issue")
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "make an issue"}]}
CONTENT = {"title": "It leaks", "priority": "high"}


def asks_once(params: dict[str, Any]) -> dict[str, Any]:
    if "inputResponses" not in params:
        return input_required(elicitation(), state="opaque é")
    return answered(json.dumps({"said": params["inputResponses"]["q0"], "state": params["requestState"]}))


@contextlib.asynccontextmanager
async def served(
    upstream: Upstream,
    server: AskingMcp,
    *,
    elicitation: str = "both",
    entry: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    upstream.script("m", [Reply(calls=[ISSUE]), Reply(text="Done.")])
    async with server.running():
        tracker = {"url": server.url, "elicitation": elicitation, **(entry or {})}
        config = make_config(upstream.url, entry={"tools": ["*"]}, mcp_servers={"tracker": tracker}, **options)
        async with asyncio.timeout(60), serve(create_app(config)) as url, http_client(url) as client:
            yield client


@contextlib.asynccontextmanager
async def asking(
    client: httpx.AsyncClient, path: str = "/v1/chat/completions", **body: Any
) -> AsyncIterator[dict[str, Any]]:
    """What waits while a model is asked; at the end the answer has come."""
    request = asyncio.create_task(client.post(path, json=body or QUESTION))
    try:
        [question] = await waiting(client)
        yield question
        assert (await request).status_code == 200
    finally:
        request.cancel()


async def nothing_waits(client: httpx.AsyncClient) -> None:
    while True:
        if not (await client.get("/v1/approvals")).json()["data"]:
            return
        await asyncio.sleep(0.01)  # the list is all that a client can look at


async def decide(client: httpx.AsyncClient, question: dict[str, Any], decision: str, **more: Any) -> httpx.Response:
    body = {"decision": decision, "hash": question["hash"], **more}
    return await client.post(f"/v1/approvals/{question['id']}", json=body)


def result(upstream: Upstream) -> Any:
    return json.loads(tool_result(upstream))


async def test_a_form_of_a_server_is_put_to_a_person_and_the_call_sent_again_with_the_answer(
    upstream: Upstream,
) -> None:
    server = AskingMcp(does=asks_once)
    async with served(upstream, server) as client:
        async with asking(client) as question:
            assert (question["kind"], question["mode"]) == ("input", "form")
            assert (question["server"], question["tool"]) == ("tracker", "tracker_create_issue")
            assert question["message"] == "Which issue?"
            assert question["schema"]["properties"]["count"] == {"type": "integer", "minimum": 1, "maximum": 5}
            assert question["schema"]["additionalProperties"] is False
            decided = await decide(client, question, "answer", content=CONTENT)
            assert (decided.status_code, decided.json()["decision"]) == (200, "answered")
        again = await decide(client, question, "answer", content=CONTENT)
        assert (again.status_code, again.json()["error"]["code"]) == (409, "approval_answered")
        first, second = (call.message for call in server.calls())
        assert result(upstream) == {"said": {"action": "accept", "content": CONTENT}, "state": "opaque é"}
        assert first["id"] != second["id"]
        assert first["params"]["arguments"] == second["params"]["arguments"] == {"repo": "r"}
        declared = first["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        assert declared == {"elicitation": {"form": {}, "url": {}}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"model": "m", "input": "make an issue"}),
        ("/v1/messages", {**QUESTION, "max_tokens": 99}),
        ("/v1/chat/completions", {**QUESTION, "stream": True}),
        ("/v1/responses", {"model": "m", "input": "make an issue", "stream": True}),
        ("/v1/messages", {**QUESTION, "max_tokens": 99, "stream": True}),
    ],
    ids=["responses", "messages", "chat streamed", "responses streamed", "messages streamed"],
)
async def test_every_api_waits_for_the_answer(upstream: Upstream, path: str, body: dict[str, Any]) -> None:
    async with served(upstream, AskingMcp(does=asks_once)) as client, asking(client, path, **body) as question:
        await decide(client, question, "answer", content=CONTENT)
    assert result(upstream)["said"]["content"] == CONTENT


@pytest.mark.parametrize(
    ("decision", "action"), [("decline", "decline"), ("cancel", "cancel")], ids=["declined", "cancelled"]
)
async def test_a_server_is_told_of_a_person_who_does_not_answer(upstream: Upstream, decision: str, action: str) -> None:
    async with served(upstream, AskingMcp(does=asks_once)) as client, asking(client) as question:
        await decide(client, question, decision)
    assert result(upstream)["said"] == {"action": action}


async def test_silence_is_told_to_the_server_and_later_answers_are_refused(upstream: Upstream) -> None:
    async with served(upstream, AskingMcp(does=asks_once), approvals={"timeout_seconds": 0.05}) as client:
        async with asking(client) as question:
            pass
        late = await decide(client, question, "answer", content=CONTENT)
    assert result(upstream)["said"] == {"action": "cancel"}
    assert (late.status_code, late.json()["error"]["code"]) == (409, "approval_expired")


@pytest.mark.parametrize(
    "content",
    [
        None,
        {},
        {"title": "x"},
        {"title": "ok", "more": 1},
        {"title": "ok", "priority": "middle"},
        {"title": "ok", "count": 9},
        {"title": "ok", "count": "3"},
        {"title": "x" * 5000},
        {"title": ["ok"]},
    ],
    ids=[
        "nothing",
        "a field is missing",
        "too short",
        "one too many",
        "no choice",
        "too large",
        "no number",
        "too long",
        "a list",
    ],
)
async def test_an_answer_that_does_not_fit_the_form_is_refused_and_may_be_given_again(
    upstream: Upstream, content: Any
) -> None:
    async with served(upstream, AskingMcp(does=asks_once)) as client, asking(client) as question:
        refused = await decide(client, question, "answer", **({} if content is None else {"content": content}))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_content")
        assert (await decide(client, question, "answer", content={"title": "ok"})).status_code == 200


async def test_what_waits_to_run_cannot_be_answered_nor_a_question_be_approved(upstream: Upstream) -> None:
    held = {"require_approval": "always"}
    async with served(upstream, AskingMcp(does=asks_once), entry=held) as client, asking(client) as call:
        assert (await decide(client, call, "answer", content=CONTENT)).json()["error"]["code"] == "invalid_decision"
        await decide(client, call, "approve")
        question = next(each for each in await waiting(client) if each["id"] != call["id"])
        assert (await decide(client, question, "approve")).json()["error"]["code"] == "invalid_decision"
        assert (await decide(client, {**question, "hash": call["hash"]}, "answer", content=CONTENT)).status_code == 409
        await decide(client, question, "answer", content=CONTENT)
    assert result(upstream)["said"]["action"] == "accept"


async def test_a_page_to_open_is_shown_with_its_host_and_nothing_is_fetched(upstream: Upstream) -> None:
    def wants_login(params: dict[str, Any]) -> dict[str, Any]:
        return asks_once(params) if "inputResponses" in params else input_required(page())

    async with served(upstream, AskingMcp(does=wants_login)) as client, asking(client) as question:
        assert (question["mode"], question["host"]) == ("url", "login.example.com")
        assert question["url"] == "https://login.example.com/?code=1"
        refused = await decide(client, question, "answer", content={})
        assert refused.json()["error"]["code"] == "invalid_content"
        await decide(client, question, "answer")
    assert result(upstream)["said"] == {"action": "accept"}


async def test_an_error_that_wants_a_page_opened_is_asked_and_the_call_sent_again(upstream: Upstream) -> None:
    asked: list[dict[str, Any]] = []

    def refuses_first(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params)
        if len(asked) == 1:
            pages = {"elicitations": [{**page()["params"], "elicitationId": "e1"}]}
            return {"error": {"code": -32042, "message": "Log in first.", "data": pages}}
        return answered("logged in")

    async with served(upstream, AskingMcp(does=refuses_first)) as client, asking(client) as question:
        await decide(client, question, "answer")
    assert tool_result(upstream) == "logged in"
    assert "inputResponses" not in asked[1]


async def test_a_page_that_was_not_opened_leaves_the_servers_refusal(upstream: Upstream) -> None:
    def refuses(params: dict[str, Any]) -> dict[str, Any]:
        pages = {"elicitations": [{**page()["params"], "elicitationId": "e1"}]}
        return {"error": {"code": -32042, "message": "Log in first.", "data": pages}}

    server = AskingMcp(does=refuses)
    async with served(upstream, server) as client:
        async with asking(client) as question:
            await decide(client, question, "decline")
        assert len(server.calls()) == 1
    assert "Log in first." in tool_result(upstream)


@pytest.mark.parametrize("beside", [False, True], ids=["in the answer", "beside it"])
async def test_an_older_server_asks_in_a_request_of_its_own(upstream: Upstream, beside: bool) -> None:
    server = AskingMcp(modern=False, beside=beside)
    async with served(upstream, server) as client:
        async with asking(client) as question:
            assert (question["server"], question["message"]) == ("tracker", "Which issue?")
            await decide(client, question, "answer", content=CONTENT)
        [greeting] = server.said("initialize")
        assert greeting.message["params"]["capabilities"]["elicitation"] == {"form": {}, "url": {}}
    assert result(upstream) == {"action": "accept", "content": CONTENT}


async def test_an_older_server_that_asks_in_no_allowed_way_is_told_so(upstream: Upstream) -> None:
    server = AskingMcp(modern=False, asks=page())
    async with served(upstream, server, elicitation="form") as client:
        await client.post("/v1/chat/completions", json=QUESTION)
        [greeting] = server.said("initialize")
        assert greeting.message["params"]["capabilities"]["elicitation"] == {"form": {}}
    assert "does not allow" in tool_result(upstream)


async def test_a_question_beside_several_calls_is_put_to_nobody(upstream: Upstream) -> None:
    server = AskingMcp(modern=False, beside=2, hints={"readOnlyHint": True})
    async with served(upstream, server) as client:
        upstream.script("m", [Reply(calls=[ISSUE, Call("tracker_create_issue", {}, id="other")]), Reply(text="Done.")])
        upstream_answer = await client.post("/v1/chat/completions", json=QUESTION)
        assert upstream_answer.status_code == 200
        assert (await client.get("/v1/approvals")).json()["data"] == []
    results = [message["content"] for message in upstream.requests[-1].body["messages"] if message["role"] == "tool"]
    assert all("does not say whose it is" in text for text in results)


async def test_a_client_that_leaves_takes_the_question_back(upstream: Upstream) -> None:
    async with served(upstream, AskingMcp(does=asks_once)) as client:
        request = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
        [question] = await waiting(client)
        request.cancel()
        await nothing_waits(client)
        late = await decide(client, question, "answer", content=CONTENT)
    assert (late.status_code, late.json()["error"]["code"]) == (409, "approval_withdrawn")


async def test_a_server_that_asks_without_end_is_stopped(upstream: Upstream) -> None:
    server = AskingMcp(does=lambda params: input_required(state="again"))
    async with served(upstream, server) as client:
        await client.post("/v1/chat/completions", json=QUESTION)
        assert len(server.calls()) == MAX_ROUNDS + 1
    assert f"asked for input {MAX_ROUNDS + 1} times" in tool_result(upstream)


async def test_a_server_whose_entry_allows_nothing_is_told_nothing_and_asks_nobody(upstream: Upstream) -> None:
    server = AskingMcp(does=asks_once)
    async with served(upstream, server, elicitation="off") as client:
        await client.post("/v1/chat/completions", json=QUESTION)
        [call] = server.calls()
        assert call.message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {}
    assert "nobody can be asked" in tool_result(upstream)


async def test_where_nobody_may_approve_nobody_is_asked(upstream: Upstream) -> None:
    async with served(upstream, AskingMcp(does=asks_once), approvals={"keyless": "nobody"}) as client:
        await client.post("/v1/chat/completions", json=QUESTION)
    assert "nobody can be asked" in tool_result(upstream)


MALFORMED: dict[str, Callable[[], dict[str, Any]]] = {
    "neither questions nor a state": lambda: input_required(state=None),
    "questions that are a list": lambda: {**input_required(), "inputRequests": [elicitation()]},
    "a question that is a text": lambda: {**input_required(), "inputRequests": {"q": "who?"}},
    "too many questions": lambda: input_required(*[elicitation()] * 9),
    "a large state": lambda: input_required(elicitation(), state="s" * 1_000_000),
    "a state that is a number": lambda: input_required(elicitation(), state=17),
    "a state that is an object": lambda: input_required(elicitation(), state={}),
    "sampling": lambda: input_required({"method": "sampling/createMessage", "params": {}}),
    "roots": lambda: input_required({"method": "roots/list"}),
    "an unknown mode": lambda: input_required(elicitation(mode="voice")),
    "no message": lambda: input_required(elicitation(message=None)),  # type: ignore[arg-type]
    "a page without an address": lambda: input_required(page(url="")),
    "a page of a script": lambda: input_required(page(url="javascript:alert(1)")),
    "a page of a file": lambda: input_required(page(url="file:///etc/passwd")),
    "a page with a name in it": lambda: input_required(page(url="https://github.com@evil.example/")),
    "a page without a host": lambda: input_required(page(url="https:///x")),
    "a page with a break": lambda: input_required(page(url="https://a.example/\nx")),
    "a page that turns round": lambda: input_required(page(url="https://a.example/\u202egro")),
    "a large page": lambda: input_required(page(url="https://a.example/" + "x" * 3_000)),
}


@pytest.mark.parametrize("made", MALFORMED.values(), ids=MALFORMED)
async def test_what_cannot_be_asked_ends_as_a_failure(upstream: Upstream, made: Callable[[], dict[str, Any]]) -> None:
    server = AskingMcp(does=lambda params: made())
    async with served(upstream, server) as client:
        answer = (await client.post("/v1/chat/completions", json=QUESTION)).json()
        assert len(server.calls()) == 1
    assert answer["x_callgate"]["turns"][0]["calls"][0]["outcome"] == "raised"
    assert "asked" in tool_result(upstream)


def keys(**rights: dict[str, Any]) -> tuple[dict[str, dict[str, str]], dict[str, Any]]:
    headers, entries = {}, []
    for name, more in rights.items():
        key, hashed = mint_key()
        headers[name] = {"Authorization": f"Bearer {key}"}
        entries.append({"name": name, "hash": hashed, **more})
    return headers, {"auth": "keys", "keys": entries}


@pytest.mark.parametrize("own", [True, False], ids=["own", "approvers"])
async def test_a_key_answers_questions_of_its_own_requests_only_where_the_config_says_so(
    upstream: Upstream, own: bool
) -> None:
    headers, config = keys(ann={}, bob={}, boss={"approve": True})
    approvals = {"input": "own"} if own else {}
    async with served(upstream, AskingMcp(does=asks_once), approvals=approvals, **config) as client:
        request = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION, headers=headers["ann"]))
        [question] = await waiting(client, headers=headers["boss"])
        path = f"/v1/approvals/{question['id']}"
        body = {"decision": "answer", "content": CONTENT, "hash": question["hash"]}
        foreign = await client.post(path, json=body, headers=headers["bob"])
        listed = await client.get("/v1/approvals", headers=headers["ann"])
        mine = await client.post(path, json=body, headers=headers["ann"])
        if own:
            assert (await client.get("/v1/approvals", headers=headers["bob"])).json()["data"] == []
            assert (foreign.status_code, mine.status_code) == (404, 200)
            assert [each["id"] for each in listed.json()["data"]] == [question["id"]]
        else:
            assert (foreign.status_code, mine.status_code, listed.status_code) == (403, 403, 403)
            assert (await client.post(path, json=body, headers=headers["boss"])).status_code == 200
        await request
    assert result(upstream)["said"]["content"] == CONTENT


async def test_a_key_that_may_answer_its_own_questions_may_not_approve_its_own_calls(upstream: Upstream) -> None:
    headers, config = keys(ann={}, boss={"approve": True})
    held = {"require_approval": "always"}
    approvals = {"input": "own"}
    async with served(upstream, AskingMcp(), entry=held, approvals=approvals, **config) as client:
        request = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION, headers=headers["ann"]))
        [call] = await waiting(client, headers=headers["boss"])
        assert (await client.get("/v1/approvals", headers=headers["ann"])).json()["data"] == []
        refused = await client.post(f"/v1/approvals/{call['id']}", json={"decision": "approve"}, headers=headers["ann"])
        assert refused.status_code == 404
        request.cancel()


async def test_an_answer_is_recorded_only_with_texts_and_its_secrets_never(upstream: Upstream) -> None:
    schema = {"type": "object", "properties": {"api_key": {"type": "string"}, "city": {"type": "string"}}}

    def wants_key(params: dict[str, Any]) -> dict[str, Any]:
        return answered("done") if "inputResponses" in params else input_required(elicitation(schema=schema))

    for content in (True, False):
        async with served(upstream, AskingMcp(does=wants_key), record={"content": content}) as client:
            async with asking(client) as question:
                assert question["secret_fields"] == ["api_key"]
                await decide(client, question, "answer", content={"api_key": "hunter2hunter2", "city": "Oslo"})
            run = (await client.get(f"/v1/runs/{question['run']}")).text
            assert "hunter2" not in run
            assert ("Oslo" in run) is content
            assert question["id"] in run


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/v1/chat/completions", QUESTION, {"Idempotency-Key": "k1"}),
        ("/v1/responses", {"model": "m", "input": "?", "background": True}, {}),
        ("/v1/chat/completions", QUESTION, {}),
    ],
    ids=["keyed", "in the background", "plain"],
)
async def test_where_there_is_a_ledger_an_answer_lies_sealed_in_it_until_it_is_taken(
    upstream: Upstream, tmp_path: Path, path: str, body: dict[str, Any], headers: dict[str, str]
) -> None:
    async with served(upstream, AskingMcp(does=asks_once), data_dir=str(tmp_path)) as client:
        request = asyncio.create_task(client.post(path, json=body, headers=headers))
        [question] = await waiting(client)
        refused = await decide(client, question, "answer", content={"title": "x"})
        assert refused.json()["error"]["code"] == "invalid_content"
        decided = await decide(client, question, "answer", content={"title": "hunter2hunter2"})
        assert decided.json()["decision"] == "answered"
        answer = (await request).json()
        while answer.get("status") in {"queued", "in_progress"}:
            answer = (await client.get(f"/v1/responses/{answer['id']}")).json()
            await asyncio.sleep(0.01)  # polling is what a client of the background does
        late = await decide(client, question, "decline")
        assert (late.status_code, late.json()["error"]["code"]) == (409, "approval_answered")
    assert result(upstream)["said"]["content"] == {"title": "hunter2hunter2"}
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as ledger:
        [(facts, reason)] = ledger.execute("SELECT facts, reason FROM approvals").fetchall()
    assert "hunter2" not in facts + reason
    is_durable = bool(headers) or "background" in body
    assert bool(reason) is is_durable, "another process may have to carry such a run on"


async def test_what_was_answered_before_a_process_died_is_not_asked_again(tmp_path: Path) -> None:
    queue = ApprovalQueue()
    sealer = Sealer(["x" * 40], "environment")
    question = Question("tracker", "Which?", form=form_of({"type": "object", "properties": {"a": {"type": "string"}}}))
    ids: list[str] = []

    class Rows:
        """A ledger that has the answer to whatever is asked under the first id."""

        async def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
            ids.append(str(values[0]))
            text = msgspec.json.encode({"decision": "answered", "content": {"a": "b"}})
            return [("approved", "ann", sealer.seal(SEALED_FOR, str(values[0]), text))]

    approvals = SharedApprovals(queue, sealer)
    approvals._database = cast("Any", Rows())
    call = ready("create_issue")
    for number in (1, 2):
        answer = await approvals.put(
            question, tool("create_issue", EchoTool()), call, silent, "run_1/0/c", number,
            run_id="run_1", caller="ann", owner="key ann", seconds=1, max_waiting=9,
        )  # fmt: skip
        assert answer == PersonsAnswer("accept", {"a": "b"})
    assert len(set(ids)) == 2, "the second question of a call is another one"
    other = SharedApprovals(queue, Sealer(["y" * 40], "environment"))
    other._database = cast("Any", Rows())
    with capture_logs() as lines:
        answer = await other.put(
            question, tool("create_issue", EchoTool()), call, silent, "run_1/0/c", 1,
            run_id="run_1", caller="ann", owner="key ann", seconds=1, max_waiting=9,
        )  # fmt: skip
    assert answer == PersonsAnswer("cancel")
    assert "answer_unreadable" in [line["event"] for line in lines]
