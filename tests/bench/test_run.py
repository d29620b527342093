"""The counts that CI compares: what is compared with what, and that they are exact."""

import json

import pytest

from bench import run
from bench.run import ALLOWED, Baseline, Figures, dearer, this_python
from bench.works import WORKS

NAMES = [work.name for work in WORKS]


@pytest.fixture
def baseline(tmp_path, monkeypatch):
    """A baseline in which every request takes a thousand instructions."""
    file = tmp_path / "baseline.json"
    monkeypatch.setattr(run, "BASELINE", file)
    figures = Figures(dict.fromkeys(NAMES, 1000.0), dict.fromkeys(run.OF_A_PROCESS, 80.0))
    Baseline(this_python(), figures).write(file)
    return file


@pytest.fixture
def counted(monkeypatch):
    """What is counted now, where it is not what the baseline has."""
    instructions: dict[str, float] = {}

    async def process_figures():
        return dict.fromkeys(run.OF_A_PROCESS, 80.0)

    monkeypatch.setattr(run, "instructions_of", lambda works: dict.fromkeys(works, 1000.0) | instructions)
    monkeypatch.setattr(run, "process_figures", process_figures)
    return instructions


def test_another_api_may_cost_little_more_than_a_chat(baseline, counted, capsys):
    counted["small message"] = 1700.0
    assert run.main("", write=False) == 1
    assert "small message takes 1.70 times" in capsys.readouterr().out


def test_what_costs_as_much_as_before_passes(baseline, counted):
    assert run.main("", write=False) == 0


def test_more_instructions_than_are_allowed_fail(baseline, counted, capsys):
    counted["tool turn"] = 1000 * ALLOWED + 1
    assert run.main("", write=False) == 1
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("tool turn  "))
    assert row.endswith("dearer")


def test_another_python_is_not_compared_and_that_is_printed(baseline, counted, monkeypatch, capsys):
    monkeypatch.setattr(run, "this_python", lambda: "cpython 3.99")
    counted["tool turn"] = 1300.0
    assert run.main("", write=False) == 0
    assert "Nothing is compared" in capsys.readouterr().out


def test_a_baseline_keeps_what_was_not_counted(baseline, counted):
    counted["tool turn"] = 900.0
    assert run.main("tool turn$", write=True) == 0
    written = json.loads(baseline.read_text())
    assert written["instructions"]["tool turn"] == 900.0
    assert written["instructions"]["small, read"] == 1000.0
    assert written["python"] == this_python()


def test_what_has_become_cheaper_or_is_new_is_not_dearer():
    assert dearer(Figures({"a": 50.0, "new": 9.0}), Figures({"a": 100.0})) == set()


def test_the_committed_baseline_is_of_every_work_there_is():
    committed = Baseline.read(run.HERE / "baseline.json")
    assert committed is not None
    assert set(committed.figures.instructions) == set(NAMES)
    assert set(committed.figures.process) == set(run.OF_A_PROCESS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_request_is_really_counted_and_its_instructions_are_the_same_each_time():
    first = run.instructions_of(["small, passed on"])
    assert first == run.instructions_of(["small, passed on"])
    assert first["small, passed on"] > 1000
