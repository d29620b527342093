"""Small bodies of our own routes: one reading or none."""

import msgspec
import pytest

from callgate.api.json_body import read_json_body
from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import written_here


class Shape(msgspec.Struct):
    approve: bool = False


def test_a_field_that_is_given_twice_is_refused_however_it_is_spelled() -> None:
    assert read_json_body(written_here(b'{"approve": true}'), Shape, "{}").approve
    for body in (b'{"approve": false, "approve": true}', b'{"approve": false, "appro\\u0076e": true}'):
        with pytest.raises(ChatError) as refused:
            read_json_body(written_here(body), Shape, "{}")
        assert refused.value.code == "duplicate_parameter"
