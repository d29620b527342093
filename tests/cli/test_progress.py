"""What a command says on a terminal while something takes long."""

import io
import sys
import threading

import pytest

from callgate.cli import progress as module
from callgate.cli.progress import progress


class Terminal(io.StringIO):
    """A standard error that somebody looks at, and that says when something is written."""

    def __init__(self, *, is_seen: bool = True) -> None:
        super().__init__()
        self.written = threading.Event()
        self._is_seen = is_seen

    def isatty(self) -> bool:
        return self._is_seen

    def flush(self) -> None:
        self.written.set()


def test_what_takes_long_is_said_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    with progress("migrating callgate"):
        assert terminal.written.wait(30)

    assert terminal.getvalue() == "migrating callgate …\n"


def test_what_is_done_at_once_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("migrating callgate"):
        pass

    assert terminal.getvalue() == ""


def test_a_pipe_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(is_seen=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    module._tell("migrating callgate")

    assert terminal.getvalue() == ""
