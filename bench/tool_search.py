"""What searching for tools finds, and what it saves: `python bench/tool_search.py FOLDER` prints the tables of docs/performance.md.

FOLDER has `tools.json` (`{"tools": [{"server", "name", "title", "description", "inputSchema"}]}`), `queries.json` (`[{"query",
"expected_any": ["server/name"]}]`) and `tasks.json` (`[{"steps": [{"search", "call"}]}]`, `call` null where no tool does it). Real lists
of tools are not part of this repository, so that without the folder this says so and measures nothing.

The tools are registered, offered and called as in a server: the model is scripted, its calls go through the gate and the toolbox.
Tokens are counted with OpenAI's cl100k, times are of the processor. With `--check` it fails below what is promised.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "app"), str(Path(__file__).resolve().parent.parent)]
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import msgspec
import structlog

from callgate.calls.outcome import Returned
from callgate.calls.search_setting import SearchPlan
from callgate.calls.states import ReadyCall
from callgate.conversation.events import CallWritten, ChatEnded, Finished, ModelEvent
from callgate.conversation.ids import new_id
from callgate.conversation.loop import converse
from callgate.conversation.ports import ModelRequest
from callgate.conversation.preloaded_model import PreloadedTurns
from callgate.tools.executor import Policy, Safety, Tool
from callgate.tools.offered_tools import OfferedTools
from callgate.tools.registry import Registry
from callgate.tools.search_index import SearchIndex
from callgate.tools.tool_search import index_of
from callgate.tools.toolbox import RequestToolbox, ToolSet

SIZES = (300, 1000, None)
SEED = 1
ROUNDS = 20
QUERIES_OF_A_KEY = 1000
SYSTEM_TOKENS = 500
"""What stands in each prompt beside tools and turns: instructions and the question."""
ALL = SearchPlan(over=10**9)
WAYS = {"all": ALL, "bridge": SearchPlan(over=0), "reveal": SearchPlan(over=0, reveals=True)}
PROMISED = {
    "recall@5 of 300": 0.95,
    "recall@5 of 1000": 0.88,
    "recall@8 of all": 0.9,
    "µs a query": 200.0,
    "share of the tokens": 0.05,
    "further turns a task": 1.2,
}


class Answers:
    """An executor whose tool answers the same to everything."""

    async def execute(self, call: ReadyCall, context: Any) -> Returned:
        return Returned('{"ok": true, "id": 4711}')


class Shelf:
    """A source with the tools of one server."""

    kind = "mcp"

    def __init__(self, name: str, tools: Sequence[Tool]) -> None:
        self.name = name
        self._tools = tuple(tools)
        self.prefix = name

    async def open(self) -> None: ...

    async def lost(self) -> str:
        await asyncio.Event().wait()
        return ""

    async def close(self) -> None: ...

    def tools(self) -> tuple[Tool, ...]:
        return self._tools


@dataclass
class Data:
    tools: dict[str, Mapping[str, Any]]
    queries: Sequence[Mapping[str, Any]]
    tasks: Sequence[Mapping[str, Any]]

    @staticmethod
    def read(folder: Path) -> "Data":
        tools = json.loads((folder / "tools.json").read_text())["tools"]
        return Data(
            {f"{tool['server']}/{tool['name']}": tool for tool in tools},
            json.loads((folder / "queries.json").read_text()),
            json.loads((folder / "tasks.json").read_text()),
        )

    def for_queries(self, count: int | None) -> dict[str, Mapping[str, Any]]:
        return self._some(count, {address for query in self.queries for address in query["expected_any"]})

    def for_tasks(self, count: int | None) -> dict[str, Mapping[str, Any]]:
        return self._some(count, {step["call"] for task in self.tasks for step in task["steps"] if step["call"]})

    def _some(self, count: int | None, wanted: set[str]) -> dict[str, Mapping[str, Any]]:
        """So many tools: the wanted ones, and others at random."""
        if count is None:
            return self.tools
        others = sorted(set(self.tools) - wanted)
        random.Random(SEED).shuffle(others)
        chosen = wanted | set(others[: max(0, count - len(wanted))])
        return {address: tool for address, tool in self.tools.items() if address in chosen}


async def registered(tools: Mapping[str, Mapping[str, Any]]) -> Registry:
    by_server: dict[str, list[Tool]] = {}
    for tool in tools.values():
        policy = Policy(safety=Safety.READ_ONLY)
        made = Tool(
            tool["name"],
            tool["description"],
            tool["inputSchema"],
            Answers(),
            check=lambda arguments: None,
            policy=policy,
            claimed=f"{tool['server']}_{tool['name']}",
            title=tool.get("title") or "",
        )
        by_server.setdefault(tool["server"], []).append(made)
    registry = Registry()
    for server, of_server in by_server.items():
        registry.add_source(Shelf(server, of_server))
    await registry.open()
    return registry


def recall(index: SearchIndex, queries: Sequence[Mapping[str, Any]], known: set[str], count: int) -> float:
    hits = [not known.isdisjoint(query["expected_any"]) and not set(index.nearest(query["query"], known, count)).isdisjoint(query["expected_any"]) for query in queries]  # fmt: skip
    return sum(hits) / len(hits)


def microseconds(index: SearchIndex, queries: Sequence[Mapping[str, Any]], known: set[str]) -> float:
    times = []
    for query in [query["query"] for query in queries] * ROUNDS:
        began = time.thread_time_ns()
        index.nearest(query, known, 8)
        times.append((time.thread_time_ns() - began) / 1000)
    return statistics.median(times)


# What a task costs ----------------------------------------------------------------------------------------------------


@dataclass
class Cost:
    """What the prompts of some tasks come to."""

    tokens: int = 0
    uncached: int = 0
    """Of these what does not begin like the prompt before."""
    turns: int = 0
    tasks: int = 0
    missed: list[str] = field(default_factory=list)
    tool_parts: set[bytes] = field(default_factory=set)


class Prompts:
    """Counts the prompts of one chat, with the tools in front of the messages."""

    def __init__(self, cost: Cost, count: Callable[[str], int]) -> None:
        self._cost = cost
        self._count = count
        self._tools: list[bytes] = []
        self._messages = 0

    def turn(self, definitions: Sequence[msgspec.Raw], messages: Sequence[Mapping[str, Any]]) -> None:
        tools = [bytes(definition) for definition in definitions]
        sizes = [self._count(json.dumps(message)) for message in messages]
        of_tools = sum(self._count(tool.decode()) for tool in tools)
        whole = SYSTEM_TOKENS + of_tools + sum(sizes)
        self._cost.tokens += whole
        self._cost.turns += 1
        self._cost.tool_parts.add(b"".join(tools))
        if not self._messages:
            self._cost.uncached += whole
        elif tools == self._tools:
            self._cost.uncached += sum(sizes[self._messages :])
        else:  # the tools stand in front, and all behind what was added is new
            kept = sum(self._count(tool.decode()) for tool in tools[: len(self._tools)])
            self._cost.uncached += whole - (kept if tools[: len(self._tools)] == self._tools else 0)
        self._tools = tools
        self._messages = len(messages)


async def task_cost(
    tools: ToolSet, names: Mapping[str, str], task: Mapping[str, Any], cost: Cost, count: Callable[[str], int]
) -> None:
    """Play one task: for each step a search, unless an earlier one gave its tool, and the call if it is given; then the answer."""
    toolbox = RequestToolbox(server_tools=tools)
    prompts = Prompts(cost, count)
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": str(task["id"])}]
    cost.tasks += 1
    seen: set[str] = set()
    for step in task["steps"]:
        wanted = names.get(step["call"]) if step["call"] else None
        if tools.search is not None and wanted not in seen:
            prompts.turn(toolbox.definitions(), messages)
            result = await played(toolbox, messages, tools.search.find.name, {"query": step["search"]})
            seen |= {tool["name"] for tool in result.get("found", ())}
            if wanted is None and "perhaps none fits" in result.get("note", ""):
                break
            if wanted not in seen:
                cost.missed.append(step["search"])
                break
        elif wanted is None:
            break
        prompts.turn(toolbox.definitions(), messages)
        await played(toolbox, messages, str(wanted), {}, bridge=tools.search and tools.search.call)
    prompts.turn(toolbox.definitions(), messages)


async def played(
    toolbox: RequestToolbox,
    messages: list[Mapping[str, Any]],
    name: str,
    arguments: Mapping[str, Any],
    bridge: Any = None,
) -> Any:
    """Have the model make one call, by the bridge where there is one, and return what it is answered."""
    if bridge is not None:
        arguments = {"name": name, "arguments": arguments}
        name = bridge.name
    turns: list[list[ModelEvent]] = [
        [CallWritten(name, json.dumps(arguments), new_id("call")), Finished("tool_calls")],
        [Finished("stop")],
    ]
    history: list[Any] = []

    async def take(event: object) -> None:
        if isinstance(event, ChatEnded):
            history.extend(event.history)

    await converse(ModelRequest(()), PreloadedTurns("", turns), toolbox, take, new_id=lambda: new_id("call"))
    messages += history
    answer = history[-1]["content"]
    return json.loads(answer) if answer.startswith("{") else {}


# ----------------------------------------------------------------------------------------------------------------------


def counter() -> Callable[[str], int]:
    import litellm
    import tiktoken

    os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(litellm.__file__).parent / "litellm_core_utils" / "tokenizers")
    encoding = tiktoken.get_encoding("cl100k_base")
    known: dict[str, int] = {}

    def count(text: str) -> int:
        if text not in known:
            known[text] = len(encoding.encode(text, disallowed_special=()))
        return known[text]

    return count


async def ranking(data: Data) -> Iterator[tuple[str, float]]:
    print(f"{'tools':>6} {'recall@5':>9} {'recall@8':>9} {'build ms':>9} {'query µs':>9}")
    figures = []
    for size in SIZES:
        tools = data.for_queries(size)
        registry = await registered(tools)
        began = time.thread_time()
        index = index_of(registry.tools())
        built = (time.thread_time() - began) * 1000
        known = set(tools)
        five, eight = (recall(index, data.queries, known, count) for count in (5, 8))
        cost = microseconds(index, data.queries, known)
        print(f"{len(tools):>6} {five:>9.2f} {eight:>9.2f} {built:>9.0f} {cost:>9.0f}")
        name = str(size or "all")
        figures += [(f"recall@5 of {name}", five), (f"recall@8 of {name}", eight)]
        if size == SIZES[1]:
            figures.append(("µs a query", cost))
        await registry.close()
    return iter(figures)


async def tasks(data: Data, count: Callable[[str], int], size: int | None) -> Iterator[tuple[str, float]]:
    tools = data.for_tasks(size)
    registry = await registered(tools)
    offered = OfferedTools(registry)
    offered.all()
    names = {tool.address: tool.name for tool in registry.tools()}
    costs: dict[str, Cost] = {}
    print(
        f"\n{len(tools)} tools, {len(data.tasks)} tasks: tokens of all prompts, those not cached before, turns a task, missed steps"
    )
    for way, plan in WAYS.items():
        tool_set = offered.narrowed(("*",), ("*",), None, None, plan)
        costs[way] = cost = Cost()
        for task in data.tasks:
            await task_cost(tool_set, names, task, cost, count)
        share = cost.tokens / costs["all"].tokens
        print(
            f"{way:>8} {cost.tokens:>11,} {share:>7.1%} {cost.uncached:>11,} {cost.turns / cost.tasks:>6.2f}  {cost.missed}"
        )
    bridge = costs["bridge"]
    print(f"tools part of {bridge.turns} requests by the bridge: {len(bridge.tool_parts)} of different bytes")
    await offered.close()
    await registry.close()
    further = (bridge.turns - costs["all"].turns) / bridge.tasks
    print(f"further turns a task: {further:.2f}")
    return iter([("share of the tokens", bridge.tokens / costs["all"].tokens), ("further turns a task", further)])


async def rights(data: Data) -> int:
    """Search with a key that is limited to one server; return how often anything of another was found."""
    registry = await registered(data.tools)
    offered = OfferedTools(registry)
    offered.all()
    server = next(iter(data.tools.values()))["server"]
    toolbox = RequestToolbox(server_tools=offered.narrowed(("*",), (f"{server}/*",), None, None, WAYS["bridge"]))
    own = {tool.name for tool in registry.tools() if tool.source == server}
    chosen = random.Random(SEED)
    words = [word for query in data.queries for word in query["query"].split()]
    wrong = 0
    for _ in range(QUERIES_OF_A_KEY):
        messages: list[Mapping[str, Any]] = []
        query = " ".join(chosen.choices(words, k=chosen.randint(1, 6)))
        result = await played(toolbox, messages, "find_tools", {"query": query})
        seen = {tool["name"] for tool in result.get("found", ())} | {line.split()[0] for line in result.get("also", ())}
        wrong += not seen <= own
    print(f"\n{QUERIES_OF_A_KEY} searches with a key for {server!r} alone: {wrong} found anything of another server")
    await offered.close()
    await registry.close()
    return wrong


async def run(folder: Path) -> list[str]:
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    data = Data.read(folder)
    count = counter()
    figures = dict(await ranking(data))
    figures |= await tasks(data, count, SIZES[0])
    await tasks(data, count, None)
    wrong = await rights(data)
    failures = [
        name
        for name, bar in PROMISED.items()
        if (figures[name] < bar) == name.startswith("recall") and figures[name] != bar
    ]
    return [*failures, *(["rights"] if wrong else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="has tools.json, queries.json and tasks.json")
    parser.add_argument("--check", action="store_true", help="fail below what is promised")
    options = parser.parse_args()
    if options.folder is None or not (options.folder / "tools.json").exists():
        print(
            f"no list of tools at {options.folder}: nothing was measured. Name a folder with tools.json, queries.json and tasks.json."
        )
        return
    failures = asyncio.run(run(options.folder))
    if failures:
        print(f"\nbelow what is promised: {', '.join(failures)}")
    if failures and options.check:
        sys.exit(1)


if __name__ == "__main__":
    main()
