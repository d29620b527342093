import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from callgate.__main__ import app
from callgate.auth.keys import hash_key
from callgate.config.schema import Key

run = CliRunner().invoke
MODELS = {"model_list": [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}}]}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**MODELS, "data_dir": str(tmp_path / "data")}))
    return file


def listed(config: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(run(app, ["keys", "list", "--json", "-c", str(config)]).output)
    return rows


def test_without_a_data_dir_the_lines_for_the_config_are_printed_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(MODELS))
    result = run(app, ["keys", "create", "alice", "-c", str(file), "--requests-per-minute", "5", "--model", "demo"])
    assert result.exit_code == 0
    [secret] = re.findall(r"cg-\S+", result.output)
    [entry] = yaml.safe_load(result.output.partition("for config.yaml:")[2])["keys"]
    key = Key.model_validate(entry)
    assert (key.hash, key.models, key.requests_per_minute) == (hash_key(secret), ("demo",), 5)


def test_a_key_is_made_listed_and_revoked(config: Path) -> None:
    made = run(
        app, ["keys", "create", "alice", "-c", str(config), "--budget-per-day", "2.5", "--parallel", "3", "--admin"]
    )
    assert made.exit_code == 0
    [secret] = re.findall(r"cg-\S+", made.output)
    [row] = listed(config)
    assert (row["name"], row["limits"], row["admin"]) == ("alice", {"budget_per_day": 2.5, "parallel": 3}, True)
    assert secret not in json.dumps(row)
    assert run(app, ["keys", "revoke", "alice", "-c", str(config)]).exit_code == 0
    assert listed(config)[0]["revoked_at"]
    assert run(app, ["keys", "revoke", "alice", "-c", str(config)]).exit_code == 1


@pytest.mark.parametrize("name", ["bad name", "x" * 65, "../etc", ""])
def test_a_name_that_the_config_would_refuse_is_refused(config: Path, name: str) -> None:
    result = run(app, ["keys", "create", name, "-c", str(config)])
    assert result.exit_code == 2
    assert not listed(config)


def test_a_name_is_given_once(config: Path) -> None:
    run(app, ["keys", "create", "alice", "-c", str(config)])
    again = run(app, ["keys", "create", "alice", "-c", str(config)])
    assert (again.exit_code, len(listed(config))) == (2, 1)


def test_a_key_of_the_config_is_listed_and_revoked_in_the_config(tmp_path: Path, config: Path) -> None:
    written = yaml.safe_load(config.read_text()) | {"keys": [{"name": "bob", "hash": hash_key("x")}]}
    config.write_text(yaml.safe_dump(written))
    assert [row["kept_in"] for row in listed(config)] == ["config"]
    result = run(app, ["keys", "revoke", "bob", "-c", str(config)])
    assert (result.exit_code, "take it out there" in result.output) == (2, True)


def test_a_stored_key_is_enough_to_serve_others(config: Path) -> None:
    written = yaml.safe_load(config.read_text()) | {"server": {"host": "0.0.0.0"}}
    config.write_text(yaml.safe_dump(written))
    assert run(app, ["check", "-c", str(config)]).exit_code == 2
    run(app, ["keys", "create", "alice", "-c", str(config)])
    assert run(app, ["check", "-c", str(config)]).exit_code == 0


def test_without_a_ledger_there_is_a_word_instead_of_runs(tmp_path: Path, config: Path) -> None:
    assert (run(app, ["calls", "-c", str(config)]).output) == ""
    file = tmp_path / "none.yaml"
    file.write_text(yaml.safe_dump(MODELS))
    assert run(app, ["calls", "-c", str(file)]).exit_code == 2
