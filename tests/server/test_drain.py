"""How the command ends: what runs may finish, nothing new comes in, and the exit code says how it went."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.clients import http_client
from tests.harness.configs import as_yaml, config_dict
from tests.harness.process import Child, child, serving_command
from tests.harness.wire import raw_connection
from tests.scripted_upstream import Call, Hold, Pace, Reply, Upstream, by_turn

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ASK = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
LIVE = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
STREAMS = 100
CUT_OFF = 4


@contextlib.asynccontextmanager
async def started(upstream: Upstream, folder: Path, **options: Any) -> AsyncIterator[tuple[Child, httpx.AsyncClient]]:
    file = folder / "config.yaml"
    file.write_text(as_yaml(config_dict(upstream.url, **options)))
    limits = httpx.Limits(max_connections=None)
    async with serving_command(file) as child, http_client(child.url, limits=limits) as client:
        yield child, client


class Streams:
    """Streams that have begun and are read to their end."""

    def __init__(self, client: httpx.AsyncClient, count: int) -> None:
        self._client = client
        self._begun = asyncio.Semaphore(0)
        self.count = count
        self.tasks = [asyncio.create_task(self._read()) for _ in range(count)]

    async def begun(self) -> None:
        async with asyncio.timeout(30):
            for _ in range(self.count):
                await self._begun.acquire()

    async def _read(self) -> str:
        lines: list[str] = []
        async with self._client.stream("POST", "/v1/chat/completions", json=ASK) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if not lines:
                    self._begun.release()
                lines.append(line)
        return [line for line in lines if line][-1]


async def test_a_hundred_streams_finish_after_sigterm_and_nothing_new_comes_in(
    upstream: Upstream, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    upstream.script("m", lambda _: Reply(text="one two three four", pace=Pace(hold=Hold(gate, after=2))))
    async with started(upstream, tmp_path) as (child, client):
        streams = Streams(client, STREAMS)
        await streams.begun()
        child.signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            while (ready := await client.get("/health/ready")).status_code == 200:
                pass
        assert ready.status_code == 503
        assert (await client.get("/health/live")).status_code == 200
        late = await client.post("/v1/chat/completions", json=ASK)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "shutting_down")
        assert late.headers["retry-after"] == "1"
        gate.set()
        ends = await asyncio.gather(*streams.tasks)
        assert ends == ["data: [DONE]"] * STREAMS
        assert await child.ended() == 0


async def test_a_request_on_its_way_over_an_idle_connection_is_answered_while_draining(
    upstream: Upstream, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    upstream.script("m", lambda _: Reply(text="one two three four", pace=Pace(hold=Hold(gate, after=2))))
    async with started(upstream, tmp_path) as (child, client), raw_connection(child.url) as idle:
        streams = Streams(client, 1)
        await streams.begun()
        await idle.send(LIVE)
        assert "connection" not in (await idle.answer()).headers
        child.signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            while (await client.get("/health/ready")).status_code == 200:
                pass
        await asyncio.sleep(0.3)  # the server has noticed, which nothing shows: it looks every tenth of a second
        await idle.post("/v1/chat/completions", ASK)
        late = await idle.answer()
        assert (late.status, late.headers["connection"], late.headers["retry-after"]) == (503, "close", "1")
        gate.set()
        assert await streams.tasks[0] == "data: [DONE]"
        assert await child.ended() == 0


async def test_a_tool_that_runs_at_sigterm_finishes_and_its_answer_arrives(upstream: Upstream, tmp_path: Path) -> None:
    gate = asyncio.Event()
    replies = [Reply(calls=[Call("add", {"a": 40, "b": 2})]), Reply(text="42", pace=Pace(hold=Hold(gate)))]
    upstream.script("m", by_turn(replies))
    async with started(upstream, tmp_path, tools=["add"]) as (child, client):
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=ASK | {"stream": False}))
        await upstream.requests.wait(2)
        child.signal(signal.SIGTERM)
        gate.set()
        answer = await asking
        assert answer.json()["choices"][0]["message"]["content"] == "42"
        assert await child.ended() == 0


async def test_requests_that_outlive_the_drain_are_cut_off_and_change_the_exit_code(
    upstream: Upstream, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    upstream.script("m", lambda _: Reply(text="never", pace=Pace(hold=Hold(gate, after=None))))
    async with started(upstream, tmp_path, server={"drain_seconds": 0.3}) as (child, client):
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=ASK | {"stream": False}))
        [asked] = await upstream.requests.wait(1)
        child.signal(signal.SIGTERM)
        answer = await asking
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert await child.ended() == CUT_OFF
        await asked.until_closed()


@pytest.mark.parametrize("tools", [(), ("get_time",)], ids=["passed", "with_our_tools"])
async def test_a_stream_that_outlives_the_drain_ends_with_an_error_event(
    upstream: Upstream, tmp_path: Path, tools: tuple[str, ...]
) -> None:
    gate = asyncio.Event()
    upstream.script("m", lambda _: Reply(text="one two three", pace=Pace(hold=Hold(gate, after=2))))
    async with started(upstream, tmp_path, tools=tools, server={"drain_seconds": 0.3}) as (child, _):
        async with raw_connection(child.url) as connection:
            await connection.post("/v1/chat/completions", ASK)
            await connection.until(b"data:")
            child.signal(signal.SIGTERM)
            answer = await connection.answer()
        assert answer.chunks[-1]["error"]["code"] == "shutting_down"
        assert answer.data[-1] == "[DONE]"
        assert await child.ended() == CUT_OFF


async def test_a_messages_request_during_the_drain_gets_anthropics_error(upstream: Upstream, tmp_path: Path) -> None:
    gate = asyncio.Event()
    upstream.script("m", lambda _: Reply(text="one two three", pace=Pace(hold=Hold(gate, after=2))))
    body = ASK | {"max_tokens": 9}
    async with started(upstream, tmp_path, server={"drain_seconds": 0.5}) as (child, client):
        async with client.stream("POST", "/v1/messages", json=body) as answer:
            lines = answer.aiter_lines()
            while "content_block_delta" not in await anext(lines):
                pass
            child.signal(signal.SIGTERM)
            async with asyncio.timeout(30):
                while (await client.get("/health/ready")).status_code == 200:
                    pass
            late = await client.post("/v1/messages", json=body)
            rest = [line async for line in lines if line]
        assert (late.status_code, late.json()["error"]["type"]) == (529, "overloaded_error")
        assert late.json()["error"]["details"] == {"error_code": "shutting_down"}
        assert rest[-2] == "event: error"
        assert '"error_code":"shutting_down"' in rest[-1]
        assert await child.ended() == CUT_OFF


async def test_a_whole_answer_cut_off_after_a_tool_that_writes_does_not_invite_a_repetition(
    upstream: Upstream, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    mail = Reply(calls=[Call("send_mail", {"to": "a", "text": "b"})])
    upstream.script("m", [mail, Reply(text="never", pace=Pace(hold=Hold(gate, after=None)))])
    options = {"tools": ("send_mail",), "server": {"drain_seconds": 0.3}}
    async with started(upstream, tmp_path, **options) as (child, client):
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=ASK | {"stream": False}))
        await upstream.requests.wait(2)
        child.signal(signal.SIGTERM)
        answer = await asking
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "failed_after_write")
        assert "again in a moment" not in error["message"]
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers


async def test_open_feeds_end_when_draining_begins(upstream: Upstream, tmp_path: Path) -> None:
    gate = asyncio.Event()
    upstream.script("m", lambda _: Reply(text="never", pace=Pace(hold=Hold(gate, after=1))))
    async with started(upstream, tmp_path, tools=["add"]) as (child, client), contextlib.AsyncExitStack() as stack:
        streams = Streams(client, 1)
        await streams.begun()
        run = (await client.get("/v1/runs")).json()["data"][0]["id"]
        feeds = [await stack.enter_async_context(client.stream("GET", "/v1/feed")) for _ in range(5)]
        lines = [feed.aiter_lines() for feed in feeds]
        async with asyncio.timeout(30):
            assert [await anext(each) for each in lines] == [": connected"] * 5
            followed = await stack.enter_async_context(
                client.stream("GET", f"/v1/runs/{run}", headers={"accept": "text/event-stream"})
            )
            child.signal(signal.SIGTERM)
            for each in (*lines, followed.aiter_lines()):
                async for _ in each:
                    pass
        gate.set()
        assert await streams.tasks[0] == "data: [DONE]"
        assert await child.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_at_once(upstream: Upstream, tmp_path: Path, number: signal.Signals) -> None:
    gate = asyncio.Event()
    upstream.script("m", lambda _: Reply(text="never", pace=Pace(hold=Hold(gate, after=2))))
    async with started(upstream, tmp_path) as (child, client):
        streams = Streams(client, 1)
        await streams.begun()
        child.signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            while (await client.get("/health/ready")).status_code == 200:
                pass
        child.signal(number)
        assert await child.ended(within=5) == 128 + number
        assert await streams.tasks[0] == "data: [DONE]", "with an error event before it"


async def test_with_nothing_to_do_it_ends_at_once_with_zero(upstream: Upstream, tmp_path: Path) -> None:
    async with started(upstream, tmp_path) as (child, client):
        await client.get("/health/ready")
        child.signal(signal.SIGTERM)
        assert await child.ended(within=5) == 0


async def test_an_unusable_data_folder_is_one_line_of_error_and_exit_code_one(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    (tmp_path / "taken").write_text("a file")
    file.write_text(as_yaml(config_dict("http://127.0.0.1:1", data_dir="taken/data")))
    async with child(["serve", "--config", str(file), "--port", "0"]) as started:
        await started.line("data_dir: .*taken is not a folder")
        assert await started.ended() == 2
        assert "Traceback" not in started.log
