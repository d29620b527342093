"""Log lines for people at a terminal: short ones, with the moment, the event and what is said of it in the order of the code."""

import time
from typing import Any, Final

from structlog import DropEvent
from structlog.typing import EventDict, WrappedLogger

WIDTH: Final = 120
"""Columns of a line. What does not fit goes on below it, further in."""
ID_CHARACTERS: Final = 8
"""The kept end of the ids that are on every line of a request: it tells the requests of a terminal's window apart."""
SHORT_IDS: Final = {"run_id": "run", "request_id": "req"}
INDENT: Final = " " * 13
LEVEL_WIDTH: Final = 7
COLOURS: Final = {"warning": "33", "error": "31", "critical": "31", "debug": "2"}
OURS: Final = "callgate"
PAGE_FILES: Final = "/web/"
"""Files of the page, of which a browser asks for thirty: nobody looks for them at a terminal."""
OK: Final = 200


class ConsoleLines:
    """Makes the line of an event: `14:03:12.345 info    request  method=POST path=/v1/… run=…4f2a`."""

    def __init__(self, *, colors: bool) -> None:
        self._colors = colors

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        event.pop("timestamp", None)
        if (
            event.get("event") == "request"
            and event.get("status") == OK
            and str(event.get("path")).startswith(PAGE_FILES)
        ):
            raise DropEvent
        level = str(event.pop("level", method))
        name = str(event.pop("event", ""))
        below = [str(event.pop(part)) for part in ("stack", "exception") if event.get(part)]
        if (source := str(event.pop("logger", ""))).startswith(OURS):
            source = ""
        ids = [
            f"{short}=…{str(event.pop(long))[-ID_CHARACTERS:]}" for long, short in SHORT_IDS.items() if long in event
        ]
        words = [f"{field}={_shown(value)}" for field, value in event.items()]
        if source:
            words.append(f"logger={source}")
        moment = _now()
        level_column = level.ljust(LEVEL_WIDTH)
        first, *others = _filled(name, [*words, *ids], WIDTH - len(f"{moment} {level_column} "))
        line = f"{self._painted('2', moment)} {self._painted(COLOURS.get(level, '0'), level_column)} "
        line += self._painted("1", name) + first[len(name) :]
        return "\n".join([line, *(INDENT + folded for folded in others), *below])

    def _painted(self, colour: str, text: str) -> str:
        if self._colors:
            return f"\x1b[{colour}m{text}\x1b[0m"
        return text


def _now() -> str:
    """Return the local time in milliseconds."""
    now = time.time()
    return time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}"


def _shown(value: Any) -> str:
    """Return a value as it stands behind its name."""
    if not isinstance(value, str):
        return str(value)
    if value and not set(value) & set(" \"'="):
        return value
    return repr(value)


def _filled(name: str, words: list[str], width: int) -> list[str]:
    """Lay words behind a name out in lines. A word that is longer than a line is cut into pieces."""
    lines: list[str] = []
    line = name
    for word in words:
        space = "  " if line == name else " "
        if len(line) + len(space) + len(word) <= width:
            line += space + word
            continue
        lines.append(line)
        line = word
        width = WIDTH - len(INDENT)
        while len(line) > width:
            lines.append(line[:width])
            line = line[width:]
    return [*lines, line]
