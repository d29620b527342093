"""A driver that fails says how, and is never waited for without end."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.clients import driver
from tests.clients.clients import CLIENTS
from tests.clients.driver import Driver, DriverFailed
from tests.harness.needs import needs

pytestmark = [pytest.mark.anyio, needs("environment:openai-3")]

CLIENT = CLIENTS[0]


@pytest.fixture
def playing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A driver of these few lines."""
    started: list[Driver] = []

    def play(program: str) -> Driver:
        monkeypatch.setattr(driver, "DRIVERS", tmp_path)
        (tmp_path / "tried.py").write_text(program, encoding="utf-8")
        started.append(Driver(replace(CLIENT, script="tried.py")))
        return started[-1]

    yield play
    for one in started:
        one.close()


async def test_a_driver_that_ends_shows_what_it_wrote_last(playing):
    with pytest.raises(DriverFailed, match="no such client"):
        await playing("raise SystemExit('no such client')").ask("plain")


async def test_a_driver_that_does_not_answer_is_ended(playing, monkeypatch):
    monkeypatch.setattr(driver, "PATIENCE", 0.2)
    silent = playing("import sys\nfor line in sys.stdin: pass")
    with pytest.raises(DriverFailed, match="no answer to 'plain'"):
        await silent.ask("plain")
    with pytest.raises(DriverFailed, match="ended while it played 'hello'"):
        await silent.ask("hello")


async def test_an_answer_is_read_with_the_error_it_may_carry(playing):
    line = '{"error": {"type": "RateLimitError", "message": "Slow down.", "status": 429}}'
    said = await playing(f"input()\nprint('{line}', flush=True)\ninput()").ask("plain")
    assert said.error == driver.Fault("RateLimitError", "Slow down.", status=429)
    assert said.text == ""
