"""The texts inside a JSON value: which there are, and the value with others in their places."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from callgate.untrusted.doors import Door, Opened, open_text
from callgate.untrusted.readers import READ_ERRORS, read_leniently

Leaves = list[str]

JSON_IN_A_TEXT: Final = Door(name="JSON in a text of a request", bytes=16 * 1024 * 1024)

NOT_READ: Final = frozenset(
    {
        *(
            "type",
            "role",
            "id",
            "call_id",
            "tool_call_id",
            "tool_use_id",
            "item_id",
            "status",
            "detail",
            "format",
            "media_type",
        ),
        *(
            "mime_type",
            "signature",
            "encrypted_content",
            "file_id",
            "container_id",
            "cache_control",
            "index",
            "server_label",
        ),
    }
)
"""Fields of messages, of every API, whose texts are for programs."""
_DATA: Final = frozenset({"data", "file_data"})
"""Fields with base64, but for a source that says that it is text."""
_ADDRESSES: Final = frozenset({"url", "image_url", "file_url", "audio_url", "video_url"})
"""Fields with an address, which may be of data that stand in it."""
_DATA_URL: Final = re.compile(r"data:[^,\s]{0,200};base64,")
_JSON: Final = frozenset({"arguments"})
"""Fields with JSON in a text."""
_FREE: Final = frozenset({"input", "arguments"})
"""Fields with whatever a tool takes, where they are objects."""
MAX_DEPTH: Final = 200


_CODE: Final = re.compile(r"[!-~]*", re.ASCII)
"""What programs write for programs: no words, which have spaces between them."""
_LONG_NUMBER: Final = 8
"""Digits from which a number in a message may be one that somebody has."""


class TooDeep(ValueError):
    """Raised for a value in which no hook looks to the ground."""


def texts_in(value: Any, *, is_message: bool = False) -> Leaves:
    """Return the texts in a value, and its numbers as texts, in their order. `is_message`: leave out what is for programs."""
    leaves: Leaves = []

    def take(text: str) -> str:
        leaves.append(text)
        return text

    _changed(value, take, is_message=is_message, depth=0)
    return leaves


def with_texts(value: Any, texts: Sequence[str], *, is_message: bool = False) -> Any:
    """Return the value with other texts, which are in the order of `texts_in`. A number whose text differs becomes a text."""
    following: Iterator[str] = iter(texts)
    return _changed(value, lambda text: next(following), is_message=is_message, depth=0)


def _changed(value: Any, change: Callable[[str], str], *, is_message: bool, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise TooDeep("it is nested too deeply to be checked")
    if isinstance(value, str):
        return change(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        text = json.dumps(value)
        if is_message and len(text) < _LONG_NUMBER:
            return value
        changed = change(text)
        if changed == text:
            return value
        return changed
    if isinstance(value, list | tuple):
        return [_changed(entry, change, is_message=is_message, depth=depth + 1) for entry in value]
    if isinstance(value, dict):
        return _object(value, change, is_message=is_message, depth=depth + 1)
    return value


def _object(value: dict[Any, Any], change: Callable[[str], str], *, is_message: bool, depth: int) -> dict[Any, Any]:
    changed: dict[Any, Any] = {}
    for name, entry in value.items():
        if not is_message:
            changed[change(str(name))] = _changed(entry, change, is_message=False, depth=depth)
        elif isinstance(entry, str) and (_is_code(name, entry) or _is_data(value, name, entry)):
            changed[name] = entry
        elif name in _JSON and isinstance(entry, str):
            changed[name] = _json_text(entry, change, depth)
        else:
            is_free = name in _FREE and not isinstance(entry, list | str)
            changed[name] = _changed(entry, change, is_message=not is_free, depth=depth)
    return changed


def _is_code(name: str, text: str) -> bool:
    return name in NOT_READ and _CODE.fullmatch(text) is not None


def _is_data(value: dict[Any, Any], name: str, text: str) -> bool:
    """Return whether a field of an object is no text. What a person writes may begin like data: its place tells."""
    if name in _DATA:
        return value.get("type") != "text"
    return name in _ADDRESSES and _DATA_URL.match(text) is not None


def _json_text(text: str, change: Callable[[str], str], depth: int) -> str:
    """Change the texts in JSON that is a text itself; one that is no JSON is changed whole."""
    try:
        value = read_leniently(open_text(text, JSON_IN_A_TEXT), object_pairs_hook=_object_of)
    except (*READ_ERRORS, _Twice):
        return change(text)
    changed = _changed(value, change, is_message=False, depth=depth)
    if changed == value:
        return text
    return json.dumps(changed, ensure_ascii=False)


def names_twice(body: Opened) -> bool:
    """True if an object in a body has two fields of one name, or it cannot be found out."""
    try:
        read_leniently(body, object_pairs_hook=_checked, parse_int=str, parse_float=str)
    except (*READ_ERRORS, _Twice):
        return True
    return False


class _Twice(Exception):
    """Raised for an object with two fields of one name, of which readers take one or the other."""


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise _Twice
    return value


def _checked(pairs: list[tuple[str, Any]]) -> None:
    _object_of(pairs)
