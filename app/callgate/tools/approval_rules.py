"""Decides which tools' calls wait for approval: patterns of the config, matched with a tool's origin and safety."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from callgate.tools.tool_filter import Named, names_exactly, names_loosely

SAFETY_PREFIX = "safety:"
"""`safety:destructive` names all tools of a class. No tool's name can have a colon."""
_OF_A_CLASS = 0.5
"""A class says more than `*`, and less than any letter of a name."""


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """The patterns of one place of the config. Of those that name a tool, the one that spells out most counts.

    A pattern under `always` holds for everything that asks for the name it spells, one under `never` only where no
    other source asks for it: a name that is claimed twice makes nothing less guarded. A glob under `never` needs more, for
    a source may think up any name that it matches.
    """

    always: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    def opinion(
        self, tool: Named, safety: str, *also: Named, may_free: Callable[[str], bool] = lambda _: True
    ) -> bool | None:
        """True if calls of the tool wait for approval; None where no pattern matches. In a tie they wait.

        `also` is the tool under the names that its own entry in the config knows, which count as much. `may_free` says
        of a pattern under `never` whether it is meant for the tool's source.
        """
        known = (tool, *also)
        asked = max((_weight(it) for it in self.always if _covers(it, known, safety, names_loosely)), default=-1.0)
        free = max(
            (_weight(it) for it in self.never if _covers(it, known, safety, names_exactly) and may_free(it)),
            default=-1.0,
        )
        return None if asked == free == -1.0 else asked >= free

    @property
    def names(self) -> tuple[str, ...]:
        """The patterns that are held against names."""
        return tuple(each for each in (*self.always, *self.never) if not each.startswith(SAFETY_PREFIX))


NO_RULE = ApprovalRule()
"""The rule of a place that says nothing."""


def _covers(pattern: str, known: Sequence[Named], safety: str, names: Callable[[str, Named], bool]) -> bool:
    if pattern.startswith(SAFETY_PREFIX):
        return pattern.removeprefix(SAFETY_PREFIX) == safety
    return any(names(pattern, tool) for tool in known)


def _weight(pattern: str) -> float:
    if pattern.startswith(SAFETY_PREFIX):
        return _OF_A_CLASS
    return float(sum(1 for letter in pattern if letter not in "*?[]"))
