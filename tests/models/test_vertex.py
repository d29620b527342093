"""Gemini on Vertex AI: signing in with a service account, in a thread, and the address of a project."""

import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from callgate.calls.states import ReadyCall
from callgate.models.catalogue import Catalogue
from callgate.models.resolve import ModelConfig
from callgate.models.retry import RetryPolicy
from tests.models.through_litellm import MARKS, turn_of
from tests.models.wire import QUICK, asking, raw_provider, tool

pytest.importorskip("google.auth")
pytestmark = MARKS

ANSWER = {
    "candidates": [
        {"content": {"role": "model", "parts": [{"functionCall": {"name": "now"}}]}, "finishReason": "STOP", "index": 0}
    ],
    "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
}


def service_account(token_uri):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return {
        "type": "service_account", "project_id": "proj", "private_key_id": "k", "private_key": pem,
        "client_email": "a@proj.example", "client_id": "1", "token_uri": token_uri,
    }  # fmt: skip


async def test_a_service_account_signs_in_once_for_many_requests(client):
    async def serve(request, wire):
        if request.target == "/token":
            await wire.whole({"access_token": "token-of-google", "expires_in": 3600, "token_type": "Bearer"})
        else:
            await wire.whole(ANSWER)

    async with raw_provider(serve) as server:
        params = {
            "model": "vertex_ai/gemini-2.5-flash",
            "api_base": f"{server.url}/v1/models/m",
            "vertex_location": "us-central1",
            "vertex_credentials": json.dumps(service_account(f"{server.url}/token")),
        }
        entry = ModelConfig("m", params, tools=("*",), deadlines=QUICK)
        model = Catalogue([entry], client, policy=RetryPolicy(tries=1)).model("m")
        for _ in range(2):
            turn, _, raw = await turn_of(model, asking(stream=False, tools=[tool("now")]))
            assert ([(type(call), call.arguments) for call in turn.calls], raw) == ([(ReadyCall, {})], True)
    assert [request.target.partition("?")[0] for request in server.requests] == [
        "/token", "/v1/models/m:generateContent", "/v1/models/m:generateContent",
    ]  # fmt: skip
    assert server.requests[1].headers["authorization"] == "Bearer token-of-google"
