"""How the tests are spread over several processes."""

from typing import Any

from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/chaos/", "tests/clients/")
"""Folders that stay whole: load tests would disturb one another, and the table of clients wants to have seen all of them."""


class FileByFile(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """Gives each process a file at a time."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # the files with the fewest tests, put last, are those that take longest

    def _split_scope(self, nodeid: str) -> str:
        whole = (folder for folder in TOGETHER if nodeid.startswith(folder))
        return next(whole, nodeid.partition("::")[0])
