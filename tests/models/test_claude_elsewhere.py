"""Claude on Vertex AI and on Azure AI: litellm's address and sign-in, Anthropic's wire, and our own reading of it."""

import pytest

from callgate.calls.states import BrokenCall, ReadyCall
from callgate.models import litellm_model, resolve
from callgate.models.catalogue import Catalogue
from callgate.models.resolve import ModelConfig
from callgate.models.retry import RetryPolicy
from callgate.models.translated import claude_elsewhere
from callgate.models.translated.translation import Fields
from tests.models.through_litellm import MARKS, both_ways, turn_of
from tests.models.wire import QUICK, asking, closing, raw_provider, tool

pytestmark = MARKS

KEY = "key-planted-000111222"
NOW = tool("now", place={"type": "string"})
GOOGLE = {"vertex_project": "p", "vertex_location": "us-east5", "extra_headers": {"Authorization": "Bearer token-1"}}
HEAD = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
USAGE = {"input_tokens": 9, "output_tokens": 9}


def answering(reason):
    """Serves one call of Claude's, streamed or whole as it is requested."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}}
    piece = {"type": "input_json_delta", "partial_json": '{"place":"Lisbon"}'}

    async def serve(request, wire):
        if not request.body.get("stream"):
            content = [{**call, "input": {"place": "Lisbon"}}]
            await wire.whole({**HEAD, "content": content, "stop_reason": reason, "usage": USAGE})
            return
        await wire.head()
        await wire.event({"type": "message_start", "message": {**HEAD, "content": [], "usage": USAGE}})
        await wire.event({"type": "content_block_start", "index": 0, "content_block": call})
        await wire.event({"type": "content_block_delta", "index": 0, "delta": piece})
        await wire.event({"type": "content_block_stop", "index": 0})
        await wire.event({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": USAGE})
        await wire.event({"type": "message_stop"})

    return closing(serve)


@pytest.fixture(params=["vertex_ai", "azure_ai"])
def model(request, client):
    def make(server):
        own = GOOGLE if request.param == "vertex_ai" else {"api_key": KEY}
        params = {"model": f"{request.param}/claude-sonnet-4-5", "api_base": server.url, **own}
        entry = ModelConfig("m", params, tools=("*",), deadlines=QUICK)
        return Catalogue([entry], client, policy=RetryPolicy(tries=1)).model("m")

    return make


@both_ways
@pytest.mark.parametrize(
    ("reason", "kind"), [("tool_use", ReadyCall), ("refusal", BrokenCall), ("error", BrokenCall)], ids=str
)
async def test_its_answers_are_read_as_anthropics(model, stream, reason, kind):
    async with raw_provider(answering(reason)) as server:
        turn, _, raw = await turn_of(model(server), asking(stream=stream, tools=[NOW]))
    assert ([type(call) for call in turn.calls], turn.reasons, raw) == ([kind], (reason,), True)


@both_ways
async def test_a_request_goes_where_litellm_says_with_its_sign_in(model, stream, request):
    async with raw_provider(answering("tool_use")) as server:
        await turn_of(model(server), asking(stream=stream, tools=[NOW]))
        sent = server.requests[0]
    assert sent.body["tools"][0]["input_schema"]["properties"] == {"place": {"type": "string"}}
    assert sent.body["max_tokens"] > 0
    if "vertex_ai" in request.node.name:
        verb, _, _ = sent.target.rpartition(":")[2].partition("?")
        assert verb == ("streamRawPredict" if stream else "rawPredict")
        assert "/projects/p/locations/us-east5/publishers/anthropic/models/claude-sonnet-4-5:" in sent.target
        assert sent.headers["authorization"] == "Bearer token-1"
        assert sent.body["anthropic_version"] == "vertex-2023-10-16"
        assert not {"model", "is_vertex_request"} & set(sent.body)
    else:
        assert sent.target == "/anthropic/v1/messages"
        assert KEY in (sent.headers.get("api-key"), sent.headers.get("x-api-key"))
        assert sent.body["model"] == "claude-sonnet-4-5"


@pytest.mark.parametrize(
    ("params", "url"),
    [
        (
            {"model": "vertex_ai/claude-sonnet-4-5", **GOOGLE},
            (
                "https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/us-east5/publishers/anthropic/models/"
                "claude-sonnet-4-5:streamRawPredict"
            ),
        ),
        (
            {"model": "azure_ai/claude-sonnet-4-5", "api_base": "https://r.services.ai.azure.com", "api_key": KEY},
            "https://r.services.ai.azure.com/anthropic/v1/messages",
        ),
    ],
    ids=["vertex", "azure"],
)
async def test_litellm_knows_the_address(params, url):
    settings = resolve.litellm_settings(ModelConfig("m", params))
    fields = Fields(str(params["model"]).partition("/")[0], settings)
    found = await claude_elsewhere.translate(await litellm_model.loaded(), settings, asking(), fields, None)
    assert found.url == url
    assert any(secret in found.secrets for secret in (KEY, "token-1"))
