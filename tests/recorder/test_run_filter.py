"""A filter of recorded runs is in all the places where a person looks for it."""

import inspect
import re
from pathlib import Path

import pytest

from callgate.application import create_app
from callgate.recorder.commands.runs import list_runs
from callgate.recorder.run_filter import RunFilter
from tests.harness.configs import make_config

PAGE = (Path(__file__).parents[2] / "docs/runs.md").read_text("utf-8")
PAGES = {"before", "before_id", "oldest_first"}
"""Where a page begins: `after` has both in one text; and its order, which is `sort`."""
ROUTE_ONLY = {"since", "until"}
"""Filters that the command line does not have."""
FILTERS = set(RunFilter.__struct_fields__) - PAGES


def test_the_route_has_every_filter():
    described = create_app(make_config("http://127.0.0.1:1")).openapi()["paths"]["/v1/runs"]["get"]["parameters"]
    assert {parameter["name"] for parameter in described} == FILTERS | {"limit", "after", "sort", "q"}


def test_the_command_has_every_filter_that_is_not_named_here():
    assert set(inspect.signature(list_runs).parameters) >= FILTERS - ROUTE_ONLY
    assert not ROUTE_ONLY & set(inspect.signature(list_runs).parameters)


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_the_page_names_every_filter(name):
    [section] = re.findall(r"^### Filters\n(.*?)^#", PAGE, re.MULTILINE | re.DOTALL)
    assert re.search(rf"`{name}(=1)?`", section)
