import pytest

from callgate.access.keys import mint_key
from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.clients import http_client
from tests.harness.configs import config_dict, make_config
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
                    "title": None,
                    "description": "Current server time.",
                    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
                    "kind": "python",
                    "origin": "config/get_time",
                    "source": "config",
                    "safety": "read_only",
                    "require_approval": True,
                    "untrusted": False,
                    "prompt_tokens": 41,
                    "state": "ready",
                },
                {
                    "name": "read_more",
                    "object": "tool",
                    "description": "Reads on in a tool result that was cut, by the id that it names.",
                    "parameters": {
                        "type": "object",
                        "properties": {"id": {"type": "string"}, "offset": {"type": "integer", "minimum": 0}},
                        "required": ["id"],
                    },
                    "kind": "callgate",
                    "origin": "callgate/read_more",
                    "source": "callgate",
                    "safety": "read_only",
                    "require_approval": False,
                    "untrusted": False,
                    "prompt_tokens": 65,
                    "state": "ready",
                },
            ],
        }
        all_of_it = (await client.get("/v1/tools", headers={"Authorization": f"Bearer {admin}"})).json()["data"]
        assert [(tool["name"], tool["state"]) for tool in all_of_it] == [
            ("add", "ready"),
            ("get_time", "ready"),
            ("read_more", "ready"),
            ("web", "quarantined"),
        ]
        assert "never fetched" in all_of_it[3]["reason"]
        assert (await client.get("/v1/tools")).status_code == 401


async def test_the_tools_of_each_model_are_counted_with_the_tokens_they_cost(upstream: Upstream) -> None:
    (user, user_hash), (all_of_it, all_hash) = mint_key(), mint_key()
    keys = [{"name": "user", "hash": user_hash, "tools": ["get_*"]}, {"name": "all", "hash": all_hash}]
    settings = config_dict(upstream.url, models=["m", "few", "none"], tools=["add", "get_time"], auth="keys", keys=keys)
    settings["model_list"][1]["tools"], settings["model_list"][2]["tools"] = ["add"], []
    async with serve(create_app(Config.model_validate(settings))) as url, http_client(url) as client:
        seen = {}
        for name, key in (("user", user), ("all", all_of_it)):
            answer = await client.get("/v1/tools?models=1", headers={"authorization": f"Bearer {key}"})
            seen[name] = answer.json()
    cost = {tool["name"]: tool["prompt_tokens"] for tool in seen["all"]["data"]}
    assert [(model["id"], model["tools"], model["prompt_tokens"]) for model in seen["all"]["models"]] == [
        ("m", 3, cost["add"] + cost["get_time"] + cost["read_more"]),
        ("few", 2, cost["add"] + cost["read_more"]),
        ("none", 0, 0),
    ]
    assert [(model["tools"], model["prompt_tokens"]) for model in seen["user"]["models"]] == [
        (2, cost["get_time"] + cost["read_more"]),
        (0, 0),
        (0, 0),
    ]


async def test_a_tool_is_shown_as_a_model_gets_it(upstream: Upstream) -> None:
    union = {"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}]}
    web = {"kind": "http", "name": "web", "description": "d", "url": "http://127.0.0.1:1/", "parameters": union}
    settings = config_dict(upstream.url, models=["m", "other"], tools=[web])
    settings["model_list"][1]["schema_dialect"] = "gemini"
    async with serve(create_app(Config.model_validate(settings))) as url, http_client(url) as client:
        plain = (await client.get("/v1/tools/web")).json()
        full = (await client.get("/v1/tools/web", params={"model": "m"})).json()["sent"]
        gemini = (await client.get("/v1/tools/web", params={"model": "other"})).json()["sent"]
        no_tool = await client.get("/v1/tools/nothing")
        no_model = await client.get("/v1/tools/web", params={"model": "nothing"})

    assert (plain["name"], "sent" in plain) == ("web", False)
    assert full == {"model": "m", "dialect": "full", "parameters": plain["parameters"], "losses": []}
    assert (gemini["dialect"], gemini["parameters"] == plain["parameters"]) == ("gemini", False)
    assert (no_tool.status_code, no_tool.json()["error"]["code"]) == (404, "tool_not_found")
    assert no_model.status_code == 404


async def test_what_a_model_costs_is_listed_on_request(upstream: Upstream) -> None:
    costs = {"input_cost_per_token": 2e-6, "output_cost_per_token": 8e-6}
    config = make_config(upstream.url, entry={"model_info": costs})
    async with serve(create_app(config)) as url, http_client(url) as client:
        plain = (await client.get("/v1/models/m")).json()["x_callgate"]
        priced = (await client.get("/v1/models/m", params={"price": 1})).json()["x_callgate"]

    assert "price" not in plain
    assert priced["price"] == {"prompt": 2.0, "completion": 8.0, "cached": None}
