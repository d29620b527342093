"""Compaction in the Responses API: what a request asks for, and `compaction` items, which stand for what was summarized.

An item holds the summary, sealed for its owner. One of a provider that has compaction itself is sealed as reasoning is.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.api.field_errors import wrong
from callgate.conversation import raw_json
from callgate.conversation.context import MARK, SUMMARY, Compact, ContextWishes
from callgate.conversation.events import ContextChanged
from callgate.conversation.ports import Message
from callgate.conversation.response_items import kind_of
from callgate.conversation.transcript import IMAGES
from callgate.models.resolve import ModelConfig
from callgate.responses.offered import ADDING
from callgate.responses.seal import ReasoningSeal
from callgate.state.sealing import NotSealedHere, Sealer
from callgate.untrusted.doors import Door, TooMuch, Untrusted
from callgate.untrusted.readers import json_reader

ITEM: Final = "compaction"
TRIGGER: Final = "compaction_trigger"
OF_COMPACTION: Final = frozenset({ITEM, TRIGGER})
PURPOSE: Final = "compaction"
LEAST_THRESHOLD: Final = 1000
"""Tokens. Below, a conversation would be summarized all the time."""
USUAL_SHARE: Final = 0.8
"""Of the model's context, where a request gives no threshold."""
STAYING_ROLES: Final = frozenset({"system", "developer"})
SEAL: Final = Door(name="a sealed summary", bytes=16 * 1024 * 1024, values=100)


class _ContextRule(msgspec.Struct):
    type: str
    compact_threshold: int | None = None


class _Summary(msgspec.Struct, kw_only=True):
    text: str
    is_whole: bool
    """It stands for the messages of the user before it too."""


_rules = json_reader(list[_ContextRule] | None)
_summary = json_reader(_Summary)


class CompactionSeal(msgspec.Struct, eq=False, kw_only=True):
    """Seals the summaries of one owner, and opens them."""

    _sealer: Sealer
    _owner: str
    reasoning: ReasoningSeal

    def seal(self, change: ContextChanged, *, is_whole: bool) -> str:
        """Seal a summary that was made here. `is_whole`: whether it stands for the messages of the user before it too."""
        text = SUMMARY.format(summary=change.summary)
        if is_whole:
            text = change.stands_for
        return self._sealer.seal(PURPOSE, self._owner, msgspec.json.encode(_Summary(text=text, is_whole=is_whole)))

    def seal_foreign(self, items: Sequence[Mapping[str, Any]]) -> str:
        """Seal items of a provider that has compaction itself."""
        return self.reasoning.seal(items, "")

    def open(self, item: Mapping[str, Any], where: str) -> "_Summary | None":
        """Return the summary of an item; None for that of a provider. Raises `ChatError` where nothing of it can be read: without it
        a model would not know the conversation."""
        sealed = item.get("encrypted_content")
        place = f"{where}.encrypted_content"
        if not isinstance(sealed, str):
            raise wrong(place, f"Missing required parameter: '{place}'.", "missing_required_parameter")
        try:
            return _summary(Untrusted(self._sealer.open(PURPOSE, self._owner, sealed), SEAL).open())
        except NotSealedHere as error:
            why = str(error)
        except (TooMuch, msgspec.DecodeError, RecursionError):
            why = "sealed by another version of this server"
        notes = len(self.reasoning.not_opened)
        if self.reasoning.open(sealed) is not None:
            return None
        del self.reasoning.not_opened[notes:]
        message = (
            f"The summary in '{place}' cannot be read: it is {why}. Send the conversation itself, or compact it again."
        )
        raise wrong(place, message, "compaction_not_opened")


def is_triggered(items: str | Sequence[Any]) -> bool:
    """Return whether an input ends with the item that asks for compaction. Raises for one that stands elsewhere."""
    if isinstance(items, str):
        return False
    for place, item in enumerate(items):
        if kind_of(item) == TRIGGER:
            if place + 1 < len(items):
                where = f"input[{place}]"
                raise wrong(where, f"Invalid value for '{where}': a '{TRIGGER}' has to be the last item.")
            return True
    return False


def expanded(items: Sequence[Any], seal: CompactionSeal) -> Sequence[Any]:
    """Return an input in which each summary stands as a message in place of what it summarizes."""
    shorter: list[Any] = []
    for place, item in enumerate(items):
        kind = kind_of(item)
        if kind == ITEM:
            shorter = _summarized(shorter, item, seal.open(item, f"input[{place}]"))
        elif kind != TRIGGER:
            # What a summary stands for is looked at nowhere else, and kept with the response.
            _check_shape(item, f"input[{place}]")
            shorter.append(item)
    return shorter


def _check_shape(item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise wrong(where, f"Invalid type for '{where}': expected an object.", "invalid_type")
    kind = item.get("type", "message" if "role" in item else None)
    if not isinstance(kind, str):
        raise wrong(f"{where}.type", f"Invalid type for '{where}.type': expected a string.", "invalid_type")


def users_in(items: str | Sequence[Any], seal: CompactionSeal, before: Sequence[Message] = ()) -> Sequence[Any]:
    """Return the messages of the user in an input that no summary stands for. `before`: a stored history."""
    users: list[Any] = [*filter(None, map(_item_of, before))]
    if isinstance(items, str):
        if items:
            users.append({"type": "message", "role": "user", "content": items})
        return users
    for place, item in enumerate(items):
        if kind_of(item) == ITEM:
            summary = seal.open(item, f"input[{place}]")
            if summary is not None and summary.is_whole:
                users = []
        elif isinstance(item, dict) and item.get("role") == "user":
            users.append(item)
    return users


def _item_of(message: Message) -> dict[str, Any] | None:
    """Return a message of the user in a stored history as an item; None for any other, and for one that was made here."""
    fields = raw_json.read(message)
    content = fields.get("content")
    if fields.get("role") != "user":
        return None
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    shown = [*filter(None, map(_part_of, content or ()))]
    if not shown or shown[0].get("text", "").startswith((MARK, IMAGES)):
        return None
    return {"type": "message", "role": "user", "content": shown}


def _part_of(part: Mapping[str, Any]) -> dict[str, Any] | None:
    match part:
        case {"type": "text", "text": text}:
            return {"type": "input_text", "text": text}
        case {"type": "image_url", "image_url": {"url": url, **more}}:
            return {"type": "input_image", "image_url": url, "detail": dict(more).get("detail") or "auto"}
        case {"type": "file", "file": dict(file)} if "file_data" in file:
            return {"type": "input_file", **file}
        case {"type": "input_audio"}:
            return dict(part)
    return None


def _summarized(items: Sequence[Any], item: Mapping[str, Any], summary: _Summary | None) -> list[Any]:
    """Return the items with a summary behind those that it does not stand for."""
    if summary is None:
        return [*items, {**item, "type": "reasoning", "summary": []}]
    roles = STAYING_ROLES
    if not summary.is_whole:
        roles |= {"user"}
    # Tools that were added stay on offer.
    staying = [before for before in items if kind_of(before) in ADDING or _role(before) in roles]
    part = {"type": "input_text", "text": summary.text}
    return [*staying, {"type": "message", "role": "user", "content": [part]}]


def wishes_of(fields: Mapping[str, msgspec.Raw], entry: ModelConfig, *, is_triggered: bool) -> ContextWishes | None:
    """Return what a request wants of its context; None where it wants nothing that is done here."""
    if is_triggered:
        return ContextWishes(compact=Compact(is_last=True))
    if "context_management" not in fields:
        return None
    try:
        rules = _rules(fields["context_management"])
    except msgspec.ValidationError as error:
        raise wrong("context_management", f"Invalid 'context_management': {error}.", "invalid_type") from None
    thresholds = [_threshold(rule, place, entry) for place, rule in enumerate(rules or ())]
    if not thresholds:
        return None
    return ContextWishes(compact=Compact(above=min(thresholds)))


def _threshold(rule: _ContextRule, place: int, entry: ModelConfig) -> int:
    where = f"context_management[{place}]"
    if rule.type != ITEM:
        raise wrong(f"{where}.type", f"Invalid value for '{where}.type': only '{ITEM}' is known.")
    threshold = rule.compact_threshold
    place_of_number = f"{where}.compact_threshold"
    if threshold is not None:
        if threshold < LEAST_THRESHOLD:
            message = f"Invalid '{place_of_number}': expected at least {LEAST_THRESHOLD}."
            raise wrong(place_of_number, message, "integer_below_min_value")
        return threshold
    if entry.context_tokens is None:
        message = (
            f"Missing required parameter: '{place_of_number}'. The size of this model's context is not known here."
        )
        raise wrong(place_of_number, message, "missing_required_parameter")
    return int(entry.context_tokens * USUAL_SHARE)


def _role(item: Any) -> str:
    if isinstance(item, dict) and isinstance(role := item.get("role"), str):
        return role
    return ""
