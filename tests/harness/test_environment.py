"""Environments are made from their locks alone, and one that cannot be made is said so and leaves nothing."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.clients.clients import CLIENTS
from tests.harness import environment
from tests.harness.environment import LOCKS, NODE, Environment

PINNED = re.compile(r"^[A-Za-z0-9._-]+(\[[a-z,]+\])?==\S+")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and installers that may ask nobody."""
    monkeypatch.setattr(environment, "CACHE", tmp_path / "environments")
    for name, value in {
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "NPM_CONFIG_OFFLINE": "true",
        "NPM_CONFIG_CACHE": str(tmp_path / "npm"),
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "environments"


@pytest.mark.slow
def test_an_environment_that_cannot_be_made_is_named_with_the_reason_and_is_not_there(elsewhere: Path):
    wanted = ["openai-3", NODE]
    faults = environment.make(wanted)
    assert set(faults) == set(wanted)
    assert all(faults.values())
    assert not any(Environment(name).folder.exists() for name in wanted)


def test_an_environment_that_is_there_is_not_made_again(elsewhere: Path):
    made = Environment("openai-3")
    made.interpreter.parent.mkdir(parents=True)
    made.interpreter.symlink_to(sys.executable)
    (made.folder / ".made").touch()
    assert environment.make(["openai-3"]) == {}
    assert sorted(path.name for path in made.folder.iterdir()) == [".made", "bin"]


def test_an_environment_without_its_interpreter_does_not_count(elsewhere: Path):
    made = Environment("openai-3")
    made.interpreter.parent.mkdir(parents=True)
    made.interpreter.symlink_to(elsewhere / "no-longer-there")
    (made.folder / ".made").touch()
    assert not environment.is_made("openai-3")


def test_a_changed_lock_is_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment, "LOCKS", (tmp_path,))
    lock = tmp_path / "some.txt"
    lock.write_text("openai==3.49.0\n", encoding="utf-8")
    before = Environment("some").folder
    assert Environment("some").folder == before
    lock.write_text("openai==3.50.0\n", encoding="utf-8")
    assert Environment("some").folder != before
    assert environment.locked_version("some", "openai") == "3.50.0"
    with pytest.raises(KeyError, match="is not in the lock"):
        environment.locked_version("some", "httpx")


def test_every_client_lives_in_an_environment_that_can_be_made():
    assert {client.environment for client in CLIENTS} <= set(environment.names())


@pytest.mark.parametrize(
    "lock", sorted(lock for folder in LOCKS for lock in folder.glob("*.txt")), ids=lambda lock: lock.stem
)
def test_a_lock_pins_and_hashes_everything_and_names_no_index(lock: Path):
    text = lock.read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", text.split("\n", 2)[2])
    assert entries
    assert all(PINNED.match(entry) and "--hash=sha256:" in entry for entry in entries if not entry.startswith("#"))
    assert "://" not in text


@pytest.mark.parametrize("name", environment.NODES)
def test_the_lock_of_node_names_no_registry(name: str):
    lock = json.loads(Environment(name).locks[1].read_text(encoding="utf-8"))
    packages = [package for path, package in lock["packages"].items() if path]
    assert packages
    assert all("integrity" in package and "resolved" not in package for package in packages)
