"""Runs that outlive their process, with two real processes on one ledger: in SQLite's file, and in Postgres."""

import asyncio
import contextlib
import json
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import openai
import pytest
import yaml

from callgate.application import create_app
from callgate.config.load import load
from callgate.conversation.errors import ChatError
from callgate.runs.durable_run import DurableRun
from callgate.runs.durable_runs import MAX_RESUMES
from callgate.state.database import DatabaseAway
from callgate.state.local.sqlite import FILE
from callgate.state.responses import ResponseStore, StoredResponse
from callgate.state.runs import DatabaseRunLedger, StoredRun
from callgate.state.store import StoreError
from tests.chaos import tools
from tests.chaos.scale import held_to
from tests.harness.clients import openai_client
from tests.harness.configs import as_yaml, config_dict
from tests.harness.needs import needs
from tests.harness.process import Child, serving_command
from tests.harness.redis import redis_server
from tests.harness.responses import check_events
from tests.harness.server import serve
from tests.harness.wire import RawAnswer, raw_connection, raw_post
from tests.scripted_upstream import Call, Hold, Pace, Reply, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
KEY = {"idempotency-key": "order-7"}
ASKING = [{"role": "user", "content": "hello"}]
DEAD_AFTER = 1.0
TOLD_WITHIN = DEAD_AFTER + 6


class Pair:
    """What two processes share."""

    def __init__(self, folder: Path, upstream: Upstream, ledger: dict[str, Any]) -> None:
        self.upstream, self.marks, self.is_sqlite = upstream, folder / "marks", "data_dir" in ledger
        self.marks.touch()
        listed = [
            {"kind": "python", "function": f"{tools.__name__}:{name}", "safety": safety, "name": f"{name}_{safety}"}
            for name in ("count", "hang")
            for safety in ("write", "read_only")
        ]
        self.file = folder / "config.yaml"
        self.file.write_text(
            as_yaml(
                config_dict(
                    upstream.url,
                    tools=listed,
                    runs={"dead_after_seconds": DEAD_AFTER},
                    server={"drain_seconds": 0.5},
                    **ledger,
                )
            )
        )

    @contextlib.asynccontextmanager
    async def app(self, **options: Any) -> AsyncIterator[str]:
        """One that is not to be killed: in the process of the tests."""
        async with serve(create_app(load(self.file).config), **options) as url:
            yield url

    def process(self) -> "contextlib.AbstractAsyncContextManager[Child]":
        return serving_command(self.file, environment={tools.MARKS: str(self.marks)})

    @contextlib.asynccontextmanager
    async def processes(self) -> AsyncIterator[tuple[Child, Child]]:
        async with contextlib.AsyncExitStack() as stack:
            begun = [stack.enter_async_context(self.process()) for _ in range(2)]
            one, other = await asyncio.gather(*begun)
            yield one, other

    def ran(self) -> list[str]:
        return self.marks.read_text().splitlines()

    async def until_ran(self, *labels: str) -> None:
        async with asyncio.timeout(30):
            while self.ran() != list(labels):  # noqa: ASYNC110 - another process leaves them
                await asyncio.sleep(0.01)

    def let_go(self) -> None:
        Path(f"{self.marks}.go").touch()


POSTGRES = pytest.param("postgres", marks=needs("postgres", "module:asyncpg"))
IN_SQLITE = pytest.mark.parametrize("pair", ["sqlite"], indirect=True)
IN_POSTGRES = pytest.mark.parametrize("pair", [POSTGRES], indirect=True)
"""Where one of them is enough: what differs is how it is known that a process died."""


@pytest.fixture(params=["sqlite", POSTGRES])
async def pair(request: Any, tmp_path: Path, schema: str, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv(tools.MARKS, str(tmp_path / "marks"))
    if request.param == "sqlite":
        return Pair(tmp_path, upstream, {"data_dir": str(tmp_path / "data")})
    from callgate.state.cluster.postgres import migrate

    url = request.getfixturevalue("postgres").url
    await migrate(url, schema)
    return Pair(tmp_path, upstream, {"ledger": {"url": url, "namespace": schema}})


FACES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": ASKING},
    "/v1/responses": {"model": "m", "input": "hello"},
    "/v1/messages": {"model": "m", "messages": ASKING, "max_tokens": 50},
}
ON_ALL_FACES = pytest.mark.parametrize("path", FACES)


def ends_as_taken_over(answer: RawAnswer, path: str) -> None:
    """Checks the end of a stream, in the form of its API."""
    *_, last = answer.body.removesuffix(b"data: [DONE]\n\n").rstrip().split(b"\n\n")
    name, _, data = last.rpartition(b"data: ")
    found = json.loads(data)
    if path == "/v1/chat/completions":
        assert answer.data[-1] == "[DONE]"
        assert (name, found["error"]["code"]) == (b"", "run_taken_over")
    elif path == "/v1/messages":
        assert name == b"event: error\n"
        assert found["error"]["details"] == {"error_code": "run_taken_over"}
    else:
        assert answer.data[-1] == "[DONE]"
        errors = [each for each in answer.chunks if each["type"] == "error"]
        assert [each["code"] for each in errors] == ["run_taken_over"]
        assert [each["sequence_number"] for each in answer.chunks] == list(range(len(answer.chunks)))
        assert found["type"] == "error" or found["response"]["error"]["code"] == "run_taken_over"


async def ask(url: str, stream: bool = False, headers: Any = KEY, **more: Any) -> RawAnswer:
    return await raw_post(url, {"model": "m", "messages": ASKING, "stream": stream, **more}, headers=headers)


async def get(url: str, path: str) -> RawAnswer:
    async with raw_connection(url) as connection:
        await connection.send(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        return await connection.answer()


async def killed(child: Child, asking: "asyncio.Task[RawAnswer]") -> None:
    child.signal(signal.SIGKILL)
    await child.ended()
    with contextlib.suppress(Exception):
        await asking


def text_of_answer(answer: RawAnswer) -> str:
    """What an answer says, streamed or whole."""
    assert answer.status == 200, answer.body
    if answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.data[-1] == "[DONE]"
        return "".join(
            choice["delta"].get("content") or "" for chunk in answer.chunks for choice in chunk.get("choices", ())
        )
    return str(json.loads(answer.body)["choices"][0]["message"]["content"])


async def test_a_run_whose_process_was_killed_is_resumed_by_the_other(pair: Pair) -> None:
    stream = pair.is_sqlite  # as both ways are the same to it
    gate = asyncio.Event()
    count = Call("count_write", {"label": "a"})
    pair.upstream.script(
        "m", [Reply(calls=[count]), Reply(text="never", pace=Pace(hold=Hold(gate, after=0))), Reply(text="Done.")]
    )
    async with pair.processes() as (one, other):
        first = asyncio.create_task(ask(one.url, stream))
        await pair.upstream.requests.wait(2)
        await killed(one, first)
        began = time.monotonic()
        answers = [await ask(other.url, stream) for _ in range(2)]
        held_to(TOLD_WITHIN, "a run of a killed process is answered", time.monotonic() - began)
    assert [text_of_answer(answer) for answer in answers] == ["Done.", "Done."]
    assert answers[0].body == answers[1].body
    assert pair.ran() == ["a"]
    assert len(pair.upstream.requests) == 3, "the turn that was under way is asked again, and no other"
    results = [m["content"] for m in pair.upstream.requests[2].messages if m["role"] == "tool"]
    assert results == ["counted a"]


@IN_SQLITE
async def test_answers_that_were_asked_back_are_still_counted_where_their_run_is_resumed(pair: Pair) -> None:
    gate = asyncio.Event()
    call = '<tool_call>\n{"name": "count_write", "arguments": {"label": "a"}}\n</tool_call>'
    asks = f"I will.\n{call}\nShall I?"
    held = Reply(text="never", pace=Pace(hold=Hold(gate, after=0)))
    pair.upstream.script("m", [Reply(text=asks), Reply(text=asks), held, Reply(text=asks)])
    config = yaml.safe_load(pair.file.read_text())
    config["model_list"][0]["tool_calling"] = "hermes"
    pair.file.write_text(as_yaml(config))
    async with pair.processes() as (one, other):
        first = asyncio.create_task(ask(one.url))
        await pair.upstream.requests.wait(3)
        await killed(one, first)
        answers = [await ask(other.url) for _ in range(2)]
    assert [text_of_answer(answer) for answer in answers] == ["\n\n".join([*["I will.\n\nShall I?"] * 2, asks])] * 2
    assert pair.ran() == []
    assert len(pair.upstream.requests) == 4


@IN_POSTGRES
async def test_a_call_that_may_write_and_has_no_recorded_end_is_unknown_and_not_run_again(
    pair: Pair,
) -> None:
    pair.upstream.script("m", [Reply(calls=[Call("hang_write", {"label": "a"})]), Reply(text="I see.")])
    async with pair.processes() as (one, other):
        first = asyncio.create_task(ask(one.url))
        await pair.until_ran("a")
        await killed(one, first)
        began = time.monotonic()
        await pair.upstream.requests.wait(2)
        held_to(DEAD_AFTER + 2, "a run of a killed process is taken over", time.monotonic() - began)
        assert text_of_answer(await ask(other.url)) == "I see."
    [result] = [m["content"] for m in pair.upstream.requests[1].messages if m["role"] == "tool"]
    assert "may or may not have happened" in result
    assert pair.ran() == ["a"]


@IN_SQLITE
async def test_a_call_that_only_reads_is_run_again(pair: Pair) -> None:
    pair.upstream.script("m", [Reply(calls=[Call("hang_read_only", {"label": "a"})]), Reply(text="I see.")])
    async with pair.processes() as (one, other):
        first = asyncio.create_task(ask(one.url))
        await pair.until_ran("a")
        await killed(one, first)
        pair.let_go()
        assert text_of_answer(await ask(other.url)) == "I see."
    assert pair.ran() == ["a", "a"]
    [result] = [m["content"] for m in pair.upstream.requests[1].messages if m["role"] == "tool"]
    assert result == "let go a"


@BOTH
async def test_a_key_in_flight_at_another_process_is_followed(pair: Pair, stream: bool) -> None:
    gate = asyncio.Event()
    pair.upstream.script("m", [Reply(text="one two three", pace=Pace(hold=Hold(gate, after=0)))])
    async with pair.app() as one, pair.app() as other:
        first = asyncio.create_task(ask(one, stream))
        await pair.upstream.requests.wait(1)
        second = asyncio.create_task(ask(other, stream))
        third = await ask(other, stream, messages=[{"role": "user", "content": "another"}])
        gate.set()
        answers = await asyncio.gather(first, second)
    assert third.status == 400
    assert answers[0].body == answers[1].body
    assert text_of_answer(answers[1]) == "one two three"
    assert len(pair.upstream.requests) == 1


async def test_in_the_background_an_answer_is_fetched_from_anywhere(pair: Pair) -> None:
    gate = asyncio.Event()
    pair.upstream.script("m", [Reply(text="At last.", pace=Pace(hold=Hold(gate, after=0)))])
    async with pair.app() as one, pair.app() as other, openai_client(other) as client:
        accepted = await ask(one, headers={"x-callgate-background": "true"})
        assert accepted.status == 202
        id = json.loads(accepted.body)["id"]
        running = await client.chat.completions.retrieve(id)
        assert running.choices == []
        gate.set()
        async with asyncio.timeout(30):
            while not (found := await client.chat.completions.retrieve(id)).choices:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert found.id == id
    assert found.choices[0].message.content == "At last."


@IN_SQLITE
async def test_what_was_streamed_is_fetched_in_one_piece(pair: Pair) -> None:
    pair.upstream.script("m", [Reply(text="At last.")])
    async with pair.app() as one:
        answer = await ask(one, stream=True)
        found = json.loads((await get(one, f"/v1/chat/completions/{answer.chunks[0]['id']}")).body)
    assert found["object"] == "chat.completion"
    assert found["id"] == answer.chunks[0]["id"]
    assert found["choices"][0]["message"]["content"] == "At last."


@IN_SQLITE
async def test_a_background_run_goes_on_when_its_client_leaves_and_another_with_a_key_is_stopped(pair: Pair) -> None:
    hang = Call("hang_write", {"label": "a"})
    pair.upstream.script("m", [Reply(calls=[hang]), Reply(text="Done.")])
    async with pair.app() as one:
        body = {"model": "m", "messages": ASKING, "stream": True}
        async with raw_connection(one) as connection:
            await connection.post("/v1/chat/completions", body, {**KEY, "x-callgate-background": "true"})
            await pair.until_ran("a")
        pair.let_go()
        assert text_of_answer(await ask(one, stream=True)) == "Done."


async def test_a_run_is_cancelled_from_another_process(pair: Pair) -> None:
    pair.upstream.script("m", [Reply(calls=[Call("hang_write", {"label": "a"})])])
    async with pair.app() as one, pair.app() as other:
        first = asyncio.create_task(ask(one, headers={**KEY, "x-callgate-background": "true"}))
        await pair.until_ran("a")
        id = json.loads((await first).body)["x_callgate"]["run"]
        assert (await raw_post(other, {}, path=f"/v1/runs/{id}/cancel")).status == 200
        async with asyncio.timeout(30):
            while (answer := await get(other, f"/v1/chat/completions/{id}")).status == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        again = await ask(other)
    for each in (answer, again):
        assert (each.status, json.loads(each.body)["error"]["code"]) == (409, "run_cancelled")


@IN_SQLITE
async def test_a_process_that_drains_hands_its_runs_over(pair: Pair) -> None:
    gate = asyncio.Event()
    count = Call("count_write", {"label": "a"})
    pair.upstream.script(
        "m", [Reply(calls=[count]), Reply(text="never", pace=Pace(hold=Hold(gate, after=0))), Reply(text="Done.")]
    )
    async with pair.processes() as (one, other):
        first = asyncio.create_task(ask(one.url))
        await pair.upstream.requests.wait(2)
        one.signal(signal.SIGTERM)
        await pair.upstream.requests.wait(3)
        assert text_of_answer(await ask(other.url)) == "Done."
        await one.ended()
        with contextlib.suppress(Exception):
            await first
        [run] = json.loads((await get(other.url, "/v1/runs")).body)["data"]
        odd = json.loads((await get(other.url, "/v1/runs?odd=1")).body)["data"]
        shown = json.loads((await get(other.url, f"/v1/runs/{run['id']}")).body)
    assert pair.ran() == ["a"]
    assert (run["state"], run["turns"], odd) == ("answered", 2, [])
    assert (shown["state"], len(shown["events"])) == ("answered", 7)


@IN_POSTGRES
async def test_an_id_that_no_database_takes_is_one_that_does_not_exist(pair: Pair) -> None:
    async with pair.app() as one:
        for id in ("%00", "run_a%00b", "%ED%A0%80", "%FF"):
            answers = [
                await get(one, f"/v1/chat/completions/{id}"),
                await raw_post(one, {}, path=f"/v1/runs/{id}/cancel"),
                await decide(one, id),
            ]
            assert [answer.status for answer in answers] == [404] * 3, id


@IN_SQLITE
async def test_a_run_that_ends_every_process_that_resumes_it_is_given_up(pair: Pair, tmp_path: Path) -> None:
    gate = asyncio.Event()
    pair.upstream.script("m", [Reply(text="never", pace=Pace(hold=Hold(gate, after=0)))])
    async with pair.app() as one:
        accepted = await ask(one, headers={"x-callgate-background": "true"})
        await pair.upstream.requests.wait(1)
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / FILE)) as database:
        database.execute("UPDATE runs SET epoch = ?", (MAX_RESUMES,))
        database.commit()
    async with pair.app() as other:
        async with asyncio.timeout(30):
            while (found := await get(other, f"/v1/chat/completions/{json.loads(accepted.body)['id']}")).status == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert json.loads(found.body)["error"]["code"] == "run_given_up"
    assert len(pair.upstream.requests) == 1


@needs("postgres", "module:asyncpg")
async def test_a_process_that_slept_too_long_answers_nothing_of_a_run_that_was_taken_over(
    tmp_path: Path, schema: str, upstream: Upstream, request: Any
) -> None:
    from callgate.state.cluster.postgres import migrate

    postgres = request.getfixturevalue("postgres")
    await migrate(postgres.url, schema)
    pair = Pair(tmp_path, upstream, {"ledger": {"url": postgres.url, "namespace": schema}})
    hang = Call("hang_write", {"label": "a"})
    upstream.script("m", [Reply(calls=[hang]), Reply(text="I see.")])
    async with pair.processes() as (one, other):
        first = asyncio.create_task(ask(one.url))
        await pair.until_ran("a")
        one.signal(signal.SIGSTOP)
        try:
            answer = await ask(other.url)
            pair.let_go()
        finally:
            one.signal(signal.SIGCONT)
        fenced = await first
    assert text_of_answer(answer) == "I see."
    assert (fenced.status, json.loads(fenced.body)["error"]["code"]) == (503, "run_taken_over")
    assert len(upstream.requests) == 2, "whoever woke up asked nothing more"


@ON_ALL_FACES
@IN_POSTGRES
async def test_a_stream_whose_run_was_taken_over_says_so_although_a_tool_that_writes_had_begun(
    pair: Pair, path: str
) -> None:
    hang = Call("hang_write", {"label": "a"})
    pair.upstream.script("m", [Reply(text="Wait.", calls=[hang]), Reply(text="I see.")])
    body = {**FACES[path], "stream": True}
    async with pair.processes() as (one, other):
        first = asyncio.create_task(raw_post(one.url, body, path, KEY))
        await pair.until_ran("a")
        one.signal(signal.SIGSTOP)
        try:
            answer = await raw_post(other.url, body, path, KEY)
            pair.let_go()
        finally:
            one.signal(signal.SIGCONT)
        cut = await first
        noted = await one.line(r"run_taken_over(?!_elsewhere)", within=20.0)
    assert (answer.status, cut.status) == (200, 200)
    assert b"I see." in answer.body
    ends_as_taken_over(cut, path)
    assert "failed_after_write" not in one.log, noted


@ON_ALL_FACES
@BOTH
@IN_SQLITE
async def test_who_listens_to_a_run_that_is_handed_over_by_a_process_that_drains_is_told(
    pair: Pair, path: str, stream: bool
) -> None:
    hang = Call("hang_write", {"label": "a"})
    pair.upstream.script("m", [Reply(text="Wait.", calls=[hang])])
    body = {**FACES[path], "stream": stream}
    async with pair.process() as one:
        asking = asyncio.create_task(raw_post(one.url, body, path, KEY))
        await pair.until_ran("a")
        one.signal(signal.SIGTERM)
        answer = await asking
        await one.ended()
    if stream:
        assert answer.status == 200
        ends_as_taken_over(answer, path)
    else:
        assert (answer.status, answer.headers["retry-after"]) == (529 if path == "/v1/messages" else 503, "1")
        assert b"run_taken_over" in answer.body
        assert "x-should-retry" not in answer.headers
    assert "failed_after_write" not in one.log
    assert one.log.count("run_taken_over") == 1


@IN_POSTGRES
@needs("redis-server", "module:redis")
async def test_with_redis_a_stream_is_followed_elsewhere_while_it_is_answered(pair: Pair, tmp_path: Path) -> None:
    gate = asyncio.Event()
    pair.upstream.script("m", [Reply(text="one two three four", pace=Pace(hold=Hold(gate, after=2)))])
    body = {"model": "m", "messages": ASKING, "stream": True}
    async with redis_server(tmp_path) as redis:
        config = yaml.safe_load(pair.file.read_text())
        pair.file.write_text(as_yaml({**config, "store": {"redis_url": redis}}))
        async with pair.app() as one, pair.app() as other:
            first = asyncio.create_task(ask(one, stream=True))
            await pair.upstream.requests.wait(1)
            async with raw_connection(other) as following:
                await following.post("/v1/chat/completions", body, KEY)
                assert b"one" in await following.until(b"one")
                assert not first.done()
                gate.set()
                followed = await following.answer()
            answer = await first
    assert followed.body == answer.body
    assert text_of_answer(followed) == "one two three four"


@ON_ALL_FACES
@needs("redis-server", "module:redis")
async def test_a_follower_of_a_stream_whose_process_dies_gets_an_error_and_returns_with_the_key(
    tmp_path: Path, upstream: Upstream, path: str
) -> None:
    gate = asyncio.Event()
    held = Reply(text="one two three four", pace=Pace(hold=Hold(gate, after=2)))
    upstream.script("m", [held, Reply(text="Done.")])
    body = {**FACES[path], "stream": True}
    async with redis_server(tmp_path) as redis:
        pair = Pair(tmp_path, upstream, {"data_dir": str(tmp_path / "data"), "store": {"redis_url": redis}})
        async with pair.process() as one, pair.app() as other:
            first = asyncio.create_task(raw_post(one.url, body, path, KEY))
            await upstream.requests.wait(1)
            async with raw_connection(other) as following:
                await following.post(path, body, KEY)
                await following.until(b"one")
                await killed(one, first)
                cut = await following.answer()
            again = await raw_post(other, body, path, KEY)
    ends_as_taken_over(cut, path)
    assert b"Done." in again.body


@pytest.fixture
async def sharing(pair: Pair, tmp_path: Path) -> AsyncIterator[Pair]:
    """Two that share responses too."""
    if pair.is_sqlite:
        yield pair
        return
    async with redis_server(tmp_path) as redis:
        config = yaml.safe_load(pair.file.read_text())
        pair.file.write_text(as_yaml({**config, "store": {"redis_url": redis}}))
        yield pair


async def test_a_response_in_the_background_goes_on_at_the_next_event_where_its_process_is_killed(
    sharing: Pair,
) -> None:
    pair = sharing
    gate = asyncio.Event()
    count = Call("count_write", {"label": "a"})
    held = Reply(text="one two three four", pace=Pace(hold=Hold(gate, after=2)))
    pair.upstream.script("m", [Reply(text="Let me count.", calls=[count]), held, Reply(text="Done.")])
    client: Any
    seen: list[dict[str, Any]] = []
    async with pair.process() as one, pair.app() as there, openai_client(there) as other:
        async with (
            openai_client(one.url) as client,
            await client.responses.create(model="m", input="go", background=True, stream=True) as events,
        ):
            async for event in events:
                seen.append(event.to_dict(warnings=False))
                if event.type == "response.output_text.delta" and "one" in event.delta:
                    break
        id = seen[0]["response"]["id"]
        async with await other.responses.retrieve(id, stream=True) as events:  # live, though another process makes it
            live = [event.to_dict(warnings=False) async for event in limited(events, len(seen))]
        one.signal(signal.SIGKILL)
        await one.ended()
        last = seen[-1]["sequence_number"]
        async with await other.responses.retrieve(id, stream=True, starting_after=last) as events:
            seen += [event.to_dict(warnings=False) async for event in events]
        async with await other.responses.retrieve(id, stream=True, starting_after=last) as events:
            again = [event.to_dict(warnings=False) async for event in events]
        response = await other.responses.retrieve(id)
    check_events(seen, cut_off=True)
    assert live == seen[: len(live)]
    assert again == seen[last + 1 :]
    assert response.output_text == "Let me count.Done."
    assert seen[-1]["response"]["output"] == response.to_dict()["output"]
    assert pair.ran() == ["a"]
    cut = [event["item"] for event in seen if event.get("item", {}).get("status") == "incomplete"]
    assert len(cut) == 1
    assert cut[0]["content"][0]["text"].startswith("one ")


async def limited(events: Any, count: int) -> AsyncIterator[Any]:
    async for event in events:
        yield event
        count -= 1
        if not count:
            return


@pytest.mark.parametrize("at_once", [True, False], ids=["at_once", "one_after_the_other"])
async def test_a_response_in_the_background_is_one_for_its_key_wherever_it_comes_again(
    sharing: Pair, at_once: bool
) -> None:
    pair = sharing
    gate = asyncio.Event()
    count = Call("count_write", {"label": "a"})
    pair.upstream.script("m", [Reply(calls=[count]), Reply(text="Done.", pace=Pace(hold=Hold(gate, after=0)))])
    asked: dict[str, Any] = {"model": "m", "input": "go", "background": True, "extra_headers": KEY}
    one: Any
    other: Any
    async with pair.app() as here, pair.app() as there, openai_client(here) as one, openai_client(there) as other:
        if at_once:
            begun = await asyncio.gather(*(client.responses.create(**asked) for client in (one, other, one, other)))
        else:
            begun = [await client.responses.create(**asked) for client in (one, other, one)]
        assert len({response.id for response in begun}) == 1
        assert {response.status for response in begun} <= {"queued", "in_progress"}
        with pytest.raises(openai.BadRequestError, match="same parameters"):
            await other.responses.create(**{**asked, "input": "another"})
        gate.set()
        async with await other.responses.create(**asked, stream=True) as events:
            seen = [event.to_dict(warnings=False) async for event in events]
        ended = [await client.responses.create(**asked) for client in (one, other)]
    check_events(seen)
    assert [response.to_dict() for response in ended] == [seen[-1]["response"]] * 2
    assert (ended[0].id, ended[0].output_text) == (begun[0].id, "Done.")
    assert pair.ran() == ["a"]
    assert len(pair.upstream.requests) == 2


async def test_a_chat_in_the_background_is_one_for_its_key_wherever_it_comes_again(pair: Pair) -> None:
    gate = asyncio.Event()
    pair.upstream.script("m", [Reply(text="Done.", pace=Pace(hold=Hold(gate, after=0)))])
    headers = {**KEY, "x-callgate-background": "true"}
    async with pair.app() as one, pair.app() as other, openai_client(other) as client:
        accepted = await asyncio.gather(*(ask(url, headers=headers) for url in (one, other, one, other)))
        assert {answer.status for answer in accepted} == {202}
        [id] = {json.loads(answer.body)["id"] for answer in accepted}
        streamed = asyncio.create_task(ask(other, headers=headers, stream=False))
        gate.set()
        async with asyncio.timeout(30):
            while not (found := await client.chat.completions.retrieve(id)).choices:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert json.loads((await streamed).body)["id"] == id
    assert found.choices[0].message.content == "Done."
    assert len(pair.upstream.requests) == 1


@IN_SQLITE
async def test_a_refused_response_in_the_background_leaves_its_key_free(pair: Pair) -> None:
    pair.upstream.script("m", [Reply(text="Done.")])
    client: Any
    async with pair.app() as one, openai_client(one) as client:
        asked: dict[str, Any] = {"model": "m", "background": True, "extra_headers": KEY}
        with pytest.raises(openai.BadRequestError):
            await client.responses.create(input="go", temperature="hot", **asked)
        response = await client.responses.create(input="go", **asked)
        async with await client.responses.retrieve(response.id, stream=True) as events:
            assert [event.type async for event in events][-1] == "response.completed"
        await client.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(input="go", **asked)


@IN_SQLITE
async def test_a_response_that_is_deleted_before_its_run_has_ended_is_not_found_by_its_key(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.upstream.script("m", [Reply(text="Done.")])
    ends = asyncio.Event()
    settle = DurableRun.settle

    async def settle_late(run: DurableRun, error: ChatError | None) -> None:
        await ends.wait()
        await settle(run, error)

    monkeypatch.setattr(DurableRun, "settle", settle_late)
    client: Any
    async with pair.app() as one, openai_client(one) as client:
        asked: dict[str, Any] = {"input": "go", "model": "m", "background": True, "extra_headers": KEY}
        response = await client.responses.create(**asked)
        async with await client.responses.retrieve(response.id, stream=True) as events:
            assert [event.type async for event in events][-1] == "response.completed"
        await client.responses.delete(response.id)
        again = asyncio.create_task(client.responses.create(**asked))
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)
        ends.set()
        with pytest.raises(openai.NotFoundError):
            await again


def with_approvals(pair: Pair) -> None:
    """A tool of whose calls each waits for a person, beside the others."""
    config = yaml.safe_load(pair.file.read_text())
    asks = {"kind": "python", "function": f"{tools.__name__}:count", "name": "asks", "require_approval": "always"}
    pair.file.write_text(as_yaml({**config, "tools": [*config["tools"], {**asks, "safety": "write"}]}))
    pair.upstream.script("m", [Reply(calls=[Call("asks", {"label": "a"})]), Reply(text="Done.")])


async def waiting_for_approval(url: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while not (found := json.loads((await get(url, "/v1/approvals")).body)["data"]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return dict(found[0])


async def decide(url: str, id: str, decision: str = "approve") -> RawAnswer:
    return await raw_post(url, {"decision": decision, "reason": "Not today."}, path=f"/v1/approvals/{id}")


@IN_POSTGRES
async def test_a_call_that_waited_for_approval_waits_again_where_its_run_is_carried_on_and_runs_once(
    pair: Pair,
) -> None:
    with_approvals(pair)
    async with pair.processes() as (one, other):
        first = asyncio.create_task(ask(one.url))
        before = await waiting_for_approval(other.url)
        await killed(one, first)
        again = asyncio.create_task(ask(other.url))
        await other.line("approval_waiting")
        after = await waiting_for_approval(other.url)
        assert after["id"] == before["id"], "whoever was told of it before can still decide"
        assert pair.ran() == []
        assert (await decide(other.url, after["id"])).status == 200
        assert (await decide(other.url, after["id"])).status == 409
        assert text_of_answer(await again) == "Done."
    assert pair.ran() == ["a"]
    assert len(pair.upstream.requests) == 2


async def test_a_call_that_waits_at_a_process_that_drains_waits_on_at_another_under_its_id(pair: Pair) -> None:
    with_approvals(pair)
    async with pair.app() as other:
        async with pair.app() as one:
            accepted = await ask(one, headers={**KEY, "x-callgate-background": "true"})
            before = await waiting_for_approval(one)
        after = await waiting_for_approval(other)
        assert after["id"] == before["id"]
        assert (await decide(other, after["id"])).status == 200
        assert text_of_answer(await ask(other)) == "Done."
    assert accepted.status == 202
    assert pair.ran() == ["a"]
    assert len(pair.upstream.requests) == 2


async def test_what_was_decided_for_a_process_that_has_died_holds_where_its_run_is_carried_on(pair: Pair) -> None:
    decision = "approve" if pair.is_sqlite else "deny"  # as both ways are the same to it
    with_approvals(pair)
    async with pair.processes() as (one, other):
        first = asyncio.create_task(ask(one.url))
        asked = await waiting_for_approval(other.url)
        one.signal(signal.SIGSTOP)  # so that it does not hear of it
        while (decided := await decide(other.url, asked["id"], decision)).status == 503:
            one.signal(signal.SIGCONT)  # it was stopped while it had the file for itself
            await asyncio.sleep(0.05)
            one.signal(signal.SIGSTOP)
        assert decided.status == 200
        await killed(one, first)
        assert text_of_answer(await ask(other.url)) == "Done."
        log = other.log
    assert pair.ran() == (["a"] if decision == "approve" else [])
    [result] = [m["content"] for m in pair.upstream.requests[1].messages if m["role"] == "tool"]
    assert ("counted a" if decision == "approve" else "Not today.") in result
    assert "approval_waiting" not in log, "nobody is asked again"
    assert "approval_remembered" in log


@IN_POSTGRES
async def test_where_processes_share_postgres_alone_each_has_the_responses_of_all(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = asyncio.Event()
    held = Reply(text="one two", pace=Pace(hold=Hold(gate, after=0)))
    never = Reply(text="never", pace=Pace(hold=Hold(asyncio.Event(), after=0)))
    pair.upstream.script("m", [held, Reply(text="three"), never])
    one: Any
    other: Any
    async with pair.app() as here, pair.app() as there, openai_client(here) as one, openai_client(there) as other:
        asked = {"model": "m", "input": "go", "background": True, "extra_headers": KEY}
        begun = await one.responses.create(**asked)
        again = await other.responses.create(**asked)
        assert again.id == begun.id
        assert again.status in ("queued", "in_progress")
        following = asyncio.create_task(responses_events(other, begun.id))
        gate.set()
        seen = await following
        response = await other.responses.retrieve(begun.id)
        assert response.to_dict() == (await one.responses.retrieve(begun.id)).to_dict() == seen[-1]["response"]
        assert response.output_text == "one two"
        next_one = await other.responses.create(model="m", input="on", previous_response_id=begun.id)
        assert next_one.output_text == "three"
        stopped = await one.responses.create(model="m", input="go", background=True)
        await pair.upstream.requests.wait(3)
        async with asyncio.timeout(30):
            assert (await other.responses.cancel(stopped.id)).status == "cancelled"
        assert capsys.readouterr().out.count("store_not_shared") == 1, "said by whoever comes to another"
        await other.responses.delete(begun.id)
        with pytest.raises(openai.NotFoundError):
            await one.responses.retrieve(begun.id)


async def responses_events(client: Any, id: str) -> list[dict[str, Any]]:
    async with await client.responses.retrieve(id, stream=True) as events:
        seen = [event.to_dict(warnings=False) async for event in events]
    check_events(seen)
    return seen


@pytest.mark.parametrize("label", ["a", "let go"], ids=["it_ended", "its_end_was_not_seen"])
@IN_SQLITE
async def test_a_call_that_the_client_approved_runs_once_where_its_run_is_carried_on(pair: Pair, label: str) -> None:
    gate = asyncio.Event()
    name = "count_write" if label == "a" else "hang_write"
    held = Reply(text="never", pace=Pace(hold=Hold(gate, after=0)))
    replies = [Reply(calls=[Call(name, {"label": "a"})]), *([held] if label == "a" else []), Reply(text="Done.")]
    pair.upstream.script("m", replies)
    given: dict[str, Any] = {
        "model": "m",
        "tools": [{"type": "mcp", "server_label": "callgate", "require_approval": "always"}],
    }
    one_client: Any
    client: Any
    async with pair.process() as one, pair.app() as other:
        async with openai_client(one.url) as one_client:
            first = await one_client.responses.create(input="go", **given)
            [_, asked] = first.output
            word = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
            given |= {"input": [word], "previous_response_id": first.id, "background": True, "extra_headers": KEY}
            begun = await one_client.responses.create(**given)
            await pair.until_ran("a")
            if label == "a":
                await pair.upstream.requests.wait(2)
            one.signal(signal.SIGKILL)
            await one.ended()
        async with openai_client(other) as client:
            async with await client.responses.retrieve(begun.id, stream=True) as events:
                _ = [event async for event in events]
            response = await client.responses.retrieve(begun.id)
            again = await client.responses.create(**given)
    assert (response.status, response.output_text) == ("completed", "Done.")
    assert again.to_dict(warnings=False) == response.to_dict(warnings=False)
    assert pair.ran() == ["a"]
    [result] = [m["content"] for m in pair.upstream.requests[-1].messages if m["role"] == "tool"]
    assert "counted a" in result if label == "a" else "may or may not have happened" in result


@IN_POSTGRES
async def test_of_a_key_that_comes_at_both_at_once_while_one_dies_there_is_one_answer_and_nothing_runs_twice(
    pair: Pair,
) -> None:
    gate = asyncio.Event()
    counts = [Call("count_write", {"label": str(number)}, id=f"c{number}") for number in range(3)]
    held = Reply(text="never", pace=Pace(hold=Hold(gate, after=0)))
    pair.upstream.script("m", [Reply(calls=counts), held, Reply(text="Done.")])
    async with pair.processes() as (one, other):
        asked = [asyncio.create_task(ask(url)) for url in (one.url, other.url) for _ in range(4)]
        await pair.upstream.requests.wait(2)
        database = json.loads((await get(other.url, "/health/ready")).body)
        assert database
        one.signal(signal.SIGKILL)
        await one.ended()
        gate.set()  # where the other one has it, it simply goes on
        answers = await asyncio.gather(*asked, return_exceptions=True)
        later = await asyncio.gather(*(ask(other.url) for _ in range(3)))
    bodies = {answer.body for answer in [*answers[4:], *later] if not isinstance(answer, BaseException)}
    assert {answer.status for answer in later} == {200}
    assert len({answer.body for answer in later}) == 1
    assert bodies >= {later[0].body}
    assert sorted(pair.ran()) == ["0", "1", "2"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP])
@IN_POSTGRES
async def test_a_background_response_that_moves_during_a_call_goes_on_and_repeats_no_write(
    sharing: Pair, how: signal.Signals
) -> None:
    """Drained, killed or asleep while a tool that writes runs: its end is unknown or known, and it never runs twice."""
    pair = sharing
    pair.upstream.script("m", [Reply(text="Wait.", calls=[Call("hang_write", {"label": "a"})]), Reply(text="Done.")])
    client: Any
    async with pair.process() as one, pair.app() as there, openai_client(there) as other:
        async with openai_client(one.url) as client:
            begun = await client.responses.create(model="m", input="go", background=True, extra_headers=KEY)
        await pair.until_ran("a")
        one.signal(how)
        try:
            async with await other.responses.retrieve(begun.id, stream=True) as events:
                seen = [event.to_dict(warnings=False) async for event in events]
            response = await other.responses.retrieve(begun.id)
            again = await other.responses.create(model="m", input="go", background=True, extra_headers=KEY)
        finally:
            pair.let_go()
            if how is signal.SIGSTOP:
                one.signal(signal.SIGCONT)
                await one.line("run_taken_over_elsewhere|run_fenced|taken")
        if how is signal.SIGSTOP:
            async with openai_client(one.url) as client:
                woken = await client.responses.retrieve(begun.id)
            assert woken.to_dict(warnings=False) == response.to_dict(warnings=False)
    check_events(seen, cut_off=True)
    assert response.status == "completed"
    assert again.to_dict(warnings=False) == response.to_dict(warnings=False) == seen[-1]["response"]
    assert response.output_text == "Wait.Done."
    assert pair.ran()[0] == "a"
    assert pair.ran().count("a") == 1
    [result] = [m["content"] for m in pair.upstream.requests[-1].messages if m["role"] == "tool"]
    assert "may or may not have happened" in result


@pytest.mark.parametrize(("path", "end"), [("/v1/chat/completions", b"[DONE]"), ("/v1/messages", b"message_stop")])
@IN_SQLITE
async def test_a_whole_stream_is_repeated_where_its_process_died_before_its_end_was_stored(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, path: str, end: bytes
) -> None:
    finish, ending = DatabaseRunLedger.finish, asyncio.Event()

    async def finish_or_stop_there(self: DatabaseRunLedger, *given: Any) -> None:
        if not ending.is_set():
            ending.set()
            await asyncio.Event().wait()
        await finish(self, *given)

    monkeypatch.setattr(DatabaseRunLedger, "finish", finish_or_stop_there)
    pair.upstream.script("m", [Reply(text="First"), Reply(text="Other")])
    body = {"model": "m", "messages": ASKING, "stream": True, "max_tokens": 50}
    async with pair.app() as there:
        async with pair.app(timeout_graceful_shutdown=0.1) as here, raw_connection(here) as connection:
            await connection.post(path, body, KEY)
            got = await connection.until(end)
            await ending.wait()
        again = await raw_post(there, body, path=path, headers=KEY)
    assert b"First" in got
    assert b"First" in again.body
    assert len(pair.upstream.requests) == 1


@BOTH
@IN_SQLITE
async def test_a_response_that_is_kept_says_the_same_where_its_process_died_before_the_last_event(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    put, kept = ResponseStore.put, asyncio.Event()

    async def put_and_stop_there(self: ResponseStore, owner: str, id: str, response: StoredResponse) -> None:
        await put(self, owner, id, response)
        if json.loads(bytes(response.response))["status"] == "completed" and not kept.is_set():
            kept.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(ResponseStore, "put", put_and_stop_there)
    pair.upstream.script("m", [Reply(text="First words."), Reply(text="Other words.")])
    client: Any
    async with pair.app() as there, openai_client(there) as client:
        async with pair.app() as here, openai_client(here) as one:
            asked = {"model": "m", "input": "go", "background": True, "stream": stream}
            begun = await cast("Any", one).responses.create(**asked)
            id = (await anext(aiter(begun))).response.id if stream else begun.id
            await kept.wait()
            before = await client.responses.retrieve(id)
            if stream:
                await begun.close()
        async with await client.responses.retrieve(id, stream=True) as events:
            seen = [event.to_dict(warnings=False) async for event in events]
        after = await client.responses.retrieve(id)
    check_events(seen)
    assert before.output_text == "First words."
    assert after.to_dict()["output"] == seen[-1]["response"]["output"] == before.to_dict()["output"]


@IN_SQLITE
async def test_a_follower_of_a_response_gets_the_rest_when_the_stores_are_back(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    pair.upstream.script("m", [Reply(text="one two three four", pace=Pace(hold=Hold(gate, after=2)))])
    away = iter([True] * 6)
    find, get_kept = DatabaseRunLedger.find, ResponseStore.get

    async def find_if_there(self: DatabaseRunLedger, id: str) -> StoredRun | None:
        if gate.is_set() and next(away, False):
            raise DatabaseAway("it was restarted")
        return await find(self, id)

    async def get_if_there(self: ResponseStore, owner: str, id: str) -> Any:
        if gate.is_set() and next(away, False):
            raise StoreError("it was restarted")
        return await get_kept(self, owner, id)

    client: Any
    seen: list[dict[str, Any]] = []
    async with pair.app() as here, pair.app() as there, openai_client(here) as one, openai_client(there) as client:
        begun = await cast("Any", one).responses.create(model="m", input="go", background=True)
        async with await client.responses.retrieve(begun.id, stream=True) as events:
            async for event in events:
                seen.append(event.to_dict(warnings=False))
                if event.type == "response.output_text.delta" and not gate.is_set():
                    monkeypatch.setattr(DatabaseRunLedger, "find", find_if_there)
                    monkeypatch.setattr(ResponseStore, "get", get_if_there)
                    gate.set()
    check_events(seen)
    assert next(away, None) is None, "they were away"
    assert seen[-1]["response"]["output"][0]["content"][0]["text"] == "one two three four"
