"""Long requests are worded in a child process: the same words, no secret among what goes there, and no short one goes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callgate.conversation.errors import ChatError
from callgate.conversation.ports import ModelRequest
from callgate.models import litellm_model
from callgate.models.resolve import ModelConfig, litellm_settings, provider_of
from callgate.models.translated import bedrock, claude, claude_elsewhere, cohere, gemini, openai_shaped, wording
from callgate.models.translated.bounds import LARGE, is_large
from callgate.models.translated.translation import Fields
from callgate.models.translated.wording import Elsewhere
from callgate.parsers.jobs import Job, Payload
from callgate.parsers.pool import ParserLimits, ParserPool
from callgate.policy.litellm_settings import without_settings
from tests.parsers.reading_here import ReadingHere
from tests.parsers.rogue_child import ROGUE_JSON, RogueChild

ENTRIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "claude": (claude, {"model": "anthropic/claude-sonnet-4-5", "extra_body": {"more": "planted"}}),
    "claude with a token": (claude, {"model": "anthropic/claude-sonnet-4-5", "api_key": "sk-ant-oat-planted-000"}),
    "claude with betas": (
        claude,
        {"model": "anthropic/claude-sonnet-4-5", "extra_headers": {"anthropic-beta": "context-1m-2025-08-07"}},
    ),
    "gemini": (gemini, {"model": "gemini/gemini-2.5-flash"}),
    "cohere": (cohere, {"model": "cohere_chat/command-a"}),
    "groq": (openai_shaped, {"model": "groq/llama-3.3-70b", "temperature": 0.25}),
    "mistral": (openai_shaped, {"model": "mistral/mistral-large-latest", "extra_body": {"more": "planted"}}),
    "bedrock": (
        bedrock,
        {
            "model": "bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0",
            "aws_access_key_id": "AKIAplanted",
            "aws_secret_access_key": "planted-secret",
            "aws_region_name": "us-east-1",
        },
    ),
    "bedrock mantle": (
        openai_shaped,
        {
            "model": "bedrock_mantle/openai.gpt-oss-120b",
            "aws_access_key_id": "AKIAplanted",
            "aws_secret_access_key": "planted-secret",
            "aws_region_name": "eu-west-1",
            "api_key": None,
        },
    ),
    "copilot": (openai_shaped, {"model": "github_copilot/gpt-4.1", "api_key": None}),
    "claude on azure": (
        claude_elsewhere,
        {"model": "azure_ai/claude-sonnet-4-5", "api_base": "https://planted.services.ai.azure.com/anthropic"},
    ),
}
TOOL = {
    "name": "a tool!",
    "description": "d",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "a tool!", "arguments": '{"q": "x"}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "y"},
    {"role": "user", "content": "go on"},
]


@pytest.fixture(autouse=True)
def copilot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sign in at GitHub Copilot, as litellm keeps it."""
    monkeypatch.setenv("GITHUB_COPILOT_TOKEN_DIR", str(tmp_path))
    token = {"token": "planted-copilot-token", "expires_at": 2**40, "endpoints": {"api": "https://api.example.com"}}
    (tmp_path / "api-key.json").write_text(json.dumps(token))
    (tmp_path / "access-token").write_text("planted-access-token")


def asked(**more: Any) -> ModelRequest:
    return ModelRequest(
        messages=json.loads(json.dumps(MESSAGES)),
        tools=[msgspec.Raw(json.dumps({"type": "function", "function": TOOL}).encode())],
        params=without_settings({"temperature": 0.5, "max_tokens": msgspec.Raw(b"700")}),
        **more,
    )


def entry_of(name: str) -> tuple[Any, Any, str]:
    module, params = ENTRIES[name]
    settings = litellm_settings(ModelConfig("m", {"api_key": "sk-planted-key-000111222", **params}))
    return module, settings, provider_of(settings.arguments) or ""


@pytest.mark.anyio
@pytest.mark.parametrize("name", ENTRIES)
async def test_a_request_is_worded_elsewhere_as_it_is_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    class Listening(ReadingHere):
        async def run(self, job: Job[Any], payload: Payload, source: str) -> Any:
            sent.append(payload.data)
            return await asyncio.to_thread(super().run_at_once, job, payload, source)

    litellm = await litellm_model.loaded()
    module, settings, provider = entry_of(name)
    elsewhere = Elsewhere(Listening(), "m", provider, settings)
    monkeypatch.setattr("tempfile.tempdir", None)
    here = await module.translate(litellm, settings, asked(), Fields(provider, settings), None)
    there = await module.translate(litellm, settings, asked(), Fields(provider, settings), elsewhere)
    assert len(sent) == 1
    assert b"planted" not in sent[0]
    assert there.url == here.url
    assert json.loads(there.body) == json.loads(here.body)
    varying = {"authorization", "x-amz-date"} if name.startswith("bedrock") else {"x-request-id"}
    headers = [{key.lower(): value for key, value in made.headers.items()} for made in (here, there)]
    assert {key for key in {*headers[0], *headers[1]} if headers[0].get(key) != headers[1].get(key)} <= varying
    assert there.continued is None


@asynccontextmanager
async def wording_pool(**limits: Any) -> AsyncIterator[ParserPool]:
    pool = ParserPool(ParserLimits(**limits))
    try:
        yield pool
    finally:
        await pool.close()


@pytest.mark.anyio
async def test_a_child_words_a_request_and_says_why_where_it_cannot() -> None:
    litellm = await litellm_model.loaded()
    module, settings, provider = entry_of("claude")
    fields = Fields(provider, settings)
    async with wording_pool() as pool:
        elsewhere = Elsewhere(pool, "m", provider, settings)
        here = await module.translate(litellm, settings, asked(), fields, None)
        there = await module.translate(litellm, settings, asked(), fields, elsewhere)
        assert json.loads(there.body) == json.loads(here.body)
        for signed_in in ("copilot", "bedrock mantle"):
            shaped, own, named = entry_of(signed_in)
            long_way = Elsewhere(pool, "m", named, own)
            bodies = [await shaped.translate(litellm, own, asked(), Fields(named, own), at) for at in (None, long_way)]
            assert json.loads(bodies[0].body) == json.loads(bodies[1].body)
            assert pool.jobs["wording"] > 1
        odd = msgspec.structs.replace(asked(), messages=[{"role": "nobody", "content": 7}])
        errors = []
        for place in (None, elsewhere):
            with pytest.raises(Exception) as refused:
                await module.translate(litellm, settings, odd, fields, place)
            errors.append(refused.value)
        assert isinstance(errors[1], ChatError)
        assert errors[1].message == litellm_model.from_request(errors[0]).message
        assert len(pool.process_ids()) == 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("job", "status"), [("end", 400), ("echo", 400), ("recurse_in_c", 400), ("eat_memory", 400)], ids=str
)
async def test_a_child_that_fails_is_one_refused_request(
    job: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    litellm = await litellm_model.loaded()
    module, settings, provider = entry_of("gemini")
    monkeypatch.setattr(wording, "WORD_REQUEST", Job("wording", f"tests.parsers.odd_jobs:{job}", wording.WORDED))
    async with wording_pool(memory_bytes=300_000_000) as pool:
        elsewhere = Elsewhere(pool, "m", provider, settings)
        with pytest.raises(ChatError) as refused:
            await module.translate(litellm, settings, asked(), Fields(provider, settings), elsewhere)
        assert refused.value.status == status
        assert "planted" not in str(refused.value.detail)
        here = await module.translate(litellm, settings, asked(), Fields(provider, settings), None)
        assert here.body


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [*ROGUE_JSON, "too many within"])
async def test_what_a_child_answers_is_counted_before_it_is_decoded(kind: str) -> None:
    within = b'{"worded":' + b"[{}," * 250_000 + b"0" + b"]" * 250_000 + b"}"
    litellm = await litellm_model.loaded()
    module, settings, provider = entry_of("groq")
    elsewhere = Elsewhere(RogueChild(ROGUE_JSON.get(kind, within)), "m", provider, settings)
    with pytest.raises(ChatError) as refused:
        await module.translate(litellm, settings, asked(), Fields(provider, settings), elsewhere)
    assert refused.value.code == "request_not_worded"
    assert (refused.value.detail == "TooMuch") == kind.startswith("too")
    here = await module.translate(litellm, settings, asked(), Fields(provider, settings), None)
    assert here.body


@pytest.mark.anyio
async def test_too_many_long_requests_at_once_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    litellm = await litellm_model.loaded()
    module, settings, provider = entry_of("cohere")
    monkeypatch.setattr("callgate.parsers.pool.WAITING", 0)
    monkeypatch.setattr(wording, "WORD_REQUEST", Job("wording", "tests.parsers.odd_jobs:spin", wording.WORDED))
    async with wording_pool(processes=1) as pool:
        elsewhere = Elsewhere(pool, "m", provider, settings)
        first = asyncio.create_task(module.translate(litellm, settings, asked(), Fields(provider, settings), elsewhere))
        while not pool.jobs:  # noqa: ASYNC110 - the task begins within the next turns of the loop
            await asyncio.sleep(0)
        with pytest.raises(ChatError) as refused:
            await module.translate(litellm, settings, asked(), Fields(provider, settings), elsewhere)
        assert (refused.value.status, refused.value.code, refused.value.retry_after) == (503, "over_capacity", 1.0)
        first.cancel()
        await asyncio.wait([first])


def test_what_signs_in_like_the_messages_has_their_roles_and_an_image() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/long"}}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": "long"}]}] * 50
    outlined = openai_shaped.outlines([*messages, {"role": "tool", "content": "long"}, {"role": "user"}])
    assert [message["role"] for message in outlined] == ["user", "tool", "user"]
    assert "image_url" in json.dumps(outlined)
    assert "long" not in json.dumps(outlined)
    assert "image_url" not in json.dumps(openai_shaped.outlines([{"role": "user", "content": "image_url"}]))


def test_what_is_long_is_known_by_its_bytes() -> None:
    assert not is_large(asked())
    text = "x" * LARGE
    assert is_large(ModelRequest(messages=[{"role": "user", "content": text}]))
    assert is_large(ModelRequest(messages=[], tools=[msgspec.Raw(json.dumps(text).encode())]))
