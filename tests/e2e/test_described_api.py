"""The served OpenAPI document, and requests made up from it and against it: nothing makes the server fail, and every
refusal has the shape of its API."""

import asyncio
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.result import Ok
from schemathesis.core.transport import DEFAULT_RESPONSE_TIMEOUT

from callgate.application import create_app
from tests.chaos.scale import scaled
from tests.harness.configs import make_config, tool_entry
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio

EXAMPLES = scaled(5, 40)
"""For each operation."""
SETTINGS = settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


async def test_it_describes_every_route_that_clients_use() -> None:
    async with (
        serve(create_app(make_config("http://127.0.0.1:1"))) as url,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        document = (await client.get(f"{url}/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    assert {
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/models",
        "/v1/models/{model}",
    } <= set(document["paths"])


@pytest.mark.timeout(300)
async def test_nothing_that_it_describes_makes_the_server_fail_and_every_refusal_is_in_shape(
    upstream: Upstream,
) -> None:
    upstream.script("m", lambda _: Reply(text="hello"), lax=True)
    # A tool that may be run on request, and a model that answers whatever it is asked.
    config = make_config(upstream.url, tools=[tool_entry("get_time")])
    async with serve(create_app(config)) as url, httpx.AsyncClient(trust_env=False) as client:
        document = (await client.get(f"{url}/openapi.json")).json()
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"):
            body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            body["properties"]["model"] = {"enum": ["m", "nobody", ""]}
        asked = await asyncio.to_thread(ask_everything, document, url)
    # The provider's own refusals of what it was made to pass on are no complaints.
    upstream.problems.clear()
    assert asked > 10 * EXAMPLES


def ask_everything(document: dict[str, Any], url: str) -> int:
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
    asked = 0
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()

        @SETTINGS
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            check(case, case.call(timeout=DEFAULT_RESPONSE_TIMEOUT))

        ask()
    return asked


def check(case: Any, answer: Any) -> None:
    summary = f"{case.method} {case.path} {case.body!r}: {answer.status_code} {answer.content[:300]!r}"
    assert answer.status_code < 500, summary
    assert answer.headers.get("x-request-id"), summary
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == ["application/json"], summary
        error = answer.json()["error"]
        expected = {"message", "type"} if case.path.startswith("/v1/messages") else {"message", "type", "param", "code"}
        assert set(error) - {"details"} == expected, summary
        assert error["message"], summary
        assert error["type"], summary
