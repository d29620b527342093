"""A report of tokens is the same in every API, and what is written is what was read."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.conversation.prices import NANO, Price
from callgate.conversation.usage import (
    COLUMNS,
    COUNTS,
    METRICS,
    MOST_TOKENS,
    NO_USAGE,
    TokenCounts,
    Usage,
    add_usage,
    counts_fast,
)
from callgate.records.row import RunRow

TOKENS = st.integers(0, MOST_TOKENS // 4)
EVERYTHING = TokenCounts(prompt=100, completion=20, cached=60, cache_written=30, reasoning=7)


def test_each_row_of_the_table_has_its_field_in_the_counts() -> None:
    assert TokenCounts._fields == tuple(row.name for row in COUNTS)
    assert {row.part_of for row in COUNTS} <= {None, "prompt", "completion"}


def test_each_column_is_one_of_a_recorded_run_and_each_price_one_that_a_model_has() -> None:
    assert COLUMNS.keys() <= set(RunRow.__struct_fields__)
    assert {row.price for row in COUNTS} <= {"", *Price.__struct_fields__}
    assert {*METRICS} >= {"prompt", "completion", "cached", "reasoning"}


def test_every_place_of_a_count_is_read() -> None:
    for place, row in enumerate(COUNTS):
        for path in (*row.chat, *row.chat_too):
            report: Any = 5
            for name in reversed(path):
                report = {name: report}
            assert Usage(report).counts()[place] == 5, path


@given(
    TOKENS.flatmap(lambda cached: st.tuples(TOKENS, TOKENS, st.just(cached), TOKENS)).map(
        lambda four: TokenCounts(four[0] + four[2] + four[3], four[1], four[2], four[3])
    )
)
def test_what_messages_and_bedrock_count_is_read_as_it_is_written(counts: TokenCounts) -> None:
    written = Usage(
        {
            "prompt_tokens": counts.prompt,
            "completion_tokens": counts.completion,
            "prompt_tokens_details": {"cached_tokens": counts.cached},
            "cache_creation_input_tokens": counts.cache_written,
        }
    ).in_messages()
    assert Usage.of_api("messages", written).counts() == counts
    bedrock = {row.bedrock: written[row.messages] for row in COUNTS if row.bedrock}
    assert Usage.of_api("bedrock", bedrock).counts() == counts


@given(TOKENS, TOKENS, TOKENS, TOKENS)
def test_what_responses_counts_is_read_as_it_is_written(
    prompt: int, completion: int, cached: int, thought: int
) -> None:
    report = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 3, "made_up_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
    counts = Usage(report).counts()
    assert Usage.of_responses(Usage(report).in_responses()).counts() == counts
    assert counts == TokenCounts(prompt, completion, cached, 3, thought)


def test_details_that_nobody_knows_are_kept() -> None:
    usage = Usage.of_responses({"input_tokens": 9, "input_tokens_details": {"audio_tokens": 4, "note": "odd"}})
    assert usage.report["prompt_tokens_details"] == {"audio_tokens": 4}


def test_tokens_that_bedrock_wrote_to_its_cache_are_no_usual_input_for_a_client_of_messages() -> None:
    usage = Usage.of_api("bedrock", {"inputTokens": 7, "outputTokens": 5, "cacheWriteInputTokens": 20})
    assert usage.in_messages() == {
        "input_tokens": 7,
        "output_tokens": 5,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 0,
    }


def test_tokens_that_claude_wrote_to_its_cache_are_told_to_a_client_of_responses() -> None:
    usage = Usage.of_api("messages", {"input_tokens": 1, "output_tokens": 2, "cache_creation_input_tokens": 30})
    assert usage.in_responses()["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 30}


def test_the_fields_of_each_api_keep_their_order() -> None:
    usage = Usage.of(3, 2)
    assert msgspec.json.encode(usage.in_responses()) == (
        b'{"input_tokens":3,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},'
        b'"output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":5}'
    )
    assert list(usage.in_messages()) == [
        "input_tokens",
        "output_tokens",
        "cache_creation_input_tokens",
        "cache_read_input_tokens",
    ]
    assert list(Usage.of_api("messages", {"input_tokens": 1, "cache_read_input_tokens": 2}).report) == [
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_tokens_details",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    ]


@pytest.mark.parametrize("value", [None, "5", -1, True, [], {}, float("inf"), float("nan")])
def test_what_is_no_number_of_tokens_counts_as_none(value: Any) -> None:
    report = {
        "prompt_tokens": value,
        "prompt_tokens_details": {"cached_tokens": value},
        "completion_tokens_details": value,
    }
    assert Usage(report).counts() == TokenCounts()
    assert NO_USAGE.counts() == TokenCounts()


def test_absurd_numbers_are_cut_to_the_largest_that_is_stored_and_fractions_of_nothing_are_dropped() -> None:
    assert Usage({"prompt_tokens": 10**30, "completion_tokens": 12.0}).counts()[:2] == (MOST_TOKENS, 12)


@given(st.lists(st.tuples(TOKENS, TOKENS, TOKENS), min_size=1, max_size=5))
def test_the_counts_of_a_sum_are_the_sums_of_the_counts(turns: list[tuple[int, int, int]]) -> None:
    reports = [
        Usage({**Usage.of(prompt, completion).report, "prompt_tokens_details": {"cached_tokens": cached}})
        for prompt, completion, cached in (tuple(count // 8 for count in turn) for turn in turns)
    ]
    total = add_usage(reports)
    assert total is not None
    assert total.counts() == tuple(sum(column) for column in zip(*(usage.counts() for usage in reports), strict=True))


def test_a_part_with_its_own_price_costs_that_instead_of_the_usual_one() -> None:
    price = Price(prompt=1e-6, completion=4e-6, cached=1e-7)
    assert price.of(EVERYTHING) == round((40 * 1e-6 + 60 * 1e-7 + 20 * 4e-6) * NANO)
    assert price.of(EVERYTHING._replace(cached=1000)) == round((100 * 1e-7 + 20 * 4e-6) * NANO)
    assert Price(prompt=1e-6).of(EVERYTHING) == round(100 * 1e-6 * NANO)
    written = Price(prompt=1e-6, completion=4e-6, cached=1e-7, cache_written=2e-6)
    assert written.of(EVERYTHING) == round((10 * 1e-6 + 60 * 1e-7 + 30 * 2e-6 + 20 * 4e-6) * NANO)


def test_a_span_has_the_counts_that_were_reported_and_no_others() -> None:
    report = {"prompt_tokens": 3, "completion_tokens": 0, "completion_tokens_details": {"reasoning_tokens": 2}}
    assert Usage(report).attributes() == {
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 2,
    }


ODD_TOKENS = st.one_of(
    st.integers(-2, 3), st.integers(MOST_TOKENS - 1, MOST_TOKENS + 1), st.none(), st.booleans(), st.floats()
)
PLAIN_NAMES = ["prompt_tokens", "completion_tokens", "total_tokens"]


@given(st.dictionaries(st.sampled_from([*PLAIN_NAMES, "cache_read_input_tokens"]), ODD_TOKENS))
def test_the_fast_way_to_counts_says_what_the_table_says_or_nothing(report: dict[str, Any]) -> None:
    assert counts_fast(report) in {None, Usage(report).counts_of_any()}


def test_the_fast_way_takes_a_report_of_the_three_counts() -> None:
    assert counts_fast(Usage.of(3, 4).report) == TokenCounts(3, 4)


NUMBERS = st.none() | st.booleans() | st.integers(-5, 9) | st.just(10**30) | st.floats() | st.text(max_size=2)
FIELDS = st.sampled_from(sorted({path[-1] for row in COUNTS for path in (*row.chat, *row.chat_too)}))
DETAILS = st.dictionaries(FIELDS, NUMBERS, max_size=4)
REPORTS = st.dictionaries(
    FIELDS | st.sampled_from(["prompt_tokens_details", "completion_tokens_details"]), NUMBERS | DETAILS, max_size=6
)


@given(REPORTS)
def test_counts_that_are_read_fast_are_those_that_are_read_plainly(report: dict[str, Any]) -> None:
    usage = Usage(report)
    assert usage.counts() == usage.counts_of_any()
