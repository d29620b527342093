from hypothesis import given
from hypothesis import strategies as st

from callgate.chat.writers import AnswerHead, CompletionWriter
from callgate.conversation.events import (
    CallWritten,
    ExtraField,
    Finished,
    Logprobs,
    ModelEvent,
    ModelOutput,
    ProviderHead,
    ReasoningDelta,
    TextDelta,
)
from callgate.conversation.usage import Usage

HEAD = AnswerHead("run_1", 0, "m")
CALL = CallWritten("echo", "{}", "call_1")

events = st.sampled_from(["", " ", "\n", "a", "b ", " c"]).map(TextDelta) | st.sampled_from(
    [
        CALL,
        Finished("stop"),
        Usage({}),
        ProviderHead("c"),
        ReasoningDelta("hm"),
        ExtraField("refusal", "no"),
        Logprobs({}),
    ]
)
turns = st.lists(st.tuples(st.integers(0, 2), st.lists(events, max_size=3)), max_size=4)


def written(outputs: list[tuple[int, list[ModelEvent]]]) -> CompletionWriter:
    writer = CompletionWriter(_head=HEAD, _diagnosis=None)
    for turn, said in outputs:
        writer.write(ModelOutput(turn, said))
    return writer


@given(outputs=turns)
def test_the_text_of_one_turn_is_the_one_that_is_gathered(outputs: list[tuple[int, list[ModelEvent]]]) -> None:
    text = written(outputs)._text_fast()
    message: dict[str, object] = {}
    if text is not None:
        assert written(outputs)._gather(message) == (text, "", None)
        assert message == {}


def test_an_answer_behind_a_turn_of_calls_needs_no_gathering() -> None:
    assert (
        written([(0, [CALL, Finished("tool_calls")]), (1, [TextDelta("Cold."), Finished("stop")])])._text_fast()
        == "Cold."
    )


def test_texts_of_two_turns_are_gathered() -> None:
    assert written([(0, [TextDelta("Wait."), CALL]), (1, [TextDelta("Cold.")])])._text_fast() is None
