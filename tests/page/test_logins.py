"""Logging in to MCP servers on the page, by a person at a browser."""

import asyncio
import json
from typing import Any

import pytest

from tests.harness.clients import http_client
from tests.harness.environment import MCP_NODE, OIDC_PROVIDER
from tests.harness.needs import needs
from tests.page.login_place import place, real_place
from tests.page.tabs import Tabs
from tests.scripted_upstream import Call, Upstream

pytestmark = [pytest.mark.anyio, needs("environment:page", "chromium-headless-shell")]

LOGIN = Call("notes_login", {}, id="call_0")
CALL = Call("notes_whoami", {}, id="call_1")


async def follow(page: Any, name: str) -> str:
    """Open the link of a card in a window of its own; return what that says at the end."""
    async with page.context.expect_page() as opening:
        await page.get_by_role("link", name=name).click()
    window = await opening.value
    await window.wait_for_url("**/oauth/callback?**")
    return str(await window.locator("body").inner_text())


async def test_a_key_logs_in_for_itself(upstream: Upstream, tabs: Tabs) -> None:
    async with place(upstream, tabs, "key") as it:
        assert f"{it.url}/#/tools" in await it.ask(LOGIN)
        page = await tabs.open(f"{it.url}/#/tools", key=it.keys["ann"])
        row = page.get_by_role("table", name="Logins").get_by_role("row").filter(has_text="notes")
        await row.get_by_text("nobody is logged in").wait_for()
        assert "key ann" in await row.inner_text()
        it.logs_in("ann")
        await row.get_by_role("button", name="Log in").click()
        card = page.get_by_role("article", name="Log in to notes")
        assert f"{it.authority.url}/authorize?" in await card.inner_text()
        host = it.authority.url.removeprefix("http://")
        assert await follow(page, f"Go on to {host}") == "Logged in to notes. This window can be closed."
        await row.get_by_text("logged in at").wait_for()
        await card.wait_for(state="detached")
        await page.get_by_role("link", name="notes_whoami").wait_for()
        assert json.loads(await it.ask(CALL)) == {"subject": "ann"}


@needs(f"environment:{MCP_NODE}", f"environment:{OIDC_PROVIDER}")
async def test_a_whole_login_at_a_real_authorization_server(upstream: Upstream, tabs: Tabs) -> None:
    async with real_place(upstream, tabs, "key") as it:
        assert f"{it.url}/#/tools" in await it.ask(LOGIN)
        page = await tabs.open(f"{it.url}/#/tools", key=it.keys["ann"])
        row = page.get_by_role("table", name="Logins").get_by_role("row").filter(has_text="notes")
        await row.get_by_role("button", name="Log in").click()
        async with page.context.expect_page() as opening:
            await page.get_by_role("link", name="Go on to").click()
        window = await opening.value
        await window.locator("input[name=login]").fill("ada")
        await window.locator("input[name=password]").fill("x")
        await window.get_by_role("button", name="Sign-in").click()
        await window.get_by_role("button", name="Continue").click()
        await window.wait_for_url("**/oauth/callback?**")
        assert await window.locator("body").inner_text() == "Logged in to notes. This window can be closed."
        await row.get_by_text(f"logged in at {it.authority.url}").wait_for()
        await page.get_by_role("link", name="notes_whoami").wait_for()
        assert json.loads(await it.ask(CALL)) == {"subject": "ada"}
        assert "wants a login" in await it.ask(CALL, key="boss")


async def test_the_operator_is_told_that_all_keys_act_as_his_login(upstream: Upstream, tabs: Tabs) -> None:
    async with place(upstream, tabs, "server") as it:
        page = await tabs.open(f"{it.url}/#/tools", key=it.keys["boss"])
        row = page.get_by_role("table", name="Logins").get_by_role("row").filter(has_text="notes")
        await row.get_by_text("whoever may use its tools acts as this login").wait_for()
        it.logs_in("robot")
        await row.get_by_role("button", name="Log in").click()
        host = it.authority.url.removeprefix("http://")
        assert await follow(page, f"Go on to {host}") == "Logged in to notes. This window can be closed."
        await row.get_by_text("logged in at").wait_for()
        await page.get_by_role("link", name="notes_whoami").wait_for()
        assert json.loads(await it.ask(CALL)) == {"subject": "robot"}
        page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))
        await row.get_by_role("button", name="Log out").click()
        await row.get_by_text("nobody is logged in").wait_for()


async def test_a_user_without_a_key_logs_in_by_his_own_address(upstream: Upstream, tabs: Tabs) -> None:
    async with place(upstream, tabs, "user") as it:
        said = await it.ask(LOGIN, user="eve <b>")
        [address] = [word.rstrip(".") for word in said.split() if f"{it.url}/#/login/" in word]
        page = await tabs.open(address)
        await page.get_by_role("button", name="Show me where to log in").click()
        await page.get_by_text("for user eve <b> of key ann").wait_for()
        it.logs_in("eve")
        host = it.authority.url.removeprefix("http://")
        said = "Logged in to notes. This window can be closed. The address that it was begun by cannot be used again."
        assert await follow(page, f"Go on to {host}") == said
        assert await page.get_by_role("dialog").count() == 0  # he is asked for no key
        while "subject" not in (told := await it.ask(CALL, user="eve <b>")):
            pass  # the tools are listed in the background
        assert json.loads(told) == {"subject": "eve"}
        again = await tabs.open(address)
        await again.get_by_role("button", name="Show me where to log in").click()
        await again.get_by_role("alert").get_by_text("this address has been used").wait_for()


async def test_an_address_that_is_none_says_so(upstream: Upstream, tabs: Tabs) -> None:
    async with place(upstream, tabs, "user") as it:
        page = await tabs.open(f"{it.url}/#/login/cg2.made-up")
        await page.get_by_role("button", name="Show me where to log in").click()
        await page.get_by_role("alert").get_by_text("none that was made here").wait_for()


async def test_another_browser_does_not_end_a_login(upstream: Upstream, tabs: Tabs) -> None:
    async with place(upstream, tabs, "key") as it:
        page = await tabs.open(f"{it.url}/#/tools", key=it.keys["ann"])
        await page.get_by_role("table", name="Logins").get_by_role("button", name="Log in").click()
        link = page.get_by_role("link", name="Go on to")
        address = await link.get_attribute("href")
        it.logs_in("somebody else")
        async with http_client(it.url) as client:
            client.follow_redirects = True
            back = await client.get(address)
        assert back.text.startswith("Not logged in:")
        row = page.get_by_role("table", name="Logins").get_by_role("row").filter(has_text="notes")
        assert "nobody is logged in" in await row.inner_text()
