"""The zero of the monotonic clock is the boot of the machine, and a machine may have booted just now."""

import os
import subprocess
import sys

import pytest

from tests.chaos.scale import scaled
from tests.harness.process import ROOT

REACHED_BY_CLOCKS = [
    "tests/access/test_limits.py",
    "tests/access/test_key_store.py",
    "tests/state/test_sqlite.py",
    "tests/state/test_store_contract.py",
    "tests/telemetry/test_logs.py",
    "tests/models/test_retry.py",
]
"""What compares times, and does not start a process of its own, which would have its own clock."""


@pytest.mark.parametrize("seconds", scaled([0], [0, 30]))
def test_what_compares_times_works_on_a_machine_that_booted(seconds):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "tests.harness.clock",
            "-p",
            "no:cacheprovider",
            "-k",
            "not postgres",  # it compares with a clock of its own
            *REACHED_BY_CLOCKS,
        ],
        cwd=ROOT,
        env={**os.environ, "CLOCK_STARTS_AT": str(seconds)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
