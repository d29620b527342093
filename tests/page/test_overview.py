"""The first page: what was asked and what came of it, in bars that lead to their runs."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.harness.clients import http_client
from tests.harness.needs import needs
from tests.page.served import IMG, keyring, served_page
from tests.page.tabs import Tabs
from tests.page.test_runs import ADD, run_of
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = [pytest.mark.anyio, needs("environment:page", "chromium-headless-shell")]

CUT = Call("get_weather", '{"city": "Os', id="call_cut")


@pytest.fixture
async def used(upstream: Upstream, tabs: Tabs) -> AsyncIterator[str]:
    """A server that answered once, once with a broken call, and failed once."""
    async with served_page(upstream, tabs) as url:
        async with http_client(url) as client:
            await run_of(client, upstream)
            await run_of(client, upstream, [Reply(calls=[ADD, CUT]), Reply(text="5")])
            await run_of(client, upstream, [Reply(status=400, body={"error": {"message": "no"}})])
        yield url


async def filter_of(link: Any) -> dict[str, str]:
    href = await link.get_attribute("href")
    assert href.startswith("#/runs?")
    return {name: values[0] for name, values in parse_qs(href.partition("?")[2]).items()}


async def test_the_page_opens_on_it_and_an_empty_one_says_what_will_be_there(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs) as url, http_client(url) as client:
        page = await tabs.open(url)
        await page.get_by_text("Nothing was asked in this time").wait_for()
        await page.get_by_text("in memory until the server ends").wait_for()
        first = await page.locator("nav a[aria-current=page]").first.inner_text()
        await page.get_by_text("live", exact=True).wait_for()
        await run_of(client, upstream)
        await page.locator(".cards b").first.wait_for()  # without a reload

    assert first == "Overview"


async def test_every_bar_leads_to_the_runs_that_it_stands_for(used: str, tabs: Tabs) -> None:
    page = await tabs.open(used)
    chart = page.get_by_role("group", name="Requests", exact=True)
    await chart.wait_for()
    parts = {}
    for tone in ("of-ok", "of-broken", "of-bad"):
        link = chart.locator(f".bars a.{tone}").last
        parts[tone] = await filter_of(link)
        words = await link.get_attribute("aria-label")
        assert words.endswith(": 1")
    flaw = page.get_by_role("group", name="Broken calls", exact=True).locator(".bars a").last
    of_flaw = await filter_of(flaw)
    costs = await filter_of(page.get_by_role("group", name="Cost by model").locator(".bars a").last)
    await chart.locator(".bars a.of-broken").last.click()
    rows = page.locator("table.runs tbody tr")
    await rows.first.wait_for()
    await rows.get_by_text("broken call").wait_for()
    broken, shown = await rows.count(), await page.get_by_label("Time").locator("option:checked").inner_text()
    await page.go_back()
    await flaw.click()
    await rows.get_by_text("broken call").wait_for()

    moments = {(int(part.pop("since")), int(part.pop("until"))) for part in (*parts.values(), of_flaw, costs)}
    assert {until - since for since, until in moments} == {3600}
    assert parts == {"of-ok": {}, "of-broken": {"odd": "1"}, "of-bad": {"state": "failed"}}
    assert of_flaw.keys() == {"outcome"}
    assert costs == {"model": "m", "sort": "dearest"}
    assert broken == 2  # with the one that failed, which is a problem too
    assert "–" in shown


async def test_tools_models_providers_keys_and_flaws_are_tables_with_their_own_links(used: str, tabs: Tabs) -> None:
    page = await tabs.open(used)
    cells, links = {}, {}
    for name in ("Tools", "Models", "Providers", "Keys", "Broken calls by model and flaw"):
        table = page.get_by_role("table", name=name, exact=True)
        await table.wait_for()
        row = table.locator("tbody tr").first
        cells[name] = await row.locator("td").all_inner_texts()
        links[name] = await filter_of(row.locator("a").first)
        assert "since" in links[name]

    tools = page.get_by_role("table", name="Tools", exact=True)
    weather = await tools.locator("tbody tr", has_text="get_weather").locator("td").all_inner_texts()
    assert (cells["Tools"][0], cells["Tools"][2], cells["Tools"][3]) == ("add", "2", "100 %")
    assert (weather[2], weather[5].split()[0]) == ("0", "1")
    assert (cells["Models"][0], cells["Models"][2]) == ("m", "3")
    assert cells["Providers"][0] == "openai"
    assert cells["Keys"][0] == "anonymous"
    assert cells["Broken calls by model and flaw"][0] == "m"
    assert links["Tools"]["tool"] == "add"
    assert links["Models"]["model"] == "m"
    assert links["Providers"]["provider"] == "openai"
    assert links["Keys"]["key"] == "anonymous"
    assert links["Broken calls by model and flaw"].keys() >= {"model", "outcome"}


async def test_the_numbers_of_a_chart_are_a_table_and_its_bars_are_reached_by_keys(used: str, tabs: Tabs) -> None:
    page = await tabs.open(f"{used}/#/overview?days=30")
    chart = page.get_by_role("group", name="Requests", exact=True)
    await chart.get_by_text("As a table").click()
    last = chart.get_by_role("row").last
    numbers = await last.locator("td").all_inner_texts()
    bars = chart.locator(".bars a")
    stops = await bars.evaluate_all("(all) => all.map((each) => each.tabIndex)")
    await bars.first.focus()
    told = await chart.locator(".told").inner_text()
    await page.keyboard.press("ArrowRight")
    second = await page.evaluate("() => document.activeElement.className")
    await page.keyboard.press("End")
    third = await page.evaluate("() => document.activeElement.className")
    await page.keyboard.press("Enter")
    await page.locator("table.runs tbody tr").first.wait_for()

    assert numbers[1:] == ["1", "1", "1"]
    assert stops == [0, -1, -1]
    assert "1 answered, 1 with broken calls, 1 failed" in told
    assert (second, third) == ("of-broken", "of-bad")
    assert "state=failed" in page.url


async def test_a_key_sees_its_own_and_one_that_sees_nothing_is_told_so(upstream: Upstream, tabs: Tabs) -> None:
    keys, auth = keyring(alice={"see": "own"}, bob={"see": "own"}, blind={})
    async with served_page(upstream, tabs, **auth) as url, http_client(url) as client:
        await run_of(client, upstream, headers={"authorization": f"Bearer {keys['alice']}"})
        mine = await tabs.open(url, key=keys["alice"])
        await mine.get_by_text("of key alice alone").wait_for()
        requests = await mine.locator(".cards b").first.inner_text()
        other = await tabs.open(url, key=keys["bob"])
        await other.get_by_text("Nothing was asked in this time").wait_for()
        blind = await tabs.open(url, key=keys["blind"])
        await blind.get_by_text("This key may not see what was used").first.wait_for()

    assert requests == "1"


async def test_names_that_a_model_invented_stay_text(upstream: Upstream, tabs: Tabs, tmp_path: Path) -> None:
    async with served_page(upstream, tabs, data_dir=str(tmp_path)) as url, http_client(url) as client:
        await run_of(client, upstream, [Reply(calls=[Call(IMG, {}, id="call_img")]), Reply(text="5")])
        page = await tabs.open(url)
        await page.get_by_role("table", name="Tools").get_by_text("<img").wait_for()

        assert await page.locator("img").count() == 0
        assert "owned" not in await page.title()


@pytest.mark.parametrize(("width", "dark"), [(360, False), (1600, True)])
async def test_nobody_is_kept_out_and_nothing_is_wider_than_its_place(
    used: str, tabs: Tabs, axe: str, width: int, dark: bool
) -> None:
    page = await tabs.open(f"{used}/#/overview?days=7", dark=dark, width=width, bypass_csp=True)
    await page.locator(".cards b").first.wait_for()
    await page.add_script_tag(content=axe)
    found = await page.evaluate("async () => (await axe.run()).violations")
    beyond = await page.evaluate("() => document.documentElement.scrollWidth - innerWidth")

    assert [
        f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in found if each["impact"] in {"serious", "critical"}
    ] == []
    assert beyond <= 0


async def test_usage_is_shown_by_tool_provider_and_flaw_too(used: str, tabs: Tabs) -> None:
    page = await tabs.open(f"{used}/#/usage")
    table = page.get_by_role("table", name="Usage")
    rows = {}
    for by in ("tool", "provider", "flaw", "key"):
        await page.get_by_label("By").select_option(by)
        await table.locator("th").first.get_by_text(by, exact=True).wait_for()
        await table.locator("tbody td").first.wait_for()
        rows[by] = (await table.locator("tbody tr").first.inner_text()).split("\t")

    assert (rows["tool"][0], rows["tool"][1], rows["tool"][3]) == ("add", "2", "0")
    assert rows["provider"][0] == "openai"
    assert rows["flaw"][1] == "1"
    assert (rows["key"][0], rows["key"][1]) == ("anonymous", "3")
