"""How the tests are spread over several processes."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/chaos/", "tests/clients/", "tests/page/")
"""Folders that stay whole: load tests would disturb one another, the table of clients wants to have seen all of them, and a
browser is as much work as its tests."""
FIRST = (
    *("tests/clients/", "tests/chaos/", "tests/text_calls/", "tests/page/", "tests/fleet/worker/"),
    *("tests/test_clocks.py", "tests/e2e/test_durable_runs.py", "tests/e2e/test_fleet.py", "tests/docs/"),
    *("tests/local_model/", "tests/tools/kinds/", "tests/untrusted/", "tests/walk/", "tests/server/", "tests/state/"),
    *("tests/models/test_lane", "tests/e2e/test_corpus", "tests/test_any_cut.py", "tests/test_docs.py", "tests/cli/"),
    *("tests/test_public_api.py", "tests/test_one_path.py", "tests/e2e/"),
)
"""Folders and files that begin: what takes minutes and mostly waits, and beside it what computes. The small files are left for
the end, so that no process works alone there."""


def in_order(items: list[pytest.Item]) -> None:
    """Puts the tests into the order in which the processes take them."""
    items.sort(
        key=lambda item: next((at for at, folder in enumerate(FIRST) if item.nodeid.startswith(folder)), len(FIRST))
    )


class FileByFile(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """Gives each process a file at a time."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # the files with the fewest tests, put last, are those that take longest

    def _split_scope(self, nodeid: str) -> str:
        whole = (folder for folder in TOGETHER if nodeid.startswith(folder))
        return next(whole, nodeid.partition("::")[0])
