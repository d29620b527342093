"""Says that content of a request was replaced by lines, because its model cannot read it."""

from collections.abc import Sequence
from typing import Final

import structlog

from callgate.api.conversation import Conversation

LONGEST_KIND: Final = 40
"""Characters of a type that a warning names."""
MOST_KINDS: Final = 10
"""Types that a warning names; it stands in a header."""

log = structlog.get_logger("callgate.content")


def note_left_out(conversation: Conversation, types: Sequence[str]) -> None:
    """Warn the client and the operator of content of these types."""
    named = sorted({ascii(kind[:LONGEST_KIND]) for kind in types})
    kinds = ", ".join(named[:MOST_KINDS])
    if len(named) > MOST_KINDS:
        kinds += f" and {len(named) - MOST_KINDS} more"
    log.warning("content_left_out", kinds=kinds, count=len(types))
    conversation.warn(f"left out, because this model cannot read it: {kinds}")
