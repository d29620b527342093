"""The pages about approvals, reloads and the command show what works."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from callgate.commands import app
from callgate.config.load import load
from callgate.config.schema.whole import Config

ROOT = Path(__file__).parents[2]
MODELS = {"model_list": [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}}]}
TEXT = "\n".join(
    (ROOT / name).read_text() for name in ("README.md", "docs/approvals.md", "docs/reload.md", "docs/runs.md")
)
SHOWN = sorted(
    {line.split("  ")[0].partition("#")[0].strip() for line in re.findall(r"^callgate .*$", TEXT, re.MULTILINE)}
)


def test_the_examples_are_read_as_they_stand(tmp_path):
    page = (ROOT / "docs" / "approvals.md").read_text()
    rules, _, webhook = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    config = Config.model_validate({**MODELS, **yaml.safe_load(rules)})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(MODELS) + webhook)
    hook = load(tmp_path / "config.yaml", environ={"APPROVALS_SECRET": "x" * 32}).config.approvals.webhook
    assert config.require_approval.never == ("clock",)
    assert hook is not None
    assert hook.secret.get_secret_value() == "x" * 32


@pytest.mark.parametrize("line", SHOWN)
def test_every_command_that_is_shown_exists_and_takes_what_it_is_given(line):
    command: Any = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    while hasattr(command, "commands") and words:
        command = command.commands[words.pop(0)]
    command.make_context("callgate", words)


def test_settings_that_need_a_restart_are_all_named():
    from callgate.runtime.reload import OF_THE_SERVER, OPENED_ONCE

    page = (ROOT / "docs" / "reload.md").read_text()
    for name in (*OPENED_ONCE, *OF_THE_SERVER):
        assert name in page or (name.startswith("header_") and "header_*" in page)
