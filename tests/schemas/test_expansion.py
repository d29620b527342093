"""How large a schema becomes when its references are written out."""

import time

import pytest

from callgate.schemas.expansion import SchemaTooLarge, check_expansion
from tests.chaos.scale import held_to


def doubling(steps):
    definitions = {
        f"d{at}": {"type": "object", "properties": {"a": ref(at + 1), "b": ref(at + 1)}} for at in range(steps)
    }
    return {"$defs": {**definitions, f"d{steps}": {"type": "string"}}, **ref(0)}


def ref(at):
    return {"$ref": f"#/$defs/d{at}"}


@pytest.mark.parametrize(
    "schema",
    [
        doubling(40),
        {"properties": {"x": doubling(40)}},
        {"definitions": doubling(40)["$defs"], "properties": {"x": {"$ref": "#/definitions/d0"}}},
        {"$defs": {f"n{at}": {"anyOf": [{"$ref": f"#/$defs/n{to}"} for to in range(12)]} for at in range(12)}, "$ref": "#/$defs/n0"},
        {"properties": {"a": {"type": "object", "properties": {str(at): {"type": "string"} for at in range(200)}},
                        **{f"r{at}": {"$ref": "#/properties/a"} for at in range(200)}}},
        {"$defs": {"long": {"const": "x" * 100_000}}, "anyOf": [{"$ref": "#/$defs/long"}] * 50},
    ],
    ids=["doubling", "nested", "definitions", "mutual", "pointers", "text"],
)  # fmt: skip
def test_a_schema_that_explodes_is_refused_in_no_time(schema):
    began = time.process_time()
    with pytest.raises(SchemaTooLarge):
        check_expansion(schema)
    held_to(1.0, "a schema that explodes is refused, of the processor", time.process_time() - began)


@pytest.mark.parametrize(
    "schema",
    [
        doubling(6),
        {"$defs": {"t": {"properties": {"next": {"$ref": "#/$defs/t"}}}}, "$ref": "#/$defs/t"},
        {"properties": {f"p{at}": {"type": "string", "description": "d" * 80} for at in range(500)}},
        True,
        {"$ref": "#/nowhere"},
    ],
    ids=["doubling a little", "recursive", "wide", "true", "dangling"],
)
def test_a_schema_of_an_ordinary_size_is_taken(schema):
    check_expansion(schema)


def test_where_it_became_too_large_is_named():
    with pytest.raises(SchemaTooLarge) as caught:
        check_expansion({"properties": {"wild": doubling(40), "tame": {"type": "string"}}})
    assert caught.value.place.startswith("/properties/wild")
