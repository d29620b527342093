"""Long whole answers on litellm's lane: litellm is not given them here, and what holds or ends it is one failed request."""

import asyncio
import json

import pytest

from callgate.calls.states import Flaw
from callgate.conversation.errors import ChatError
from callgate.http.interface import Deadlines
from callgate.models.litellm_lane import answer_elsewhere
from callgate.models.litellm_lane.model import LONG_ANSWER, LiteLLMModel
from callgate.models.litellm_model import loaded
from callgate.models.resolve import LiteLLMSettings
from callgate.parsers.jobs import Job
from callgate.parsers.pool import ParserLimits, ParserPool
from tests.models.through_litellm import MARKS, turn_of
from tests.models.wire import asking, closing, completion, raw_provider, tool
from tests.parsers.rogue_child import ROGUE_JSON, RogueChild

pytestmark = MARKS

PATIENT = Deadlines(connect=5, first_byte=120, idle=120, total=240)
KEY = "sk-planted-key-000111222"
NOW = tool("now", place={"type": "string"})
DEEP = '{"a":' * 300_000
CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": DEEP}}
LONG = "long " * (LONG_ANSWER // 4)


def saying(*texts):
    """Serves whole answers one after the other, the last for ever."""
    left = list(texts)

    async def serve(request, wire):
        text = left.pop(0) if len(left) > 1 else left[0]
        if text == "deep":
            await wire.whole(completion("", "tool_calls", tool_calls=[CALL]))
        else:
            await wire.whole(completion(text, "stop"))

    return closing(serve)


@pytest.fixture
async def pool():
    made = ParserPool(ParserLimits(memory_bytes=1_000_000_000))
    yield made
    await made.close()


def at(server, pool, **more):
    arguments = {"model": "openai/m", "api_base": f"{server.url}/v1", "api_key": KEY}
    return LiteLLMModel("m", LiteLLMSettings(arguments, (KEY,)), PATIENT, parsers=pool, **more)


async def test_a_long_answer_of_a_known_format_is_read_by_our_reader_and_never_by_litellm(pool, monkeypatch):
    mapped = []
    litellm = await loaded()
    acompletion = litellm.acompletion

    async def noted(**arguments):
        answer = await acompletion(**arguments)
        mapped.append(len(answer.choices[0].message.content))
        return answer

    monkeypatch.setattr(litellm, "acompletion", noted)
    async with raw_provider(saying(LONG, "deep", "short")) as server:
        model = at(server, pool)
        turn, broken, raw = await turn_of(model, asking(stream=False))
        assert (turn.text, broken, raw) == (LONG, None, True)
        turn, broken, raw = await turn_of(model, asking(stream=False, tools=[NOW]))
        assert (turn.calls[0].flaw, broken, raw) == (Flaw.INVALID_JSON, None, True)
        turn, _, _ = await turn_of(model, asking(stream=False))
        assert turn.text == "short"
    assert mapped == [len("short")]
    assert pool.jobs == {}


async def test_a_long_answer_that_litellm_has_to_map_is_mapped_in_a_child(pool):
    sent = []
    run = pool.run

    async def listened(job, payload, source):
        sent.append(payload.data)
        return await run(job, payload, source)

    pool.run = listened
    async with raw_provider(saying(LONG, "short")) as server:
        model = at(server, pool, trusts_litellm=True)
        turn, broken, _ = await turn_of(model, asking(stream=False, tools=[NOW]))
        assert (turn.text, broken) == (LONG, None)
        turn, _, _ = await turn_of(model, asking(stream=False))
        assert turn.text == "short"
    assert pool.jobs == {"wording": 1}
    assert KEY.encode() not in sent[0]


@pytest.mark.parametrize("kind", ROGUE_JSON)
async def test_what_a_rogue_child_made_of_an_answer_is_a_bad_answer(kind):
    with pytest.raises(ChatError) as failed:
        await answer_elsewhere.mapped(RogueChild(ROGUE_JSON[kind]), "m", {"model": "m"}, [], [])
    assert failed.value.status == 502
    assert await answer_elsewhere.mapped(RogueChild(b"{}"), "m", {"model": "m"}, [], []) == {}


@pytest.mark.parametrize("job", ["end", "echo", "fail"])
async def test_a_child_that_fails_is_one_failed_request(pool, monkeypatch, job):
    monkeypatch.setattr(
        answer_elsewhere, "MAP_ANSWER", Job("wording", f"tests.parsers.odd_jobs:{job}", answer_elsewhere.COMPLETION)
    )
    async with raw_provider(saying(LONG, "short")) as server:
        model = at(server, pool, trusts_litellm=True)
        with pytest.raises(ChatError) as failed:
            async with asyncio.timeout(120), model.send(asking(stream=False)):
                pass
        assert failed.value.status == 502
        assert json.dumps(failed.value.detail)
        assert KEY not in str(failed.value.detail)
        turn, _, _ = await turn_of(model, asking(stream=False))
        assert turn.text == "short"
