"""Names and what answers to them; the lanes that entries take without litellm being asked."""

import subprocess
import sys

import pytest
from pydantic import SecretStr

from callgate.conversation.attempts import Attempts
from callgate.conversation.errors import ChatError
from callgate.conversation.events import TextDelta
from callgate.http.client import HttpClient
from callgate.models import resolve
from callgate.models.catalogue import Catalogue
from callgate.models.resolve import LaneError, ModelConfig
from tests.models.wire import asking, completion, raw_provider

pytestmark = pytest.mark.anyio


def entry(name, model="openai/real", base="http://127.0.0.1:9/v1", **more):
    params = {"model": model, "api_base": base, **more.pop("params", {})}
    return ModelConfig(name, params, **more)


@pytest.fixture
async def catalogue():
    made = []

    def make(*entries, **more):
        made.append(Catalogue(entries, HttpClient(), **more))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def text_from(catalogue, name, *, stream=False):
    async with catalogue.model(name).send(asking(stream=stream)) as answer:
        return "".join([event.text async for batch in answer for event in batch if isinstance(event, TextDelta)])


def answering(text):
    async def serve(request, wire):
        await wire.whole(completion(text))

    return serve


def failing(status):
    async def serve(request, wire):
        await wire.whole({"error": {"message": "x"}}, status)

    return serve


async def test_a_name_reaches_its_deployment_under_the_providers_name(catalogue):
    async with raw_provider(answering("one")) as server:
        found = catalogue(entry("mine", base=f"{server.url}/v1/", params={"api_key": SecretStr("k-123456")}))
        assert await text_from(found, "mine") == "one"
    assert server.requests[0].body["model"] == "real"
    assert server.requests[0].target == "/v1/chat/completions"
    assert server.requests[0].headers["authorization"] == "Bearer k-123456"


async def test_an_unknown_name_is_a_404_with_a_close_match(catalogue):
    found = catalogue(entry("gpt-4o-mini"), entry("claude"))
    with pytest.raises(ChatError) as caught:
        found.model("gpt4o-mini")
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")
    assert "did you mean `gpt-4o-mini`" in caught.value.message
    with pytest.raises(ChatError) as caught:
        found.entry("zzz")
    assert "did you mean" not in caught.value.message


async def test_names_are_listed_once_and_in_order_without_wildcards(catalogue):
    found = catalogue(entry("b"), entry("a"), entry("b"), entry("openai/*", "openai/*"))
    assert found.names() == ["b", "a"]
    assert found.patterns() == ["openai/*"]


@pytest.mark.parametrize(
    "name, pattern, model, asked",
    [
        ("openai/gpt-x", "openai/*", "openai/*", "gpt-x"),
        ("team/a/b", "team/*", "openai/*", "a/b"),
        ("my-one-x", "my-*-x", "openai/real-*", "real-one"),
        ("anything", "*", "openai/*", "anything"),
        ("pinned/x", "pinned/*", "openai/real", "real"),
    ],
)
async def test_a_wildcard_is_filled_in(catalogue, name, pattern, model, asked):
    async with raw_provider(answering("x")) as server:
        found = catalogue(entry(pattern, model, f"{server.url}/v1", tools=("clock",)))
        await text_from(found, name)
        assert found.entry(name).tools == ("clock",)
    assert server.requests[0].body["model"] == asked


async def test_an_exact_name_comes_before_a_wildcard_and_a_longer_one_before_a_shorter(catalogue):
    found = catalogue(entry("*", "openai/any"), entry("gpt-*", "openai/some"), entry("gpt-4", "openai/exact"))
    assert [found.entry(name).litellm_params["model"] for name in ("gpt-4", "gpt-5", "x")] == [
        "openai/exact", "openai/some", "openai/any",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["openai/", "openai/../x", "openai/a b", "openai/a\nb", "openai/" + "a" * 300, "openai/a?b=c"]
)
async def test_a_wildcard_takes_no_odd_names(catalogue, name):
    with pytest.raises(ChatError):
        catalogue(entry("openai/*", "openai/*")).model(name)


async def test_names_that_clients_make_up_are_not_kept_without_bound(catalogue):
    found = catalogue(entry("openai/*", "openai/*"), entry("a"))
    for i in range(1000):
        found.model(f"openai/m{i}")
    assert len(found._ready) < 300


async def test_several_entries_of_one_name_take_turns(catalogue):
    async with raw_provider(answering("one")) as one, raw_provider(answering("two")) as two:
        found = catalogue(entry("m", base=f"{one.url}/v1"), entry("m", base=f"{two.url}/v1"))
        assert [await text_from(found, "m") for _ in range(4)] == ["one", "two", "one", "two"]


async def test_a_failing_deployment_gives_way_to_another_and_then_to_the_fallback(catalogue):
    async with (
        raw_provider(failing(401)) as one,
        raw_provider(failing(401)) as two,
        raw_provider(answering("other")) as other,
    ):
        found = catalogue(
            entry("m", base=f"{one.url}/v1", fallbacks=("b",)),
            entry("m", base=f"{two.url}/v1"),
            entry("b", base=f"{other.url}/v1"),
        )
        retries = []

        async def emit(attempt):
            retries.append((attempt.number, attempt.by.model, attempt.by.host, attempt.status, attempt.reason))

        async with found.model("m").send(asking(stream=False), Attempts(0, emit)) as answer:
            assert [event.text async for batch in answer for event in batch if isinstance(event, TextDelta)] == [
                "other"
            ]
    assert (len(one.requests), len(two.requests), len(other.requests)) == (1, 1, 1)
    assert retries == [
        (1, "m", one.url.removeprefix("http://"), 401, "upstream_auth"),
        (2, "m", two.url.removeprefix("http://"), 401, "upstream_auth"),
        (3, "b", other.url.removeprefix("http://"), 200, ""),
    ]


async def test_a_fallback_that_does_not_exist_is_refused_at_load():
    with pytest.raises(LaneError, match="nobody"):
        Catalogue([entry("m", fallbacks=("nobody",))], HttpClient())


async def test_each_deployment_is_wrapped_with_its_own_entry(catalogue):
    seen = []

    def wrap(model, entry):
        seen.append((entry.model_name, entry.tool_calling))
        return model

    catalogue(entry("m", tool_calling="json", fallbacks=("b",)), entry("b"), wrap=wrap).model("m")
    assert seen == [("m", "json"), ("b", "auto")]


async def test_the_demo_model_needs_nothing(catalogue):
    found = catalogue(ModelConfig("try-me", {"model": "demo/demo"}))
    assert "demo model" in await text_from(found, "try-me")


# Lanes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params, url, model",
    [
        ({"model": "openai/gpt-4o"}, "https://api.openai.com/v1/chat/completions", "gpt-4o"),
        ({"model": "gpt-4o-mini"}, "https://api.openai.com/v1/chat/completions", "gpt-4o-mini"),
        ({"model": "o3"}, "https://api.openai.com/v1/chat/completions", "o3"),
        ({"model": "openai/org/m", "api_base": "http://h:1/v1"}, "http://h:1/v1/chat/completions", "org/m"),
        ({"model": "hosted_vllm/Q/q", "base_url": "http://h/v1"}, "http://h/v1/chat/completions", "Q/q"),
        ({"model": "m", "custom_llm_provider": "openai", "api_base": "http://h"}, "http://h/chat/completions", "m"),
        ({"model": "lm_studio/m", "api_base": "http://h/chat/completions"}, "http://h/chat/completions", "m"),
        ({"model": "openai/m", "api_base": "http://h", "rpm": 5, "temperature": 0, "max_retries": 2}, "http://h/chat/completions", "m"),
    ],
)  # fmt: skip
def test_openai_shaped_entries_take_the_direct_lane(monkeypatch, params, url, model):
    for variable in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    endpoint = resolve.known_endpoint(ModelConfig("m", params))
    assert endpoint is not None
    assert (endpoint.url, endpoint.model) == (url, model)


@pytest.mark.parametrize(
    "params",
    [
        {"model": "anthropic/claude-x"},
        {"model": "azure/x", "api_base": "http://h"},
        {"model": "hosted_vllm/m"},
        {"model": "openai/o1-pro"},
        {"model": "openai/responses/gpt-x"},
        {"model": "openai/gpt-5-codex"},
        {"model": "openai/m", "api_base": "http://h", "ssl_verify": False},
        {"model": "openai/m", "api_base": "http://h", "aws_region_name": "x"},
        {"model": "some-name"},
    ],
)
def test_everything_else_is_litellms_to_judge(monkeypatch, params):
    monkeypatch.delenv("HOSTED_VLLM_API_BASE", raising=False)
    assert resolve.known_endpoint(ModelConfig("m", params)) is None


def test_addresses_and_keys_come_from_the_providers_variables(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://proxy/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-env-1")
    endpoint = resolve.known_endpoint(ModelConfig("m", {"model": "openai/x"}))
    assert endpoint is not None
    assert endpoint.url == "http://proxy/v1/chat/completions"
    assert endpoint.headers["Authorization"] == "Bearer sk-from-env-1"
    assert "sk-from-env-1" in endpoint.secrets


def test_the_operators_headers_and_fields_go_along():
    params = {
        "model": "openai/m", "api_base": "http://h", "api_key": SecretStr("key-000"), "organization": "org-1",
        "extra_headers": {"X-Team": SecretStr("team-secret")}, "temperature": 0.2, "extra_body": {"top_k": 4},
    }  # fmt: skip
    endpoint = resolve.known_endpoint(ModelConfig("m", params))
    assert endpoint is not None
    assert endpoint.headers == {
        "X-Team": "team-secret",
        "Authorization": "Bearer key-000",
        "OpenAI-Organization": "org-1",
    }
    assert endpoint.defaults == {"temperature": 0.2, "top_k": 4}
    assert {"key-000", "team-secret"} <= set(endpoint.secrets)


@pytest.mark.parametrize(
    "broken, word",
    [
        (ModelConfig("m", {}), "model"),
        (ModelConfig("m", {"model": "openai/x", "api_base": "localhost:8000/v1"}), "api_base"),
        (ModelConfig("m", {"model": "mystery/x"}, lane="direct"), "api_base"),
    ],
)
def test_what_could_never_work_is_refused_at_load(broken, word):
    with pytest.raises(LaneError, match=word):
        resolve.check(broken)


def test_ollama_is_spoken_to_by_the_class_that_leaves_the_process_alone():
    assert resolve.litellm_settings(ModelConfig("m", {"model": "ollama/x"})).arguments["model"] == "ollama_chat/x"


def test_no_repr_shows_a_key():
    params = {"model": "openai/m", "api_base": "http://h", "api_key": "key-000-secret"}
    found = ModelConfig("m", params)
    assert "key-000-secret" not in f"{resolve.known_endpoint(found)!r}{resolve.litellm_settings(found)!r}{found!r}"


def test_reading_the_models_and_building_a_catalogue_does_not_load_litellm():
    code = (
        "import sys; from callgate.models.catalogue import Catalogue; from callgate.models.resolve import ModelConfig;"
        "from callgate.http.client import HttpClient;"
        "c = Catalogue([ModelConfig('a', {'model': 'anthropic/x'}), ModelConfig('d', {'model': 'demo'})], HttpClient());"
        "c.model('a'); c.model('d'); print('litellm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


async def test_a_reload_does_not_forget_who_is_left_alone_unless_the_entry_has_changed(catalogue):
    before = catalogue(entry("same"), entry("changed"), entry("any/*", "openai/*"), cooldown_seconds=60.0)
    for name in ("same", "changed", "any/one"):
        [deployment] = before.deployments(name)
        for _ in range(3):
            deployment.cooldown.failed(on_trial=False)

    after = catalogue(
        entry("same", tools=("*",)),
        entry("changed", base="http://127.0.0.1:10/v1"),
        entry("any/*", "openai/*"),
        cooldown_seconds=60.0,
        earlier_cooldowns=before.handed_on(),
    )
    otherwise = catalogue(entry("same"), cooldown_seconds=5.0, earlier_cooldowns=before.handed_on())

    def resting(catalogue, name):
        return catalogue.deployments(name)[0].cooldown.is_resting

    assert [resting(after, name) for name in ("same", "changed", "any/one")] == [True, False, True]
    assert not resting(otherwise, "same")
