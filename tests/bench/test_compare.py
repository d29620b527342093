"""The comparison with an earlier commit: what fails it, what is measured again, and that it really measures."""

import asyncio
import shutil
import subprocess
import sys
from functools import partial

import pytest

from bench import compare
from bench.compare import ALLOWED, ROUNDS, Comparison, Tree
from bench.served import ROOT
from tests.chaos.scale import LONG, scaled

TREE = Tree("this tree", ROOT, sys.executable)
REFERENCE = Tree("reference", ROOT, sys.executable)


@pytest.fixture
def rounds(monkeypatch):
    """The ratios of each round to come, by name; 1 where nothing is named. Returned too: what each round was asked for."""
    coming: list[dict[str, float]] = []
    asked: list[list[str]] = []

    async def found(trees, names):
        asked.append(list(names))
        ratios = coming.pop(0) if coming else {}
        return {name: Comparison(microseconds=100.0, ratio=ratios.get(name, 1.0), noise=1.01) for name in names}

    monkeypatch.setattr(compare, "compare", found)
    return coming, asked


def test_what_costs_as_much_as_the_reference_passes_after_one_round(rounds):
    assert compare.main(["a", "b"], TREE, REFERENCE) == 0
    assert rounds[1] == [["a", "b"]]


def test_what_is_dearer_in_every_round_fails_and_is_named(rounds, capsys):
    rounds[0].extend([{"b": 1.2}] * ROUNDS)
    assert compare.main(["a", "b"], TREE, REFERENCE) == 1
    assert rounds[1] == [["a", "b"], ["b"], ["b"]]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith("dearer")] == ["b"]


def test_what_was_dearer_once_passes(rounds):
    rounds[0].extend([{"b": 1.2}, {"b": 1.0}, {"b": 1.0}])
    assert compare.main(["b"], TREE, REFERENCE) == 0


def test_a_ratio_is_that_of_the_same_moments_and_noise_what_two_servers_of_one_commit_differ_by():
    slices = [(1.2, 1.0, 1.0), (12.0, 10.0, 10.0), (2.4, 2.1, 1.9)]
    comparison = Comparison.of(slices, requests=1)
    assert comparison.ratio == pytest.approx(1.2)
    assert comparison.noise == pytest.approx(1.0)
    assert comparison.is_dearer
    assert Comparison.of([(1.0, 0.8, 1.0)], requests=1).noise == pytest.approx(1.25)


def test_a_cycle_in_which_a_clock_did_not_move_says_nothing():
    assert Comparison.of([(0.01, 0.0, 0.01), (0.02, 0.01, 0.01), (0.02, 0.01, 0.0)], requests=1).ratio == pytest.approx(
        2.0
    )
    assert not Comparison.of([(0.01, 0.0, 0.01)], requests=1).is_dearer


def test_noise_is_allowed_for():
    assert not Comparison(1.0, ratio=ALLOWED + 0.02, noise=1.03).is_dearer
    assert Comparison(1.0, ratio=ALLOWED + 0.02, noise=1.01).is_dearer


def test_a_commit_that_is_not_there_is_an_error_that_says_why():
    with pytest.raises(SystemExit, match="a clone with its history"):
        compare.tree_of("0000000")


@pytest.mark.needs("git")
def test_the_reference_is_in_the_history_of_this_commit():
    """A commit of a branch that was rebased is in the clone it was made in, and in no other."""
    git = partial(subprocess.run, cwd=ROOT, capture_output=True, check=False, text=True)
    if git(["git", "rev-parse", "--is-shallow-repository"]).stdout.strip() != "false":
        pytest.skip("there is no history here to look at")
    assert git(["git", "merge-base", "--is-ancestor", compare.REFERENCE, "HEAD"]).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="the CPU clocks of other processes are read as Linux has them")
@pytest.mark.skipif(not LONG, reason="six seconds of three servers: `make chaos`; `make bench-check` serves two itself")
def test_a_request_that_burns_cpu_in_c_is_seen(tmp_path, monkeypatch):
    """In one call that no count of instructions sees: half of a small request's time again, or beside other work, which is noise,
    many times of it."""
    monkeypatch.setattr(compare, "CYCLES", scaled(3, 6))
    monkeypatch.setattr(compare, "SLICE", 0.1)  # of a clock that may count in steps of 10 ms
    slow = tmp_path / "slow"
    shutil.copytree(ROOT / "app", slow / "app")  # with its bytecode, which takes seconds to make
    chat = slow / "app" / "callgate" / "api" / "middleware.py"
    chat.write_text(chat.read_text() + BURNING.replace("NUMBERS", str(scaled(100_000, 6_000))))
    trees = [Tree("slow", slow, sys.executable), REFERENCE, REFERENCE]
    found = asyncio.run(compare.compare(trees, ["small, passed on"]))
    assert found["small, passed on"].is_dearer


BURNING = """

def _burning(call):
    async def burn(self, scope, receive, send):
        sum(range(NUMBERS))
        await call(self, scope, receive, send)

    return burn


for _value in list(globals().values()):
    if isinstance(_value, type) and _value.__module__ == __name__ and "__call__" in vars(_value):
        _value.__call__ = _burning(_value.__call__)
"""
