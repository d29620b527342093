"""Reads the tools that a chat declares for its provider to run, and takes out those that tools of ours stand for."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from callgate.api.chat_request import ChatRequest
from callgate.api.field_errors import wrong
from callgate.hosted.declared import AskStandIns, Declarations
from callgate.hosted.rows import row_of
from callgate.untrusted.readers import json_reader, read_value

SWITCH: Final = "web_search_options"
"""The field with which a chat asks for a web search."""
_objects = json_reader(list[dict[str, Any]])
_encode = msgspec.json.Encoder().encode


def with_stand_ins(request: ChatRequest, ask: AskStandIns) -> ChatRequest:
    """Return the request without the tools that tools of ours stand for. The same request where there are none."""
    declarations = Declarations(ask)
    switch = request.fields.get(SWITCH)
    is_switched = False
    if switch is not None:
        options = read_value(switch)
        if options is not None:
            if not isinstance(options, dict):
                raise wrong(SWITCH, f"Invalid type for '{SWITCH}': expected an object.", "invalid_type")
            is_switched = declarations.take({"type": "web_search", **options}, SWITCH) is not None
    tools = request.outline.tools or ()
    listed: list[dict[str, Any]] = []
    if any(row_of(tool.type) is not None for tool in tools):
        listed = _objects(request.normalized["tools"])
    places = {place for place, tool in enumerate(listed) if declarations.take(tool, f"tools[{place}]") is not None}
    hosted = declarations.tools([tool.name for tool in tools if tool.name], comes_back=False)
    if hosted is None:
        return request
    kept_tools = [tool for place, tool in enumerate(listed) if place not in places]
    outline = request.outline
    if places:
        outline = replace(outline, tools=[tool for place, tool in enumerate(tools) if place not in places])
    return replace(
        request,
        outline=outline,
        fields=_without(request.fields, kept_tools, is_switched=is_switched, changes_tools=bool(places)),
        normalized=_without(request.normalized, kept_tools, is_switched=is_switched, changes_tools=bool(places)),
        tools=replace(request.tools, hosted=hosted).with_list("some"),
        may_pass=False,
    )


def _without(
    fields: Mapping[str, msgspec.Raw], tools: list[dict[str, Any]], *, is_switched: bool, changes_tools: bool
) -> Mapping[str, msgspec.Raw]:
    others = {name: value for name, value in fields.items() if not (name == SWITCH and is_switched)}
    if changes_tools:
        del others["tools"]
        if tools:
            others["tools"] = msgspec.Raw(_encode(tools))
    return others
