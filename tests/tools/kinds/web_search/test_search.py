"""A search asks the engine of the config in its own words, and lists what it found."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from callgate.application import create_app
from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.config.schema.whole import Config
from callgate.tools.executor import Policy, Safety, Tool
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.web_search.building import web_search_tool
from callgate.tools.kinds.web_search.settings import WebSearchTool
from tests.harness.clients import http_client, openai_client
from tests.harness.configs import make_config
from tests.harness.messages import MessagesClient, calls_of
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.executor_kinds import an_occasion, ready
from tests.tools.kinds.web_pages import Answer, WebOfTests, found, page, web_of_tests

pytestmark = pytest.mark.anyio

RUST = {
    "url": "https://rust.example/2",
    "title": "Rust 2.0",
    "content": "It is\n\n1. out.",
    "publishedDate": "2026-01-02T03",
}
BLOG = {"url": "https://blog.example/rust", "title": "The blog", "content": "News."}
EVIL = {"url": "javascript:alert(1)", "title": "Evil", "content": "x"}


def tool_for(web: Web, url: str, engine: str, **settings: Any) -> Tool:
    if engine != "searxng":
        settings["api_key"] = "sk-search"
    section: Any = {"kind": "web_search", "engine": engine, "url": url, **settings}
    models = [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}}]
    [entry] = Config.model_validate({"model_list": models, "tools": [section]}).tools
    assert isinstance(entry, WebSearchTool)
    return web_search_tool(entry, Policy(), web)


async def searched(web: WebOfTests, engine: str, host: str = "127.0.0.1", **arguments: Any) -> Outcome:
    ours = Web(resolve=web.resolve)
    try:
        tool = tool_for(ours, web.url(host), engine)
        return await tool.executor.execute(ready("web_search", query="rust 2", **arguments), an_occasion())
    finally:
        await ours.close()


LISTED = (
    "1. Rust 2.0\nhttps://rust.example/2\n(2026-01-02) It is 1. out.\n\n2. The blog\nhttps://blog.example/rust\nNews."
)


async def test_searxng_is_asked_for_json() -> None:
    async with web_of_tests(lambda *_: found(RUST, EVIL, BLOG)) as web:
        outcome = await searched(web, "searxng", allowed_domains=["rust.example", "blog.example"])
    assert outcome == Returned(LISTED)
    [(_, target)] = web.asked
    query = "rust 2 (site:rust.example OR site:blog.example)"
    assert (urlsplit(target).path, parse_qs(urlsplit(target).query)) == ("/search", {"q": [query], "format": ["json"]})


async def test_brave_is_asked_with_its_key() -> None:
    pages = [{**each, "description": each["content"], "page_age": each.get("publishedDate")} for each in (RUST, BLOG)]
    for each in pages:
        del each["content"]
    answer = page(json.dumps({"web": {"results": pages}}), Content_Type="application/json")
    async with web_of_tests(lambda *_: answer) as web:
        outcome = await searched(web, "brave", blocked_domains=["evil.example"], country="pt")
    assert outcome == Returned(LISTED)
    words = parse_qs(urlsplit(web.asked[0][1]).query)
    assert (words["q"], words["count"], words["country"]) == (["rust 2 -site:evil.example"], ["8"], ["PT"])
    assert "x-subscription-token: sk-search" in web.heads[0].lower()


async def test_tavily_is_told_of_domains() -> None:
    async with web_of_tests(lambda *_: found(RUST, BLOG)) as web:
        outcome = await searched(web, "tavily", allowed_domains=["rust.example"])
    assert outcome == Returned(LISTED.partition("\n\n2.")[0])
    body = json.loads(web.bodies[0])
    assert body == {"query": "rust 2", "max_results": 8, "include_domains": ["rust.example"]}
    assert "authorization: bearer sk-search" in web.heads[0].lower()


async def test_pages_that_an_engine_should_not_have_returned_are_left_out() -> None:
    async with web_of_tests(lambda *_: found(RUST, BLOG)) as web:
        blocked = await searched(web, "searxng", blocked_domains=["example"])
        wrong = await searched(web, "searxng", allowed_domains=["https://rust.example"])
    assert blocked == Returned("Nothing was found.")
    assert isinstance(wrong, Failed)
    assert wrong.kind is FailureKind.NOT_RUN


async def test_an_engine_that_answers_with_something_else_is_a_failure_in_words() -> None:
    answers: list[Answer] = [
        page("<html>Sign in</html>"),
        found({"title": "no address"}),
        (401, {"Content-Type": "text/plain"}, b"bad key"),
        (302, {"Location": "http://127.0.0.1:1/"}, b""),
        page("{" * 100, Content_Type="application/json"),
    ]
    async with web_of_tests(lambda *_: answers.pop(0)) as web:
        outcomes = [await searched(web, "tavily") for _ in range(5)]
    assert all(isinstance(outcome, Failed) for outcome in outcomes)
    assert "sk-search" not in str(outcomes)


async def test_a_public_name_with_a_private_address_is_refused_and_ones_own_is_not() -> None:
    async with web_of_tests(lambda *_: found(RUST)) as web:
        public = await searched(web, "searxng", "search.example")
        own = await searched(web, "searxng", "searx.internal")
    assert isinstance(public, Failed)
    assert public.kind is FailureKind.REFUSED
    assert isinstance(own, Returned)


@pytest.mark.parametrize(
    "section", [{"engine": "searxng"}, {"engine": "brave"}, {"engine": "tavily", "url": "https://t.example"}]
)
def test_an_entry_without_what_its_engine_needs_is_refused(section: dict[str, Any]) -> None:
    models = [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}}]
    with pytest.raises(ValueError, match="needs"):
        Config.model_validate({"model_list": models, "tools": [{"kind": "web_search", **section}]})


async def test_one_line_of_config_gives_every_model_the_web_on_every_api(upstream: Upstream) -> None:
    upstream.script(
        "m", [Reply(calls=[Call("web_search", {"query": "rust 2"})]), Reply(text=f"See {RUST['url']}.")] * 3
    )
    async with web_of_tests(lambda *_: found(RUST)) as web:
        config = make_config(
            upstream.url, tools=[{"kind": "web_search", "engine": "searxng", "url": web.url("127.0.0.1")}]
        )
        async with serve(create_app(config)) as url, openai_client(url) as client, http_client(url) as http:
            tools: Any = [{"type": "web_search", "user_location": {"type": "approximate", "country": "PT"}}]
            response = await client.responses.create(model="m", input="go", tools=tools)
            block = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
            message = await MessagesClient(http).ask(tools=[block])
            chat = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "go"}])
    assert [item.type for item in response.output] == ["web_search_call", "message"]
    [result] = calls_of(message, "web_search_tool_result")
    assert result["content"][0]["url"] == RUST["url"]
    assert chat.choices[0].message.content == f"See {RUST['url']}."
    told = next(iter(upstream.requests[1].tool_results.values()))
    assert "Rust 2.0" in told


def test_a_search_only_reads_and_is_marked() -> None:
    tool = tool_for(Web(), "http://127.0.0.1:8888", "searxng")
    assert (tool.policy.safety, tool.policy.untrusted) == (Safety.READ_ONLY, True)
    trusted = tool_for(Web(), "http://127.0.0.1:8888", "searxng", untrusted=False)
    assert trusted.policy.untrusted is False
