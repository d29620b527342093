"""Finds calls inside another call, whose reader took their end mark for its own.

A parameter that is raw text may contain calls in the same format, whose end marks come first. So opening and end marks are
matched over the whole text, like brackets. A call whose own end mark is after the place where its reader stopped was misread,
and the text between is a part of it.
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
"""The opening and end marks of calls."""

_LEAD = re.compile(
    r"(?:[^<]{0,80}(?:<\|\w+\|>[^<]{0,80}){0,3}<\|message\|>)?(?:[\s>]*(?:<[\w:｜ ]*(?:function_calls|tool_calls?|calls|tool▁calls▁begin|tool_calls_begin)(?::\w+)?｜?>"
    r"|<\|tool_calls_section_begin\|>|<\|open\|>tools<\|sep\|>|\]<\]minimax\[>\[<tool_call>))*[\s>]*"
)
"""Marks around calls, the last of which may open the call itself; also in a block quote."""
_OPENING = re.compile("|".join(map(re.escape, sorted(PAIRS, key=len, reverse=True))))
_SMALLEST: Final = 24
"""Characters of the shortest call with another inside."""
_JSON_STARTS = ("{", "[", "`")
_UNPAIRED = re.compile(
    r"<\|tool_call\|>|<function_call>|\[TOOL_CALLS\]|<\|message\|>|>>>|<\|function_call\|>|function call<\|role_sep\|>|<\|content_invoke_tool_json\|>"
    r"|functools\[|Action Input:"
)
"""Opening marks of calls without an end mark."""


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
"""Ends of a value at the beginning of a line, of a call that opened before."""


class CallText(Protocol):
    """Calls with their text."""

    @property
    def text(self) -> str: ...
    @property
    def is_whole(self) -> bool: ...


def has_open_marks(block: CallText) -> bool:
    """True if the text of these calls has unmatched opening marks. Whole JSON has an unambiguous end."""
    if len(block.text) < _SMALLEST:
        return False
    own = _own_opening(block.text)
    if own is None:
        # Marks in strings count, because the ends of strings are unknown in broken JSON.
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
    """Matches the marks of a whole text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: dict[str, dict[int, int]] = {}

    def reach(self, block: CallText, start: int) -> int:
        """Return the end of calls that begin at `start` and have open marks: after their own end mark. Without one, whole calls
        end where their reader stopped, and broken ones at the end of the text."""
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
    """True if the text of a call ends within a value: in a JSON string, or after the tag of a parameter."""
    opened = max((found.end() for found in _VALUE.finditer(text)), default=-1)
    if opened >= 0:
        return max((found.start() for found in _VALUE_END.finditer(text)), default=-1) < opened
    brace = text.find("{")
    return brace >= 0 and sum(1 for _ in _QUOTE.finditer(text, brace)) % 2 == 1


class Torn:
    """A call that was interrupted in a value by a restart of the grammar."""

    def __init__(self, text: str) -> None:
        self._opening = (_own_opening(text) or ("", 0))[0]

    def reach(self, behind: str) -> int:
        """Return where in the text after it this call ends; 0 if it does not."""
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
    """Return the opening mark of the first call of a text, and its position."""
    lead = _LEAD.match(text)
    assert lead is not None, "it matches nothing as well"
    found = _OPENING.match(text, lead.end())
    if found is None:
        found = next((each for each in reversed([*_OPENING.finditer(text, 0, lead.end())])), None)
    return (found.group(), found.start()) if found is not None else None
