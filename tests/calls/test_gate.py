import itertools
from typing import Any

import pytest

from callgate.calls.arguments import Fragments
from callgate.calls.gate import FoundCall, settle
from callgate.calls.offer import OfferedTool
from callgate.calls.states import BrokenCall, Call, Finding, Flaw, FlawDetail, ReadyCall

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}


def check(arguments: dict[str, Any]) -> FlawDetail | None:
    if isinstance(arguments.get("city"), str) and isinstance(arguments.get("days", 0), int):
        return None
    return FlawDetail("/city", "a string")


OFFER = {
    "get_weather": OfferedTool("get_weather", SCHEMA, check),
    "get_time": OfferedTool("get_time", {"type": "object", "properties": {}}, lambda _: None),
    "theirs": OfferedTool("theirs", SCHEMA),
    "open": OfferedTool("open", {"type": "object", "properties": {"path": {"type": "string"}}}, lambda _: None),
}


def call(name: str | None, *fragments: object, **rest: Any) -> FoundCall:
    written = Fragments()
    for fragment in fragments:
        written.add(fragment)
    return FoundCall("call_1", name, rest.pop("arguments", written), **rest)


def settled(*calls: FoundCall, failure: Flaw | None = None, at_length: bool = False) -> tuple[Call, ...]:
    count = itertools.count()
    return settle(calls, OFFER, failure=failure, at_length=at_length, new_id=lambda: f"made_{next(count)}")


def one(*calls: FoundCall, **rest: Any) -> Call:
    return settled(*calls, **rest)[-1]


def flaw(*calls: FoundCall, **rest: Any) -> tuple[str | None, Flaw]:
    broken = one(*calls, **rest)
    assert isinstance(broken, BrokenCall)
    return broken.name, broken.flaw


def ready(*calls: FoundCall, **rest: Any) -> ReadyCall:
    whole = one(*calls, **rest)
    assert isinstance(whole, ReadyCall), whole
    return whole


def test_a_whole_call_is_ready_with_the_models_own_text():
    whole = ready(call("get_weather", '{"city": ', '"Oslo"}', extras={"extra_content": {"s": 1}}))
    assert whole == ReadyCall(
        "call_1", "get_weather", {"city": "Oslo"}, '{"city": "Oslo"}', (), {"extra_content": {"s": 1}}
    )


# The order of flaws: each call below would have every later flaw as well.


@pytest.mark.parametrize("failure", [Flaw.UPSTREAM_ERROR, Flaw.STREAM_ENDED, Flaw.CONTENT_FILTER])
@pytest.mark.parametrize("name", [None, "nobody", "get_weather"])
def test_a_failed_turn_comes_before_everything(failure, name):
    assert flaw(call(name, '{"city": 1'), failure=failure) == (name, failure)


def test_a_failed_turn_names_the_tool_as_it_is_offered():
    assert flaw(call("functions.get_weather:0"), failure=Flaw.STREAM_ENDED) == ("get_weather", Flaw.STREAM_ENDED)


@pytest.mark.parametrize("name", [None, "", "  "])
def test_a_missing_name_comes_before_the_arguments(name):
    assert flaw(call(name, '{"city": 1'), at_length=True) == (None, Flaw.MISSING_NAME)


def test_an_unknown_tool_comes_before_the_arguments():
    broken = one(call(" Get-Weather ", '{"city": 1'))
    assert isinstance(broken, BrokenCall)
    assert (broken.name, broken.flaw) == ("Get-Weather", Flaw.UNKNOWN_TOOL)
    assert broken.problem is not None
    assert "get_weather" in broken.problem.note


@pytest.mark.parametrize(
    ("text", "expected"), [('{"city": 1', Flaw.TRUNCATED), ("{'city'}", Flaw.INVALID_JSON), ("[1]", Flaw.NOT_AN_OBJECT)]
)
def test_the_arguments_come_before_the_schema(text, expected):
    broken = one(call("get_weather", text), at_length=True)
    assert isinstance(broken, BrokenCall)
    assert broken.flaw is expected
    assert broken.text == text
    assert broken.problem is not None
    assert broken.problem.expected


def test_the_schema_comes_last():
    broken = one(call("get_weather", '{"city": 1}'))
    assert isinstance(broken, BrokenCall)
    assert (broken.flaw, broken.problem) == (Flaw.SCHEMA_MISMATCH, FlawDetail("/city", "a string"))


# Under length, the last call was the one being written.


@pytest.mark.parametrize("arguments", [(), ("{}",), (" ",), ("null",), ({},)])
def test_an_empty_last_call_under_length_was_cut(arguments):
    assert flaw(call("open", *arguments), at_length=True) == ("open", Flaw.TRUNCATED)
    assert isinstance(one(call("open", *arguments)), ReadyCall)


def test_a_tool_without_properties_has_only_the_empty_object_to_be_called_with():
    assert ready(call("get_time", "{}"), at_length=True).arguments == {}


@pytest.mark.parametrize("tool", ["get_weather", "theirs"])
def test_a_healed_object_that_lacks_what_is_required_was_cut(tool):
    assert flaw(call(tool, '{"days": 3}'), at_length=True) == (tool, Flaw.TRUNCATED)


def test_a_whole_last_call_under_length_is_ready():
    assert ready(call("get_weather", '{"city": "Oslo"}'), at_length=True).arguments == {"city": "Oslo"}


def test_earlier_calls_under_length_are_judged_as_ever():
    first, last = settled(call("open", "{}"), call("get_weather", '{"city": "Oslo"}'), at_length=True)
    assert isinstance(first, ReadyCall)
    assert isinstance(last, ReadyCall)
    first, last = settled(call("get_weather", '{"days": 1}'), call("get_time"), at_length=True)
    assert isinstance(first, BrokenCall)
    assert first.flaw is Flaw.SCHEMA_MISMATCH


def test_in_text_the_closing_marks_decide_and_not_the_length():
    assert ready(call("open", arguments={}, from_text=True), at_length=True).arguments == {}


# What is noticed about calls that run


def test_repairs_are_findings_of_the_call():
    whole = ready(call("functions.get_weather", '{}{"city": "Oslo", "days": "3"}', findings=(Finding.ID_REPAIRED,)))
    assert whole.arguments == {"city": "Oslo", "days": 3}
    assert set(whole.findings) == {
        Finding.ID_REPAIRED,
        Finding.NAME_REPAIRED,
        Finding.ARGUMENTS_REPAIRED,
        Finding.ARGUMENTS_COERCED,
    }


def test_a_clients_tool_is_held_to_nothing_but_one_object():
    assert ready(call("theirs", '{"days": "3"}')).arguments == {"days": "3"}
    assert flaw(call("theirs", "[]")) == ("theirs", Flaw.NOT_AN_OBJECT)


def test_a_format_of_text_alone_is_read_by_the_schema_without_a_finding():
    for tool in ("get_weather", "theirs"):
        whole = ready(call(tool, arguments={"city": "Oslo", "days": "3"}, only_text=True, from_text=True))
        assert (whole.arguments, whole.findings) == ({"city": "Oslo", "days": 3}, ())


def test_an_object_made_by_a_reader_is_no_repair_and_one_sent_for_text_is():
    assert ready(call("get_weather", arguments={"city": "Oslo"}, from_text=True)).findings == ()
    assert ready(call("get_weather", {"city": "Oslo"})).findings == (Finding.ARGUMENTS_REPAIRED,)


def test_a_fence_that_the_reader_took_off_is_a_repair():
    whole = ready(call("get_weather", '{"city": "Oslo"}', repaired=True, from_text=True))
    assert whole.findings == (Finding.ARGUMENTS_REPAIRED,)


# What a reader of text knows already


def test_the_readers_flaw_stands_unless_the_tool_is_unknown():
    assert flaw(call("get_weather", flaw=Flaw.INVALID_MARKUP, from_text=True)) == ("get_weather", Flaw.INVALID_MARKUP)
    assert flaw(call("nobody", flaw=Flaw.INVALID_MARKUP, from_text=True)) == ("nobody", Flaw.UNKNOWN_TOOL)
    assert flaw(call(None, flaw=Flaw.TRUNCATED, from_text=True)) == (None, Flaw.TRUNCATED)


def test_the_arguments_of_a_cut_text_call_still_say_where_it_ended():
    broken = one(call("get_weather", '{"city": "Os', flaw=Flaw.TRUNCATED, from_text=True))
    assert isinstance(broken, BrokenCall)
    assert broken.problem is not None
    assert "the text ends" in broken.problem.note


# The wrapper of several calls

TWO = '{"tool_uses":[{"recipient_name":"functions.get_weather","parameters":{"city":"Goa","days":"2"}},%s]}'


def test_a_wrapper_is_replaced_by_its_calls():
    wrapper = call("multi_tool_use.parallel", TWO % '{"recipient_name":"get_time","parameters":{}}', extras={"s": 1})
    weather, clock = settled(wrapper)
    assert weather == ReadyCall(
        "made_0",
        "get_weather",
        {"city": "Goa", "days": 2},
        '{"city": "Goa", "days": "2"}',
        (Finding.PARALLEL_UNWRAPPED, Finding.ARGUMENTS_COERCED),
        {"s": 1},
    )
    assert isinstance(clock, ReadyCall)
    assert (clock.id, clock.name, clock.findings, clock.extras) == (
        "made_1",
        "get_time",
        (Finding.PARALLEL_UNWRAPPED,),
        {},
    )


def test_each_inner_call_is_judged_by_itself():
    wrapper = call("multi_tool_use.parallel", TWO % '{"recipient_name":"functions.get_tides","parameters":{}}')
    weather, tides = settled(wrapper)
    assert isinstance(weather, ReadyCall)
    assert isinstance(tides, BrokenCall)
    assert (tides.name, tides.flaw) == ("functions.get_tides", Flaw.UNKNOWN_TOOL)


@pytest.mark.parametrize("text", ["{}", '{"tool_uses":[]}', '{"tool_uses":[{"recipient_name":"get_time"', "nonsense"])
def test_a_wrapper_of_another_shape_is_an_unknown_tool(text):
    assert flaw(call("multi_tool_use.parallel", text)) == ("multi_tool_use.parallel", Flaw.UNKNOWN_TOOL)


def test_a_wrapper_in_a_wrapper_is_an_unknown_tool():
    inner = '{"recipient_name":"multi_tool_use.parallel","parameters":{"tool_uses":[]}}'
    assert flaw(call("multi_tool_use.parallel", TWO % inner)) == ("multi_tool_use.parallel", Flaw.UNKNOWN_TOOL)


def test_the_calls_of_a_wrapper_fail_with_their_turn():
    wrapper = call("multi_tool_use.parallel", TWO % '{"recipient_name":"get_time","parameters":{}}')
    calls = settled(wrapper, failure=Flaw.CONTENT_FILTER)
    assert [(c.name, c.flaw) for c in calls if isinstance(c, BrokenCall)] == [
        ("get_weather", Flaw.CONTENT_FILTER),
        ("get_time", Flaw.CONTENT_FILTER),
    ]


def test_what_is_kept_of_a_broken_call_can_always_be_sent():
    broken = one(call("bad\ud83d", '{"city": "\ud83d'))
    assert isinstance(broken, BrokenCall)
    assert broken.name == "bad\ufffd"
    broken.text.encode()


def test_only_arguments_that_the_tool_has_are_taken_out_of_a_wrapper():
    inside = {"city": "Oslo", "country": "Norway"}
    assert flaw(call("get_weather", arguments={"arguments": inside}, from_text=True)) == (
        "get_weather",
        Flaw.SCHEMA_MISMATCH,
    )
    assert ready(call("get_weather", arguments={"arguments": {"city": "Oslo"}}, from_text=True)).arguments == {
        "city": "Oslo"
    }


@pytest.mark.parametrize(("tool", "is_whole"), [("get_time", True), ("open", False)])
def test_an_empty_object_behind_a_reason_without_end_is_whole_only_where_nothing_can_be_given(tool, is_whole):
    given = call(tool, "{}", ended=False, in_order=False, reason_came_before=True)
    assert isinstance(one(given), ReadyCall if is_whole else BrokenCall)
