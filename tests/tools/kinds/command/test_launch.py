import os
import subprocess
import sys
from pathlib import Path

import pytest

from callgate.parsers import landlock
from callgate.tools.kinds.command import launch


@pytest.fixture
def family():
    """A child of ours with two children, which are there."""
    script = (
        "import os, signal\nfor _ in 'ab':\n  if os.fork() == 0: signal.pause()\nprint('.', flush=True)\nsignal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdout is not None
        child.stdout.read(1)
        yield child.pid
        os.killpg(child.pid, 9)


def test_descendants_are_found_with_the_kernels_lists_and_without(family, monkeypatch):
    with_lists = set(launch._descendants())
    monkeypatch.setattr(os.path, "exists", lambda _: False)
    without = set(launch._descendants())
    assert with_lists == without
    assert family in without
    assert len(without) >= 3


def test_where_there_is_no_proc_there_are_none(monkeypatch):
    monkeypatch.setattr(os.path, "exists", lambda _: False)
    monkeypatch.setattr(os.path, "isdir", lambda _: False)
    assert list(launch._descendants()) == []


def test_it_imports_nothing_of_ours_and_little_of_the_library():
    """It starts with every command, so what it imports is what every command waits for."""
    heavy = ("asyncio", "json", "logging", "pathlib", "socket", "subprocess", "typing", "callgate")
    listing = "import sys; sys.path += sys.argv[1:]; import launch, landlock; print(*sys.modules)"
    arguments = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        listing,
        *(str(Path(str(module.__file__)).parent) for module in (launch, landlock)),
    ]
    loaded = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.split()
    assert "launch" in loaded
    assert set(heavy).isdisjoint(loaded)
