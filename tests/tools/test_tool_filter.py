import fnmatch
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.conversation.errors import ChatError
from callgate.tools.tool_filter import (
    MAX_REQUEST_BYTES,
    ToolFilter,
    glob_matches,
    narrowed,
    requested_filter,
    unmatched,
)
from tests.chaos.scale import held_to
from tests.fakes import NamedTool

THINGS = [
    NamedTool("clock", "config/clock"),
    NamedTool("search_1", "github/search"),
    NamedTool("issue", "github/issue"),
]


def kept(*texts: str | None) -> list[str]:
    return [thing.name for thing in narrowed(THINGS, [requested_filter(text) for text in texts])]


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
    after = narrowed(THINGS, [ToolFilter(("issue",)), *(requested_filter(text) for text in texts)])
    assert {thing.name for thing in after} <= {thing.name for thing in before}


@given(st.text("ab*?[]!-", max_size=8), st.text("ab-]!", max_size=6))
def test_a_pattern_means_what_it_means_in_a_shell(pattern, text):
    assert glob_matches(pattern, text) == fnmatch.fnmatchcase(text, pattern)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 100_000,
        ",".join(f"tool_{number}" for number in range(5_000)),
        ",".join("a*" for _ in range(100)),
        "*a" * 500,
    ],
)
def test_a_request_that_names_more_tools_than_there_could_be_is_refused(text):
    with pytest.raises(ChatError) as refused:
        requested_filter(text)
    assert (refused.value.status, refused.value.code) == (400, "too_many_tool_names")


def test_the_worst_patterns_of_a_request_are_over_in_no_time():
    tools = [NamedTool(f"tool_{'a' * 50}_{number}", f"server/{'a' * 200}{number}") for number in range(1000)]
    worst = ",".join("*a" * 100 + f"*{number}x" for number in range(32))
    assert len(worst) < MAX_REQUEST_BYTES
    began = time.process_time()
    assert narrowed(tools, [requested_filter(worst)]) == ()
    held_to(1.0, "the worst patterns of a request, of the processor", time.process_time() - began)


def test_a_warning_with_a_near_name_in_another_script_is_plain_ascii_for_it_goes_into_a_header():
    [found] = unmatched(("wetter/suche_stad",), [NamedTool("suche_stadt", "wetter/suche_städt")], by_given_name=True)
    assert found.near == "wetter/suche_städt"
    assert str(found).isascii()
