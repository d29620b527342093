"""Bedrock's Converse API: what is asked and signed, and frames cut anywhere."""

import pytest

from callgate.calls.states import BrokenCall, Flaw, ReadyCall
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.models.catalogue import Catalogue
from callgate.models.resolve import ModelConfig
from callgate.models.retry import RetryPolicy
from tests.lanes.matrix import AWS
from tests.lanes.wires import frame
from tests.models.through_litellm import MARKS, turn_of
from tests.models.wire import QUICK, asking, closing, raw_provider, tool

pytestmark = MARKS

MODEL = "bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0"
WRITE = tool("fs/write", path={"type": "string"})
FRAMES = "application/vnd.amazon.eventstream"


@pytest.fixture
def model(client):
    def make(server, **more):
        entry = ModelConfig("m", {"model": MODEL, "api_base": server.url, **AWS, **more}, deadlines=QUICK)
        return Catalogue([entry], client, policy=RetryPolicy(tries=1)).model("m")

    return make


def streaming(*pieces):
    async def serve(request, wire):
        await wire.head(200, FRAMES)
        for piece in pieces:
            await wire.send(piece)

    return closing(serve)


def block(at, **said):
    return frame("contentBlockDelta", {"contentBlockIndex": at, "delta": said})


CALL = [
    frame("messageStart", {"role": "assistant"}),
    block(0, text="I write."),
    frame("contentBlockStart", {"contentBlockIndex": 1, "start": {"toolUse": {"toolUseId": "t1", "name": "fs_write"}}}),
    block(1, toolUse={"input": '{"path":'}),
    block(1, toolUse={"input": '"/a"}'}),
    frame("contentBlockStop", {"contentBlockIndex": 1}),
    frame("messageStop", {"stopReason": "tool_use"}),
    frame("metadata", {"usage": {"inputTokens": 7, "outputTokens": 5, "cacheReadInputTokens": 2}}),
]


async def test_frames_are_read_however_the_network_cuts_them(model):
    data = b"".join(CALL)
    for size in (1, 7, 64, len(data)):
        async with raw_provider(streaming(*(data[at : at + size] for at in range(0, len(data), size)))) as server:
            turn, broke, raw = await turn_of(model(server), asking(tools=[WRITE]))
        assert (turn.text, broke, raw, turn.reasons) == ("I write.", None, True, ("tool_use",))
        assert [(call.id, call.name, call.arguments) for call in turn.calls] == [("t1", "fs/write", {"path": "/a"})]
        assert (turn.usage.report["prompt_tokens"], turn.usage.report["total_tokens"]) == (9, 14)


async def test_a_stream_that_ends_before_its_stop_reason_runs_nothing_wherever_it_ends(model):
    data, stop = b"".join(CALL), len(b"".join(CALL[:6])) + len(CALL[6])
    for cut in range(len(CALL[0]) + len(CALL[1]), stop, 23):
        async with raw_provider(streaming(data[:cut])) as server:
            turn, broke, _ = await turn_of(model(server), asking(tools=[WRITE]))
        assert isinstance(broke, BrokenOff), cut
        assert not any(isinstance(call, ReadyCall) for call in turn.calls), cut


async def test_a_format_that_is_asked_for_as_a_call_leaves_tools_to_be_called(model):
    bodies = []

    async def serve(request, wire):
        bodies.append(request.body)
        await streaming(*CALL)(request, wire)

    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "properties": {}}}}
    async with raw_provider(closing(serve)) as server:
        turn, _, _ = await turn_of(model(server), asking(tools=[WRITE], response_format=wanted))
    assert bodies[0]["toolConfig"]["toolChoice"] == {"any": {}}
    assert [call.name for call in turn.calls] == ["fs/write"]


async def test_a_frame_with_a_wrong_sum_breaks_the_answer_off(model):
    broken = CALL[4][:-1] + bytes([CALL[4][-1] ^ 1])
    async with raw_provider(streaming(*CALL[:4], broken, *CALL[5:])) as server:
        turn, broke, _ = await turn_of(model(server), asking(tools=[WRITE]))
    assert broke is not None
    assert all(isinstance(call, BrokenCall) for call in turn.calls)


async def test_an_exception_inside_a_stream_fails_the_turn(model):
    throttled = frame("throttlingException", {"message": "Too many tokens"}, "exception")
    async with raw_provider(streaming(*CALL[:5], throttled)) as server:
        turn, _, _ = await turn_of(model(server), asking(tools=[WRITE]))
    assert turn.error is not None
    assert all(isinstance(call, BrokenCall) for call in turn.calls)
    async with raw_provider(streaming(throttled)) as server:
        with pytest.raises(ChatError) as caught:
            await turn_of(model(server), asking())
    assert caught.value.status == 429


async def test_input_that_the_length_limit_cut_never_runs(model):
    content = [{"toolUse": {"toolUseId": "t1", "name": "fs_write", "input": {"path": "/a"}}}]
    body = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": "max_tokens"}

    async def serve(request, wire):
        await wire.whole(body)

    async with raw_provider(closing(serve)) as server:
        turn, _, _ = await turn_of(model(server), asking(stream=False, tools=[WRITE]))
    assert [call.flaw for call in turn.calls] == [Flaw.TRUNCATED]


async def test_a_request_is_signed_and_goes_to_the_models_own_path(model):
    async with raw_provider(streaming(*CALL)) as server:
        await turn_of(model(server), asking(tools=[WRITE], max_tokens=9))
        await turn_of(model(server, api_key="bearer-of-the-operator"), asking())
    signed, with_key = server.requests
    assert signed.target == "/model/anthropic.claude-3-5-sonnet-20240620-v1%3A0/converse-stream"
    assert signed.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE/")
    assert signed.headers["x-amz-date"]
    assert "secret-example" not in str(signed.headers)
    assert signed.body["inferenceConfig"]["maxTokens"] == 9
    assert signed.body["toolConfig"]["tools"][0]["toolSpec"]["name"] == "fs_write"
    assert with_key.headers["authorization"] == "Bearer bearer-of-the-operator"
