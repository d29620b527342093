import json
import re
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from callgate.calls.outcome import Failed, Image, Outcome, Returned
from callgate.tools.executor import Policy
from callgate.tools.listing import prompt_tokens
from callgate.tools.read_more import MAX_KEPT, SECONDS, ResultPages, ResultStore
from callgate.tools.registry import Registry
from callgate.tools.toolbox import RequestToolbox, ToolSet
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
    client: Sequence[msgspec.Raw] = (),
    name: str = "long",
) -> tuple[RequestToolbox, ResultPages]:
    registry = Registry()
    registry.add(tool(name, AnsweringTool(answer), policy=Policy(max_result_bytes=PAGE)))
    pages = pages_of("ann", "run_1", kept_results or ResultStore())
    tools = ToolSet(registry.tools(), with_read_more=True)
    return RequestToolbox(server_tools=tools, client_tools=client, run_id="run_1", results=pages), pages


def pages_of(owner: str, run_id: str, kept_results: ResultStore, page_bytes: int = PAGE) -> ResultPages:
    return ResultPages(kept_results, owner, run_id, page_bytes)


def pointer_in(outcome: Outcome) -> tuple[str, dict[str, object]]:
    found = POINTER.search(outcome.text)
    assert found is not None, outcome.text[-300:]
    return found[1], json.loads(found[2])


async def read_all(box: RequestToolbox, first: Outcome) -> str:
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


async def test_it_is_offered_from_the_first_turn_on():
    box, _ = paged("y" * 5000)
    offer = box.offer
    definitions = box.definitions()
    assert list(offer) == ["long", "read_more"]
    assert json.loads(bytes(definitions[1]))["function"]["name"] == "read_more"
    await box.run(ready("long"), silent)
    assert box.offer is offer
    assert box.definitions() is definitions
    plan = box.plan(
        [ready("read_more", {"id": "x"}, "call_1"), ready("long", {}, "call_2"), ready("nope", {}, "call_3")]
    )
    assert [call.name for call in plan.ours] == ["read_more", "long"]
    assert [call.name for call in plan.broken] == ["nope"]
    assert not box.writes(ready("read_more"))
    assert not box.is_ordered(ready("read_more"))


def test_it_is_described_in_few_tokens():
    [_, definition] = paged("")[0].definitions()
    assert prompt_tokens(definition) < 70


def test_where_there_are_no_tools_of_ours_it_is_not_offered():
    assert not ToolSet((), with_read_more=True).offer
    assert not RequestToolbox(server_tools=ToolSet((), with_read_more=True)).definitions()


async def test_a_result_that_fits_keeps_nothing():
    box, pages = paged("short")
    assert (await box.run(ready("long"), silent)).text == "short"
    assert not pages.ids


async def test_a_failure_that_is_long_is_cut_and_not_kept():
    box, pages = paged(Failed("no " * 1000))
    assert isinstance(await box.run(ready("long"), silent), Failed)
    assert not pages.ids


async def test_before_any_result_was_cut_there_is_nothing_to_read():
    box, _ = paged("y" * 5000)
    assert isinstance(await box.run(ready("read_more", {"id": "kept_" + "0" * 24}), silent), Failed)


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
    assert not pages.ids


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
    later = pages_of("ann", "run_2", kept_results)
    assert isinstance(later.page(str(arguments["id"]), 0), Failed)
    await later.recall([{"role": "tool", "content": first.text}, msgspec.Raw(b'{"role":"user","content":"go on"}')])
    assert isinstance(later.page(str(arguments["id"]), 0), Returned)
    strangers = pages_of("bob", "run_3", kept_results)
    await strangers.recall([{"role": "tool", "content": first.text}])
    assert not strangers.ids
    assert isinstance(strangers.page(str(arguments["id"]), 0), Failed)


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
    later, strangers = pages_of("ann", "run_2", other), pages_of("bob", "run_3", other)
    for pages in (strangers, later):
        await pages.recall([{"role": "tool", "content": first.text}])
    assert not strangers.ids
    page = later.page(str(arguments["id"]), 5000)
    assert isinstance(page, Returned)
    assert page.text.startswith("end")


async def test_an_image_is_kept_once_and_shown_to_its_conversation_alone_in_any_process():
    one, other = ResultStore(), ResultStore()
    one.shared = other.shared = Shared()
    image = Image(bytes(range(256)) * 20, "image/png")
    pages = pages_of("ann", "run_1", one)
    line = pages.put_away_image(image, "read_more")
    assert pages.put_away_image(image, "read_more") == line
    assert line is not None
    assert one.count() == 1
    await pages.save()
    [id] = re.findall(r'\{"id": "(kept_[0-9a-f]{24})"\}', line)
    later, strangers, unrelated = (
        pages_of("ann", "run_2", other),
        pages_of("bob", "run_3", other),
        pages_of("ann", "run_4", other),
    )
    for each in (strangers, later):
        await each.recall([{"role": "user", "content": [{"type": "text", "text": line}]}])
    assert later.page(id, 0) == later.page(f"callgate://kept/{id}", 7) == Returned("", images=(image,))
    assert isinstance(strangers.page(id, 0), Failed)
    assert isinstance(unrelated.page(id, 0), Failed)


@pytest.mark.parametrize(
    "rogue",
    [
        b"\xc1",
        b"\x93\xa2\xff\xfe\x00\xc4\x00",
        b"\x91" * 100_000,
        msgspec.msgpack.encode([0] * 100_000),
        bytes(8_000_000),
        msgspec.msgpack.encode(["ann", 0, b"<svg/>", "image/svg+xml"]),
        msgspec.msgpack.encode(["ann", 0, b"\xff", "image/png"]),
    ],
    ids=["no msgpack", "no text", "too deep", "too many values", "too long", "no image of ours", "no base64"],
)
async def test_what_others_wrote_instead_of_a_result_is_missing_and_the_next_is_there(rogue: bytes) -> None:
    one, other = ResultStore(), ResultStore()
    one.shared = other.shared = shared = Shared()
    damaged, whole = (one.keep("ann", "run_1", text, 0) for text in ("a" * 5000, "b" * 5000))
    await one.save([damaged, whole])
    shared.kept[damaged] = rogue
    with capture_logs() as logs:
        await other.fetch("ann", [damaged, whole])
    assert other.find("ann", damaged) is None
    assert other.find("ann", whole) is not None
    assert [line["event"] for line in logs] == ["result_not_found"]


async def test_what_was_kept_is_forgotten_after_a_while():
    clock = Clock()
    box, _ = paged("y" * 5000, kept_results=ResultStore(now=clock))
    name, arguments = pointer_in(await box.run(ready("long"), silent))
    clock.now = SECONDS + 1
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
    assert many.count() == MAX_KEPT


@given(st.text(min_size=1), st.integers(min_value=0, max_value=4000), st.integers(min_value=1, max_value=600))
def test_any_page_of_any_text_is_whole_letters(text, offset, size):
    kept_results = ResultStore()
    pages = pages_of("ann", "r", kept_results, size)
    id = kept_results.keep("ann", "r", text, 0)
    pages.ids.add(id)
    page = pages.page(id, offset)
    if isinstance(page, Returned):
        assert page.text.rpartition("\n[Bytes ")[0] in text.encode("utf-8", "replace").decode()
