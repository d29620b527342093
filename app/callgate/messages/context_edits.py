"""Context editing and compaction of the Messages API, done here for a model behind another API."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.conversation.context import MARK, ClearThinking, ClearToolUses, Compact, ContextWishes, Edit
from callgate.conversation.events import ContextChanged
from callgate.messages.request_schema import from_validation, wrong
from callgate.models.resolve import ModelConfig
from callgate.untrusted.readers import json_reader

CLEAR_TOOL_USES: Final = "clear_tool_uses_20250919"
CLEAR_THINKING: Final = "clear_thinking_20251015"
COMPACT: Final = "compact_20260112"
MANAGEMENT: Final = "context_management"
COMPACTION: Final = "compaction"
FIELDS: Final = (MANAGEMENT, COMPACTION)
COUNTED_AS: Final[Mapping[str, str]] = {
    CLEAR_TOOL_USES: "cleared_tool_uses",
    CLEAR_THINKING: "cleared_thinking_turns",
}
"""How an applied edit says how much it cleared."""
USUAL_CLEAR: Final = 100_000
USUAL_COMPACT: Final = 150_000
"""Tokens that trigger an edit which says nothing of it, as at Anthropic; at most a share of a context that the config says."""
USUAL_SHARE: Final = 0.8
LEAST_TRIGGER: Final = 1000
_TOKENS: Final = "input_tokens"
_USES: Final = "tool_uses"


class _Amount(msgspec.Struct):
    type: str
    value: int | None = None


class _Edit(msgspec.Struct):
    type: str
    trigger: _Amount | None = None
    keep: _Amount | str | None = None
    clear_at_least: _Amount | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None
    instructions: str | None = None
    pause_after_compaction: bool | None = None


class _Management(msgspec.Struct):
    edits: list[_Edit] = []


class _Compaction(msgspec.Struct):
    type: str
    instructions: str | None = None


_management = json_reader(_Management | None)
_compaction = json_reader(_Compaction | None)


def wishes_of(fields: Mapping[str, msgspec.Raw], entry: ModelConfig) -> ContextWishes | None:
    """Return what a request wants of its context; None where it wants nothing. Raises `ChatError` for what is not known."""
    management = None
    compaction = None
    try:
        if MANAGEMENT in fields:
            management = _management(fields[MANAGEMENT])
    except msgspec.ValidationError as error:
        raise from_validation(str(error), MANAGEMENT) from None
    try:
        if COMPACTION in fields:
            compaction = _compaction(fields[COMPACTION])
    except msgspec.ValidationError as error:
        raise from_validation(str(error), COMPACTION) from None
    if compaction is not None:
        return _summarizing(compaction, is_alone=management is None)
    if management is None:
        return None
    edits: list[Edit] = []
    compact: Compact | None = None
    for place, edit in enumerate(management.edits):
        where = f"{MANAGEMENT}.edits.{place}"
        match edit.type:
            case "clear_tool_uses_20250919":
                edits.append(_tool_uses(edit, where, entry))
            case "clear_thinking_20251015":
                edits.append(ClearThinking(type=edit.type, keep=_thinking_turns(edit, where)))
            case "compact_20260112":
                compact = Compact(
                    above=_trigger(edit.trigger, f"{where}.trigger", USUAL_COMPACT, entry),
                    further=(edit.instructions or "").strip(),
                    is_last=bool(edit.pause_after_compaction),
                )
            case kind:
                raise wrong(f"{where}.type", f"unknown edit {kind[:64]!r}")
    return ContextWishes(edits=edits, compact=compact)


def _summarizing(compaction: _Compaction, *, is_alone: bool) -> ContextWishes:
    if compaction.type != "summarize":
        raise wrong(f"{COMPACTION}.type", f"unknown compaction {compaction.type[:64]!r}; expected 'summarize'")
    if not is_alone:
        raise wrong(COMPACTION, f"cannot be combined with `{MANAGEMENT}`")
    return ContextWishes(compact=Compact(prompt=(compaction.instructions or "").strip(), is_last=True))


def _tool_uses(edit: _Edit, where: str, entry: ModelConfig) -> ClearToolUses:
    above_uses = None
    above_tokens = None
    if edit.trigger is not None and edit.trigger.type == _USES:
        above_uses = _value(edit.trigger, f"{where}.trigger", 1)
    else:
        above_tokens = _trigger(edit.trigger, f"{where}.trigger", USUAL_CLEAR, entry)
    keep = 3
    if edit.keep is not None:
        keep = _value(_of_type(edit.keep, f"{where}.keep", _USES), f"{where}.keep", 0)
    at_least = 0
    if edit.clear_at_least is not None:
        at_least = _value(
            _of_type(edit.clear_at_least, f"{where}.clear_at_least", _TOKENS), f"{where}.clear_at_least", 0
        )
    inputs: bool | frozenset[str] = False
    if isinstance(edit.clear_tool_inputs, list):
        inputs = frozenset(edit.clear_tool_inputs)
    elif edit.clear_tool_inputs:
        inputs = True
    return ClearToolUses(
        type=edit.type,
        above_tokens=above_tokens,
        above_uses=above_uses,
        keep=keep,
        at_least=at_least,
        spared=frozenset(edit.exclude_tools or ()),
        inputs=inputs,
    )


def _thinking_turns(edit: _Edit, where: str) -> int | None:
    """Return how many turns keep their thinking; None for all."""
    keep = edit.keep
    if keep is None:
        return 1
    if keep == "all" or (isinstance(keep, _Amount) and keep.type == "all"):
        return None
    return _value(_of_type(keep, f"{where}.keep", "thinking_turns"), f"{where}.keep", 1)


def _trigger(trigger: _Amount | None, where: str, usual: int, entry: ModelConfig) -> int:
    if trigger is not None:
        return _value(_of_type(trigger, where, _TOKENS), where, LEAST_TRIGGER)
    if entry.context_tokens is not None:
        return min(usual, int(entry.context_tokens * USUAL_SHARE))
    return usual


def _of_type(amount: _Amount | str, where: str, kind: str) -> _Amount:
    if isinstance(amount, str) or amount.type != kind:
        raise wrong(f"{where}.type", f"expected '{kind}'")
    return amount


def _value(amount: _Amount, where: str, least: int) -> int:
    if amount.value is None or amount.value < least:
        raise wrong(f"{where}.value", f"expected a number of at least {least}")
    return amount.value


def applied_edits(changes: Iterable[ContextChanged]) -> Sequence[dict[str, Any]]:
    """Return what was cleared, as Anthropic says it: one entry for each type of edit."""
    applied: dict[str, dict[str, Any]] = {}
    for change in changes:
        if (name := COUNTED_AS.get(change.kind)) is None:
            continue
        entry = applied.setdefault(change.kind, {"type": change.kind, name: 0, "cleared_input_tokens": 0})
        entry[name] += change.count
        entry["cleared_input_tokens"] += change.tokens
    return list(applied.values())


def summary_in(change: ContextChanged) -> str:
    """Return the text of a `compaction` block: all that stands for what was summarized."""
    return change.stands_for.removeprefix(MARK).strip()


def text_of_summary(content: str) -> str:
    """Return what a model is told of a `compaction` block."""
    return f"{MARK}\n\n{content}"
