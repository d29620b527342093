"""Keeps tools out of the prompt, and gives them to the model that searches for them.

What a model is shown and what it may call are two things: the filters of its entry, its key and its request say which tools it has,
and all of them are what the gate lets through; searching only decides whose schemas stand in the prompt. `find_tools` searches, and
`call_tool` is the bridge by which a model calls what it found: both stay the same from turn to turn, so that a provider's cache of
the prompt holds. The gate takes the call out of the bridge, so that everybody behind it sees the tool's own name.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.calls.legal_names import MAX_LENGTH
from callgate.calls.names import BRIDGE, close_names
from callgate.calls.offer import Bridge, Offer, OfferedTool
from callgate.calls.outcome import Failed, FailureKind, Outcome, ResultFacts, Returned
from callgate.calls.search_setting import SearchPlan
from callgate.calls.selection import OF_REQUESTS
from callgate.calls.states import FlawDetail
from callgate.calls.unseen import visible
from callgate.conversation.ports import DeferredTools
from callgate.tools.listing import CHARS_PER_TOKEN
from callgate.tools.own_tool import OWN_SOURCE, OwnTool, free_name
from callgate.tools.registry import RegisteredTool, encoded
from callgate.tools.schema import compile_schema
from callgate.tools.search_index import MAX_QUERY, SearchIndex, ToolText, first_sentence, parameter_names, words_of
from callgate.tools.tool_filter import ToolFilter

FIND: Final = "find_tools"
NAMES: Final = (FIND, BRIDGE)
"""What the tools are called with which a model searches."""
USUAL_LIMIT: Final = 8
MAX_LIMIT: Final = 20
MAX_NEAR: Final = 3
MAX_WRITTEN: Final = 4 * MAX_QUERY
"""Characters of a query of which the unseen ones are taken out."""
REBUILD_SECONDS: Final = 1.0
"""The least interval between two indexes: a server may change its list of tools at any rate."""
MAX_SERVERS: Final = 100
"""Servers that the description names."""
MAX_ABOUT: Final = 120
"""Characters that it says of each."""
MAX_SUMMARY: Final = 160
FIND_PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What the tool should do, in a few words."},
        "names": {"type": "array", "items": {"type": "string"}, "description": "Tools whose names are known."},
        "limit": {"type": "integer"},
    },
}
CALL_PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The name of a tool, as find_tools gives it."},
        "arguments": {"type": "object", "description": "Its arguments, by its schema."},
    },
    "required": ["name", "arguments"],
}
"""Without keywords that some provider refuses. What is required of the model is more than what is required of its call."""
CALL_DESCRIPTION: Final = "Calls a tool that find_tools gave, with arguments by its schema."
HOW_BRIDGED: Final = "The result has their schemas; call one with {call}, by its exact name."
HOW_LOADED: Final = "What is found is loaded with the result: call it by its name."
HOW_LISTED: Final = "What is found is in your list of tools from your next answer on: call it by its name."
FIND_DESCRIPTION: Final = (
    "Finds tools that are not in your list, by what they do. {how} The nearest are given, of which perhaps none fits: then answer"
    " without. With names it gives the tools of these names. To be found: "
)
NEAREST: Final = "These are the nearest by their words; perhaps none fits. Use one only if it does what is needed, else answer without."
SHORTENED: Final = "the descriptions of its parameters are shortened; arguments are checked by the whole schema"
SHOWN_BY_NAME: Final = "Their schemas: {find} with their names."
NOTHING: Final = "No tool has any of these words. The tools are of these servers; try other words, or answer without."
AGAIN: Final = "Nothing is found by these words, as before. Use other words, or answer without a tool."


class ToolIndex:
    """The index of a registry's tools: built in a thread when somebody may search them and they have changed."""

    def __init__(
        self,
        about: Callable[[], Mapping[str, str]] = dict,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`about`: returns what servers say of themselves, by their names."""
        self._about = about
        self._clock = clock
        self._pause = pause
        self._tools: Sequence[RegisteredTool] = ()
        self._indexed: Sequence[RegisteredTool] = ()
        self._building: asyncio.Task[None] | None = None
        self._built_at = float("-inf")
        self.now = SearchIndex()
        """The last one that was built."""

    def about(self, server: str) -> str:
        return first_sentence(visible(self._about().get(server, "")))[:MAX_ABOUT]

    def follow(self, tools: Sequence[RegisteredTool]) -> None:
        """Build the index of these tools in the background, where it is not that already."""
        self._tools = tools
        if self._indexed is tools or self._building is not None:
            return
        self._building = asyncio.create_task(self._build(), name="index for searching")

    async def ready(self) -> SearchIndex:
        """Return the index, once there is one: while tools change, the one of before."""
        if self._building is not None and not self.now.size():
            await asyncio.shield(self._building)
        return self.now

    async def close(self) -> None:
        if self._building is not None:
            self._building.cancel()
            await asyncio.wait([self._building])

    async def _build(self) -> None:
        try:
            while self._indexed is not self._tools:
                tools = self._tools
                await self._pause(max(0.0, self._built_at + REBUILD_SECONDS - self._clock()))
                self.now = await asyncio.to_thread(index_of, tools)
                self._indexed = tools
                self._built_at = self._clock()
        finally:
            self._building = None


def index_of(tools: Iterable[RegisteredTool]) -> SearchIndex:
    return SearchIndex(
        ToolText(
            address=tool.address,
            name=tool.original,
            server=tool.source,
            title=tool.tool.title,
            description=tool.tool.description,
            parameters=parameter_names(tool.offered.parameters),
        )
        for tool in tools
    )


class SearchedTools:
    """The tools of a request of which some are found by searching."""

    def __init__(
        self,
        tools: Mapping[str, RegisteredTool],
        taken_names: Collection[str],
        *,
        plan: SearchPlan,
        named: frozenset[str],
        index: ToolIndex,
    ) -> None:
        """`tools`: by their names in the request. `taken_names`: those of other tools of the same request. `named`: the tools that
        the request names, by their names in the registry. Those of servers that it names by their addresses are named as well."""
        self.plan = plan
        self._named = named
        self.index = index
        all_names = {*tools, *taken_names}
        self._tools = tools
        self._by_address = {tool.address: tool for tool in tools.values()}
        pins = ToolFilter(plan.pins)
        self.hidden: Mapping[str, RegisteredTool] = {
            name: tool
            for name, tool in tools.items()
            if not (tool.tool.name in named or pins.admits(tool) or tool.source.startswith(OF_REQUESTS))
        }
        """Those whose schemas are not in the prompt."""
        find_name = free_name(FIND, all_names)
        call_name = free_name(BRIDGE, all_names)
        self._inner: Offer = {name: self._offered(name, tool) for name, tool in tools.items()}
        self.find = self._find_tool(find_name, call_name)
        self.call: OwnTool | None = None
        """The bridge; None where the model's list gets what was found."""
        if not plan.reveals:
            self.call = self._bridge(call_name)
        self.deferred: DeferredTools | None = None
        """The same for a provider that loads what was found itself."""
        if self.call is not None and plan.may_be_native:
            self.deferred = DeferredTools(
                find=find_name,
                bridge=call_name,
                find_definition=encoded(find_name, self.description(HOW_LOADED), FIND_PARAMETERS),
                names=frozenset(self.hidden),
                definitions=tuple(tool.definition for tool in self.hidden.values()),
            )
        self.own: Sequence[OwnTool] = (self.find,) if self.call is None else (self.find, self.call)
        self.shown: Sequence[msgspec.Raw] = tuple(
            tool.definition for name, tool in tools.items() if name not in self.hidden
        )
        """The schemas of the tools that are not hidden."""

    def offer(self) -> dict[str, OfferedTool]:
        """Return all that the gate lets through."""
        return {**self._inner, **{tool.name: tool.offered for tool in self.own}}

    def counts(self) -> dict[str, int]:
        """Return how many of the tools are offered, and how many the model is shown."""
        return {"offered": len(self._tools), "shown": len(self._tools) - len(self.hidden)}

    def again(self, tools: Mapping[str, RegisteredTool], taken_names: Collection[str]) -> "SearchedTools":
        """Return the same for other tools."""
        return SearchedTools(tools, taken_names, plan=self.plan, named=self._named, index=self.index)

    def listed(self, names: Iterable[str]) -> Iterator[msgspec.Raw]:
        """Yield the schemas of those of some tools that are hidden."""
        for name in names:
            if (tool := self.hidden.get(name)) is not None:
                yield tool.definition

    async def search(self, arguments: Mapping[str, Any], misses: set[frozenset[str]]) -> Outcome:
        """Run a call of `find_tools`. `misses`: the words of the chat's last search, where nothing was found by them."""
        names = [name for name in arguments.get("names") or () if isinstance(name, str)][:MAX_LIMIT]
        query = visible(str(arguments.get("query") or "")[:MAX_WRITTEN])[:MAX_QUERY]
        limit = min(max(arguments.get("limit") or USUAL_LIMIT, 1), MAX_LIMIT)
        index = await self.index.ready()
        named = [name for name in names if name in self._tools]
        names_found = dict.fromkeys(named)
        names_found |= dict.fromkeys(
            self._by_address[address].name for address in index.nearest(query, self._by_address, limit)
        )
        before = set(misses)
        misses.clear()
        unknown = {name[:MAX_LENGTH]: self._near(index, name[:MAX_QUERY]) for name in names if name not in self._tools}
        if not names_found and not unknown:
            words = frozenset(words_of(query))
            misses.add(words)
            if words in before:
                return Failed(AGAIN, FailureKind.REFUSED)
            return Returned(_text({"servers": self._servers(), "note": NOTHING}), facts=ResultFacts(searched="nothing"))
        result = self._result([self._tools[name] for name in names_found], unknown)
        with_schemas = tuple(tool["name"] for tool in result.get("found", ()))
        facts = ResultFacts(searched="found" if with_schemas else "nothing", found_tools=with_schemas)
        return Returned(_text(result), facts=facts)

    def near(self, name: str) -> Sequence[str]:
        """Return the names of the tools that are the most like one that none has."""
        return self._near(self.index.now, name)

    def _near(self, index: SearchIndex, name: str) -> list[str]:
        near = [self._by_address[address].name for address in index.nearest(name, self._by_address, MAX_NEAR)]
        return near or close_names(name, self._tools)

    def _result(self, tools: Sequence[RegisteredTool], unknown: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Return the tools that were found, within the bound: as many schemas as fit, and the others in a line each."""
        result: dict[str, Any] = {}
        room = self.plan.result_tokens * CHARS_PER_TOKEN - len(NEAREST)
        with_schemas: list[dict[str, Any]] = []
        also: list[str] = []
        for tool in tools:
            described = self._described(tool)
            if len(_text(described)) > room and not with_schemas:
                described = _shortened(described, tool.offered.parameters, room)
            if len(_text(described)) <= room:
                with_schemas.append(described)
                room -= len(_text(described)) + 1
            else:
                line = f"{tool.name} ({tool.source or OWN_SOURCE}): {_summary(tool)}"
                also.append(line)
                room -= len(line) + 3
        if with_schemas:
            result["found"] = with_schemas
        if also:
            result |= {"also": also, "schemas": SHOWN_BY_NAME.format(find=self.find.name)}
        if unknown:
            result["unknown"] = unknown
        result["note"] = NEAREST
        return result

    def _described(self, tool: RegisteredTool) -> dict[str, Any]:
        described: dict[str, Any] = {"name": tool.name, "server": tool.source or OWN_SOURCE}
        if self.plan.reveals or tool.name not in self.hidden:
            return described | {"description": _summary(tool)}
        return described | {"description": tool.tool.description, "parameters": tool.offered.parameters}

    def _servers(self) -> list[dict[str, Any]]:
        counts = Counter(tool.source for tool in self._tools.values())
        return [
            {
                "server": server or OWN_SOURCE,
                "tools": count,
                **({"about": about} if (about := self._about(server)) else {}),
            }
            for server, count in sorted(counts.items())[:MAX_SERVERS]
        ]

    def _about(self, server: str) -> str:
        return self.index.about(server) if server else ""

    def _find_tool(self, name: str, call_name: str) -> OwnTool:
        how = HOW_LISTED if self.plan.reveals else HOW_BRIDGED.format(call=call_name)
        definition = encoded(name, self.description(how), FIND_PARAMETERS)
        return OwnTool(
            name=name,
            offered=OfferedTool(name, FIND_PARAMETERS, compile_schema(FIND_PARAMETERS), may_run_again=True),
            definition=definition,
        )

    def description(self, how: str) -> str:
        """Return what `find_tools` says of itself and of what is to be found: the same until the tools change."""
        counts = Counter(tool.source for tool in self.hidden.values())
        servers = []
        for server, count in sorted(counts.items())[:MAX_SERVERS]:
            about = self._about(server)
            servers.append(f"{server or OWN_SOURCE} ({count})" + (f": {about}" if about else ""))
        if len(counts) > MAX_SERVERS:
            servers.append(f"and {len(counts) - MAX_SERVERS} more")
        return FIND_DESCRIPTION.format(how=how) + "; ".join(servers)

    def _bridge(self, name: str) -> OwnTool:
        bridge = Bridge(self._inner, self.near)
        return OwnTool(
            name=name,
            offered=OfferedTool(name, CALL_PARAMETERS, _is_a_call, bridge=bridge),
            definition=encoded(name, CALL_DESCRIPTION, CALL_PARAMETERS),
        )

    def _offered(self, name: str, tool: RegisteredTool) -> OfferedTool:
        if name not in self.hidden:
            return tool.offered
        return OfferedTool(name, tool.offered.parameters, tool.offered.check, is_hidden=True)


def _is_a_call(written: dict[str, Any]) -> FlawDetail | None:
    """Check what is around a call inside the bridge. Its arguments are checked as those of a call by its own name."""
    further = [name for name in written if name not in ("name", "arguments")]
    if further:
        note = "the arguments of the tool belong into `arguments`"
        return FlawDetail("/" + further[0], "`name` and `arguments`, and nothing else", further[0], note)
    if not isinstance(written.get("name"), str):
        return FlawDetail("/name", "the name of a tool", json.dumps(written.get("name"))[:MAX_SUMMARY])
    return None


def _summary(tool: RegisteredTool) -> str:
    return first_sentence(tool.tool.description)[:MAX_SUMMARY]


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _shortened(described: dict[str, Any], schema: Mapping[str, Any], room: int) -> dict[str, Any]:
    """Return a tool that is larger than a whole result: without the descriptions of nested properties, else with the names of its
    parameters only."""
    described = {**described, "description": described["description"][:MAX_QUERY], "shortened": SHORTENED}
    described["parameters"] = _without_descriptions(schema, nested=False)
    if len(_text(described)) > room:
        described["parameters"] = _without_descriptions(schema, nested=True)
    if len(_text(described)) > room:
        outline = {"type": "object", "properties": {name: {} for name in schema.get("properties") or ()}}
        described["parameters"] = outline | {"required": schema.get("required") or []}
    return described


def _without_descriptions(schema: Any, *, nested: bool) -> Any:
    """Return a schema without descriptions; `nested`: also without those of its own properties, below which none stays."""
    if isinstance(schema, list):
        return [_without_descriptions(item, nested=nested) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, Mapping):
            plain[key] = {name: _property(inner, nested=nested) for name, inner in value.items()}
        elif key not in ("description", "examples", "title"):
            plain[key] = _without_descriptions(value, nested=True)
    return plain


def _property(schema: Any, *, nested: bool) -> Any:
    plain = _without_descriptions(schema, nested=True)
    if nested or not isinstance(schema, Mapping) or not isinstance(schema.get("description"), str):
        return plain
    return {**plain, "description": schema["description"]}
