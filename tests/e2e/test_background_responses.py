"""Background mode: responses that are made though nobody waits, followed from any event, cancelled, kept."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from tests.chaos import tools
from tests.harness import toolshed
from tests.harness.clients import http_client, openai_client
from tests.harness.configs import as_yaml, config_dict, make_config
from tests.harness.needs import needs
from tests.harness.process import serving_command
from tests.harness.redis import redis_server
from tests.harness.responses import check_events
from tests.harness.server import serve
from tests.scripted_upstream import Call, Hold, Pace, Reply, Upstream

pytestmark = pytest.mark.anyio

GATE = "tests.harness.toolshed:wait_for_gate"


async def ended(client: Any, id: str) -> Any:
    """The response once it is over; followed, so that nothing is polled."""
    async with await client.responses.retrieve(id, stream=True) as events:
        seen = [event.to_dict(warnings=False) async for event in events]
    check_events(seen)
    return await client.responses.retrieve(id)


async def test_a_response_is_queued_then_made_and_can_be_gone_on_from(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text=f"answer {request.turn}"))
    async with serve(create_app(make_config(upstream.url))) as url:
        client: Any
        async with openai_client(url) as client:
            begun = await client.responses.create(model="m", input="one", background=True)
            assert (begun.status, begun.background, begun.output) in (("queued", True, []), ("in_progress", True, []))
            response = await ended(client, begun.id)
            assert (response.id, response.status, response.output_text) == (begun.id, "completed", "answer 0")
            assert response.to_dict()["background"] is True
            await client.responses.create(model="m", input="two", previous_response_id=begun.id)
    assert [each["content"] for each in upstream.requests[-1].body["messages"]] == ["one", "answer 0", "two"]


async def test_a_client_that_leaves_changes_nothing_and_comes_back_where_it_was(
    upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="one two three four five six", pace=Pace(hold=Hold(gate, after=2)))])
    async with serve(create_app(make_config(upstream.url))) as url:
        client: Any
        async with openai_client(url) as client:
            seen: list[Any] = []
            async with await client.responses.create(model="m", input="go", background=True, stream=True) as events:
                async for event in events:
                    seen.append(event.to_dict(warnings=False))
                    if event.type == "response.output_text.delta":
                        break
            id = seen[0]["response"]["id"]
            assert (await client.responses.retrieve(id)).status == "in_progress"
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(model="m", input="two", previous_response_id=id)
            gate.set()
            last = seen[-1]["sequence_number"]
            async with await client.responses.retrieve(id, stream=True, starting_after=last) as events:
                seen += [event.to_dict(warnings=False) async for event in events]
            # and once more, now that it is over
            async with await client.responses.retrieve(id, stream=True, starting_after=last) as events:
                again = [event.to_dict(warnings=False) async for event in events]
    check_events(seen)
    assert "request_failed" not in capsys.readouterr().out
    assert caught.value.param == "previous_response_id"
    assert again == seen[last + 1 :]
    assert seen[-1]["response"]["output"][0]["content"][0]["text"] == "one two three four five six"


async def test_a_response_is_cancelled_with_the_tools_that_it_runs(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="Wait.", calls=[Call("wait_for_gate")])])
    tool = {"kind": "python", "function": GATE, "safety": "read_only"}
    async with toolshed.held() as running, serve(create_app(make_config(upstream.url, tools=[tool]))) as url:
        client: Any
        async with openai_client(url) as client:
            begun = await client.responses.create(model="m", input="go", background=True)
            async with asyncio.timeout(30):
                await running.started.wait()
            cancelled = await client.responses.cancel(begun.id)
            assert (cancelled.id, cancelled.status) == (begun.id, "cancelled")
            async with asyncio.timeout(30):
                await running.cancelled.wait()
            assert (await client.responses.cancel(begun.id)).status == "cancelled"
            assert (await client.responses.retrieve(begun.id)).status == "cancelled"


async def test_one_that_fails_is_failed_when_it_is_retrieved(upstream: Upstream) -> None:
    upstream.script("m", [Reply(status=400, body={"error": {"message": "too hot", "code": "bad_temperature"}})])
    async with serve(create_app(make_config(upstream.url))) as url:
        client: Any
        async with openai_client(url) as client:
            begun = await client.responses.create(model="m", input="go", background=True)
            with pytest.raises(openai.APIError, match="too hot"):  # the event before the last
                await ended(client, begun.id)
            response = await client.responses.retrieve(begun.id)
    assert response.status == "failed"
    assert "too hot" in response.error.message


@pytest.mark.parametrize("stream", [True, False])
async def test_a_key_with_one_request_at_a_time_has_one_in_the_background(upstream: Upstream, stream: bool) -> None:
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="done", pace=Pace(hold=Hold(gate, after=0))), Reply(text="next")])
    keys = [{"name": name, "hash": hash_key(f"cg-{name}"), "parallel": 1} for name in ("alice", "bob")]
    config = make_config(upstream.url, auth="keys", keys=keys)
    async with serve(create_app(config)) as url, http_client(url) as stranger:
        client: Any
        async with openai_client(url, api_key="cg-alice") as client:
            begun = await client.responses.create(model="m", input="go", background=True)
            with pytest.raises(openai.RateLimitError):
                await client.responses.create(model="m", input="more", background=stream, stream=stream)
            for method, path in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel")):
                bob = {"authorization": "Bearer cg-bob"}
                refused = await stranger.request(method, f"/v1/responses/{begun.id}{path}", headers=bob)
                assert (refused.status_code, refused.json()["error"]["code"]) == (404, "response_not_found")
            gate.set()
            assert (await ended(client, begun.id)).output_text == "done"
            assert (await client.responses.create(model="m", input="more")).output_text == "next"


async def test_what_is_refused_is_refused_at_once(upstream: Upstream) -> None:
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as client:
        for body, param in (
            ({"input": "x", "store": False}, "background"),
            ({"input": "x", "temperature": "hot"}, "temperature"),
        ):
            answer = await client.post("/v1/responses", json={"model": "m", "background": True, **body})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        unknown = await client.post("/v1/responses", json={"model": "nobody", "input": "x", "background": True})
        assert unknown.status_code == 404


async def test_only_what_was_made_in_the_background_is_streamed_again_or_cancelled(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as client:
        id = (await client.post("/v1/responses", json={"model": "m", "input": "x"})).json()["id"]
        answers = [
            await client.get(f"/v1/responses/{id}?stream=true"),
            await client.get(f"/v1/responses/{id}?starting_after=3"),
            await client.post(f"/v1/responses/{id}/cancel"),
        ]
    assert [answer.status_code for answer in answers] == [400, 400, 400]


COUNTS = {"kind": "python", "function": f"{tools.__name__}:count", "safety": "write"}


@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_response_whose_process_ends_is_resumed_by_another(
    upstream: Upstream, tmp_path: Path, is_killed: bool
) -> None:
    gate = asyncio.Event()
    held = Reply(text="never", pace=Pace(hold=Hold(gate, after=1)))
    upstream.script("m", [Reply(calls=[Call("count", {"label": "a"})]), held, Reply(text="At last.")])
    marks = tmp_path / "marks"
    config = tmp_path / "config.yaml"
    config.write_text(
        as_yaml(
            config_dict(upstream.url, tools=[COUNTS], data_dir=str(tmp_path / "data"), server={"drain_seconds": 0.1})
        )
    )
    client: Any
    async with (
        serving_command(config, environment={tools.MARKS: str(marks)}) as child,
        openai_client(child.url) as client,
    ):
        begun = await client.responses.create(model="m", input="go", background=True)
        await upstream.requests.wait(2)
        child.signal(signal.SIGKILL if is_killed else signal.SIGTERM)
        await child.ended()
    async with serving_command(config) as child, openai_client(child.url) as client:
        async with asyncio.timeout(30):
            while (response := await client.responses.retrieve(begun.id)).status != "completed":
                assert response.status in ("queued", "in_progress")
                await asyncio.sleep(0.02)
        seen = [event.to_dict(warnings=False) async for event in await client.responses.retrieve(begun.id, stream=True)]
    check_events(seen, cut_off=True)
    assert (response.id, response.output_text, response.created_at) == (begun.id, "At last.", begun.created_at)
    assert seen[-1]["response"]["output"] == response.to_dict()["output"]
    assert marks.read_text().splitlines() == ["a"]


@needs("env:CALLGATE_CHAOS")
async def test_a_summary_is_not_written_again_by_the_process_that_resumes(upstream: Upstream, tmp_path: Path) -> None:
    held = Reply(text="never", pace=Pace(hold=Hold(asyncio.Event(), after=1)))
    upstream.script("m", [Reply(text="In short."), held, Reply(text="At last.")])
    config = tmp_path / "config.yaml"
    options: Any = {"data_dir": str(tmp_path / "data"), "server": {"drain_seconds": 0.1}}
    config.write_text(as_yaml(config_dict(upstream.url, **options)))
    talk: Any = [
        {"role": "user", "content": "A long line. " * 600},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "go"},
    ]
    management: Any = [{"type": "compaction", "compact_threshold": 1000}]
    client: Any
    async with serving_command(config) as child, openai_client(child.url) as client:
        begun = await client.responses.create(model="m", input=talk, background=True, context_management=management)
        await upstream.requests.wait(2)
        child.signal(signal.SIGKILL)
        await child.ended()
    async with serving_command(config) as child, openai_client(child.url) as client:
        async with asyncio.timeout(30):
            while (response := await client.responses.retrieve(begun.id)).status != "completed":
                assert response.status in ("queued", "in_progress")
                await asyncio.sleep(0.02)
        seen = [event.to_dict(warnings=False) async for event in await client.responses.retrieve(begun.id, stream=True)]
    check_events(seen, cut_off=True)
    assert [item.type for item in response.output] == ["compaction", "message"]
    assert response.output_text == "At last."
    assert upstream.requests[-1].messages == upstream.requests[1].messages
    assert len(upstream.requests) == 3


async def test_a_resumed_response_is_cancelled_where_it_runs(upstream: Upstream, tmp_path: Path) -> None:
    gate = asyncio.Event()
    held = Reply(text="one two", pace=Pace(hold=Hold(gate, after=1)))
    upstream.script("m", [held, held])
    config = make_config(upstream.url, data_dir=str(tmp_path))
    client: Any
    async with serve(create_app(config)) as url, openai_client(url) as client:
        begun = await client.responses.create(model="m", input="go", background=True)
        await upstream.requests.wait(1)
    async with serve(create_app(config)) as url, openai_client(url) as client:
        await upstream.requests.wait(2)
        assert (await client.responses.cancel(begun.id)).status == "cancelled"
        assert (await client.responses.retrieve(begun.id)).status == "cancelled"


async def test_one_that_is_cancelled_as_a_run_is_cancelled_as_a_response(upstream: Upstream, tmp_path: Path) -> None:
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="one two", pace=Pace(hold=Hold(gate, after=1)))])
    client: Any
    async with (
        serve(create_app(make_config(upstream.url, data_dir=str(tmp_path)))) as url,
        openai_client(url) as client,
        http_client(url) as plain,
    ):
        begun = await client.responses.create(model="m", input="go", background=True)
        await upstream.requests.wait(1)
        await plain.post(f"/v1/runs/run_{begun.id.removeprefix('resp_')}/cancel")
        async with asyncio.timeout(30):
            while (response := await client.responses.retrieve(begun.id)).status != "cancelled":
                assert response.status in ("queued", "in_progress")
                await asyncio.sleep(0.02)


async def test_the_same_key_again_begins_no_second_one(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="once")])
    async with serve(create_app(make_config(upstream.url))) as url:
        client: Any
        async with openai_client(url) as client:
            asked = {"model": "m", "input": "go", "background": True, "extra_headers": {"idempotency-key": "k"}}
            begun = await client.responses.create(**asked)
            first = await ended(client, begun.id)
            again = await client.responses.create(**asked)
    assert (again.id, again.status, first.output_text) == (begun.id, "completed", "once")
    assert len(upstream.requests) == 1


@needs("redis-server", "module:redis")
async def test_one_that_was_cut_off_with_its_process_has_failed_where_no_runs_are_kept(
    upstream: Upstream, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="never", pace=Pace(hold=Hold(gate, after=1)))])
    async with redis_server(tmp_path) as redis:
        options: dict[str, Any] = {"store": {"redis_url": redis}}
        client: Any
        async with serve(create_app(make_config(upstream.url, **options))) as url, openai_client(url) as client:
            begun = await client.responses.create(model="m", input="go", background=True)
            async with await client.responses.retrieve(begun.id, stream=True) as events:
                async for event in events:
                    if event.type == "response.in_progress":
                        break
        async with serve(create_app(make_config(upstream.url, **options))) as url, openai_client(url) as client:
            response = await client.responses.retrieve(begun.id)
            assert (response.id, response.status) == (begun.id, "failed")


@needs("redis-server", "module:redis")
async def test_without_a_ledger_another_process_does_not_take_it_for_failed(upstream: Upstream, tmp_path: Path) -> None:
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="one two", pace=Pace(hold=Hold(gate, after=1)))])
    async with redis_server(tmp_path) as redis:
        config = make_config(upstream.url, store={"redis_url": redis})
        async with serve(create_app(config)) as here, serve(create_app(config)) as there:
            one: Any
            other: Any
            async with openai_client(here) as one, openai_client(there) as other:
                begun = await one.responses.create(model="m", input="go", background=True)
                async with await one.responses.retrieve(begun.id, stream=True) as events:
                    async for event in events:
                        if event.type == "response.in_progress":
                            break
                assert (await other.responses.retrieve(begun.id)).status == "in_progress"
                with pytest.raises(openai.ConflictError) as caught:
                    await other.with_options(max_retries=0).responses.cancel(begun.id)
                assert caught.value.code == "response_elsewhere"
                async with await other.responses.retrieve(begun.id, stream=True) as events:
                    gate.set()
                    seen = [(event.type, event.response.output_text) async for event in events]
                assert seen == [("response.completed", "one two")]
                assert (await other.responses.retrieve(begun.id)).output_text == "one two"


@needs("redis-server", "module:redis")
async def test_without_a_ledger_it_has_failed_when_its_time_is_over(upstream: Upstream, tmp_path: Path) -> None:
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="never", pace=Pace(hold=Hold(gate, after=1)))])
    async with redis_server(tmp_path) as redis:
        options: dict[str, Any] = {"store": {"redis_url": redis}}
        short = make_config(upstream.url, limits={"request_seconds": 0.5}, **options)
        async with serve(create_app(make_config(upstream.url, **options))) as here, serve(create_app(short)) as there:
            one: Any
            other: Any
            async with openai_client(here) as one, openai_client(there) as other:
                begun = await one.responses.create(model="m", input="go", background=True)
                async with await other.responses.retrieve(begun.id, stream=True) as events:
                    seen = [event.type async for event in events]
                assert seen == ["response.failed"]


async def test_another_process_shows_follows_and_cancels_it(upstream: Upstream, tmp_path: Path) -> None:
    gate = asyncio.Event()
    upstream.script(
        "m", [Reply(text="one two", pace=Pace(hold=Hold(gate, after=1))), Reply(calls=[Call("wait_for_gate")])]
    )
    tool = {"kind": "python", "function": GATE, "safety": "read_only"}
    async with toolshed.held() as running:
        config = make_config(upstream.url, tools=[tool], data_dir=str(tmp_path))
        async with serve(create_app(config)) as here, serve(create_app(config)) as there:
            one: Any
            other: Any
            async with openai_client(here) as one, openai_client(there) as other:
                begun = await one.responses.create(model="m", input="go", background=True)
                async with await one.responses.retrieve(begun.id, stream=True) as events:
                    async for event in events:
                        if event.type == "response.in_progress":
                            break
                assert (await other.responses.retrieve(begun.id)).status in ("queued", "in_progress")
                gate.set()
                assert (await ended(other, begun.id)).output_text == "one two"
                second = await one.responses.create(model="m", input="go", background=True)
                async with asyncio.timeout(30):
                    await running.started.wait()
                assert (await other.responses.cancel(second.id)).status == "cancelled"
                async with asyncio.timeout(30):
                    await running.cancelled.wait()
