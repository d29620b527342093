"""The errors of a config: what is wrong, its place, and what to do. Without values of secrets."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from callgate.config.load import Loaded


COMMAND_LINE: Final = "command line"
"""The name of the source for settings from the command line."""
FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "model_list": "--model",
        "tools": "--tool",
        "mcp_servers": "--mcp",
        "server.host": "--host",
        "server.port": "--port",
        "server.workers": "--workers",
        "logging.level": "--log-level",
    }
)
"""The command line options for these settings."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a file, from line 1; without a line for values from elsewhere (a variable, a flag)."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: its place, its setting, and what to do."""

    spot: Spot
    path: str
    message: str

    def __str__(self) -> str:
        path, message = self.path, self.message
        if self.spot.source == COMMAND_LINE:
            path = next((flag for start, flag in FLAGS.items() if path.startswith(start)), path)
            message = message.replace("`function: ", "`--tool ")
        return ": ".join(part for part in (str(self.spot), path, message) if part)


class ConfigError(Exception):
    """Raised for an invalid config, with all problems."""

    def __init__(self, problems: Iterable[Problem], rest: "Loaded | None" = None) -> None:
        """`rest`: the config without the invalid settings, only for finding more problems."""
        self.rest = rest
        self.problems = tuple(sorted(problems, key=lambda it: (it.spot.source, it.spot.line or 0, it.spot.column or 0)))
        super().__init__("\n".join(str(problem) for problem in self.problems))


def near(word: str, known: Sequence[str]) -> str:
    """Return `; did you mean …?` if a known word is similar, else an empty string."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.6)
    return f"; did you mean `{by_lower[close[0]]}`?" if close else ""
