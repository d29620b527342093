"""What a request was made of goes as soon as it is over: rings of objects would keep every body until a collection."""

import gc
from collections import Counter

import pytest

from callgate.application import create_app
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import raw_post
from tests.scripted_upstream import Call, Reply, Upstream
from tests.scripted_upstream.records import RequestRecord

pytestmark = pytest.mark.anyio

REQUESTS = 5


def answers(record: RequestRecord) -> Reply:
    calls = any("call" in str(message["content"]) for message in record.messages) and record.turn == 0
    return Reply(calls=[Call("echo", {"text": "x"}), Call("no_such_tool", {})]) if calls else Reply(text="words")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(("tools", "text"), [((), "hello"), (("echo",), "hello"), (("echo",), "call")])
async def test_a_request_leaves_nothing_to_collect(
    upstream: Upstream, tools: tuple[str, ...], text: str, stream: bool
) -> None:
    upstream.script("m", answers)
    question = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream}
    async with serve(create_app(make_config(upstream.url, tools=tools))) as url:
        await raw_post(url, question)  # what is made once is made now
        for _ in range(10):  # what other tests left may take several rounds
            if not gc.collect():
                break
        gc.disable()
        try:
            for _ in range(REQUESTS):
                assert (await raw_post(url, question)).status == 200
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = Counter(type(it).__qualname__ for it in gc.garbage if type(it).__module__.startswith("callgate."))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert not {name: count for name, count in left.items() if count >= REQUESTS}
