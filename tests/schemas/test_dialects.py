import copy
import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.schemas.dialects import MAX_NODES, Dialect, portable

ALL: list[Dialect] = ["full", "openai", "gemini", "anthropic", "llama_cpp"]
PLAIN = {"type": "object", "properties": {"a": {"type": "string", "description": "A."}}, "required": ["a"]}


def of(property: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": property}, **more}


def gemini(property: Any, **more: Any) -> Any:
    return portable(of(property, **more), "gemini").schema["properties"]["a"]


@pytest.mark.parametrize("dialect", ALL)
def test_a_plain_schema_stays_as_it_is_and_loses_nothing(dialect):
    assert portable(PLAIN, dialect).schema == PLAIN
    assert portable(PLAIN, dialect).losses == ()


@pytest.mark.parametrize("dialect", ALL)
def test_the_schema_given_is_never_changed(dialect):
    schema = of(
        {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]}, **{"$defs": {"x": {"enum": [1, 2]}}}, anyOf=[PLAIN]
    )
    before = copy.deepcopy(schema)
    portable(schema, dialect)
    assert schema == before


# Gemini ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("property", "said"),
    [
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"type": "integer", "nullable": True}),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ({"type": ["integer", "string"]}, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ({"const": "x"}, {"type": "string", "enum": ["x"]}),
        ({"enum": ["x", None]}, {"type": "string", "enum": ["x"], "nullable": True}),
        ({"type": "integer", "enum": [1, 2]}, {"type": "integer", "description": "One of: 1, 2."}),
        ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}),
        ({"type": "number", "exclusiveMaximum": 1}, {"type": "number", "description": "Less than 1."}),
        ({"type": "string", "format": "uri"}, {"type": "string"}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"type": "string", "default": "x"}, {"type": "string"}),
        ({"type": "object", "additionalProperties": False, "properties": {}}, {"type": "object"}),
        ({"type": "array"}, {"type": "array", "items": {"type": "string"}}),
        ({"allOf": [{"type": "object", "properties": {"b": {"type": "string"}}}, {"required": ["b"]}]},
         {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}),
        (True, {"type": "string"}),
        ({}, {"type": "string"}),
    ],
)  # fmt: skip
def test_gemini_gets_its_own_dialect(property, said):
    assert gemini(property) == said


def test_references_are_written_out_for_gemini():
    definitions = {"city": {"type": "string", "description": "A city."}}
    schema = of({"$ref": "#/$defs/city", "description": "Where to."}, **{"$defs": definitions})
    assert portable(schema, "gemini").schema == of({"type": "string", "description": "Where to."})


def test_a_reference_to_itself_ends_as_any_object():
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    found = portable(of({"$ref": "#/$defs/node"}, **{"$defs": {"node": node}}), "gemini")
    assert found.schema["properties"]["a"] == {"type": "object", "properties": {"next": {"type": "object"}}}
    assert found.losses == (
        "/properties/a/properties/next: #/$defs/node refers to itself; from here on it is any object",
    )


@pytest.mark.parametrize(
    "property",
    [
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"allOf": [{"$ref": "#"}]},
        {"allOf": [{"$ref": "#/$defs/x"}]},
        {"$ref": "#/$defs/x"},
        {"$ref": "#/$defs/y"},
        {"items": {"$ref": "#"}},
    ],
)
@pytest.mark.parametrize("dialect", ALL)
def test_schemas_that_lead_back_into_themselves_come_to_an_end(property, dialect):
    definitions = {"x": {"anyOf": [{"$ref": "#/$defs/x"}]}, "y": {"allOf": [{"$ref": "#/$defs/y"}, {"$ref": "#"}]}}
    json.dumps(portable(of(property, **{"$defs": definitions}), dialect).schema)


def test_a_schema_that_is_very_deep_is_cut_short():
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    assert any("too large" in loss for loss in portable(deep, "gemini").losses)


def test_references_that_multiply_are_cut_short():
    definitions: dict[str, Any] = {
        f"d{n}": {"type": "object", "properties": {p: {"$ref": f"#/$defs/d{n + 1}"} for p in "abcd"}} for n in range(12)
    }
    definitions["d12"] = {"type": "string"}
    found = portable(of({"$ref": "#/$defs/d0"}, **{"$defs": definitions}), "gemini")
    assert any("too large" in loss for loss in found.losses)
    assert len(json.dumps(found.schema)) < MAX_NODES * 100


def test_what_is_left_out_is_reported_with_its_place():
    found = portable(
        of({"type": "array", "uniqueItems": True, "items": {"type": "string", "not": {"const": "x"}}}), "gemini"
    )
    assert found.losses == ("/properties/a: uniqueItems left out", "/properties/a/items: not left out")


KEYWORDS = frozenset(
    "type format title description nullable enum items maxItems minItems properties required minProperties maxProperties "
    "minLength maxLength pattern minimum maximum anyOf propertyOrdering".split()
)


def foreign_words(schema: Any) -> set[str]:
    found = set(schema) - KEYWORDS
    for inner in schema.get("properties", {}).values():
        found |= foreign_words(inner)
    for inner in (*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])):
        found |= foreign_words(inner)
    return found


SCALARS = st.sampled_from([None, 1, 2.5, "x", True])
NODES = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(
                ["string", "integer", "object", "array", ["string", "null"], ["integer", "string"]]
            ),
            "enum": st.lists(SCALARS, max_size=3),
            "const": SCALARS,
            "format": st.sampled_from(["uri", "date-time", "int32"]),
            "exclusiveMinimum": st.sampled_from([0, 1.5, True]),
            "$ref": st.sampled_from(["#/$defs/x", "#/$defs/gone", "https://a.example/b", "#"]),
            "additionalProperties": st.sampled_from([True, False, {"type": "string"}]),
            "pattern": st.sampled_from(["^a$", "(?=b)", "a"]),
            "maxLength": st.sampled_from([1, 100_000]),
            "not": st.just({"type": "string"}),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array"]),
            "properties": st.dictionaries(st.sampled_from(["a", "b c", "x/y", "é"]), inner, max_size=3),
            "items": inner,
            "required": st.lists(st.sampled_from(["a", "b c"]), max_size=2),
            "anyOf": st.lists(inner, max_size=3),
            "oneOf": st.lists(inner, max_size=2),
            "allOf": st.lists(inner, max_size=2),
            "$defs": st.dictionaries(st.just("x"), inner, max_size=1),
        },
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(NODES, st.sampled_from(ALL))
def test_whatever_comes_a_schema_goes_out_and_saying_it_twice_changes_nothing_more(node, dialect):
    schema = {**node, "type": "object"}
    found = portable(schema, dialect)
    json.dumps(found.schema)
    if dialect == "gemini":
        assert foreign_words(found.schema) == set()
        again = portable(found.schema, dialect).schema
        assert foreign_words(again) == set()
    if dialect in {"openai", "anthropic", "gemini"}:
        assert not found.schema.keys() & {"oneOf", "anyOf", "allOf", "not", "enum"}
        assert found.schema["type"] == "object"


# OpenAI and Anthropic -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
def test_a_choice_at_the_top_becomes_one_object_that_any_of_the_choices_fits(dialect):
    choices = [
        {"type": "object", "properties": {"by": {"const": "id"}, "id": {"type": "integer"}}, "required": ["by", "id"]},
        {
            "type": "object",
            "properties": {"by": {"const": "name"}, "name": {"type": "string"}},
            "required": ["by", "name"],
        },
    ]
    found = portable({"type": "object", "oneOf": choices}, dialect)
    assert found.schema["required"] == ["by"]
    assert set(found.schema["properties"]) == {"by", "id", "name"}
    assert found.losses[0] == "/: oneOf of 2 became one object with all their properties"
    validator = jsonschema_rs.validator_for(found.schema)
    assert validator.is_valid({"by": "id", "id": 1})
    assert validator.is_valid({"by": "name", "name": "x"})


def test_parts_that_all_hold_are_merged_and_nothing_is_lost():
    parts = [{"properties": {"b": {"type": "string"}}, "required": ["b"]}, {"$ref": "#/$defs/c"}]
    schema = of({"type": "integer"}, allOf=parts, **{"$defs": {"c": {"properties": {"c": {"type": "string"}}}}})
    found = portable(schema, "openai")
    assert set(found.schema["properties"]) == {"a", "b", "c"}
    assert found.schema["required"] == ["b"]
    assert found.losses == ()


def test_deeper_down_choices_stay():
    schema = of({"anyOf": [{"type": "integer"}, {"type": "null"}]})
    for dialect in ("openai", "anthropic", "full", "llama_cpp"):
        assert portable(schema, dialect).schema == schema


def test_names_that_anthropic_refuses_are_left_out_where_that_can_be():
    schema = {"type": "object", "properties": {"a b": {}, "é": {}, "ok": {}}, "required": ["é"]}
    found = portable(schema, "anthropic")
    assert set(found.schema["properties"]) == {"é", "ok"}
    assert found.losses == (
        "/properties/a b: left out for its name",
        "/properties/é: this provider refuses the name, and it is required",
    )


# llama.cpp ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("property", "said"),
    [
        ({"type": "string", "pattern": "^[a-z]+$"}, {"type": "string", "pattern": "^[a-z]+$"}),
        ({"type": "string", "pattern": "[a-z]+"}, {"type": "string"}),
        ({"type": "string", "pattern": "^(?!x).*$"}, {"type": "string"}),
        ({"type": "string", "maxLength": 10_000}, {"type": "string"}),
        ({"type": "string", "maxLength": 80}, {"type": "string", "maxLength": 80}),
        ({"type": "array", "items": {"type": "string", "pattern": "x"}}, {"type": "array", "items": {"type": "string"}}),
        ({"type": "object", "properties": {"pattern": {"type": "string"}, "not": {}}},
         {"type": "object", "properties": {"pattern": {"type": "string"}, "not": {}}}),
        ({"enum": ["^", {"pattern": "x"}]}, {"enum": ["^", {"pattern": "x"}]}),
    ],
)  # fmt: skip
def test_what_makes_no_grammar_is_left_out_for_llama_cpp(property, said):
    found = portable(of(property), "llama_cpp")
    assert found.schema == of(said)
    assert bool(found.losses) is (said != property)
