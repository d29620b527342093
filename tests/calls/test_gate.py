import itertools
from typing import Any

import pytest

from callgate.calls.arguments import Fragments
from callgate.calls.gate import FoundCall, settle
from callgate.calls.offer import Bridge, OfferedTool
from callgate.calls.states import BrokenCall, Call, Finding, Flaw, FlawDetail, ReadyCall, Wrapping

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


def broken(*calls: FoundCall, **rest: Any) -> BrokenCall:
    found = one(*calls, **rest)
    assert isinstance(found, BrokenCall), found
    return found


def flaw(*calls: FoundCall, **rest: Any) -> tuple[str | None, Flaw]:
    found = broken(*calls, **rest)
    return found.name, found.flaw


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
    assert broken(call(name, "{}")).problem == FlawDetail(expected="the name of a tool that is on offer")


def test_an_unknown_tool_comes_before_the_arguments():
    found = broken(call(" Get-Weather ", '{"city": 1'))
    assert (found.name, found.flaw) == ("Get-Weather", Flaw.UNKNOWN_TOOL)
    assert found.problem is not None
    assert "get_weather" in found.problem.note


def test_an_unknown_name_is_quoted_up_to_a_length_and_without_a_suggestion_if_none_is_near():
    assert broken(call("x" * 121, "{}")).problem == FlawDetail(
        expected="the exact name of a tool that is on offer", got="x" * 120
    )


@pytest.mark.parametrize(
    ("text", "expected"), [('{"city": 1', Flaw.TRUNCATED), ("{'city'}", Flaw.INVALID_JSON), ("[1]", Flaw.NOT_AN_OBJECT)]
)
def test_the_arguments_come_before_the_schema(text, expected):
    found = broken(call("get_weather", text), at_length=True)
    assert found.flaw is expected
    assert found.text == text
    assert found.problem is not None
    assert found.problem.expected


def test_the_schema_comes_last():
    found = broken(call("get_weather", '{"city": 1}', extras={"s": 1}))
    assert (found.flaw, found.problem) == (Flaw.SCHEMA_MISMATCH, FlawDetail("/city", "a string"))
    assert found.extras == {"s": 1}, "a signature goes back with the call it is of"


def test_a_turn_without_calls_has_none():
    assert settled() == settled(failure=Flaw.STREAM_ENDED) == ()


# Under length, the last call was the one being written.


@pytest.mark.parametrize("arguments", [(), ("{}",), (" ",), ("null",), ({},)])
def test_an_empty_last_call_under_length_was_cut(arguments):
    assert flaw(call("open", *arguments), at_length=True) == ("open", Flaw.TRUNCATED)
    assert isinstance(one(call("open", *arguments)), ReadyCall)


def test_the_sign_of_a_cut_call_is_reported():
    note = "the answer had become too long while this call was being written"
    assert broken(call("open"), at_length=True).problem == FlawDetail(expected="arguments", got="{}", note=note)
    assert broken(call("get_weather", '{"days": 3}'), at_length=True).problem == FlawDetail(
        expected="the properties city", note=note
    )
    unsaid = FlawDetail(expected="arguments", got="none", note="the answer was cut off before they came")
    assert broken(call("get_time", ended=False)).problem == unsaid
    assert broken(call("get_time", "null", ended=False)).problem == unsaid


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


def test_the_flaw_of_a_cut_text_call_names_where_it_ended():
    for name in ("get_weather", None):
        found = broken(call(name, '{"city": "Os', flaw=Flaw.TRUNCATED, from_text=True))
        assert found.problem is not None
        assert "the text ends" in found.problem.note


def test_details_of_the_arguments_are_reported_only_for_the_flaw_that_the_reader_found():
    assert broken(call("get_weather", "{'a'}", flaw=Flaw.TRUNCATED, from_text=True)).problem is None
    assert broken(call("get_weather", "{}", flaw=Flaw.TRUNCATED, from_text=True)).problem is None


# The wrapper of several calls

TWO = '{"tool_uses":[{"recipient_name":"functions.get_weather","parameters":{"city":"Goa","days":"2"}},%s]}'
GET_TIME = '{"recipient_name":"get_time","parameters":{}}'


def test_a_wrapper_is_replaced_by_its_calls():
    wrapper = call("multi_tool_use.parallel", TWO % GET_TIME, extras={"s": 1})
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


def test_a_wrapper_in_which_the_reader_found_a_flaw_is_not_opened():
    wrapper = call("multi_tool_use.parallel", TWO % GET_TIME, flaw=Flaw.TRUNCATED, from_text=True)
    assert flaw(wrapper) == ("multi_tool_use.parallel", Flaw.UNKNOWN_TOOL)


def test_a_tool_may_have_the_arguments_of_a_wrapper():
    assert len(settled(call("theirs", TWO % GET_TIME))) == 1


def test_the_calls_of_a_wrapper_have_what_was_noticed_of_it_but_for_its_id():
    found = (Finding.ID_REPAIRED, Finding.LEGACY_FUNCTION_CALL)
    for each in settled(call("multi_tool_use.parallel", "```" + TWO % GET_TIME + "```", findings=found)):
        assert isinstance(each, ReadyCall)
        assert each.findings[0] is Finding.LEGACY_FUNCTION_CALL
        assert Finding.ARGUMENTS_REPAIRED in each.findings
        assert Finding.ID_REPAIRED not in each.findings


def test_the_calls_of_a_wrapper_that_may_go_on_are_cut_like_any_other():
    empty = '{"recipient_name":"open","parameters":{}}'
    late: dict[str, Any] = {"ended": False, "in_order": False, "reason_came_before": True}
    assert isinstance(one(call("multi_tool_use.parallel", TWO % empty)), ReadyCall)
    assert flaw(call("multi_tool_use.parallel", TWO % empty, **late)) == ("open", Flaw.TRUNCATED)
    in_order = late | {"in_order": True}
    assert isinstance(one(call("multi_tool_use.parallel", TWO % empty, **in_order)), ReadyCall)
    assert flaw(call("multi_tool_use.parallel", TWO % empty), at_length=True) == ("open", Flaw.TRUNCATED)
    in_text = call("multi_tool_use.parallel", TWO % empty, from_text=True)
    assert isinstance(one(in_text, at_length=True), ReadyCall)


def test_the_calls_of_a_wrapper_fail_with_their_turn():
    wrapper = call("multi_tool_use.parallel", TWO % GET_TIME)
    calls = settled(wrapper, failure=Flaw.CONTENT_FILTER)
    assert [(c.name, c.flaw) for c in calls if isinstance(c, BrokenCall)] == [
        ("get_weather", Flaw.CONTENT_FILTER),
        ("get_time", Flaw.CONTENT_FILTER),
    ]


def test_what_is_kept_of_a_broken_call_can_always_be_sent():
    found = broken(call("bad\ud83d", '{"city": "\ud83d'))
    assert found.name == "bad\ufffd"
    found.text.encode()


@pytest.mark.parametrize(
    ("inside", "is_taken_out"),
    [
        ({"city": "Oslo"}, True),
        ({"city": "Oslo", "days": 1}, True),
        ('{"city": "Oslo"}', True),
        ({"city": "Oslo", "country": "Norway"}, False),
        ('{"city": "Oslo"', False),
        (["city"], False),
        (7, False),
    ],
)
def test_only_arguments_that_the_tool_has_are_taken_out_of_a_wrapper(inside, is_taken_out):
    found = one(call("get_weather", arguments={"arguments": inside}, from_text=True))
    if is_taken_out:
        assert isinstance(found, ReadyCall)
        assert found.arguments == (inside if isinstance(inside, dict) else {"city": "Oslo"})
        assert found.findings == (Finding.ARGUMENTS_REPAIRED,)
    else:
        assert isinstance(found, BrokenCall)
        assert found.flaw is Flaw.SCHEMA_MISMATCH


@pytest.mark.parametrize(
    "wrong", [{"place": {"city": "Oslo"}}, {"arguments": {"city": "Oslo"}, "city": 1}, {"arguments": {}, "x": 1}]
)
def test_no_other_object_is_a_wrapper_of_arguments(wrong):
    assert flaw(call("get_weather", arguments=wrong, from_text=True)) == ("get_weather", Flaw.SCHEMA_MISMATCH)


def test_a_native_call_is_never_taken_out_of_a_wrapper():
    native = call("get_weather", '{"arguments": {"city": "Oslo"}}')
    assert flaw(native) == ("get_weather", Flaw.SCHEMA_MISMATCH)


@pytest.mark.parametrize("properties", [{}, {"input": {}, "city": {}}, None, ["city"]])
def test_where_a_tool_may_mean_the_wrapper_it_is_no_wrapper(properties):
    tool = OfferedTool("run", {"type": "object", "properties": properties}, lambda _: None)
    given = FoundCall("call_1", "run", {"input": {}}, from_text=True)
    (found,) = settle([given], {"run": tool}, failure=None, at_length=False, new_id=str)
    assert isinstance(found, ReadyCall)
    assert found.arguments == {"input": {}}


def test_json_that_no_schema_speaks_of_is_read_where_the_format_has_it():
    given = {"city": "Oslo", "more": "[1]"}
    assert ready(call("get_weather", arguments=given, from_text=True, only_text=True)).arguments == given
    read = ready(call("get_weather", arguments=given, from_text=True, only_text=True, undeclared_json=True))
    assert read.arguments == {"city": "Oslo", "more": [1]}


# Custom tools, whose input is free text


def test_the_input_of_a_custom_tool_is_whole_as_it_came():
    whole = ready(call("theirs", "{half of", custom=True, findings=(Finding.ID_REPAIRED,), extras={"s": 1}))
    assert whole == ReadyCall("call_1", "theirs", {}, "{half of", (Finding.ID_REPAIRED,), {"s": 1}, custom=True)
    assert ready(call("theirs", "", custom=True)).text == ""


def test_the_input_of_a_custom_tool_that_may_go_on_is_cut():
    assert flaw(call("theirs", "half", custom=True), at_length=True) == ("theirs", Flaw.TRUNCATED)
    assert flaw(call("theirs", "half", custom=True, in_order=False, ended=False)) == ("theirs", Flaw.TRUNCATED)
    assert flaw(call("theirs", " ", custom=True, ended=False)) == ("theirs", Flaw.TRUNCATED)
    assert ready(call("theirs", "whole", custom=True, ended=False)).text == "whole"


def test_a_tool_of_ours_is_never_run_with_free_text():
    assert flaw(call("get_time", "now", custom=True)) == ("get_time", Flaw.INVALID_JSON)
    assert ready(call("get_time", "{}", custom=True)).custom is False


# Where the answer did not end as it should


@pytest.mark.parametrize(("tool", "is_whole"), [("get_time", True), ("open", False)])
def test_an_empty_object_behind_a_reason_without_end_is_whole_only_where_nothing_can_be_given(tool, is_whole):
    given = call(tool, "{}", ended=False, in_order=False, reason_came_before=True)
    assert isinstance(one(given), ReadyCall if is_whole else BrokenCall)


def test_behind_a_reason_without_end_an_object_is_whole_only_as_it_was_written():
    late: dict[str, Any] = {"ended": False, "in_order": False, "reason_came_before": True}
    assert ready(call("get_weather", '{"city": "Oslo"}', **late)).arguments == {"city": "Oslo"}
    assert flaw(call("get_weather", '{}{"city": "Oslo"}', **late)) == ("get_weather", Flaw.TRUNCATED)
    late["reason_came_before"] = False
    assert ready(call("get_weather", '{}{"city": "Oslo"}', **late)).arguments == {"city": "Oslo"}
    assert ready(call("open", "{}", **late)).arguments == {}


def test_behind_a_reason_with_the_end_mark_an_empty_object_is_whole():
    assert ready(call("open", "{}", ended=False, in_order=True, reason_came_before=True)).arguments == {}


# Calls inside a bridge ------------------------------------------------------------------------------------------------


def only_name_and_arguments(written: dict[str, Any]) -> FlawDetail | None:
    if written.keys() <= {"name", "arguments"} and isinstance(written.get("name"), str):
        return None
    return FlawDetail("/name", "the name of a tool")


BRIDGE = Bridge({name: OFFER[name] for name in ("get_weather", "get_time", "open")}, lambda name: ["get_weather"])
CALL_PARAMETERS = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["name", "arguments"],
}
BRIDGED = {**OFFER, "call_tool": OfferedTool("call_tool", CALL_PARAMETERS, only_name_and_arguments, bridge=BRIDGE)}


def inside(text: str, **rest: Any) -> Call:
    (settled_call,) = settle(
        [call("call_tool", text, **rest)], BRIDGED, failure=None, at_length=False, new_id=lambda: "made"
    )
    return settled_call


def test_a_call_inside_a_bridge_is_the_tools_own_and_goes_back_as_it_was_written():
    text = '{"name": "get_weather", "arguments": {"city": "Oslo", "days": "2"}}'
    whole = inside(text, extras={"s": 1})
    assert whole == ReadyCall(
        "call_1",
        "get_weather",
        {"city": "Oslo", "days": 2},
        '{"city": "Oslo", "days": "2"}',
        (Finding.ARGUMENTS_COERCED,),
        {"s": 1},
        wrapping=Wrapping("call_tool", text),
    )


def test_a_repaired_name_inside_a_bridge_goes_back_as_the_tools_own():
    whole = inside('{"name": "functions.get_time", "arguments": {}}')
    assert isinstance(whole, ReadyCall)
    assert whole.findings == (Finding.NAME_REPAIRED,)
    assert whole.wrapping == Wrapping("call_tool", '{"name": "get_time", "arguments": {}}')


def test_arguments_inside_a_bridge_may_be_written_as_a_string_of_json():
    whole = inside('{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}')
    assert isinstance(whole, ReadyCall)
    assert whole.arguments == {"city": "Oslo"}
    assert whole.findings == (Finding.ARGUMENTS_REPAIRED,)


@pytest.mark.parametrize(
    ("text", "name", "flaw"),
    [
        ('{"name": "get_weather", "arguments": {"city": "Os', "call_tool", Flaw.TRUNCATED),
        ('{"name": "get_weather", "arguments": {"city": oslo}}', "call_tool", Flaw.INVALID_JSON),
        ('{"name": "get_weather", "city": "Oslo"}', "call_tool", Flaw.SCHEMA_MISMATCH),
        ('{"name": 5, "arguments": {}}', "call_tool", Flaw.SCHEMA_MISMATCH),
        ('{"arguments": {}}', "call_tool", Flaw.SCHEMA_MISMATCH),
        ('{"name": "get_weather", "arguments": {"days": 2}}', "get_weather", Flaw.SCHEMA_MISMATCH),
        ('{"name": "get_weather", "arguments": ["Oslo"]}', "get_weather", Flaw.NOT_AN_OBJECT),
        ('{"name": "get_weather", "arguments": "{\\"city\\": \\"Os"}', "get_weather", Flaw.TRUNCATED),
        ('{"name": " ", "arguments": {}}', None, Flaw.MISSING_NAME),
        ('{"name": "get_wether", "arguments": {}}', "get_wether", Flaw.UNKNOWN_TOOL),
    ],
)
def test_half_a_call_inside_a_bridge_stays_half(text, name, flaw):
    half = inside(text)
    assert isinstance(half, BrokenCall), half
    assert (half.name, half.flaw) == (name, flaw)


@pytest.mark.parametrize("name", ["call_tool", "theirs", "functions.call_tool"])
def test_a_bridge_leads_to_no_tool_beside_it_and_not_to_itself(name):
    half = inside(f'{{"name": "{name}", "arguments": {{"name": "get_time", "arguments": {{}}, "city": "Oslo"}}}}')
    assert isinstance(half, BrokenCall), half
    assert (half.name, half.flaw) == ("call_tool", Flaw.UNKNOWN_TOOL)


def test_an_unknown_name_inside_a_bridge_is_told_the_nearest_ones():
    half = inside('{"name": "wether_of_city", "arguments": {}}')
    assert isinstance(half, BrokenCall)
    assert half.problem is not None
    assert half.problem.note == "did you mean get_weather?"


def test_no_arguments_inside_a_bridge_are_those_of_a_call_without_any():
    whole = inside('{"name": "get_time"}')
    assert isinstance(whole, ReadyCall)
    assert whole.arguments == {}


def test_at_the_length_limit_a_call_inside_a_bridge_without_arguments_was_cut():
    found = [call("call_tool", '{"name": "get_time"}')]
    (half,) = settle(found, BRIDGED, failure=None, at_length=True, new_id=lambda: "made")
    assert isinstance(half, BrokenCall)
    assert half.flaw is Flaw.TRUNCATED


def test_calls_of_a_bridge_inside_the_wrapper_of_parallel_calls_are_taken_out_of_both():
    use = '{"recipient_name":"functions.call_tool","parameters":{"name":"get_time","arguments":{}}}'
    (whole,) = settle(
        [call("multi_tool_use.parallel", f'{{"tool_uses":[{use}]}}')],
        BRIDGED,
        failure=None,
        at_length=False,
        new_id=lambda: "made",
    )
    assert isinstance(whole, ReadyCall)
    assert (whole.id, whole.name) == ("made", "get_time")
    assert whole.wrapping is not None
    assert whole.wrapping.name == "call_tool"


def test_a_failed_turn_breaks_a_call_of_a_bridge_as_any_other():
    found = [call("call_tool", '{"name": "get_time", "arguments": {}}')]
    (half,) = settle(found, BRIDGED, failure=Flaw.CONTENT_FILTER, at_length=False, new_id=lambda: "made")
    assert isinstance(half, BrokenCall)
    assert half.flaw is Flaw.CONTENT_FILTER
