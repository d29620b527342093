"""What is recorded of an event."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from callgate.conversation.usage import MOST_TOKENS
from callgate.recorder.events import USAGE_NAMES, _bounded_counts, bounded_counts_fast
from callgate.records.row import NAME_CHARACTERS

NAMES = st.text(max_size=5) | st.text(min_size=NAME_CHARACTERS - 1, max_size=NAME_CHARACTERS + 1)
COUNTS = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.integers(-5, 1000),
    st.sampled_from([MOST_TOKENS, MOST_TOKENS + 1, -MOST_TOKENS - 1, 10**30]),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)
PARTS = st.dictionaries(NAMES, COUNTS | st.dictionaries(NAMES, COUNTS, max_size=2), max_size=USAGE_NAMES + 2)
USAGES = st.dictionaries(NAMES, COUNTS | PARTS, max_size=USAGE_NAMES + 2)


@given(USAGES)
def test_the_fast_way_of_bounding_counts_equals_the_plain_one_or_returns_none(usage: dict[str, Any]) -> None:
    fast = bounded_counts_fast(usage)
    if fast is not None:
        plain = _bounded_counts(usage)
        assert list(fast.items()) == list(plain.items())
        assert [type(value) for value in fast.values()] == [type(value) for value in plain.values()]


def test_the_usual_usage_goes_the_fast_way() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4, "audio": None}}
    assert bounded_counts_fast(usage) == usage == _bounded_counts(usage)
