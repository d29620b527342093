"""The bytes before the first message of a user are the same in every request of a session, so that providers keep the prompt.

On the wire of each lane, with tools of the client, of the config and of both, on every API. What stands behind them is only added to.
"""

import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from callgate.application import create_app
from callgate.config.schema.whole import Config
from callgate.conversation.ports import ModelRequest
from callgate.http.client import HttpClient
from callgate.models.building import model_entries
from callgate.models.direct.model import DirectModel, Endpoint
from callgate.models.resolve import known_endpoint
from tests.harness.configs import tool_entry
from tests.harness.server import serve
from tests.models.wire import QUICK, raw_provider
from tests.parameters.walk import AWS, LANES
from tests.prefixes.clients import OWN, SESSIONS, Session, head_of, history_of
from tests.prefixes.provider import READ, WRITTEN, Called, Planned

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.leaves("litellm", why="litellm keeps its thread for logging"),
]

OURS: Called = ("get_time", {})
ADD = ("add", {"a": 1, "b": 2})
THEIRS = (OWN, {"q": "x"})
PLANS: Mapping[str, Sequence[Sequence[Called]]] = {
    "own": [[THEIRS], [], [THEIRS], []],
    "ours": [[OURS], [ADD], [], [OURS], []],
    "mixed": [[OURS], [THEIRS], [OURS, THEIRS], [], [ADD, THEIRS], [THEIRS], []],
}


def config_of(lane: str, url: str, entry: Mapping[str, Any] | None = None, **sections: Any) -> Config:
    model, path, of_lane = LANES[lane]
    params: dict[str, Any] = {"model": model, "api_base": url + path, "api_key": "sk-upstream"}
    if model.startswith("bedrock/"):
        params = {"model": model, **AWS, "aws_bedrock_runtime_endpoint": url}
    ours = {
        "model_name": "m",
        "litellm_params": params,
        "tools": ["*"],
        "tool_calling": "native",
        **of_lane,
        **(entry or {}),
    }
    tools = [tool_entry("get_time"), tool_entry("add")]
    return Config.model_validate({"auth": "off", "model_list": [ours], "tools": tools, **sections})


@asynccontextmanager
async def sessions_on(lane: str, planned: Planned, **sections: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with raw_provider(planned.answer) as provider:
        app = create_app(config_of(lane, provider.url, **sections))
        async with serve(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client


async def played(client: httpx.AsyncClient, api: str, kind: str, **fields: Any) -> Session:
    tools = [] if kind == "ours" else [OWN]
    session = SESSIONS[api](client, "m", tools, fields)
    assert [await session.say("How late is it?"), await session.say("And now?")] == ["Done.", "Done."]
    return session


def check_prefixes(requests: Sequence[Any]) -> None:
    heads = [head_of(body) for body in requests]
    assert heads == heads[:1] * len(heads)


def check_histories(requests: Sequence[Any]) -> None:
    """What was sent stays as it was, and only more comes behind it."""
    histories = [history_of(body) for body in requests]
    for earlier, later in itertools.pairwise(histories):
        assert later[: len(earlier)] == earlier


@pytest.mark.parametrize("lane", LANES)
async def test_the_bytes_before_the_first_message_of_a_user_stay_the_same(lane: str) -> None:
    is_passed = lane == "passed"
    planned = Planned((), in_text=lane == "text")
    async with sessions_on(lane, planned) as client:
        for kind, plan in PLANS.items():
            if is_passed and kind != "own":
                continue
            for api in SESSIONS if kind == "mixed" or is_passed else ["chat"]:
                planned.begin(plan)
                await played(client, api, kind)
                assert len(planned.requests) == len(plan)
                check_prefixes(planned.requests)
                if kind != "ours":  # whose client is not shown the calls, so that it cannot send them back
                    check_histories(planned.requests)


@pytest.mark.parametrize("lane", ["direct", "text", "claude"])
async def test_searching_for_tools_changes_nothing_in_front(lane: str) -> None:
    find: Called = ("find_tools", {"query": "what time is it"})
    found: Called = ("call_tool", {"name": "get_time", "arguments": {}})
    planned = Planned([[find], [found], [THEIRS], [], [found], []], in_text=lane == "text")
    async with sessions_on(lane, planned, entry={"tool_search": "on"}) as client:
        await played(client, "chat", "mixed")
    assert len(planned.requests) == 6
    check_prefixes(planned.requests)


@pytest.mark.parametrize("api", ["chat", "messages"])
async def test_a_turn_at_the_limit_keeps_the_prompt_where_calls_can_be_forbidden(api: str) -> None:
    planned = Planned([[OURS], [ADD], [("add", {"a": 2, "b": 2})]])
    async with sessions_on("claude", planned, loop={"max_iterations": 2}) as client:
        session = SESSIONS[api](client, "m", [OWN], {})
        assert await session.say("How late is it?") == "Done."
    check_prefixes(planned.requests)
    check_histories(planned.requests)
    assert planned.requests[-1]["tool_choice"] == {"type": "none"}
    assert "tool_choice" not in planned.requests[0]


async def test_at_an_address_of_the_operators_own_it_has_no_tools() -> None:
    planned = Planned([[OURS], [ADD], [("add", {"a": 2, "b": 2})]])
    async with sessions_on("direct", planned, loop={"max_iterations": 2}) as client:
        assert await SESSIONS["chat"](client, "m", [], {}).say("How late is it?") == "Done."
    assert "tools" not in planned.requests[-1]
    assert "tool_choice" not in planned.requests[-1]


@pytest.mark.parametrize("forbids", [True, False])
def test_openai_itself_is_sent_the_tools_and_forbidden_to_call_them(forbids: bool) -> None:
    base = {} if forbids else {"api_base": "http://127.0.0.1:1/v1"}
    params = {"model": "openai/gpt-4o", "api_key": "sk", **base}
    config = {"auth": "off", "model_list": [{"model_name": "m", "litellm_params": params}]}
    [entry] = model_entries(Config.model_validate(config))
    endpoint = known_endpoint(entry)
    assert isinstance(endpoint, Endpoint)
    tool = msgspec.Raw(b'{"type":"function","function":{"name":"add","parameters":{"type":"object"}}}')
    messages = [msgspec.Raw(b'{"role":"user","content":"hi"}')]
    request = ModelRequest(messages, withheld=[tool])
    body = json.loads(DirectModel("m", endpoint, HttpClient(), QUICK)._encoded(request))
    assert (body.get("tool_choice"), "tools" in body) == (("none", True) if forbids else (None, False))


@pytest.mark.parametrize(
    ("lane", "api"),
    [("direct", "chat"), ("responses", "responses"), ("claude", "messages"), ("claude", "chat"), ("bedrock", "chat")],
)
async def test_what_was_read_from_a_cache_and_written_to_it_is_shown_for_each_turn(lane: str, api: str) -> None:
    planned = Planned(PLANS["mixed"])
    async with sessions_on(lane, planned) as client:
        session = await played(client, api, "mixed")
    turns = [turn for report in session.reports for turn in report["turns"]]
    assert [turn["cache"] for turn in turns] == [{"read": READ, "written": WRITTEN}] * len(PLANS["mixed"])


async def test_the_key_of_a_cache_is_passed_on_or_named() -> None:
    for lane, is_passed in (("direct", True), ("responses", True), ("claude", False), ("mistral", False)):
        planned = Planned(())
        async with sessions_on(lane, planned) as client:
            for api in ("chat", "responses"):
                session = await played(client, api, "ours", prompt_cache_key="a-session")
                assert [body.get("prompt_cache_key") == "a-session" for body in planned.requests] == [is_passed] * 2
                said = " ".join(warning for report in session.reports for warning in report.get("warnings", ()))
                assert ("prompt_cache_key" in said) is not is_passed
                planned.begin(())
