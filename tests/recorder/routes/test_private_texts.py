"""Texts where the config does not say whether they are kept: in memory alone, and shown to whoever they are of."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from callgate.access.keys import mint_key
from callgate.api import chat_request
from callgate.application import create_app
from callgate.config import redaction
from callgate.config.redaction import Redactor
from callgate.config.schema.whole import Config
from callgate.recorder import newest_runs, recording
from callgate.recorder.ended_run import EndedRun
from callgate.recorder.private_texts import PrivateTexts, UnwrittenRequest, question_in
from callgate.recorder.store import FILE
from callgate.records.policy import RecordPolicy
from callgate.records.row import RunRow
from tests.harness.clients import http_client
from tests.harness.configs import config_dict
from tests.harness.served import served_to_http
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.servers.http_mcp import HttpMcp

pytestmark = pytest.mark.anyio

TOOLS = ("add",)
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "planted question"}]}
BROKEN = Call("add", {"planted_key": 1}, id="call_bad")
TURNS = [
    Reply(calls=[BROKEN]),
    Reply(calls=[Call("add", {"a": 2, "b": 3}, id="call_add")]),
    Reply(text="planted answer"),
]
KEYLESS = {"auth": "keys"}
OWN = {"x-callgate-record": "own"}


def keyring(**rights: dict[str, Any]) -> tuple[dict[str, dict[str, str]], dict[str, Any]]:
    """Headers by the names of the keys, and the sections of a config that knows them."""
    headers, entries = {}, []
    for name, more in rights.items():
        key, hash = mint_key()
        headers[name] = {"authorization": f"Bearer {key}"}
        entries.append({"name": name, "hash": hash, **more})
    return headers, {"auth": "keys", "keys": entries}


async def question_asked(client: httpx.AsyncClient, upstream: Upstream, **options: Any) -> str:
    upstream.script("m", TURNS)
    answer = await client.post("/v1/chat/completions", json=QUESTION, **options)
    assert answer.status_code == 200
    return str(answer.headers["x-callgate-run"])


async def shown(client: httpx.AsyncClient, run: str, **options: Any) -> dict[str, Any]:
    whole: dict[str, Any] = (await client.get(f"/v1/runs/{run}", params={"content": 1}, **options)).json()
    return whole


def written(folder: Path) -> bytes:
    """What the files of runs have in them."""
    return b"".join(file.read_bytes() for file in folder.glob(f"{FILE}*"))


async def test_a_keyless_server_of_one_person_shows_and_replays_what_was_said(upstream: Upstream) -> None:
    async with served_to_http(upstream, *TOOLS, **KEYLESS) as client:
        run = await question_asked(client, upstream)
        whole = await shown(client, run)
        upstream.script("m", TURNS)
        again = await client.post(f"/v1/runs/{run}/replay", json={})
        exported = await client.get(f"/v1/runs/{run}/export", params={"as": "curl"})

    assert whole["kept"] == "memory"
    assert "planted question" in whole["content"]["request"]
    assert whole["content"]["call.call_add.result"] == "5"
    assert not [part for part in whole["content"] if part.endswith(".history")], (
        "what was sent is in the request already"
    )
    [broken] = [call for event in whole["events"] for call in event.get("facts", {}).get("calls", ()) if "flaw" in call]
    assert "planted_key" in json.dumps(broken["problem"])
    assert again.json()["answer"]["choices"][0]["message"]["content"] == "planted answer"
    assert "planted question" in exported.text


async def test_a_history_is_parted_once_for_the_model_and_for_them(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    parted: list[object] = []

    def counted(messages: msgspec.Raw) -> list[msgspec.Raw]:
        parted.append(messages)
        return read_items(messages)

    read_items = chat_request._items
    monkeypatch.setattr(chat_request, "_items", counted)
    async with served_to_http(upstream, *TOOLS, **KEYLESS) as client:
        whole = await shown(client, await question_asked(client, upstream))

    assert len(parted) == 1
    assert json.loads(whole["content"]["request"])["messages"] == QUESTION["messages"]


async def test_secrets_are_masked_in_them(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "current", Redactor(["planted question"]))
    async with served_to_http(upstream, *TOOLS, **KEYLESS) as client:
        whole = await shown(client, await question_asked(client, upstream))

    assert whole["kept"] == "memory"
    assert "planted answer" in json.dumps(whole)
    assert "planted question" not in json.dumps(whole)


async def everything_shown_of(client: httpx.AsyncClient, run: str) -> str:
    """What the API tells of a run, in each of its forms."""
    paths = [
        f"/v1/runs/{run}?content=1",
        f"/v1/runs/{run}",
        "/v1/runs",
        "/v1/runs?text=planted",
        "/admin/runs",
        "/admin/overview",
    ]
    paths += [f"/v1/runs/{run}/export?as={form}" for form in ("json", "curl", "recording", "otlp")]
    answers = [await client.get(path) for path in paths]
    followed = await client.get(f"/v1/runs/{run}", headers={"accept": "text/event-stream"})
    replay = await client.post(f"/v1/runs/{run}/replay", json={})
    return "\n".join(answer.text for answer in (*answers, followed, replay))


async def test_what_looks_like_a_secret_is_masked_wherever_they_are_shown(upstream: Upstream) -> None:
    token = "ghp_" + "0123456789abcdefghijklmnopqrstuvwxyz"
    upstream.script("m", [Reply(text=f"planted {token}")], repeat_last=True)
    question = {**QUESTION, "messages": [{"role": "user", "content": f"planted {token}"}]}
    async with served_to_http(upstream, *TOOLS, **KEYLESS) as client:
        answer = await client.post("/v1/chat/completions", json=question)
        run = answer.headers["x-callgate-run"]
        while (whole := await shown(client, run))["question"] == "":
            pass
        upstream.script("m", [Reply(text="answer of the replay")], repeat_last=True)
        forms = await everything_shown_of(client, run)
        asked_again = json.dumps(upstream.requests[-1].body)

    assert (whole["kept"], whole["question"]) == ("memory", "planted ***")
    assert "planted ***" in whole["content"]["request"]
    assert whole["content"]["turn.0.text"] == "planted ***"
    assert "answer of the replay" in forms
    assert token not in forms + asked_again


async def test_a_secret_that_is_known_later_is_masked_when_they_are_shown(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redaction, "current", Redactor())
    async with served_to_http(upstream, *TOOLS, **KEYLESS) as client:
        run = await question_asked(client, upstream)
        before = await shown(client, run)
        redaction.current.add("planted question", "planted answer", "planted_key")
        upstream.script("m", TURNS)
        later = await everything_shown_of(client, run)
        whole = await shown(client, run)

    assert "planted question" in before["content"]["request"]
    assert whole["kept"] == "memory"
    assert '"***"' in whole["content"]["request"], "and not starred when it is sent, as what else has it"
    assert whole["question"] == "***"
    assert "planted question" not in later
    assert "planted answer" not in later


@pytest.mark.parametrize("record", [{}, {"content": "on"}], ids=["in memory", "written"])
async def test_a_credential_of_the_request_is_masked_when_it_has_ended(
    upstream: Upstream, tmp_path: Path, record: dict[str, Any]
) -> None:
    token = "tok-9f8e7d6c5b4a-planted"
    async with HttpMcp().running() as far:
        keys, auth = keyring(alice={"see": "own", "client_mcp": {"hosts": [far.url.removesuffix("/mcp")]}})
        named = {"type": "mcp", "server_label": "far", "server_url": far.url, "authorization": token}
        question = {**QUESTION, "messages": [{"role": "user", "content": f"I am {token}"}]}
        upstream.script("m", [Reply(text=f"you are {token}")])
        async with served_to_http(upstream, *TOOLS, data_dir=str(tmp_path), record=record, **auth) as client:
            client.headers.update(keys["alice"] | OWN)
            answer = await client.post(
                "/v1/chat/completions", json={**question, "tools": [{**named, "require_approval": "never"}]}
            )
            assert answer.status_code == 200, answer.text
            assert redaction.current.lent is None
            run = answer.headers["x-callgate-run"]
            while (whole := await shown(client, run))["state"] == "under_way":
                pass
            upstream.script("m", TURNS)
            forms = await everything_shown_of(client, run)

    assert whole["kept"] == ("content" if record else "memory")
    assert whole["content"]["request"].count("***") == 1
    assert token not in forms
    assert token.encode() not in written(tmp_path)


async def test_they_are_masked_when_they_are_shown_and_not_before(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    masked: list[str] = []

    class Noting(Redactor):
        def text(self, text: str) -> str:
            masked.append(text)
            return super().text(text)

    monkeypatch.setattr(redaction, "current", Noting())
    upstream.script("m", [TURNS[1], TURNS[2]])
    async with served_to_http(upstream, *TOOLS, **KEYLESS) as client:
        answer = await client.post("/v1/chat/completions", json=QUESTION)
        run = answer.headers["x-callgate-run"]
        while not (await client.get("/v1/runs", params={"state": "answered"})).json()["data"]:
            pass
        await shown(client, run)
    # The row shows the question; nothing else was shown yet.
    assert not [text for text in masked[: masked.index("planted question")] if "planted" in text]


async def test_long_ones_are_cut_and_masked_when_the_run_ends(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "KEPT_AS_IT_CAME", 100_000)
    monkeypatch.setattr(redaction, "current", Redactor())
    filler = "lorem ipsum " * 20_000
    upstream.script("m", [Reply(text="planted answer")])
    messages = [{"role": "user", "content": f"token=planted-before {filler}"}, {"role": "user", "content": "and now?"}]
    async with served_to_http(upstream, *TOOLS, **KEYLESS) as client:
        answer = await client.post("/v1/chat/completions", json={**QUESTION, "messages": messages})
        whole = await shown(client, answer.headers["x-callgate-run"])
        while (whole := await shown(client, answer.headers["x-callgate-run"]))["kept"] != "cut":
            pass
        redaction.current.add("planted answer")
        later = await shown(client, answer.headers["x-callgate-run"])

    assert len(whole["content"]["request"].encode()) <= 65_536
    assert "planted-before" not in json.dumps(whole)
    assert (whole["question"], whole["content"]["turn.0.text"]) == ("and now?", "planted answer")
    assert [event["facts"]["parts"] for event in whole["events"] if event["kind"] == "content_cut"] == [["request"]]
    assert "planted answer" not in json.dumps(later)


async def test_such_texts_are_in_no_file_and_gone_after_a_restart(upstream: Upstream, tmp_path: Path) -> None:
    async with served_to_http(upstream, *TOOLS, data_dir=str(tmp_path), **KEYLESS) as client:
        run = await question_asked(client, upstream)
        assert (await shown(client, run))["kept"] == "memory"
    files = written(tmp_path)
    async with served_to_http(upstream, *TOOLS, data_dir=str(tmp_path), **KEYLESS) as client:
        later = await shown(client, run)

    assert run.encode() in files
    assert b"planted" not in files
    assert (later["kept"], later["content"]) == ("nothing", {})


@pytest.mark.parametrize(
    "sections",
    [
        {**KEYLESS, "record": {"content": False}},
        {"auth": "off"},
        {**KEYLESS, "server": {"public_url": "https://llm.example.com"}},
        {**KEYLESS, "server": {"allowed_hosts": ["llm.example.com"]}},
        {**KEYLESS, "record": {"less": [{"models": ["m"], "keep": "no_content"}]}},
    ],
    ids=["it is written off", "everyone is let in", "a public address", "other names", "less of this model"],
)
async def test_they_are_not_kept_where_others_may_come_or_the_config_says_so(
    upstream: Upstream, sections: dict[str, Any]
) -> None:
    async with served_to_http(upstream, *TOOLS, **sections) as client:
        run = await question_asked(client, upstream)
        whole = await shown(client, run)

    assert (whole["kept"], whole["content"]) == ("nothing", {})
    assert "planted" not in json.dumps(whole)


@pytest.mark.parametrize("header", ["off", "anything"])
async def test_a_request_can_forbid_it(upstream: Upstream, header: str) -> None:
    async with served_to_http(upstream, *TOOLS, **KEYLESS) as client:
        run = await question_asked(client, upstream, headers={"x-callgate-record": header})
        whole = await shown(client, run)

    assert (whole["kept"], whole["content"]) == ("nothing", {})


async def test_with_keys_a_request_keeps_its_own_texts_for_its_key_alone(upstream: Upstream) -> None:
    keys, auth = keyring(alice={"see": "own"}, boss={"admin": True})
    async with served_to_http(upstream, *TOOLS, **auth) as client:
        usual = await question_asked(client, upstream, headers=keys["alice"])
        own = await question_asked(client, upstream, headers=keys["alice"] | OWN)
        unasked = await shown(client, usual, headers=keys["alice"])
        mine = await shown(client, own, headers=keys["alice"])
        others = await shown(client, own, headers=keys["boss"])
        replay = await client.post(f"/v1/runs/{own}/replay", json={}, headers=keys["boss"])
        exports = [
            (await client.get(f"/v1/runs/{own}/export", params={"as": form}, headers=keys["boss"])).text
            for form in ("json", "curl", "recording", "otlp")
        ]
        followed = await client.get(f"/v1/runs/{own}", headers=keys["boss"] | {"accept": "text/event-stream"})
        listed = await client.get("/v1/runs", headers=keys["boss"])

    assert (unasked["kept"], mine["kept"], others["kept"]) == ("nothing", "memory", "nothing")
    assert "planted question" in mine["content"]["request"]
    assert replay.status_code == 409
    for text in (json.dumps(others), replay.text, *exports, followed.text, listed.text):
        assert "planted" not in text


async def test_a_key_that_may_see_no_runs_has_none_kept(upstream: Upstream) -> None:
    keys, auth = keyring(alice={}, boss={"admin": True})
    async with served_to_http(upstream, *TOOLS, **auth) as client:
        run = await question_asked(client, upstream, headers=keys["alice"] | OWN)
        others = await shown(client, run, headers=keys["boss"])

    assert others["kept"] == "nothing"


async def test_a_run_under_way_shows_its_texts_to_its_key_alone(upstream: Upstream) -> None:
    keys, auth = keyring(alice={"see": "own"}, boss={"admin": True, "approve": True})
    config = Config.model_validate(
        config_dict(upstream.url, tools=["add"], require_approval={"always": ["add"]}, **auth)
    )
    upstream.script("m", TURNS)
    async with serve(create_app(config)) as url, http_client(url) as client, http_client(url) as asking:
        head = keys["alice"] | OWN | {"x-callgate-events": "trace"}
        question = {**QUESTION, "stream": True}
        async with asking.stream("POST", "/v1/chat/completions", json=question, headers=head) as answer:
            run = answer.headers["x-callgate-run"]
            lines = answer.aiter_lines()  # which closes the connection when nobody holds it
            async for line in lines:
                if '"approval"' in line:
                    break
            mine = await shown(client, run, headers=keys["alice"])
            others = await shown(client, run, headers=keys["boss"])

    assert (mine["state"], mine["kept"], others["kept"]) == ("under_way", "memory", "nothing")
    assert "planted question" in json.dumps(mine)
    assert "planted" not in json.dumps(others)


async def test_their_memory_is_bounded_and_the_runs_stay(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_to_http(upstream, *TOOLS, **KEYLESS) as client:
        first = await question_asked(client, upstream)
        monkeypatch.setattr(newest_runs, "PRIVATE_BYTES", 1)
        second = await question_asked(client, upstream)
        while (older := await shown(client, first))["kept"] == "memory":
            pass
        newer = await shown(client, second)
        rows = (await client.get("/v1/runs")).json()["data"]

    assert (older["kept"], older["content"], older["question"]) == ("aged_out", {}, "planted question")
    assert newer["kept"] in {"memory", "aged_out"}
    assert {row["id"] for row in rows} == {first, second}


@pytest.mark.parametrize(
    "messages",
    [
        b"[]",
        b'[{"role":"user","content":"why?"}]',
        b'[{"role":"user","content":"why?"},{"role":"assistant","content":"so"},{"role":"user","content":" "}]',
        b'[{"role":"user","content":[{"type":"text","text":"first"},{"type":"text","text":"last"},{"type":"image_url"}]}]',
        b'[{"role":"user","content":null},{"content":"nobody\'s"},{"role":"tool","content":"5"}]',
        b'[{"role":"user","content":"half of a pair: \\ud800"}]',
        b'[{"role":"user","content":"' + b"long " * 1000 + b'"}]',
    ],
)
def test_a_question_is_found_without_writing_the_request_down(messages: bytes) -> None:
    request = UnwrittenRequest(lambda: {"model": "m", "messages": msgspec.Raw(messages)}, len(messages))

    assert request.question_text() == question_in({"request": request.text()})


def test_a_request_that_is_kept_holds_nothing_else_of_its_body() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"a":1}]' + b" " * 10_000 + b"}"
    referrers = sys.getrefcount(body)
    run = recording.RunRecording(RunRow("run_1", 0.0), RecordPolicy(content_bytes=1000, private_to="alice"), str)
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    tools = msgspec.json.decode(fields["tools"], type=list[msgspec.Raw])
    run.keep_request(partial(dict, fields | {"tools": tools}), 100)
    del fields, tools
    ended, _ = run.encode()

    assert sys.getrefcount(body) == referrers
    assert ended.private is not None
    assert json.loads(ended.private.all_texts()["request"]) == json.loads(body)


async def test_an_operator_can_have_texts_kept_from_now_on(upstream: Upstream, tmp_path: Path) -> None:
    keys, auth = keyring(alice={"see": "own"}, boss={"admin": True})
    async with served_to_http(upstream, *TOOLS, data_dir=str(tmp_path), **auth) as client:
        refused = await client.post("/admin/record", json={"content": "on"}, headers=keys["alice"])
        before = (await client.get("/admin/record", headers=keys["boss"])).json()
        with capture_logs() as lines:
            after = (await client.post("/admin/record", json={"content": "on"}, headers=keys["boss"])).json()
        kept = await question_asked(client, upstream, headers=keys["alice"])
        seen = await shown(client, kept, headers=keys["boss"])
        await client.post("/admin/record", json={"content": "off"}, headers=keys["boss"])
        without = await question_asked(client, upstream, headers=keys["alice"])
        unseen = await shown(client, without, headers=keys["boss"])

    assert refused.status_code == 403
    assert (before["content"], after["content"], after["is_written"]) == ("off", "on", True)
    [line] = [line for line in lines if line["event"] == "authority_widened"]
    assert (line["by"], line["through"]) == ("boss", "POST /admin/record")
    assert (seen["kept"], unseen["kept"]) == ("content", "nothing")
    assert "planted question" in seen["content"]["request"]


@pytest.mark.parametrize("content", [False, True])
async def test_the_switch_does_not_move_where_the_config_decides(upstream: Upstream, content: bool) -> None:
    async with served_to_http(upstream, *TOOLS, record={"content": content}, **KEYLESS) as client:
        answer = await client.post("/admin/record", json={"content": "on"})
        facts = (await client.get("/admin/record")).json()

    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "record_is_fixed")
    assert facts["content"] == ("on" if content else "off")
    assert "The config says" in facts["fixed"]


async def test_where_everyone_is_let_in_nobody_is_told_what_another_typed(upstream: Upstream) -> None:
    async with served_to_http(upstream, *TOOLS, auth="off") as client:
        run = await question_asked(client, upstream, headers=OWN)
        whole = await shown(client, run)

    assert (whole["kept"], whole["content"]) == ("nothing", {})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_without_tools_is_recorded_for_its_key_where_it_wants_to_look_at_it(
    upstream: Upstream, stream: bool
) -> None:
    keys, auth = keyring(alice={"see": "own"}, blind={})
    upstream.script("m", [Reply(text="planted answer")], repeat_last=True)
    body = {**QUESTION, "stream": stream}
    async with served_to_http(upstream, **auth) as client:
        runs = {}
        for name, head in (("wanted", keys["alice"] | OWN), ("usual", keys["alice"]), ("blind", keys["blind"] | OWN)):
            answer = await client.post("/v1/chat/completions", json=body, headers=head)
            runs[name] = answer.headers["x-callgate-run"]
        whole = await shown(client, runs["wanted"], headers=keys["alice"])
        others = [await client.get(f"/v1/runs/{runs[name]}", headers=keys["alice"]) for name in ("usual", "blind")]

    assert (whole["kept"], whole["turns"]) == ("memory", 1)
    assert "planted answer" in json.dumps(whole["content"])
    assert [answer.status_code for answer in others] == [404, 404]


def test_one_owner_does_not_push_out_the_texts_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(id: str, owner: str) -> EndedRun:
        row = RunRow(id, 0.0)
        policy = RecordPolicy(content_bytes=1000, private_to=owner)
        texts = {"request": "x" * 1000}
        private = PrivateTexts(texts=texts, texts_bytes=1000, policy=policy, mask=str)
        return EndedRun(row, b"", b"", private_to=owner, private=private)

    weight = ended("run_0", "key alice").private.weight()  # type: ignore[union-attr]
    monkeypatch.setattr(newest_runs, "PRIVATE_BYTES", 4 * weight)
    newest = newest_runs.NewestRuns()
    newest.add([ended("run_0", "key alice")])
    newest.add([ended(f"run_{number}", "key bob") for number in range(1, 9)])
    kept = [run.id for run in newest.all() if run.private is not None and run.private.texts]

    assert kept == ["run_0", "run_7", "run_8"]
    assert len(newest.all()) == 9


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"metadata": {"a": "b"}, "temperature": 0.5, "n": 1, "stream": False},
        {"stop": ["planted"], "user": "someone", "response_format": {"type": "text"}},
        {"tools": [{"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}]},
        {"metadata": {"tools": "add", "c": "d"}, "tool_choice": "auto"},
    ],
    ids=["plain", "metadata", "fields", "own tools", "a choice"],
)
async def test_a_request_that_is_written_when_it_is_looked_at_reads_as_one_that_is_written_at_once(
    upstream: Upstream, more: dict[str, Any]
) -> None:
    upstream.script("m", [Reply(text="planted answer")], repeat_last=True)
    requests = []
    for record in ({}, {"record": {"content": True}}):
        async with served_to_http(upstream, *TOOLS, **record, **KEYLESS) as client:
            answer = await client.post("/v1/chat/completions", json={**QUESTION, **more})
            run = answer.headers["x-callgate-run"]
            while "request" not in (whole := await shown(client, run))["content"]:
                pass
        requests.append(whole["content"]["request"])

    assert requests[0] == requests[1]
    assert json.loads(requests[0])["messages"] == QUESTION["messages"]
