"""The text of a body before anybody reads it, held against a plain reader that sees every key."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.api.strict_json import split
from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import written_here

KEYS = st.sampled_from(['"a"', '"b"', '"\\u0061"', '"a b"', '"é"', '""'])
VALUES = st.sampled_from(["1", "12", '"1"', '",\\"a\\":1"', '{"a":1}', "[1, 12]", "null", "true", '" "'])
SPACE = st.sampled_from(["", "", " ", "\n\t"])


@given(members=st.lists(st.tuples(KEYS, VALUES), max_size=5), space=SPACE, after_colon=SPACE)
def test_a_body_is_taken_apart_if_no_field_comes_twice(
    members: list[tuple[str, str]], space: str, after_colon: str
) -> None:
    written = f",{space}".join(f"{key}{space}:{after_colon}{value}" for key, value in members)
    body = f"{space}{{{space}{written}{space}}}{space}".encode()
    keys = [json.loads(key) for key, _ in members]
    if len(set(keys)) == len(keys):
        taken = {key: json.loads(bytes(text)) for key, text in split(written_here(body), 100).items()}
        assert taken == json.loads(body)
        return
    with pytest.raises(ChatError) as caught:
        split(written_here(body), 100)
    assert caught.value.code == "duplicate_parameter"
    assert keys.count(caught.value.param) > 1
