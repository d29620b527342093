"""What may quote a call is found token by token, and is what one search over the whole text finds."""

from hypothesis import given
from hypothesis import strategies as st

from callgate.text_calls.quoting import TOKEN, tokens_in

PARTS = st.sampled_from(
    "` ``` <!-- --> [think] [/think] ◁think▷ ◁/think▷ <|begin_of_thought|> <a <p> </p > <B\n x='1'> </ANALYSIS> <thought> "
    "<|im_start|> user <|user|> [INST] ]~b] tool <tool_response> </tool_result> ## Return of functions. “ ” « ' \" 「 < > / - # a".split(
        " "
    )
)


@given(st.lists(PARTS | st.text(alphabet='<`-[#a /=>"◁]', max_size=4), max_size=12).map("".join))
def test_the_tokens_are_those_of_one_search(text: str) -> None:
    assert [token.span() for token in tokens_in(text)] == [token.span() for token in TOKEN.finditer(text)]
