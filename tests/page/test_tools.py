"""The pages of tools, models and keys."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients import http_client
from tests.harness.needs import needs
from tests.page.served import IMG, PRICE, keyring, served_page
from tests.page.tabs import Tabs
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.executor_kinds import RAW_MCP
from tests.tools.servers.asking_mcp import AskingMcp

pytestmark = [pytest.mark.anyio, needs("environment:page", "chromium-headless-shell")]

FIELDS: dict[str, Any] = {
    "type": "object",
    "required": ["name", "kind", "count"],
    "properties": {
        "name": {"type": "string", "description": IMG},
        "kind": {"enum": ["a", "b", 3]},
        "count": {"type": "integer", "minimum": 1},
        "size": {"type": "number", "default": 1.5},
        "loud": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"$ref": "#/$defs/place"},
    },
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
}
UNION = {"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}]}


def cat(name: str, parameters: Any, **more: Any) -> dict[str, Any]:
    """A tool that says what it was given."""
    said = [sys.executable, "-c", "import sys; print(sys.stdin.read())"]
    return {
        "kind": "command",
        "name": name,
        "description": IMG,
        "argv": said,
        "stdin": "json",
        "parameters": parameters,
        **more,
    }


async def test_a_form_sends_what_the_schema_wants(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs, tools=[cat("shape", FIELDS, safety="read_only")]) as url:
        page = await tabs.open(f"{url}/#/tools/shape")
        form = page.get_by_role("form", name="Call shape")
        await form.get_by_role("button", name="Call it").click()
        assert await page.get_by_role("status", name="Result").count() == 0  # it lacks what is required
        await form.get_by_label("name *").fill("n")
        await form.get_by_label("kind *").select_option("3")
        await form.get_by_label("count *").fill("2")
        await form.get_by_label("loud").select_option("true")
        await form.get_by_label("tags").fill('["x", "y"]')
        await form.get_by_label("where").fill('{"city": "Oslo"}')
        await form.get_by_role("button", name="Call it").click()
        result = page.get_by_role("status", name="Result")
        await result.get_by_text("returned").wait_for()
        said = await result.inner_text()

        assert await page.locator("img").count() == 0
    assert (
        '"name":"n","kind":3,"count":2,"size":1.5,"loud":true,"tags":["x","y"],"where":{"city":"Oslo"}'
        in said.replace(": ", ":").replace(", ", ",")
    )


async def test_a_schema_that_is_no_plain_object_gets_an_editor_and_the_gate_answers(
    upstream: Upstream, tabs: Tabs
) -> None:
    async with served_page(upstream, tabs, tools=[cat("union", UNION, safety="read_only")]) as url:
        page = await tabs.open(f"{url}/#/tools/union")
        editor = page.get_by_label("Arguments, as a model might write them")
        await editor.fill('{"a": 1')
        await page.get_by_role("button", name="Call it").click()
        result = page.get_by_role("status", name="Result")
        await result.get_by_text("not_run").wait_for()
        await editor.fill('{"a": "yes"}')
        await page.get_by_role("button", name="Call it").click()
        await result.get_by_text("returned").wait_for()
        await page.get_by_text("As sent to a model (all of it)").wait_for()


async def test_the_tokens_of_the_tools_are_shown_for_each_model(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs, models=["gpt", "spare"], entry={"tools": ["add"]}) as url:
        page = await tabs.open(f"{url}/#/tools")
        line = page.get_by_text("it reads with every request")
        await line.wait_for()
        said = await line.inner_text()
        tokens = [
            int((await page.get_by_role("row", name=name).locator("td").all_inner_texts())[4])
            for name in ("add", "read_more")
        ]
    assert f"gpt, spare: 2 tools, ≈ {sum(tokens)} tokens." in said


async def test_a_key_that_may_call_no_tool_is_offered_no_form(upstream: Upstream, tabs: Tabs) -> None:
    keys, auth = keyring(alice={}, boss={"admin": True})
    async with served_page(upstream, tabs, **auth) as url:
        for name, forms in (("alice", 0), ("boss", 1)):
            page = await tabs.open(f"{url}/#/tools/add", key=keys[name])
            await page.get_by_text("As sent to a model (all of it)").wait_for()
            await page.get_by_role("button", name=f"Key: {name}").wait_for()
            assert await page.get_by_text("needs a key with admin: on").count() == 1 - forms
            assert await page.get_by_role("button", name="Call it").count() == forms


async def test_a_call_without_a_model_has_no_price(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs) as url, http_client(url) as client:
        await client.post("/v1/tools/add/call", json={"arguments": {"a": 1, "b": 2}})
        page = await tabs.open(f"{url}/#/runs")
        row = page.get_by_role("row", name="answered")
        await row.wait_for()
        cells = await row.locator("td").all_inner_texts()

    assert (cells[3], cells[-1]) == ("tool", "–")


async def test_a_tool_that_writes_asks_before_it_is_called(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs) as url, http_client(url) as client:
        page = await tabs.open(f"{url}/#/tools/send_mail")
        asked: list[str] = []

        async def answer(dialog: Any) -> None:
            asked.append(dialog.message)
            await (dialog.accept() if len(asked) > 1 else dialog.dismiss())

        page.on("dialog", answer)
        await page.get_by_role("button", name="As JSON").click()
        await page.get_by_label("Arguments, as a model").fill('{"to": "bob@example.com", "subject": "s", "body": "b"}')
        await page.get_by_role("button", name="Call it").click()
        runs = (await client.get("/v1/runs")).json()["data"]
        await page.get_by_role("button", name="Call it").click()
        await page.get_by_role("status", name="Result").wait_for()

    assert "not read-only" in asked[0]
    assert (len(asked), runs) == (2, [])


async def test_a_server_that_dies_is_shown_down_and_back_without_reloading(upstream: Upstream, tabs: Tabs) -> None:
    server = {"command": sys.executable, "args": ["-S", str(RAW_MCP)], "require_approval": "never"}
    async with served_page(upstream, tabs, mcp_servers={"raw": server}) as url, http_client(url) as client:
        page = await tabs.open(f"{url}/#/tools")
        await page.get_by_text("live", exact=True).wait_for()
        row = page.get_by_role("table", name="Servers").get_by_role("row", name="raw")
        await row.get_by_text("ready since").wait_for(timeout=20_000)
        await page.evaluate(
            """() => { window.seen = []; new MutationObserver(() => {
              const now = document.querySelector('table[aria-label=Servers] tbody').innerText;
              if (window.seen.at(-1) !== now) window.seen.push(now);
            }).observe(document.body, { subtree: true, childList: true, characterData: true }); }"""
        )
        died = await client.post("/v1/tools/raw_dies/call", json={})
        await page.wait_for_function("() => window.seen.some((each) => each.includes('down since'))", timeout=2_000)
        await row.get_by_text("ready since").wait_for()

    assert died.json()["outcome"] != "returned"


async def test_models_say_how_they_are_reached_what_they_cost_and_whether_they_answer(
    upstream: Upstream, tabs: Tabs
) -> None:
    upstream.script("m", [Reply(text="OK")])
    upstream.script("bad", [Reply(status=401, body={"error": {"message": IMG}})], repeat_last=True)
    entry = {"model_info": PRICE, "concurrency": 8}
    async with served_page(upstream, tabs, models=["m", "bad"], entry=entry) as url:
        page = await tabs.open(f"{url}/#/models")
        await page.get_by_role("button", name="Ask m").click()
        await page.get_by_text("answers in").wait_for()
        await page.get_by_role("button", name="Ask bad").click()
        await page.get_by_text("refused this proxy's credentials").wait_for()
        row = page.get_by_role("row").filter(has_text="answers in")
        said = await row.inner_text()
        bad = page.get_by_role("row").filter(has=page.get_by_role("button", name="Ask bad"))
        await bad.locator("td").nth(5).locator(".odd").wait_for()

        assert await page.locator("img").count() == 0
    assert "direct" in said
    assert "127.0.0.1" in said
    assert "2 in, 8 out" in said
    assert "0 of 8 under way" in said


async def test_the_share_of_tokens_is_a_share_of_all_of_them(upstream: Upstream, tabs: Tabs) -> None:
    keys, auth = keyring(boss={"admin": True}, user={})
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    upstream.script("m", [Reply(text="hi", usage=usage)], repeat_last=True)
    async with served_page(upstream, tabs, **auth) as url, http_client(url) as client:
        for name in ("boss", "user", "user"):
            head = {"authorization": f"Bearer {keys[name]}"}
            question = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
            await client.post("/v1/chat/completions", json=question, headers=head)
        page = await tabs.open(f"{url}/#/usage", key=keys["boss"])
        meters = page.get_by_role("table", name="Usage").get_by_role("meter")
        await meters.first.wait_for()
        shares = await meters.evaluate_all("meters => meters.map((meter) => meter.value / meter.max)")
    assert shares == [pytest.approx(1 / 3), pytest.approx(2 / 3)]


async def test_keys_and_what_they_used_are_listed_without_a_secret(upstream: Upstream, tabs: Tabs) -> None:
    keys, auth = keyring(boss={"admin": True, "approve": True}, user={"budget_per_day": 5.0, "models": ["m"]})
    upstream.script("m", [Reply(calls=[Call("add", {"a": 1, "b": 2})]), Reply(text="3")])
    async with served_page(upstream, tabs, **auth) as url, http_client(url) as client:
        head = {"authorization": f"Bearer {keys['user']}"}
        question = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        assert (await client.post("/v1/chat/completions", json=question, headers=head)).status_code == 200
        page = await tabs.open(f"{url}/#/usage", key=keys["boss"])
        used = await page.get_by_role("table", name="Usage").get_by_role("row", name="user").inner_text()
        await page.goto(f"{url}/#/keys")
        listed = page.get_by_role("table", name="Keys")
        boss = await listed.get_by_role("row", name="boss").inner_text()
        user = await listed.get_by_role("row", name="user").inner_text()
        shown = await page.content()
        refused = await tabs.open(f"{url}/#/keys", key=keys["user"])
        await refused.get_by_text("Keys are made by who operates the server").wait_for()

    assert used.split("\t")[:4] == ["user", "1", "0", "1"]
    assert "approve, admin" in boss
    assert "of $5.00" in user
    assert "$0 (no budget)" in boss
    assert not any(entry["hash"] in shown for entry in auth["keys"])


async def test_a_tool_that_is_held_is_shown_with_what_is_different_and_accepted(
    upstream: Upstream, tabs: Tabs, tmp_path: Path
) -> None:
    server = AskingMcp()
    async with server.running():
        servers = {"tracker": {"url": server.url}}
        entry = {"tools": ["*"]}
        for hints in ({}, {"destructiveHint": False}):
            server.hints = hints
            options: dict[str, Any] = {"mcp_servers": servers, "entry": entry, "data_dir": str(tmp_path)}
            async with served_page(upstream, tabs, **options) as url:
                page = await tabs.open(f"{url}/#/tools")
                if not hints:
                    await page.get_by_role("link", name="tracker_create_issue").wait_for()
                    continue
                card = page.get_by_role("article", name="tracker/create_issue is held back")
                assert "-annotations: null" in await card.locator("pre").inner_text()
                await card.get_by_role("button", name="Accept it as it is").click()
                await card.wait_for(state="detached")
                await page.get_by_role("row", name="tracker_create_issue").get_by_text("ready").wait_for()
