"""How the tests are spread over several processes."""

from typing import Any

from xdist.scheduler import LoadScopeScheduling

CLIENTS = "tests/clients/"


class FileByFile(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """Gives each process a file at a time, and the clients as a whole: their table wants to have seen all of them."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # the files with the fewest tests, put last, are those that take longest

    def _split_scope(self, nodeid: str) -> str:
        return CLIENTS if nodeid.startswith(CLIENTS) else nodeid.partition("::")[0]
