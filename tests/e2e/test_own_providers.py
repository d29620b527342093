"""Providers that only the config defines, through the whole server."""

import json
from typing import Any

import pytest

from callgate.application import create_app
from callgate.config.entry_errors import BadEntry
from callgate.config.schema.whole import Config
from callgate.models.building import model_entries
from tests.harness.clients import http_client
from tests.harness.configs import config_dict
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

QUESTION = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}]


def config_of(base_url: str, *, entry: dict[str, Any] | None = None, **provider: Any) -> dict[str, Any]:
    config = config_dict(base_url, tools=("add",))
    params = {"model": "acme/m", **(entry or {})}
    config["model_list"] = [{"model_name": "large", "litellm_params": params, "tools": ["*"]}]
    config["providers"] = {"acme": {"base_url": base_url, "api_key": "sk-of-acme", **provider}}
    return config


async def text_and_turns(config: dict[str, Any], **request: Any) -> tuple[str, list[dict[str, Any]]]:
    """The text of the answer, and its turns."""
    async with serve(create_app(Config.model_validate(config))) as url, http_client(url) as client:
        answer = await client.post("/v1/chat/completions", json={"model": "large", "messages": QUESTION, **request})
        assert answer.status_code == 200, answer.text
    if not request.get("stream"):
        body = answer.json()
        return body["choices"][0]["message"]["content"], body["x_callgate"]["turns"]
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    [account] = [event["x_callgate"] for event in events if "turns" in (event.get("x_callgate") or {})]
    return "".join(delta.get("content") or "" for delta in deltas), account["turns"]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_provider_of_the_config_is_asked_with_its_key_headers_and_fields(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(calls=[Call("add", {"a": 2, "b": 2})]), Reply(text="4")])
    config = config_of(
        upstream.url, headers={"X-Team": "blue"}, body={"safe_mode": True, "seed": 1}, stream_options=False
    )
    text, turns = await text_and_turns(config, stream=stream, seed=7)
    assert (text, [turn["lane"] for turn in turns]) == ("4", ["direct", "direct"])
    sent = upstream.requests[0]
    assert (sent.headers["authorization"], sent.headers["x-team"]) == ("Bearer sk-of-acme", "blue")
    assert (sent.body["model"], sent.body["safe_mode"], sent.body["seed"]) == ("m", True, 7)
    assert "stream_options" not in sent.body
    assert sent.body["messages"][0]["role"] == "system"


async def test_an_entrys_own_settings_win(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="4")])
    config = config_of(
        "http://127.0.0.1:9/v1",
        entry={"api_base": upstream.url, "api_key": "sk-of-entry", "extra_headers": {"X-Team": "red"}},
        headers={"X-Team": "blue"},
        developer_role=True,
    )
    await text_and_turns(config)
    sent = upstream.requests[0]
    assert (sent.headers["authorization"], sent.headers["x-team"]) == ("Bearer sk-of-entry", "red")
    assert sent.body["messages"][0]["role"] == "developer"


async def test_a_provider_with_anthropics_api_is_asked_in_its_words(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("add", {"a": 2, "b": 2})]), Reply(text="4")])
    text, turns = await text_and_turns(config_of(upstream.root, wire="anthropic"))
    assert (text, [turn["lane"] for turn in turns]) == ("4", ["translated", "translated"])
    sent = upstream.requests[0]
    assert (sent.path, sent.headers["x-api-key"], sent.body["model"]) == ("/v1/messages", "sk-of-acme", "m")


async def test_a_provider_whose_name_litellm_knows_is_asked_where_the_config_says(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="4")])
    config = config_of(upstream.url, entry={"model": "groq/m"})
    config["providers"] = {"groq": config["providers"]["acme"]}
    text, turns = await text_and_turns(config)
    assert (text, turns[0]["lane"]) == ("4", "direct")
    assert upstream.requests[0].headers["authorization"] == "Bearer sk-of-acme"


async def test_a_wildcard_stands_for_all_its_models(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="4")])
    config = config_of(upstream.url, entry={"model": "acme/*"})
    config["model_list"][0]["model_name"] = "large*"
    config["model_list"][0]["litellm_params"]["model"] = "acme/*"
    async with serve(create_app(Config.model_validate(config))) as url, http_client(url) as client:
        answer = await client.post("/v1/chat/completions", json={"model": "largem", "messages": QUESTION})
    assert answer.status_code == 200, answer.text
    assert upstream.requests[0].body["model"] == "m"


@pytest.mark.parametrize(
    ("entry", "lane", "complaint"),
    [
        ({"model": "acmee/m"}, "auto", "did you mean `acme/m`?"),
        ({"guardrails": ["g"]}, "auto", "one of `providers`, and only the litellm lane can honour guardrails"),
        ({}, "litellm", "lane is litellm, and its provider is one of `providers`"),
    ],
)
def test_what_cannot_work_is_a_mistake_in_the_config(entry: dict[str, Any], lane: str, complaint: str) -> None:
    config = config_of("http://127.0.0.1:9/v1", entry=entry)
    config["model_list"][0]["lane"] = lane
    with pytest.raises(BadEntry) as caught:
        model_entries(Config.model_validate(config))
    assert complaint in str(caught.value.mistakes())


async def test_its_reasoning_is_read_where_it_writes_it(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="4", extras={"thoughts": "Two and two."})])
    config = config_of(upstream.url, reasoning_field="thoughts")
    async with serve(create_app(Config.model_validate(config))) as url, http_client(url) as client:
        answer = await client.post("/v1/chat/completions", json={"model": "large", "messages": QUESTION})
    assert answer.json()["choices"][0]["message"]["reasoning_content"] == "Two and two."
