"""How long the chaos tests are: short in every run of the tests, long with `CALLGATE_CHAOS=long`, which is `make chaos`.

The bars that are times hold for the long runs alone, on a machine that does nothing else: a machine that does misses any. In
short ones times are reported. A long run may be made in parts: `CALLGATE_CHAOS_SHARE=0.2` for a fifth of the faults and calls, and
another `CALLGATE_CHAOS_SEED` for each.
"""

import json
import os
from collections.abc import Iterable
from typing import Any, TypeVar

LONG = os.environ.get("CALLGATE_CHAOS") == "long"
SHARE = float(os.environ.get("CALLGATE_CHAOS_SHARE", "1"))
SEED = int(os.environ.get("CALLGATE_CHAOS_SEED", "7"))
T = TypeVar("T")


def scaled(short: T, long: T) -> T:
    return long if LONG else short


def counted(short: int, long: int) -> int:
    """How many of something: in a part of a long run, that part."""
    return max(1, round(long * SHARE)) if LONG else short


def dealt(values: Iterable[T], among: int, place: int) -> list[T]:
    """Every so-manyth of the values, from this place on, and all of them in a long run. Places side by side get others, so that a
    table of formats and texts has each format and each text in every run, and all pairs in a long one."""
    return [*values] if LONG else [*values][place % among :: among]


def examples(long: int) -> int:
    """How many examples a property test tries: other ones in every run, and all of them in a long one."""
    return long if LONG else max(1, long // 4)


def report(what: str, **figures: Any) -> None:
    """Figures for whoever runs `make chaos`; pytest shows them with `-rA` or `-s`, and the file keeps them."""
    line = json.dumps({"what": what, **figures})
    print(line)  # noqa: T201
    if path := os.environ.get("CALLGATE_CHAOS_FIGURES"):
        with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 - one line, appended
            file.write(line + "\n")


def held_to(most: float, what: str, seconds: float) -> None:
    """Reports a time, and holds it to a bar in a long run."""
    report(what, seconds=round(seconds, 3), bar=most)
    assert not LONG or seconds <= most, f"{what}: {seconds:.3f} s"
