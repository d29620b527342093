"""How the tests are spread over several processes."""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import AssertionState
from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc, get_cache_dir
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


def write_bytecode(config: pytest.Config) -> None:
    """Writes what pytest makes of the test files, where a clone has none yet: each of the processes would make all of it."""
    if sys.dont_write_bytecode:
        return
    files = [file for file in config.rootpath.glob("tests/**/test_*.py") if not _bytecode(file).exists()]
    at_once = min(len(files), os.cpu_count() or 1)
    writing = [
        multiprocessing.get_context("fork").Process(target=_write, args=(config, files[first::at_once]))
        for first in range(at_once)
    ]
    for process in writing:
        process.start()
    for process in writing:
        process.join()


def _write(config: pytest.Config, files: Sequence[Path]) -> None:
    for file in files:
        source, code = _rewrite_test(file, config)
        _bytecode(file).parent.mkdir(exist_ok=True)
        _write_pyc(AssertionState(config, "rewrite"), code, source, _bytecode(file))


def _bytecode(file: Path) -> Path:
    return get_cache_dir(file) / (file.name.removesuffix(".py") + PYC_TAIL)


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
