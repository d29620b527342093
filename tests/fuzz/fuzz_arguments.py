"""The arguments of a call as a model wrote them: one object that is sound JSON, or `ArgumentsError`."""

import json
from typing import Any

from callgate.calls.arguments import ArgumentsError, Fragments, encode_arguments, read_arguments
from tests.fuzz.harness import as_text, cut

LIMIT = 2000


def run(data: bytes) -> None:
    pieces = cut(data, as_text)
    written = Fragments(limit=LIMIT)
    for piece in pieces:
        written.add(piece)
        seen = written.object_so_far()
    assert read(written.read) is not None or seen is None, "what was seen whole is whole"
    value = read(lambda: read_arguments(pieces))
    if value is not None:
        assert json.loads(encode_arguments(value)) == value
        encode_arguments(value).encode()
    written.text().encode("utf-8", "surrogatepass")


def read(reading: Any) -> dict[str, Any] | None:
    try:
        value = reading().value
    except ArgumentsError as error:
        assert error.problem.expected  # noqa: PT017 - the error is one of two good ends
        return None
    assert isinstance(value, dict)
    json.dumps(value, allow_nan=False)
    return value
