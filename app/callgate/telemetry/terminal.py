"""Writes for people at a terminal: the one way by which commands print, with secrets masked and unseen characters escaped."""

import re
import sys
from typing import Final

from callgate.calls.unseen import escaped
from callgate.config import redaction

_EMOJI_STYLE: Final = re.compile("(?<=[\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff])[\ufe0e\ufe0f]")
"""Selectors that only say whether a symbol is coloured. They are left out, and all others are escaped."""


def say(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text. `err`: to standard error; `nl`: with a line break."""
    stream = sys.stdout
    if err:
        stream = sys.stderr
    stream.write(shown(str(text)))
    if nl:
        stream.write("\n")
    stream.flush()


def shown(text: str) -> str:
    """Return a text as `say` prints it. For questions, which others print."""
    return escaped(_EMOJI_STYLE.sub("", redaction.current.registered(text)), keep="\n\t")


def in_a_line(text: str) -> str:
    """Escape line breaks and other spaces too, so that a text stays within a line, and each of its characters is told."""
    return escaped(text, spaces=True)
