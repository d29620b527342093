"""The Playground: the loop as it happens."""

import asyncio
import base64
import re
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from callgate import Image
from tests.chaos.scale import held_to
from tests.harness.needs import needs
from tests.page.served import IMG, answered, ask, keyring, say, served_page
from tests.page.tabs import Tabs
from tests.scripted_upstream import Call, Cut, Hang, Hold, Pace, Reply, Shape, Upstream

pytestmark = [pytest.mark.anyio, needs("environment:page", "chromium-headless-shell")]

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""A picture of one point."""


def picture() -> Image:
    """Draws a point."""
    return Image(base64.b64encode(DOT).decode(), "image/png")


BUILT_IN = [{"kind": "python", "module": "callgate.tools.builtin"}]
OSLO = Call("get_weather", {"city": "Oslo"}, id="call_oslo")
WATCH = """() => {
  window.seen = [];
  new MutationObserver(() => {
    const now = [...document.querySelectorAll('.trace .call')].map((each) =>
      [each.querySelector('b').textContent, each.querySelector('.verdict').textContent.trim(), each.querySelector('pre').textContent]);
    if (JSON.stringify(window.seen.at(-1)) !== JSON.stringify(now)) window.seen.push(now);
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""
"""Notes every state of the calls that is drawn."""


async def test_a_call_is_seen_growing_before_its_verdict(upstream: Upstream, tabs: Tabs) -> None:
    upstream.script("m", [Reply(calls=[OSLO], shape=Shape(piece=4), pace=Pace(between=0.05)), Reply(text="4 degrees.")])
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground")
        await page.evaluate(WATCH)
        await ask(page, "How is Oslo?")
        await page.get_by_text("4 degrees.").wait_for()
        seen = [state[0] for state in await page.evaluate("() => window.seen") if state]

    growing = [text for _, verdict, text in seen if "gathering" in verdict and text]
    assert len(set(growing)) >= 3
    assert all(later.startswith(earlier) for earlier, later in pairwise(growing))
    assert [verdict for _, verdict, _ in seen][-1] == "done"
    assert seen[-1][2] == '{"city":"Oslo"}'


@pytest.mark.parametrize(
    ("tools", "tries"),
    [(BUILT_IN, ["What is 2*21", "What is 17"]), (("get_weather",), ["Call get_weather."])],
    ids=["built in", "own"],
)
async def test_what_may_be_tried_needs_the_tools_that_are_there(
    upstream: Upstream, tabs: Tabs, tools: Sequence[Any], tries: list[str]
) -> None:
    async with served_page(upstream, tabs, tools=tools) as url:
        page = await tabs.open(f"{url}/#/playground")
        buttons = page.locator(".tries button")
        await buttons.first.wait_for()
        shown = await buttons.all_inner_texts()
    assert len(shown) == len(tries)
    assert all(text.startswith(beginning) for text, beginning in zip(shown, tries, strict=True))


async def test_a_verdict_waits_for_the_end_of_the_turn(upstream: Upstream, tabs: Tabs) -> None:
    gate = asyncio.Event()
    held = Pace(hold=Hold(gate, after=3))
    upstream.script("m", [Reply(calls=[OSLO], shape=Shape(one_chunk=True), pace=held), Reply(text="4 degrees.")])
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground")
        await say(page)
        call = page.locator(".trace .call")
        await call.get_by_text('{"city":"Oslo"}').wait_for()
        before = (await call.locator(".verdict").inner_text()).strip()
        gate.set()
        await call.get_by_text("done").wait_for()
        await answered(page)

    assert before == "gathering"


async def test_a_call_that_was_cut_off_is_red_with_its_flaw_and_never_runs(upstream: Upstream, tabs: Tabs) -> None:
    cut = Call("send_mail", '{"to": "bob@example.com", "subj', id="call_cut")
    upstream.script("m", [Reply(calls=[cut], finish="length"), Reply(text="Sorry.")])
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground")
        await page.evaluate(WATCH)
        await ask(page)
        call = page.locator(".trace .call.broken")
        await call.get_by_text("truncated").wait_for()
        [mark, ink] = await call.evaluate(
            "(e) => [getComputedStyle(e.querySelector('.verdict')).color, getComputedStyle(e).color]"
        )
        words = str(await page.evaluate("() => window.seen"))

    assert mark != ink
    assert "broken" in words
    assert "running" not in words
    assert "done" not in words


async def test_calls_whose_fragments_take_turns_grow_in_rows_of_their_own(upstream: Upstream, tabs: Tabs) -> None:
    calls = [OSLO, Call("add", {"a": 4, "b": 38}, id="call_add")]
    shape = Shape(piece=4, interleave=True)
    upstream.script("m", [Reply(calls=calls, shape=shape, pace=Pace(between=0.02)), Reply(text="Both.")])
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground")
        await page.evaluate(WATCH)
        await ask(page)
        await page.get_by_text("Both.").wait_for()
        seen = await page.evaluate("() => window.seen")

    half = [state for state in seen if len(state) == 2 and all("gathering" in verdict for _, verdict, _ in state)]
    assert any(0 < len(state[0][2]) < 15 and 0 < len(state[1][2]) < 14 for state in half)
    assert [[name, text] for name, _, text in seen[-1]] == [
        ["get_weather", '{"city":"Oslo"}'],
        ["add", '{"a":4,"b":38}'],
    ]


async def test_what_a_hostile_model_or_tool_writes_stays_text(upstream: Upstream, tabs: Tabs) -> None:
    echoed = Call("echo", {"text": IMG}, id="call_1")
    named = Call(IMG, {}, id="call_2")
    upstream.script("m", [Reply(calls=[echoed, named]), Reply(text=IMG)])
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground")
        await ask(page, IMG)
        await page.locator(".messages .assistant").get_by_text(IMG).wait_for()
        for place in (".messages .user", ".call pre.result", ".call b"):
            assert await page.locator(place).get_by_text(IMG).count() >= 1, place
        upstream.script("m", [Reply(status=400, body={"error": {"message": IMG, "type": "invalid_request_error"}})])
        await ask(page)
        assert await page.get_by_role("alert").count() == 1
        await page.get_by_text("Open run_").click()
        for tab in ("conversation", "events", "json", "waterfall"):
            await page.get_by_role("link", name=tab, exact=True).click()
        images = await page.locator("img").count()
        title = await page.title()

    assert images == 0
    assert title == "Run · Callgate"


async def test_stop_closes_the_request_upstream(upstream: Upstream, tabs: Tabs) -> None:
    upstream.script("m", [Reply(text="a long story that", fault=Hang(after=3))])
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground")
        await say(page)
        [asked] = await upstream.requests.wait(1)
        await asked.until_reached()
        began = time.monotonic()
        await page.get_by_role("button", name="Stop").click()
        how = await asked.until_closed()
        took = time.monotonic() - began
        await page.get_by_text("stopped", exact=True).wait_for()

    assert how == "client_disconnected"
    held_to(1.0, "Stop closes the request upstream", took)


async def test_a_refusal_before_the_first_byte_is_shown_with_its_status(upstream: Upstream, tabs: Tabs) -> None:
    body = {
        "error": {"message": "Incorrect API key provided.", "type": "invalid_request_error", "code": "invalid_api_key"}
    }
    upstream.script("m", [Reply(status=401, body=body)], repeat_last=True)
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground")
        await ask(page)
        said = await page.get_by_role("alert").inner_text()
        await page.get_by_text("Open run_").click()
        await page.get_by_text("401").first.wait_for()

    assert re.match(r"502: .+", said)  # whose key was refused is the operator's business, and the run says it


async def test_a_stream_that_breaks_keeps_its_text_and_says_where(upstream: Upstream, tabs: Tabs) -> None:
    upstream.script("m", [Reply(text="It was a dark and stormy night", fault=Cut(after=3))], repeat_last=True)
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground")
        await ask(page)
        answer = page.locator(".messages .assistant")
        assert (await answer.locator("p").first.inner_text()).startswith("It was")
        assert len(await answer.get_by_role("alert").inner_text()) > 10


async def test_a_megabyte_of_arguments_in_ten_thousand_fragments_leaves_the_page_usable(
    upstream: Upstream, tabs: Tabs
) -> None:
    gate = asyncio.Event()
    big = Call("echo", {"text": "x" * 1_000_000}, id="call_big")
    held = Pace(hold=Hold(gate, after=8_000))
    upstream.script("m", [Reply(calls=[big], shape=Shape(piece=100), pace=held), Reply(text="Done.")])
    async with served_page(upstream, tabs, limits={"argument_bytes": 4_000_000}) as url:
        page = await tabs.open(f"{url}/#/playground")
        await say(page)
        await page.get_by_text(re.compile(r"7\d\d\d fragments")).wait_for()
        began = time.monotonic()
        await page.get_by_text("System prompt").click()
        await page.get_by_role("textbox", name="System prompt").fill("Be short.")
        gate.set()
        await page.get_by_text("Done.").wait_for()
        took = time.monotonic() - began
        nodes = await page.evaluate("() => document.querySelectorAll('*').length")
        shown = await page.locator(".trace .call pre").first.inner_text()

    held_to(5.0, "a megabyte of arguments on the page", took)
    assert nodes < 500
    assert "1,000,011 characters" in shown


async def test_what_is_copied_as_curl_is_the_request_without_a_key(upstream: Upstream, tabs: Tabs) -> None:
    upstream.script("m", [Reply(text="fine")], repeat_last=True)
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground", permissions=["clipboard-read", "clipboard-write"])
        await ask(page, "it's me")
        copied: dict[str, Any] = {}
        for kind in ("curl", "Python", "JSON"):
            await page.get_by_role("button", name=f"Copy as {kind}").click()
            await page.get_by_text("Copied").first.wait_for()
            copied[kind] = await page.evaluate("() => navigator.clipboard.readText()")
        line = copied["curl"].replace("curl ", "curl -sS --fail ", 1)
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", line, stdout=asyncio.subprocess.PIPE, env={"CALLGATE_KEY": "none", "PATH": "/usr/bin:/bin"}
        )
        answer, _ = await process.communicate()

    assert b"fine" in answer
    assert "$CALLGATE_KEY" in copied["curl"]
    assert 'os.environ.get("CALLGATE_KEY"' in copied["Python"]
    compile(copied["Python"], "copied", "exec")
    assert '"it\'s me"' in copied["JSON"]


async def test_a_key_that_may_see_no_run_is_answered_all_the_same(upstream: Upstream, tabs: Tabs) -> None:
    keys, auth = keyring(alice={})
    async with served_page(upstream, tabs, **auth) as url:
        page = await tabs.open(f"{url}/#/playground", key=keys["alice"])
        for _ in range(2):  # streamed, and whole
            upstream.script("m", [Reply(calls=[Call("add", {"a": 1, "b": 2}, id="c")]), Reply(text="It is three.")])
            await ask(page)
            await page.get_by_text("This key may not see runs").wait_for()
            said = await page.locator(".messages .assistant").last.inner_text()
            calls = await page.locator(".trace .call").all_inner_texts()
            assert "It is three." in said
            assert [re.match(r"add\s+done", call) is not None for call in calls] == [True]
            assert "waiting for the first words" not in await page.locator(".trace").inner_text()
            await page.get_by_label("stream").uncheck()

        assert await page.get_by_text("Open run_").count() == 0


DEMO = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]}
FIRST_HOUR = {"auth": "keys", "model_list": [DEMO], "tools": BUILT_IN}
"""The server of `make serve`, as far as the page is concerned."""


async def test_the_first_hour_shows_a_call_that_is_cut_off_and_its_texts_afterwards(
    upstream: Upstream, tabs: Tabs
) -> None:
    async with served_page(upstream, tabs, **FIRST_HOUR) as url:
        page = await tabs.open(f"{url}/#/playground")
        await page.locator(".tries button").nth(2).click()
        asked = await page.get_by_role("textbox", name="Message").input_value()
        await page.keyboard.press("Enter")
        await page.get_by_text("The calculator tool says: 42.").wait_for()
        broken = await page.locator(".trace .call.broken").inner_text()
        await page.get_by_text("Open run_").click()
        await page.get_by_text("kept in memory").wait_for()
        await page.get_by_text(asked).first.wait_for()
        await page.get_by_role("link", name="calculator").first.click()
        await page.get_by_role("link", name="sent to the model").click()
        await page.get_by_text("the arguments were cut off").wait_for()
        replay = page.get_by_role("button", name="Replay")

        assert await replay.is_enabled()
    assert "cut" in asked.lower()
    assert "truncated: not run" in broken
    assert '{"expression": "2*2' in broken


async def test_reasoning_is_folded_and_a_streamed_answer_has_its_cost(upstream: Upstream, tabs: Tabs) -> None:
    upstream.script("m", [Reply(calls=[OSLO], reasoning="I look out of the window."), Reply(text="4 degrees.")])
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground")
        await ask(page, "How is Oslo?")
        folded = page.locator("details.reasoning p")
        assert not await folded.is_visible()
        await page.locator("details.reasoning summary").click()
        await page.get_by_text("I look out of the window.").wait_for()
        turns = await page.locator(".trace .turn").all_inner_texts()
        await page.get_by_text("in all").wait_for()

    assert all("$" in turn for turn in turns)


async def test_it_says_why_a_call_broke_and_why_there_is_no_text(upstream: Upstream, tabs: Tabs) -> None:
    wrong = Call("add", {"a": "four", "b": 38}, id="call_wrong")
    upstream.script("m", [Reply(calls=[wrong]), Reply(text="")])
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground")
        await ask(page)
        why = await page.locator(".call.broken .why").inner_text()
        said = await page.locator(".messages .assistant").get_by_role("status").inner_text()

    assert "/a" in why
    assert "four" in why
    assert "The model wrote no text: finish_reason stop" in said
    assert "1 call broken and not run" in said


async def test_markdown_is_shown_as_elements_and_never_as_markup(upstream: Upstream, tabs: Tabs) -> None:
    written = f"# Oslo\n\nIt is **4** `degrees`, 2*2 and 3*3, {IMG}\n\n- cold\n  1. very\n- wet\n\n| a | b |\n|---|---|\n| 1 | {IMG} |\n\n```\n**{IMG}**\n```\n[here](javascript:alert(1))"
    upstream.script("m", [Reply(text=written)], repeat_last=True)
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground")
        await ask(page)
        answer = page.locator(".messages .written")
        drawn = await answer.evaluate(
            "(e) => ['h4', 'strong', 'em', 'code', 'ul > li', 'ol > li', 'td', 'pre', 'a', 'img'].map((each) => e.querySelectorAll(each).length)"
        )
        code = await answer.locator("pre").inner_text()
        await page.get_by_label("show text raw").check()
        await answer.wait_for(state="detached")
        raw = await page.locator(".messages .assistant p").inner_text()
        title = await page.title()

    assert drawn == [1, 1, 0, 2, 2, 1, 2, 1, 0, 0]
    assert code == f"**{IMG}**"
    assert raw == written
    assert title == "Playground · Callgate"


async def test_a_draft_and_what_happened_before_stay_while_other_pages_are_looked_at(
    upstream: Upstream, tabs: Tabs
) -> None:
    turns = [Reply(calls=[OSLO]), Reply(text="4 degrees."), Reply(text="You are welcome.")]
    upstream.script("m", turns)
    async with served_page(upstream, tabs) as url:
        page = await tabs.open(f"{url}/#/playground")
        await ask(page, "How is Oslo?")
        await ask(page, "Thank you.")
        await page.get_by_role("textbox", name="Message").fill("And what I have not sent")
        await page.get_by_role("link", name="Runs", exact=True).click()
        await page.get_by_role("link", name="Playground").click()
        kept = await page.get_by_role("textbox", name="Message").input_value()
        await page.locator("details.before summary").click()
        earlier = page.locator("details.before .call")
        await earlier.get_by_text("done").wait_for()

    assert kept == "And what I have not sent"


async def test_images_go_with_a_question_and_come_back_from_tools(upstream: Upstream, tabs: Tabs) -> None:
    upstream.script("m", [Reply(calls=[Call("picture", {}, id="call_picture")]), Reply(text="A dot.")])
    picture = {"kind": "python", "function": "tests.page.test_playground:picture", "safety": "read_only"}
    async with served_page(upstream, tabs, tools=[picture]) as url:
        page = await tabs.open(f"{url}/#/playground")
        await page.locator("input[type=file]").set_input_files(
            {"name": "dot.png", "mimeType": "image/png", "buffer": DOT}
        )
        await page.get_by_alt_text("To be sent").wait_for()
        await page.get_by_label("Max tokens").fill("99")
        await ask(page, "What is this?")
        await page.get_by_alt_text("What picture returned").wait_for()
        await page.get_by_text("The raw answer").click()
        await page.get_by_text("[DONE]").wait_for()
        loaded = await page.evaluate("() => [...document.querySelectorAll('img')].map((each) => each.naturalWidth)")
    [asked, _] = upstream.requests

    [_, image] = asked.body["messages"][-1]["content"]
    assert image["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(DOT).decode()
    assert asked.body["max_tokens"] == 99
    assert loaded == [1, 1]


@pytest.mark.parametrize("decision", ["Approve", "Deny"])
async def test_a_call_that_waits_is_decided_where_it_is_seen(upstream: Upstream, tabs: Tabs, decision: str) -> None:
    upstream.script("m", [Reply(calls=[Call("echo", {"text": "hello Bob"})]), Reply(text="So.")])
    options = {"tools": ["echo"], "require_approval": {"always": ["echo"]}}
    async with served_page(upstream, tabs, **options) as url:
        page = await tabs.open(f"{url}/#/playground")
        await say(page, "Write to Bob.")
        form = page.get_by_role("form", name="Decide about echo")
        await form.get_by_text("the arguments that are decided about").click()
        shown = await form.locator("pre").inner_text()
        await form.get_by_label("Reason").fill("not on a Sunday")
        await form.get_by_role("button", name=decision).click()
        await answered(page)
        ended = await page.locator(".trace .call").inner_text()
    results = [each for each in upstream.requests[-1].body["messages"] if each["role"] == "tool"]

    assert '"text": "hello Bob"' in shown
    assert ("done" in ended) is (decision == "Approve")
    assert ("not on a Sunday." in results[0]["content"]) is (decision == "Deny")
