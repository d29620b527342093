import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from callgate.access.keys import hash_key
from callgate.access.settings import Key
from callgate.commands import app
from callgate.config.schema.values import moment_of

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
    [entry] = yaml.safe_load(result.output.partition(f"It counts as soon as its hash stands in {file}:")[2])["keys"]
    key = Key.model_validate(entry)
    assert (key.hash, key.models, key.requests_per_minute) == (hash_key(secret), ("demo",), 5)
    assert "Once it is there, a server of this config answers no request without one" in result.output


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


def test_a_key_is_given_other_limits(config: Path) -> None:
    run(app, ["keys", "create", "alice", "-c", str(config), "--budget-per-day", "2.5", "--parallel", "3"])
    changed = run(
        app, ["keys", "limit", "alice", "-c", str(config), "--parallel", "none", "--requests-per-minute", "60"]
    )
    assert "requests_per_minute=60" in changed.output
    [row] = listed(config)
    assert row["limits"] == {"budget_per_day": 2.5, "requests_per_minute": 60}
    for wrong, says in (
        ([], "name a limit"),
        (["--parallel", "many"], "should be a number"),
        (["--parallel", "0"], ""),
    ):
        refused = run(app, ["keys", "limit", "alice", "-c", str(config), *wrong])
        assert refused.exit_code == 2
        assert says in refused.output
    assert run(app, ["keys", "limit", "bob", "-c", str(config), "--parallel", "1"]).exit_code == 1


def test_who_revokes_the_last_key_is_told_that_nobody_gets_in(config: Path) -> None:
    for name in ("alice", "bob"):
        assert run(app, ["keys", "create", name, "-c", str(config)]).exit_code == 0
    assert "last key" not in run(app, ["keys", "revoke", "alice", "-c", str(config)]).output
    assert "That was the last key in use" in run(app, ["keys", "revoke", "bob", "-c", str(config)]).output


def test_a_key_is_written_into_a_file_once(tmp_path: Path, config: Path) -> None:
    file = tmp_path / "webui.key"
    command = ["keys", "create", "webui", "-c", str(config), "--events", "openwebui", "--into", str(file)]
    command += ["--usage", "last_turn", "--offer", "with_client_tools"]
    made, again = run(app, command), run(app, command)
    assert (made.exit_code, again.exit_code) == (0, 0)
    secret = file.read_text()
    assert secret.startswith("cg-")
    assert secret not in made.output
    assert file.stat().st_mode & 0o777 == 0o600
    [row] = listed(config)
    assert (row["name"], row["events"]) == ("webui", "openwebui")
    assert (row["usage"], row["offer"]) == ("last_turn", "with_client_tools")
    assert "usage=last_turn offer=with_client_tools" in run(app, ["keys", "list", "-c", str(config)]).output


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


def test_without_calls_or_a_ledger_there_is_a_message(tmp_path: Path, config: Path) -> None:
    ran = run(app, ["calls", "-c", str(config)])
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "", "no calls\n")
    file = tmp_path / "none.yaml"
    file.write_text(yaml.safe_dump(MODELS))
    assert run(app, ["calls", "-c", str(file)]).exit_code == 2


def test_a_list_shows_every_right(config: Path) -> None:
    options = ["--approve", "--admin", "--see", "all", "--expires", "2999-01-31", "--parallel", "3", "--tool", "clock"]
    assert run(app, ["keys", "create", "alice", "-c", str(config), *options]).exit_code == 0
    assert run(app, ["keys", "create", "gone", "-c", str(config), "--expires", "2020-01-31"]).exit_code == 0
    [alice, gone] = run(app, ["keys", "list", "-c", str(config)]).output.splitlines()
    assert alice.split() == [
        "alice", "store", "active", "models=*", "tools=clock", "approve", "admin", "see=all", "parallel=3",
        "expires=2999-01-31T00:00:00Z",
    ]  # fmt: skip
    assert gone.split()[:3] == ["gone", "store", "expired"]


def test_a_key_ends_after_a_time_or_at_a_date_and_nothing_else_is_taken(config: Path) -> None:
    run(app, ["keys", "create", "alice", "-c", str(config), "--expires", "90d"])
    [row] = listed(config)
    left = moment_of(row["expires"]) - time.time()
    assert 89.9 < left / 86_400 <= 90
    result = run(app, ["keys", "create", "bob", "-c", str(config), "--expires", "soon"])
    assert (result.exit_code, "should be a date like" in result.output) == (2, True)


def test_a_name_is_given_another_key_in_the_store_and_in_the_config(tmp_path: Path, config: Path) -> None:
    run(app, ["keys", "create", "alice", "-c", str(config)])
    result = run(app, ["keys", "rotate", "alice", "-c", str(config), "--keep", "2h"])
    assert (result.exit_code, "the old one is taken until 20" in result.output) == (0, True)
    assert listed(config)[0]["old_key_until"]
    assert run(app, ["keys", "rotate", "nobody", "-c", str(config)]).exit_code == 1

    written = yaml.safe_load(config.read_text()) | {"keys": [{"name": "bob", "hash": hash_key("x"), "admin": True}]}
    config.write_text(yaml.safe_dump(written))
    result = run(app, ["keys", "rotate", "bob", "-c", str(config)])
    [secret] = re.findall(r"cg-\S+", result.output)
    [entry] = yaml.safe_load(result.output.partition("in place of its entry:")[2])
    key = Key.model_validate(entry)
    assert (key.hash, key.old_hash, key.admin) == (hash_key(secret), hash_key("x"), True)


def test_only_the_first_key_comes_with_a_warning_that_keys_are_required_from_now_on(config: Path) -> None:
    first = run(app, ["keys", "create", "alice", "-c", str(config)])
    assert "This is the first key. From now on" in first.output
    assert "first key" not in run(app, ["keys", "create", "bob", "-c", str(config)]).output


def test_a_name_of_a_model_or_tool_that_is_not_there_is_noted(config: Path) -> None:
    result = run(app, ["keys", "create", "alice", "-c", str(config), "--model", "dmeo", "--tool", "clokc"])
    assert result.exit_code == 0
    assert "note: 'dmeo' names no model; did you mean 'demo'?" in result.output
    assert "note: 'clokc' names no tool" in result.output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"old_expires": "2999-01-01"}, "`old_expires` goes with `old_hash`"),
        ({"old_hash": hash_key("x")}, "`old_hash` is the same as `hash`"),
        ({"expires": "tomorrow"}, "should be a date like `2027-01-31`"),
    ],
)
def test_a_key_at_odds_with_itself_is_refused(config: Path, more: dict[str, str], said: str) -> None:
    written = yaml.safe_load(config.read_text()) | {"keys": [{"name": "bob", "hash": hash_key("x"), **more}]}
    config.write_text(yaml.safe_dump(written))
    result = run(app, ["check", "-c", str(config)])
    assert (result.exit_code, said in result.output) == (2, True), result.output
