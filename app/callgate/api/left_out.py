"""Says what of a request has no effect: content that its model cannot read, and fields that its provider has no place for."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from callgate.hosted.declared import HostedTools

LONGEST_KIND: Final = 40
"""Characters of a type or a name in a warning."""
MOST_KINDS: Final = 10
"""Types or names in a warning; it stands in a header."""

log = structlog.get_logger("callgate.content")


def note_left_out(warn: Callable[[str], None], types: Sequence[str]) -> None:
    """Warn the client and the operator of content of these types."""
    kinds = _listed({ascii(kind[:LONGEST_KIND]) for kind in types})
    log.warning("content_left_out", kinds=kinds, count=len(types))
    warn(f"left out, because this model cannot read it: {kinds}")


def note_unplaced(warn: Callable[[str], None], names: Sequence[str]) -> None:
    """Warn the client of fields that nobody here heeds for its model."""
    warn(f"left out, because nothing here heeds it for this model: {', '.join(names)}")


def note_hosted(
    warn: Callable[[str], None], hosted: HostedTools, offers: Callable[[str], bool], *, takes_calls: bool
) -> None:
    """Warn the client of what nobody heeds of the tools that it declares, and of those that are not on offer after all."""
    if hosted.unheard:
        note_unplaced(warn, hosted.unheard)
    if takes_calls and (missing := hosted.not_offered(offers)):
        warn(f"left out of `tools`: {_listed(set(missing))}, which this request or its key leaves no tool for")


class FieldsLeftOut(msgspec.Struct, eq=False, kw_only=True):
    """Adds to the warnings of an answer, in one line, which fields of its request were left out."""

    _warnings: list[str]
    """Those that the answer will have; its head is not sent before the request was worded."""
    _names: tuple[str, ...] = ()
    _line: int = -1

    def add(self, name: str) -> None:
        """Add a field, once."""
        shown = ascii(name[:LONGEST_KIND])[1:-1]
        if shown in self._names:
            return
        self._names = (*self._names, shown)
        line = f"left out, because this model's provider has no place for it: {_listed(set(self._names))}"
        if self._line < 0:
            self._line = len(self._warnings)
            self._warnings.append(line)
        else:
            self._warnings[self._line] = line


def _listed(names: set[str]) -> str:
    listed = sorted(names)
    text = ", ".join(listed[:MOST_KINDS])
    if len(listed) > MOST_KINDS:
        return f"{text} and {len(listed) - MOST_KINDS} more"
    return text
