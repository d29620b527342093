"""A pytest plugin (`-p tests.harness.clock`): the process's monotonic clock began `CLOCK_STARTS_AT` seconds ago."""

import os
import time

_real = time.monotonic
_ahead = float(os.environ["CLOCK_STARTS_AT"]) - _real()


def _monotonic() -> float:
    return _real() + _ahead


time.monotonic = _monotonic
