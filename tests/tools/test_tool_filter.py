from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.tools.tool_filter import ToolFilter, narrowed, tool_filter


@dataclass
class Thing:
    name: str
    address: str


THINGS = [Thing("clock", "config/clock"), Thing("search_1", "github/search"), Thing("issue", "github/issue")]


def kept(*texts: str | None) -> list[str]:
    return [thing.name for thing in narrowed(THINGS, [tool_filter(text) for text in texts])]


@pytest.mark.parametrize(
    "text, names",
    [
        (None, ["clock", "search_1", "issue"]),
        ("none", []),
        (" none ", []),
        ("", []),
        (" , ", []),
        ("clock", ["clock"]),
        ("clock, issue", ["clock", "issue"]),
        ("c*,nothing", ["clock"]),
        ("github/*", ["search_1", "issue"]),
        ("search", []),
        ("*", ["clock", "search_1", "issue"]),
        ("none,clock", ["clock"]),
        ("CLOCK", []),
    ],
)
def test_a_request_says_which_tools_it_wants(text, names):
    assert kept(text) == names


def test_every_filter_has_to_agree():
    assert kept("c*,issue", "issue,search_1") == ["issue"]
    assert kept("*", "none") == []


@given(st.lists(st.text(max_size=10)))
def test_a_filter_never_adds_anything(texts):
    before = narrowed(THINGS, [ToolFilter(("issue",))])
    after = narrowed(THINGS, [ToolFilter(("issue",)), *(tool_filter(text) for text in texts)])
    assert {thing.name for thing in after} <= {thing.name for thing in before}
