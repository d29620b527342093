"""The shell: what it loads, whom it lets in, and that other pages get nothing through it."""

import asyncio
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.scale import held_to
from tests.harness.clients import http_client
from tests.harness.configs import as_yaml, config_dict
from tests.harness.needs import needs
from tests.harness.process import serving_command
from tests.page.served import IMG, ask, keyring, served_page
from tests.page.tabs import Tabs
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = [pytest.mark.anyio, needs("environment:page", "chromium-headless-shell")]

PAGES = ("overview", "playground", "runs", "approvals", "tools", "models", "usage", "keys")
LONG = "somebodys-model-with-a-vendor-a-size-and-a-date/instruct-2026-11-18"
SHOUT = Call("echo", {"text": "wide" * 100}, id="call_shout")


async def test_it_opens_without_a_console_message_or_a_request_elsewhere(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(url)
        await page.get_by_text("live", exact=True).wait_for()
        for name in PAGES:
            await page.goto(f"{url}/#/{name}")
            await page.locator("main > *").first.wait_for()

        assert await page.title() == "Keys · Callgate"
        assert all(each.startswith((url, "data:")) for each in tabs.requests)


async def test_an_answer_that_comes_after_its_page_was_left_is_not_drawn_over_the_next(
    upstream: Upstream, tabs: Tabs
) -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    async def delayed(route: Any) -> None:
        asked.set()
        await gate.wait()
        await route.continue_()

    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/usage")
        await page.get_by_text("Nothing was used").wait_for()
        await page.route("**/v1/models?*", delayed)
        await page.evaluate("() => { location.hash = '#/playground'; }")
        await asked.wait()
        await page.evaluate("() => { location.hash = '#/usage'; }")
        await page.get_by_text("Nothing was used").wait_for()
        async with page.expect_response("**/v1/models?*"):
            gate.set()
        await page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        await page.unroute_all(behavior="wait")

        assert await page.get_by_text("Nothing was used").count() == 1
        assert await page.get_by_role("textbox", name="Message").count() == 0


async def test_without_a_key_there_is_the_shell_alone_and_a_wrong_key_is_not_kept(
    upstream: Upstream, tabs: Tabs
) -> None:
    keys, auth = keyring(alice={"see": "all"})
    async with served_page(upstream, tabs, **auth) as url:
        page = await tabs.open(url)
        dialog = page.get_by_role("dialog")
        await dialog.get_by_text("This server asks for a key.").wait_for()
        await dialog.get_by_label("Key").fill("cg-wrong")
        await dialog.get_by_label("keep it").check()
        await dialog.get_by_role("button", name="Use it").click()
        await page.wait_for_function(
            "() => document.querySelector('dialog [role=alert]').textContent.includes('API key')"
        )
        kept = await page.evaluate("() => JSON.stringify([{ ...sessionStorage }, { ...localStorage }])")
        await dialog.get_by_label("Key").fill(keys["alice"])
        await dialog.get_by_role("button", name="Use it").click()
        await page.get_by_text("live", exact=True).wait_for()

    assert kept == "[{},{}]"


async def test_it_shows_the_name_and_rights_of_its_key(upstream: Upstream, tabs: Tabs) -> None:
    keys, auth = keyring(alice={"see": "own", "tools": ["get_*"]}, boss={"admin": True})
    async with served_page(upstream, tabs, **auth) as url:
        page = await tabs.open(url, key=keys["alice"])
        button = page.get_by_role("button", name="Key: alice")
        await button.click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_text("key alice · sees its own runs · models: all · tools: get_*").wait_for()
        await dialog.get_by_label("Key").fill(keys["boss"])
        await dialog.get_by_role("button", name="Use it").click()
        await page.get_by_role("button", name="Key: boss").wait_for()
        title = await page.get_by_role("button", name="Key: boss").get_attribute("title")
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(url)
        nobody = await page.get_by_role("button", name="Key: none").get_attribute("title")

    assert title == "key boss · sees all runs · operates the server · models: all · tools: all"
    assert nobody.startswith("no key · sees all runs · decides about calls · operates the server")


async def test_a_key_that_a_link_brings_is_not_used_unasked(upstream: Upstream, tabs: Tabs) -> None:
    keys, auth = keyring(mallory={"see": "own"})
    async with served_page(upstream, tabs, **auth) as url:
        page = await tabs.open(f"{url}/#key={keys['mallory']}")
        await page.get_by_text("This link brings a key").wait_for()
        asked = [each for each in tabs.requests if "/v1/" in each]
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_text("This server asks for a key.").wait_for()

        assert asked == []
        assert keys["mallory"] not in page.url


async def test_the_key_is_in_no_url_cookie_store_log_or_export(
    upstream: Upstream, tabs: Tabs, capfd: pytest.CaptureFixture[str]
) -> None:
    keys, auth = keyring(alice={"see": "all"})
    upstream.script("m", [Reply(calls=[Call("add", {"a": 1, "b": 2})]), Reply(text="3")])
    async with served_page(upstream, tabs, record={"content": True}, **auth) as url, http_client(url) as client:
        page = await tabs.open(f"{url}/#/playground", key=keys["alice"])
        await ask(page)
        address = page.url
        stored = await page.evaluate(
            "() => document.cookie + JSON.stringify([{ ...localStorage }, { ...sessionStorage }])"
        )
        shown = await page.content()
        run = (await page.get_by_text("Open run_").inner_text()).removeprefix("Open ")
        head = {"authorization": f"Bearer {keys['alice']}"}
        exports = [
            (await client.get(f"/v1/runs/{run}/export?as={form}", headers=head)).text for form in ("json", "curl")
        ]

    text = "".join([address, stored, shown, *exports, *tabs.requests, *capfd.readouterr()])
    assert run.startswith("run_")
    assert keys["alice"] not in text
    assert stored == "[{},{}]"


async def test_nothing_can_write_markup_into_it(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(url)
        said = await page.evaluate(
            """(text) => { try { document.body.innerHTML = text; return "written"; } catch (e) { return e.name; } }""",
            IMG,
        )

    assert said == "TypeError"
    assert any("TrustedHTML" in each for each in tabs.complaints)
    tabs.complaints.clear()


EVIL = """<!doctype html><title>evil</title><form id=f method=post enctype=text/plain target=hidden></form>
<iframe name=hidden></iframe><iframe id=frame></iframe>"""
ATTACK = """async (url) => {
  const found = {};
  const json = (path, body) => [path, { method: "POST", body, headers: { "content-type": "application/json" } }];
  const tries = {
    approve: json("/v1/approvals/ID", '{"decision":"approve"}'),
    call: json("/v1/tools/send_mail/call", '{"arguments":{"to":"bob@example.com","subject":"s","body":"b"}}'),
    plain: ["/v1/tools/send_mail/call", { method: "POST", body: '{"arguments":{}}', headers: { "content-type": "text/plain" } }],
    opaque: ["/v1/tools/send_mail/call", { method: "POST", body: '{"arguments":{}}', mode: "no-cors" }],
    runs: ["/v1/runs", {}],
    feed: ["/v1/feed", {}],
  };
  for (const [name, [path, options]] of Object.entries(tries))
    try {
      const answer = await fetch(url + path, options);
      found[name] = answer.type === "opaque" ? "opaque" : answer.status + (await answer.text()).slice(0, 40);
    } catch (failure) {
      found[name] = "refused";
    }
  const form = document.getElementById("f");
  form.action = url + "/v1/tools/send_mail/call";
  const field = document.createElement("input");
  field.name = '{"arguments":{"to":"bob@example.com","subject":"s","body":"';
  field.value = '"}}';
  form.append(field);
  form.submit();
  found.script = await new Promise((done) => {
    const script = document.createElement("script");
    script.onload = () => done("loaded");
    script.onerror = () => done("refused");
    script.src = url + "/v1/runs";
    document.head.append(script);
  });
  const frame = document.getElementById("frame");
  await new Promise((done) => { frame.onload = done; frame.src = url + "/"; });
  try { found.frame = frame.contentDocument ? "read" : "closed"; } catch { found.frame = "closed"; }
  return found;
}"""


async def test_a_page_on_another_port_gets_nothing_from_a_server_without_keys(upstream: Upstream, tabs: Tabs) -> None:
    async def evil(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(EVIL)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + EVIL.encode())
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(evil, "127.0.0.1", 0)
    async with other, served_page(upstream, tabs) as url, http_client(url) as client:
        page = await tabs.open(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/")
        found = await page.evaluate(ATTACK, url)
        runs = (await client.get("/v1/runs")).json()["data"]
        tabs.complaints.clear()  # it asked another origin, which was the point

    assert {name: said for name, said in found.items() if said not in {"refused", "closed", "opaque"}} == {}
    assert runs == []


async def test_a_server_that_ends_sends_five_tabs_away_at_once_and_they_find_the_next(
    upstream: Upstream, tabs: Tabs, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(as_yaml(config_dict(upstream.url)), encoding="utf-8")
    async with serving_command(config) as child:
        url = child.url
        pages = [await tabs.open(f"{url}/#/runs") for _ in range(5)]
        for page in pages:
            await page.get_by_text("live", exact=True).wait_for()
        began = time.monotonic()
        child.signal(signal.SIGTERM)
        code = await child.ended()
        took = time.monotonic() - began
        for page in pages:
            await page.get_by_text("restarting", exact=True).wait_for()
        lines = child.log
    async with serving_command(config, "--port", url.rpartition(":")[2]) as again:
        await pages[0].get_by_text("live", exact=True).wait_for(timeout=20_000)
        assert again.url == url
        await tabs.close()

    assert code == 0, lines
    held_to(2.0, "a server with five tabs ends", took)
    tabs.complaints = [each for each in tabs.complaints if "net::ERR_" not in each]


@pytest.mark.parametrize(("dark", "width"), [(False, 360), (True, 1600)], ids=["light, narrow", "dark, wide"])
async def test_no_page_has_a_serious_barrier(upstream: Upstream, tabs: Tabs, axe: str, dark: bool, width: int) -> None:
    upstream.script("m", [Reply(calls=[Call("add", {"a": 1, "b": 2}, id="c"), Call("add", '{"a"')]), Reply(text="3")])
    upstream.script(LONG, [Reply(status=401, body={"error": {"message": "no such key " * 20}}), Reply(calls=[SHOUT])])
    found: list[Any] = []
    options: dict[str, Any] = {
        "models": ["m", LONG],
        "record": {"content": True},
        "require_approval": {"always": ["echo"]},
    }
    async with served_page(upstream, tabs, **options) as url, http_client(url) as client:
        question = {"model": LONG, "messages": [{"role": "user", "content": "wide" * 200}]}
        failed = (await client.post("/v1/chat/completions", json=question)).headers["x-callgate-run"]
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=question))
        page = await tabs.open(f"{url}/#/playground", dark=dark, width=width, bypass_csp=True)
        await ask(page)
        run = (await page.get_by_text("Open run_").inner_text()).removeprefix("Open ")
        await page.evaluate(axe)
        routes = [
            *PAGES,
            f"run/{run}?call=c",
            f"run/{failed}",
            f"run/{run}?tab=conversation",
            f"compare/{run}/{run}",
            "tools/add",
        ]
        for route in routes:
            await page.evaluate("(hash) => { location.hash = hash; }", f"#/{route}")
            await page.wait_for_function("() => !document.querySelector('main').innerText.includes('Loading')")
            if route == "approvals":
                await page.get_by_role("button", name="Approve").wait_for()
            result = await page.evaluate("() => axe.run({ resultTypes: ['violations'] })")
            assert len(result["passes"]) > 10
            found += [
                (route, each["id"], each["nodes"][0]["html"][:120])
                for each in result["violations"]
                if each["impact"] in {"serious", "critical"}
            ]
            if await page.evaluate("() => document.documentElement.scrollWidth > innerWidth"):
                found.append((route, "scrolls sideways", ""))
        waiting.cancel()
        await asyncio.wait({waiting})

    assert found == []


async def test_it_can_be_worked_by_keyboard_alone(upstream: Upstream, tabs: Tabs) -> None:
    upstream.script("m", [Reply(calls=[Call("add", {"a": 1, "b": 2}, id="c")]), Reply(text="It is three.")])
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground")
        await page.keyboard.press("Tab")
        assert await page.evaluate("() => document.activeElement.className") == "skip"
        await page.keyboard.press("Enter")
        assert await page.evaluate("() => document.activeElement.id") == "main"
        for _ in range(20):
            if await page.evaluate("() => document.activeElement.name") == "message":
                break
            await page.keyboard.press("Tab")
        await page.keyboard.type("add")
        await page.keyboard.press("Enter")
        await page.get_by_text("It is three.").wait_for()
        await page.goto(f"{url}/#/runs")
        await page.get_by_role("link", name="answered").wait_for()
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.get_by_role("table", name="Waterfall").wait_for()

        assert re.search(r"#/run/run_\w+", page.url)
