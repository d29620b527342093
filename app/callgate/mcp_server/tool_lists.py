"""The lists of tools that MCP clients get: each key's own, encoded once until its tools change."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from callgate.callers.caller import NOBODY, Caller, Principal
from callgate.calls.search_setting import SearchPlan, SearchSetting
from callgate.mcp_server.protocol import INVALID_PARAMS, RpcFailure, encode
from callgate.runtime.runtime import Runtime
from callgate.tools.executor import Safety
from callgate.tools.own_tool import OWN_SOURCE, OwnTool
from callgate.tools.registry import CONFIG_ADDRESS, RegisteredTool
from callgate.tools.toolbox import ToolSet
from callgate.untrusted.readers import json_reader

PAGE: Final = 500
"""Tools of one page."""
TTL_MS: Final = 60_000
"""For how long a client may keep a list. One that wants to know sooner listens for changes."""
REMEMBERED: Final = 256
"""Lists: as many as keys have different rights."""
HEADER_WORD: Final = "x-mcp-header"
"""Stands at a parameter whose server wants it repeated in a header. That is between the server and this one."""
SOURCE: Final = "io.callgate/source"
FRESHNESS: Final = {"resultType": "complete", "ttlMs": TTL_MS, "cacheScope": "private"}
"""What a result says beside its content, at a revision whose requests stand alone."""

_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object", "null")
_MAX_DEPTH: Final = 32
_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.-]{0,63}")
"""What a program calls a field."""
_read_definition = json_reader(dict[str, Any])


class EncodedList(msgspec.Struct, frozen=True, eq=False):
    """The list of one set of tools."""

    digest: bytes
    """The same for the same list."""
    tools: ToolSet
    pages: tuple[bytes, ...]
    """The tools of each, with commas."""

    def result(self, cursor: str | None, *, modern: bool) -> bytes:
        """Return a page. Raises `RpcFailure`."""
        number = self._page_of(cursor)
        fields: dict[str, Any] = {}
        if number + 1 < len(self.pages):
            fields["nextCursor"] = self._cursor(number + 1)
        if modern:
            fields |= FRESHNESS
        others = encode(fields)[1:-1]
        if others:
            others = b"," + others
        return b'{"tools":[' + self.pages[number] + b"]" + others + b"}"

    def _cursor(self, number: int) -> str:
        return f"{number}-{self.digest.hex()[:16]}"

    def _page_of(self, cursor: str | None) -> int:
        if cursor is None:
            return 0
        for number in range(1, len(self.pages)):
            if cursor == self._cursor(number):
                return number
        raise RpcFailure(INVALID_PARAMS, "This cursor is of no list, or of one that has changed. Begin without one.")


class ToolLists:
    """The lists of one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._made_of: object = None
        self._lists: dict[tuple[tuple[str, ...], frozenset[str]], EncodedList] = {}
        search = runtime.config.mcp.tool_search
        self._plan: SearchPlan | None = None
        """How the tools are searched; None where they are not."""
        if search.mode != "off":
            setting = SearchSetting(**search.values())
            self._plan = SearchPlan(over=setting.over(None), pins=setting.pins, result_tokens=setting.result_tokens)

    def of(self, caller: Caller, principal: Principal = NOBODY) -> EncodedList:
        """Return the list of a caller's tools, without those that their servers do not list for who asks."""
        tools = self._runtime.offered.all()
        if tools is not self._made_of:
            self._made_of = tools
            self._lists = {}
        unlisted = self._runtime.unlisted(principal)
        place = (caller.tools, unlisted)
        encoded = self._lists.get(place)
        if encoded is None:
            if len(self._lists) >= REMEMBERED:
                self._lists.clear()
            encoded = self._lists[place] = _encoded(self._tools_of(caller, unlisted))
        return encoded

    def _tools_of(self, caller: Caller, unlisted: frozenset[str]) -> ToolSet:
        return self._runtime.offered.narrowed(("*",), caller.tools, None, None, self._plan, unlisted=unlisted)


def _encoded(tools: ToolSet) -> EncodedList:
    encoded = [text for _, text in sorted(_entries(tools))]
    digest = hashlib.sha256(b"\n".join(encoded)).digest()
    pages = tuple(b",".join(encoded[start : start + PAGE]) for start in range(0, max(len(encoded), 1), PAGE))
    return EncodedList(digest, tools, pages)


def _entries(tools: ToolSet) -> Iterator[tuple[str, bytes]]:
    """Yield what is listed, by name."""
    hidden: Mapping[str, object] = {}
    own: list[OwnTool] = []
    if tools.search is not None:
        hidden = tools.search.hidden
        own += tools.search.own
    if tools.read_more is not None:
        own.append(tools.read_more)
    for name, tool in tools.by_name.items():
        if name not in hidden:
            yield name, encode(_entry(tool))
    for own_tool in own:
        yield own_tool.name, encode(_own_entry(own_tool))


def _entry(tool: RegisteredTool) -> dict[str, Any]:
    policy = tool.tool.policy
    entry: dict[str, Any] = {"name": tool.name}
    if tool.tool.title:
        entry["title"] = tool.tool.title
    entry |= {
        "description": tool.tool.description or tool.name,
        "inputSchema": _object_schema(tool.offered.parameters),
        "annotations": _annotations(policy.safety),
        "_meta": {SOURCE: tool.source or CONFIG_ADDRESS},
    }
    if (schema := output_schema(tool)) is not None:
        entry["outputSchema"] = _without_words(schema)
    return entry


def output_schema(tool: RegisteredTool) -> Mapping[str, Any] | None:
    """Return the schema of what a tool gives programs; None where it gives them nothing, or a part of it only."""
    schema = tool.tool.output_schema
    if schema is None or tool.tool.select or schema.get("type") != "object":
        return None
    return schema


def _without_words(schema: Any, depth: int = 0) -> dict[str, Any]:
    """Return the shape that a schema of results has: its names and types. Its words are a server's own, which nobody has accepted, and
    a client's model would read them. What fits the schema fits this, too."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return {}
    shape: dict[str, Any] = {}
    kinds = schema.get("type")
    names = kinds if isinstance(kinds, list) else [kinds]
    if names and all(name in _TYPES for name in names):
        shape["type"] = kinds
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        fields = {name: inner for name, inner in properties.items() if _NAME.fullmatch(name) is not None}
        shape["properties"] = {name: _without_words(inner, depth + 1) for name, inner in fields.items()}
        required = schema.get("required")
        if isinstance(required, list):
            shape["required"] = [name for name in required if isinstance(name, str) and name in fields]
    if isinstance(schema.get("items"), Mapping):
        shape["items"] = _without_words(schema["items"], depth + 1)
    return shape


def _own_entry(tool: OwnTool) -> dict[str, Any]:
    function = _read_definition(tool.definition)["function"]
    # What the bridge calls may write: only its search and the pages of results are known to read.
    safety = Safety.WRITE if tool.offered.bridge is not None else Safety.READ_ONLY
    return {
        "name": tool.name,
        "description": function["description"],
        "inputSchema": _object_schema(tool.offered.parameters),
        "annotations": _annotations(safety),
        "_meta": {SOURCE: OWN_SOURCE},
    }


def _annotations(safety: Safety) -> dict[str, Any]:
    """Return our policy of a tool as the protocol's hints, whatever its server says of it."""
    if safety is Safety.READ_ONLY:
        return {"readOnlyHint": True}
    return {"readOnlyHint": False, "destructiveHint": safety is Safety.DESTRUCTIVE}


def _object_schema(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema of an object, which the protocol demands of it."""
    schema = {**parameters, "type": "object"}
    if HEADER_WORD.encode() in encode(schema):
        return {key: _without_headers(value) for key, value in schema.items()}
    return schema


def _without_headers(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {key: _without_headers(value) for key, value in schema.items() if key != HEADER_WORD}
    if isinstance(schema, list | tuple):
        return [_without_headers(value) for value in schema]
    return schema
