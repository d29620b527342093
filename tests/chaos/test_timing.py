"""How long a wrong key takes says nothing of how much of it is right."""

import math
import random
import statistics
import time

import pytest

from callgate.access.keys import KeyEntry, Keyring, mint_key
from callgate.conversation.errors import ChatError
from tests.chaos.scale import LONG, report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LONG, reason="a measurement, for a machine that does nothing else"),
]

TRIES = 20_000
MOST_T = 4.5
ROUNDS = 5
"""What the machine does besides may tip one; a leak would tip all."""
KEPT = 0.9
"""Of each kind the fastest: the rest is what else the machine did."""


def test_a_key_that_is_nearly_right_takes_as_long_as_any_other() -> None:
    found = sorted(_difference(seed) for seed in range(ROUNDS))
    report("key timing", tries=TRIES, t=[round(t, 2) for t in found])
    assert abs(statistics.median(found)) < MOST_T


def _difference(seed: int) -> float:
    """Student's t of the two kinds of wrong key."""
    right, digest = mint_key()
    ring = Keyring([KeyEntry(f"key{number}", mint_key()[1]) for number in range(20)] + [KeyEntry("alice", digest)])
    # Each try with a key of its own: where in memory one text happens to lie makes a difference of nanoseconds, too.
    tries = [("nearly", right[:40] + mint_key()[0][40:]) for _ in range(TRIES)]
    tries += [("other", mint_key()[0]) for _ in range(TRIES)]
    random.Random(seed).shuffle(tries)
    spent: dict[str, list[int]] = {"nearly": [], "other": []}
    for kind, key in tries:
        headers = {"authorization": f"Bearer {key}"}
        began = time.perf_counter_ns()
        try:
            ring.identify(headers)
        except ChatError:
            spent[kind].append(time.perf_counter_ns() - began)
    kept = {kind: sorted(times)[: int(TRIES * KEPT)] for kind, times in spent.items()}
    return _welch(kept["nearly"], kept["other"])


def _welch(one: list[int], other: list[int]) -> float:
    spread = statistics.variance(one) / len(one) + statistics.variance(other) / len(other)
    return (statistics.fmean(one) - statistics.fmean(other)) / math.sqrt(spread)
