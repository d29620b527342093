"""Finds what of a Messages request a model of chats has no place for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from callgate.conversation.client_run_tools import is_client_run
from callgate.messages.request_schema import (
    NEEDS_ITS_API,
    NO_PLACE_IN_CHATS,
    READ,
    MessageBlock,
    MessagesOutline,
    MessagesTool,
)

OF_BLOCKS: Final = ("cache_control", "citations", "caller")
OF_TOOLS: Final = ("allowed_callers", "cache_control", "defer_loading", "eager_input_streaming", "input_examples")
OF_CLIENT_RUN: Final = (*OF_TOOLS, "strict", "display_number", "enable_zoom", "max_characters")
OF_TOOLSETS: Final = ("cache_control",)
_NULL: Final = b"null"


class BeyondChats(msgspec.Struct, frozen=True):
    """What of a request is no part of a chat."""

    demanded: Sequence[tuple[str, str]] = ()
    """The fields without which it must not be answered, as its places and types."""
    providers_own: Mapping[str, msgspec.Raw] = {}
    """The fields that are no part of this API, which a model of chats is sent."""
    unplaced: Sequence[str] = ()
    """The names of what is left out for a model of chats, each once."""


PLAIN: Final = BeyondChats()


def beyond_chats(outline: MessagesOutline, fields: Mapping[str, msgspec.Raw]) -> BeyondChats:
    unplaced: list[str] = []
    if _may_have_unplaced(outline):
        unplaced += _unplaced(outline)
    others = fields.keys() - READ
    if not others and not unplaced:
        return PLAIN
    demanded = [(name, name) for name in NEEDS_ITS_API & others if _says(fields[name])]
    unplaced += sorted(name for name in NO_PLACE_IN_CHATS & others if _says(fields[name]))
    own_names = others - NO_PLACE_IN_CHATS - NEEDS_ITS_API
    own = {name: value for name, value in fields.items() if name in own_names}
    return BeyondChats(demanded, own, tuple(dict.fromkeys(unplaced)))


def _may_have_unplaced(outline: MessagesOutline) -> bool:
    """False where there is nothing to look at."""
    if outline.tools or outline.thinking is not None or outline.output_config is not None:
        return True
    return isinstance(outline.system, list) or any(isinstance(message.content, list) for message in outline.messages)


def unheard_in(outline: MessagesOutline) -> Sequence[str]:
    """Return what is said of tools of ours that nobody heeds, whoever answers."""
    if not outline.tools:
        return ()
    toolsets = [tool for tool in outline.tools if tool.type == "mcp_toolset"]
    names = (name for tool in toolsets for name in OF_TOOLSETS if _says(getattr(tool, name)))
    return tuple(dict.fromkeys(f"tools.{name}" for name in names))


def _unplaced(outline: MessagesOutline) -> Iterator[str]:
    config = outline.output_config
    if config is not None and _says(config.task_budget):
        yield "output_config.task_budget"
    if outline.thinking is not None and _says(outline.thinking.block_binding):
        yield "thinking.block_binding"
    for tool in outline.tools or ():
        yield from _of_tool(tool)
    if isinstance(outline.system, list):
        yield from _of_blocks(outline.system)
    for message in outline.messages:
        if isinstance(message.content, list):
            yield from _of_blocks(message.content)


def _of_tool(tool: MessagesTool) -> Iterator[str]:
    if tool.type is not None and is_client_run(tool.type):
        names: Sequence[str] = OF_CLIENT_RUN
    else:
        names = OF_TOOLS
    for name in names:
        value = getattr(tool, name)
        if value is not None and (not isinstance(value, msgspec.Raw) or _says(value)):
            yield f"tools.{name}"


def _of_blocks(blocks: Iterable[MessageBlock]) -> Iterator[str]:
    for block in blocks:
        if block.type == "redacted_thinking":
            yield block.type
        if block.cache_control or block.citations or block.caller:
            yield from (name for name in OF_BLOCKS if _says(getattr(block, name)))


def _says(value: msgspec.Raw) -> bool:
    return bool(value) and bytes(value).strip() != _NULL
