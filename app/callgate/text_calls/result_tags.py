"""Takes the tags of results out of answers: small models begin with the result as it was shown to them, tags and all.

What stands between the tags is kept, because it may be all that the model says. A tag in a code fence, or quoted, is meant.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from callgate.conversation.events import CallsNotAlone, CallWritten, ModelEvent, TextDelta

Part = str | re.Pattern[str]
"""A piece of a tag: its own letters, or what may stand there."""
Tag = Sequence[Part]

_NAME: Final = re.compile(r"[\w.\-]{1,80}")
_NAMED: Final = re.compile(r"[^\"<>\n]{0,80}")
_ID: Final = re.compile(r"[\w.\-:]{1,80}")
_LONGEST: Final = 200
"""Characters of the longest tag."""
_QUOTES: Final = "`\"'“‘«"
_FENCES: Final = ("```", "~~~")


def _enclosing(name: str, *, prefix: str = "") -> list[Tag]:
    return [[f"<{prefix}{name}>"], [f'<{prefix}{name} name="', _NAMED, '">'], [f"</{prefix}{name}>"]]


def _function_results(prefix: str) -> list[Tag]:
    return [*_enclosing("function_results", prefix=prefix), *_enclosing("result", prefix=prefix)]


_DEFAULT: Final = [*_enclosing("tool_result"), *_enclosing("tool_response")]
_ANTML: Final = "antml" + ":"
_TAGS: Final[Mapping[str, Sequence[Tag]]] = {
    "xml": _function_results(""),
    "dots": _function_results(""),
    "step3": _function_results(""),
    "antml": _function_results(_ANTML),
    "deepseek_dsml": _function_results("｜DSML｜"),
    "mistral": [["[TOOL_RESULTS]"], ["[/TOOL_RESULTS]"]],
    "deepseek_v3": [[f"<｜tool▁output{more}｜>"] for more in ("▁begin", "▁end", "s▁begin", "s▁end")],
    "deepseek_v31": [[f"<｜tool▁output{more}｜>"] for more in ("▁begin", "▁end", "s▁begin", "s▁end")],
    "kimi_k2": [["## Return of ", _ID, "\n"]],
    "command_r": [["<|START_TOOL_RESULT|>"], ["<|END_TOOL_RESULT|>"]],
    "gemma4": [["response:", _NAME, '{value:<|"|>'], ['<|"|>}<tool_response|>'], ["<tool_response|>"]],
    "functiongemma": [
        ["<start_function_response>"],
        ["response:", _NAME, "{value:<escape>"],
        ["<escape>}<end_function_response>"],
        ["<end_function_response>"],
    ],
    "react": [["Observation: "]],
}
"""The tags around results by format, where they are not those of most."""
_ONLY_AT_LINE_STARTS: Final = frozenset({"kimi_k2", "react"})


class ResultTags:
    """Takes tags out of text that comes in pieces."""

    def __init__(self, format: str) -> None:
        self._whole, self._begun = _patterns(format)
        self._only_at_line_starts = format in _ONLY_AT_LINE_STARTS
        self._held = ""
        """What may be the beginning of a tag."""
        self._line = ""
        """The beginning of the current line, without blanks; a few characters are enough."""
        self._last = ""
        self._fence = ""
        self._skips_line_break = False
        """A tag stood alone on its line so far."""
        self._is_gap = False
        """A tag stood between two words."""

    def feed(self, text: str) -> str:
        return self._read(self._held + text, is_end=False)

    def finish(self) -> str:
        return self._read(self._held, is_end=True)

    def _read(self, text: str, *, is_end: bool) -> str:
        pieces: list[str] = []
        at = 0
        end = len(text)
        if not is_end and (begun := self._begun.search(text, max(0, end - _LONGEST))) is not None:
            end = begun.start()
        while (tag := self._whole.search(text, at)) is not None and tag.start() < end:
            pieces.append(self._passed(text[at : tag.start()]))
            if self._is_meant():
                pieces.append(self._passed(tag[0]))
            else:
                self._skips_line_break = not self._line and not tag[0].endswith("\n")
                self._is_gap = bool(self._last.strip())
            at = tag.end()
        end = max(at, end)
        pieces.append(self._passed(text[at:end]))
        self._held = text[end:]
        return "".join(pieces)

    def _is_meant(self) -> bool:
        if self._fence or (self._only_at_line_starts and self._line):
            return True
        return bool(self._last) and self._last in _QUOTES

    def _passed(self, text: str) -> str:
        """Return the text that stands there without the tag before it."""
        if not text:
            return ""
        before = ""
        if self._skips_line_break and text[0] == "\n":
            text = text[1:]
        elif self._is_gap and text[0].isalnum() and self._last.isalnum():
            before = "\n"
        self._skips_line_break = self._is_gap = False
        if text:
            self._look_at(text)
        return before + text

    def _look_at(self, text: str) -> None:
        for place, line in enumerate(text.split("\n")):
            if place:
                self._line = ""
            if len(self._line) < 3 and (start := (self._line + line).lstrip()[:3]):
                self._line = start
                if start in _FENCES and self._fence in ("", start):
                    self._fence = start[: 3 - len(self._fence)]
        self._last = text[-1]


class WithoutResultTags:
    """Takes the tags of results out of the text of an answer. What is not text passes by it, behind the text before it."""

    def __init__(self, format: str) -> None:
        self._format = format
        self._tags = ResultTags(format)

    def filtered(self, events: Sequence[ModelEvent]) -> list[ModelEvent]:
        passed: list[ModelEvent] = []
        for event in events:
            if isinstance(event, TextDelta):
                passed += _text(self._tags.feed(event.text))
            elif isinstance(event, CallsNotAlone):
                passed.append(CallsNotAlone(without_result_tags(event.text, self._format)))
            elif isinstance(event, CallWritten):
                passed += [*_text(self._tags.finish()), event]
                self._tags = ResultTags(self._format)
            else:
                passed.append(event)
        return passed

    def rest(self) -> list[ModelEvent]:
        return _text(self._tags.finish())


def without_result_tags(text: str, format: str) -> str:
    """Return a whole text without them."""
    tags = ResultTags(format)
    return tags.feed(text) + tags.finish()


def _text(text: str) -> list[ModelEvent]:
    if text:
        return [TextDelta(text)]
    return []


@cache
def _patterns(format: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return what matches a whole tag, and what matches the beginning of one at the end of a text."""
    tags = _TAGS.get(format, _DEFAULT)
    whole = "|".join("".join(_spelt(tag)) for tag in tags)
    begun = "|".join(map(_beginnings, tags))
    return re.compile(whole), re.compile(rf"(?:{begun})\Z")


def _spelt(tag: Tag) -> list[str]:
    return [part.pattern if isinstance(part, re.Pattern) else re.escape(part) for part in tag]


def _beginnings(tag: Tag) -> str:
    """Return a pattern for every beginning of a tag."""
    pattern = ""
    for part in reversed(tag):
        if isinstance(part, str):
            for letter in reversed(part):
                pattern = f"{re.escape(letter)}(?:{pattern})?"
        else:
            pattern = f"(?:{part.pattern})(?:{pattern})?"
    return pattern
