"""How runs are told apart in their list: what was asked, what became of calls, text, order, sums, names."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.page.served import PRICE, keyring
from tests.scripted_upstream import Call, Pace, Reply, Upstream

pytestmark = pytest.mark.anyio

ADD = Call("add", {"a": 2, "b": 3}, id="call_add")
CUT = Call("get_weather", '{"city": "Os', id="call_cut")
SECRET = "sk-" + "proj-abcdEFGH0123abcdEFGH0123abcdEFGH0123abcdEFGH0123"
CONTENT = {"record": {"content": True}}


def settings(upstream: Upstream, **more: Any) -> Any:
    return make_config(
        upstream.url, tools=("add", "get_weather", "echo"), models=["m", "other"], entry={"model_info": PRICE}, **more
    )


async def run_asking(client: httpx.AsyncClient, upstream: Upstream, text: str, turns: Any, **more: Any) -> str:
    upstream.script("m", turns)
    question = {"model": "m", "messages": [{"role": "user", "content": text}]}
    answer = await client.post("/v1/chat/completions", json=question, **more)
    return str(answer.headers["x-callgate-run"])


async def listed(client: httpx.AsyncClient, path: str = "", **query: Any) -> Any:
    answer = await client.get(f"/v1/runs{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def written_row(client: httpx.AsyncClient) -> Any:
    """The only run, once its texts are masked, which the recorder's thread does."""
    while not (row := (await listed(client))["data"][0])["question"]:
        pass
    return row


async def ids_of(client: httpx.AsyncClient, **query: Any) -> list[str]:
    return [row["id"] for row in (await listed(client, **query))["data"]]


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_a_row_has_the_question_and_what_became_of_each_tool(
    upstream: Upstream, tmp_path: Path, where: str
) -> None:
    more = {"data_dir": str(tmp_path)} if where == "file" else {}
    async with serve(create_app(settings(upstream, **CONTENT, **more))) as url, http_client(url) as client:
        asked = f"What is 2 + 3? My key is {SECRET}."
        run = await run_asking(client, upstream, asked, [Reply(calls=[ADD, CUT]), Reply(text="Fünf.")])
        row = await written_row(client)
        [flaw] = row["outcomes"]["get_weather"]
        with_outcome = {
            (tool, outcome): await ids_of(client, outcome=outcome, **({"tool": tool} if tool else {}))
            for tool in ("", "add", "get_weather")
            for outcome in ("returned", flaw, "raised")
        }

    assert row["question"].startswith("What is 2 + 3? My key is ")
    assert SECRET not in row["question"]
    assert row["outcomes"]["add"] == {"returned": 1}
    assert {place: bool(ids) for place, ids in with_outcome.items()} == {
        ("", "returned"): True,
        ("", flaw): True,
        ("", "raised"): False,
        ("add", "returned"): True,
        ("add", flaw): False,
        ("add", "raised"): False,
        ("get_weather", "returned"): False,
        ("get_weather", flaw): True,
        ("get_weather", "raised"): False,
    }
    assert {run} == {id for ids in with_outcome.values() for id in ids}


PARTS = [{"type": "text", "text": "An attachment."}, {"type": "text", "text": " What is it? "}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": PARTS}]}),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "Well,"}]},
        ),
        ("messages", {"max_tokens": 9, "messages": [{"role": "user", "content": PARTS[1:]}]}),
        ("responses", {"input": "What is it?"}),
        (
            "responses",
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": part["text"]} for part in PARTS]}]},
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_every_api_has_its_question_in_the_list(
    upstream: Upstream, path: str, body: dict[str, Any], stream: bool
) -> None:
    async with serve(create_app(settings(upstream, **CONTENT))) as url, http_client(url) as client:
        upstream.script("m", [Reply(text="It is late.")])
        answer = await client.post(f"/v1/{path}", json={"model": "m", "stream": stream, **body})
        assert answer.status_code == 200, answer.text
        row = await written_row(client)
    assert row["question"] == "What is it?"


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_text_is_searched_in_questions_answers_arguments_and_names(
    upstream: Upstream, tmp_path: Path, where: str
) -> None:
    more = {"data_dir": str(tmp_path)} if where == "file" else {}
    async with serve(create_app(settings(upstream, **CONTENT, **more))) as url, http_client(url) as client:
        one = await run_asking(client, upstream, 'Café "Zürich"\n?', [Reply(calls=[ADD]), Reply(text="Fünf.")])
        other = await run_asking(client, upstream, "?", [Reply(text="Six.")])
        found = {
            text: await ids_of(client, q=text)
            for text in ('café "züRICH', "FÜNF", '"b"', "six", "add", other, "nobody's")
        }
        totals = await listed(client, "/totals", q="six")
        long = await client.get("/v1/runs", params={"q": "x" * 201})

    assert found == {
        'café "züRICH': [one],
        "FÜNF": [one],
        '"b"': [one],
        "six": [other],
        "add": [one],
        other: [other],
        "nobody's": [],
    }
    assert totals["runs"] == 1
    assert long.status_code == 400


async def test_a_text_that_is_kept_for_one_key_alone_is_found_by_nobody_else(upstream: Upstream) -> None:
    keys, auth = keyring(alice={"see": "all"}, bob={"see": "all"})
    async with serve(create_app(settings(upstream, **CONTENT, **auth))) as url, http_client(url) as client:
        by = {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}
        quiet = {**by["alice"], "x-callgate-record": "off"}
        await run_asking(client, upstream, "unheard", [Reply(text="Six.")], headers=quiet)
        answers = [(await client.get("/v1/runs?q=unheard", headers=by[name])).json()["data"] for name in by]
        [row] = (await client.get("/v1/runs", headers=by["alice"])).json()["data"]
    assert answers == [[], []]
    assert row["question"] == ""


async def test_a_key_searches_sums_and_names_its_own_runs_alone(upstream: Upstream) -> None:
    keys, auth = keyring(alice={"see": "own"}, bob={"see": "own"}, blind={})
    async with serve(create_app(settings(upstream, **CONTENT, **auth))) as url, http_client(url) as client:
        by = {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}
        await run_asking(client, upstream, "mine", [Reply(calls=[ADD]), Reply(text="5")], headers=by["alice"])
        while not (await client.get("/v1/runs/names", headers=by["alice"])).json()["tool"]:
            pass
        answers = {
            (name, path): await client.get(f"/v1/runs{path}", headers=by[name])
            for name in by
            for path in ("?q=mine", "/totals", "/totals?key=alice", "/names", "?sort=slowest")
        }
    assert {answers["blind", path].status_code for _, path in answers} == {403}
    assert len(answers["alice", "?q=mine"].json()["data"]) == 1
    assert answers["bob", "?q=mine"].json()["data"] == answers["bob", "?sort=slowest"].json()["data"] == []
    assert [answers[name, "/totals"].json()["runs"] for name in ("alice", "bob")] == [1, 0]
    assert answers["bob", "/totals?key=alice"].json()["runs"] == 0
    assert answers["alice", "/names"].json()["tool"] == ["add"]
    assert [answers["bob", "/names"].json()[kind] for kind in ("tool", "key", "model", "provider")] == [[], [], [], []]


async def test_runs_are_sorted_and_paged_in_every_order(upstream: Upstream) -> None:
    async with serve(create_app(settings(upstream))) as url, http_client(url) as client:
        runs = []
        for words in (3, 9, 6):
            reply = Reply(text="a " * words, pace=Pace(before=words * 0.01))
            runs.append(await run_asking(client, upstream, "?", [Reply(calls=[ADD]), reply]))
        orders: dict[str, list[dict[str, Any]]] = {}
        for order in ("newest", "oldest", "slowest", "dearest", "largest"):
            orders[order] = []
            after: dict[str, Any] = {}
            while after is not None:
                page = await listed(client, sort=order, limit=2, **after)
                orders[order] += page["data"]
                after = {"after": page["next"]} if page["next"] else None  # type: ignore[assignment]
        wrong = await client.get("/v1/runs?sort=nope")
        neighbour = await listed(client, sort="oldest", limit=1, after=f"{orders['oldest'][0]['began']!r}~{runs[0]}")

    assert [row["id"] for row in orders["oldest"]] == runs
    assert [row["id"] for row in orders["newest"]] == runs[::-1]
    for order, of in (
        ("slowest", lambda row: row["seconds"]),
        ("dearest", lambda row: row["cost"]),
        ("largest", lambda row: row["tokens_in"] + row["tokens_out"]),
    ):
        values = [of(row) for row in orders[order]]
        assert values == sorted(values, reverse=True)
        assert sorted(row["id"] for row in orders[order]) == sorted(runs)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "sort")
    assert [row["id"] for row in neighbour["data"]] == [runs[1]]


async def test_runs_of_a_filter_are_added_up(upstream: Upstream) -> None:
    async with serve(create_app(settings(upstream))) as url, http_client(url) as client:
        await run_asking(client, upstream, "?", [Reply(calls=[ADD, CUT]), Reply(text="5")])
        await run_asking(client, upstream, "?", [Reply(status=400, body={"error": {"message": "no"}})])
        rows = (await listed(client))["data"]
        totals = await listed(client, "/totals")
        failed = await listed(client, "/totals", state="failed")
        of_tool = await listed(client, "/totals", tool="add", provider="openai")
        elsewhere = await listed(client, "/totals", provider="azure")

    assert (totals["runs"], totals["failed"], totals["with_broken_calls"], totals["broken_calls"]) == (2, 1, 1, 1)
    assert totals["cost"] == pytest.approx(sum(row["cost"] or 0 for row in rows))
    assert totals["tokens_in"] == sum(row["tokens_in"] for row in rows)
    assert totals["p95"] == max(row["seconds"] for row in rows)
    assert totals["more"] is False
    assert (failed["runs"], of_tool["runs"], elsewhere["runs"]) == (1, 1, 0)


async def test_names_to_filter_by_come_from_what_was_used(upstream: Upstream) -> None:
    async with serve(create_app(settings(upstream))) as url, http_client(url) as client:
        await run_asking(client, upstream, "?", [Reply(calls=[ADD, CUT]), Reply(text="5")])
        await listed(client)
        while not (names := await listed(client, "/names"))["tool"]:
            pass
    assert names["tool"] == ["add", "get_weather"]
    assert (names["model"], names["key"], names["provider"]) == (["m"], ["anonymous"], ["openai"])
    assert {"tool_calls_with_stop", "missing_finish_reason"} <= set(names["finding"])
    assert {"truncated", "denied", "timeout"} <= set(names["outcome"])


async def test_a_run_says_why_it_ended_so(upstream: Upstream) -> None:
    async with serve(create_app(settings(upstream))) as url, http_client(url) as client:
        again = Call("add", {"a": 2, "b": 3})
        await run_asking(client, upstream, "?", [*[Reply(calls=[again])] * 3, Reply(text="5")])
        [row] = (await listed(client))["data"]
    assert (row["state"], row["note"]) == ("turn_limit", "repeated_call")


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_a_run_says_who_decided_about_a_call_and_why(upstream: Upstream, decision: str) -> None:
    keys, auth = keyring(boss={"admin": True, "approve": True})
    rules = {"require_approval": {"always": ["echo"]}, **auth}
    async with serve(create_app(settings(upstream, **rules))) as url, http_client(url) as client:
        client.headers["authorization"] = f"Bearer {keys['boss']}"
        call = Call("echo", {"text": "hi"}, id="call_echo")
        upstream.script("m", [Reply(calls=[call]), Reply(text="Done.")])
        question = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "?"}]}
        async with client.stream(
            "POST", "/v1/chat/completions", json=question, headers={"x-callgate-events": "trace"}
        ) as answer:
            lines = answer.aiter_lines()
            async for line in lines:
                if "apr_" in line:
                    break
            [card] = (await client.get("/v1/approvals")).json()["data"]
            body = {"decision": decision, "reason": f"not on a Sunday, {SECRET}", "hash": card["hash"]}
            assert (await client.post(f"/v1/approvals/{card['id']}", json=body)).status_code == 200
            rest = [line async for line in lines]
        run = answer.headers["x-callgate-run"]
        events = (await listed(client, f"/{run}"))["events"]
        [row] = (await listed(client))["data"]

    decided = [event["facts"] for event in events if event.get("facts", {}).get("by")]
    assert [facts["by"] for facts in decided] == ["boss"]
    assert decided[0]["reason"].startswith("not on a Sunday, ")
    assert SECRET not in decided[0]["reason"]
    assert row["outcomes"]["echo"] == ({"returned": 1} if decision == "approve" else {"denied": 1})
    if decision == "deny":
        assert decided[0]["decision"] == "denied"
        assert any("Their reason: not on a Sunday" in line for line in upstream_texts(upstream))
    assert rest


def upstream_texts(upstream: Upstream) -> list[str]:
    """What the models were told as results."""
    return [
        str(message.get("content"))
        for request in upstream.requests
        for message in request.body.get("messages", ())
        if message["role"] == "tool"
    ]
