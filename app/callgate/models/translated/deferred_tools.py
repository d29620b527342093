"""Anthropic's own way to load the tools that a model searches for.

All of them are sent with `defer_loading`, which keeps them out of the prompt, and the result of a search is `tool_reference`s to those
that it found: the provider puts their schemas where the result is. The prompt before it stays what its cache has.
https://platform.claude.com/docs/en/agents-and-tools/tool-use/tool-search-tool
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from callgate.conversation import raw_json
from callgate.conversation.errors import ChatError
from callgate.conversation.found_tools import found_in_text, text_of
from callgate.conversation.ports import DeferredTools, ModelRequest

WORDS: Final = ("defer_loading", "tool_reference", "tool_search")
"""Words of a refusal that is about this way."""


def with_deferred(request: ModelRequest) -> ModelRequest:
    """Return the request with the tools that are searched for among its others, and without the bridge to them."""
    deferred = request.deferred
    if deferred is None:
        return request
    if not request.tools or is_demanded(request.tool_choice, deferred):
        return replace(request, deferred=None)  # a reference to a tool that is not sent would be refused
    others = [tool for tool in request.tools if _name_of(tool) not in (deferred.find, deferred.bridge)]
    # The deferred ones first: a mark for the cache belongs behind the last tool, and a deferred one may have none.
    tools = (*deferred.definitions, *others, deferred.find_definition)
    return replace(request, tools=tools, deferred=replace(deferred, definitions=()))


def is_demanded(tool_choice: Any, deferred: DeferredTools) -> bool:
    """True if a request demands a call of the tool that searches, or of the bridge, which the provider's own way does not have."""
    name = _field(_field(tool_choice, "function"), "name")
    return name in (deferred.find, deferred.bridge)


def defer(body: dict[str, Any], deferred: DeferredTools) -> None:
    """Mark the deferred tools of a request in Anthropic's words, and refer to those that searches found."""
    body["tools"] = [
        {**_plain(tool), "defer_loading": True} if _field(tool, "name") in deferred.names else tool
        for tool in body.get("tools") or ()
    ]
    searches: set[Any] = set()
    for message in body.get("messages") or ():
        blocks = _field(message, "content")
        if not isinstance(blocks, list):
            continue
        searches |= {_field(block, "id") for block in blocks if _is(block, "tool_use", deferred.find)}
        message["content"] = [
            _referring(block, deferred) if _field(block, "tool_use_id") in searches else block for block in blocks
        ]


def is_about_deferred(error: ChatError) -> bool:
    """True if a provider refuses a request because it does not know this way."""
    said = f"{error.message} {error.detail or ''}"
    return error.status == HTTPStatus.BAD_REQUEST and any(word in said for word in WORDS)


def _referring(block: Mapping[str, Any], deferred: DeferredTools) -> Mapping[str, Any]:
    """Return the result of a search as references to the tools that it found, where it found any."""
    names = [name for name in found_in_text(text_of(block.get("content"))) if name in deferred.names]
    if not names or block.get("is_error"):
        return block
    references = [{"type": "tool_reference", "tool_name": name} for name in dict.fromkeys(names)]
    return {**block, "content": references}


def _is(block: Any, kind: str, name: str) -> bool:
    return bool(_field(block, "type") == kind and _field(block, "name") == name)


def _plain(tool: Any) -> dict[str, Any]:
    return {name: value for name, value in _read(tool).items() if name != "cache_control"}


def _field(value: Any, name: str) -> Any:
    value = _read(value)
    if isinstance(value, Mapping):
        return value.get(name)
    return None


def _read(value: Any) -> Any:
    return raw_json.read(value) if isinstance(value, msgspec.Raw) else value


def _name_of(tool: msgspec.Raw) -> Any:
    return _field(_field(tool, "function"), "name")
