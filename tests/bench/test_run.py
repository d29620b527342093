"""The gate that notices when a request becomes dearer: what it compares, and that it holds on a busy machine."""

import json
import statistics

import pytest

from bench import run
from bench.run import ALLOWED, Baseline, Figures, Machine, Measurements, dearer
from bench.works import WORKS

HERE = Machine("cpython 3.11", "x86_64, Fast (family 1, model 2)")
NAMES = [work.name for work in WORKS]


@pytest.fixture
def baseline(tmp_path, monkeypatch):
    """A baseline of this very machine, in which everything costs a hundred."""
    file = tmp_path / "baseline.json"
    monkeypatch.setattr(run, "BASELINE", file)
    monkeypatch.setattr(Machine, "this", staticmethod(lambda: HERE))
    figures = Figures(dict.fromkeys(NAMES, 100.0), dict.fromkeys(NAMES, 1000.0))
    Baseline(HERE, figures).write(file)
    return file


@pytest.fixture
def measured(monkeypatch):
    """What the measuring process finds each time it is started, by name: a ratio, and instructions."""
    rounds: list[dict[str, dict[str, float]]] = []
    asked: list[list[str]] = []

    def inside(works, *, counted):
        asked.append(works)
        found = rounds.pop(0) if rounds else {}
        return {
            name: {"microseconds": 1.0, "ratio": 100.0, "instructions": 1000.0} | found.get(name, {}) for name in works
        }

    async def process():
        return {run.START: 0.5, "ratio": 1000.0, **dict.fromkeys(run.OF_A_PROCESS, 80.0)}

    monkeypatch.setattr(run, "_inside", inside)
    monkeypatch.setattr(run, "_process", process)
    return rounds, asked


def test_another_api_may_cost_little_more_than_a_chat(baseline, measured, capsys):
    measured[0].append({"small message": {"instructions": 1500.0}})
    assert run.main("", check=True, write=False) == 1
    assert "small message takes 1.50 times" in capsys.readouterr().out


def test_what_costs_as_much_as_before_passes(baseline, measured):
    assert run.main("", check=True, write=False) == 0
    assert len(measured[1]) == 1


def test_a_ratio_that_is_dear_every_time_fails(baseline, measured, capsys):
    measured[0].extend([{"tool turn": {"ratio": 100 * ALLOWED + 1}}] * (1 + run.AGAIN))
    assert run.main("", check=True, write=False) == 1
    assert next(line for line in capsys.readouterr().out.splitlines() if line.startswith("tool turn  ")).endswith(
        "dearer"
    )


def test_a_ratio_that_was_dear_because_of_a_neighbour_passes_and_only_it_is_measured_again(baseline, measured):
    measured[0].extend({"tool turn": {"ratio": ratio}} for ratio in (150.0, 130.0, 104.0, 107.0))
    assert run.main("", check=True, write=False) == 0
    assert measured[1] == [NAMES, ["tool turn"], ["tool turn"], ["tool turn"]]


def test_one_low_figure_among_dear_ones_may_be_luck_and_is_not_believed(baseline, measured):
    measured[0].extend({"tool turn": {"ratio": ratio}} for ratio in (130.0, 125.0, 114.0, 126.0, 124.0, 127.0, 125.0))
    assert run.main("", check=True, write=False) == 1


def test_instructions_are_exact_and_no_second_measurement_takes_them_back(baseline, measured):
    measured[0].append({"small, read": {"instructions": 1200.0}})
    assert run.main("", check=True, write=False) == 1
    assert len(measured[1]) == 1


def test_ratios_of_another_processor_are_not_compared_but_instructions_are(baseline, measured, monkeypatch, capsys):
    monkeypatch.setattr(Machine, "this", staticmethod(lambda: Machine(HERE.python, "x86_64, Slow")))
    measured[0].append({"tool turn": {"ratio": 300.0}})
    assert run.main("", check=True, write=False) == 0
    assert "WARNING: the baseline is of another processor" in capsys.readouterr().out
    measured[0].append({"tool turn": {"instructions": 1200.0}})
    assert run.main("", check=True, write=False) == 1


def test_another_python_is_not_compared_and_that_is_printed(baseline, measured, monkeypatch, capsys):
    monkeypatch.setattr(Machine, "this", staticmethod(lambda: Machine("cpython 3.99", HERE.processor)))
    measured[0].append({"tool turn": {"ratio": 300.0, "instructions": 9000.0}})
    assert run.main("", check=True, write=False) == 0
    assert "Nothing is compared" in capsys.readouterr().out


def test_a_baseline_is_the_median_of_rounds_and_keeps_what_was_not_measured(baseline, measured):
    measured[0].extend({"tool turn": {"ratio": ratio}} for ratio in (90.0, 70.0, 91.0, 92.0, 140.0))
    assert run.main("tool turn$", check=False, write=True) == 0
    kept = json.loads(baseline.read_text())
    assert kept["ratios"]["tool turn"] == 91.0
    assert kept["ratios"]["small, read"] == 100.0
    assert kept["machine"] == {"python": HERE.python, "processor": HERE.processor}


def test_an_unsteady_baseline_is_not_written(baseline, measured, capsys):
    before = baseline.read_text()
    measured[0].extend({"tool turn": {"ratio": ratio}} for ratio in (70.0, 80.0, 91.0, 110.0, 140.0))
    assert run.main("tool turn$", check=False, write=True) == 1
    assert baseline.read_text() == before
    assert "NOT WRITTEN" in capsys.readouterr().out


def test_what_has_become_cheaper_or_is_new_is_not_dearer():
    assert dearer(Figures({"a": 50.0, "new": 9.0}), Figures({"a": 100.0})) == set()


def test_the_committed_baseline_is_of_every_work_there_is():
    kept = Baseline.read(run.HERE / "baseline.json")
    assert kept is not None
    assert set(kept.figures.ratios) == {*NAMES, run.START}
    assert set(kept.figures.instructions) == set(NAMES)
    assert set(kept.figures.process) == set(run.OF_A_PROCESS)


@pytest.mark.slow
def test_a_request_is_really_measured_and_its_instructions_are_the_same_each_time(monkeypatch):
    found = Measurements()
    for _ in range(2):
        found.round(["small, passed on"], counted=True)
    [first, second] = found.rounds
    assert first.instructions == second.instructions
    assert first.instructions["small, passed on"] > 1000
    assert found.over_rounds(statistics.median).ratios["small, passed on"] > 0
