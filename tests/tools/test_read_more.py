import json
import re
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.calls.outcome import Failed, Outcome, Returned
from callgate.calls.states import BrokenCall
from callgate.tools.executor import Policy
from callgate.tools.read_more import MAX_KEPT, SECONDS, PagedToolbox, ResultPages, ResultStore
from callgate.tools.registry import Registry
from callgate.tools.toolbox import RequestToolbox
from tests.fakes import AnsweringTool, ready, silent, tool

pytestmark = pytest.mark.anyio

POINTER = re.compile(r"\[The rest is kept for a while: (\S+) (\{.*\}) reads on\.\]\Z")
PAGE = 1000


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def paged(
    answer: Outcome | str,
    *,
    kept_results: ResultStore | None = None,
    client: list[msgspec.Raw] | None = None,
    name: str = "long",
) -> tuple[PagedToolbox, ResultPages]:
    registry = Registry()
    registry.add(tool(name, AnsweringTool(answer), policy=Policy(max_result_bytes=PAGE)))
    pages = ResultPages(kept_results or ResultStore(), "ann", "run_1")
    box = RequestToolbox(registry.tools(), client or [], run_id="run_1", on_cut=pages.keep)
    return PagedToolbox(box, pages, PAGE), pages


def pointer_in(outcome: Outcome) -> tuple[str, dict[str, object]]:
    found = POINTER.search(outcome.text)
    assert found is not None, outcome.text[-300:]
    return found[1], json.loads(found[2])


async def read_all(box: PagedToolbox, first: Outcome) -> str:
    """What a model knows that reads on until the end."""
    name, arguments = pointer_in(first)
    offset = arguments["offset"]
    assert isinstance(offset, int)
    text = first.text.encode()[:offset].decode()
    while True:
        page = await box.run(ready(name, arguments), silent)
        assert isinstance(page, Returned), page
        assert len(page.text.encode()) <= PAGE
        body, _, note = page.text.rpartition("\n[Bytes ")
        text += body
        more = re.search(r"read on with offset (\d+)", note)
        if more is None:
            return text
        arguments = {**arguments, "offset": int(more[1])}


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 3000, "a\n" * 4000, "𝄞b" * 1500, "[... " * 900])
async def test_a_model_that_reads_on_gets_the_whole_result(text):
    box, _ = paged(text)
    first = await box.run(ready("long"), silent)
    assert isinstance(first, Returned)
    assert len(first.text.encode()) <= PAGE
    assert 0 < first.cut_bytes < len(text.encode())
    assert await read_all(box, first) == text


async def test_it_is_offered_only_once_there_is_something_to_read():
    box, _ = paged("y" * 5000)
    assert "read_more" not in box.offer
    assert len(box.schemas) == 1
    await box.run(ready("long"), silent)
    assert "read_more" in box.offer
    assert json.loads(bytes(box.schemas[1]))["function"]["name"] == "read_more"
    plan = box.plan(
        [ready("read_more", {"id": "x"}, "call_1"), ready("long", {}, "call_2"), ready("nope", {}, "call_3")]
    )
    assert [call.name for call in plan.ours] == ["read_more", "long"]
    assert [call.name for call in plan.broken] == ["nope"]
    assert not box.writes(ready("read_more"))


async def test_a_result_that_fits_keeps_nothing():
    box, pages = paged("short")
    assert (await box.run(ready("long"), silent)).text == "short"
    assert not pages
    assert "read_more" not in box.offer


async def test_a_failure_that_is_long_is_cut_and_not_kept():
    box, pages = paged(Failed("no " * 1000))
    assert isinstance(await box.run(ready("long"), silent), Failed)
    assert not pages


async def test_before_it_is_offered_a_call_of_it_is_of_no_tool():
    box, _ = paged("y" * 5000)
    plan = box.plan([ready("read_more", {"id": "x"})])
    assert plan.ours == ()
    assert isinstance(plan.broken[0], BrokenCall)


async def test_a_tool_of_that_name_keeps_it_and_so_does_a_clients():
    box, _ = paged("z" * 5000, name="read_more")
    name, _ = pointer_in(await box.run(ready("read_more"), silent))
    assert name == "callgate__read_more"
    theirs = msgspec.Raw(b'{"type":"function","function":{"name":"read_more","parameters":{}}}')
    other, _ = paged("z" * 5000, client=[theirs])
    first = await other.run(ready("long"), silent)
    assert pointer_in(first)[0] == "callgate__read_more"
    assert other.is_clients("read_more")
    assert await read_all(other, first) == "z" * 5000


async def test_what_was_never_read_is_listed_as_missing_at_the_end():
    box, _ = paged(Returned("w" * 3000, cut_bytes=7_000_000))
    first = await box.run(ready("long"), silent)
    name, arguments = pointer_in(first)
    last = await box.run(ready(name, {**arguments, "offset": 2900}), silent)
    assert "at least 7000000 bytes more, which were never read" in last.text


async def test_an_answer_of_which_only_the_unread_part_is_missing_offers_nothing_to_read():
    box, pages = paged(Returned("w" * 100, cut_bytes=500))
    first = await box.run(ready("long"), silent)
    assert "at least 500 bytes left out" in first.text
    assert not pages


@pytest.mark.parametrize("arguments", [{"id": "kept_0"}, {"id": "kept_" + "0" * 24}])
async def test_an_id_that_was_not_given_is_refused(arguments):
    box, _ = paged("y" * 5000)
    await box.run(ready("long"), silent)
    assert isinstance(await box.run(ready("read_more", arguments), silent), Failed)


async def test_beyond_the_end_there_is_nothing():
    box, _ = paged("y" * 5000)
    name, arguments = pointer_in(await box.run(ready("long"), silent))
    refused = await box.run(ready(name, {**arguments, "offset": 5000}), silent)
    assert isinstance(refused, Failed)
    assert "5000 bytes are kept" in refused.text


async def test_the_same_result_again_has_the_same_text_so_that_a_loop_is_detected():
    box, _ = paged("y" * 5000)
    assert await box.run(ready("long"), silent) == await box.run(ready("long"), silent)


# Whose it is, and for how long ----------------------------------------------------------------------------------------


async def test_another_conversation_of_the_same_caller_reads_only_what_its_history_names():
    kept_results = ResultStore()
    box, _ = paged("y" * 5000, kept_results=kept_results)
    first = await box.run(ready("long"), silent)
    _, arguments = pointer_in(first)
    later = ResultPages(kept_results, "ann", "run_2")
    assert isinstance(later.page(str(arguments["id"]), 0, PAGE), Failed)
    await later.recall([{"role": "tool", "content": first.text}, msgspec.Raw(b'{"role":"user","content":"go on"}')])
    assert isinstance(later.page(str(arguments["id"]), 0, PAGE), Returned)
    strangers = ResultPages(kept_results, "bob", "run_3")
    await strangers.recall([{"role": "tool", "content": first.text}])
    assert not strangers
    assert isinstance(strangers.page(str(arguments["id"]), 0, PAGE), Failed)


class Shared:
    """A store of several processes."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def put(self, id: str, kept: bytes, seconds: float) -> None:
        self.kept[id] = kept

    async def get(self, ids: Sequence[str], seconds: float) -> list[bytes | None]:
        return [self.kept.get(id) for id in ids]


async def test_another_process_reads_on_in_what_its_history_names_and_is_the_callers():
    one, other = ResultStore(), ResultStore()
    one.shared = other.shared = Shared()
    box, _ = paged("y" * 5000 + "end", kept_results=one)
    first = await box.run(ready("long"), silent)
    _, arguments = pointer_in(first)
    later, strangers = ResultPages(other, "ann", "run_2"), ResultPages(other, "bob", "run_3")
    for pages in (strangers, later):
        await pages.recall([{"role": "tool", "content": first.text}])
    assert not strangers
    page = later.page(str(arguments["id"]), 5000, PAGE)
    assert isinstance(page, Returned)
    assert page.text.startswith("end")


async def test_what_was_kept_is_forgotten_after_a_while():
    clock = Clock()
    box, pages = paged("y" * 5000, kept_results=ResultStore(now=clock))
    name, arguments = pointer_in(await box.run(ready("long"), silent))
    assert pages
    clock.now = SECONDS + 1
    assert not pages
    late = await box.run(ready(name, arguments), silent)
    assert isinstance(late, Failed)
    assert "not kept any more" in late.text


def test_the_oldest_goes_first_when_there_is_too_much():
    kept_results = ResultStore(max_bytes=1000)
    ids = [kept_results.keep("ann", "r", letter * 400, 0) for letter in "abc"]
    assert [kept_results.find("ann", id) is not None for id in ids] == [False, True, True]
    many = ResultStore()
    for number in range(MAX_KEPT + 10):
        many.keep("ann", "r", str(number), 0)
    assert many.count == MAX_KEPT


@given(st.text(min_size=1), st.integers(min_value=0, max_value=4000), st.integers(min_value=1, max_value=600))
def test_any_page_of_any_text_is_whole_letters(text, offset, size):
    kept_results = ResultStore()
    pages = ResultPages(kept_results, "ann", "r")
    id = kept_results.keep("ann", "r", text, 0)
    pages.ids.add(id)
    page = pages.page(id, offset, size)
    if isinstance(page, Returned):
        assert page.text.rpartition("\n[Bytes ")[0] in text.encode("utf-8", "replace").decode()
