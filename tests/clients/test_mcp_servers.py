"""Eight clients that name MCP servers, one of the config by its label and one by its address."""

import json
from typing import Any

import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from tests.clients.driver import DRIVERS, beside_its_packages
from tests.e2e.test_client_servers import host_of
from tests.harness.configs import make_config
from tests.harness.environment import NODE, Environment
from tests.harness.needs import BY_MAKE_CLIENTS, needs
from tests.harness.process import output_of
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.servers.http_mcp import HttpMcp

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KEY = "cg-" + "of-the-eight-clients"
CLIENTS = [
    ("openai-3", "mcp_servers.py", "openai"),
    ("openai-agents", "mcp_servers.py", "agents"),
    ("langchain", "mcp_servers.py", "langchain"),
    ("pydantic-ai", "mcp_servers.py", "pydantic-ai"),
    ("anthropic", "mcp_servers.py", "anthropic"),
    (NODE, "mcp_servers.mjs", "openai"),
    (NODE, "mcp_servers.mjs", "vercel"),
    (NODE, "mcp_servers.mjs", "anthropic"),
]
AROUND_ANOTHER = ("agents", "langchain", "pydantic-ai")
"""They send their requests by OpenAI's SDK, which is played as well, and take a second to start."""


def answer(request: Any) -> Reply:
    """Calls the one tool of the server that is on offer, then says so."""
    if any(message["role"] == "tool" for message in request.body["messages"]):
        return Reply(text="done")
    names = [tool["function"]["name"] for tool in request.body["tools"]]
    if "far_echo" in names:
        return Reply(calls=[Call("far_echo", {"a": 1})])
    return Reply(calls=[Call("add", {"a": 1, "b": 2})])


@pytest.mark.parametrize(
    ("environment", "script", "client"),
    [
        pytest.param(
            *row,
            marks=[needs(f"environment:{row[0]}"), *([BY_MAKE_CLIENTS] if row[2] in AROUND_ANOTHER else [])],
            id=f"{row[2]} {row[1].rpartition('.')[2]}",
        )
        for row in CLIENTS
    ],
)
async def test_a_client_names_a_server_by_label_and_by_address(
    upstream: Upstream, environment: str, script: str, client: str
) -> None:
    upstream.script("m", answer)
    place = Environment(environment)
    folder = beside_its_packages(place.folder) if environment == NODE else DRIVERS
    async with HttpMcp().running() as far:
        keys = [{"name": "ann", "hash": hash_key(KEY), "approve": True, "client_mcp": {"hosts": [host_of(far.url)]}}]
        rules = {"never": ["request/far/*"]}  # Anthropic's clients cannot say so
        config = make_config(upstream.url, auth="keys", keys=keys, tools=["add"], require_approval=rules)
        async with serve(create_app(config)) as url:
            output, log = await output_of(place.interpreter, folder / script, client, url, KEY, far.url, seconds=90)
        assert output, log
        ours, theirs = json.loads(output)
        assert (ours[0], theirs[0]) == ("done", "done"), log
        assert ours[1] == ["callgate"]
        assert theirs[1] == ["far"]
        assert len(far.calls()) == 1
    assert not far.sessions
