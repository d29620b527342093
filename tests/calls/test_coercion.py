import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.calls.coercion import coerce


def converted(value: object, schema: object, **root: object) -> object:
    return coerce({"x": value}, {"type": "object", "properties": {"x": schema}, **root})["x"]


def same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("10", {"type": "integer"}, 10),
        (" -7 ", {"type": "integer"}, -7),
        ("0", {"type": "integer"}, 0),
        ("12.50", {"type": "number"}, 12.5),
        ("1e3", {"type": "number"}, 1000.0),
        ("5", {"type": "number"}, 5),
        ("True", {"type": "boolean"}, True),
        ("FALSE", {"type": "boolean"}, False),
        ("null", {"type": "null"}, None),
        ('["a"]', {"type": "array"}, ["a"]),
        ('{"a": 1}', {"type": "object"}, {"a": 1}),
        ("null", {"type": ["integer", "null"]}, None),
        ("3", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 3),
        ("true", {"oneOf": [{"type": "number"}, {"type": "boolean"}]}, True),
        ("4", {"$ref": "#/$defs/Count"}, 4),
        ("null", {"anyOf": [{"$ref": "#/$defs/Count"}, {"type": "null"}]}, None),
    ],
)
def test_canonical_text_becomes_the_declared_type(text, schema, value):
    assert same(converted(text, schema, **{"$defs": {"Count": {"type": "integer"}}}), value)


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("10", {"type": "string"}),
        ("10", {"type": ["integer", "string"]}),
        ("10", {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ("10", {"anyOf": [{"type": "integer"}, {"enum": ["10"]}]}),
        ("10", {}),
        ("10", True),
        ("10", {"enum": [10]}),
        ("10", {"$ref": "#/nowhere"}),
        ("10", {"$ref": "#/properties/x"}),
        ("10", {"$ref": "http://elsewhere/x"}),
        ("1.0", {"type": "integer"}),
        ("010", {"type": "integer"}),
        ("+1", {"type": "integer"}),
        ("1_000", {"type": "integer"}),
        ("\u0661", {"type": "integer"}),
        ("several", {"type": "integer"}),
        ("", {"type": "integer"}),
        ("9" * 5000, {"type": "integer"}),
        (".5", {"type": "number"}),
        ("NaN", {"type": "number"}),
        ("1e999", {"type": "number"}),
        ("yes", {"type": "boolean"}),
        ("1", {"type": "boolean"}),
        ("None", {"type": "null"}),
        ("a@example.org", {"type": "array"}),
        ('{"a":1}', {"type": "array"}),
        ('{"a":1,"a":2}', {"type": "object"}),
        ("{'a':1}", {"type": "object"}),
    ],
)
def test_other_text_stays_as_it_is(text, schema):
    assert converted(text, schema) == text


@pytest.mark.parametrize(
    ("value", "schema"), [(1, {"type": "string"}), (1, {"type": "array"}), (1, {"type": "boolean"})]
)
def test_only_strings_are_converted(value, schema):
    assert same(converted(value, schema), value)


def test_types_are_tried_in_the_order_they_are_declared():
    assert same(converted("1", {"type": ["number", "integer"]}), 1)
    assert same(converted("null", {"type": ["null", "boolean"]}), None)


def test_only_top_level_properties_are_converted():
    schema = {"properties": {"o": {"type": "object", "properties": {"n": {"type": "integer"}}}}}
    assert coerce({"o": {"n": "1"}, "undeclared": "1"}, schema) == {"o": {"n": "1"}, "undeclared": "1"}


def test_what_needs_no_conversion_is_the_very_same_object():
    arguments = {"x": 1, "y": "text"}
    assert coerce(arguments, {"properties": {"x": {"type": "integer"}, "y": {"type": "string"}}}) is arguments
    assert coerce(arguments, {}) is arguments


def test_the_given_object_is_left_alone():
    arguments = {"x": "1"}
    assert coerce(arguments, {"properties": {"x": {"type": "integer"}}}) == {"x": 1}
    assert arguments == {"x": "1"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "anyOf", "$ref", "x"]), inner),
)


@settings(deadline=None)
@given(st.text(), JSON)
def test_no_schema_whatever_makes_it_raise(text, schema):
    converted(text, schema)


@pytest.mark.parametrize(
    ("union", "value"),
    [
        ({"anyOf": [{"type": "null"}, {"type": "object", "properties": {"max": {"type": "integer"}}}]}, {"max": 10}),
        ({"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/Limit"}]}, {"max": 10}),
        ({"anyOf": [{"$ref": "#/$defs/Limit"}, {"type": "object"}]}, {"max": "10"}),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"max": "10"}),
    ],
)
def test_text_in_an_object_is_converted_by_the_only_branch_of_a_union_that_is_one(union, value):
    limit = {"type": "object", "properties": {"max": {"type": "integer"}}}
    schema = {"properties": {"limit": union}, "$defs": {"Limit": limit}}
    assert coerce({"limit": {"max": "10"}}, schema, only_text=True) == {"limit": value}
