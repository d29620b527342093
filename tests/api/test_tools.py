import pytest

from callgate.application import create_app
from callgate.auth.keys import mint_key
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Upstream

pytestmark = pytest.mark.anyio

BROKEN = {
    "kind": "http",
    "name": "web",
    "description": "d",
    "url": "http://127.0.0.1:1/?key=secret",
    "parameters": {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}},
}


async def test_a_key_sees_the_tools_it_may_use_and_an_operator_what_is_wrong_with_others(upstream: Upstream) -> None:
    (user, user_hash), (admin, admin_hash) = mint_key(), mint_key()
    keys = [
        {"name": "user", "hash": user_hash, "tools": ["get_*"]},
        {"name": "admin", "hash": admin_hash, "admin": True},
    ]
    config = make_config(
        upstream.url,
        tools=["add", "get_time", BROKEN],
        auth="keys",
        keys=keys,
        require_approval={"always": ["get_time"]},
    )
    async with serve(create_app(config)) as url, http_client(url) as client:
        seen = (await client.get("/v1/tools", headers={"Authorization": f"Bearer {user}"})).json()
        assert seen == {
            "object": "list",
            "data": [
                {
                    "name": "get_time",
                    "object": "tool",
                    "description": "Current server time.",
                    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
                    "kind": "python",
                    "origin": "config/get_time",
                    "source": "config",
                    "safety": "read_only",
                    "require_approval": True,
                    "state": "ready",
                }
            ],
        }
        all_of_it = (await client.get("/v1/tools", headers={"Authorization": f"Bearer {admin}"})).json()["data"]
        assert [(tool["name"], tool["state"]) for tool in all_of_it] == [
            ("add", "ready"),
            ("get_time", "ready"),
            ("web", "quarantined"),
        ]
        assert "never fetched" in all_of_it[2]["reason"]
        assert (await client.get("/v1/tools")).status_code == 401
