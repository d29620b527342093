"""Tests that need something this machine may not have: skipped aloud, counted, and demanded where it should be there.

`pytestmark = needs("node", "redis-server")` asks for commands on the path; `module:NAME` asks for a Python module,
`env:NAME` for a variable, `postgres` for that server, `small_disk` for the right to mount one, `environment:NAME` for one that is made from a lock.
`CALLGATE_TESTS_REQUIRE=node,module:xllamacpp` (or `all`) turns the skip into a failure.
"""

import importlib.util
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

REQUIRE = "CALLGATE_TESTS_REQUIRE"
POSTGRES = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path("/usr/lib/postgresql"))
"""Where Debian puts the server's programs, none of them on the path."""


def needs(*parts: str) -> pytest.MarkDecorator:
    """Marks a test, or with `pytestmark` a whole file, as needing all of these."""
    return pytest.mark.needs(*parts)


BY_MAKE_CLIENTS = needs("env:CALLGATE_CLIENTS_TABLE")
"""For what takes seconds to start and has a shorter sister: `make clients` runs it."""


def missing(parts: tuple[str, ...]) -> list[str]:
    return [part for part in parts if not _is_there(part)]


def demanded(part: str) -> bool:
    wanted = os.environ.get(REQUIRE, "").split(",")
    return part in wanted or "all" in wanted


def summary(lacking: Counter[str]) -> str:
    """One line for the end of a run."""
    return "skipped for lack of " + ", ".join(f"{part} ({count})" for part, count in sorted(lacking.items()))


def _is_there(part: str) -> bool:
    kind, _, name = part.partition(":")
    match kind:
        case "module":
            return importlib.util.find_spec(name) is not None
        case "env":
            return bool(os.environ.get(name))
        case "postgres":
            return (POSTGRES / "initdb").exists()
        case "small_disk":
            from tests.harness.small_disk import can_be_mounted

            return can_be_mounted()
        case "environment":
            from tests.harness import environment

            return environment.is_made(name)
        case _:
            return shutil.which(part) is not None
