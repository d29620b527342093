import asyncio
import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from callgate.commands import app
from callgate.state.entry import CallState, LedgerEntry
from callgate.state.local.sqlite import SqliteLedger

run = CliRunner().invoke
MODELS = {"model_list": [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}}]}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config beside a ledger with three runs."""
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**MODELS, "data_dir": "data"}))

    async def fill() -> None:
        ledger = SqliteLedger(tmp_path / "data")
        ledger.open()
        for at, state in enumerate((CallState.DONE, CallState.UNKNOWN, CallState.FAILED)):
            entry = LedgerEntry(
                "run_1", 0, f"call_{at}", "pay", "00", "alice", True, 1_795_003_200.0 + at, arguments="s3cret"
            )
            await ledger.start(entry)
            ledger.end(entry, state, "timeout" if state is CallState.UNKNOWN else "", "s3cret")
        await ledger.close()

    asyncio.run(fill())
    return file


def test_the_newest_runs_come_first_and_contents_are_not_shown(config: Path) -> None:
    output = run(app, ["calls", "-c", str(config)]).output
    assert [line.split()[2] for line in output.splitlines()] == ["failed", "unknown", "done"]
    assert "s3cret" not in output


def test_runs_are_found_by_their_state_for_programs_too(config: Path) -> None:
    [found] = json.loads(run(app, ["calls", "-c", str(config), "--state", "unknown", "--json"]).output)
    assert (found["call_id"], found["key_name"], found["note"], found["writes"]) == ("call_1", "alice", "timeout", 1)
    assert len(json.loads(run(app, ["calls", "-c", str(config), "-n", "2", "--json"]).output)) == 2


def test_a_file_that_is_no_ledger_is_an_error_in_a_line(config: Path) -> None:
    ledger = config.parent / "data" / "ledger.sqlite3"
    ledger.write_bytes(b"not a database, but long enough to be taken for one" * 50)
    result = run(app, ["calls", "-c", str(config)])
    assert result.exit_code == 2
    assert "data_dir" in result.output
    assert "ledger.sqlite3 cannot be read as a ledger" in result.output.replace("\n", "")


def test_arguments_and_results_are_shown_if_asked_for(config: Path) -> None:
    output = run(app, ["calls", "-c", str(config), "--content", "-n", "1"]).output
    [found] = json.loads(run(app, ["calls", "-c", str(config), "--content", "-n", "1", "--json"]).output)

    assert "arguments: s3cret" in output
    assert "result: s3cret" in output
    assert (found["arguments"], found["result"]) == ("s3cret", "s3cret")


def test_what_a_provider_calls_its_calls_moves_no_cursor_and_makes_no_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**MODELS, "data_dir": "data"}))

    async def fill() -> None:
        ledger = SqliteLedger(tmp_path / "data")
        ledger.open()
        await ledger.start(LedgerEntry("run_1", 0, "c\x1b[2J\nfake", "pay", "00", "alice", True, 1_795_003_200.0))
        await ledger.close()

    asyncio.run(fill())
    output = run(app, ["calls", "-c", str(file)]).output
    assert output.count("\n") == 1
    assert "\\u001b[2J\\u000afake" in output


def test_an_empty_list_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**MODELS, "data_dir": "data"}))
    for command, words in (("calls", "no calls"), ("runs", "no runs")):
        ran = run(app, [command, "-c", str(file)])
        assert (ran.exit_code, ran.stdout, ran.stderr.strip()) == (0, "", words)
        assert (
            run(app, [command, *(["list"] if command == "runs" else []), "-c", str(file), "--json"]).stdout.strip()
            == "[]"
        )
