"""The systemd unit starts a command that there is, gives it time to drain, and takes from it what it does not need."""

import shlex

import typer

from callgate.commands import app
from callgate.config.schema.server import Server
from tests.harness.environment import ROOT

UNIT = (ROOT / "deploy" / "systemd" / "callgate.service").read_text(encoding="utf-8")
SETTINGS = dict(line.split("=", 1) for line in UNIT.splitlines() if "=" in line and not line.startswith("#"))


def test_it_starts_the_server_with_options_that_there_are():
    program, command, *words = shlex.split(SETTINGS["ExecStart"])
    assert program.endswith("/bin/callgate")
    serve = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]  # a group
    options = {name for parameter in serve.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_it_waits_longer_than_open_streams_may_take_to_end():
    assert float(SETTINGS["TimeoutStopSec"]) > Server().drain_seconds


def test_it_may_write_its_state_and_nothing_else():
    assert SETTINGS["ProtectSystem"] == "strict"
    assert SETTINGS["StateDirectory"] == "callgate"
    assert SETTINGS["NoNewPrivileges"] == "yes"
    assert SETTINGS["CapabilityBoundingSet"] == ""
    assert "ReadWritePaths" not in SETTINGS
