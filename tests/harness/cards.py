"""A number that must not pass, and whether a text shows any of it."""

import re

CARD = "4111 1111 1111 1111"
GROUP = re.compile(r"(?<![\w.-])[14]111(?!\w|\.\d)|1111\W?1111")
"""Four digits that stand for themselves, or eight in a row: clocks, ids and ports have four of the same now and then."""


def shows_card(text: str) -> bool:
    """Whether a group of the card's digits is in a text."""
    return GROUP.search(text) is not None
