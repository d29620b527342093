"""What a provider's error message quotes of a request is left out of it."""

import time

import msgspec
import pytest

from callgate.conversation.ports import ModelRequest, Passthrough
from callgate.models.quotes import without_quotes
from callgate.policy.litellm_settings import without_settings
from tests.chaos.scale import held_to

SAID = "My mother's maiden name is Kowalska,\nand I was born in Zürich on the 4th of May."


def request_of_messages(*messages: object) -> ModelRequest:
    return ModelRequest([msgspec.Raw(msgspec.json.encode(each)) for each in messages])


ASKED = request_of_messages({"role": "system", "content": "Be brief and kind."}, {"role": "user", "content": SAID})


@pytest.mark.parametrize(
    ("message", "left"),
    [
        (f"Invalid prompt: {SAID}", "Invalid prompt: …."),
        (f"1 validation error: input_value={SAID!r}, input_type=str", '1 validation error: input_value="…,\\n….", input_type=str'),
        (f"bad value {msgspec.json.encode(SAID).decode()} at 3", 'bad value "…,\\n…." at 3'),
        ("too long: ...born in Zürich on the 4th...", "too long: ...…..."),
        ("The model `gpt-5` does not exist.", "The model `gpt-5` does not exist."),
        ("messages.1.content.type: Input should be a valid string", "messages.1.content.type: Input should be a valid string"),
        ("name is required", "name is required"),
        ("", ""),
    ],
    ids=["plain", "repr", "json", "a part", "nothing", "places", "words by chance", "empty"],
)  # fmt: skip
def test_what_was_said_is_left_out_and_the_rest_stays(message: str, left: str) -> None:
    assert without_quotes(message, ASKED) == left


def test_arguments_results_and_parts_are_said_too_and_a_short_message_as_a_whole() -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "f", "arguments": '{"iban": "DE02120300000000202051"}'},
    }
    asked = request_of_messages(
        {"role": "user", "content": [{"type": "text", "text": "hunter22"}]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "balance 1234567 EUR"},
    )
    message = "cannot read 'hunter22', DE02120300000000202051 or balance 1234567 EUR after call_1"
    assert without_quotes(message, asked) == "cannot read '…', … or … after call_1"


def test_a_body_that_is_passed_on_is_looked_at_too() -> None:
    fields = {"model": msgspec.Raw(b'"m"'), "input": msgspec.Raw(msgspec.json.encode([{"content": SAID}]))}
    passed = Passthrough(without_settings(fields), False, False, 1, False, lambda: ASKED)
    assert without_quotes(f"no: {SAID}", passed) == "no: …."


def test_a_long_request_is_looked_at_in_a_moment() -> None:
    asked = request_of_messages(*({"role": "user", "content": f"{place} " * 10_000} for place in range(100)))
    began = time.process_time()
    assert without_quotes("x" * 2000, asked) == "x" * 2000
    held_to(0.2, "a long request is looked at for quotes, of the processor", time.process_time() - began)
