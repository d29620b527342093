"""`callgate usage`: what was used and what came of it, out of the file or of a running server."""

import json
from pathlib import Path

import pytest

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.command import run_command
from tests.harness.configs import config_dict
from tests.harness.server import serve
from tests.recorder.routes.test_usage import TOOLS, TURNS, ask_model, settings, usage_of
from tests.scripted_upstream import Upstream

pytestmark = pytest.mark.anyio


async def test_the_command_line_reads_the_same_from_the_file(upstream: Upstream, tmp_path: Path) -> None:
    config = config_dict(upstream.url, tools=TOOLS, models=["m"], data_dir=str(tmp_path / "data"))
    async with (
        serve(create_app(settings(upstream, data_dir=str(tmp_path / "data")))) as url,
        http_client(url) as client,
    ):
        upstream.script("m", TURNS)
        await ask_model(client)
        asked = {by: await usage_of(client, by=by) for by in ("tool", "flaw,model", "key")}
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(config))
    for by, rows in asked.items():
        printed = run_command("usage", "--config", str(file), "--by", by, "--json")
        assert printed.returncode == 0, printed.stderr
        if by != "key":  # whose price is another today
            assert json.loads(printed.stdout) == rows
    table = run_command("usage", "--config", str(file), "--by", "tool", "--interval", "day")
    wrong = run_command("usage", "--config", str(file), "--by", "nope")
    assert "broken" in table.stdout
    assert "get_weather" in table.stdout
    assert (wrong.returncode, "--by" in wrong.stderr) == (2, True)
