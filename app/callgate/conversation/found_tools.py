"""Which tools the searches in a history gave."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.conversation import raw_json
from callgate.conversation.ports import Message
from callgate.untrusted.doors import Door, open_text
from callgate.untrusted.readers import READ_ERRORS, json_reader

RESULT: Final = Door(name="result of a search of tools", bytes=1024 * 1024)
MAX_FOUND: Final = 500
"""Tools of one history, which its client may have written."""


class _Found(msgspec.Struct):
    name: str


class _SearchResult(msgspec.Struct):
    found: list[_Found] = []


_result = json_reader(_SearchResult)


def found_in_text(text: str) -> Sequence[str]:
    """Return the names of the tools whose schemas a result gives; none where it is no result of a search."""
    try:
        result = _result(open_text(text, RESULT))
    except READ_ERRORS:
        return ()
    return [tool.name for tool in result.found]


def searches_in(messages: Sequence[Message], find_name: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the id of each call of `find_name` that was answered, with the names of the tools that it found."""
    marks = (find_name.encode(), b"tool_call_id")
    asked: set[str] = set()
    for message in messages:
        if isinstance(message, msgspec.Raw) and not any(mark in bytes(message) for mark in marks):
            continue
        fields = raw_json.read(message)
        for call in fields.get("tool_calls") or ():
            if _name_of(call) == find_name:
                asked.add(call["id"])
        if fields.get("role") == "tool" and fields.get("tool_call_id") in asked:
            yield fields["tool_call_id"], found_in_text(text_of(fields.get("content")))


def found_in(messages: Sequence[Message], find_name: str) -> list[str]:
    """Return the names of all tools that were found, the first first."""
    names: dict[str, None] = {}
    for _, found in searches_in(messages, find_name):
        names |= dict.fromkeys(found)
    return list(names)[:MAX_FOUND]


def text_of(content: Any) -> str:
    """Return the text of a tool message."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))


def _name_of(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    return function.get("name") if isinstance(function, Mapping) else None
