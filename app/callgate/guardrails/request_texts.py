"""What of a request hooks are asked about: all of it that a model may see, and what its provider is told of who asks.

Words are masked where they stand. What stands beside them are names, schemas and ids, for which nothing can stand: what a hook would
mask there blocks the request.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.guardrails.leaves import MAX_DEPTH, TooDeep, texts_in, with_texts

SAID_BY_CLIENTS: Final = (
    *("messages", "input", "system", "instructions", "prompt", "prediction", "suffix"),
    *("documents", "query", "items"),
)
"""The fields of requests, of every API, with words for the model."""
PROSE: Final = frozenset({"description", "title", "$comment"})
"""Fields of tools and schemas that may be masked: what else they say is what a tool takes."""
NOT_SEEN: Final = frozenset({"model", "previous_response_id", "conversation", "stream_options"})
"""Fields of a request that no model sees, and no provider is told as they came."""
CREDENTIALS: Final = frozenset({"authorization", "authorization_token", "headers", "server_url", "url"})
"""Fields of an entry about a tool server: they go to that server alone, and a hook's server is not to have them."""
_MAY_BE_TOKENS: Final = ("input", "prompt")
_OF_SERVERS: Final = ("mcp", "url")
_WITH_ENTRIES: Final = ("tools", "mcp_servers")
_METADATA: Final = "metadata"
_OWN_METADATA: Final = frozenset({"user_id", "tools", "tool_events"})
"""What of the metadata says who asks, or is a setting of ours."""
_SETTINGS: Final = frozenset(
    """
    effort encoding_format include modalities mode quality reasoning_effort response_format service_tier size style summary
    tool_choice truncation type verbosity voice
    """.split()
)
"""Fields whose values are words of an API, where they look like one."""
_WORD: Final = re.compile(r"[a-z0-9_.-]{1,24}", re.ASCII)
_KEYWORDS: Final = frozenset(
    """
    $defs $ref $schema additionalProperties allOf allowed_tools anyOf cache_control const custom default definitions description enum
    exclusiveMaximum exclusiveMinimum format function functions id input_schema items json_schema maxItems maxLength maximum minItems
    minLength minimum mode name nullable oneOf parameters pattern prefixItems properties reasoning required schema server_label
    server_url strict text title tool_choice tool_names tools type uniqueItems verbosity
    """.split()
)
"""Names in tools and schemas that every request has, and that nobody chose."""
_LONG_NUMBER: Final = 8
"""Digits from which a number may be one that somebody has."""

Change = Callable[[str, str, bool], str]
"""Gets a text, the field of the request that it is in, and whether another may stand for it."""


class NothingStandsForIt(Exception):
    """Raised for a changed text that may not be another."""

    def __init__(self, field: str) -> None:
        super().__init__(f"it would mask something in `{field}`, where nothing can stand for it")


class NotWords(Exception):
    """Raised for words in a form in which no hook can read them."""

    def __init__(self, field: str) -> None:
        super().__init__(f"'{field}' has numbers of tokens, which no guardrail can read. Send text.")
        self.field = field


class Shown(msgspec.Struct, frozen=True):
    """A text that hooks are asked about."""

    text: str
    field: str
    may_change: bool


class RequestTexts:
    """The texts of one request."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """`fields`: the decoded body. Raises `TooDeep` and `NotWords`."""
        for name in _MAY_BE_TOKENS:
            if _has_tokens(fields.get(name)):
                raise NotWords(name)
        self._words = {name: fields[name] for name in SAID_BY_CLIENTS if name in fields}
        self._others = {
            name: value for name, value in fields.items() if name not in SAID_BY_CLIENTS and name not in NOT_SEEN
        }
        shown = [Shown(text, "", may_change=True) for text in texts_in(self._words, is_message=True)]
        self._said = len(shown)

        def take(text: str, field: str, may_change: bool) -> str:
            shown.append(Shown(text, field, may_change))
            return text

        _changed_fields(self._others, take)
        self.shown: Sequence[Shown] = shown

    def fields_with(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the fields that other texts change, with these in their places, which are in the order of those that were shown."""
        changed: dict[str, Any] = {}
        words = [shown.text for shown in self.shown[: self._said]]
        if words != list(texts[: self._said]):
            changed |= with_texts(self._words, texts[: self._said], is_message=True)
        following = iter(texts[self._said :])
        others = _changed_fields(self._others, lambda text, field, may_change: next(following))
        return changed | {name: value for name, value in others.items() if value != self._others[name]}


def check_changes(shown: Sequence[Shown], texts: Iterable[str]) -> None:
    """Raise `NothingStandsForIt` where a hook has changed what may not be another."""
    for before, text in zip(shown, texts, strict=True):
        if not before.may_change and text != before.text:
            raise NothingStandsForIt(before.field)


def _changed_fields(fields: Mapping[str, Any], change: Change) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, value in fields.items():
        if _WORD.fullmatch(name) is None:
            change(name, "a name of a field", False)
        if name in _WITH_ENTRIES and isinstance(value, list):
            changed[name] = [_entry(entry, name, change) for entry in value]
        elif name == _METADATA and isinstance(value, dict):
            changed[name] = {key: _of_metadata(key, inner, change) for key, inner in value.items()}
        elif name not in _SETTINGS or not _is_setting(value):
            changed[name] = _changed(value, name, change, may_change=False, depth=0)
        else:
            changed[name] = value
    return changed


def _entry(entry: Any, field: str, change: Change) -> Any:
    """Change the texts of one tool, or of one server, whose credentials are not shown."""
    if not isinstance(entry, dict) or entry.get("type") not in _OF_SERVERS:
        return _changed(entry, field, change, may_change=False, depth=0)
    hidden = {name: value for name, value in entry.items() if name in CREDENTIALS}
    others = {name: value for name, value in entry.items() if name not in CREDENTIALS}
    changed = _changed(others, field, change, may_change=False, depth=0)
    return {name: hidden[name] if name in hidden else changed[name] for name in entry}


def _of_metadata(key: str, value: Any, change: Change) -> Any:
    change(key, _METADATA, False)
    return _changed(value, _METADATA, change, may_change=key not in _OWN_METADATA, depth=0)


def _changed(value: Any, field: str, change: Change, *, may_change: bool, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise TooDeep("it is nested too deeply to be checked")
    if isinstance(value, str):
        return change(value, field, may_change)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        if len(text := json.dumps(value)) >= _LONG_NUMBER:
            change(text, field, False)
        return value
    if isinstance(value, list):
        return [_changed(inner, field, change, may_change=may_change, depth=depth + 1) for inner in value]
    if isinstance(value, dict):
        return {
            name: _member(name, inner, field, change, may_change=may_change, depth=depth + 1)
            for name, inner in value.items()
        }
    return value


def _member(name: str, value: Any, field: str, change: Change, *, may_change: bool, depth: int) -> Any:
    if name not in _KEYWORDS:
        change(name, field, False)
    if name in _SETTINGS and _is_setting(value):
        return value
    is_prose = may_change or (name in PROSE and isinstance(value, str))
    return _changed(value, field, change, may_change=is_prose, depth=depth)


def _has_tokens(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(entry, int | float | list) for entry in value)


def _is_setting(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(entry, str) and _WORD.fullmatch(entry) is not None for entry in values)
