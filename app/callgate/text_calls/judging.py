"""Judges the calls of a text at its end: which are quoted, and whether the text ends with those that are not (rule T9).

The end decides: if only blanks, end marks and further calls stand behind the last call, all calls that are not quoted count,
whatever prose stands above and between them. If prose stands behind the last one, none of them does: they are not alone, and
the model is asked. A fence or a list item that holds nothing but calls is markup and goes with them.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec.structs import replace

from callgate.calls.states import Flaw
from callgate.text_calls import quoting
from callgate.text_calls.nesting import Nesting, Torn, has_open_marks
from callgate.text_calls.quoting import MARKER, TEMPLATE_MARK, QuoteTracker
from callgate.text_calls.text_log import CALLS, REASONING, TEXT, Item

ECHO: Final = "echo"
NESTED: Final = "nested"

EchoCheck: TypeAlias = Callable[[Item], bool]
"""Returns whether the text of calls is in the request."""

_LATER_END = re.compile(r"(?:^|\n)[ \t]*</think(?:ing)?>")
"""A further lone end of thinking: only at the beginning of a line, because inside a line the tag may be mentioned."""
_NO_PROSE = re.compile(
    rf"[\s;,]+|```+|~~~+|<!--.*?-->|{TEMPLATE_MARK}"
    r"|\[/?(?:INST|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS)\]"
    r"|</(?:\w+:|｜DSML｜ ?)?(?:tools?|tool_?calls?|function_?calls?|functions?|invoke|calls|response|TOOLCALL|tool_use)(?::\w+)?>",
    re.DOTALL,
)
"""What may stand behind calls: blanks, separators, fences, comments, tokens of templates, and end tags of calls."""
_END_TAG = re.compile(r"\s*</([^\s<>/]{1,64})>")
_MARKER_BEFORE = re.compile(rf"(?:^|(?<=\n))[ \t]*(?:{MARKER}[ \t]+)+\Z")
_LINE_ENDS = re.compile(r"[ \t\r;,]*(?:\n|\Z)")


@dataclass(frozen=True, slots=True)
class TextRules:
    """What of the rule depends on the format and the request."""

    looks_behind: bool = True
    """Prose behind the last call is a doubt; not in formats of special tokens, and not where a call was demanded."""
    tokens: tuple[str, ...] = ()
    """Opening marks that are special tokens, in a format that has others as well."""
    only_first: bool = False
    """Only the first call counts, and what follows it is dropped."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The items as they are emitted, and what they would be if the calls were text."""

    items: Sequence[Item]
    as_written: str = ""
    """Set where the calls are not alone: prose and calls as they were written."""


def judge(
    items: Sequence[Item],
    tracker: QuoteTracker,
    rules: TextRules,
    is_echo: EchoCheck,
    *,
    begins_line: bool = True,
    torn: Torn | None = None,
) -> Judgement:
    """Judge the last items of a text, which its tracker has read to its end. `begins_line`: the text before them ends with a
    line."""
    prose_before = tracker.at - sum(len(item.text) for item in items if item.kind == TEXT)
    judge_nested(items, torn)
    _judge_thinking(items)
    for item in items:
        if item.kind == CALLS and item.calls and item.quoted is None and item.is_whole and is_echo(item):
            item.quoted = ECHO
    places = [place for place, item in enumerate(items) if item.kind == CALLS and item.reason is None and item.calls]
    if not places:
        return Judgement(items)
    if rules.only_first:
        items = items[: places[0] + 1]
        places = places[:1]
    texts = _without(tracker.markup, items, prose_before)
    looks_behind = rules.looks_behind
    if rules.tokens and items[places[-1]].text.lstrip().startswith(rules.tokens):
        looks_behind = False
    as_written = ""
    if looks_behind and _is_followed(items, texts, places, tracker.turn_at, prose_before):
        as_written = "".join(item.text for item in items if item.kind != REASONING)
        for place in places:
            items[place].calls = [replace(call, is_alone=False) for call in items[place].calls]
    _drop_markers(items, texts, begins_line=begins_line)
    for item, text in zip(items, texts, strict=True):
        if item.kind == TEXT:
            item.text = text
    return Judgement(items, as_written)


def judge_nested(items: Sequence[Item], torn: Torn | None = None) -> None:
    """Make calls inside other calls a part of those, and mark calls whose reader missed inner calls as broken."""
    if torn is not None:
        # An end of thinking was in the value of a call. If the call ends after it, the text up to that end is its value.
        texts = [item for item in items if item.kind != REASONING]
        reach = torn.reach("".join(item.text for item in texts))
        at = 0
        for item in texts:
            if item.kind == CALLS and at < reach:
                item.quoted = item.quoted or NESTED
            at += len(item.text)
    suspects = [item for item in items if item.kind == CALLS and item.calls and has_open_marks(item)]
    if not suspects:
        return
    nesting = Nesting("".join("" if item.kind == REASONING else item.text for item in items))
    at = end = 0
    for item in items:
        if item.kind == CALLS and at < end:
            item.quoted = item.quoted or NESTED
        elif any(item is suspect for suspect in suspects):
            end = nesting.reach(item, at)
            if end > at + len(item.text) and item.is_whole:
                item.calls = [replace(call, arguments=None, flaw=Flaw.INVALID_MARKUP) for call in item.calls]
        at += 0 if item.kind == REASONING else len(item.text)


def _judge_thinking(items: Sequence[Item]) -> None:
    """Make calls before a later lone end of thinking a part of the thinking."""
    ends_thinking = False
    for item in reversed(items):
        if item.kind == CALLS and item.calls:
            if ends_thinking:
                item.quoted = item.quoted or quoting.THINKING
        elif item.kind != REASONING and not ends_thinking:
            ends_thinking = _LATER_END.search(item.text) is not None


def _without(cuts: Sequence[tuple[int, int]], items: Sequence[Item], prose_before: int) -> list[str]:
    """Return the texts of items without these parts of the prose."""
    texts: list[str] = []
    at = prose_before
    for item in items:
        text = item.text
        if item.kind == TEXT:
            for start, end in reversed(cuts):
                if start < at + len(item.text) and end > at:
                    text = text[: max(0, start - at)] + text[end - at :]
            at += len(item.text)
        texts.append(text)
    return texts


def _is_followed(
    items: Sequence[Item], texts: Sequence[str], places: Sequence[int], turn_at: int | None, prose_before: int
) -> bool:
    """True if prose stands behind the last call that counts. What an invented turn of somebody else says is none."""
    at = prose_before + sum(len(item.text) for item in items[: places[-1]] if item.kind == TEXT)
    behind: list[str] = []
    for item, text in zip(items[places[-1] + 1 :], texts[places[-1] + 1 :], strict=True):
        if item.kind == CALLS and item.calls:
            if item.reason == quoting.INVENTED_TURN:
                break
            return True  # a quoted call
        if item.kind == TEXT:
            if turn_at is not None and at + len(item.text) > turn_at:
                behind.append(text[: max(0, turn_at - at)])
                break
            at += len(item.text)
            behind.append(text)
    return not _is_no_prose("".join(behind), items, texts, places)


def _is_no_prose(text: str, items: Sequence[Item], texts: Sequence[str], places: Sequence[int]) -> bool:
    """True for a text of nothing but blanks, marks and the end tags of wrappers around calls alone."""
    at = 0
    while at < len(text):
        if match := _NO_PROSE.match(text, at):
            at = match.end()
        elif (tag := _END_TAG.match(text, at)) and _is_wrapper(tag[1], items, texts, places):
            at = tag.end()
        else:
            return False
    return True


def _is_wrapper(name: str, items: Sequence[Item], texts: Sequence[str], places: Sequence[int]) -> bool:
    """True if a tag of this name opens with nothing but calls behind it, up to the last call."""
    for place in range(places[-1], -1, -1):
        if items[place].kind != TEXT:
            continue
        text = texts[place].rstrip()
        if text:
            return re.search(rf"<{re.escape(name)}(?:\s[^<>]*)?>\Z", text) is not None
    return False


def _drop_markers(items: Sequence[Item], texts: list[str], *, begins_line: bool) -> None:
    """Drop the markers of list items that hold nothing but calls."""
    for place, item in enumerate(items):
        if item.kind != CALLS or item.reason is not None or not item.calls or not place:
            continue
        before = texts[place - 1] if items[place - 1].kind == TEXT else ""
        marker = _MARKER_BEFORE.search(before)
        if marker is None or (not marker.start() and not (begins_line and place == 1)):
            continue
        behind = next(
            (text for other, text in zip(items[place + 1 :], texts[place + 1 :], strict=True) if other.kind == TEXT), ""
        )
        if _LINE_ENDS.match(behind) or item.text.endswith("\n"):
            texts[place - 1] = before[: marker.start()]
