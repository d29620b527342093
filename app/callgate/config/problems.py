"""What can be wrong with a config, with its place and what to do. Never a secret's value."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callgate.config.load import Loaded


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a file, counted from one; without a line where the value came from elsewhere (a variable, a flag)."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where it is, which setting it is about, and what to do."""

    spot: Spot
    path: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (str(self.spot), self.path, self.message) if part)


class ConfigError(Exception):
    """The config cannot be used. Holds every problem that was found, not just the first."""

    def __init__(self, problems: Iterable[Problem], rest: "Loaded | None" = None) -> None:
        """`rest` is the config without the settings that have problems: for finding more, and never to be used."""
        self.rest = rest
        self.problems = tuple(sorted(problems, key=lambda it: (it.spot.source, it.spot.line or 0, it.spot.column or 0)))
        super().__init__("\n".join(str(problem) for problem in self.problems))


def near(word: str, known: Sequence[str]) -> str:
    """`; did you mean …?` where a known word is near, and nothing otherwise."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.6)
    return f"; did you mean `{by_lower[close[0]]}`?" if close else ""
