"""Finds out whether the text of a call is in the request: then the model only repeats it.

Texts of users and tools are compared without blanks and escapes, so that a call quoted as a JSON string, or with another
layout, is found as well. Instructions (system and developer messages) are not compared, because an operator's example of a
call without arguments would forbid that call.
"""

import re
import sys
from collections.abc import Iterable
from html import unescape
from typing import Any, Final, Protocol

from callgate.calls.json_text import ARGUMENTS
from callgate.conversation import raw_json
from callgate.conversation.ports import Message
from callgate.text_calls.text_log import Item
from callgate.untrusted.doors import Door, TooMuch, open_text
from callgate.untrusted.readers import read_leniently, value_at

WATCHED_ROLES: Final = frozenset({"user", "tool", "function"})

BUDGET: Final = 256_000_000
"""Characters that are searched in one answer, in a quarter of a second. Further calls are taken for echoes, for safety; this
needs hundreds of calls after a history of a megabyte."""

MOST_TRIES: Final = 1000
"""The limit of braces in one text that begin no JSON object."""
MOST_SEARCHED: Final = 64_000_000
"""Characters behind all of them together, which a decoder may read to the end each time."""
SEARCHED: Final = Door(name="text of a request", bytes=sys.maxsize)
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
_ENTITIES = ("&lt;", "&gt;", "&quot;", "&amp;", "&#")


class Echoes(Protocol):
    """Compares calls with the text of a request."""

    def is_echo(self, item: Item) -> bool:
        """True if the text of these calls is in it."""
        ...


class _NoEchoes:
    def is_echo(self, item: Item) -> bool:
        return False


NO_ECHOES: Final[Echoes] = _NoEchoes()


class RequestEchoes:
    """The texts of users and tools, which are decoded when the first call is compared."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self._messages = messages
        self._texts: list[str] | None = None
        self._plain: dict[int, str] = {}
        self._budget = BUDGET

    def is_echo(self, item: Item) -> bool:
        if self._texts is None:
            bodies = (body for message in self._messages if isinstance(body := raw_json.read(message), dict))
            texts = ("\n".join(_texts(body.get("content"))) for body in bodies if body.get("role") in WATCHED_ROLES)
            self._texts = list(filter(None, texts))
        name = item.calls[0].name or ""
        needles = {needle for text in _spellings(item.text, name) if (needle := _plain(text))}
        for place, text in enumerate(self._texts):
            self._budget -= len(text) * (1 + len(needles))
            if self._budget < 0:
                return True
            if name not in text and "\\u" not in text:
                continue
            if place not in self._plain:
                self._plain[place] = _plain(text)
            if any(needle in self._plain[place] for needle in needles):
                return True
            if any(_names_call(text, call.name, call.arguments) for call in item.calls):
                return True
        return False


def _spellings(text: str, name: str) -> Iterable[str]:
    """Return the text of a call, and the same without the tag around all calls."""
    yield text
    own_tag = text.rfind("<", 0, text.find(name)) if name in text else -1
    if own_tag > 0:
        yield text[own_tag:]


def _names_call(text: str, name: str | None, arguments: Any) -> bool:
    """True if a JSON object in the text is this call, with its fields in any order."""
    if isinstance(arguments, str):
        try:
            arguments = read_leniently(open_text(arguments, ARGUMENTS))
        except (ValueError, RecursionError):
            return False
    for spelling in {text, text.replace('\\"', '"')}:
        at = spelling.find("{")
        if at < 0:
            continue
        try:
            opened = open_text(spelling, SEARCHED)
        except TooMuch:
            return True  # not searched: taken for an echo
        tries = searched = 0
        while at >= 0:
            try:
                value, end = value_at(opened, at)
            except (ValueError, RecursionError):
                tries += 1
                searched += len(spelling) - at
                if tries > MOST_TRIES or searched > MOST_SEARCHED:
                    return True
                end = at + 1
            else:
                if any(called == name and with_ == arguments for called, with_ in _calls_in(value)):
                    return True
            at = spelling.find("{", end)
    return False


def _calls_in(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return all pairs of name and arguments anywhere in a value."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for key in ("arguments", "parameters", "input", "args"):
                if key in value:
                    yield value.get("name"), value[key]
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _texts(content: Any) -> Iterable[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]


def _plain(text: str) -> str:
    """Return the text without blanks, escapes and entities, which quoting and layout change."""
    if any(entity in text for entity in _ENTITIES):
        text = unescape(text)
    if "\\" in text:
        text = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
        for escape in ("\\n", "\\t", "\\r", "\\"):
            text = text.replace(escape, "")
    return "".join(text.split())
