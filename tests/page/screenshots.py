"""Takes the pictures of the page that the documentation shows: `python -m tests.page.screenshots`, or `make screenshots`."""

import asyncio
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.harness.clients import http_client
from tests.harness.environment import ROOT, Environment
from tests.page.browsers import chromium
from tests.page.history import fill_with_history
from tests.page.login_place import place
from tests.page.served import ask, keyring, served_page
from tests.page.tabs import Tabs
from tests.scripted_upstream import Call, Pace, Reply, Upstream, by_turn
from tests.tools.servers.asking_mcp import AskingMcp, answered, elicitation, input_required

ASSETS = ROOT / "docs" / "assets"
SIZE = {"width": 1180, "height": 640}
PHONE = {"width": 390, "height": 844}
VARIANTS = (("", SIZE, "light"), ("-dark", SIZE, "dark"), ("-phone", PHONE, "light"))
MODELS = ["gpt", "spare"]
QUESTION = "How warm is it in Oslo and in Lisbon, and how much is 4 + 21?"
OSLO, LISBON = (Call("get_weather", {"city": city}, id=f"call_{city.lower()}") for city in ("Oslo", "Lisbon"))
SUM = Call("add", {"a": 4, "b": 21}, id="call_sum")
BROKEN = Call("send_mail", '{"to": "bob@example.com", "subj', id="call_mail")
SLOWLY = Pace(before=0.4, between=0.02)
TALK = [
    Reply(calls=[OSLO, LISBON, BROKEN], pace=SLOWLY),
    Reply(calls=[SUM], pace=SLOWLY),
    Reply(text="4 °C in Oslo, 21 °C in Lisbon: 25 in all.", pace=SLOWLY),
]


async def take(browser: Any, folder: Path) -> list[Path]:
    """Every picture, by the name of its page."""
    made: list[Path] = []
    with tempfile.TemporaryDirectory() as data:
        fill_with_history(Path(data), 1500, 13)
        await _take_pages(browser, folder, data, made)
    made.append(await _take_sign_in(browser, folder))
    return made


async def _take_pages(browser: Any, folder: Path, data: str, made: list[Path]) -> None:
    async with Upstream() as upstream:
        tabs = Tabs(browser)
        settings: dict[str, Any] = {
            "models": MODELS,
            "record": {"content": True},
            "require_approval": {"always": ["echo"]},
            "data_dir": data,
        }
        async with served_page(upstream, tabs, {"gpt": ["spare"]}, **settings) as url, http_client(url) as client:
            upstream.script("gpt", by_turn(TALK))
            upstream.script("spare", by_turn([replace(each, pace=Pace()) for each in TALK]))

            async def picture(page: Any, name: str) -> None:
                await page.mouse.move(0, 0)
                for variant, size, scheme in VARIANTS:
                    await page.emulate_media(color_scheme=scheme)
                    await page.set_viewport_size({**size, **({"height": 1160} if name == "overview" else {})})
                    made.append(folder / f"page-{name}{variant}.png")
                    await page.screenshot(path=made[-1])
                await page.emulate_media(color_scheme="light")
                await page.set_viewport_size(SIZE)

            page = await tabs.open(f"{url}/#/playground", device_scale_factor=1)
            await page.set_viewport_size(SIZE)
            await ask(page, QUESTION)
            await picture(page, "playground")
            run = (await page.get_by_text("Open run_").inner_text()).removeprefix("Open ")
            upstream.script("gpt", [Reply(status=503, body={"error": {"message": "overloaded"}})], repeat_last=True)
            for _ in range(3):
                question = {
                    "model": "gpt",
                    "messages": [{"role": "user", "content": "Is it warmer in Oslo or in Lisbon?"}],
                }
                await client.post("/v1/chat/completions", json=question)
            for name, path in (
                ("overview", "overview?days=7"),
                ("runs", "runs"),
                ("run", f"run/{run}?call=call_mail&side=sent+to+the+model"),
                ("tools", "tools/get_weather"),
                ("models", "models"),
                ("usage", "usage"),
                ("keys", "keys"),
            ):
                await page.evaluate("(hash) => { location.hash = hash; }", f"#/{path}")
                await page.wait_for_function("() => !document.querySelector('main').innerText.includes('Loading')")
                if name == "models":
                    await page.locator("td:nth-child(6) .odd").first.wait_for()
                await picture(page, name)
            upstream.script(
                "spare", by_turn([Reply(calls=[Call("echo", {"text": "Everybody, come here!"})]), Reply(text="Done.")])
            )
            question = {"model": "spare", "messages": [{"role": "user", "content": "?"}]}
            waiting = asyncio.create_task(client.post("/v1/chat/completions", json=question))
            await page.evaluate("() => { location.hash = '#/approvals'; }")
            await page.get_by_role("button", name="Approve").wait_for()
            await picture(page, "approvals")
            [card] = (await client.get("/v1/approvals")).json()["data"]
            await client.post(f"/v1/approvals/{card['id']}", json={"decision": "approve"})
            await waiting
            made.append(await take_question(tabs, upstream, folder))
            made.append(await take_login(tabs, upstream, folder))
    assert tabs.complaints == []


async def take_question(tabs: Tabs, upstream: Upstream, folder: Path) -> Path:
    """The form that a tool's server asks a person to fill in."""
    upstream.script(
        "m", by_turn([Reply(calls=[Call("tracker_create_issue", {"repo": "acme/shop"})]), Reply(text="Done.")])
    )
    ask = elicitation("I found no issue of that name. What should the new one say?")
    server = AskingMcp(does=lambda params: answered("#42") if "inputResponses" in params else input_required(ask))
    file = folder / "page-question.png"
    async with server.running():
        servers = {"tracker": {"url": server.url, "elicitation": "form"}}
        entry = {"tools": ["*"]}
        async with served_page(upstream, tabs, mcp_servers=servers, entry=entry) as url, http_client(url) as client:
            page = await tabs.open(f"{url}/#/approvals", device_scale_factor=1)
            await page.set_viewport_size({**SIZE, "height": 460})
            question = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
            waiting = asyncio.create_task(client.post("/v1/chat/completions", json=question))
            await page.get_by_label("Title of the issue").fill("Checkout forgets the cart")
            await page.get_by_label("Priority").select_option("High")
            await page.mouse.move(0, 0)
            await page.screenshot(path=file)
            [card] = (await client.get("/v1/approvals")).json()["data"]
            await client.post(f"/v1/approvals/{card['id']}", json={"decision": "decline"})
            await waiting
    return file


async def take_login(tabs: Tabs, upstream: Upstream, folder: Path) -> Path:
    """A key that logs in to a tool's server, before the page of the authorization server is opened."""
    file = folder / "page-login.png"
    async with place(upstream, tabs, "key") as notes:
        notes.authority.metadata = {"authorization_endpoint": "https://login.notes.example.com/authorize"}
        page = await tabs.open(f"{notes.url}/#/tools", key=notes.keys["ann"], device_scale_factor=1)
        await page.set_viewport_size({**SIZE, "height": 760})
        await page.get_by_role("table", name="Logins").get_by_role("button", name="Log in").click()
        await page.mouse.move(0, 0)
        await page.screenshot(path=file)
    return file


async def _take_sign_in(browser: Any, folder: Path) -> Path:
    """What somebody sees who has neither signed in nor a key. Where the issuer is, is made up: nothing is asked of it."""
    where = {"issuer": "https://login.example.com/realms/staff", "client_id": "callgate-page", "scopes": ["openid"]}
    places = {"authorization": "https://login.example.com", "token": "https://login.example.com", "end_session": None}
    _, sections = keyring(script={})
    async with Upstream() as upstream:
        tabs = Tabs(browser)
        async with served_page(upstream, tabs, **sections) as url:
            context = await browser.new_context(viewport=SIZE)
            page = await context.new_page()
            await page.route("**/web/sign-in", lambda route: route.fulfill(json=where | places))
            await page.goto(url)
            await page.get_by_role("button", name="Sign in with").wait_for()
            file = folder / "page-sign-in.png"
            await page.screenshot(path=file)
            await context.close()
    return file


async def main() -> None:
    async with chromium() as browser:
        for file in await take(browser, ASSETS):
            sys.stdout.write(f"{file.relative_to(ROOT)} {file.stat().st_size // 1024} KB\n")


if __name__ == "__main__":
    Environment("page").make()
    asyncio.run(main())
