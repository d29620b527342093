import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Header, Response

from callgate.http.client import HttpClient
from callgate.models import litellm_model
from callgate.models.inspection import Found, look, whereabouts
from callgate.models.resolve import ModelConfig
from tests.harness.server import serve

pytestmark = pytest.mark.anyio

KEY = "sk-right-key-1234"


def provider(*, models: Any, asked: list[dict[str, Any]] | None = None) -> FastAPI:
    """A provider with a list of models (or a status instead of one) that answers one token."""
    app = FastAPI()

    @app.get("/v1/models")
    async def listed(authorization: Annotated[str, Header()] = "") -> Any:
        if authorization != f"Bearer {KEY}":
            return Response(status_code=401)
        if isinstance(models, int):
            return Response(status_code=models)
        return {"data": [{"id": name} for name in models]}

    @app.post("/v1/chat/completions")
    async def chat(body: dict[str, Any]) -> Any:
        if asked is not None:
            asked.append(body)
        message = {"role": "assistant", "content": "h"}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    return app


def entry(url: str, key: str = KEY, model: str = "openai/m", **more: Any) -> ModelConfig:
    return ModelConfig("m", {"model": model, "api_base": f"{url}/v1", "api_key": key}, **more)


@contextlib.asynccontextmanager
async def looking_at(app: FastAPI, **options: Any) -> AsyncIterator[Found]:
    client = HttpClient()
    async with serve(app) as url:
        yield await look(entry(url, **options), client)
        await client.close()


async def test_a_provider_that_lists_the_model_is_well():
    async with looking_at(provider(models=["m", "n"])) as found:
        assert (found.verdict, found.detail) == ("ok", "reached; the key is taken")
        assert found.seconds > 0


async def test_a_wrong_key_is_reported_without_its_value():
    async with looking_at(provider(models=["m"]), key="sk-wrong-key-tail") as found:
        assert found.verdict == "fail"
        assert "refuses the key (401)" in found.detail
        assert "tail" not in found.detail


async def test_a_model_that_is_not_listed_is_a_warning():
    async with looking_at(provider(models=["n"])) as found:
        assert (found.verdict, found.detail) == ("warn", "reached, but the provider does not list 'm'")


async def test_a_wildcard_needs_no_model_in_the_list():
    async with looking_at(provider(models=["n"]), model="openai/*") as found:
        assert found.verdict == "ok"


async def test_where_there_is_no_list_one_token_is_asked_for():
    asked: list[dict[str, Any]] = []
    async with looking_at(provider(models=404, asked=asked)) as found:
        assert (found.verdict, found.detail) == ("ok", "answered")
    assert [body["max_tokens"] for body in asked] == [1]


@pytest.mark.leaves("asyncio_", "ThreadPoolExecutor", why="litellm's own pool")
async def test_through_litellm_one_token_is_asked_for():
    asked: list[dict[str, Any]] = []
    async with looking_at(provider(models=["m"], asked=asked), lane="litellm") as found:
        assert (found.verdict, found.detail) == ("ok", "answered")
    await litellm_model.close()
    assert [body["max_tokens"] for body in asked] == [1]


async def test_a_wildcard_without_a_list_is_not_asked_at_all():
    asked: list[dict[str, Any]] = []
    async with looking_at(provider(models=404, asked=asked), model="openai/*") as found:
        assert (found.verdict, asked) == ("warn", [])


async def test_a_provider_that_is_not_there_fails_the_look():
    client = HttpClient()
    found = await look(entry("http://127.0.0.1:1"), client)
    await client.close()
    assert found.verdict == "fail"
    assert "cannot be reached" in found.detail


async def test_the_built_in_model_is_always_well():
    client = HttpClient()
    demo = ModelConfig("demo", {"model": "demo/demo"})
    assert (await look(demo, client)).verdict == "ok"
    assert (await whereabouts(demo)).lane == "demo"
    await client.close()


async def test_the_host_is_reported_without_credentials():
    place = await whereabouts(entry("http://user:secret@llm.example:8080"))
    assert (place.lane, place.host) == ("direct", "llm.example:8080")
    through = await whereabouts(entry("http://u:p@llm.example", lane="litellm"))
    assert (through.lane, through.host) == ("litellm", "llm.example")


ANSWERS: Mapping[str, tuple[int, str, Mapping[str, str], str]] = {
    "a mistake": (400, '{"error": {"message": "no"}}', {}, "correct the model's entry"),
    "a wrong key": (401, '{"error": {"message": "no"}}', {}, "put a key"),
    "no such model": (404, '{"error": {"message": "there is no model m"}}', {}, "name a model"),
    "no such page": (
        404,
        "<h1>404</h1>",
        {},
        "correct `litellm_params.api_base`: nothing of the kind answers at http://",
    ),
    "another method": (405, '{"detail": "Method Not Allowed"}', {}, "correct `litellm_params.api_base`"),
    "a redirection": (301, "", {"location": "https://llm.example/v1?key=1"}, "correct `litellm_params.api_base`"),
    "a page": (200, "<h1>Welcome</h1>", {"content-type": "text/html"}, "correct `litellm_params.api_base`"),
    "an empty body": (200, "", {}, "correct `litellm_params.api_base`"),
    "a compressed body": (200, "x", {"content-encoding": "gzip"}, "have what stands between"),
    "nothing paid": (429, '{"error": {"code": "insufficient_quota"}}', {}, "the provider wants to be paid"),
    "too many requests": (429, '{"error": {"message": "no"}}', {}, "wait, or raise the limit"),
    "an error of its own": (500, '{"error": {"message": "no"}}', {}, "try again later"),
}
"""What a provider answers, and what is to be done then."""


@pytest.mark.parametrize("lists", [False, True], ids=["asked", "listed"])
@pytest.mark.parametrize("answer", ANSWERS)
async def test_what_a_provider_refuses_is_not_taken_for_a_network_that_is_down(answer, lists):
    status, text, headers, todo = ANSWERS[answer]
    app = FastAPI()

    async def refuse() -> Response:
        return Response(text, status, headers, "application/json" if "content-type" not in headers else None)

    app.post("/v1/chat/completions")(refuse)
    if lists:
        app.get("/v1/models")(refuse)
    async with looking_at(app) as found:
        assert found.verdict == "fail"
        assert (found.todo or "").startswith(todo), (found.detail, found.todo)
        if answer == "a redirection":
            assert "llm.example/v1" in found.detail
            assert "key=1" not in found.detail


async def test_a_refused_key_is_reported_with_what_the_provider_says_of_it():
    app = FastAPI()

    @app.get("/v1/models")
    async def listed() -> Response:
        return Response('{"error": {"message": "Project p may not use it"}}', 403, media_type="application/json")

    async with looking_at(app) as found:
        assert "refuses the key (403): Project p may not use it" in found.detail


@pytest.mark.parametrize("model", ["openai/m", "anthropic/claude-sonnet-4-5"])
async def test_a_server_on_this_machine_that_is_not_there_has_to_be_started(model):
    client = HttpClient()
    found = await look(entry("http://127.0.0.1:1", model=model), client)
    await client.close()
    assert (found.todo or "").startswith("start the server")
