"""One run and those who follow it."""

import asyncio

import pytest
from starlette.types import Message

from callgate.conversation.errors import ChatError
from callgate.runs.followed_run import FollowedRun

pytestmark = pytest.mark.anyio


async def test_a_follower_of_a_stream_that_is_stopped_sees_its_end() -> None:
    run = FollowedRun(b"digest", outlives_server=True)
    sent: list[Message] = []
    has_all = asyncio.Event()

    async def send(message: Message) -> None:
        sent.append(message)
        if message.get("body") == b"three":
            has_all.set()

    following = asyncio.create_task(run.send_all(send))
    headers = [(b"content-type", b"text/event-stream")]
    await run.record({"type": "http.response.start", "status": 200, "headers": headers})
    for part in (b"one", b"two", b"three"):
        await run.record({"type": "http.response.body", "body": part})
    await has_all.wait()
    run.status = 0
    run.fail(ChatError(409, "This run was cancelled.", code="run_cancelled"))
    run.end()
    async with asyncio.timeout(30):
        await following
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
