"""What clients and operators see, taken down, so that a change of the code that changes it is noticed.

`wire/` has the bodies of every recorded conversation in every API and mode, `served/` those of requests that
are refused, of answers that fail, and of recorded runs, `operating/` what operators read: the log events, the metrics, the OpenAPI
document, the help of every command, the settings.

    python -m tests.snapshots write             takes everything down again; read the difference before it is committed
    python -m tests.snapshots print NAME [WAY]  one of them as it is now, whole: a recording, or a file's name
"""

import difflib
from pathlib import Path

import pytest


def compare(file: Path, now: str, command: str) -> None:
    """Fail a test, with the difference, where the text is not the one in the file."""
    __tracebackhide__ = True
    before = file.read_text(encoding="utf-8")
    if now != before:
        lines = difflib.unified_diff(before.splitlines(), now.splitlines(), "taken down", "now", lineterm="", n=1)
        pytest.fail(
            f"{chr(10).join(lines)}\n\n`python -m tests.snapshots {command}` shows it whole. If this is meant, "
            "`python -m tests.snapshots write` takes it down.",
            pytrace=False,
        )
