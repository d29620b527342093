"""An API that is not served says so by its name, and not as if its path were a slip of the pen."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.api.not_served import not_served
from callgate.application import create_app
from tests.e2e.test_every_route import routes
from tests.harness.configs import make_config
from tests.harness.environment import Environment
from tests.harness.needs import needs
from tests.harness.served import served_to_http
from tests.parameters.walk import call, walking
from tests.scripted_upstream import Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

PATHS = {
    "/v1/files": "Callgate does not serve the Files API; send data inline.",
    "/v1/files/file_1/content": "Callgate does not serve the Files API; send data inline.",
    "/v1/videos/edits": "Callgate does not serve the Videos API.",
    "/v1/vaults/vlt_1": "Callgate does not serve the Vaults API; write credentials of tools into the config.",
    "/v1/messages/batches": "Callgate does not serve the Message Batches API; send requests one by one.",
}


IN_ROUTERS = {"/v1/models", "/v1/models/x", "/v1/chat/completions/x", "/v1/chat/completions/x/messages"}
"""Served by routers that FastAPI does not list; the last is a 404 of its own."""


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses/resp_1", "/v1/messages", "/v1/complete", "/", "/v1"]
)
def test_of_a_path_that_is_served_or_unknown_nothing_is_said(path: str) -> None:
    assert not_served(path) == ""


async def test_an_api_that_is_not_served_is_named() -> None:
    async with walking() as walker:
        for path, sentence in PATHS.items():
            start, body = await call(walker.app, path, b"{}")
            assert (start["status"], json.loads(body)["error"]["message"]) == (404, sentence), path
        start, body = await call(walker.app, "/v1/chat/completion", b"{}")
        assert json.loads(body)["error"]["message"].endswith("Did you mean /v1/chat/completions?")


async def test_a_client_of_anthropics_is_told_in_its_shape(upstream: Upstream) -> None:
    async with served_to_http(upstream) as client:
        answer = await client.get("/v1/vaults/vlt_1", headers={"anthropic-version": "2023-06-01"})
    error = answer.json()["error"]
    assert (answer.status_code, answer.json()["type"], error["type"]) == (404, "error", "not_found_error")
    assert error["message"] == PATHS["/v1/vaults/vlt_1"]


@needs("environment:openai-3", "environment:anthropic")
async def test_every_path_of_the_sdks_is_served_or_named(upstream: Upstream) -> None:
    app = create_app(make_config(upstream.url))
    served_paths = {path for _, path in routes(app)} | IN_ROUTERS
    paths = {path for name in ("openai-3", "anthropic") for path in paths_of(Environment(name).folder)}
    assert len(paths) > 200
    assert sorted(path for path in paths - served_paths if not not_served(path)) == []


def paths_of(folder: Path) -> Iterator[str]:
    """The paths that the resources of an SDK ask, as they stand in its code."""
    for file in folder.glob("lib/python3*/site-packages/*/resources/**/*.py"):
        for path in re.findall(r'"(/[a-zA-Z0-9_{}/]+)[?"]', file.read_text(encoding="utf-8")):
            yield re.sub(r"{\w+}", "x", path if path.startswith("/v1") else f"/v1{path}")
