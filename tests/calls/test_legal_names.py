import re

from hypothesis import given
from hypothesis import strategies as st

from callgate.calls.legal_names import hashed_name, legal_name

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
LEGAL_TEXT = st.text(st.sampled_from("abcXYZ019_-"), min_size=1, max_size=64)
ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=200)


@given(ANY_TEXT)
def test_every_text_gets_a_legal_name(text):
    assert LEGAL.match(legal_name(text))


@given(LEGAL_TEXT)
def test_a_legal_name_is_kept(text):
    assert legal_name(text) == text


@given(ANY_TEXT, ANY_TEXT)
def test_two_texts_never_get_one_name(one, other):
    if one != other:
        assert legal_name(one) != legal_name(other) or {legal_name(one), legal_name(other)} & {one, other}


@given(st.lists(st.sampled_from(["a b", "a.b", "a/b", "a_b", "a b ", " a b", "á b"]), unique=True))
def test_texts_that_look_alike_once_cleaned_stay_apart(texts):
    assert len({legal_name(text) for text in texts}) == len(texts)


def test_the_same_text_gives_the_same_name_everywhere():
    assert legal_name("weather.now") == "weather_now_700b5356"
    assert legal_name("x" * 65).startswith("x" * 55 + "_")


@given(
    st.sampled_from(["callgate__x", "callgate _x", "callgate__callgate__", "_callgate__x", "callgate____callgate__a"])
)
def test_a_hashed_name_does_not_come_to_lie_under_our_own_prefix(text):
    assert not hashed_name(text, text).startswith("callgate__")
    assert hashed_name(text, text, "callgate__").startswith("callgate__")


@given(ANY_TEXT, ANY_TEXT)
def test_a_hashed_name_is_legal_whatever_it_is_made_of(text, identity):
    assert LEGAL.match(hashed_name(text, identity))
