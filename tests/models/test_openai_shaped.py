"""Providers whose wire is OpenAI's: litellm maps their parameters, and everything else is the direct lane's."""

import json

import pytest

from callgate.calls.states import BrokenCall, ReadyCall
from callgate.conversation.errors import ChatError
from callgate.conversation.events import Finished
from callgate.models import litellm_model, resolve
from callgate.models.catalogue import Catalogue
from callgate.models.resolve import LaneError, ModelConfig
from callgate.models.retry import RetryPolicy
from callgate.models.translated import openai_shaped
from callgate.models.translated.openai_shaped import azure_url
from callgate.models.translated.translation import Fields
from tests.models.through_litellm import MARKS, both_ways, turn_of
from tests.models.wire import QUICK, asking, chunk, closing, completion, raw_provider, tool

pytestmark = MARKS

KEY = "key-planted-000111222"
NOW = tool("now")


@pytest.fixture
def model(client):
    def make(server, name, **more):
        params = {"model": name, "api_base": server.url, "api_key": KEY, **more}
        entry = ModelConfig("m", params, tools=("*",), deadlines=QUICK)
        return Catalogue([entry], client, policy=RetryPolicy(tries=1)).model("m")

    return make


def saying(*chunks):
    async def serve(request, wire):
        await wire.head()
        for each in chunks:
            await wire.event(each)
        await wire.event("[DONE]")

    return closing(serve)


def call(arguments="{}"):
    return {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "now", "arguments": arguments}}]}


@pytest.mark.parametrize("provider", ["groq", "deepseek", "openrouter", "mistral", "together_ai", "xai"])
@pytest.mark.parametrize("reason", ["error", "insufficient_system_resource", "MALFORMED_FUNCTION_CALL"])
async def test_nothing_of_a_turn_that_its_provider_calls_failed_runs(model, provider, reason):
    async with raw_provider(saying(chunk(call()), chunk(finish=reason))) as server:
        turn, _, raw = await turn_of(model(server, f"{provider}/some-model"), asking(tools=[NOW]))
    assert [type(each) for each in turn.calls] == [BrokenCall]
    assert (turn.reasons, raw) == ((reason,), True)


ODD_ERRORS = [
    b'data: {"title": "Internal Server Error", "status": 500}\n\n',
    b'data: {"type": "response.failed"}\n\n',
    b'data: {"Error": {"message": "x"}}\n\n',
    b'data: {"err": "x"}\n\n',
    b'data: {"msg": "x", "code": 1}\n\n',
    b"event: error\n\n",
    b'{"error": {"message": "x"}}\n\n',
]


@pytest.mark.parametrize("error", ODD_ERRORS)
async def test_an_error_in_any_shape_between_a_call_and_the_end_runs_nothing(model, error):
    async def serve(request, wire):
        await wire.head()
        await wire.event(chunk(call()))
        await wire.send(error)
        await wire.event(chunk(finish="tool_calls"))
        await wire.event("[DONE]")

    async with raw_provider(closing(serve)) as server:
        turn, _, _ = await turn_of(model(server, "groq/some-model"), asking(tools=[NOW]))
    assert [type(each) for each in turn.calls] == [BrokenCall]


async def test_parameters_are_mapped_and_what_litellm_does_not_know_travels_in_the_body(model):
    async with raw_provider(saying(chunk({"content": "hi"}, finish="stop"))) as server:
        asked = asking(max_completion_tokens=7, top_k=3, tools=[NOW], tool_choice="required")
        await turn_of(model(server, "mistral/mistral-large-latest", extra_body={"safe_prompt": True}, min_p=0.1), asked)
    body = server.requests[0].body
    assert (body["model"], body["max_tokens"], body["tool_choice"]) == ("mistral-large-latest", 7, "any")
    assert (body["top_k"], body["min_p"], body["safe_prompt"], body["stream"]) == (3, 0.1, True, True)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.requests[0].target == "/v1/chat/completions"


@both_ways
async def test_a_format_that_litellm_asks_for_as_a_call_is_text_again(model, stream):
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
    entry = {"index": 0, "id": "c1", "type": "function", "function": {"name": "json_tool_call", "arguments": '{"a":1}'}}

    async def serve(request, wire):
        assert request.body["tools"][0]["function"]["name"] == "json_tool_call"
        await wire.whole(completion("", "tool_calls", tool_calls=[entry]))

    served = saying(chunk({"tool_calls": [entry]}), chunk(finish="tool_calls")) if stream else closing(serve)
    async with raw_provider(served) as server:
        turn, _, _ = await turn_of(
            model(server, "groq/llama-3.1-8b-instant"), asking(stream=stream, response_format=wanted)
        )
    assert (turn.text, turn.calls, turn.reasons) == ('{"a":1}', (), ("stop",))


async def test_a_parameter_that_the_provider_has_not_is_the_requests_mistake_and_keeps_the_lane(model):
    async with raw_provider(saying(chunk(call(), finish="tool_calls"))) as server:
        deployment = model(server, "xai/grok-4")
        with pytest.raises(ChatError) as caught:
            await turn_of(deployment, asking(frequency_penalty=1.0))
        assert caught.value.status == 400
        turn, _, raw = await turn_of(deployment, asking(tools=[NOW]))
    assert [type(each) for each in turn.calls] == [ReadyCall]
    assert (len(server.requests), raw) == (1, True)


async def test_cache_marks_are_put_where_the_entry_configures_them(model):
    points = [{"location": "message", "role": "system"}]
    name = "openrouter/anthropic/claude-sonnet-4"
    async with raw_provider(saying(chunk({"content": "hi"}, finish="stop"))) as server:
        deployment = model(server, name, cache_control_injection_points=points)
        request = asking()
        request = type(request)(
            [{"role": "system", "content": "Be brief."}, *request.messages], request.tools, stream=True
        )
        await turn_of(deployment, request)
    assert "cache_control" in json.dumps(server.requests[0].body["messages"][0])


@pytest.mark.parametrize(
    "base, version, expected",
    [
        (
            "https://x.openai.azure.com",
            "2024-10-21",
            "/openai/deployments/m%2F1/chat/completions?api-version=2024-10-21",
        ),
        ("https://x.openai.azure.com/openai/v1/", "2024-10-21", "/openai/v1/chat/completions"),
        ("https://x.openai.azure.com", "v1", "/openai/v1/chat/completions"),
        ("https://x.openai.azure.com", "preview", "/openai/v1/chat/completions?api-version=preview"),
        (
            "https://x.openai.azure.com/openai/deployments/d?api-version=2025-01-01",
            "2024-10-21",
            "/openai/deployments/d/chat/completions?api-version=2025-01-01",
        ),
    ],
)
async def test_an_azure_deployment_is_where_its_version_says(base, version, expected):
    assert azure_url(base, "m/1", version) == f"https://x.openai.azure.com{expected}"


@pytest.mark.parametrize(
    ("name", "more", "renamed"),
    [
        ("openai/gpt-5-mini", {}, True),
        ("openai/gpt-5.1", {}, True),
        ("openai/o3", {}, True),
        ("openai/o4-mini", {"drop_params": True}, True),
        ("azure/gpt-5", {"api_version": "v1"}, True),
        ("azure/d", {"api_version": "v1", "base_model": "gpt-5"}, True),
        ("azure/d", {"api_version": "v1"}, False),
        ("azure/gpt-35-turbo", {"api_version": "v1"}, False),
        ("openai/gpt-4o", {}, False),
        ("openai/gpt-oss-120b", {}, False),
        ("hosted_vllm/gpt-5", {}, False),
        ("groq/o3", {}, False),
    ],
)
async def test_models_that_count_their_thinking_are_sent_the_limit_by_its_newer_name(model, name, more, renamed):
    limit, other = ("max_completion_tokens", "max_tokens") if renamed else ("max_tokens", "max_completion_tokens")
    async with raw_provider(saying(chunk({"content": "hi"}, finish="stop"))) as server:
        await turn_of(model(server, name, **more), asking(max_tokens=7))
    sent = server.requests[0].body
    assert (sent.get(limit), other in sent) == (7, False)


async def test_a_limit_that_came_by_both_names_is_sent_once_as_the_newer_says(model):
    async with raw_provider(saying(chunk({"content": "hi"}, finish="stop"))) as server:
        await turn_of(model(server, "openai/gpt-5"), asking(max_tokens=7, max_completion_tokens=9))
    sent = server.requests[0].body
    assert (sent["max_completion_tokens"], "max_tokens" in sent) == (9, False)


async def test_azure_is_asked_with_its_own_header(model):
    async with raw_provider(saying(chunk(call(), finish="tool_calls"))) as server:
        turn, _, _ = await turn_of(model(server, "azure/d", api_version="2024-10-21"), asking(tools=[NOW]))
    assert [type(each) for each in turn.calls] == [ReadyCall]
    assert server.requests[0].headers["api-key"] == KEY
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize(
    "params, lane",
    [
        ({"model": "groq/x"}, "direct"),
        ({"model": "gpt-4o"}, "direct"),
        ({"model": "openai/gpt-4o", "safety_settings": [], "extra_body": {"a": 1}}, "direct"),
        ({"model": "openai/gpt-4o", "cache_control_injection_points": []}, "direct"),
        ({"model": "azure/x", "api_version": "v1", "azure_ad_token": "t"}, "direct"),
        ({"model": "gemini/gemini-2.5-pro", "safety_settings": [{}], "extra_body": {}}, "translated"),
        ({"model": "claude-sonnet-4-5"}, "translated"),
        ({"model": "vertex_ai/gemini-2.5-pro", "vertex_project": "p"}, "translated"),
        ({"model": "bedrock/us.anthropic.claude-x", "aws_region_name": "eu-west-1"}, "translated"),
        ({"model": "cohere_chat/command-r"}, "translated"),
        ({"model": "aihubmix/claude-x"}, "direct"),
        ({"model": "databricks/databricks-claude-x"}, "direct"),
        ({"model": "github_copilot/claude-x"}, "direct"),
        ({"model": "github_copilot/gpt-4.1"}, "direct"),
        ({"model": "github_copilot/gpt-5.3-codex"}, "litellm"),
        ({"model": "bedrock_mantle/openai.gpt-oss-120b", "aws_region_name": "eu-west-1"}, "direct"),
        ({"model": "bedrock_mantle/us-gov-west-1/openai.gpt-5.4"}, "litellm"),
        ({"model": "bedrock_mantle/anthropic.claude-x"}, "litellm"),
        ({"model": "bedrock/invoke/x"}, "litellm"),
        ({"model": "vertex_ai/claude-x", "vertex_project": "p"}, "translated"),
        ({"model": "azure_ai/claude-x"}, "translated"),
        ({"model": "azure_ai/mistral-x"}, "direct"),
        ({"model": "vertex_ai/mistral-x"}, "litellm"),
        ({"model": "ollama_chat/x"}, "direct"),
        ({"model": "ollama/x", "num_ctx": 8192}, "litellm"),
        ({"model": "nlp_cloud/x"}, "litellm"),
        ({"model": "openai/gpt-5-pro"}, "responses"),
        ({"model": "openai/qwen-codex", "api_base": "http://127.0.0.1:9/v1"}, "direct"),
        ({"model": "openai/responses/gpt-5", "api_base": "http://127.0.0.1:9/v1"}, "responses"),
        ({"model": "groq/x", "guardrails": ["g"]}, "litellm"),
    ],
)
async def test_the_lane_follows_from_the_entry_alone(params, lane):
    assert resolve.lane_of(ModelConfig("m", params)) == lane


@pytest.mark.parametrize(
    "params",
    [{"model": "ollama/x", "num_ctx": 1}, {"model": "openai/gpt-5-pro", "ssl_verify": False}, {"model": "nowhere/x"}],
)
async def test_where_calls_may_not_run_on_litellms_lane_tools_are_refused_at_load(params):
    resolve.check(ModelConfig("m", params, tools=("*",)))
    entry = ModelConfig("m", params, tools=("*",), trust_litellm="off")
    with pytest.raises(LaneError, match=r"trust_litellm: on"):
        resolve.check(entry)
    resolve.check(ModelConfig("m", params))
    resolve.check(ModelConfig("m", params, tools=("*",), trust_litellm="on"))
    if params["model"] == "nowhere/x":
        resolve.check(ModelConfig("m", {**params, "api_base": "http://127.0.0.1:1"}, tools=("*",), lane="direct"))


async def test_a_model_that_is_not_asked_by_http_may_have_tools_only_on_litellms_word():
    with pytest.raises(LaneError, match="runs in this process"):
        resolve.check(ModelConfig("m", {"model": "vllm/x"}, tools=("*",)))
    resolve.check(ModelConfig("m", {"model": "vllm/x"}))
    resolve.check(ModelConfig("m", {"model": "vllm/x"}, tools=("*",), trust_litellm="on"))


async def test_a_wildcard_that_is_filled_in_with_such_a_provider_has_no_tools(client):
    catalogue = Catalogue([ModelConfig("*", {"model": "*"}, tools=("*",))], client)
    assert catalogue.entry("groq/x").tools == ("*",)
    assert catalogue.entry("nlp_cloud/x").tools == ("*",)
    assert catalogue.entry("vllm/x").tools == ()


async def test_a_reason_is_an_event_as_it_was_written(model):
    async with raw_provider(saying(chunk({"content": "x"}), chunk(finish="eos"))) as server:
        async with model(server, "groq/some-model").send(asking()) as answer:
            found = [event async for batch in answer for event in batch]
        assert answer.lane == "direct"
    assert [event.reason for event in found if isinstance(event, Finished)] == ["eos"]


@pytest.mark.parametrize("name", ["ollama/qwen3", "ollama_chat/qwen3"])
async def test_ollama_is_spoken_to_at_its_openai_shaped_address(model, name):
    async with raw_provider(saying(chunk(call()), chunk(finish="error"))) as server:
        turn, _, raw = await turn_of(model(server, name), asking(tools=[NOW]))
    assert (server.requests[0].target, server.requests[0].body["model"]) == ("/v1/chat/completions", "qwen3")
    assert ([type(each) for each in turn.calls], raw) == ([BrokenCall], True)


# Providers whose address or sign-in litellm's class finds ---------------------------------------------------------------


AT_HOME = {
    "veniceai": "https://api.venice.ai/api/v1/chat/completions",
    "abliteration": "https://api.abliteration.ai/v1/chat/completions",
    "llamagate": "https://api.llamagate.dev/v1/chat/completions",
    "gmi": "https://api.gmi-serving.com/v1/chat/completions",
    "sarvam": "https://api.sarvam.ai/v1/chat/completions",
    "aihubmix": "https://aihubmix.com/v1/chat/completions",
    "crusoe": "https://managed-inference-api-proxy.crusoecloud.com/v1/chat/completions",
    "empiriolabs": "https://api.empiriolabs.ai/v1/chat/completions",
    "assemblyai": "https://llm-gateway.assemblyai.com/v1/chat/completions",
    "cloudflare": "https://api.cloudflare.com/client/v4/accounts/acc/ai/v1/chat/completions",
    "databricks": "https://adb.example/serving-endpoints/chat/completions",
    "huggingface": "https://router.huggingface.co/v1/chat/completions",
    "bedrock_mantle": "https://bedrock-mantle.eu-west-1.api.aws/v1/chat/completions",
}


async def question_of(name, monkeypatch, **more):
    monkeypatch.setenv("CLOUDFLARE_ACCOUNT_ID", "acc")
    monkeypatch.setenv("DATABRICKS_API_BASE", "https://adb.example/serving-endpoints")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    entry = ModelConfig("m", {"model": name, "api_key": KEY, **more})
    settings = resolve.litellm_settings(entry)
    fields = Fields(resolve.provider_of(settings.arguments) or "", settings)
    return await openai_shaped.translate(await litellm_model.loaded(), settings, asking(), fields, None)


@pytest.mark.parametrize("provider", sorted(AT_HOME))
async def test_litellms_class_finds_the_address_and_carries_the_key(provider, monkeypatch):
    found = await question_of(f"{provider}/org/m", monkeypatch)
    assert found.url == AT_HOME[provider]
    headers = {name.lower(): value for name, value in found.headers.items()}
    assert headers["authorization"] == f"Bearer {KEY}"
    assert KEY in found.secrets
    assert json.loads(found.body)["model"] == "org/m"


@both_ways
@pytest.mark.parametrize("provider", sorted(AT_HOME))
async def test_their_answers_are_read_as_on_the_direct_lane(model, provider, stream):
    async def serve(request, wire):
        entry = call()["tool_calls"][0]
        await wire.whole(completion("", "error", tool_calls=[entry]))

    async with raw_provider(saying(chunk(call()), chunk(finish="error")) if stream else closing(serve)) as server:
        turn, _, raw = await turn_of(model(server, f"{provider}/org/m"), asking(stream=stream, tools=[NOW]))
    assert [type(each) for each in turn.calls] == [BrokenCall]
    assert (turn.reasons, raw) == (("error",), True)


async def test_bedrock_mantle_is_signed_for_where_there_is_no_key(model, monkeypatch):
    for name in ("BEDROCK_MANTLE_API_KEY", "AWS_BEARER_TOKEN_BEDROCK"):
        monkeypatch.delenv(name, raising=False)
    aws = {
        "aws_access_key_id": "AKIAEXAMPLE",
        "aws_secret_access_key": "secret-example",
        "aws_region_name": "eu-west-1",
    }
    async with raw_provider(saying(chunk(call()), chunk(finish="tool_calls"))) as server:
        deployment = model(server, "bedrock_mantle/openai.gpt-oss-120b", **aws, api_key=None)
        turn, _, _ = await turn_of(deployment, asking(tools=[NOW]))
    assert [type(each) for each in turn.calls] == [ReadyCall]
    signature = server.requests[0].headers["authorization"]
    assert signature.startswith("AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE/")
    assert "/eu-west-1/bedrock/aws4_request" in signature
    assert server.requests[0].body["tools"] == [NOW]


@pytest.fixture
def copilot(tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_COPILOT_TOKEN_DIR", str(tmp_path))
    return tmp_path


async def test_copilot_is_asked_with_the_token_of_litellms_sign_in(model, copilot):
    async with raw_provider(saying(chunk(call()), chunk(finish="tool_calls"))) as server:
        token = {"token": "copilot-token-000111222", "expires_at": 2**40, "endpoints": {"api": server.url}}
        (copilot / "api-key.json").write_text(json.dumps(token))
        turn, _, raw = await turn_of(model(server, "github_copilot/gpt-4.1", api_base=None), asking(tools=[NOW]))
    assert ([type(each) for each in turn.calls], raw) == ([ReadyCall], True)
    sent = server.requests[0]
    assert (sent.target, sent.headers["authorization"]) == ("/chat/completions", "Bearer copilot-token-000111222")
    assert sent.headers["x-initiator"] == "user"
    assert "editor-version" in sent.headers


async def test_copilot_without_a_sign_in_says_how_to_sign_in(model, copilot):
    async with raw_provider(saying()) as server:
        with pytest.raises(ChatError) as caught:
            await turn_of(model(server, "github_copilot/gpt-4.1"), asking(tools=[NOW]))
    assert (caught.value.status, caught.value.code) == (502, "upstream_auth")
    assert "sign in once" in (caught.value.detail or "")
    assert server.requests == []


async def test_models_that_have_another_wire_are_those_that_litellm_says():
    """Of these providers some models answer on the Responses API alone; they stay with litellm, which asks that one."""
    litellm = await litellm_model.loaded()
    wrong = []
    for name, known in litellm.model_cost.items():
        provider = known.get("litellm_provider")
        if provider in {"github_copilot", "bedrock_mantle"} and known.get("mode") in {"chat", "responses"}:
            served = known.get("supported_endpoints") or []
            alone = known["mode"] == "responses" and "/v1/chat/completions" not in served
            if alone and resolve.lane_of(ModelConfig("m", {"model": name})) == "direct":
                wrong.append(name)
    assert wrong == []
