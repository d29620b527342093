"""Errors by path: each API's clients get them in the shape that they can read, whoever refuses."""

from typing import Any

import httpx
import pytest

from callgate.api import errors
from callgate.application import create_app
from callgate.auth.keys import hash_key
from callgate.conversation.errors import ChatError
from tests.harness.configs import make_config
from tests.harness.server import serve

pytestmark = pytest.mark.anyio


def other_shape(error: ChatError, request_id: str) -> Any:
    return {"type": "error", "error": {"type": error.type, "message": error.message}, "request_id": request_id}


@pytest.mark.parametrize(
    ("method", "key", "size", "status"),
    [("POST", "cg-a", 2, 404), ("DELETE", "cg-a", 2, 404), ("POST", "wrong", 2, 401), ("POST", "cg-a", 2000, 413)],
)
async def test_every_refusal_has_the_shape_of_its_path(
    monkeypatch: pytest.MonkeyPatch, method: str, key: str, size: int, status: int
) -> None:
    monkeypatch.setattr(errors, "SHAPES", {"/v1/other": other_shape})
    keys = [{"name": "a", "hash": hash_key("cg-a")}]
    config = make_config("http://127.0.0.1:9", auth="keys", keys=keys, limits={"body_bytes": 1024})
    given = {"authorization": f"Bearer {key}", "x-request-id": "req-7"}
    async with serve(create_app(config)) as url, httpx.AsyncClient() as client:
        content = b" " * size
        shaped = await client.request(method, url + "/v1/other/thing", headers=given, content=content)
        usual = await client.request(method, url + "/v1/elsewhere", headers=given, content=content)
    assert (shaped.status_code, usual.status_code) == (status, status)
    body = shaped.json()
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["request_id"]) == ("error", "req-7")
    assert set(usual.json()["error"]) == {"message", "type", "param", "code"}


def test_calls_side_by_side_that_meet_the_same_error_are_one_error() -> None:
    taken = [ChatError(503, "Another process carries this run on.", code="run_taken_over") for _ in range(2)]
    assert errors.as_chat_error(BaseExceptionGroup("two", taken)) is taken[0]
    assert errors.as_chat_error(BaseExceptionGroup("two", [taken[0], ValueError("ours")])).status == 500
