"""How what was read of a case differs from what its project expects, and how bad that is."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from tests.peersuite.reading import Case, Read

Difference: TypeAlias = tuple[str, str]
"""Its class and what it is."""

SERIOUS = ("wrong", "missed", "leak", "half")
"""Classes that name a case, the worst first: a call that must not run or runs with other arguments; a call that was not
found or was refused; marks of a format in what the user reads; a call that the project hands out unfinished."""
CLASSES = (*SERIOUS, "streamed", "cut", "design", "taste")
SHOWN = 240

_MARK = re.compile(
    r"</?tool_calls?>|</?function(?:=|_calls?|>| name)|</?(?:antml:|atem:|mm:)?(?:invoke|parameter|param)\b"
    r"|<\|[^|<>\s]{1,40}\|>|<｜|｜>|\[TOOL_CALLS\]|\[ARGS\]|\[CALL_ID\]|\[/?THINK\]|</?arg_(?:key|value)>|</?minimax:"
    r"|\]<\]minimax|</?think(?:ing)?>|functools\[|<\|tool_call>|<tool_call\|>|<\|\"\|>|<\|channel>|<channel\|>"
    r"|</?(?:seed|longcat|hy|mm):?[a-z_]*>|</?(?:start|end)_function_call>|</?dots_function_call|</?TOOLCALL>"
    r"|</?steptml:|</?tool_sep>|</?response>|>>>[a-z]|<SPECIAL_\d+>|<\|tool_call|Action:|```json"
)
_THINKING = re.compile(
    r"<think>.*?</think>|<thinking>.*?</thinking>|\[THINK\].*?\[/THINK\]"
    r"|<\|START_THINKING\|>.*?<\|END_THINKING\|>|<\|channel>thought.*?<channel\|>",
    re.DOTALL,
)


def differences(case: Case, got: Read) -> list[Difference]:
    expected = case["expect"]
    found = [*_of_calls(expected["calls"], got), *_of_content(expected.get("content") or "", got.content)]
    if "reasoning" in expected and collapsed(expected["reasoning"]) != collapsed(got.reasoning):
        found.append(("reasoning", f"{got.reasoning[:SHOWN]!r}, expected {expected['reasoning']!r:.{SHOWN}}"))
    return found


def class_of(found: Sequence[Difference]) -> str:
    """The worst class of the differences; empty where there is none."""
    kinds = {kind for kind, _ in found}
    return next((kind for kind in SERIOUS if kind in kinds), "taste" if kinds else "")


def shape(got: Read) -> str:
    """What has to be the same however a text is cut."""
    broken = [(call["name"], call["flaw"]) for call in got.broken]
    return json.dumps([got.calls, broken, collapsed(got.content), collapsed(got.reasoning)], sort_keys=True)


def collapsed(text: str | None) -> str:
    return " ".join((text or "").split())


def _of_calls(expected: Sequence[Mapping[str, Any]], got: Read) -> Iterator[Difference]:
    """A call without `arguments` is one that the project hands out unfinished."""
    extra, missed = list(got.calls), []
    for call in expected:
        if "arguments" not in call:
            yield "half", f"{call['name']} {call['arguments_text'][:SHOWN]!r}; read as {got.broken}"
            continue
        same = next((each for each in extra if _is_same_call(each, call)), None)
        if same is None:
            missed.append(call)
        else:
            extra.remove(same)
    for call in extra:
        instead = next((each for each in missed if each["name"] == call["name"]), None)
        if instead is not None:
            missed.remove(instead)
        yield "wrong", f"{_shown(call)}, expected {_shown(instead) if instead else 'no such call'}"
    for call in missed:
        yield "missed", f"{_shown(call)}, refused were {list(got.broken)}"


def _of_content(expected: str, got: str) -> Iterator[Difference]:
    if collapsed(expected) == collapsed(got):
        return
    leaked = sorted({mark for mark in _MARK.findall(got) if mark not in expected})
    if leaked:
        yield "leak", f"{leaked} in {got[:SHOWN]!r}, expected {expected[:SHOWN]!r}"
    elif collapsed(_THINKING.sub(" ", expected)) != collapsed(got):
        yield "content", f"{got[:SHOWN]!r}, expected {expected[:SHOWN]!r}"


def _is_same_call(call: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(call["name"] == other["name"]) and _is_same(call["arguments"], other["arguments"])


def _is_same(value: Any, other: Any) -> bool:
    """JSON values; 1 and 1.0 are one number, but true is none."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, int | float) and isinstance(other, int | float):
        return value == other
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_is_same(value[key], other[key]) for key in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_is_same, value, other))
    return type(value) is type(other) and bool(value == other)


def _shown(call: Mapping[str, Any]) -> str:
    return json.dumps(call, ensure_ascii=False)[:SHOWN]
