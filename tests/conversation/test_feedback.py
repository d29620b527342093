import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.calls.offer import OfferedTool
from callgate.calls.states import BrokenCall, Flaw, FlawDetail
from callgate.conversation import feedback

WEATHER = OfferedTool(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "days": {"type": "array", "items": {"type": "object", "properties": {"date": {"type": "string"}}}},
        },
        "required": ["city"],
    },
)
OFFER = {"get_weather": WEATHER, "search_docs": OfferedTool("search_docs", {"type": "object", "properties": {}})}
LONGEST = 4000


def error_of(
    flaw: Flaw, *, name: str | None = "get_weather", problem: FlawDetail | None = None, offer=OFFER
) -> dict[str, Any]:
    text = feedback.explain(BrokenCall("call_1", name, flaw, '{"city": "Par', problem), offer)
    assert len(text) < LONGEST
    said = json.loads(text)
    assert list(said) == ["error"]
    error: dict[str, Any] = said["error"]
    return error


WHAT_TO_DO = {
    Flaw.TRUNCATED: ("cut off", "Send the call again, whole"),
    Flaw.INVALID_JSON: ("not valid JSON", "Send the call again"),
    Flaw.INVALID_MARKUP: ("not written as it has to be", "Send it again"),
    Flaw.NOT_AN_OBJECT: ("not a JSON object", "Send the call again"),
    Flaw.ARGUMENTS_TOO_LARGE: ("larger than", "split the work"),
    Flaw.MISSING_NAME: ("does not say which tool", "Send it again"),
    Flaw.UNKNOWN_TOOL: ("no tool of that name", "Use one of the tools listed"),
    Flaw.SCHEMA_MISMATCH: ("do not satisfy", "Correct what is named here"),
    Flaw.CONTENT_FILTER: ("content filter", "Do not repeat it"),
    Flaw.STREAM_ENDED: ("broke off", "Send the call again, whole"),
    Flaw.UPSTREAM_ERROR: ("reported an error", "Send the call again, whole"),
    Flaw.NOT_ALONE: ("goes on behind the call", "write it again"),
}


@pytest.mark.parametrize("flaw", list(Flaw))
def test_each_flaw_has_one_text_that_says_what_happened_and_what_to_do(flaw):
    happened, next_step = WHAT_TO_DO[flaw]
    error = error_of(flaw)
    assert error["code"] == flaw.value
    assert error["message"].startswith("Not run: ")
    assert happened in error["message"]
    assert next_step in error["message"]


def test_no_two_flaws_share_a_text():
    assert len({error_of(flaw)["message"] for flaw in Flaw}) == len(Flaw)


def test_a_truncated_call_is_shown_the_schema_it_has_to_satisfy():
    assert error_of(Flaw.TRUNCATED)["schema"] == WEATHER.parameters


def test_an_unknown_tool_is_answered_with_the_nearest_name_and_the_list():
    error = error_of(Flaw.UNKNOWN_TOOL, name="Get-Wether")
    assert error["did_you_mean"] == ["get_weather"]
    assert error["tools"] == ["get_weather", "search_docs"]
    assert "schema" not in error


def test_a_name_that_is_near_nothing_gets_no_suggestion():
    assert "did_you_mean" not in error_of(Flaw.UNKNOWN_TOOL, name="zzz")


def test_a_call_without_name_is_given_the_list():
    error = error_of(Flaw.MISSING_NAME, name=None)
    assert error["tools"] == ["get_weather", "search_docs"]


def test_a_mismatch_names_place_expectation_and_finding_and_shows_only_that_part_of_the_schema():
    problem = FlawDetail("/unit", 'one of "celsius", "fahrenheit"', '"celcius"')
    error = error_of(Flaw.SCHEMA_MISMATCH, problem=problem)
    assert error["pointer"] == "/unit"
    assert error["expected"] == 'one of "celsius", "fahrenheit"'
    assert error["got"] == '"celcius"'
    assert error["did_you_mean"] == ["celsius"]
    assert error["schema"] == {"type": "string", "enum": ["celsius", "fahrenheit"]}


def test_a_suggestion_is_made_once():
    problem = FlawDetail("/unit", "one of them", '"celcius"', 'did you mean "celsius"?')
    assert "note" not in error_of(Flaw.SCHEMA_MISMATCH, problem=problem)
    problem = FlawDetail("", 'the property "city"', "{}", '"city" is required and missing')
    assert error_of(Flaw.SCHEMA_MISMATCH, problem=problem)["note"] == '"city" is required and missing'


def test_a_pointer_is_followed_through_lists_and_stops_at_the_last_known_place():
    error = error_of(Flaw.SCHEMA_MISMATCH, problem=FlawDetail("/days/0/date", "string", "5"))
    assert error["schema"] == {"type": "string"}
    error = error_of(Flaw.SCHEMA_MISMATCH, problem=FlawDetail("/days/0/dote", "no such property", '"dote"'))
    assert error["schema"] == {"type": "object", "properties": {"date": {"type": "string"}}}
    assert error["did_you_mean"] == ["date"]


def test_a_pointer_is_followed_into_the_branches_of_an_optional_value():
    parameters = {"properties": {"a": {"anyOf": [{"type": "null"}, {"properties": {"b/c": {"type": "integer"}}}]}}}
    offer = {"t": OfferedTool("t", parameters)}
    error = error_of(Flaw.SCHEMA_MISMATCH, name="t", problem=FlawDetail("/a/b~1c", "integer", "x"), offer=offer)
    assert error["schema"] == {"type": "integer"}


def test_a_pointer_is_followed_through_a_reference_to_the_schemas_own_definitions():
    parameters = {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"properties": {"b": {"type": "null"}}}}}
    offer = {"t": OfferedTool("t", parameters)}
    assert error_of(Flaw.SCHEMA_MISMATCH, name="t", problem=FlawDetail("/a/b"), offer=offer)["schema"] == {
        "type": "null"
    }


def test_half_a_surrogate_pair_in_what_is_quoted_can_still_be_sent():
    text = feedback.explain(BrokenCall("1", "t", Flaw.INVALID_JSON, "", FlawDetail(got="\ud83d")), OFFER)
    assert json.loads(text.encode())["error"]["got"] == "?"


def test_a_large_schema_is_reduced_to_its_top_level():
    properties = {f"field_{n}": {"type": "string", "description": "d" * 200} for n in range(10)}
    offer = {"big": OfferedTool("big", {"type": "object", "properties": properties, "required": ["field_3"]})}
    schema = error_of(Flaw.TRUNCATED, name="big", offer=offer)["schema"]
    assert schema["required"] == ["field_3"]
    assert schema["properties"]["field_7"] == {"type": "string"}


def test_a_huge_schema_is_reduced_to_names_and_a_monstrous_one_to_a_note():
    many = {"type": "object", "properties": {f"field_number_{n}": {"type": "string"} for n in range(500)}}
    schema = error_of(Flaw.TRUNCATED, name="big", offer={"big": OfferedTool("big", many)})["schema"]
    assert schema["properties"][-1] == "… and 480 more"
    monstrous = {"type": "object", "properties": {f"{n}" + "x" * 200: {} for n in range(50)}}
    schema = error_of(Flaw.TRUNCATED, name="big", offer={"big": OfferedTool("big", monstrous)})["schema"]
    assert "note" in schema


def test_what_the_model_wrote_is_quoted_in_part_only():
    problem = FlawDetail("/" + "p" * 5000, "e" * 5000, "g" * 5000, "n" * 5000)
    error = error_of(Flaw.SCHEMA_MISMATCH, problem=problem)
    assert len(error["got"]) == feedback.MAX_QUOTE
    assert error["got"].endswith("…")


_LEAVES = st.none() | st.text() | st.integers()


@given(
    flaw=st.sampled_from(list(Flaw)),
    name=st.none() | st.text(max_size=300),
    problem=st.none() | st.builds(FlawDetail, st.text(max_size=300), st.text(), st.text(), st.text()),
    parameters=st.dictionaries(
        st.sampled_from(["type", "properties", "required", "enum", "items", "anyOf"]),
        st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)),
    ),
)
def test_any_broken_call_under_any_schema_gets_a_bounded_readable_text(flaw, name, problem, parameters):
    offer = {name or "t": OfferedTool(name or "t", parameters)}
    assert error_of(flaw, name=name, problem=problem, offer=offer)["code"] == flaw.value


@pytest.mark.parametrize(
    ("text", "code", "next_step"),
    [
        (feedback.LIMIT_REACHED, "limit_reached", "Answer the user now"),
        (feedback.TOO_MANY_CALLS, "too_many_calls", "send this one again in the next answer"),
    ],
)
def test_a_whole_call_that_did_not_run_says_why_and_what_to_do(text, code, next_step):
    error = json.loads(text)["error"]
    assert error["code"] == code
    assert error["message"].startswith("Not run: ")
    assert next_step in error["message"]
