"""Compiles JSON Schemas in a child process, which shows that the server can: a compiler aborts where memory ends."""

from typing import Any, Final

import msgspec

from callgate.calls.offer import Check
from callgate.parsers.jobs import MAX_ANSWER, Job
from callgate.tools.schema import SchemaError, compile_schema
from callgate.untrusted.doors import OWN_BYTES, Door, TooMuch, Untrusted
from callgate.untrusted.messagepack import PackDoor, open_pack
from callgate.untrusted.readers import json_reader, msgpack_reader

MAX_REASONS: Final = 10_000
"""Schemas of one list, of which there are fewer."""
REASONS: Final = Door(name="what a child says of schemas", bytes=MAX_ANSWER, values=2 * MAX_REASONS)
COMPILE_SCHEMAS: Final = Job("documents", f"{__name__}:compile_schemas", REASONS)
SCHEMAS: Final = PackDoor(name="schemas to be compiled", bytes=OWN_BYTES, values=MAX_REASONS + 1, depth=1)

SCHEMA: Final = Door(name="schema of a tool", bytes=MAX_ANSWER)
_read_question = msgpack_reader(list[bytes])
_read_schema = json_reader(dict[str, Any])


def compile_schemas(payload: bytes) -> bytes:
    """Return for each schema why it cannot be compiled; an empty text where it can."""
    kept: list[Check] = []  # so that what all of them take together is held against the memory of this process
    reasons = [_reason_against(schema, kept) for schema in _read_question(open_pack(payload, SCHEMAS))]
    return msgspec.json.encode(reasons)


def _reason_against(schema: bytes, kept: list[Check]) -> str:
    try:
        check = compile_schema(_read_schema(Untrusted(schema, SCHEMA).open()))
    except (SchemaError, TooMuch, msgspec.DecodeError) as error:
        return str(error)[:MAX_REASON] or "it cannot be compiled"
    kept.append(check)
    return ""


MAX_REASON: Final = 1_000
"""Characters of an error, which may quote the schema."""
