"""Who may do what by a config, as `callgate check` prints it."""

import json
from pathlib import Path

from callgate.access.keys import hash_key
from callgate.cli.rights_table import callers_of, lines_of
from callgate.config.schema.whole import Config
from callgate.runtime.limits import processes_of, threads_of
from callgate.tools.building import registry_of
from callgate.tools.kinds.http.client import Web
from tests.harness.command import run_command
from tests.harness.configs import as_yaml, config_dict, make_config


def table(config: Config) -> list[str]:
    registry = registry_of(config, Web(), threads_of(config), processes_of(config))
    return list(lines_of(callers_of(config, registry)))


def test_each_caller_has_a_row_with_what_it_may() -> None:
    keys = [
        {"name": "boss", "hash": hash_key("a"), "admin": True, "approve": True},
        {
            "name": "ann", "hash": hash_key("b"), "models": ["m"], "tools": ["get_*"], "see": "own", "parallel": 2,
            "budget_per_day": 5, "expires": "2030-01-02",
        },
        {"name": "bob", "hash": hash_key("c"), "models": ["none"], "tools": []},
    ]  # fmt: skip
    options = {"models": ["m", "n"], "tools": ["get_time", "send_mail"], "require_approval": {"always": ["send_mail"]}}
    assert table(make_config("http://127.0.0.1:1", auth="keys", keys=keys, **options)) == [
        "CALLER         MODELS  TOOLS                APPROVE  SEE   ADMIN  LIMITS",
        "boss           m, n    2 (1 write, 1 wait)  yes      all   yes    none",
        "ann            m       1                    -        own   -      2 at once, $5/day, until 2030-01-02",
        "bob            none    0                    -        none  -      none",
        "without a key  none    0                    -        none  -      none",
    ]


def test_each_group_of_the_issuer_has_a_row() -> None:
    groups = {"/admins": {"admin": True}, "*": {"tools": [], "budget_per_month": 50, "per_member": {"parallel": 1}}}
    oidc = {"issuer": "https://login.example", "audience": "callgate", "groups": groups}
    assert table(make_config("http://127.0.0.1:1", auth={"oidc": oidc}, tools=["get_time"])) == [
        "CALLER         MODELS  TOOLS  APPROVE  SEE   ADMIN  LIMITS",
        "group:/admins  m       1      -        all   yes    none",
        "group:*        m       0      -        none  -      $50/month, each: 1 at once",
        "without a key  none    0      -        none  -      none",
    ]


def test_an_issuer_that_would_be_asked_in_the_clear_is_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    oidc = {"issuer": "http://login.example.com", "audience": "callgate", "groups": {"*": {}}}
    file.write_text(as_yaml(config_dict("http://127.0.0.1:1", auth={"oidc": oidc})))
    ran = run_command("check", "--config", str(file))
    assert ran.returncode == 2
    assert "auth.oidc.issuer: has to begin with https://" in ran.stderr


def test_without_keys_there_is_one_caller_whose_rights_follow_from_the_address() -> None:
    rows = {
        host: table(make_config("http://127.0.0.1:1", server={"host": host}))[1].split()[-5:]
        for host in ("127.0.0.1", "0.0.0.0")
    }
    assert rows == {"127.0.0.1": ["0", "yes", "all", "yes", "none"], "0.0.0.0": ["0", "-", "none", "-", "none"]}


def test_many_keys_and_long_names_fit_a_line() -> None:
    models = [f"vendor/a-model-with-a-long-name-{number}" for number in range(30)]
    keys = [
        {"name": f"a-team-with-a-name-that-is-long-{number}", "hash": hash_key(str(number)), "approve": number == 7,
         "requests_per_minute": 600, "tokens_per_minute": 1_000_000, "parallel": 50, "budget_per_month": 10_000}
        for number in range(500)
    ]  # fmt: skip
    lines = table(make_config("http://127.0.0.1:1", auth="keys", keys=keys, models=models))
    assert len(lines) == 4
    assert max(map(len, lines)) <= 120
    assert "and 498 more" in lines[1]


def test_the_command_says_it_as_json_too(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    keys = [{"name": "ann", "hash": hash_key("a"), "tools": ["get_time"]}]
    config = config_dict(
        "http://127.0.0.1:1", auth="keys", keys=keys, tools=["get_time"], data_dir=str(tmp_path / "data")
    )
    file.write_text(as_yaml(config))
    assert run_command("keys", "create", "eve", "--see", "all", "--config", str(file)).returncode == 0
    ran = run_command("check", "--json", "--config", str(file))
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["ok"]
    assert [(caller["name"], caller["tools"], caller["see"]) for caller in said["callers"]] == [
        ("ann", ["get_time"], "none"),
        ("eve (store)", ["get_time"], "all"),
        ("without a key", [], "none"),
    ]
