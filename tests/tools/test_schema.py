import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.calls.states import FlawDetail
from callgate.tools.schema import SchemaError, _compile, _compile_late_fast, compile_schema
from tests.chaos.scale import held_to
from tests.harness.process import child_environment

DRAFT_7 = "http://json-schema.org/draft-07/schema#"

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "days": {"type": "integer", "minimum": 1},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object", "properties": {"a/b~c": {"type": ["number", "null"]}}},
        "limit": {"anyOf": [{"type": "integer", "maximum": 10}, {"type": "null"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
}


def problem(arguments: dict[str, Any], schema: dict[str, Any] | None = None) -> FlawDetail:
    found = compile_schema(schema or SCHEMA)(arguments)
    assert found is not None
    return found


def test_arguments_that_satisfy_their_schema_have_no_problem():
    check = compile_schema(SCHEMA)
    assert check({"city": "Oslo"}) is None
    assert check({"city": "Oslo", "days": 10**400, "unit": "celsius", "tags": [], "limit": None}) is None


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"type": "object", "properties": {}}])
def test_a_schema_that_asks_for_nothing_takes_any_object(schema):
    assert compile_schema(schema)({"anything": [1]}) is None


@pytest.mark.parametrize(
    ("arguments", "pointer", "expected", "got"),
    [
        ({"city": 3}, "/city", "string", "3"),
        ({"city": ""}, "/city", '{"minLength": 1}', '""'),
        ({"city": "x", "days": 1.5}, "/days", "integer", "1.5"),
        ({"city": "x", "days": 0}, "/days", '{"minimum": 1}', "0"),
        ({"city": "x", "unit": "kelvin"}, "/unit", 'one of "celsius", "fahrenheit"', '"kelvin"'),
        ({"city": "x", "tags": ["a", 1]}, "/tags/1", "string", "1"),
        ({"city": "x", "where": {"a/b~c": "y"}}, "/where/a~1b~0c", "null or number", '"y"'),
        ({"city": "x", "limit": 11}, "/limit", '{"maximum": 10}', "11"),
        ({}, "", 'the property "city"', "{}"),
    ],
)
def test_a_problem_says_where_what_was_expected_and_what_came(arguments, pointer, expected, got):
    found = problem(arguments)
    assert (found.pointer, found.expected, found.got) == (pointer, expected, got)


def test_an_unexpected_name_is_reported_before_the_missing_one_it_stands_for():
    found = problem({"cty": "Oslo"})
    assert found.got == '"cty"'
    assert found.note == 'did you mean "city"?'
    assert '"unit"' in found.expected


def test_a_value_close_to_an_allowed_one_is_suggested():
    assert problem({"city": "x", "unit": "Celsius"}).note == 'did you mean "celsius"?'


def test_where_no_alternative_fits_all_of_them_are_reported():
    assert problem({"city": "x", "limit": "many"}).expected == (
        '{"anyOf": [{"type": "integer", "maximum": 10}, {"type": "null"}]}'
    )


def test_problems_stay_short_however_long_the_arguments_are():
    found = problem({"city": "x" * 100_000, "unit": ["y"] * 100_000, "tags": [1] * 100_000})
    assert all(len(text) <= 401 for text in (found.pointer, found.expected, found.got, found.note))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "https://example.org/schema.json#/x"},
        {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"properties": {"a": {"$ref": "other.json"}}},
        {"$id": "http://example.org/me", "properties": {"a": {"$ref": "you"}}},
    ],
)
def test_a_reference_out_of_the_schema_is_refused_and_never_fetched(schema):
    with pytest.raises(SchemaError, match="never fetched"):
        compile_schema(schema)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "strin"}, "/type"),
        ({"properties": {"a": {"pattern": "("}}}, "/properties/a/pattern"),
        ({"required": "a"}, "/required"),
        ({"$ref": "#/$defs/nothing"}, "nothing"),
        ({"$schema": "http://example.org/own-dialect"}, "own-dialect"),
        ({"properties": {1: {}}}, "key"),
        ({"default": object()}, "object"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(schema, why):
    with pytest.raises(SchemaError, match=why.replace("$", r"\$")):
        compile_schema(schema)


def test_a_schema_nested_without_end_is_refused():
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"properties": {"a": deep}}
    with pytest.raises(SchemaError):
        compile_schema(deep)
    while deep:  # let go of it level by level
        deep = deep.pop("properties")["a"]


def test_references_inside_the_schema_are_followed():
    schema = {
        "$defs": {"Node": {"properties": {"next": {"$ref": "#/$defs/Node"}, "n": {"type": "integer"}}}},
        "$ref": "#/$defs/Node",
    }
    assert compile_schema(schema)({"next": {"next": {"n": 1}}}) is None
    assert problem({"next": {"next": {"n": "x"}}}, schema).pointer == "/next/next/n"


def test_a_pattern_that_never_ends_fails_the_check_and_not_the_process():
    found = problem({"a": "a" * 60 + "!"}, {"properties": {"a": {"type": "string", "pattern": r"^(a|aa)+\1$"}}})
    assert found.pointer == "/a"


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_formats_are_notes_in_every_draft(draft):
    schema = {"$schema": draft, "properties": {"mail": {"type": "string", "format": "email"}}}
    assert compile_schema(schema)({"mail": "not an address"}) is None


def test_the_schema_given_is_not_kept():
    schema: dict[str, Any] = {"type": "object", "required": ["a"]}
    check = compile_schema(schema)
    schema["required"] = []
    assert check({}) is not None


# Patterns -----------------------------------------------------------------------------------------

LOOKS_AHEAD = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-.]*)[A-Za-z0-9_+-]@[a-z.]+$"
"""What a widely used library writes for an address of mail."""


def with_pattern(pattern: str, **more: object) -> dict[str, object]:
    return {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern, **more}}}


@pytest.mark.parametrize(
    "pattern", ["(?=a)(a+)+$", "^(?!.*(a+)+$)b", r"(a*)*\1$", "(a|a)*$(?!b)", "(a+)+$", "(a|aa)+$", "(.*a){20}$"]
)
@pytest.mark.parametrize("length", [500, 100_000, 4_000_000])
def test_no_pattern_takes_long_whatever_the_value(pattern, length):
    check = compile_schema(with_pattern(pattern))
    began = time.process_time()
    check({"a": "a" * length + "!"})
    held_to(0.5, "a value is held against a pattern, of the processor", time.process_time() - began)


def test_a_pattern_that_looks_around_is_held_against_values_of_ordinary_length():
    check = compile_schema(with_pattern(LOOKS_AHEAD))
    assert check({"a": "me@example.com"}) is None
    problem = check({"a": "..me@example.com"})
    assert problem is not None
    assert problem.pointer == "/a"
    assert "pattern" in problem.expected
    problem = check({"a": "m" * 600 + "@example.com"})
    assert problem is not None
    assert "maxLength" in problem.expected


@pytest.mark.parametrize("name", ["default", "enum", "pattern", "properties", "a"])
def test_a_pattern_is_bounded_whatever_its_property_is_called(name):
    check = compile_schema({"type": "object", "properties": {name: {"type": "string", "pattern": "(?=a)(a+)+$"}}})
    assert check({name: "a" * 100}) is None
    assert check({name: "a" * 100_000}) is not None


def test_what_looks_like_a_pattern_in_data_stays_as_it_is():
    check = compile_schema(with_pattern("(?=a)", default={"pattern": "(?=x)"}, enum=["a", {"pattern": "(?=x)"}]))
    assert check({"a": "a"}) is None


def test_a_pattern_for_names_that_looks_around_is_refused_with_the_reason():
    with pytest.raises(SchemaError, match="for names of properties looks around"):
        compile_schema({"type": "object", "patternProperties": {"(?=a)(a+)+$": {}}})


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(SchemaError):
        compile_schema(with_pattern("("))


def test_a_schema_that_branches_without_end_is_refused_and_one_that_refers_to_itself_is_not():
    levels: dict[str, Any] = {
        f"a{at}": {"anyOf": [{"$ref": f"#/$defs/a{at + 1}"}, {"$ref": f"#/$defs/a{at + 1}"}]} for at in range(40)
    }
    branching = {"type": "object", "$defs": {**levels, "a40": {}}, "properties": {"x": {"$ref": "#/$defs/a0"}}}
    with pytest.raises(SchemaError, match="references written out"):
        compile_schema(branching)
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    assert compile_schema(tree)({"children": [{"children": []}]}) is None
    assert compile_schema(tree)({"children": [{"children": 1}]}) is not None


def test_names_and_anchors_of_schemas_count_as_references_too():
    by_anchor = {f"a{at}": {"$anchor": f"a{at}", "allOf": [{"$ref": f"#a{at + 1}"}] * 2} for at in range(40)}
    by_id = {f"a{at}": {"$id": f"a{at}", "allOf": [{"$ref": f"a{at + 1}"}] * 2} for at in range(40)}
    for named in (by_anchor, by_id):
        with pytest.raises(SchemaError, match="references written out"):
            compile_schema(
                {"type": "object", "$defs": named, "properties": {"x": {"$ref": named["a0"].get("$id", "#a0")}}}
            )


def test_what_does_not_fit_a_schema_of_many_branches_is_not_looked_for():
    levels: dict[str, Any] = {
        f"a{at}": {"anyOf": [{"$ref": f"#/$defs/a{at + 1}"}, {"$ref": f"#/$defs/a{at + 1}"}]} for at in range(15)
    }
    check = compile_schema(
        {"type": "object", "$defs": {**levels, "a15": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/a0"}}}
    )
    assert check({"x": "y"}) is None
    flaw = check({"x": 1})
    assert flaw is not None
    assert "too large" in flaw.note


def test_what_does_not_fit_deep_inside_a_schema_that_refers_to_itself_is_not_looked_for():
    branches = {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}]}
    node = {"type": "object", "properties": {"a": branches, "v": {"type": "integer"}}}
    check = compile_schema(
        {"type": "object", "$defs": {"node": node}, "properties": {"root": {"$ref": "#/$defs/node"}}}
    )

    def nested(levels: int) -> dict[str, Any]:
        value: dict[str, Any] = {"v": "no number"}
        for _ in range(levels):
            value = {"a": value}
        return {"root": value}

    near, deep = check(nested(1)), check(nested(60))
    assert near is not None
    assert "too deep" not in near.note
    assert deep is not None
    assert "too deep" in deep.note


NAMES = st.sampled_from(["a", "b", "é", "\ud800"])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["a", "x" * 20, "\ud800"])
SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "$schema": st.sampled_from(["http://json-schema.org/draft-07/schema#", "https://example.org/s", 1]),
            "type": st.sampled_from(["string", "integer", "object", "array", "null", "text", ["string"], 1]),
            "title": st.sampled_from(["t", None]),
            "description": st.sampled_from(["d", "\ud800", 1]),
            "enum": st.lists(VALUES, max_size=3),
            "default": VALUES | st.just([]),
            "minimum": VALUES,
            "maxLength": st.integers(-2, 5) | st.sampled_from([2**60, 2.0]),
            "minItems": st.integers(-1, 3),
            "pattern": st.sampled_from(["^a", "("]),
            "$ref": st.sampled_from(["#", "https://example.org/s"]),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array"]),
            "properties": st.dictionaries(NAMES, inner, max_size=3) | st.just([]),
            "required": st.lists(NAMES | st.just(1), max_size=3),
            "additionalProperties": st.booleans() | inner,
            "items": inner | st.lists(inner, max_size=2),
            "anyOf": st.lists(inner, max_size=2),
        },
    ),
    max_leaves=6,
)
"""Schemas of all plain keywords, with right and wrong values, and some others."""
ARGUMENTS = st.dictionaries(
    st.sampled_from(["a", "b", "é"]), st.sampled_from([None, True, 1, 2.5, "a", [], [1], {"a": 1}])
)


@given(SCHEMAS, st.lists(ARGUMENTS, max_size=4))
def test_a_check_that_is_compiled_late_equals_one_that_is_compiled_at_once(schema, written):
    late = _compile_late_fast(schema)
    if late is None:
        return
    at_once = _compile(schema)
    for arguments in written:
        assert late(arguments) == at_once(arguments)


def test_plain_schemas_are_compiled_when_they_are_first_used_and_others_at_once():
    assert _compile_late_fast({**SCHEMA, "properties": {"city": {"type": "string"}}, "$schema": DRAFT_7}) is not None
    assert _compile_late_fast({"type": "object", "properties": {"city": {"type": "town"}}}) is None
    assert _compile_late_fast({"properties": {"city": {"pattern": "^O"}}}) is None


def test_a_server_with_plain_tools_does_not_load_the_compiler():
    script = "import sys\nfrom callgate.tools import registry, toolbox\nassert 'jsonschema_rs' not in sys.modules"
    ran = subprocess.run([sys.executable, "-c", script], env=child_environment(), capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
