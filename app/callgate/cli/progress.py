"""Says on a terminal what a command is at, once it has taken longer than a second."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from callgate.telemetry.terminal import say

PATIENCE: Final = 1.0
"""Seconds after which somebody wonders whether anything happens."""


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Print `what` on standard error, if the block takes long and somebody sees it."""
    timer = threading.Timer(PATIENCE, _tell, [what])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell(what: str) -> None:
    if sys.stderr.isatty():
        say(f"{what} …", err=True)
