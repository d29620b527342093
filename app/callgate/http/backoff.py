"""Exponential backoff with jitter."""

import random
from collections.abc import Callable

MAX_DOUBLINGS = 30


def full_jitter(
    failures: int,
    *,
    first: float,
    longest: float,
    least: float = 0.0,
    chance: Callable[[], float] = random.random,  # noqa: S311 -- spreads load, guards nothing
) -> float:
    """Return random seconds up to a maximum that doubles with each failure, so that many clients do not retry at once.

    `least` is the minimum as a share of the maximum.
    """
    ceiling = min(longest, first * 2.0 ** min(failures, MAX_DOUBLINGS))
    return ceiling * (least + (1 - least) * chance())
