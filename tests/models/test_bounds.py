"""What a request may ask of the libraries that word it: schemas that explode, and what only has an address."""

import asyncio
import base64
import json
from typing import Any

import pytest
import structlog

from callgate.conversation.call_assembly import MAX_CALLS
from callgate.conversation.errors import AnswerTooLarge, ChatError
from callgate.conversation.ports import ModelRequest
from callgate.conversation.readable_content import LEFT_OUT
from callgate.http.interface import Deadlines
from callgate.models import media
from callgate.models.catalogue import Catalogue
from callgate.models.media import CannotFetch
from callgate.models.resolve import ModelConfig
from callgate.models.retry import RetryPolicy
from callgate.models.translated import bedrock, claude, gemini
from callgate.parsers.pool import ParserPool
from tests.lanes.matrix import AWS, VERTEX
from tests.models.through_litellm import MARKS, turn_of
from tests.models.wire import QUICK, asking, raw_provider, tool
from tests.schemas.test_expansion import doubling

pytestmark = MARKS

PROVIDERS: dict[str, dict[str, Any]] = {
    "gemini": {"model": "gemini/gemini-2.5-flash", "api_key": "k"},
    "vertex": {"model": "vertex_ai/gemini-2.5-flash", **VERTEX},
    "claude": {"model": "anthropic/claude-sonnet-4-5", "api_key": "k"},
    "bedrock": {"model": "bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0", **AWS},
    "cohere": {"model": "cohere/command-r", "api_key": "k"},
    "mistral": {"model": "mistral/mistral-large-latest", "api_key": "k"},
    "litellm": {"model": "nlp_cloud/m"},
}
PATIENT = Deadlines(connect=5, first_byte=120, idle=120, total=240)
BOMB = tool("bomb", x=doubling(30))


@pytest.fixture
def model(client):
    def make(server, provider, fetch=None):
        entry = ModelConfig("m", {**PROVIDERS[provider], "api_base": server.url}, deadlines=QUICK)
        return Catalogue([entry], client, policy=RetryPolicy(tries=1), fetch=fetch).model("m")

    return make


async def refused(model, request):
    with pytest.raises(ChatError) as caught:
        async with asyncio.timeout(120), model.send(request):
            pass
    return caught.value


async def never(request, wire):
    await wire.whole({"error": {"message": "seen"}}, 418)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_schema_that_explodes_is_refused_without_an_upstream_request(model, provider):
    schema = BOMB["function"]["parameters"]
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    async with raw_provider(never) as server:
        for request, param in [
            (asking(tools=[tool("fine"), BOMB]), "tools[1]"),
            (asking(response_format=wanted), "response_format"),
            (asking(functions=[BOMB["function"]]), "functions"),
        ]:
            error = await refused(model(server, provider), request)
            assert (error.status, error.code, error.param) == (400, "schema_too_large", param)
            assert "/properties/x" in error.message
    assert server.requests == []


def parts(address):
    return [
        {"type": "image_url", "image_url": {"url": address}},
        {"type": "image_url", "image_url": address},
        {"type": "file", "file": {"file_id": address}},
        {"type": "file", "file": {"file_data": address}},
        {"type": "input_audio", "input_audio": {"data": address, "format": "wav"}},
        {"type": "video_url", "video_url": {"url": address}},
        {"type": "document", "source": {"type": "url", "url": address}},
        {"type": "image", "source": {"type": "url", "url": address}},
        {"type": "tool_result", "content": [{"type": "image_url", "image_url": {"url": address}}]},
    ]


@pytest.mark.parametrize("provider", [name for name in PROVIDERS if name != "mistral"])
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
async def test_nothing_but_the_given_fetcher_goes_to_an_address_in_any_place(model, provider, role):
    async with raw_provider(never) as server, raw_provider(never) as elsewhere:
        places = [{"role": role, "content": [part]} for part in parts(f"{elsewhere.url}/a.png")]
        places.append({"role": role, "content": "look", "images": [f"{elsewhere.url}/a.png"]})
        for place in places:
            error = await refused(model(server, provider), ModelRequest([{"role": "user", "content": "hi"}, place]))
            assert (error.status, str(error.param).partition("[")[0]) == (400, "messages"), place
    assert (elsewhere.requests, server.requests) == ([], [])


CALLED = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


TAKING_RESULTS = [name for name in PROVIDERS if name not in ("mistral", "litellm")]
"""Not mistral, which is sent addresses, nor the one on the lane of litellm, which takes no results of tools."""


@pytest.mark.parametrize("provider", TAKING_RESULTS)
@pytest.mark.parametrize("number", range(9))
async def test_what_cannot_be_had_of_a_tools_result_or_of_an_older_message_is_left_out(model, provider, number):
    """Refused, it would be refused in every later turn."""
    async with raw_provider(never) as server, raw_provider(never) as elsewhere:
        part = parts(f"{elsewhere.url}/a.png")[number]
        result: dict[str, Any] = {"role": "tool", "tool_call_id": "c", "content": [part]}
        conversations: list[list[dict[str, Any]]] = [
            [{"role": "user", "content": "hi"}, CALLED, result],
            [
                {"role": "user", "content": "hi"},
                CALLED,
                {**result, "content": "a"},
                {"role": "user", "content": [part]},
            ],
            [
                {"role": "user", "content": [part]},
                {"role": "assistant", "content": "ok"},
                {"role": "user", "content": "go on"},
            ],
        ]
        for messages in conversations:
            before = len(server.requests)
            await refused(model(server, provider), ModelRequest(messages))
            [request] = server.requests[before:]
            assert elsewhere.url not in str(request.body)
            assert LEFT_OUT in str(request.body)
    assert elsewhere.requests == []


async def test_of_many_addresses_in_a_history_the_newest_are_fetched(model):
    fetched = []

    async def fetch(url, most):
        fetched.append(url)
        return b"\x89PNG", "image/png"

    def message(at):
        return {"role": "user", "content": [parts(f"https://a.example/{at}")[0]]}

    async with raw_provider(never) as server:
        await refused(model(server, "gemini", fetch), ModelRequest([message(at) for at in range(media.MOST + 4)]))
    assert sorted(fetched) == sorted(f"https://a.example/{at}" for at in range(4, media.MOST + 4))
    assert str(server.requests[0].body).count(LEFT_OUT) == 4


async def test_an_address_is_fetched_once_and_sent_as_what_is_there(model):
    fetched = []

    async def fetch(url, most):
        fetched.append((url, most))
        return b"\x89PNG", "image/png"

    part = {"type": "image_url", "image_url": {"url": "https://pictures.example/a.png"}}
    text = {"type": "text", "text": "see https://pictures.example/b.png"}
    async with raw_provider(never) as server:
        await refused(model(server, "gemini", fetch), ModelRequest([{"role": "user", "content": [part, part, text]}]))
    assert [url for url, _ in fetched] == ["https://pictures.example/a.png"]
    sent = server.requests[0].body["contents"][0]["parts"]
    assert sum(base64.b64encode(b"\x89PNG").decode() in str(each) for each in sent) == 2


async def test_where_addresses_travel_they_travel(model):
    part = {"type": "image_url", "image_url": {"url": "https://pictures.example/a.png"}}
    async with raw_provider(never) as server:
        await refused(model(server, "mistral"), ModelRequest([{"role": "user", "content": [part]}]))
    assert "https://pictures.example/a.png" in str(server.requests[0].body)


async def test_addresses_are_bounded_in_number_size_and_time(model, monkeypatch):
    async def fetch(url, most):
        if most < 60:
            raise CannotFetch(f"it is longer than {most} bytes")
        if url.endswith("slow"):
            await asyncio.Event().wait()
        return b"x" * 60, "image/png"

    def asked(*urls):
        return ModelRequest([{"role": "user", "content": [parts(url)[0] for url in urls]}])

    async with raw_provider(never) as server:
        deployment = model(server, "gemini", fetch)
        many = await refused(deployment, asked(*(f"https://a.example/{at}" for at in range(media.MOST + 1))))
        monkeypatch.setattr(media, "ALL_BYTES", 100)
        large = await refused(deployment, asked("https://a.example/1", "https://a.example/2"))
        monkeypatch.setattr(media, "SECONDS", 0.05)
        slow = await refused(deployment, asked("https://a.example/slow"))
    assert {(error.status, error.param) for error in (many, large, slow)} == {(400, "messages")}
    assert ["more than" in many.message, "longer" in large.message, "did not come" in slow.message] == [True] * 3
    assert server.requests == []


async def test_litellm_itself_cannot_fetch(model):
    from litellm.litellm_core_utils.prompt_templates.image_handling import (
        async_convert_url_to_base64,
        convert_url_to_base64,
    )

    async with raw_provider(never) as server:
        await refused(model(server, "gemini"), asking())
        with pytest.raises(Exception, match="not fetched by litellm"):
            convert_url_to_base64(f"{server.url}/b.png")
        with pytest.raises(Exception, match="not fetched by litellm"):
            await async_convert_url_to_base64(f"{server.url}/b.png")
    assert len(server.requests) == 1


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def history(arguments: str, count: int) -> list[Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    calls = [{**call, "id": f"c{at}"} for at in range(count)]
    results = [{"role": "tool", "tool_call_id": f"c{at}", "content": "ok"} for at in range(count)]
    return [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": calls}, *results]


def long_ones() -> dict[str, ModelRequest]:
    return {
        "many tools": asking(
            tools=[tool(f"t{at}", **{f"f{it}": {"type": "string"} for it in range(40)}) for at in range(300)]
        ),
        "deep arguments": ModelRequest(history(deep(90), 900)),
        "long arguments": ModelRequest(history(json.dumps({"a": "x" * 9_500_000}), 1)),
        "large numbers": asking(more=[1e308] * 90_000),
        "many values of an enum": asking(
            tools=[tool("t", x={"type": "string", "enum": [f"v{at}" for at in range(90_000)]})]
        ),
    }


async def test_a_long_request_is_worded_in_a_child_while_a_short_one_is_answered(client):
    """A short one never goes there; for all long ones, to all providers, there are as many children as may be."""
    long = long_ones()
    pool = ParserPool()
    with structlog.testing.capture_logs() as lines:
        try:
            async with raw_provider(never) as server:
                for provider in ("claude", "gemini"):
                    entry = ModelConfig("m", {**PROVIDERS[provider], "api_base": server.url}, deadlines=PATIENT)
                    policy = RetryPolicy(tries=1)
                    model = Catalogue([entry], client, policy=policy, parsers=pool).model("m")
                    assert "status 418" in (await refused(model, asking())).message
                    before = pool.jobs["wording"]
                    for name, request in long.items():
                        task = asyncio.create_task(refused(model, request))
                        short = await refused(model, asking())
                        assert "status 418" in short.message, name
                        assert "status 418" in (await task).message, name
                    assert pool.jobs["wording"] == before + len(long)
            assert 1 <= len(pool.process_ids()) <= 2
        finally:
            await pool.close()
    assert [line for line in lines if line["event"] == "parser_failed"] == []


CALLS = range(MAX_CALLS + 1)
ANSWERS = {
    "gemini": {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": {}}} for _ in CALLS]}}]},
    "claude": {"content": [{"type": "tool_use", "id": f"c{at}", "name": "f", "input": {}} for at in CALLS]},
    "bedrock": {
        "output": {
            "message": {"content": [{"toolUse": {"toolUseId": f"c{at}", "name": "f", "input": {}}} for at in CALLS]}
        }
    },
}


@pytest.mark.parametrize("provider", ANSWERS)
async def test_an_answer_of_more_calls_than_are_taken_is_not_given_to_litellm(model, provider, monkeypatch):
    def never_read(*_):
        raise AssertionError("litellm would read it")

    async def answering(request, wire):
        await wire.whole(ANSWERS[provider])

    for body in (bedrock.BedrockMessage, claude.MessageReader, gemini.GeminiMessage):
        monkeypatch.setattr(body, "_read_message", never_read)
    async with raw_provider(answering) as server:
        with pytest.raises(AnswerTooLarge, match=f"{MAX_CALLS} calls"):
            await turn_of(model(server, provider), asking(stream=False))
