"""A tool's schema: refused with what is wrong, or bounded whatever becomes of it, in every dialect, and a check that ends."""

import json
from typing import Any, get_args

import msgspec

from callgate.schemas.dialects import Dialect, portable
from callgate.schemas.expansion import SchemaTooLarge, check_expansion
from callgate.tools.schema import SchemaError, compile_schema

ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"a": None},
    {"a": "a" * 2000 + "!", "b": [1, "x"], "c": {"a": 1.5}},
    {"a": {"a": {"a": {}}}, "b": -1, "é": True},
]
MAX_WRITTEN = 8 * 1024 * 1024


def run(data: bytes) -> None:
    try:
        schema = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return  # what is no JSON is refused before
    if not isinstance(schema, dict):
        return
    try:
        check_expansion(schema)
        check = compile_schema(schema)
    except (SchemaTooLarge, SchemaError) as error:
        assert str(error)  # noqa: PT017 - the error is one of two good ends
        return
    before = json.dumps(schema)
    for dialect in get_args(Dialect.__value__ if hasattr(Dialect, "__value__") else Dialect):
        assert len(json.dumps(portable(schema, dialect).schema)) < MAX_WRITTEN
    assert json.dumps(schema) == before
    for arguments in ARGUMENTS:
        flaw = check(arguments)
        if flaw is not None:
            msgspec.json.encode(flaw)
