"""The cards of calls that wait for a person."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.harness.clients import http_client
from tests.harness.needs import needs
from tests.page.served import IMG, keyring, say, served_page
from tests.page.tabs import Tabs
from tests.scripted_upstream import Call, Reply, Upstream, by_turn
from tests.tools.servers.asking_mcp import FORM, AskingMcp, answered, elicitation, input_required
from tests.tools.servers.asking_mcp import page as page_to_open

pytestmark = [pytest.mark.anyio, needs("environment:page", "chromium-headless-shell")]

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
OBJECT = {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}}
ASKS: dict[str, Any] = {"require_approval": {"always": ["echo"]}}


@contextlib.asynccontextmanager
async def waiting(upstream: Upstream, client: httpx.AsyncClient, text: str, **more: Any) -> AsyncIterator[Any]:
    """A chat whose call of `echo` waits."""
    upstream.script("m", by_turn([Reply(calls=[Call("echo", {"text": text})]), Reply(text="So be it.")]))
    asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION, **more))
    try:
        yield asking
    finally:
        await asking


async def test_an_approved_call_runs_and_every_other_tab_says_by_whom(upstream: Upstream, tabs: Tabs) -> None:
    keys, auth = keyring(carol={"approve": True}, dave={"approve": True}, user={})
    async with served_page(upstream, tabs, **ASKS, **auth) as url, http_client(url) as client:
        page = await tabs.open(f"{url}/#/approvals", key=keys["carol"])
        other = await tabs.open(f"{url}/#/approvals", key=keys["dave"])
        for each in (page, other):
            await each.get_by_text("live", exact=True).wait_for()
            await each.get_by_text("No call waits for a person.").wait_for()
        async with waiting(upstream, client, IMG, headers={"authorization": f"Bearer {keys['user']}"}) as asking:
            card = page.get_by_role("article", name="echo waits")
            await card.get_by_text(IMG).wait_for()
            await card.get_by_text("Gives the text back.").wait_for()
            assert await page.title() == "(1) Approvals · Callgate"
            await other.get_by_role("button", name="Approve").wait_for()
            await page.evaluate("() => new Promise((done) => setTimeout(done, 450))")
            await card.get_by_role("button", name="Approve").dblclick()
            answer = (await asking).json()
        await card.get_by_text("approved by carol").wait_for()
        await other.get_by_text("approved by carol").wait_for()
        assert await other.get_by_role("button", name="Approve").count() == 0
        assert await page.locator("img").count() == 0
        assert await page.title() == "Approvals · Callgate"

    assert answer["choices"][0]["message"]["content"] == "So be it."
    assert next(iter(upstream.requests[-1].tool_results.values())) == IMG


async def test_a_denied_call_is_answered_with_the_reason(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs, **ASKS) as url, http_client(url) as client:
        page = await tabs.open(f"{url}/#/approvals")
        async with waiting(upstream, client, "x"):
            reason = page.get_by_label("Reason")
            await reason.fill("not on a Sunday")
            await reason.press("Enter")  # which decides nothing
            await page.evaluate("() => new Promise((done) => setTimeout(done, 450))")
            assert await page.get_by_role("button", name="Deny").is_enabled()
            await page.get_by_role("button", name="Deny").click()
        await page.get_by_text("denied by anonymous").wait_for()

    assert "not on a Sunday" in next(iter(upstream.requests[-1].tool_results.values()))


async def test_a_click_on_a_card_that_has_just_moved_decides_nothing(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs, **ASKS) as url, http_client(url) as client:
        page = await tabs.open(f"{url}/#/approvals")
        await page.get_by_text("No call waits for a person.").wait_for()
        await page.evaluate(
            """() => new MutationObserver((_, observer) => {
              const button = document.querySelector('article button[value=approve]');
              if (button) { observer.disconnect(); button.click(); }
            }).observe(document.body, { subtree: true, childList: true })"""
        )
        async with waiting(upstream, client, "x"):
            await page.get_by_text("The cards have just moved").wait_for()
            [card] = (await client.get("/v1/approvals")).json()["data"]
            await client.post(f"/v1/approvals/{card['id']}", json={"decision": "deny"})


async def test_what_has_changed_between_the_list_and_the_click_is_not_run(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs, **ASKS) as url, http_client(url) as client:
        page = await tabs.open(f"{url}/#/playground")
        await page.get_by_text("live", exact=True).wait_for()

        async def other_arguments(route: Any) -> None:
            answer = await route.fetch()
            listed = await answer.json()
            for each in listed["data"]:
                each["hash"] = "0" * 64
            await route.fulfill(response=answer, json=listed)

        await page.route("**/v1/approvals", other_arguments)
        await page.evaluate("() => { location.hash = '#/approvals'; }")
        async with waiting(upstream, client, "x"):
            await page.get_by_role("button", name="Approve").wait_for()
            await page.evaluate("() => new Promise((done) => setTimeout(done, 450))")
            async with page.expect_response(lambda answer: answer.request.method == "POST") as coming:
                await page.get_by_role("button", name="Approve").click()
            status = (await coming.value).status
            await page.unroute_all(behavior="wait")
            [card] = (await client.get("/v1/approvals")).json()["data"]
            await client.post(f"/v1/approvals/{card['id']}", json={"decision": "deny"})

    assert status == 409
    assert "Not run" in next(iter(upstream.requests[-1].tool_results.values()))


async def test_the_playground_and_the_run_show_the_wait_for_a_person(upstream: Upstream, tabs: Tabs) -> None:
    upstream.script("m", by_turn([Reply(calls=[Call("echo", {"text": "x"})]), Reply(text="So be it.")]))
    async with served_page(upstream, tabs, **ASKS) as url, http_client(url) as client:
        page = await tabs.open(f"{url}/#/playground")
        await say(page)
        await page.get_by_text("waiting for approval").wait_for()
        [card] = (await client.get("/v1/approvals")).json()["data"]
        await client.post(f"/v1/approvals/{card['id']}", json={"decision": "approve", "hash": card["hash"]})
        await page.locator(".trace .call.done").wait_for()
        await page.get_by_text("Open run_").click()
        await page.get_by_text("approved", exact=True).wait_for()
        parts = await page.locator(".of-call i").evaluate_all("(all) => all.map((each) => each.className)")

    assert parts == ["tool", "waiting", "tool"]


async def test_a_card_shows_the_very_arguments_that_will_run(upstream: Upstream, tabs: Tabs) -> None:
    text = "safe\u202e\u200b\U000e0041"
    upstream.script(
        "m", by_turn([Reply(calls=[Call("echo", f'{{"text": "{text}", "n": 9007199254740993}}')]), Reply(text="So.")])
    )
    echo = {
        "kind": "command",
        "name": "echo",
        "description": "d",
        "argv": ["cat"],
        "stdin": "json",
        "parameters": OBJECT,
    }
    async with served_page(upstream, tabs, tools=[echo], **ASKS) as url, http_client(url) as client:
        page = await tabs.open(f"{url}/#/approvals")
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
        said = await page.get_by_role("article", name="echo waits").locator("pre").inner_text()
        [card] = (await client.get("/v1/approvals")).json()["data"]
        await client.post(f"/v1/approvals/{card['id']}", json={"decision": "approve"})
        await asking

    assert '"n": 9007199254740993' in said
    assert r'"safe\u202e\u200b\udb40\udc41"' in said
    assert json.loads(said) == {"text": text, "n": 9007199254740993}


async def test_a_key_that_may_not_decide_sees_why(upstream: Upstream, tabs: Tabs) -> None:
    keys, auth = keyring(user={})
    async with served_page(upstream, tabs, **auth) as url:
        page = await tabs.open(f"{url}/#/approvals", key=keys["user"])
        await page.get_by_text("This key may not decide about calls").wait_for()
        assert await page.title() == "Approvals · Callgate"


@contextlib.asynccontextmanager
async def asked(upstream: Upstream, tabs: Tabs, *questions: dict[str, Any]) -> AsyncIterator[tuple[Any, AskingMcp]]:
    """The page with a question of a tool's server."""

    def does(params: dict[str, Any]) -> dict[str, Any]:
        if "inputResponses" in params:
            return answered(json.dumps(params["inputResponses"]["q0"]))
        return input_required(*questions)

    upstream.script("m", by_turn([Reply(calls=[Call("tracker_create_issue", {})]), Reply(text="So be it.")]))
    server = AskingMcp(does=does)
    async with server.running():
        servers = {"tracker": {"url": server.url, "elicitation": "both"}}
        async with (
            served_page(upstream, tabs, mcp_servers=servers, entry={"tools": ["*"]}) as url,
            http_client(url) as client,
        ):
            page = await tabs.open(f"{url}/#/approvals")
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
            card = page.get_by_role("article", name="tracker_create_issue asks")
            await card.wait_for()
            await page.evaluate("() => new Promise((done) => setTimeout(done, 450))")
            yield card, server
            await asking


async def test_a_form_of_a_server_is_filled_in_and_sent(upstream: Upstream, tabs: Tabs) -> None:
    several = {
        "type": "array",
        "title": "Labels",
        "items": {"type": "string", "enum": ["bug", "docs"]},
        "default": ["docs"],
    }
    schema = {**FORM, "properties": {**FORM["properties"], "labels": several, "token": {"type": "string"}}}
    async with asked(upstream, tabs, elicitation(IMG, schema=schema)) as (card, server):
        assert await card.get_by_role("heading").inner_text() == "tracker asks, while running tracker_create_issue"
        assert await card.locator(".asked").inner_text() == IMG
        assert "token: this looks like a secret" in await card.get_by_role("alert").inner_text()
        assert await card.get_by_label("token").get_attribute("type") == "password"
        assert await card.get_by_label("Title of the issue").input_value() == ""
        await card.get_by_label("Title of the issue").fill("It leaks")
        await card.get_by_label("count").fill("2")
        await card.get_by_label("bug").check()
        await card.get_by_role("button", name="Send the answer").click()
        await card.get_by_text("answered by anonymous").wait_for()
    said = json.loads(next(iter(upstream.requests[-1].tool_results.values())))
    filled = {"title": "It leaks", "priority": "low", "count": 2, "loud": False, "labels": ["bug", "docs"]}
    assert said == {"action": "accept", "content": filled}
    assert len(server.calls()) == 2


async def test_a_page_that_a_server_wants_opened_is_a_link_with_its_host(upstream: Upstream, tabs: Tabs) -> None:
    wanted = page_to_open("https://g\u0456thub.example/login?next=https://github.com")
    async with asked(upstream, tabs, wanted) as (card, _):
        assert await card.locator(".host").inner_text() == "xn--gthub-n2e.example"
        link = card.get_by_role("link", name="https://g")
        assert await link.get_attribute("rel") == "noopener noreferrer"
        await card.get_by_role("button", name="Decline").click()
        await card.get_by_text("declined by anonymous").wait_for()
    assert json.loads(next(iter(upstream.requests[-1].tool_results.values()))) == {"action": "decline"}
