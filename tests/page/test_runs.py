"""The list of runs, and one run."""

import asyncio
import contextlib
import json
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.recorder.last_hour import minute_of
from tests.chaos.scale import held_to
from tests.harness.clients import http_client
from tests.harness.needs import needs
from tests.page.served import IMG, keyring, served_page
from tests.page.tabs import Tabs
from tests.recordings import load
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = [pytest.mark.anyio, needs("environment:page", "chromium-headless-shell")]

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "what is 2 + 3?"}]}
ADD = Call("add", {"a": 2, "b": 3}, id="call_add")
TURNS = [Reply(calls=[ADD]), Reply(text="It is 5.")]
SECRET = "sk-" + "proj-abcdEFGH0123abcdEFGH0123abcdEFGH0123abcdEFGH0123"
CONTENT = {"record": {"content": True, "wire": "on"}}


async def run_of(client: httpx.AsyncClient, upstream: Upstream, turns: Any = TURNS, **more: Any) -> str:
    upstream.script("m", turns)
    return str((await client.post("/v1/chat/completions", json=QUESTION, **more)).headers["x-callgate-run"])


def kept_in(folder: Path) -> bytes:
    """All that is written of runs."""
    return b"".join(file.read_bytes() for file in folder.glob("runs.sqlite3*"))


async def test_a_run_that_others_start_appears_without_asking_again(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs) as url, http_client(url) as client:
        page = await tabs.open(f"{url}/#/runs")
        await page.get_by_text("live", exact=True).wait_for()
        await page.get_by_text("No runs yet.").wait_for()
        before = len(tabs.requests)
        await run_of(client, upstream)
        await page.get_by_role("link", name="answered").wait_for(timeout=1000)

        assert len(tabs.requests) == before


async def test_two_hundred_runs_leave_the_row_under_the_mouse_where_it_is(upstream: Upstream, tabs: Tabs) -> None:
    upstream.script("m", lambda asked: TURNS[min(asked.turn, 1)])
    async with served_page(upstream, tabs) as url, http_client(url) as client:
        await client.post("/v1/chat/completions", json=QUESTION)
        page = await tabs.open(f"{url}/#/runs")
        await page.get_by_text("live", exact=True).wait_for()
        row = page.get_by_role("link", name="answered")
        await row.hover()
        at, before = await row.bounding_box(), len(tabs.requests)
        for _ in range(20):
            await asyncio.gather(*(client.post("/v1/chat/completions", json=QUESTION) for _ in range(10)))
        await page.get_by_text("200 new").wait_for()
        assert await row.bounding_box() == at
        assert len(tabs.requests) == before
        await page.get_by_text("200 new").click()
        await page.mouse.move(0, 0)

        assert await page.locator("table.runs tbody tr").count() == 201


async def test_the_last_hour_is_a_strip_with_what_failed_in_red(
    upstream: Upstream, tabs: Tabs, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = minute_of(time.time())
    monkeypatch.setattr("callgate.recorder.last_hour.minute_of", lambda moment: now)  # no minute ends meanwhile
    async with served_page(upstream, tabs) as url, http_client(url) as client:
        await run_of(client, upstream)
        await run_of(client, upstream, [Reply(status=400, body={"error": {"message": "no"}})])
        page = await tabs.open(f"{url}/#/runs")
        strip = page.get_by_role("img", name="Last hour, this process: 2 requests, 1 failed, at most 2 a minute")
        await strip.wait_for()
        paths = [await path.bounding_box() for path in await strip.locator("path").all()]

    (all_of_it, failed) = paths
    assert all_of_it["width"] > 0
    assert failed["height"] == pytest.approx(all_of_it["height"] / 2)


async def test_filters_are_in_the_address_and_an_empty_list_says_why(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs) as url, http_client(url) as client:
        await run_of(client, upstream)
        await run_of(client, upstream, [Reply(calls=[Call("add", '{"a": 2, "b"')]), Reply(text="Oh.")])
        page = await tabs.open(f"{url}/#/runs")
        rows = page.locator("table.runs tbody tr")
        await rows.nth(1).wait_for()
        await page.get_by_label("problems only").check()
        await page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
        await page.reload()
        await page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
        odd = await page.get_by_label("problems only").is_checked()
        await page.get_by_label("Tool").fill("nobody's")
        await page.keyboard.press("Enter")
        await page.get_by_text("No run matches tool nobody's, odd 1.").wait_for()
        await page.go_back()
        await page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
        await page.evaluate("() => { location.hash = '#/runs?model=m&key=anonymous'; }")
        await rows.nth(1).wait_for()
        await page.reload()
        await rows.nth(1).wait_for()  # and is not taken for a link that brings a key
        await page.goto(f"{url}/#/runs?state=made+up")
        await page.get_by_text("No run matches state made up.").wait_for()

    assert odd


async def test_the_parts_of_a_turn_add_up_and_a_fallback_shows_who_failed(upstream: Upstream, tabs: Tabs) -> None:
    upstream.script("m", [Reply(status=500, body={"error": {"message": "down"}})], repeat_last=True)
    both = [ADD, Call("get_weather", {"city": "Oslo"}, id="call_oslo")]
    upstream.script("spare", [Reply(calls=both), Reply(text="It is 5.")])
    async with served_page(upstream, tabs, {"m": ["spare"]}, models=["m", "spare"]) as url:
        async with http_client(url) as client:
            run = (await client.post("/v1/chat/completions", json=QUESTION)).headers["x-callgate-run"]
            row = (await client.get(f"/v1/runs/{run}")).json()
        page = await tabs.open(f"{url}/#/run/{run}")
        table = page.get_by_role("table", name="Waterfall")
        await table.wait_for()
        await page.get_by_text(
            "openai/m failed 3 times, then openai/spare answered. The model made 2 calls: 2 ran."
        ).wait_for()
        turns = await table.locator(".of-turn").all()
        sums = [
            await turn.locator("i").evaluate_all("(all) => all.reduce((sum, e) => sum + +e.dataset.ms, 0)")
            for turn in turns
        ]
        attempts = await table.locator(".of-attempt").all_inner_texts()
        calls = [
            await call.locator("i.tool").evaluate("(e) => [+e.dataset.from, +e.dataset.to]")
            for call in await table.locator(".of-call").all()
        ]

    starts = [event["at"] for event in row["events"] if event["kind"] == "turn_started"]
    assert sums[0] == pytest.approx((starts[1] - starts[0]) * 1000, abs=5)
    assert "m 500" in attempts[0]
    assert "spare" in attempts[-1]
    assert "answered" in attempts[-1]
    (one, one_end), (other, other_end) = calls
    assert max(one, other) < min(one_end, other_end)


async def test_a_failed_run_says_why_and_one_that_was_kept_what_was_asked(upstream: Upstream, tabs: Tabs) -> None:
    upstream.script("m", [Reply(status=401, body={"error": {"message": "no such account"}})])
    async with served_page(upstream, tabs, **CONTENT) as url, http_client(url) as client:
        failed = (await client.post("/v1/chat/completions", json=QUESTION)).headers["x-callgate-run"]
        answered = await run_of(client, upstream, [Reply(calls=[ADD]), Reply(text="It is 5.")])
        page = await tabs.open(f"{url}/#/run/{failed}")
        await page.get_by_text("502 upstream_auth: upstream status 401: no such account").wait_for()
        assert await page.locator("i.attempt[data-from]").count() == 1
        assert await page.locator("i.speaking[data-from]").count() == 0
        await page.goto(f"{url}/#/run/{answered}")
        said = page.locator(".said")
        await said.get_by_text("It is 5.").wait_for()
        asked = await said.locator("dd").first.inner_text()
        await page.goto(f"{url}/#/runs")
        row = page.locator("tr", has=page.locator(f"a[href='#/run/{failed}']"))
        cost = await row.locator("td").last.inner_text()

    assert asked == "what is 2 + 3?"
    assert cost == "–", "no model answered, so that no price is missing"


async def test_a_huge_run_is_shown_whole_and_scrolls(upstream: Upstream, tabs: Tabs) -> None:
    many = [
        Reply(calls=[Call("add", {"a": turn, "b": call}, id=f"c{turn}.{call}") for call in range(64)])
        for turn in range(10)
    ]
    loop = {"max_iterations": 20}
    async with served_page(upstream, tabs, loop=loop) as url, http_client(url) as client:
        run = await run_of(client, upstream, [*many, Reply(text="Done.")])
        page = await tabs.open(f"{url}/#/runs")
        await page.get_by_role("link", name="answered").wait_for()
        await page.evaluate(
            """() => { window.longest = 0; let last = performance.now();
              const tick = (now) => { window.longest = Math.max(window.longest, now - last); last = now; requestAnimationFrame(tick); };
              requestAnimationFrame((now) => { last = now; requestAnimationFrame(tick); }); }"""
        )
        began = time.monotonic()
        await page.evaluate("(run) => { location.hash = `#/run/${run}`; }", run)
        await page.locator(".of-call").nth(639).wait_for(state="attached")
        took = time.monotonic() - began
        await page.evaluate(
            """() => { window.longest = 0; window.changes = 0;
              new MutationObserver((all) => { window.changes += all.length; })
                .observe(document.body, {subtree: true, childList: true, attributes: true}); }"""
        )
        for _ in range(5):
            await page.mouse.wheel(0, 2000)
            await page.evaluate("() => new Promise(requestAnimationFrame)")
        longest = await page.evaluate("() => window.longest")
        drawn = await page.evaluate("() => window.changes")

    assert drawn < 2 * 640
    held_to(1.0, "a huge run is shown", took)
    held_to(0.1, "longest frame while it scrolls", longest / 1000)


async def test_without_content_no_text_is_in_the_page_the_file_or_an_answer(
    upstream: Upstream, tabs: Tabs, tmp_path: Path
) -> None:
    secret = "PLANTED-WORD"
    turns = [Reply(calls=[Call("echo", {"text": secret}, id="call_echo")]), Reply(text=f"said {secret}")]
    question = {"model": "m", "messages": [{"role": "user", "content": secret}]}
    async with served_page(upstream, tabs, data_dir=str(tmp_path)) as url, http_client(url) as client:
        upstream.script("m", turns)
        run = (await client.post("/v1/chat/completions", json=question)).headers["x-callgate-run"]
        page = await tabs.open(f"{url}/#/run/{run}?call=call_echo")
        said = []
        for tab in ("waterfall", "conversation", "events", "json"):
            await page.goto(f"{url}/#/run/{run}?tab={tab}&call=call_echo")
            await page.get_by_text("not kept (the config has no").first.wait_for()
            said.append(await page.content())
            if tab == "conversation":
                reasons = page.get_by_role("region", name="Conversation").get_by_text("not kept")
                assert await reasons.count() == 1
        answers = [
            (await client.get(f"/v1/runs{rest}")).text
            for rest in (
                "",
                f"/{run}",
                f"/{run}?content=1",
                f"/{run}/export",
                f"/{run}/export?as=otlp",
                f"/{run}/wire/0",
            )
        ]
        replay = page.get_by_role("button", name="Replay")
        assert await replay.is_disabled()
        await page.get_by_text("No replay: its texts are not kept.").wait_for()

    files = kept_in(tmp_path)
    assert secret not in "".join([*said, *answers])
    assert run.encode() in files
    assert secret.encode() not in files


async def test_a_secret_that_a_tool_echoes_is_masked_everywhere(upstream: Upstream, tabs: Tabs, tmp_path: Path) -> None:
    turns = [Reply(calls=[Call("echo", {"text": f"the key is {SECRET}"}, id="call_echo")]), Reply(text="told")]
    async with served_page(upstream, tabs, data_dir=str(tmp_path), **CONTENT) as url, http_client(url) as client:
        run = await run_of(client, upstream, turns)
        page = await tabs.open(f"{url}/#/run/{run}?tab=conversation")
        await page.get_by_text("the key is").first.wait_for()
        shown = await page.content()
        exported = (await client.get(f"/v1/runs/{run}/export")).text

    files = kept_in(tmp_path)
    assert SECRET not in shown + exported
    assert SECRET.encode() not in files


async def test_a_key_that_sees_its_own_runs_sees_no_other(upstream: Upstream, tabs: Tabs) -> None:
    keys, auth = keyring(alice={"see": "own"}, bob={"see": "own"}, carl={})
    async with served_page(upstream, tabs, **auth, **CONTENT) as url, http_client(url) as client:
        by = {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}
        bobs = await run_of(client, upstream, headers=by["bob"])
        page = await tabs.open(f"{url}/#/runs", key=keys["alice"])
        await page.get_by_text("live", exact=True).wait_for()
        await page.get_by_text("No runs yet.").wait_for()
        await run_of(client, upstream, headers=by["bob"])
        await run_of(client, upstream, headers=by["alice"])
        await page.get_by_role("link", name="answered").wait_for()
        rows = await page.locator("tbody tr").count()
        await page.evaluate("(hash) => { location.hash = hash; }", f"#/run/{bobs}")
        await page.get_by_text(f"No run `{bobs}` was recorded here.").wait_for()
        others = [
            (await client.request(method, f"/v1/runs/{bobs}{rest}", headers=by["alice"])).status_code
            for method, rest in (("GET", ""), ("GET", "/export"), ("POST", "/replay"), ("GET", "/wire/0"))
        ]
        refused = await tabs.open(f"{url}/#/runs", key=keys["carl"])
        await refused.get_by_text("This key may not see runs").first.wait_for()

    assert rows == 1
    assert others == [404] * 4


async def test_a_replay_with_recorded_results_runs_nothing_and_links_both_ways(
    upstream: Upstream, tabs: Tabs, tmp_path: Path
) -> None:
    async with served_page(upstream, tabs, models=["m", "other"], data_dir=str(tmp_path), **CONTENT) as url:
        async with http_client(url) as client:
            run = await run_of(client, upstream)
        upstream.script("other", [Reply(calls=[Call("add", {"b": 3, "a": 2})]), Reply(text="Five.")])
        page = await tabs.open(f"{url}/#/run/{run}")
        await page.get_by_role("button", name="Replay").click()
        await page.get_by_label("Model").select_option("other")
        await page.get_by_role("button", name="Ask again").click()
        await page.get_by_text("replay of").wait_for()
        new = page.url.rpartition("/")[2]
        await page.get_by_role("link", name="compare").click()
        table = page.get_by_role("table", name="Compare")
        await table.get_by_text("Five.").wait_for()
        differing = [head.strip() for head in await table.locator("tr.differs th").all_inner_texts()]
        await page.goto(f"{url}/#/run/{run}")
        await page.get_by_role("link", name=new).wait_for()

    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as ledger:
        assert ledger.execute("SELECT run_id FROM calls").fetchall() == [(run,)]
    assert "model" in differing
    assert "turn 2" in differing
    assert not any("finish_reason" in each for each in differing)


async def test_a_run_that_was_cut_offers_no_replay_and_shows_the_reason(upstream: Upstream, tabs: Tabs) -> None:
    turns = [Reply(calls=[Call("echo", {"text": "x" * 2000})]), Reply(text="told")]
    async with served_page(upstream, tabs, record={"content": True, "content_bytes": 300}) as url:
        async with http_client(url) as client:
            run = await run_of(client, upstream, turns)
        page = await tabs.open(f"{url}/#/run/{run}")
        await page.get_by_text("No replay: some of its texts were cut").wait_for()
        assert await page.get_by_role("button", name="Replay").is_disabled()


async def test_what_is_exported_is_what_was_asked_for_and_can_be_used(
    upstream: Upstream, tabs: Tabs, tmp_path: Path
) -> None:
    async with served_page(upstream, tabs, **CONTENT) as url:
        async with http_client(url) as client:
            run = await run_of(client, upstream)
        page = await tabs.open(f"{url}/#/run/{run}")
        files: dict[str, Path] = {}
        for kind in ("curl", "recording"):
            async with page.expect_download() as coming:
                await page.get_by_label("Export").select_option(kind)
            files[kind] = tmp_path / kind
            await (await coming.value).save_as(files[kind])
        upstream.script("m", TURNS)
        environment = {"CALLGATE_KEY": "none", "PATH": "/usr/bin:/bin"}
        process = await asyncio.create_subprocess_exec(
            "sh", str(files["curl"]), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env=environment
        )
        answer, _ = await process.communicate()
    files["recording"].rename(tmp_path / "case.json")

    assert json.loads(answer)["choices"][0]["message"]["content"] == "It is 5."
    assert load(tmp_path / "case.json").replies


async def test_a_call_is_shown_as_written_as_read_and_as_sent_to_the_model(upstream: Upstream, tabs: Tabs) -> None:
    fenced = Call("add", '```json\n{"a": "2", "b": 3}\n```', id="call_fenced")
    broken = Call("add", {"a": "many", "b": 3}, id="call_broken")
    async with served_page(upstream, tabs, **CONTENT) as url:
        async with http_client(url) as client:
            run = await run_of(client, upstream, [Reply(calls=[fenced, broken], finish="stop"), Reply(text="5")])
        page = await tabs.open(f"{url}/#/run/{run}")
        detail = page.get_by_role("region", name="Call")
        seen = {}
        for call in ("call_fenced", "call_broken"):
            for side in ("as written", "parsed", "sent to the model", "wire"):
                await page.evaluate("(hash) => { location.hash = hash; }", f"#/run/{run}?call={call}&side={side}")
                await detail.get_by_role("link", name=side).and_(page.locator("[aria-current]")).wait_for()
                await page.wait_for_function("() => !document.querySelector('.detail').innerText.includes('Loading')")
                seen[call, side] = await detail.inner_text()

    assert "```json" in seen["call_fenced", "as written"]
    assert "```" not in seen["call_fenced", "parsed"]
    assert re.search(r'"a": 2,', seen["call_fenced", "parsed"])
    assert "repairs:" in seen["call_fenced", "parsed"]
    assert "nothing was run" in seen["call_broken", "parsed"]
    assert "broken: schema_mismatch" in seen["call_broken", "as written"]
    assert "/a" in seen["call_broken", "sent to the model"]
    assert "schema" in seen["call_broken", "sent to the model"]
    assert "data: " in seen["call_broken", "wire"] or "choices" in seen["call_broken", "wire"]
    assert "finish_reason stop" in seen["call_broken", "wire"]


async def test_a_hostile_address_stays_text(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/runs?model={IMG}&state={IMG}")
        await page.get_by_text("No run matches").wait_for()
        for path, said in (("run", "was recorded here"), ("compare/x", "was recorded here"), ("tools", "get_weather")):
            await page.evaluate("(hash) => { location.hash = hash; }", f"#/{path}/{IMG}")
            await page.get_by_text(said).first.wait_for()
        await page.evaluate("(hash) => { location.hash = hash; }", f"#/{IMG}/%E0%A4%A")
        await page.get_by_text("Nothing was asked in this time").wait_for()

        assert await page.locator("img").count() == 0
        assert "owned" not in await page.title()


async def test_what_was_recorded_of_a_run_is_deleted_after_a_question(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs) as url, http_client(url) as client:
        run = await run_of(client, upstream)
        page = await tabs.open(f"{url}/#/run/{run}")
        await page.get_by_role("button", name="Delete").click()  # a question that nobody answers is a no
        kept = (await client.get(f"/v1/runs/{run}")).status_code
        page.once("dialog", lambda dialog: dialog.accept())
        await page.get_by_role("button", name="Delete").click()
        await page.get_by_text("No runs yet.").wait_for()

        assert (kept, (await client.get(f"/v1/runs/{run}")).status_code) == (200, 404)


async def test_endings_have_words_of_their_own_and_calls_their_outcomes(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs, **CONTENT) as url, http_client(url) as client:
        cut = Call("get_weather", '{"city": "Os', id="call_cut")
        turns = {
            "answered": [Reply(calls=[ADD]), Reply(text="5")],
            "cut at length": [Reply(calls=[ADD]), Reply(text="5", finish="length")],
            "broken call": [Reply(calls=[ADD, cut]), Reply(text="5")],
            "same call again": [*[Reply(calls=[ADD])] * 3, Reply(text="5")],
            "failed": [Reply(status=400, body={"error": {"message": "no"}})],
        }
        runs = {word: await run_of(client, upstream, replies) for word, replies in turns.items()}
        page = await tabs.open(f"{url}/#/runs")
        await page.locator("table.runs tbody tr").nth(4).wait_for()
        tones, chips = {}, {}
        for word, run in runs.items():
            row = page.locator("tr", has=page.locator(f"a[href='#/run/{run}']"))
            await row.get_by_role("link", name=word).wait_for()
            tones[word] = (await row.locator("td.state").get_attribute("class")).rpartition("tone-")[2]
            chips[word] = [(await chip.get_attribute("title")) for chip in await row.locator(".chip").all()]
        question = await row.locator("xpath=../..").locator(".question").first.inner_text()

    assert tones == {
        "answered": "good",
        "cut at length": "wait",
        "broken call": "wait",
        "same call again": "wait",
        "failed": "bad",
    }
    assert chips["answered"] == ["add: returned"]
    assert chips["broken call"][0] == "add: returned"
    assert chips["broken call"][1].startswith("get_weather: ")
    assert "returned" not in chips["broken call"][1]
    assert chips["same call again"][0].startswith("add: ")
    assert question == "what is 2 + 3?"


async def test_runs_are_searched_sorted_added_up_and_named(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs, **CONTENT) as url, http_client(url) as client:
        one = await run_of(client, upstream, [Reply(calls=[ADD]), Reply(text="It is five.")])
        await run_of(client, upstream, [Reply(text="Six, and a good deal more than that.")])
        page = await tabs.open(f"{url}/#/runs")
        rows = page.locator("table.runs tbody tr")
        await rows.nth(1).wait_for()
        await page.locator(".sums").get_by_text("2 runs").wait_for()
        await page.get_by_label("Search").fill("FIVE")
        await page.keyboard.press("Enter")
        await page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
        found = await rows.first.locator("a").first.get_attribute("href")
        await page.locator(".sums").get_by_text("1 run", exact=True).wait_for()
        await page.get_by_label("Search").fill("nobody said this")
        await page.keyboard.press("Enter")
        await page.get_by_text("No run matches “nobody said this”.").wait_for()
        await page.get_by_role("link", name="Clear").click()
        await rows.nth(1).wait_for()
        await page.get_by_label("Sort").select_option("largest")
        await page.wait_for_function("() => location.hash.includes('sort=largest')")
        await rows.nth(1).wait_for()
        await page.get_by_label("Time").select_option("hour")
        await page.wait_for_function("() => location.hash.includes('time=hour')")
        await rows.nth(1).wait_for()
        await page.reload()
        await rows.nth(1).wait_for()
        kept = await page.get_by_label("Time").input_value()
        await page.wait_for_function("() => document.querySelector('#of-tool option')")
        tools = await page.locator("#of-tool option").evaluate_all("(all) => all.map((each) => each.value)")

    assert found == f"#/run/{one}"
    assert kept == "hour"
    assert tools == ["add"]


async def test_a_run_leads_to_those_beside_it_in_the_list_or_in_time(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs) as url, http_client(url) as client:
        runs = [await run_of(client, upstream) for _ in range(3)]
        page = await tabs.open(f"{url}/#/run/{runs[1]}")  # no list was shown
        below = page.get_by_role("button", name="The run below in the list")
        above = page.get_by_role("button", name="The run above in the list")
        await below.click()
        await page.wait_for_function("(run) => location.hash.includes(run)", arg=runs[0])
        await page.locator("h2").get_by_text(runs[0]).wait_for()
        await below.click()
        await page.get_by_text("No older run is kept.").wait_for()
        await above.click()
        await page.wait_for_function("(run) => location.hash.includes(run)", arg=runs[1])
        await page.goto(f"{url}/#/runs?sort=oldest")
        await page.locator("table.runs tbody tr").nth(2).wait_for()
        await page.locator(f"a[href='#/run/{runs[0]}']").click()
        await page.locator("h2").get_by_text(runs[0]).wait_for()
        first = await above.is_disabled()
        await below.click()
        await page.wait_for_function("(run) => location.hash.includes(run)", arg=runs[1])
        back = await page.locator("h2 a").get_attribute("href")

    assert first
    assert back == "#/runs?sort=oldest"


async def test_calls_of_a_run_follow_one_another(upstream: Upstream, tabs: Tabs) -> None:
    oslo = Call("get_weather", {"city": "Oslo"}, id="call_oslo")
    async with served_page(upstream, tabs) as url, http_client(url) as client:
        run = await run_of(client, upstream, [Reply(calls=[ADD, oslo]), Reply(text="5")])
        page = await tabs.open(f"{url}/#/run/{run}")
        await page.get_by_role("table", name="Waterfall").wait_for()
        detail = page.get_by_role("region", name="Call")
        await page.keyboard.press("j")
        await detail.get_by_text("call_add").wait_for()
        await detail.get_by_role("link", name="The call after").click()
        await detail.get_by_text("call_oslo").wait_for()
        last = await detail.get_by_role("link", name="The call after").count()
        await page.keyboard.press("k")
        await detail.get_by_text("call_add").wait_for()

    assert last == 0


async def test_a_run_has_ticks_costs_and_who_denied_a_call(upstream: Upstream, tabs: Tabs) -> None:
    keys, auth = keyring(boss={"admin": True, "approve": True})
    rules = {"require_approval": {"always": ["echo"]}, **auth}
    async with served_page(upstream, tabs, **rules) as url, http_client(url) as client:
        client.headers["authorization"] = f"Bearer {keys['boss']}"
        upstream.script("m", [Reply(calls=[Call("echo", {"text": "hi"}, id="call_echo")]), Reply(text="Well.")])
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
        page = await tabs.open(f"{url}/#/approvals", key=keys["boss"])
        await page.get_by_role("button", name="Approve").wait_for()
        [card] = (await client.get("/v1/approvals")).json()["data"]
        decision = {"decision": "deny", "reason": "not on a Sunday", "hash": card["hash"]}
        assert (await client.post(f"/v1/approvals/{card['id']}", json=decision)).status_code == 200
        run = (await asked).headers["x-callgate-run"]
        await page.goto(f"{url}/#/run/{run}?call=call_echo")
        await page.get_by_text("The model made 1 call: 1 denied by a person.").wait_for()
        said = await page.get_by_role("region", name="Call").inner_text()
        ticks = await page.locator(".axis b").all_inner_texts()
        used = await page.locator(".of-turn .cost").all_inner_texts()
        ending = await page.locator("span.state").inner_text()

    assert "denied by boss: “not on a Sunday”" in said
    assert ticks[0] == "0"
    assert len(ticks) >= 3
    assert len(used) == 2
    assert all("tok" in each and "$" in each for each in used)
    assert ending.strip() == "call denied"


async def test_compared_runs_show_results_and_mark_the_words_that_differ(upstream: Upstream, tabs: Tabs) -> None:
    async with served_page(upstream, tabs, **CONTENT) as url:
        async with http_client(url) as client:
            one = await run_of(client, upstream, [Reply(calls=[ADD]), Reply(text="It is 5, says the tool.")])
            more = Call("add", {"a": 2, "b": 4}, id="call_add")
            other = await run_of(client, upstream, [Reply(calls=[more]), Reply(text="It is 6, says the tool.")])
        page = await tabs.open(f"{url}/#/compare/{one}/{other}")
        table = page.get_by_role("table", name="Compare")
        await table.get_by_text("· result 1").wait_for()
        marked = {
            await row.locator("th").inner_text(): await row.locator("mark").all_inner_texts()
            for row in await table.locator("tr.differs").all()
        }

    by_row = {name.strip().removeprefix("≠").strip(): words for name, words in marked.items()}
    assert by_row["· call 1"] == ["3", "4"]
    assert by_row["· result 1"] == ["5", "6"]
    assert by_row["turn 2"] == ["5", "6"]
