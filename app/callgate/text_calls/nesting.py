"""Finds calls that stand inside another call, where its reader took an end mark of theirs for its own.

The value of a parameter that is raw text may hold calls in the same format: their end marks come first. Opening and
end marks are therefore matched over the whole text, as brackets are. A call whose own end mark comes later than its reader
stopped was misread, and what lies in between is a part of it.
"""

import re
from collections.abc import Mapping
from typing import Final, Protocol

PAIRS: Final[Mapping[str, str]] = {
    "<tool_call>": "</tool_call>",
    "<function=": "</function>",
    "<function ": "</function>",
    "<invoke ": "</invoke>",
    "<" + "antml" + ":invoke ": "</" + "antml" + ":invoke>",
    "<atem:invoke ": "</atem:invoke>",
    "<steptml:invoke ": "</steptml:invoke>",
    "<｜DSML｜invoke ": "</｜DSML｜invoke>",
    "<｜DSML｜ invoke ": "</｜DSML｜ invoke>",
    "]<]minimax[>[<invoke ": "]<]minimax[>[</invoke>",
    "<longcat_tool_call>": "</longcat_tool_call>",
    "<tool_call:opensource>": "</tool_call:opensource>",
    "<tool_calls>": "</tool_calls>",
    "<TOOLCALL>": "</TOOLCALL>",
    "<dots_function_call>": "</dots_function_call>",
    "<|tool_call:start|>": "<|tool_call:end|>",
    "<|tool_call:begin|>": "<|tool_call:end|>",
    "<|open|>call ": "<|close|>call<|sep|>",
    "<|tool_call_begin|>": "<|tool_call_end|>",
    "<｜tool▁call▁begin｜>": "<｜tool▁call▁end｜>",
    "<｜tool_call_begin｜>": "<｜tool_call_end｜>",
    "<|START_ACTION|>": "<|END_ACTION|>",
    "<|action_start|>": "<|action_end|>",
    "<|tools_prefix|>": "<|tools_suffix|>",
    "<|tool_call>": "<tool_call|>",
    "<start_function_call>": "<end_function_call>",
}
"""What opens one call, and what ends it."""

_LEAD = re.compile(
    r"(?:[^<]{0,80}(?:<\|\w+\|>[^<]{0,80}){0,3}<\|message\|>)?(?:[\s>]*(?:<[\w:｜ ]*(?:function_calls|tool_calls?|calls|tool▁calls▁begin|tool_calls_begin)(?::\w+)?｜?>"
    r"|<\|tool_calls_section_begin\|>|<\|open\|>tools<\|sep\|>|\]<\]minimax\[>\[<tool_call>))*[\s>]*"
)
"""Marks around calls, of which the last may open the call itself; on the lines of a block quote as well."""
_OPENING = re.compile("|".join(map(re.escape, sorted(PAIRS, key=len, reverse=True))))
_SMALLEST: Final = 24
"""Characters of the shortest call with another inside."""
_JSON_STARTS = ("{", "[", "`")
_UNPAIRED = re.compile(
    r"<\|tool_call\|>|<function_call>|\[TOOL_CALLS\]|<\|message\|>|>>>|<\|function_call\|>|function call<\|role_sep\|>|<\|content_invoke_tool_json\|>"
    r"|functools\[|Action Input:"
)
"""What opens one call where nothing need end it."""


_VALUE = re.compile(
    r"<[\w:｜ ]*param(?:eter)?\b[^<>]{0,512}>|<\w*arg_value(?::\w+)?>|<\|tool_arg:value\|>|<\|open\|>argument[^<>]{0,512}<\|sep\|>"
    r"|\]<\]minimax\[>\[<(?!/|invoke|tool_call)[^<>]*>"
)
_VALUE_END = re.compile(
    r"</[\w:｜ ]*param(?:eter)?>|</\w*arg_value(?::\w+)?>|<\|tool_arg:end\|>|<\|close\|>argument"
    r"|\]<\]minimax\[>\[</(?!invoke|tool_call)"
)
_QUOTE = re.compile(r"(?<!\\)(?:\\\\)*(?:\"|<\|\"\|>|<escape>)")
_STRAY_ENDS = re.compile(
    r"(?:^|\n)[ \t]*(?:\"[ \t]*)?\}[}\] \t]*|(?:^|\n)[ \t]*(?:</[\w:｜ ]*param(?:eter)?>|</\w*arg_value(?::\w+)?>)"
)
"""What ends a value and begins a line: the call around it opened before."""


class CallText(Protocol):
    """Calls that were read, and their text."""

    @property
    def text(self) -> str: ...
    @property
    def is_whole(self) -> bool: ...


def has_open_marks(block: CallText) -> bool:
    """True if more is opened in the text of these than is ended. JSON that is whole says itself where it ends."""
    if len(block.text) < _SMALLEST:
        return False
    own = _own_opening(block.text)
    if own is None:
        # Strings are taken for structure: where they end is not known in JSON that is broken.
        opened = sum(block.text.count(char) for char in "{[") - sum(block.text.count(char) for char in "}]")
        return not block.is_whole and (
            opened > 0
            or len(_UNPAIRED.findall(block.text)) > 1
            or any(block.text.count(mark) > block.text.count(PAIRS[mark]) for mark in set(_OPENING.findall(block.text)))
        )
    opening, at = own
    if block.text.count(opening, at) <= block.text.count(PAIRS[opening], at):
        return False
    is_json = block.text[at + len(opening) :].lstrip().startswith(_JSON_STARTS)
    return block.text.count(opening, at) > 1 and not (block.is_whole and is_json)


class Nesting:
    """The marks of a whole text, matched."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: dict[str, dict[int, int]] = {}

    def reach(self, block: CallText, start: int) -> int:
        """Return the end of calls that begin at `start` and have open marks: behind their own end mark. Where it never
        comes, calls that are whole end where their reader stopped, and broken ones not before the text."""
        own = _own_opening(block.text)
        if own is None:
            return len(self._text)
        opening, at = own
        if opening not in self._ends:
            # Where each opening mark stands that has an end mark, and where that one ends.
            found: dict[int, int] = {}
            open_ones: list[int] = []
            for mark in re.finditer(f"{re.escape(opening)}|{re.escape(PAIRS[opening])}", self._text):
                if mark.group() == opening:
                    open_ones.append(mark.start())
                elif open_ones:
                    found[open_ones.pop()] = mark.end()
            self._ends[opening] = found
        otherwise = start + len(block.text) if block.is_whole else len(self._text)
        return self._ends[opening].get(start + at, otherwise)


def is_in_value(text: str) -> bool:
    """True if the text of a call, as far as it goes, ends within a value: in a string of JSON, or behind the tag of a
    parameter."""
    opened = max((found.end() for found in _VALUE.finditer(text)), default=-1)
    if opened >= 0:
        return max((found.start() for found in _VALUE_END.finditer(text)), default=-1) < opened
    brace = text.find("{")
    return brace >= 0 and sum(1 for _ in _QUOTE.finditer(text, brace)) % 2 == 1


class Torn:
    """A call in a value of which the reading began anew."""

    def __init__(self, text: str) -> None:
        self._opening = (_own_opening(text) or ("", 0))[0]

    def reach(self, behind: str) -> int:
        """Return where in the text behind it this call ends; 0 if it does not."""
        reach = 0
        if self._opening:
            is_open = 0
            end = PAIRS[self._opening]
            for mark in re.finditer(f"{re.escape(self._opening)}|{re.escape(end)}", behind):
                is_open += 1 if mark.group() == self._opening else -1
                if is_open < 0:
                    reach, is_open = mark.end(), 0
        return max(reach, *(found.end() for found in _STRAY_ENDS.finditer(behind)), 0)


def _own_opening(text: str) -> tuple[str, int] | None:
    """The mark that opens the first call of a text, and where it stands."""
    lead = _LEAD.match(text)
    assert lead is not None, "it matches nothing as well"
    found = _OPENING.match(text, lead.end())
    if found is None:
        found = next((each for each in reversed([*_OPENING.finditer(text, 0, lead.end())])), None)
    return (found.group(), found.start()) if found is not None else None
