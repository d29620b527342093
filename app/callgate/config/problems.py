"""The errors of a config: what is wrong, its place, and what to do. Without values of secrets."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

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


class Spot(msgspec.Struct, frozen=True):
    """A place in a file, from line 1; without a line for values from elsewhere (a variable, a flag)."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        if self.line is None:
            return self.source
        return f"{self.source}:{self.line}:{self.column}"


class Problem(msgspec.Struct, frozen=True):
    """One mistake: its place, its setting, and what to do."""

    spot: Spot
    path: str
    message: str

    def __str__(self) -> str:
        path = self.path
        message = self.message
        if self.spot.source == COMMAND_LINE:
            path = next((flag for start, flag in FLAGS.items() if path.startswith(start)), path)
            message = message.replace("`function: ", "`--tool ")
        return ": ".join(part for part in (str(self.spot), path, message) if part)


def _place_in_files(problem: Problem) -> tuple[str, int, int]:
    spot = problem.spot
    return spot.source, spot.line or 0, spot.column or 0


class ConfigError(Exception):
    """Raised for an invalid config, with all problems."""

    def __init__(self, problems: Iterable[Problem], valid_part: "Loaded | None" = None) -> None:
        """`valid_part`: the config without the invalid settings, only for finding more problems."""
        self.valid_part = valid_part
        self.problems = tuple(sorted(problems, key=_place_in_files))
        super().__init__("\n".join(str(problem) for problem in self.problems))


HIDDEN: Final = "***"
MIN_HIDDEN: Final = 4
"""Shorter secrets are left in errors, whose words may have them."""


def without_secrets(problems: Iterable[Problem], secrets: Iterable[str]) -> list[Problem]:
    """Return problems with the values of secrets masked, because an error may quote what stands around a mistake."""
    longest_first = sorted((secret for secret in secrets if len(secret) >= MIN_HIDDEN), key=len, reverse=True)
    masked: list[Problem] = []
    for problem in problems:
        message = problem.message
        for secret in longest_first:
            message = message.replace(secret, HIDDEN)
        masked.append(Problem(problem.spot, problem.path, message))
    return masked


def near(word: str, words: Sequence[str]) -> str:
    """Return `; did you mean …?` if a known word is similar, else an empty string."""
    by_lower = {name.lower(): name for name in words}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.6)
    if close:
        return f"; did you mean `{by_lower[close[0]]}`?"
    return ""
