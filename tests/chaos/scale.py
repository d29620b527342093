"""How long the chaos tests are: short in every run of the tests, long with `CALLGATE_CHAOS=long`, which is `make chaos`.

The bars that are times hold for the long runs, on a machine that does nothing else; in short ones they are wide enough for
a machine that does.
"""

import json
import os
from typing import Any, TypeVar

LONG = os.environ.get("CALLGATE_CHAOS") == "long"
T = TypeVar("T")


def scaled(short: T, long: T) -> T:
    return long if LONG else short


def report(what: str, **figures: Any) -> None:
    """Figures for whoever runs `make chaos`; pytest shows them with `-rA` or `-s`, and the file keeps them."""
    line = json.dumps({"what": what, **figures})
    print(line)  # noqa: T201
    if path := os.environ.get("CALLGATE_CHAOS_FIGURES"):
        with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 - one line, appended
            file.write(line + "\n")
