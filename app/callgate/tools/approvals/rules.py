"""Decides which tools need approval: by patterns of the config for a tool's origin and safety."""

from collections.abc import Callable, Sequence

import msgspec

from callgate.tools.tool_filter import Named, names_exactly, names_loosely

SAFETY_PREFIX = "safety:"
"""`safety:destructive` matches all tools of a class. Names of tools have no colons."""
_OF_A_CLASS = 0.5
"""A class is more specific than `*`, and less than any character of a name."""


class ApprovalRule(msgspec.Struct, frozen=True):
    """The patterns of one place in the config. Of those that match a tool, the one with most literal characters counts.

    A pattern under `always` matches all tools that claim a name, one under `never` only a name that no other source claims,
    so that a name conflict never removes an approval. A glob under `never` needs more, because a source may choose any name
    that it matches.
    """

    always: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    def opinion(
        self, tool: Named, safety: str, *aliases: Named, may_free: Callable[[str], bool] = lambda _: True
    ) -> bool | None:
        """Return whether calls of the tool need approval; None where no pattern matches. In a tie they do.

        `also`: the tool under the names that its own entry in the config uses. `may_free`: whether a pattern under `never`
        applies to the tool's source.
        """
        names_of_tool = (tool, *aliases)
        weight_for = max(
            (_weight(pattern) for pattern in self.always if _covers(pattern, names_of_tool, safety, names_loosely)),
            default=-1.0,
        )
        weight_against = max(
            (
                _weight(pattern)
                for pattern in self.never
                if _covers(pattern, names_of_tool, safety, names_exactly) and may_free(pattern)
            ),
            default=-1.0,
        )
        if weight_for == weight_against == -1.0:
            return None
        return weight_for >= weight_against

    def name_patterns(self) -> tuple[str, ...]:
        """Return the patterns for names."""
        return tuple(pattern for pattern in (*self.always, *self.never) if not pattern.startswith(SAFETY_PREFIX))


NO_RULE = ApprovalRule()
"""The rule of a place without patterns."""


def _covers(pattern: str, tools: Sequence[Named], safety: str, matches: Callable[[str, Named], bool]) -> bool:
    if pattern.startswith(SAFETY_PREFIX):
        return pattern.removeprefix(SAFETY_PREFIX) == safety
    return any(matches(pattern, tool) for tool in tools)


def _weight(pattern: str) -> float:
    if pattern.startswith(SAFETY_PREFIX):
        return _OF_A_CLASS
    return float(sum(1 for letter in pattern if letter not in "*?[]"))
