"""Which tools' calls wait for a person's word: patterns from the config, held against a tool's name and its safety."""

from collections.abc import Iterable
from dataclasses import dataclass

from callgate.tools.tool_filter import Named, ToolFilter

SAFETY_PREFIX = "safety:"
"""`safety:destructive` names all tools of a class. No tool's name can have a colon."""
_OF_A_CLASS = 0.5
"""A class says more than `*`, and less than any letter of a name."""


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """What one place of the config says. Of the patterns that name a tool, the one that spells out most counts."""

    always: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    def opinion(self, tool: Named, safety: str, *also: Named) -> bool | None:
        """Whether calls of the tool wait; None where nothing is said of it. In a tie a person is asked.

        `also` are other names of the tool, and count as much.
        """
        known = (tool, *also)
        asked = max((_weight(pattern) for pattern in self.always if _names(pattern, known, safety)), default=-1.0)
        free = max((_weight(pattern) for pattern in self.never if _names(pattern, known, safety)), default=-1.0)
        return None if asked == free == -1.0 else asked >= free


NO_RULE = ApprovalRule()
"""The rule of a place that says nothing."""


def _names(pattern: str, known: Iterable[Named], safety: str) -> bool:
    if pattern.startswith(SAFETY_PREFIX):
        return pattern.removeprefix(SAFETY_PREFIX) == safety
    return any(ToolFilter((pattern,)).admits(tool) for tool in known)


def _weight(pattern: str) -> float:
    if pattern.startswith(SAFETY_PREFIX):
        return _OF_A_CLASS
    return float(sum(1 for letter in pattern if letter not in "*?[]"))
