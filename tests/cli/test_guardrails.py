"""What `check` and `doctor` show of guardrails."""

import asyncio
from pathlib import Path

import pytest
import yaml

from callgate.config.load import load
from callgate.guardrails.inspection import lines_of_hooks
from tests.guardrails import hooks_of_tests
from tests.guardrails.test_config import CARDS, MODELS
from tests.guardrails.test_kinds import GuardrailServer
from tests.harness.command import run_command
from tests.harness.server import serve

pytestmark = pytest.mark.anyio


async def test_check_and_doctor_show_the_hooks(tmp_path: Path) -> None:
    server = GuardrailServer(lambda body: {"action": "NONE"})
    async with serve(server) as url:
        hook = {
            "name": "server",
            "kind": "webhook",
            "at": ["request"],
            "url": url,
            "allow_private": True,
            "on_error": "open",
        }
        away = {**hook, "name": "away", "url": "http://127.0.0.1:9"}
        function = {
            "name": "f",
            "kind": "python",
            "at": ["result"],
            "function": f"{hooks_of_tests.__name__}:notes",
            "keys": ["a*"],
        }
        small = {"name": "small", "kind": "sizes", "at": ["request"], "max_bytes": 10}
        file = tmp_path / "config.yaml"
        file.write_text(yaml.safe_dump({"model_list": MODELS, "guardrails": [CARDS, hook, function, small, away]}))
        shown = "\n".join(lines_of_hooks(load(file).config))
        examined = await asyncio.to_thread(run_command, "doctor", "--config", str(file))
    assert "guardrail cards at answer: masks cards" in shown
    assert "guardrail server at request: asks a server; what it cannot judge passes" in shown
    assert "only keys a*" in shown
    assert "guardrail small at request: blocks more than 10 bytes" in shown
    assert "ok    guardrail server" in examined.stdout
    assert "FAIL  guardrail away" in examined.stdout
    assert len(server.questions) == 1
