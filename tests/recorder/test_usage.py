"""What was used and what it cost: known cost is added up, and what has no price is counted beside it."""

from pathlib import Path

import pytest

from callgate.conversation.prices import NANO, Price
from callgate.recorder.store import RunStore
from callgate.recorder.usage import KeyUsage, grouped

DAY = "2026-11-18"
PRICE = Price(0.5, 1.0)


def used(key: str, model: str, **counts: int) -> KeyUsage:
    return KeyUsage(DAY, key, model, **counts)


def known(key: str, model: str, nano: int, requests: int = 1) -> KeyUsage:
    return used(key, model, requests=requests, tokens_in=10, tokens_out=5, nano=nano, priced_in=10, priced_out=5)


@pytest.mark.parametrize("by", ["key", "day"])
def test_the_known_cost_stays_beside_requests_without_a_price(by: str) -> None:
    rows = [known("ann", "gpt", 3 * NANO), used("ann", "local", requests=4, tokens_in=7, tokens_out=1, unpriced=3)]
    [row] = grouped(rows, by, {})
    assert (row["cost"], row["unpriced_requests"]) == (3.0, 3)
    assert (row["requests"], row["tokens_in"]) == (5, 17)


def test_requests_without_tokens_cost_nothing() -> None:
    [row] = grouped([known("ann", "gpt", NANO), used("ann", "dead", requests=49, failed=49)], "key", {"dead": None})
    assert (row["cost"], row["unpriced_requests"]) == (1.0, 0)


def test_tokens_of_a_model_that_has_a_price_by_now_cost_that_price() -> None:
    [row] = grouped([used("ann", "m", requests=2, tokens_in=10, tokens_out=5, unpriced=2)], "model", {"m": PRICE})
    assert (row["cost"], row["unpriced_requests"]) == (10.0, 0)


def test_tokens_of_a_fallback_without_a_price_do_not_get_that_of_the_model_that_was_asked_for() -> None:
    row = used("ann", "m", requests=2, tokens_in=10, unpriced_elsewhere=1, nano=NANO, priced_in=10)
    [shown] = grouped([row], "model", {"m": PRICE})
    assert (shown["cost"], shown["unpriced_requests"]) == (1.0, 1)


def test_costs_are_kept_in_the_file_and_added_up(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    rows = [known("ann", "gpt", 5), used("ann", "local", requests=1, tokens_in=1, unpriced=1)]
    store.count(rows, {}, {})
    store.count(rows, {}, {})
    gpt, local = store.usage(DAY)
    store.close()
    assert (gpt.nano, gpt.priced_in, gpt.tokens_in, gpt.unpriced) == (10, 20, 20, 0)
    assert (local.unpriced, local.priced_in, local.tokens_in) == (2, 0, 2)
