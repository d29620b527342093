"""What a client sent is read only where somebody looks, and what cannot be read then is the client's mistake."""

import msgspec
import pytest

from callgate.conversation.errors import ChatError
from callgate.conversation.raw_json import read


def test_bytes_are_read_and_objects_are_as_they_are() -> None:
    made = {"a": 1}
    assert read(msgspec.Raw(b'{"a": [1, null]}')) == {"a": [1, None]}
    assert read(made) is made
    assert read(None) is None


@pytest.mark.parametrize("text", [b"1e999", b'{"a": -1e400}', b"9" * 5000, b'"\\ud800"', b"\xff"])
def test_what_cannot_be_read_is_a_400(text: bytes) -> None:
    with pytest.raises(ChatError) as caught:
        read(msgspec.Raw(text))
    assert caught.value.status == 400
