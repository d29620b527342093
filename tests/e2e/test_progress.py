"""What a client is sent while tools run: heartbeats, and progress in the dialect it asks for."""

import asyncio
from typing import Any

import openai
import pytest

from callgate.access.keys import hash_key
from callgate.calls.states import ReadyCall
from callgate.chat.progress import progress_in
from callgate.conversation.events import CallProgress
from tests.harness import toolshed
from tests.harness.clients import openai_client, streamed, whole
from tests.harness.served import served
from tests.harness.wire import RawAnswer, raw_connection, raw_post
from tests.scripted_upstream import Call, Hold, Pace, Reply, Upstream

pytestmark = pytest.mark.anyio

ASKING = [{"role": "user", "content": "hello"}]
TURNS = [
    Reply(reasoning="Hm.", calls=[Call("get_time", id="c1"), Call("send_mail", {"to": "a", "text": "b"}, id="c2")]),
    Reply(reasoning="Ah.", text="Noon."),
]


TOOLS = ("get_time", "send_mail")


async def stream_chat(url: str, dialect: str | None, *, by_header: bool = True, key: str = "") -> RawAnswer:
    body: dict[str, Any] = {"model": "m", "messages": ASKING, "stream": True}
    headers = {"x-callgate-events": dialect} if by_header and dialect is not None else {}
    headers |= {"authorization": f"Bearer {key}"} if key else {}
    if not by_header:
        body["metadata"] = {"tool_events": dialect}
    return await raw_post(url, body, headers=headers)


def text_of(answer: RawAnswer) -> str:
    return "".join(c["delta"].get("content") or "" for chunk in answer.chunks for c in chunk["choices"])


def is_strict(answer: RawAnswer) -> bool:
    """Nothing but chunks with one id, in plain data lines, and one end."""
    lines = [line for line in answer.body.decode().split("\n") if line]
    return (
        all(line.startswith("data: ") for line in lines)
        and answer.data[-1] == "[DONE]"
        and len({(c["id"], c["created"], c["model"], c["object"]) for c in answer.chunks}) == 1
        and answer.chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    )


async def test_off_sends_no_events_about_tools(upstream: Upstream) -> None:
    upstream.script("m", TURNS)
    async with served(upstream, *TOOLS) as url:
        answer = await stream_chat(url, "off")
    assert is_strict(answer)
    assert b"get_time" not in answer.body.split(b'"finish_reason":"stop"')[0]
    assert text_of(answer) == "Noon."


@pytest.mark.parametrize("by_header", [True, False], ids=["header", "metadata"])
async def test_x_puts_the_events_on_empty_chunks(upstream: Upstream, by_header: bool) -> None:
    upstream.script("m", TURNS)
    async with served(upstream, *TOOLS) as url:
        answer = await stream_chat(url, "x", by_header=by_header)
    assert is_strict(answer)
    updates = [chunk for chunk in answer.chunks if "phase" in chunk.get("x_callgate", {})]
    assert all(chunk["choices"][0]["delta"] == {"content": ""} for chunk in updates)
    events = [chunk["x_callgate"] for chunk in updates]
    assert {(e["call"], e["name"], e["phase"]) for e in events} == {
        ("c1", "get_time", "start"),
        ("c1", "get_time", "done"),
        ("c2", "send_mail", "start"),
        ("c2", "send_mail", "error"),
    }
    assert {e["turn"] for e in events} == {0}
    assert {e["run"] for e in events} == {answer.headers["x-callgate-run"]}
    assert all(("ms" in e) == (e["phase"] in {"done", "error"}) for e in events)
    assert text_of(answer) == "Noon."


async def test_openwebui_gets_its_status_line(upstream: Upstream) -> None:
    upstream.script("m", TURNS)
    async with served(upstream, *TOOLS) as url:
        answer = await stream_chat(url, "openwebui")
    assert is_strict(answer)
    events = [chunk["event"] for chunk in answer.chunks if "event" in chunk]
    assert {event["type"] for event in events} == {"status"}
    assert [event["data"]["done"] for event in events].count(True) == 2
    assert {event["data"]["description"] for event in events} == {
        "Running get_time …",
        "get_time done",
        "Running send_mail …",
        "send_mail failed",
    }
    assert text_of(answer) == "Noon."


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_reasoning_is_a_line_for_each_call_in_both_modes(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", TURNS)
    async with served(upstream, *TOOLS) as url, openai_client(url) as client:
        headers = {"X-Callgate-Events": "reasoning"}
        answer = await (streamed if stream else whole)(client, model="m", messages=ASKING, extra_headers=headers)
    message = answer.choices[0].message
    assert message.content == "Noon."
    assert (message.model_extra or {})["reasoning_content"] == (
        "Hm.\n\nRunning get_time …\n\nRunning send_mail …\n\nAh."
    )


async def test_an_unknown_dialect_is_refused(upstream: Upstream) -> None:
    async with served(upstream, *TOOLS) as url, openai_client(url) as client:
        with pytest.raises(openai.BadRequestError, match="off, x, reasoning, openwebui"):
            await whole(client, model="m", messages=ASKING, extra_headers={"X-Callgate-Events": "loud"})


async def test_a_silent_stream_is_kept_alive_with_empty_chunks(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate")]), Reply(text="Done.")])
    clocks = {"first_chunk_seconds": 0.05, "heartbeat_seconds": 0.05}
    async with (
        toolshed.held() as running,
        served(upstream, "wait_for_gate", server=clocks) as url,
        raw_connection(url) as connection,
    ):
        await connection.post("/v1/chat/completions", {"model": "m", "messages": ASKING, "stream": True})
        await running.started.wait()
        await connection.until(b'"delta":{"content":""}', times=3)
        running.gate.set()
        answer = await connection.answer()
    assert is_strict(answer)
    assert text_of(answer) == "Done."


async def test_the_status_waits_for_the_first_content_but_not_for_ever(upstream: Upstream) -> None:
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="late", pace=Pace(hold=Hold(gate, after=None)))])
    async with served(upstream, *TOOLS, server={"first_chunk_seconds": 0.05}) as url, raw_connection(url) as connection:
        await connection.post("/v1/chat/completions", {"model": "m", "messages": ASKING, "stream": True})
        opened = await connection.until(b'"content":""')
        assert opened.startswith(b"HTTP/1.1 200")
        gate.set()
        answer = await connection.answer()
    assert text_of(answer) == "late"


async def test_an_error_before_the_first_content_still_has_its_status(upstream: Upstream) -> None:
    upstream.script("m", [Reply(status=429)])
    async with served(upstream, *TOOLS, upstream={"retries": 0}) as url:
        answer = await stream_chat(url, "off")
    assert answer.status == 429
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("tool", "arguments", "retry"), [("send_mail", {"to": "a", "text": "b"}, "false"), ("get_time", {}, None)]
)
async def test_an_error_after_a_tool_that_writes_asks_clients_not_to_retry(
    upstream: Upstream, stream: bool, tool: str, arguments: dict[str, Any], retry: str | None
) -> None:
    upstream.script("m", [Reply(calls=[Call(tool, arguments)]), Reply(status=500)])
    async with served(upstream, *TOOLS, upstream={"retries": 0}) as url:
        answer = await raw_post(url, {"model": "m", "messages": ASKING, "stream": stream})
    if stream:
        # The turn's first chunk has opened the stream: the header went before the tool did.
        assert answer.data[-1] == "[DONE]"
        assert "error" in answer.chunks[-1]
    else:
        assert answer.status == (400 if retry else 502)
        assert answer.headers.get("x-should-retry") == retry


async def test_where_a_request_does_not_say_its_key_does_and_then_the_model(upstream: Upstream) -> None:
    upstream.script("m", TURNS * 4)
    keys = [
        {"name": "chat", "hash": hash_key("cg-chat"), "events": "openwebui"},
        {"name": "script", "hash": hash_key("cg-script")},
        {"name": "quiet", "hash": hash_key("cg-quiet"), "events": "off"},
    ]
    async with served(upstream, *TOOLS, auth="keys", keys=keys, entry={"events": "x"}) as url:
        shown = {name: (await stream_chat(url, None, key=f"cg-{name}")).body for name in ("chat", "script", "quiet")}
        asked_for = (await stream_chat(url, "off", key="cg-chat")).body
    assert b'"event":{"type":"status"' in shown["chat"]
    assert b'"phase":"start"' in shown["script"]
    assert not any(mark in body for body in (shown["quiet"], asked_for) for mark in (b'"phase"', b'"status"'))


@pytest.mark.parametrize(
    ("message", "fraction", "shown"),
    [
        ("half way", 0.5, "copy: half way ▰▰▰▰▰▱▱▱▱▱ 50%"),
        ("", 0.04, "copy: ▱▱▱▱▱▱▱▱▱▱ 4%"),
        ("", 7.0, "copy: ▰▰▰▰▰▰▰▰▰▰ 100%"),
        ("reading", None, "copy: reading"),
        ("", None, "copy: working …"),
    ],
)
def test_progress_without_a_message_shows_how_far_it_is(message: str, fraction: float | None, shown: str) -> None:
    progress = progress_in("openwebui", "run_1")
    assert progress is not None
    fields = progress.fields(CallProgress(0, ReadyCall("c1", "copy", {}, "{}"), message, fraction))
    assert fields is not None
    assert fields["event"]["data"] == {"description": shown, "done": False}
