"""An API that is not served says so by its name, and not as if its path were a slip of the pen."""

import json

import pytest

from callgate.api.not_served import not_served
from tests.parameters.walk import call, walking

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

PATHS = {
    "/v1/files": "Callgate does not serve the Files API; send data inline.",
    "/v1/files/file_1/content": "Callgate does not serve the Files API; send data inline.",
    "/v1/videos/edits": "Callgate does not serve the Videos API.",
    "/v1/messages/batches": "Callgate does not serve the Message Batches API; send requests one by one.",
}


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
