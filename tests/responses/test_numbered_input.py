"""The input of a response as it is stored."""

from callgate.responses.output import ResponseHead
from callgate.responses.stored import numbered

HEAD = ResponseHead("run_" + "0" * 24, 1, {}, {}, str, lambda: False)


def test_a_text_is_stored_as_the_message_that_says_it() -> None:
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    assert numbered("hi", HEAD) == numbered([message], HEAD)
