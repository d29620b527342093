"""A request does not come to wander through more modules than it did."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from tests.harness.process import ROOT, child_environment
from tests.walk import CASES, Steps


@dataclass(frozen=True, slots=True)
class Bound:
    modules: int
    crossings: int


CEILINGS = {
    "plain stream": Bound(41, 135),
    "tool turn": Bound(65, 258),
    "tool turn, streamed": Bound(67, 315),
    "responses and MCP": Bound(87, 334),
    "responses and MCP, streamed": Bound(89, 391),
}
"""What the walks were when this was last changed. It is only ever lowered, but for what each request
has to pass: the door for foreign bytes, the judge of requests, the masker, the ports of callers and records, the rights of a
chat that runs."""
SLACK = Bound(2, 8)
"""By how much a walk may be shorter than its ceiling before the ceiling has to follow."""


TRIES = 5
"""On a busy machine what was sent at once comes in two reads now and then, each of which is a walk of its own."""


@pytest.fixture(scope="module")
def walks() -> dict[str, Bound]:
    """The shortest of each case, as far as it took to see one that is no longer than before."""
    walks = walked()
    for _ in range(TRIES - 1):
        longer = [name for name in CASES if is_longer(walks[name], CEILINGS[name])]
        if not longer:
            break
        again = walked(*longer)
        walks |= {name: min(walks[name], again[name], key=lambda bound: bound.crossings) for name in longer}
    return walks


def walked(*names: str) -> dict[str, Bound]:
    """All of them, or those that are named, of a process of its own: what other tests ran before has filled caches."""
    command = [sys.executable, "-m", "tests.walk", "json", *names]
    ran = subprocess.run(command, cwd=ROOT, env=child_environment(), capture_output=True, check=False, text=True)
    assert ran.returncode == 0, ran.stderr
    return {name: Bound(*figures) for name, figures in json.loads(ran.stdout).items()}


def is_longer(now: Bound, ceiling: Bound) -> bool:
    return now.modules > ceiling.modules or now.crossings > ceiling.crossings


@pytest.mark.parametrize("name", CASES)
def test_a_request_walks_no_further_than_before(name: str, walks: dict[str, Bound]) -> None:
    now = walks[name]
    ceiling = CEILINGS[name]
    see = f'`python -m tests.walk "{name}"` shows the walk'
    assert now.modules <= ceiling.modules, see
    assert now.crossings <= ceiling.crossings, see


@pytest.mark.parametrize("name", CASES)
def test_a_walk_that_became_shorter_stays_so(name: str, walks: dict[str, Bound]) -> None:
    now = walks[name]
    ceiling = CEILINGS[name]
    lower = f"lower CEILINGS[{name!r}] to {now}"
    assert now.modules >= ceiling.modules - SLACK.modules, lower
    assert now.crossings >= ceiling.crossings - SLACK.crossings, lower


def test_a_visit_is_all_that_is_entered_of_a_module_before_another() -> None:
    steps = Steps()
    steps._steps = [("a.py", "one"), ("a.py", "two"), ("b.py", "three"), ("a.py", "one")]
    assert [(visit.module, visit.functions) for visit in steps.visits()] == [
        ("a.py", ("one", "two")),
        ("b.py", ("three",)),
        ("a.py", ("one",)),
    ]
