"""`Idempotency-Key`: however often a request comes, it is run once, and every client is sent the same answer."""

import asyncio
import contextlib
import json
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from tests.harness import toolshed
from tests.harness.clients import openai_client
from tests.harness.configs import as_yaml, config_dict, make_config
from tests.harness.needs import needs
from tests.harness.process import serving_command as process_serving
from tests.harness.redis import redis_server
from tests.harness.server import serve
from tests.harness.wire import RawAnswer, raw_connection, raw_post
from tests.scripted_upstream import Call, Cut, Hold, Pace, Reply, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
ASKING = [{"role": "user", "content": "hello"}]
KEY = {"idempotency-key": "order-7"}


@contextlib.asynccontextmanager
async def served_with_ledger(provider: Upstream, *tools: str, **options: Any) -> AsyncIterator[str]:
    """With a ledger on a disk, unless `options` say where else they are."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {} if {"data_dir", "store"} & options.keys() else {"data_dir": folder}
        config = make_config(provider.url, tools=tools or ("get_time", "send_mail"), **kept, **options)
        async with serve(create_app(config)) as url:
            yield url


async def ask(url: str, stream: bool, headers: Any = KEY, **more: Any) -> RawAnswer:
    return await raw_post(url, {"model": "m", "messages": ASKING, "stream": stream, **more}, headers=headers)


async def until_replayed(url: str, stream: bool) -> RawAnswer:
    """The answer that was kept. Until it is on the disk, a request joins the run that is just ending."""
    async with asyncio.timeout(30):
        while True:
            answer = await ask(url, stream)
            if "idempotent-replayed" in answer.headers:
                return answer


def error_of(answer: RawAnswer) -> Any:
    return json.loads(answer.body)["error"]


@BOTH
async def test_the_same_request_again_gets_the_same_bytes_and_runs_nothing(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("send_mail", {"to": "a", "text": "b"})]), Reply(text="Sent.")])
    async with served_with_ledger(upstream) as url:
        first, second = await ask(url, stream), await until_replayed(url, stream)
    assert first.status == second.status == 200
    assert first.body == second.body
    assert second.headers["idempotent-replayed"] == "true"
    assert first.headers["x-callgate-run"] == second.headers["x-callgate-run"]
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert first.headers["content-type"] == second.headers["content-type"]
    assert len(upstream.requests) == 2


@BOTH
async def test_while_it_runs_a_second_request_joins_and_is_sent_it_from_its_beginning(
    upstream: Upstream, stream: bool
) -> None:
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="one two three four", pace=Pace(hold=Hold(gate, after=2 if stream else 0)))])
    async with served_with_ledger(upstream) as url:
        first = asyncio.create_task(ask(url, stream))
        await upstream.requests.wait(1)
        await upstream.requests[0].until_reached()
        second = asyncio.create_task(ask(url, stream))
        third = asyncio.create_task(ask(url, stream))
        gate.set()
        answers = await asyncio.gather(first, second, third)
    assert len({answer.body for answer in answers}) == 1
    assert len(upstream.requests) == 1


@BOTH
async def test_a_first_client_that_leaves_does_not_end_what_another_waits_for(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate", {"label": "x"})]), Reply(text="Done.")])
    body = {"model": "m", "messages": ASKING, "stream": stream}
    async with (
        toolshed.held() as running,
        served_with_ledger(upstream, "wait_for_gate") as url,
        raw_connection(url) as second,
    ):
        async with raw_connection(url) as first:
            await first.post("/v1/chat/completions", body, KEY)
            await running.started.wait()
            await second.post("/v1/chat/completions", body, KEY)
            async with raw_connection(url) as later:
                # once this is answered, what came before it has been handled
                await later.post("/v1/chat/completions", {})
                await later.answer()
        running.gate.set()
        answer = await second.answer()
    assert b"Done." in answer.body
    assert not running.cancelled.is_set()
    assert len(upstream.requests) == 2


@BOTH
async def test_when_all_have_left_it_is_stopped_and_not_run_again_once_a_tool_wrote(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate")])])
    body = {"model": "m", "messages": ASKING, "stream": stream}
    async with toolshed.held() as running, served_with_ledger(upstream, "wait_for_gate") as url:
        async with raw_connection(url) as connection:
            await connection.post("/v1/chat/completions", body, KEY)
            await running.started.wait()
        async with asyncio.timeout(30):
            await running.cancelled.wait()
        answer = await ask(url, stream)
    assert (answer.status, error_of(answer)["code"]) == (409, "idempotency_key_interrupted")
    assert answer.headers["x-should-retry"] == "false"
    assert len(upstream.requests) == 1


@BOTH
async def test_when_all_have_left_before_a_tool_wrote_it_may_be_run_again(upstream: Upstream, stream: bool) -> None:
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="never", pace=Pace(hold=Hold(gate, after=0))), Reply(text="second try")])
    async with served_with_ledger(upstream) as url:
        async with raw_connection(url) as connection:
            await connection.post("/v1/chat/completions", {"model": "m", "messages": ASKING, "stream": stream}, KEY)
            await upstream.requests.wait(1)
            await upstream.requests[0].until_reached()
        await upstream.requests[0].until_closed()
        answer = await ask(url, stream)
    assert b"second" in answer.body
    assert len(upstream.requests) == 2


@BOTH
async def test_another_body_under_the_same_key_is_refused(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="hi")])
    async with served_with_ledger(upstream) as url, openai_client(url) as client:
        await ask(url, stream)
        with pytest.raises(openai.BadRequestError, match="same parameters") as caught:
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "other"}], extra_headers={"Idempotency-Key": "order-7"}
            )
    assert caught.value.code == "idempotency_key_reused"
    assert len(upstream.requests) == 1


@BOTH
async def test_a_failure_that_may_pass_is_not_kept(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(status=500), Reply(text="better")])
    async with served_with_ledger(upstream, upstream={"retries": 0}) as url:
        assert (await ask(url, stream)).status >= 500
        answer = await ask(url, stream)
    assert b"better" in answer.body


@BOTH
async def test_a_failure_after_a_tool_wrote_is_kept_and_not_run_again(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("send_mail", {"to": "a", "text": "b"})]), Reply(status=500)])
    async with served_with_ledger(upstream, upstream={"retries": 0}) as url:
        first, second = await ask(url, stream), await ask(url, stream)
    assert first.body == second.body
    assert first.status == second.status
    assert len(upstream.requests) == 2


async def test_a_stream_that_broke_off_before_anything_was_written_may_be_asked_again(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="Once upon a time there was", fault=Cut(after=4)), Reply(text="whole")])
    async with served_with_ledger(upstream) as url:
        assert "error" in (await ask(url, True)).chunks[-1]
        assert (await ask(url, True)).data[-1] == "[DONE]"
    assert len(upstream.requests) == 2


@BOTH
async def test_a_request_that_is_wrong_is_refused_alike_and_keeps_no_key(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="hi")])
    async with served_with_ledger(upstream) as url:
        assert (await ask(url, stream, temperature="hot")).status == 400
        assert (await raw_post(url, {"model": "nobody", "messages": ASKING}, headers=KEY)).status == 404
        assert (await ask(url, stream)).status == 200


async def test_keys_are_each_callers_own(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="for alice"), Reply(text="for bob")])
    keys = [{"name": name, "hash": hash_key(f"cg-{name}")} for name in ("alice", "bob")]
    async with served_with_ledger(upstream, auth="keys", keys=keys) as url:
        answers = [
            await ask(url, False, {**KEY, "authorization": f"Bearer cg-{who}"}) for who in ("alice", "bob", "alice")
        ]
    texts = [json.loads(answer.body)["choices"][0]["message"]["content"] for answer in answers]
    assert texts == ["for alice", "for bob", "for alice"]


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_a_key_that_is_none_is_refused(upstream: Upstream, key: str) -> None:
    async with served_with_ledger(upstream) as url:
        answer = await ask(url, False, {"idempotency-key": key})
    assert answer.status == 400


def config_file(folder: Path, provider: Upstream, *tools: str, **options: Any) -> Path:
    file = folder / "config.yaml"
    file.write_text(as_yaml(config_dict(provider.url, tools=tools, **options)))
    return file


@BOTH
async def test_a_request_whose_process_was_killed_before_any_tool_began_is_run_again(
    upstream: Upstream, stream: bool, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="late", pace=Pace(hold=Hold(gate, after=0))), Reply(text="now")])
    file = config_file(tmp_path, upstream, "send_mail", data_dir=str(tmp_path / "data"))
    async with process_serving(file) as child:
        first = asyncio.create_task(ask(child.url, stream))
        await upstream.requests.wait(1)
        child.signal(signal.SIGKILL)
        with contextlib.suppress(Exception):
            await first
    async with process_serving(file) as child:
        answer = await ask(child.url, stream)
    assert b"now" in answer.body


async def test_an_answer_is_given_again_after_a_restart(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", [Reply(text="once")])
    data = str(tmp_path / "data")
    async with served_with_ledger(upstream, data_dir=data) as url:
        first = await ask(url, False)
    async with served_with_ledger(upstream, data_dir=data) as url:
        second = await ask(url, False)
    assert first.body == second.body
    assert len(upstream.requests) == 1


@BOTH
@pytest.mark.parametrize("kept_in", ["memory", pytest.param("redis", marks=needs("redis-server", "module:redis"))])
async def test_a_key_that_no_ledger_keeps_is_refused_where_a_tool_that_writes_is_on_offer(
    upstream: Upstream, stream: bool, kept_in: str, tmp_path: Path
) -> None:
    upstream.script("m", [Reply(text="nothing was changed")])
    async with contextlib.AsyncExitStack() as stack:
        options: dict[str, Any] = {"data_dir": None}
        if kept_in == "redis":
            options["store"] = {"redis_url": await stack.enter_async_context(redis_server(tmp_path))}
        url = await stack.enter_async_context(served_with_ledger(upstream, **options))
        refused = await ask(url, stream)
        narrowed = [await ask(url, stream, headers={**KEY, "x-callgate-tools": "get_time"}) for _ in range(2)]
    assert (refused.status, error_of(refused)["code"]) == (400, "idempotency_not_durable")
    assert "`data_dir` or `ledger.url`" in error_of(refused)["message"]
    assert [answer.status for answer in narrowed] == [200, 200]
    assert "kept in memory alone" in narrowed[0].headers["x-callgate-warning"]
    assert b"kept in memory alone" in narrowed[0].body
    assert narrowed[0].body == narrowed[1].body
    assert len(upstream.requests) == 1


async def test_an_answer_that_its_key_has_no_room_for_any_more_is_refused_and_not_made_again(
    upstream: Upstream,
) -> None:
    upstream.script("m", lambda _: Reply(text="x" * 2000))
    with tempfile.TemporaryDirectory() as folder:
        store = {"answer_bytes": 3000}
        async with served_with_ledger(upstream, data_dir=folder, store=store) as url:
            for number in range(3):
                key = {"idempotency-key": f"order-{number}"}
                assert (await ask(url, stream=False, headers=key)).status == 200
            oldest = {"idempotency-key": "order-0"}
            async with asyncio.timeout(30):
                while (again := await ask(url, stream=False, headers=oldest)).status == 200:
                    pass  # the last answer is not on the disk yet
    assert (again.status, error_of(again)["code"]) == (409, "answer_not_kept")
    assert len(upstream.requests) == 3
