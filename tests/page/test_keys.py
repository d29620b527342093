"""Keys, what becomes of texts, and what was decided: the pages of whoever operates a server, and what others see there."""

from pathlib import Path

import pytest

from tests.harness.clients import http_client
from tests.harness.needs import needs
from tests.page.served import answered, ask, keyring, say, served_page
from tests.page.tabs import Tabs
from tests.page.test_playground import FIRST_HOUR
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = [pytest.mark.anyio, needs("environment:page", "chromium-headless-shell")]


async def test_an_operator_makes_limits_and_revokes_a_key(upstream: Upstream, tabs: Tabs, tmp_path: Path) -> None:
    keys, auth = keyring(boss={"admin": True})
    async with served_page(upstream, tabs, data_dir=str(tmp_path), **auth) as url, http_client(url) as client:
        page = await tabs.open(f"{url}/#/keys", key=keys["boss"])
        await page.get_by_role("button", name="Make a key").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Whose it is").fill("alice")
        await dialog.get_by_label("US dollars a day").fill("5")
        await dialog.get_by_role("button", name="Make it").click()
        secret = await page.get_by_role("status", name="The new key").locator("pre").inner_text()
        headers = {"authorization": f"Bearer {secret}"}
        made = (await client.get("/v1/key", headers=headers)).json()
        await page.get_by_role("button", name="Done").click()
        await page.get_by_role("button", name="Limit alice").click()
        await page.get_by_role("dialog").get_by_label("Requests at once").fill("2")
        await page.get_by_role("button", name="Set them").click()
        await page.get_by_text("Requests at once: 2").wait_for()
        limited = (await client.get("/v1/key", headers=headers)).json()
        shown = await page.content()
        await page.get_by_role("button", name="Revoke alice").click()
        await page.get_by_role("button", name="Revoke", exact=True).click()
        await page.get_by_text("revoked", exact=True).wait_for()
        after = await client.get("/v1/key", headers=headers)

    assert (made["name"], made["see"], made["limits"]) == ("alice", "own", {"budget_per_day": 5.0})
    assert limited["limits"] == {"budget_per_day": 5.0, "parallel": 2}
    assert secret not in shown
    assert after.status_code == 401


async def test_a_key_sees_its_own_limits_and_what_is_left_and_no_other_key(upstream: Upstream, tabs: Tabs) -> None:
    keys, auth = keyring(alice={"see": "own", "budget_per_month": 20}, bob={})
    async with served_page(upstream, tabs, **auth) as url:
        page = await tabs.open(f"{url}/#/keys", key=keys["alice"])
        mine = page.get_by_role("region", name="This key")
        await mine.get_by_text("$20.00 left").wait_for()
        shown = await page.locator("main").inner_text()

    assert "bob" not in shown
    assert "Make a key" not in shown


async def test_the_page_goes_on_with_the_first_key_that_it_makes(
    upstream: Upstream, tabs: Tabs, tmp_path: Path
) -> None:
    options = {**FIRST_HOUR, "data_dir": str(tmp_path)}
    async with served_page(upstream, tabs, **options) as url, http_client(url) as client:
        page = await tabs.open(f"{url}/#/keys", width=390)
        await page.get_by_role("button", name="Make a key").click()
        await page.get_by_text("This is the first key").wait_for()
        await page.get_by_role("dialog").get_by_label("Whose it is").fill("me")
        await page.get_by_role("button", name="Make it").click()
        await page.get_by_role("button", name="Key: me").wait_for()
        await page.get_by_role("link", name="Playground").click()
        await ask(page, "What is 2*21?")
        await page.get_by_text("The calculator tool says: 42.").wait_for()
        without = await client.get("/v1/models")

    assert without.status_code == 401


async def test_a_switch_keeps_texts_from_now_on(upstream: Upstream, tabs: Tabs) -> None:
    keys, auth = keyring(boss={"admin": True}, alice={"see": "own"})
    upstream.script("m", [Reply(text="planted answer")], repeat_last=True)
    question = {"model": "m", "messages": [{"role": "user", "content": "planted question"}]}
    head = {"authorization": f"Bearer {keys['alice']}"}
    options = {"record": {"passed": "all"}, **auth}
    async with served_page(upstream, tabs, **options) as url, http_client(url) as client:
        page = await tabs.open(url, key=keys["boss"])
        await page.get_by_role("button", name="Texts: not kept").click()
        await page.get_by_label("keep texts from now on").check()
        await page.get_by_role("button", name="Set it").click()
        await page.get_by_role("button", name="Texts: kept").wait_for()
        run = (await client.post("/v1/chat/completions", json=question, headers=head)).headers["x-callgate-run"]
        await page.goto(f"{url}/#/run/{run}?tab=conversation")
        await page.get_by_text("planted question").first.wait_for()
        others = await tabs.open(url, key=keys["alice"])
        await others.get_by_role("button", name="Key: alice").wait_for()

        assert await others.get_by_role("button", name="Texts").count() == 0


async def test_what_was_decided_is_listed_with_who_and_why(upstream: Upstream, tabs: Tabs) -> None:
    keys, auth = keyring(carol={"approve": True, "see": "all"})
    upstream.script("m", [Reply(calls=[Call("echo", {"text": "planted words"}, id="c")]), Reply(text="So.")])
    options = {"tools": ["echo"], "require_approval": {"always": ["echo"]}, **auth}
    async with served_page(upstream, tabs, **options) as url:
        page = await tabs.open(f"{url}/#/playground", key=keys["carol"])
        await say(page)
        form = page.get_by_role("form", name="Decide about echo")
        await form.get_by_label("Reason").fill("not on a Sunday")
        await form.get_by_role("button", name="Deny").click()
        await answered(page)
        await page.get_by_role("link", name="Approvals").click()
        row = page.get_by_role("table", name="History").locator("tbody tr")
        await row.wait_for()
        said = await row.inner_text()

    assert [each for each in ("denied", "carol", "not on a Sunday") if each in said] == [
        "denied",
        "carol",
        "not on a Sunday",
    ]
    assert "planted words" not in said


async def test_a_phone_sees_tokens_and_cost(upstream: Upstream, tabs: Tabs) -> None:
    upstream.script("m", [Reply(text="hello")], repeat_last=True)
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground", width=390)
        await ask(page)
        await page.goto(f"{url}/#/usage")
        cells = page.get_by_role("table", name="Usage").locator("tbody td:visible")
        await cells.first.wait_for()
        edges = await cells.evaluate_all("(all) => all.map((each) => each.getBoundingClientRect().right)")
        heads = await page.get_by_role("table", name="Usage").locator("th:visible").all_inner_texts()

    assert max(edges) <= 390
    assert {"Tokens in", "Tokens out", "Cost"} <= set(heads)
